//! Watches of the API server for this node, and the pod sources.

use std::sync::Arc;

use agent_config::Settings;
use agent_config::node::event_rate;
use agent_csi::Drivers;
use agent_interfaces::PodSourceEvent;
use agent_pod::desired::PodSource;
use agent_pod::env::ServiceEnv;
use agent_sources::manifests::{Directory, ManifestPods, ManifestPublisher, Origin};
use agent_sources::object_cache::ClusterObjects;
use agent_sources::{api, mirrors};
use agent_telemetry::node_events::NodeEvents;
use agent_workers::runtime_limiter::RuntimeLimiter;
use proto_api::core::v1::{self, Pod};
use proto_api::names::Names;
use proto_client::events::recorder;
use proto_client::{Client, ListParams, Reflector, Store};
use proto_daemon::drain::Drain;
use tokio::sync::{Notify, mpsc, watch};

use super::Agent;
use crate::reports::ClusterReports;

impl Agent {
    /// Starts the watches of the API server.
    pub(super) fn follow_cluster(&self, client: &Client, drain: &Drain) -> Cluster {
        let drivers = self.storage.csi.drivers().clone();
        let limiter = self.runtime_limiter.clone();
        Cluster::follow(client, &self.settings, &self.machine.name, drivers, limiter, drain)
    }

    /// Starts the pod sources. Returns which were started.
    pub(super) fn start_sources(
        &self,
        cluster: Option<&Cluster>,
        say: &mpsc::Sender<PodSourceEvent>,
    ) -> Vec<PodSource> {
        let names = self.settings.names;
        let mut sources = Vec::new();
        if let Some(cluster) = cluster {
            sources.push(PodSource::Api);
            cluster.send_pods(names, say);
        }
        if let Some(pods) = self.start_manifests(cluster) {
            sources.push(PodSource::Static);
            let store = cluster.map(|cluster| cluster.pods.clone());
            let changed = cluster.map_or_else(Arc::default, |c| c.mirrors_changed.clone());
            tokio::spawn(mirrors::send_static_pods(
                pods.clone(),
                store,
                changed,
                names,
                say.clone(),
            ));
            if let Some(cluster) = cluster {
                let (client, store) = (cluster.client.clone(), cluster.pods.clone());
                tokio::spawn(mirrors::reconcile_mirrors(
                    client,
                    self.machine.name.clone(),
                    store,
                    pods,
                    cluster.mirrors_kept.clone(),
                ));
            }
        }
        sources
    }

    /// Starts the sources of static pods. Returns their pods, if a source is configured.
    fn start_manifests(&self, cluster: Option<&Cluster>) -> Option<watch::Receiver<ManifestPods>> {
        let file = &self.settings.file;
        let directory = file.static_pod_path.clone().map(|path| (path, file.file_check_frequency));
        // Validated when the settings were read.
        let page = file.static_pods_page().and_then(Result::ok);
        let origins =
            [directory.as_ref().map(|_| Origin::File), page.as_ref().map(|_| Origin::Http)];
        let origins: Vec<Origin> = origins.into_iter().flatten().collect();
        if origins.is_empty() {
            return None;
        }
        let (known, receiver) = watch::channel(ManifestPods::unread(origins));
        let events = cluster.map(|cluster| cluster.events.clone());
        let events = events.unwrap_or_else(|| NodeEvents::new(None, &self.machine.name));
        let (names, node) = (self.settings.names, &self.machine.name);
        let teller =
            |origin| ManifestPublisher::new(origin, known.clone(), events.clone(), names, node);
        if let Some((path, period)) = directory {
            tokio::spawn(Directory { path, period }.run(teller(Origin::File)));
        }
        if let Some(page) = page {
            tokio::spawn(page.run(teller(Origin::Http)));
        }
        Some(receiver)
    }
}

/// Objects of the API server for other parts of the agent.
pub(super) struct Cluster {
    pub(super) client: Client,
    pods: Store<Pod>,
    changed: Arc<api::Changed>,
    mirrors_changed: Arc<Notify>,
    mirrors_kept: Arc<Notify>,
    pub(super) objects: Arc<ClusterObjects>,
    pub(super) reports: Arc<ClusterReports>,
    pub(super) events: NodeEvents,
}

impl Cluster {
    /// Starts the watches of the API server for a node with these CSI drivers.
    pub(super) fn follow(
        client: &Client,
        settings: &Settings,
        node: &str,
        drivers: Drivers,
        limiter: Arc<RuntimeLimiter>,
        drain: &Drain,
    ) -> Self {
        let pods = api::reflector(client, node);
        let services =
            Reflector::projected(client.all::<v1::Service>(), ListParams::default(), service_env);
        // Clients select events by the component's name in the naming profile.
        let component = settings.names.component("let");
        let (events, writer) = recorder(client.clone(), &component, node);
        let (pods_store, changed) = (pods.store(), Arc::<api::Changed>::default());
        let mirrors_changed = Arc::new(Notify::new());
        let mirrors_kept = Arc::new(Notify::new());
        let (noted, names) = (changed.clone(), settings.names);
        let pokes = [mirrors_changed.clone(), mirrors_kept.clone()];
        tokio::spawn(pods.run(drain.watch(), move |change| {
            noted.note(&change);
            if mirrors::may_change(names, &change) {
                pokes.iter().for_each(|poke| poke.notify_one());
            }
        }));
        let objects = Arc::new(ClusterObjects::new(client, services.store(), drivers, node));
        tokio::spawn(services.run(drain.watch(), |_| {}));
        // Creating pods takes precedence over events of existing ones.
        let rate = event_rate(&settings.file);
        let writer = writer.yielding(Box::new(move || limiter.has_waiters())).paced(rate);
        tokio::spawn(writer.run(drain.watch()));
        let reports = ClusterReports::new(client.clone(), events.clone(), pods_store.clone());
        Self {
            client: client.clone(),
            pods: pods_store,
            changed,
            mirrors_changed,
            mirrors_kept,
            objects,
            reports: Arc::new(reports),
            events: NodeEvents::new(Some(events), node),
        }
    }

    /// Starts the source of the node's pods in the API.
    pub(super) fn send_pods(&self, names: &'static Names, say: &mpsc::Sender<PodSourceEvent>) {
        let (store, changed) = (self.pods.clone(), self.changed.clone());
        tokio::spawn(api::run(store, changed, say.clone(), names));
    }
}

/// A Service for the environment variables of containers; `None` without a cluster IP.
fn service_env(service: v1::Service) -> Option<ServiceEnv> {
    let ip = &service.spec.cluster_ip;
    if ip.is_empty() || ip == "None" {
        return None;
    }
    let ports = service.spec.ports.iter();
    Some(ServiceEnv {
        name: service.metadata.name.clone(),
        cluster_ip: ip.clone(),
        ports: ports.map(|p| (p.name.clone(), p.protocol.clone(), p.port)).collect(),
    })
}
