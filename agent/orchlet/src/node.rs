//! The Node object: registered once, its status written when it changes and otherwise periodically.
//! The lease is renewed by a separate task over a separate connection, so that a hanging call does
//! not delay the heartbeat.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use agent_clock as clock;
use agent_node::pressure::Pressure;
use agent_node::status::{self, ListedImages, MachineInfo, NodeHealth, NodeImage};
use agent_runtime::{ImageRuntime, RuntimeStatus};
use agent_telemetry::node_events::NodeEvents;
use agent_workers::pod_context::PodContext;
use proto_api::Time;
use proto_api::core::v1::{Node, NodeStatus};
use proto_api::event_report::EventKind;
use proto_api::meta::v1::OwnerReference;
use proto_client::lease::{self, Holder};
use proto_client::watch::{Observed, watch as watch_objects};
use proto_client::{Client, ClientError, ListParams, WriteParams};
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use proto_daemon::statusz::TaskStatus;
use tokio::sync::watch;

const RETRY: Duration = Duration::from_secs(1);
/// Pause after a conflicting write of another client.
const REREAD: Duration = Duration::from_millis(100);
/// Interval between status passes while the node is not ready.
const NOT_READY_INTERVAL: Duration = Duration::from_millis(200);

/// The task that registers the node and writes its status.
pub struct NodeTask {
    pub client: Client,
    /// Properties of the machine.
    pub machine: MachineInfo,
    /// Shared with pod tasks, which read the Node from it.
    pub shared: Arc<PodContext>,
    /// Whether to create the Node object if it does not exist.
    pub register: bool,
    /// Interval between status passes.
    pub check_every: Duration,
    /// How often an unchanged status is written.
    pub report_every: Duration,
    /// Most images listed in the status.
    pub images_max: usize,
    /// Recorder of Node events.
    pub events: NodeEvents,
    /// Receives the Node object when it is first read or written.
    pub node: watch::Sender<Option<Arc<Node>>>,
}

impl NodeTask {
    /// Registers the node and keeps its status until drained.
    pub async fn run(self, page: TaskStatus, drain: DrainWatch) {
        // Cancel safe: the next start reads the object again.
        tokio::select! {
            () = drain.asked() => {}
            () = self.keep_status(page) => {}
        }
    }

    async fn keep_status(&self, page: TaskStatus) {
        let mut written = Instant::now();
        let mut node_pressure = self.shared.node_pressure.subscribe();
        let mut devices = self.shared.environment.devices();
        loop {
            node_pressure.mark_unchanged();
            page.started("period");
            let known = self.node.borrow().clone();
            let result = match known.as_deref() {
                None => self.register_node().await.map(Some),
                Some(known) => {
                    let due = written.elapsed() >= self.report_every;
                    self.update(known, due).await
                }
            };
            let pause = match result {
                Ok(Some(now)) => {
                    written = Instant::now();
                    page.done("written");
                    self.publish_first(now);
                    self.pause()
                }
                Ok(None) => {
                    page.done("unchanged");
                    self.pause()
                }
                Err(error) => {
                    page.failed(chain(&error));
                    tracing::warn!(
                        error = chain(&error),
                        "cannot write the Node's status; retried"
                    );
                    // Another client wrote the object or deleted it: read it again.
                    if error.is_conflict() || error.is_not_found() {
                        self.node.send_replace(None);
                    }
                    if error.is_conflict() { REREAD } else { RETRY }
                }
            };
            // All arms are cancel safe: they only time the next pass.
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = node_pressure.changed() => {}
                () = self.deleted() => {}
                () = self.shown_not_ready() => {}
                () = self.shared.environment.devices_changed(&mut devices) => {}
            }
        }
    }

    /// Waits until the Node object is deleted, after which it is registered again.
    async fn deleted(&self) {
        let mut node = self.node.subscribe();
        let known = node.borrow_and_update().is_some();
        if !known || node.wait_for(Option::is_none).await.is_err() {
            std::future::pending().await
        }
    }

    /// Waits until a node that was ready is shown as not ready, because the node controller missed
    /// its heartbeats. Wakes at most once per `NOT_READY_INTERVAL`, even if a client keeps writing
    /// that.
    async fn shown_not_ready(&self) {
        let mut node = self.node.subscribe();
        let unready = |node: &Option<Arc<Node>>| node.as_deref().is_some_and(|n| !is_ready(n));
        let already = unready(&node.borrow_and_update());
        if already || node.wait_for(unready).await.is_err() {
            // A node that is not ready has frequent passes already.
            std::future::pending().await
        }
        tokio::time::sleep(NOT_READY_INTERVAL).await;
    }

    /// Publishes the Node only while none is known: the watch delivers later versions in order, and
    /// the response to a write may be older.
    fn publish_first(&self, node: Node) {
        if self.node.borrow().is_none() {
            publish(&self.shared, &self.node, Some(node));
        }
    }

    /// The pause until the next pass; short while the node is not ready, usually for lack of its
    /// network.
    fn pause(&self) -> Duration {
        match self.node.borrow().as_deref() {
            Some(node) if is_ready(node) => self.check_every,
            _ => NOT_READY_INTERVAL.min(self.check_every),
        }
    }

    /// Reads or creates the Node object, and updates what the agent owns of it.
    async fn register_node(&self) -> Result<Node, ClientError> {
        let api = self.client.all::<Node>();
        let names = self.client.names();
        let mut node = match api.get(&self.machine.name).await {
            Ok(node) => node,
            Err(error) if error.is_not_found() && self.register => {
                let status = self.status(&Node::default()).await;
                let node = status::registration(names, &self.machine, status);
                let created = api.create(&node, &WriteParams::default()).await?;
                let turns = status::condition_events(&NodeStatus::default(), &created.status);
                self.record_condition_events(&turns);
                created
            }
            Err(error) => return Err(error),
        };
        let boot = &self.machine.info.boot_id;
        let before = &node.status.node_info.boot_id;
        if !before.is_empty() && before != boot {
            let message = format!("Node {} has been rebooted, boot id: {boot}", self.machine.name);
            self.events.record_event(EventKind::Warning, "Rebooted", message);
        }
        if status::reconcile_registration(names, &self.machine, &mut node) {
            node = api.update(&node, &WriteParams::default()).await?;
        }
        Ok(self.update(&node, false).await?.unwrap_or(node))
    }

    /// Writes the status if it has changed or is due.
    async fn update(&self, known: &Node, due: bool) -> Result<Option<Node>, ClientError> {
        let status = self.status(known).await;
        if !due && !status::differs(&known.status, &status) {
            return Ok(None);
        }
        let turns = status::condition_events(&known.status, &status);
        let node = Node { status, ..known.clone() };
        let api = self.client.all::<Node>();
        let written = api.update_status(&node, &WriteParams::default()).await?;
        self.record_condition_events(&turns);
        Ok(Some(written))
    }

    /// Records an event for each condition that was set first or has changed.
    fn record_condition_events(&self, reasons: &[&'static str]) {
        for reason in reasons {
            let message = format!("Node {} status is now: {reason}", self.machine.name);
            self.events.record_event(EventKind::Normal, reason, message);
        }
    }

    async fn status(&self, known: &Node) -> NodeStatus {
        let mut health = health(&*self.shared.runtime).await;
        let node_pressure = *self.shared.node_pressure.borrow();
        let Pressure { memory, disk, pid } = node_pressure.pressure;
        (health.memory_pressure, health.disk_pressure, health.pid_pressure) = (memory, disk, pid);
        if node_pressure.shutting_down {
            health.not_ready.push("node is shutting down".to_owned());
        }
        let images = images(&*self.shared.runtime).await;
        let images = ListedImages { all: &images, max: self.images_max };
        let now = Time::from_unix(clock::now().unix_seconds);
        let mut status = status::status(&self.machine, &health, images, &known.status, now);
        self.shared.environment.show_devices(&mut status, &known.status);
        status.volumes_in_use = self.shared.volumes.in_use();
        status
    }
}

fn is_ready(node: &Node) -> bool {
    node.status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// Watches the Node object for changes of pod CIDRs, labels and taints.
pub async fn observe(
    client: Client,
    name: String,
    shared: Arc<PodContext>,
    sender: watch::Sender<Option<Arc<Node>>>,
    events: NodeEvents,
    drain: DrainWatch,
) {
    let api = client.all::<Node>();
    let select = ListParams::name(&name);
    let follow = watch_objects(&api, &select, |observed| match observed {
        Observed::Listed(node) | Observed::Applied(node) => {
            if let Some(reason) = cordoned(sender.borrow().as_deref(), &node) {
                let message = format!("Node {name} status is now: {reason}");
                events.record_event(EventKind::Normal, reason, message);
            }
            publish(&shared, &sender, Some(node));
        }
        Observed::Deleted(_) => publish(&shared, &sender, None),
        Observed::ListBegan | Observed::ListEnded | Observed::WatchBegan | Observed::WatchEnded => {
        }
    });
    tokio::select! {
        () = drain.asked() => {}
        () = follow => {}
    }
}

/// The event reason if the node was cordoned or uncordoned; `None` while no earlier version is
/// known.
fn cordoned(before: Option<&Node>, now: &Node) -> Option<&'static str> {
    match (before?.spec.unschedulable, now.spec.unschedulable) {
        (false, true) => Some("NodeNotSchedulable"),
        (true, false) => Some("NodeSchedulable"),
        _ => None,
    }
}

fn publish(shared: &PodContext, sender: &watch::Sender<Option<Arc<Node>>>, node: Option<Node>) {
    if let Some(node) = &node {
        let mut shared = shared.pods.node.write().unwrap_or_else(PoisonError::into_inner);
        shared.clone_from(node);
    }
    sender.send_replace(node.map(Arc::new));
}

/// Health of the runtime.
async fn health(runtime: &dyn RuntimeStatus) -> NodeHealth {
    let mut health = NodeHealth::default();
    match runtime.health().await {
        Ok(reported) => {
            if let Err(why) = reported.runtime {
                health.not_ready.push(format!("container runtime not ready: {why}"));
            }
            if let Err(why) = reported.network {
                health.not_ready.push(format!("container runtime network not ready: {why}"));
            }
        }
        Err(error) => {
            health.not_ready.push(format!("container runtime is down: {}", chain(&error)))
        }
    }
    health
}

/// The runtime's images; none if the call fails.
async fn images(runtime: &dyn ImageRuntime) -> Vec<NodeImage> {
    let images = runtime.images().await.unwrap_or_default();
    images
        .into_iter()
        .map(|image| NodeImage {
            names: image.digests.into_iter().chain(image.tags).collect(),
            size_bytes: i64::try_from(image.size).unwrap_or(i64::MAX),
        })
        .collect()
}

/// Renews the node's Lease until drained, once the Node object is known.
pub async fn renew(
    client: Client,
    (name, duration_secs): (String, u16),
    mut node: watch::Receiver<Option<Arc<Node>>>,
    page: TaskStatus,
    drain: DrainWatch,
) {
    let known = tokio::select! {
        () = drain.asked() => return,
        known = node.wait_for(Option::is_some) => known.ok().and_then(|node| node.clone()),
    };
    let holder = |node: Option<&Node>| Holder {
        lease: name.clone(),
        identity: name.clone(),
        duration_secs,
        owner: node.map(|node| lease_owner(&name, node)),
    };
    let (me, watched) = watch::channel(holder(known.as_deref()));
    let namespace = client.names().node_lease_namespace();
    let (held, _) = watch::channel(lease::Held::No);
    let follow = async {
        while node.changed().await.is_ok() {
            if let Some(node) = node.borrow_and_update().as_deref() {
                me.send_replace(holder(Some(node)));
            }
        }
        std::future::pending().await
    };
    tokio::select! {
        () = follow => {}
        () = lease::keep(client.within(namespace), watched, page, held, drain) => {}
    }
}

fn lease_owner(name: &str, node: &Node) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: name.to_owned(),
        uid: node.metadata.uid.clone(),
        ..OwnerReference::default()
    }
}

#[cfg(test)]
mod tests;
