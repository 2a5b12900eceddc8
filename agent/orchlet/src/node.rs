//! The Node object: registered once, its status written when it changes and every few minutes otherwise, its lease renewed by a
//! task of its own over a connection of its own, so that nothing that hangs here delays the heartbeat.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use agent_node::pressure::Pressure;
use agent_node::status::{self, Health, Image, Listed, Machine};
use agent_runtime::Runtime;
use proto_api::Time;
use proto_api::core::v1::Node;
use proto_api::meta::v1::OwnerReference;
use proto_client::events::EventKind;
use proto_client::lease::{self, Holder};
use proto_client::watch::{Observed, watch as watch_objects};
use proto_client::{Client, ClientError, ListParams, WriteParams};
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use proto_daemon::statusz::TaskStatus;
use tokio::sync::watch;

use crate::clock;
use crate::node_events::NodeEvents;
use crate::pods::pod_context::Parts;

/// Pause between failed attempts.
const RETRY: Duration = Duration::from_secs(1);
/// The same when somebody else wrote meanwhile.
const REREAD: Duration = Duration::from_millis(100);
/// Between two looks at a node that is not ready.
const NOT_READY_LOOK: Duration = Duration::from_millis(200);

/// What the node's task works with.
pub struct NodeTask {
    /// The API server.
    pub client: Client,
    /// Facts of the machine.
    pub machine: Machine,
    /// Shared with the pods' tasks, which read the Node from it.
    pub parts: Arc<Parts>,
    /// Whether to make the object when it does not exist.
    pub register: bool,
    /// How often the state is looked at.
    pub look_every: Duration,
    /// How often it is written when nothing has changed.
    pub report_every: Duration,
    /// Most images that are listed.
    pub images_max: usize,
    /// What is told of the node.
    pub events: NodeEvents,
    /// Told of the Node object whenever it was written or read.
    pub node: watch::Sender<Option<Arc<Node>>>,
}

impl NodeTask {
    /// Registers the node and keeps its status until drained.
    pub async fn run(self, page: TaskStatus, drain: DrainWatch) {
        // Cancel safe: the server has a write or it has not, and the next start looks.
        tokio::select! {
            () = drain.asked() => {}
            () = self.keep(page) => {}
        }
    }

    async fn keep(&self, page: TaskStatus) {
        let mut written = Instant::now();
        let mut strain = self.parts.strain.subscribe();
        let mut devices = self.parts.provision.devices();
        loop {
            strain.mark_unchanged();
            page.started("period");
            let known = self.node.borrow().clone();
            let result = match known.as_deref() {
                None => self.begin().await.map(Some),
                Some(known) => {
                    let due = written.elapsed() >= self.report_every;
                    self.update(known, due).await
                }
            };
            let pause = match result {
                Ok(Some(now)) => {
                    written = Instant::now();
                    page.done("written");
                    self.first(now);
                    self.pause()
                }
                Ok(None) => {
                    page.done("unchanged");
                    self.pause()
                }
                Err(error) => {
                    page.failed(chain(&error));
                    tracing::warn!(error = chain(&error), "node status is not written");
                    // Somebody else wrote, or the object is gone: read it again.
                    if error.is_conflict() || error.is_not_found() {
                        self.node.send_replace(None);
                    }
                    if error.is_conflict() { REREAD } else { RETRY }
                }
            };
            // All arms are cancel safe: they only say that it is time to look.
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = strain.changed() => {}
                () = self.deleted() => {}
                () = self.overruled() => {}
                () = self.parts.provision.devices_changed(&mut devices) => {}
            }
        }
    }

    /// Waits until somebody has deleted the object, which is then made again.
    async fn deleted(&self) {
        let mut node = self.node.subscribe();
        let known = node.borrow_and_update().is_some();
        if !known || node.wait_for(Option::is_none).await.is_err() {
            std::future::pending().await
        }
    }

    /// Waits until a node that was shown as ready is not any more: the node controller has not heard of it for a while. A look every
    /// `NOT_READY_LOOK` at most follows, also from who keeps writing that.
    async fn overruled(&self) {
        let mut node = self.node.subscribe();
        let unready = |node: &Option<Arc<Node>>| node.as_deref().is_some_and(|n| !is_ready(n));
        let already = unready(&node.borrow_and_update());
        if already || node.wait_for(unready).await.is_err() {
            // One that is not ready is looked at often as it is.
            std::future::pending().await
        }
        tokio::time::sleep(NOT_READY_LOOK).await;
    }

    /// What was read or written is news only while nothing is known: the watch shows every later version in order, and an
    /// answer to a write may be older than what it has shown already.
    fn first(&self, node: Node) {
        if self.node.borrow().is_none() {
            publish(&self.parts, &self.node, Some(node));
        }
    }

    /// A node that is not ready yet, mostly for want of its network, is looked at often.
    fn pause(&self) -> Duration {
        match self.node.borrow().as_deref() {
            Some(node) if is_ready(node) => self.look_every,
            _ => NOT_READY_LOOK.min(self.look_every),
        }
    }

    /// Finds the node, or makes it, and brings labels and status up to date.
    async fn begin(&self) -> Result<Node, ClientError> {
        let api = self.client.all::<Node>();
        let names = self.client.names();
        let mut node = match api.get(&self.machine.name).await {
            Ok(node) => node,
            Err(error) if error.is_not_found() && self.register => {
                let status = self.status(&Node::default()).await;
                let node = status::registration(names, &self.machine, status);
                api.create(&node, &WriteParams::default()).await?
            }
            Err(error) => return Err(error),
        };
        let boot = &self.machine.info.boot_id;
        let before = &node.status.node_info.boot_id;
        if !before.is_empty() && before != boot {
            let message = format!("Node {} has been rebooted, boot id: {boot}", self.machine.name);
            self.events.tell(EventKind::Warning, "Rebooted", message);
        }
        let labels = status::labels(names, &self.machine);
        let labelled =
            labels.iter().all(|(key, value)| node.metadata.labels.get(key) == Some(value));
        let id = &self.machine.provider_id;
        // The object keeps the identity that it was given first.
        let unnamed = node.spec.provider_id.is_empty() && !id.is_empty();
        if !labelled || unnamed {
            node.metadata.labels.extend(labels);
            if unnamed {
                node.spec.provider_id.clone_from(id);
            }
            node = api.update(&node, &WriteParams::default()).await?;
        }
        Ok(self.update(&node, false).await?.unwrap_or(node))
    }

    /// Writes the status if it changed or is due.
    async fn update(&self, known: &Node, due: bool) -> Result<Option<Node>, ClientError> {
        let status = self.status(known).await;
        if !due && !status::differs(&known.status, &status) {
            return Ok(None);
        }
        let turns = status::turns(&known.status, &status);
        let node = Node { status, ..known.clone() };
        let api = self.client.all::<Node>();
        let written = api.update_status(&node, &WriteParams::default()).await?;
        for reason in turns {
            let message = format!("Node {} status is now: {reason}", self.machine.name);
            self.events.tell(EventKind::Normal, reason, message);
        }
        Ok(Some(written))
    }

    async fn status(&self, known: &Node) -> proto_api::core::v1::NodeStatus {
        let mut health = health(&*self.parts.runtime).await;
        let strain = *self.parts.strain.borrow();
        let Pressure { memory, disk, pid } = strain.pressure;
        (health.memory_pressure, health.disk_pressure, health.pid_pressure) = (memory, disk, pid);
        if strain.shutting_down {
            health.not_ready.push("node is shutting down".to_owned());
        }
        let images = images(&*self.parts.runtime).await;
        let images = Listed { all: &images, max: self.images_max };
        let now = Time::from_unix(clock::now().unix_seconds);
        let mut status = status::status(&self.machine, &health, images, &known.status, now);
        self.parts.provision.show_devices(&mut status, &known.status);
        status.volumes_in_use = self.parts.volumes.in_use();
        status
    }
}

fn is_ready(node: &Node) -> bool {
    node.status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// Follows the Node object as others change it: its pod ranges, labels and taints.
pub async fn observe(
    client: Client,
    name: String,
    parts: Arc<Parts>,
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
                events.tell(EventKind::Normal, reason, message);
            }
            publish(&parts, &sender, Some(node));
        }
        Observed::Deleted(_) => publish(&parts, &sender, None),
        Observed::ListBegan | Observed::ListEnded => {}
    });
    // Cancel safe: only observes.
    tokio::select! {
        () = drain.asked() => {}
        () = follow => {}
    }
}

/// Whether somebody has closed the node to new pods, or opened it again; nothing is news while nothing is known.
fn cordoned(before: Option<&Node>, now: &Node) -> Option<&'static str> {
    match (before?.spec.unschedulable, now.spec.unschedulable) {
        (false, true) => Some("NodeNotSchedulable"),
        (true, false) => Some("NodeSchedulable"),
        _ => None,
    }
}

fn publish(parts: &Parts, sender: &watch::Sender<Option<Arc<Node>>>, node: Option<Node>) {
    if let Some(node) = &node {
        let mut shared = parts.node.write().unwrap_or_else(PoisonError::into_inner);
        shared.clone_from(node);
    }
    sender.send_replace(node.map(Arc::new));
}

/// Whether the runtime can run pods.
async fn health(runtime: &dyn Runtime) -> Health {
    let mut health = Health::default();
    match runtime.health().await {
        Ok(told) => {
            if let Err(why) = told.runtime {
                health.not_ready.push(format!("container runtime not ready: {why}"));
            }
            if let Err(why) = told.network {
                health.not_ready.push(format!("container runtime network not ready: {why}"));
            }
        }
        Err(error) => {
            health.not_ready.push(format!("container runtime is down: {}", chain(&error)))
        }
    }
    health
}

/// The runtime's images; none while it cannot be asked.
async fn images(runtime: &dyn Runtime) -> Vec<Image> {
    let images = runtime.images().await.unwrap_or_default();
    images
        .into_iter()
        .map(|image| Image {
            names: image.digests.into_iter().chain(image.tags).collect(),
            size_bytes: i64::try_from(image.size).unwrap_or(i64::MAX),
        })
        .collect()
}

/// Renews the node's lease until drained, once the Node object is known. The lease has the node's name and lasts so many seconds.
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
    let owner = known.map(|node| OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: name.clone(),
        uid: node.metadata.uid.clone(),
        ..OwnerReference::default()
    });
    let holder = Holder { lease: name.clone(), identity: name, duration_secs, owner };
    let namespace = client.names().node_lease_namespace();
    let (held, _) = watch::channel(lease::Held::No);
    lease::keep(client.within(namespace), holder, page, held, drain).await;
}

#[cfg(test)]
mod tests;
