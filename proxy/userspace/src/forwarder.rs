//! Keeps listeners and addresses in sync with the plan.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proto_daemon::backoff::Backoff;
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use proto_daemon::statusz::TaskStatus;
use proxy_rules::health::HealthChecks;
use proxy_rules::model::{LocalService, LocalSlice, ServiceId, Settings};
use proxy_rules::node_ports::NodePortService;
use tokio::sync::{Notify, watch};

use crate::addresses::{AddressError, LinkAddresses, ServiceAddresses};
use crate::forwarder_state::Shared;
use crate::limits::ForwarderLimits;
use crate::metrics::ForwardMetrics;
use crate::plan::{Frontend, FrontendBackends, ListenerChanges, Plan, RefusedAddresses};
use crate::ports::Ports;
use crate::sockets;

/// Services and EndpointSlices.
const SOURCES: usize = 2;
/// Interval of listing this node's addresses.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Delay before a listener or an address is retried.
const RETRY: Backoff =
    Backoff { first: Duration::from_millis(200), longest: Duration::from_secs(10) };

/// Parameters of a forwarder.
#[derive(Debug)]
pub struct Options {
    /// Bounds and times.
    pub limits: ForwarderLimits,
    /// Name of the link with the Services' addresses, at most 13 bytes; `None` if no address is assigned.
    pub link: Option<String>,
    /// What is counted.
    pub metrics: ForwardMetrics,
    /// Status for `/statusz`.
    pub status: TaskStatus,
}

/// The desired forwarding, shared by the watches and the task that does it.
#[derive(Debug)]
pub struct Forwarder {
    plan: Mutex<Plan>,
    changed: Notify,
    /// How many of the two sources are synced.
    complete_sources: watch::Sender<usize>,
    /// Results of load balancers' health checks.
    health_checks: watch::Sender<Arc<HealthChecks>>,
}

impl Forwarder {
    /// With nothing received yet.
    pub fn new(settings: Settings) -> Self {
        Self::with(Plan::new(settings).with_sctp(sockets::find_sctp()))
    }

    /// For node ports at loopback addresses, within the CIDRs of node port addresses, of the Services that
    /// [`Forwarder::node_ports_changed`] receives.
    pub fn of_node_ports(settings: Settings) -> Self {
        let at = sockets::loopback_addresses().collect();
        Self::with(Plan::of_node_ports(settings, at).with_sctp(sockets::find_sctp()))
    }

    fn with(plan: Plan) -> Self {
        Self {
            plan: Mutex::new(plan),
            changed: Notify::new(),
            complete_sources: watch::Sender::new(0),
            health_checks: watch::Sender::new(Arc::default()),
        }
    }

    /// Results of load balancers' health checks, as of the last pass.
    pub fn health_checks(&self) -> watch::Receiver<Arc<HealthChecks>> {
        self.health_checks.subscribe()
    }

    /// Sets Services with node ports, or removes them; with the first call the forwarder is synced.
    pub fn node_ports_changed(
        &self,
        zone: Option<&str>,
        changed: Vec<(ServiceId, Option<NodePortService>)>,
    ) {
        {
            let mut plan = self.plan();
            plan.zone_changed(zone);
            changed.into_iter().for_each(|(id, now)| plan.service_replaced(&id, now));
        }
        self.complete_sources.send_replace(SOURCES);
        self.changed.notify_one();
    }

    /// Returns once all sources are synced. Cancel safe.
    pub async fn complete(&self) {
        // The sender lives in self: the channel cannot close.
        let _ = self.complete_sources.subscribe().wait_for(|sources| *sources >= SOURCES).await;
    }

    /// Sets a Service, or removes it.
    pub fn service_changed(&self, id: &ServiceId, service: Option<Arc<LocalService>>) {
        self.plan().service_changed(id, service);
        self.changed.notify_one();
    }

    /// Sets an EndpointSlice, or removes it; `old` is its previous state.
    pub fn slice_changed(
        &self,
        name: &str,
        old: Option<&LocalSlice>,
        new: Option<Arc<LocalSlice>>,
    ) {
        self.plan().slice_changed(name, old, new);
        self.changed.notify_one();
    }

    /// Sets this node's zone.
    pub fn zone_changed(&self, zone: Option<&str>) {
        self.plan().zone_changed(zone);
        self.changed.notify_one();
    }

    /// Sets the addresses of all Nodes, which no Service gets. Before, Services get no external addresses but those of
    /// this node.
    pub fn nodes_changed(&self, addresses: BTreeSet<IpAddr>) {
        self.plan().nodes_changed(addresses);
        self.changed.notify_one();
    }

    /// One more of the two sources is synced.
    pub fn source_complete(&self) {
        self.complete_sources.send_modify(|sources| *sources += 1);
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forwards until drained, once synced. `passed` is called after each pass.
    pub async fn run(&self, options: Options, mut passed: impl FnMut() + Send, drain: DrainWatch) {
        // Both arms are cancel safe.
        tokio::select! {
            () = drain.asked() => return,
            () = self.complete() => {}
        }
        let shared = Arc::new(Shared::new(options.limits, options.metrics, drain.clone()));
        let mut work = Work {
            ports: Ports::new(shared.clone()),
            shared,
            addresses: options.link.as_deref().and_then(|link| {
                ServiceAddresses::open(link)
                    .inspect_err(|error| {
                        tracing::warn!(
                            error = %chain(error),
                            "cannot open netlink; service addresses are not assigned"
                        )
                    })
                    .ok()
            }),
            failed: BTreeMap::new(),
            unserved: 0,
            problem: None,
            status: options.status,
        };
        let idle = if options.link.is_some() { LOOK_EVERY } else { Duration::MAX };
        let mut failures = 0;
        loop {
            failures = if work.pass(self).await { 0 } else { failures + 1 };
            passed();
            let pause = if failures > 0 { RETRY.delay(failures, 1.0) } else { idle };
            // All arms are cancel safe.
            tokio::select! {
                () = drain.asked() => return,
                () = self.changed.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}

/// The sockets and addresses of the plan.
struct Work {
    ports: Ports,
    shared: Arc<Shared>,
    addresses: Option<ServiceAddresses>,
    /// Frontends that could not be opened, with their endpoints.
    failed: BTreeMap<Frontend, Arc<FrontendBackends>>,
    /// Ports whose protocol this host has no sockets for.
    unserved: usize,
    /// The error of the last pass.
    problem: Option<String>,
    status: TaskStatus,
}

impl Work {
    /// Applies the plan as far as possible; false if something failed.
    async fn pass(&mut self, forwarder: &Forwarder) -> bool {
        self.status.started("services or addresses changed, or periodic");
        let (found, unlisted) = match self.find().await {
            Ok(found) => (found, None),
            Err(error) => (None, Some(chain(&error))),
        };
        let (changes, wanted, inside, services, unserved, checks) = {
            let mut plan = forwarder.plan();
            // First, as the addresses of this node decide which ones Services get.
            if let Some(found) = &found {
                plan.node_changed(found.node.clone());
            }
            let changes = plan.pass();
            let checks = plan.changed_health_checks();
            let (addresses, unserved) = (plan.addresses(), plan.unserved_len());
            (changes, addresses, plan.inside(), plan.services_len(), unserved, checks)
        };
        self.note_unserved(unserved);
        changes.refused.iter().for_each(warn_of_refused);
        if let Some(checks) = checks {
            forwarder.health_checks.send_replace(Arc::new(checks));
        }
        self.shared.set_inside(inside);
        // Addresses are added before the sockets on them and removed after them.
        let mut problem = unlisted;
        if let (Some(addresses), Some(found)) = (&self.addresses, &found) {
            problem = addresses.add(&found.missing(&wanted)).await.err().map(|e| chain(&e));
        }
        let refused = self.apply(changes);
        if let (Some(addresses), Some(found)) = (&self.addresses, &found) {
            let removed = addresses.remove(&found.surplus(&wanted)).await;
            problem = problem.or(removed.err().map(|e| chain(&e)));
        }
        let problem = problem.or(refused);
        match &problem {
            None => {
                let open = self.ports.len();
                self.status.done(match unserved {
                    0 => format!("{services} services, {open} frontends"),
                    _ => format!(
                        "{services} services, {open} frontends; {unserved} ports of SCTP are not \
                         served: this host has no such sockets"
                    ),
                });
            }
            Some(problem) => {
                // A port may be in use for a long time: logged once, not at each attempt.
                if self.problem.as_ref() != Some(problem) {
                    tracing::warn!(
                        problem,
                        waiting = self.failed.len(),
                        "cannot serve some frontends; retried"
                    );
                }
                self.status.failed(problem.clone());
            }
        }
        self.problem = problem;
        self.problem.is_none()
    }

    fn note_unserved(&mut self, unserved: usize) {
        if unserved > self.unserved {
            tracing::warn!(
                unserved,
                "this kernel has no SCTP sockets; SCTP ports of services are refused"
            );
        }
        self.unserved = unserved;
    }

    /// `None` if no addresses are assigned.
    async fn find(&self) -> Result<Option<LinkAddresses>, AddressError> {
        match &self.addresses {
            Some(addresses) => addresses.find().await.map(Some),
            None => Ok(None),
        }
    }

    /// Opens and closes listeners, including those that failed before; returns a description of the failures.
    fn apply(&mut self, mut changes: ListenerChanges) -> Option<String> {
        for frontend in &changes.close {
            self.failed.remove(frontend);
        }
        let opened: HashSet<Frontend> =
            changes.open.iter().map(|(frontend, _)| *frontend).collect();
        let again = std::mem::take(&mut self.failed).into_iter();
        changes.open.extend(again.filter(|(frontend, _)| !opened.contains(frontend)));
        let mut problem = None;
        for (frontend, target, error) in self.ports.apply(changes) {
            let (service, at) = (&target.service_port.service, frontend.at);
            problem = Some(format!("{service}: listen at {at}: {error}"));
            self.failed.insert(frontend, target);
        }
        problem
    }
}

/// One line for each Service whose refused addresses have changed, however many they are.
fn warn_of_refused((service, refused): &(ServiceId, RefusedAddresses)) {
    if let [(address, refusal), others @ ..] = &**refused {
        tracing::warn!(
            %service,
            %address,
            reason = refusal.reason(),
            others = others.len(),
            "refusing an address of a service"
        );
    }
}
