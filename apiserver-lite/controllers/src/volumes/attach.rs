//! The attachdetach controller: a VolumeAttachment for each volume of a node's pods, on which the CSI driver's attacher acts.
//!
//! ```text
//!   a pod uses it ──▶ VolumeAttachment ──attacher──▶ attached ──▶ node.status.volumesAttached
//!   none does     ──▶ not in node.status.volumesInUse ──▶ out of volumesAttached ──▶ object deleted
//! ```
//!
//! All state is in objects; a restart only restarts the unmount timeouts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proto_api::core::v1::{AttachedVolume, Node, PersistentVolume, Pod};
use proto_api::event_report::{EventKind, EventReport};
use proto_api::meta::v1::ObjectMeta;
use proto_api::migration;
use proto_api::names::Names;
use proto_api::sha256_hex;
use proto_api::storage::v1::{VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec};
use proto_api::{ObjectKey, Resource as _};
use serde_json::json;

use super::event_report;
use crate::Plan;
use crate::api_writes::{ApiWrite, ObjectKind, Part};
use crate::pod_gc::OutOfServiceTaint;

/// When to retry a volume that is being attached to another node.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum number of recorded events that are remembered.
const REPORTED_MAX: usize = 4096;

/// A CSI volume that has to be attached.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attachable {
    /// The name of the PersistentVolume.
    pub volume: String,
    pub driver: String,
    /// The volume handle.
    pub handle: String,
    /// Whether it can be attached to one node only.
    pub exclusive: bool,
}

impl Attachable {
    /// Reads a PersistentVolume; none if it is not a CSI volume or migrated to CSI.
    pub fn from_volume(volume: &PersistentVolume) -> Option<Self> {
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

    /// The unique name in a node's status.
    fn unique(&self, names: &Names) -> String {
        format!("{}^{}", names.label(&format!("csi/{}", self.driver)), self.handle)
    }

    fn attachment(&self, node: &str) -> String {
        attachment_name(&self.handle, &self.driver, node)
    }
}

/// The name of the VolumeAttachment of a volume and node, which kubelets compute as well.
pub fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", sha256_hex(format!("{handle}{driver}{node}").as_bytes()))
}

/// The PersistentVolume of an attachment.
pub fn volume_of(attachment: &VolumeAttachment) -> Option<&str> {
    attachment.spec.source.persistent_volume_name.as_deref()
}

/// A node with its pods and attachments.
pub struct NodeAttachments<'a> {
    /// The naming profile.
    pub names: &'a Names,
    /// The node's name.
    pub name: &'a str,
    /// The node, if it exists.
    pub node: Option<&'a Node>,
    /// Its unfinished pods, with their volumes to attach.
    pub pods: Vec<(Arc<Pod>, Vec<Attachable>)>,
    /// The attachments of all nodes.
    pub attachments: &'a [Arc<VolumeAttachment>],
    /// A PersistentVolume by name.
    pub volume: &'a dyn Fn(&str) -> Option<Arc<PersistentVolume>>,
    /// How long to wait for a node that is not ready to unmount an unused volume.
    pub unmount: Duration,
    /// What the taint out-of-service means.
    pub out_of_service: OutOfServiceTaint,
    /// The pods on other nodes that use a volume.
    pub users_elsewhere: &'a dyn Fn(&str) -> Vec<Arc<Pod>>,
}

/// State that is kept between plans. Losing it restarts timeouts and repeats events.
#[derive(Debug, Default)]
pub struct AttachState {
    /// When each unused but mounted attachment was first found, by name.
    waiting: BTreeMap<String, Instant>,
    /// The node of each requested attachment that the cache does not show yet, by unique volume name. Without it, concurrent plans could attach a
    /// volume to two nodes.
    requested: BTreeMap<String, String>,
    /// Pod uid, volume and text of recorded events.
    reported: BTreeSet<(String, String, String)>,
}

impl AttachState {
    /// Whether an event was not recorded before; records it.
    fn is_new(&mut self, pod: &Pod, volume: &str, what: &str) -> bool {
        if self.reported.len() >= REPORTED_MAX {
            self.reported.clear();
        }
        self.reported.insert((pod.metadata.uid.clone(), volume.to_owned(), what.to_owned()))
    }
}

/// Plans attachments, the node's status and detachments.
pub fn plan(view: &NodeAttachments<'_>, state: &mut AttachState, now: Instant) -> Plan {
    let mut plan = Plan::default();
    // The last plan's attachments are in the cache or were rejected.
    state.requested.retain(|_, node| node != view.name);
    let mut wanted: BTreeMap<String, (&Attachable, Vec<&Arc<Pod>>)> = BTreeMap::new();
    for (pod, volumes) in &view.pods {
        for volume in volumes {
            let of = wanted.entry(volume.attachment(view.name)).or_insert((volume, Vec::new()));
            of.1.push(pod);
        }
    }
    let here = |a: &&Arc<VolumeAttachment>| a.spec.node_name == view.name;
    let attached: BTreeMap<&str, &Arc<VolumeAttachment>> = view
        .attachments
        .iter()
        .filter(here)
        .map(|attachment| (attachment.metadata.name.as_str(), attachment))
        .collect();
    for (name, (volume, pods)) in &wanted {
        state.waiting.remove(name);
        match attached.get(name.as_str()) {
            None => plan.absorb(view.attach(name, volume, pods, state)),
            Some(attachment) => {
                plan.reports.extend(view.report_failures(attachment, volume, pods, state))
            }
        }
    }
    if !state.waiting.is_empty() {
        let known = view.attachments.iter().map(|attachment| attachment.metadata.name.as_str());
        let known: BTreeSet<&str> = known.collect();
        state.waiting.retain(|name, _| known.contains(name.as_str()));
    }
    let unwanted =
        attached.values().filter(|attachment| !wanted.contains_key(&attachment.metadata.name));
    let (leaving, wait) = view.find_detachable(unwanted, state, now);
    if let Some(wait) = wait {
        plan.requeue_in(wait);
    }
    // A volume is removed from the node's status before it is detached, so that no pod starts to use it.
    plan.absorb(view.update_node_status(&attached, &wanted, &leaving));
    plan.writes.extend(leaving.into_values());
    plan
}

impl NodeAttachments<'_> {
    /// Plans an attachment unless an exclusive volume is attached elsewhere.
    fn attach(
        &self,
        name: &str,
        volume: &Attachable,
        pods: &[&Arc<Pod>],
        state: &mut AttachState,
    ) -> Plan {
        let starting = pods.iter().any(|pod| pod.metadata.deletion_timestamp.is_none());
        if self.node.is_none() || !starting {
            return Plan::default();
        }
        if volume.exclusive && self.is_elsewhere(volume) {
            return Plan {
                reports: self.report_multi_attach(volume, pods, state),
                ..Plan::default()
            };
        }
        let unique = volume.unique(self.names);
        if volume.exclusive && state.requested.contains_key(&unique) {
            return Plan { requeue_after: Some(RETRY), ..Plan::default() };
        }
        state.requested.insert(unique, self.name.to_owned());
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
        Plan::from_writes([ApiWrite::Create(attachment.into())])
    }

    /// Whether the volume, or another PersistentVolume with its handle, is attached to another node.
    fn is_elsewhere(&self, volume: &Attachable) -> bool {
        let others = self.attachments.iter().filter(|a| a.spec.node_name != self.name);
        let mut others = others.filter(|a| a.spec.attacher == volume.driver);
        others.any(|attachment| {
            let Some(name) = volume_of(attachment) else { return false };
            let of = || (self.volume)(name).as_deref().and_then(Attachable::from_volume);
            name == volume.volume || of().is_some_and(|of| of.handle == volume.handle)
        })
    }

    /// Records once for each pod that its volume is attached to another node.
    fn report_multi_attach(
        &self,
        volume: &Attachable,
        pods: &[&Arc<Pod>],
        state: &mut AttachState,
    ) -> Vec<EventReport> {
        let users = (self.users_elsewhere)(&volume.volume);
        let mut reports = Vec::new();
        for pod in pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
            if state.is_new(pod, &volume.volume, "multi-attach") {
                let message = format!(
                    "Multi-Attach error for volume {:?} {}",
                    volume.volume,
                    used_by(pod, &users)
                );
                let kind = EventKind::Warning;
                reports.push(event_report(
                    self.names,
                    pod.as_ref(),
                    kind,
                    "FailedAttachVolume",
                    message,
                ));
            }
        }
        reports
    }

    /// Records each error of the attacher once for each pod.
    fn report_failures(
        &self,
        attachment: &VolumeAttachment,
        volume: &Attachable,
        pods: &[&Arc<Pod>],
        state: &mut AttachState,
    ) -> Vec<EventReport> {
        let Some(error) = &attachment.status.attach_error else { return Vec::new() };
        let when = error.time.to_string();
        let mut reports = Vec::new();
        for pod in pods {
            if state.is_new(pod, &volume.volume, &format!("{when} {}", error.message)) {
                let message = format!(
                    "AttachVolume.Attach failed for volume {:?} : {}",
                    volume.volume, error.message
                );
                let kind = EventKind::Warning;
                reports.push(event_report(
                    self.names,
                    pod.as_ref(),
                    kind,
                    "FailedAttachVolume",
                    message,
                ));
            }
        }
        reports
    }

    /// The deletions of unused and unmounted attachments by name, and the time until the first of the others can be deleted by force.
    fn find_detachable<'a>(
        &self,
        unwanted: impl Iterator<Item = &'a &'a Arc<VolumeAttachment>>,
        state: &mut AttachState,
        now: Instant,
    ) -> (BTreeMap<String, ApiWrite>, Option<Duration>) {
        let (mounted, node_state) = (self.mounted(), NodeState::from_view(self));
        let (mut leaving, mut wait) = (BTreeMap::new(), None);
        for attachment in unwanted {
            let name = &attachment.metadata.name;
            // Attachments with other names belong to other clients.
            if !has_controller_name(name) || attachment.metadata.deletion_timestamp.is_some() {
                state.waiting.remove(name);
                continue;
            }
            let may_be_mounted = match self.node {
                Some(_) => mounted.contains(name),
                // Without the Node object its mounts are unknown, and the machine may be running.
                None => attachment.status.attached,
            };
            if may_be_mounted && node_state != NodeState::OutOfService {
                let since = *state.waiting.entry(name.clone()).or_insert(now);
                let left = self.unmount.saturating_sub(now.saturating_duration_since(since));
                if node_state == NodeState::Ready {
                    continue;
                }
                if !left.is_zero() {
                    wait = Some(wait.map_or(left, |other: Duration| other.min(left)));
                    continue;
                }
            }
            state.waiting.remove(name);
            let delete = ApiWrite::Delete {
                kind: ObjectKind::VolumeAttachment,
                key: ObjectKey::from_metadata(attachment.metadata()),
                uid: attachment.metadata.uid.clone(),
                grace_secs: None,
            };
            leaving.insert(name.clone(), delete);
        }
        (leaving, wait)
    }

    /// The names of the attachments whose volumes the node reports as in use.
    fn mounted(&self) -> BTreeSet<String> {
        let prefix = self.names.label("csi/");
        let in_use = self.node.into_iter().flat_map(|node| &node.status.volumes_in_use);
        let named = in_use.filter_map(|unique| unique.strip_prefix(&prefix)?.split_once('^'));
        named.map(|(driver, handle)| attachment_name(handle, driver, self.name)).collect()
    }

    /// Plans `volumesAttached` in the node's status, and the events of new attachments.
    fn update_node_status(
        &self,
        attached: &BTreeMap<&str, &Arc<VolumeAttachment>>,
        wanted: &BTreeMap<String, (&Attachable, Vec<&Arc<Pod>>)>,
        leaving: &BTreeMap<String, ApiWrite>,
    ) -> Plan {
        let Some(node) = self.node else { return Plan::default() };
        let shown: BTreeSet<&str> =
            node.status.volumes_attached.iter().map(|volume| volume.name.as_str()).collect();
        let (mut report, mut reports) = (BTreeSet::new(), Vec::new());
        for (name, attachment) in attached {
            let going = attachment.metadata.deletion_timestamp.is_some();
            if !attachment.status.attached || going || leaving.contains_key(*name) {
                continue;
            }
            let found = volume_of(attachment).and_then(|volume| (self.volume)(volume));
            let Some(volume) = found.as_deref().and_then(Attachable::from_volume) else { continue };
            let unique = volume.unique(self.names);
            if !shown.contains(unique.as_str())
                && let Some((_, pods)) = wanted.get(*name)
            {
                let message =
                    format!("AttachVolume.Attach succeeded for volume {:?} ", volume.volume);
                let of = |pod: &&Arc<Pod>| {
                    let (kind, reason) = (EventKind::Normal, "SuccessfulAttachVolume");
                    event_report(self.names, pod.as_ref(), kind, reason, message.clone())
                };
                reports.extend(pods.iter().map(of));
            }
            report.insert(unique);
        }
        if report.iter().map(String::as_str).eq(shown.iter().copied()) {
            return Plan::default();
        }
        let volume = |name: String| AttachedVolume { name, device_path: String::new() };
        let list: Vec<AttachedVolume> = report.into_iter().map(volume).collect();
        // Without a version precondition: other fields of the status change often, and only this controller writes the list.
        let patch =
            json!({"metadata": {"uid": node.metadata.uid}, "status": {"volumesAttached": list}});
        let key = ObjectKey::from_metadata(&node.metadata);
        let write = ApiWrite::Patch { kind: ObjectKind::Node, key, part: Part::Status, patch };
        Plan { writes: vec![write], reports, ..Plan::default() }
    }
}

/// Whether a node's report of its mounts is current.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeState {
    /// It is.
    Ready,
    /// The node is not ready or deleted.
    NotReady,
    /// A user has marked the node as out of service.
    OutOfService,
}

impl NodeState {
    fn from_view(view: &NodeAttachments<'_>) -> Self {
        let Some(node) = view.node else { return Self::NotReady };
        let off = view.names.sub_label("node", "out-of-service");
        let is_off = node.spec.taints.iter().any(|taint| taint.key == off);
        if is_off && view.out_of_service == OutOfServiceTaint::NodeIsOff {
            return Self::OutOfService;
        }
        let ready = node.status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
        if ready { Self::Ready } else { Self::NotReady }
    }
}

/// Whether the attachment's name is one that this controller computes.
fn has_controller_name(name: &str) -> bool {
    name.strip_prefix("csi-").is_some_and(|digits| {
        digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
    })
}

/// Which pods use the volume, as kube-controller-manager words it: pods of other namespaces are only counted.
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
