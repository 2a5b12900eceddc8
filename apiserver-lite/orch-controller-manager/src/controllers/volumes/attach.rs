//! What is attached to a node: the volumes of its pods, each by an object that the driver's attacher acts on.
//!
//! ```text
//!   a pod uses it ──▶ VolumeAttachment ──attacher──▶ attached ──▶ node.status.volumesAttached
//!   none does     ──▶ not in node.status.volumesInUse ──▶ out of volumesAttached ──▶ object deleted
//! ```
//!
//! All state is in objects, so that a restart forgets nothing but how long it has waited for an unmount.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proto_api::Resource as _;
use proto_api::core::v1::{AttachedVolume, Node, PersistentVolume, Pod};
use proto_api::meta::v1::ObjectMeta;
use proto_api::migration;
use proto_api::names::Names;
use proto_api::sha256_hex;
use proto_api::storage::v1::{VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec};
use proto_client::ObjectKey;
use proto_client::events::EventKind;
use proto_client::events::correlate::EventReport;
use serde_json::json;

use super::say;
use crate::api_writes::{ObjectKind, Part, Write};
use crate::controllers::Plan;

/// When to look again at a volume that another node is just being given.
const SETTLE: Duration = Duration::from_secs(1);
/// Things remembered of what was told; the oldest are not worth more memory.
const TOLD_MAX: usize = 4096;

/// A driver's volume that has to be attached.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attachable {
    /// The persistent volume.
    pub volume: String,
    /// The driver.
    pub driver: String,
    /// The driver's name of it.
    pub handle: String,
    /// Whether one node at a time may have it.
    pub exclusive: bool,
}

impl Attachable {
    /// The driver's part of a volume; none if it has no driver of that kind.
    pub fn of(volume: &PersistentVolume) -> Option<Self> {
        let source = &volume.spec.persistent_volume_source;
        let (driver, handle) = match &source.csi {
            Some(csi) => (csi.driver.clone(), csi.volume_handle.clone()),
            None => migration::disk(source).map(|(driver, id)| (driver.to_owned(), id))?,
        };
        let modes = &volume.spec.access_modes;
        let shared = |mode: &String| matches!(mode.as_str(), "ReadWriteMany" | "ReadOnlyMany");
        Some(Self {
            volume: volume.metadata.name.clone(),
            driver,
            handle,
            exclusive: !modes.is_empty() && !modes.iter().any(shared),
        })
    }

    /// The name under which nodes report it.
    fn unique(&self, names: &Names) -> String {
        format!("{}^{}", names.label(&format!("csi/{}", self.driver)), self.handle)
    }

    fn attachment(&self, node: &str) -> String {
        attachment_name(&self.handle, &self.driver, node)
    }
}

/// The name of the object that stands for a volume at a node, as every agent of the ecosystem makes it.
pub fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", sha256_hex(format!("{handle}{driver}{node}").as_bytes()))
}

/// The volume that an attachment is of.
pub fn volume_of(attachment: &VolumeAttachment) -> Option<&str> {
    attachment.spec.source.persistent_volume_name.as_deref()
}

/// A node and everything that bears on what is attached to it.
pub struct Scene<'a> {
    /// The naming profile.
    pub names: &'a Names,
    /// Its name.
    pub name: &'a str,
    /// The node, if it exists.
    pub node: Option<&'a Node>,
    /// Its pods, as far as they have not ended, each with the volumes that it needs attached.
    pub pods: Vec<(Arc<Pod>, Vec<Attachable>)>,
    /// All attachments, of all nodes.
    pub attachments: &'a [Arc<VolumeAttachment>],
    /// A volume by name.
    pub volume: &'a dyn Fn(&str) -> Option<Arc<PersistentVolume>>,
    /// How long the node has for an unmount, if it is not ready, before its volume is taken from it.
    pub unmount: Duration,
    /// The pods of other nodes that use a volume.
    pub elsewhere: &'a dyn Fn(&str) -> Vec<Arc<Pod>>,
}

/// What is remembered from one look to the next. Losing it costs time and repeats words, nothing else.
#[derive(Debug, Default)]
pub struct Memory {
    /// By attachment, since when nobody uses it but the node has it mounted.
    waiting: BTreeMap<String, Instant>,
    /// By what nodes call the volume, the node that it was asked for and whose attachment the map does not show yet. Nodes are
    /// looked at side by side: without this two could be given one volume.
    asked: BTreeMap<String, String>,
    /// What was said of a pod's volume.
    told: BTreeSet<(String, String, String)>,
}

impl Memory {
    /// Whether this has not been said before.
    fn first(&mut self, pod: &Pod, volume: &str, what: &str) -> bool {
        if self.told.len() >= TOLD_MAX {
            self.told.clear();
        }
        self.told.insert((pod.metadata.uid.clone(), volume.to_owned(), what.to_owned()))
    }
}

/// Attaches, reports and detaches.
pub fn plan(scene: &Scene<'_>, memory: &mut Memory, now: Instant) -> Plan {
    let mut plan = Plan::default();
    // What the last look asked for is there by now, or was refused.
    memory.asked.retain(|_, node| node != scene.name);
    let mut wanted: BTreeMap<String, (&Attachable, Vec<&Arc<Pod>>)> = BTreeMap::new();
    for (pod, volumes) in &scene.pods {
        for volume in volumes {
            let of = wanted.entry(volume.attachment(scene.name)).or_insert((volume, Vec::new()));
            of.1.push(pod);
        }
    }
    let here = |a: &&Arc<VolumeAttachment>| a.spec.node_name == scene.name;
    let attached: BTreeMap<&str, &Arc<VolumeAttachment>> = scene
        .attachments
        .iter()
        .filter(here)
        .map(|attachment| (attachment.metadata.name.as_str(), attachment))
        .collect();
    for (name, (volume, pods)) in &wanted {
        memory.waiting.remove(name);
        match attached.get(name.as_str()) {
            None => plan.absorb(scene.attach(name, volume, pods, memory)),
            Some(attachment) => plan.said.extend(scene.failures(attachment, volume, pods, memory)),
        }
    }
    if !memory.waiting.is_empty() {
        let known = scene.attachments.iter().map(|attachment| attachment.metadata.name.as_str());
        let known: BTreeSet<&str> = known.collect();
        memory.waiting.retain(|name, _| known.contains(name.as_str()));
    }
    let unwanted =
        attached.values().filter(|attachment| !wanted.contains_key(&attachment.metadata.name));
    let (leaving, wait) = scene.leaving(unwanted, memory, now);
    if let Some(wait) = wait {
        plan.look_again_in(wait);
    }
    // What is about to go is not reported any more before it goes: no pod begins to rely on it.
    plan.absorb(scene.report(&attached, &wanted, &leaving));
    plan.writes.extend(leaving.into_values());
    plan
}

impl Scene<'_> {
    /// Asks the attacher for a volume, unless another node has it and nobody else may.
    fn attach(
        &self,
        name: &str,
        volume: &Attachable,
        pods: &[&Arc<Pod>],
        memory: &mut Memory,
    ) -> Plan {
        let starting = pods.iter().any(|pod| pod.metadata.deletion_timestamp.is_none());
        if self.node.is_none() || !starting {
            return Plan::default();
        }
        if volume.exclusive && self.is_elsewhere(volume) {
            return Plan { said: self.refusals(volume, pods, memory), ..Plan::default() };
        }
        let unique = volume.unique(self.names);
        if volume.exclusive && memory.asked.contains_key(&unique) {
            return Plan { again_in: Some(SETTLE), ..Plan::default() };
        }
        memory.asked.insert(unique, self.name.to_owned());
        let attachment = VolumeAttachment {
            metadata: ObjectMeta { name: name.to_owned(), ..ObjectMeta::default() },
            spec: VolumeAttachmentSpec {
                attacher: volume.driver.clone(),
                source: VolumeAttachmentSource {
                    persistent_volume_name: Some(volume.volume.clone()),
                    ..VolumeAttachmentSource::default()
                },
                node_name: self.name.to_owned(),
            },
            ..VolumeAttachment::default()
        };
        Plan::of([Write::Create(attachment.into())])
    }

    /// Whether another node has the volume, or the same disk as another persistent volume.
    fn is_elsewhere(&self, volume: &Attachable) -> bool {
        let others = self.attachments.iter().filter(|a| a.spec.node_name != self.name);
        let mut others = others.filter(|a| a.spec.attacher == volume.driver);
        others.any(|attachment| {
            let Some(name) = volume_of(attachment) else { return false };
            let of = || (self.volume)(name).as_deref().and_then(Attachable::of);
            name == volume.volume || of().is_some_and(|of| of.handle == volume.handle)
        })
    }

    /// Tells each pod once that another node has its volume.
    fn refusals(
        &self,
        volume: &Attachable,
        pods: &[&Arc<Pod>],
        memory: &mut Memory,
    ) -> Vec<EventReport> {
        let users = (self.elsewhere)(&volume.volume);
        let mut said = Vec::new();
        for pod in pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
            if memory.first(pod, &volume.volume, "multi-attach") {
                let message = format!(
                    "Multi-Attach error for volume {:?} {}",
                    volume.volume,
                    used_by(pod, &users)
                );
                let kind = EventKind::Warning;
                said.push(say(self.names, pod.as_ref(), kind, "FailedAttachVolume", message));
            }
        }
        said
    }

    /// Tells each pod once of each failure of the attacher.
    fn failures(
        &self,
        attachment: &VolumeAttachment,
        volume: &Attachable,
        pods: &[&Arc<Pod>],
        memory: &mut Memory,
    ) -> Vec<EventReport> {
        let Some(error) = &attachment.status.attach_error else { return Vec::new() };
        let when = error.time.to_string();
        let mut said = Vec::new();
        for pod in pods {
            if memory.first(pod, &volume.volume, &format!("{when} {}", error.message)) {
                let message = format!(
                    "AttachVolume.Attach failed for volume {:?} : {}",
                    volume.volume, error.message
                );
                let kind = EventKind::Warning;
                said.push(say(self.names, pod.as_ref(), kind, "FailedAttachVolume", message));
            }
        }
        said
    }

    /// The attachments that nobody needs and nobody has mounted, by name with what deletes them; and how long until the
    /// first of the others may be taken by force.
    fn leaving<'a>(
        &self,
        unwanted: impl Iterator<Item = &'a &'a Arc<VolumeAttachment>>,
        memory: &mut Memory,
        now: Instant,
    ) -> (BTreeMap<String, Write>, Option<Duration>) {
        let (mounted, state) = (self.mounted(), State::of(self.names, self.node));
        let (mut leaving, mut wait) = (BTreeMap::new(), None);
        for attachment in unwanted {
            let name = &attachment.metadata.name;
            // Others' attachments bear other names; they are not ours to take off.
            if !is_ours(name) || attachment.metadata.deletion_timestamp.is_some() {
                memory.waiting.remove(name);
                continue;
            }
            let may_be_mounted = match self.node {
                Some(_) => mounted.contains(name),
                // Without the object nobody says; the machine may well go on.
                None => attachment.status.attached,
            };
            if may_be_mounted && state != State::Fenced {
                let since = *memory.waiting.entry(name.clone()).or_insert(now);
                let left = self.unmount.saturating_sub(now.saturating_duration_since(since));
                if state == State::Ready {
                    continue;
                }
                if !left.is_zero() {
                    wait = Some(wait.map_or(left, |other: Duration| other.min(left)));
                    continue;
                }
            }
            memory.waiting.remove(name);
            let delete = Write::Delete {
                kind: ObjectKind::VolumeAttachment,
                key: ObjectKey::of(attachment.metadata()),
                uid: attachment.metadata.uid.clone(),
                grace_secs: None,
            };
            leaving.insert(name.clone(), delete);
        }
        (leaving, wait)
    }

    /// The names of the attachments whose volumes the node has mounted.
    fn mounted(&self) -> BTreeSet<String> {
        let prefix = self.names.label("csi/");
        let in_use = self.node.into_iter().flat_map(|node| &node.status.volumes_in_use);
        let named = in_use.filter_map(|unique| unique.strip_prefix(&prefix)?.split_once('^'));
        named.map(|(driver, handle)| attachment_name(handle, driver, self.name)).collect()
    }

    /// Shows in the node what is attached to it, and tells the pods of what is new.
    fn report(
        &self,
        attached: &BTreeMap<&str, &Arc<VolumeAttachment>>,
        wanted: &BTreeMap<String, (&Attachable, Vec<&Arc<Pod>>)>,
        leaving: &BTreeMap<String, Write>,
    ) -> Plan {
        let Some(node) = self.node else { return Plan::default() };
        let shown: BTreeSet<&str> =
            node.status.volumes_attached.iter().map(|volume| volume.name.as_str()).collect();
        let (mut report, mut said) = (BTreeSet::new(), Vec::new());
        for (name, attachment) in attached {
            let going = attachment.metadata.deletion_timestamp.is_some();
            if !attachment.status.attached || going || leaving.contains_key(*name) {
                continue;
            }
            let found = volume_of(attachment).and_then(|volume| (self.volume)(volume));
            let Some(volume) = found.as_deref().and_then(Attachable::of) else { continue };
            let unique = volume.unique(self.names);
            if !shown.contains(unique.as_str())
                && let Some((_, pods)) = wanted.get(*name)
            {
                let message =
                    format!("AttachVolume.Attach succeeded for volume {:?} ", volume.volume);
                let of = |pod: &&Arc<Pod>| {
                    let (kind, reason) = (EventKind::Normal, "SuccessfulAttachVolume");
                    say(self.names, pod.as_ref(), kind, reason, message.clone())
                };
                said.extend(pods.iter().map(of));
            }
            report.insert(unique);
        }
        if report.iter().map(String::as_str).eq(shown.iter().copied()) {
            return Plan::default();
        }
        let volume = |name: String| AttachedVolume { name, device_path: String::new() };
        let list: Vec<AttachedVolume> = report.into_iter().map(volume).collect();
        // Of the node's status this list alone is ours; everything else changes all the time.
        let patch =
            json!({"metadata": {"uid": node.metadata.uid}, "status": {"volumesAttached": list}});
        let key = ObjectKey::of(&node.metadata);
        let write = Write::Patch { kind: ObjectKind::Node, key, part: Part::Status, patch };
        Plan { writes: vec![write], said, ..Plan::default() }
    }
}

/// What may be assumed of a node's mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The node itself says what is mounted.
    Ready,
    /// Nobody knows: it says nothing, or its object is gone.
    Silent,
    /// A user has said that it is off.
    Fenced,
}

impl State {
    fn of(names: &Names, node: Option<&Node>) -> Self {
        let Some(node) = node else { return Self::Silent };
        let off = names.sub_label("node", "out-of-service");
        if node.spec.taints.iter().any(|taint| taint.key == off) {
            return Self::Fenced;
        }
        let ready = node.status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
        if ready { Self::Ready } else { Self::Silent }
    }
}

/// Whether an attachment has a name that a controller gave it.
fn is_ours(name: &str) -> bool {
    name.strip_prefix("csi-").is_some_and(|digits| {
        digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
    })
}

/// Who has the volume, as the ecosystem says it: pods of other namespaces are only counted.
fn used_by(pod: &Pod, users: &[Arc<Pod>]) -> String {
    let (near, far): (Vec<&Arc<Pod>>, Vec<&Arc<Pod>>) =
        users.iter().partition(|user| user.metadata.namespace == pod.metadata.namespace);
    let near: Vec<&str> = near.iter().map(|pod| pod.metadata.name.as_str()).collect();
    let far = far.len();
    match (near.as_slice(), far) {
        ([], 0) => {
            "Volume is already exclusively attached to one node and can't be attached to another"
                .to_owned()
        }
        ([], far) => {
            format!("Volume is already used by {far} pod(s) in different namespaces")
        }
        (near, 0) => format!("Volume is already used by pod(s) {}", near.join(", ")),
        (near, far) => format!(
            "Volume is already used by pod(s) {} and {far} pod(s) in different namespaces",
            near.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests;
