//! Watches Services and EndpointSlices and reports each change to the [`ChangeHandlers`], in order. What this node does not
//! need of an object is dropped as soon as it is read.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proto_api::core::v1::Service;
use proto_api::discovery::v1::EndpointSlice;
use proto_api::{MicroTime, ObjectKey};
use proto_client::{Change, Client, ListParams, Reflector};
use proto_daemon::drain::DrainWatch;
use proxy_dns::model::{NamedService, NamedSlice, name_service, name_slice};
use proxy_nameserver::SharedZone;
use proxy_node_addresses::announcer::Followed;
use proxy_rules::localise::{is_forwarded, localise_service, localise_slice, selector};
use proxy_rules::model::{LocalService, LocalSlice, ServiceId};
use proxy_sync::change_handler::ChangeHandler;

use crate::config::Config;
use crate::dns;

/// Receivers of Services and EndpointSlices.
#[derive(Clone)]
pub struct ChangeHandlers {
    pub forwards: Arc<dyn ChangeHandler>,
    /// The DNS zone, with `--dns`.
    pub names: Option<Arc<SharedZone>>,
}

/// What is kept of an object: for forwarding, and for DNS.
#[derive(Debug)]
struct Projected<L, N> {
    forwarded: Option<Arc<L>>,
    named: Option<Arc<N>>,
}

impl<L, N> Default for Projected<L, N> {
    fn default() -> Self {
        Self { forwarded: None, named: None }
    }
}

/// Watches Services and EndpointSlices until drained. The value is whether a watch of Services is open.
pub fn start(
    client: &Client,
    config: &Config,
    listeners: &ChangeHandlers,
    drain: &DrainWatch,
) -> Followed {
    let (names, node_name) = (config.names, config.node_name.clone());
    // Services that are not forwarded, such as headless ones, have DNS names too.
    let naming = listeners.names.is_some();
    let params = match naming {
        true => ListParams::default(),
        false => ListParams::labels(selector(names)),
    };
    let services = Reflector::projected(client.all::<Service>(), params.clone(), move |service| {
        let ours = is_forwarded(&service.metadata, names);
        let forwarded = ours.then(|| localise_service(&service, names)).flatten().map(Arc::new);
        let named = naming.then(|| name_service(&service)).flatten().map(Arc::new);
        Projected { forwarded, named }
    });
    let followed = services.store().followed();
    let answered_here = naming.then(|| dns::service_id(names));
    let trigger = names.sub_label("endpoints", "last-change-trigger-time");
    let forwards = listeners.forwards.clone();
    let slices = Reflector::projected(client.all::<EndpointSlice>(), params, move |slice| {
        let text = slice.metadata.annotations.get(&trigger);
        if let Some(at) = text.and_then(|text| system_time(text)) {
            forwards.slice_triggered(at);
        }
        let ours = is_forwarded(&slice.metadata, names);
        let local = ours.then(|| localise_slice(&slice, names, &node_name)).flatten();
        // Queries end at this node's DNS server, whatever other endpoints the Service has.
        let local = local.filter(|local| Some(&local.service) != answered_here.as_ref());
        let named = naming.then(|| name_slice(&slice, names)).flatten().map(Arc::new);
        let local = local.map(|slice| {
            let service = forwards.intern_service_id(slice.service);
            Arc::new(LocalSlice { service, ..slice })
        });
        Projected { forwarded: local, named }
    });
    let handlers = listeners.clone();
    let mut once = Once::new(listeners);
    tokio::spawn(services.run(drain.clone(), move |change| {
        once.report_sync(&change);
        handlers.dispatch_service(change);
    }));
    let handlers = listeners.clone();
    let mut once = Once::new(listeners);
    tokio::spawn(slices.run(drain.clone(), move |change| {
        once.report_sync(&change);
        handlers.dispatch_slice(change);
    }));
    followed
}

/// A time of an annotation.
fn system_time(text: &str) -> Option<SystemTime> {
    let micros = text.parse::<MicroTime>().ok()?.unix_micros()?;
    UNIX_EPOCH.checked_add(Duration::from_micros(u64::try_from(micros).ok()?))
}

impl ChangeHandlers {
    fn dispatch_service(&self, change: Change<Projected<LocalService, NamedService>>) {
        let (key, new) = match change {
            Change::Applied { key, new, .. } => (key, new),
            Change::Deleted { key, .. } => (key, Arc::default()),
            Change::Synced => return,
        };
        let id = ServiceId::new(&key.namespace, &key.name);
        self.forwards.service_changed(&id, new.forwarded.clone());
        if let Some(zone) = &self.names {
            let named = new.named.clone();
            zone.change(|zone| zone.service_changed(&key.namespace, &key.name, named));
        }
    }

    fn dispatch_slice(&self, change: Change<Projected<LocalSlice, NamedSlice>>) {
        let (ObjectKey { name, .. }, old, new) = match change {
            Change::Applied { key, new, old } => (key, old.unwrap_or_default(), new),
            Change::Deleted { key, old } => (key, old, Arc::default()),
            Change::Synced => return,
        };
        self.forwards.slice_changed(&name, old.forwarded.as_ref(), new.forwarded.clone());
        if let Some(zone) = &self.names
            && (old.named.is_some() || new.named.is_some())
        {
            let named = new.named.clone();
            zone.change(|zone| zone.slice_changed(&name, old.named.as_deref(), named));
        }
    }
}

/// Reports once that a source is synced.
struct Once(Option<ChangeHandlers>);

impl Once {
    fn new(listeners: &ChangeHandlers) -> Self {
        Self(Some(listeners.clone()))
    }

    fn report_sync<U>(&mut self, change: &Change<U>) {
        if matches!(change, Change::Synced)
            && let Some(listeners) = self.0.take()
        {
            listeners.forwards.source_complete();
            if let Some(zone) = &listeners.names {
                zone.source_complete();
            }
        }
    }
}
