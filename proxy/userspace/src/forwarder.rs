//! Follows what should be forwarded and keeps listeners and addresses as it says.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proto_daemon::backoff::Backoff;
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use proto_daemon::statusz::TaskStatus;
use proxy_rules::model::{LocalService, LocalSlice, ServiceId, Settings};
use tokio::sync::{Notify, watch};

use crate::addresses::{Found, ServiceAddresses};
use crate::metrics::ForwardMetrics;
use crate::plan::{Changes, Frontend, Plan, Target};
use crate::ports::{Ports, Shared};

/// Services, and slices of endpoints.
const SOURCES: usize = 2;
/// How often this node's addresses are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Waits after a listener or an address could not be made.
const RETRY: Backoff =
    Backoff { first: Duration::from_millis(200), longest: Duration::from_secs(10) };

/// Bounds and times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections and sessions, of all frontends together. A connection takes two open files, a session one.
    pub connections: usize,
    /// Sessions of one UDP frontend; beyond that the one that was silent longest ends.
    pub sessions: usize,
    /// How long an endpoint has to take a connection.
    pub dial: Duration,
    /// How long a UDP session lasts in which nothing is said.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 16_384,
            sessions: 4096,
            dial: Duration::from_secs(2),
            // As connection tracking has it for a flow that is not a stream.
            idle: Duration::from_secs(30),
        }
    }
}

/// What a forwarder is told.
#[derive(Debug)]
pub struct Options {
    /// Bounds and times.
    pub limits: Limits,
    /// Name of the link that gets the services' addresses; at most 13 bytes.
    pub link: String,
    /// What is counted.
    pub metrics: ForwardMetrics,
    /// What it does.
    pub status: TaskStatus,
}

/// What should be forwarded, shared by those who hear of it and the one who does it.
#[derive(Debug)]
pub struct Forwarder {
    plan: Mutex<Plan>,
    changed: Notify,
    /// How many of the two sources have been heard completely.
    heard: watch::Sender<usize>,
}

impl Forwarder {
    /// With nothing heard yet.
    pub fn new(settings: Settings) -> Self {
        let plan = Mutex::new(Plan::new(settings));
        Self { plan, changed: Notify::new(), heard: watch::Sender::new(0) }
    }

    /// Notes a service as it is now, or that there is none.
    pub fn service_changed(&self, id: &ServiceId, service: Option<Arc<LocalService>>) {
        self.plan().service_changed(id, service);
        self.changed.notify_one();
    }

    /// Notes a slice as it is now, or that there is none, and what it was before.
    pub fn slice_changed(
        &self,
        name: &str,
        old: Option<&LocalSlice>,
        new: Option<Arc<LocalSlice>>,
    ) {
        self.plan().slice_changed(name, old, new);
        self.changed.notify_one();
    }

    /// Notes the zone that this node is in.
    pub fn zone_changed(&self, zone: Option<&str>) {
        self.plan().zone_changed(zone);
        self.changed.notify_one();
    }

    /// One more of the two sources has been heard completely.
    pub fn source_complete(&self) {
        self.heard.send_modify(|heard| *heard += 1);
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forwards until drained, from when everything has been heard of. `passed` is called after each pass.
    pub async fn run(&self, options: Options, mut passed: impl FnMut() + Send, drain: DrainWatch) {
        // Both arms are cancel safe; the sender lives in self.
        let mut heard = self.heard.subscribe();
        tokio::select! {
            () = drain.asked() => return,
            _ = heard.wait_for(|heard| *heard >= SOURCES) => {}
        }
        let shared = Arc::new(Shared::new(options.limits, options.metrics, drain.clone()));
        let mut work = Work {
            ports: Ports::new(shared.clone()),
            shared,
            addresses: ServiceAddresses::open(&options.link)
                .inspect_err(|error| tracing::warn!(error = %chain(error), "no addresses"))
                .ok(),
            failed: BTreeMap::new(),
            status: options.status,
        };
        let mut failures = 0;
        loop {
            failures = if work.pass(self).await { 0 } else { failures + 1 };
            passed();
            let pause = if failures > 0 { RETRY.delay(failures, 1.0) } else { LOOK_EVERY };
            // All arms are cancel safe.
            tokio::select! {
                () = drain.asked() => return,
                () = self.changed.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}

/// What is made of the plan.
struct Work {
    ports: Ports,
    shared: Arc<Shared>,
    addresses: Option<ServiceAddresses>,
    /// Frontends that could not be opened, and where they should lead.
    failed: BTreeMap<Frontend, Arc<Target>>,
    status: TaskStatus,
}

impl Work {
    /// Makes everything as planned that can be; says whether all could.
    async fn pass(&mut self, forwarder: &Forwarder) -> bool {
        self.status.started("something changed, or time passed");
        let found = self.find().await;
        let (changes, wanted, inside, services) = {
            let mut plan = forwarder.plan();
            // Once before, so that addresses of services are known as such.
            let mut changes = plan.pass();
            plan.node_changed(found.node.clone());
            changes.merge(plan.pass());
            (changes, plan.addresses(), plan.inside(), plan.services_len())
        };
        self.shared.set_inside(inside);
        // Addresses come before the sockets on them and go after them.
        let mut problem = None;
        if let Some(addresses) = &self.addresses {
            problem = addresses.add(&found.missing(&wanted)).await.err().map(|e| chain(&e));
        }
        let refused = self.apply(changes);
        if let Some(addresses) = &self.addresses {
            let removed = addresses.remove(&found.surplus(&wanted)).await;
            problem = problem.or(removed.err().map(|e| chain(&e)));
        }
        let problem = problem.or(refused);
        match &problem {
            None => {
                self.status.done(format!("{services} services, {} frontends", self.ports.len()));
            }
            Some(problem) => {
                tracing::warn!(problem, waiting = self.failed.len(), "not all is forwarded");
                self.status.failed(problem.clone());
            }
        }
        problem.is_none()
    }

    async fn find(&self) -> Found {
        let Some(addresses) = &self.addresses else { return Found::default() };
        let found = addresses.find().await;
        found.unwrap_or_else(|error| {
            tracing::warn!(error = %chain(&error), "this node's addresses are not known");
            Found::default()
        })
    }

    /// Opens and closes listeners, those that failed before among them; what could not be opened, in words.
    fn apply(&mut self, mut changes: Changes) -> Option<String> {
        for frontend in &changes.close {
            self.failed.remove(frontend);
        }
        for (frontend, target) in std::mem::take(&mut self.failed) {
            if !changes.open.iter().any(|(other, _)| *other == frontend) {
                changes.open.push((frontend, target));
            }
        }
        let mut problem = None;
        for (frontend, target, error) in self.ports.apply(changes) {
            let (service, at) = (&target.stem.service, frontend.at);
            problem = Some(format!("{service}: listen at {at}: {error}"));
            self.failed.insert(frontend, target);
        }
        problem
    }
}
