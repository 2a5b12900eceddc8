//! Tables of nodes and attachments.

use proto_api::Time;
use proto_api::core::v1::{CSIPersistentVolumeSource, NodeCondition, Taint};
use proto_api::storage::v1::VolumeError;

use super::*;
use crate::volumes::examples::*;

/// A CSI volume.
fn disk(name: &str) -> PersistentVolume {
    let mut volume = volume(name, "1Gi");
    volume.spec.persistent_volume_source.csi = Some(CSIPersistentVolumeSource {
        driver: "disk.csi.test".into(),
        volume_handle: format!("h-{name}"),
        ..Default::default()
    });
    volume
}

/// One node with its pods; all volumes are exclusive.
struct Cluster {
    node: Option<Node>,
    pods: Vec<(Pod, &'static str)>,
    attachments: Vec<VolumeAttachment>,
    users_elsewhere: Vec<Pod>,
    state: AttachState,
    out_of_service: OutOfServiceTaint,
    shared: bool,
}

impl Cluster {
    fn new() -> Self {
        let mut node = Node::default();
        node.metadata.name = "n1".into();
        node.metadata.uid = "uid-n1".into();
        let (type_, status) = ("Ready".into(), "True".into());
        node.status.conditions.push(NodeCondition { type_, status, ..Default::default() });
        Self {
            node: Some(node),
            pods: Vec::new(),
            attachments: Vec::new(),
            users_elsewhere: Vec::new(),
            state: AttachState::default(),
            out_of_service: OutOfServiceTaint::Ignored,
            shared: false,
        }
    }

    fn disk(&self, name: &str) -> PersistentVolume {
        let mut volume = disk(name);
        if self.shared {
            volume.spec.access_modes = vec!["ReadWriteMany".into()];
        }
        volume
    }

    fn node(&mut self) -> &mut Node {
        self.node.as_mut().unwrap()
    }

    fn plan_at(&mut self, now: Instant) -> Plan {
        let mut state = std::mem::take(&mut self.state);
        let attachable = |name: &str| Attachable::from_volume(&self.disk(name)).unwrap();
        let pods = self.pods.iter();
        let pods =
            pods.map(|(pod, name)| (Arc::new(pod.clone()), vec![attachable(name)])).collect();
        let attachments: Vec<_> = self.attachments.iter().cloned().map(Arc::new).collect();
        let users_elsewhere: Vec<_> = self.users_elsewhere.iter().cloned().map(Arc::new).collect();
        let view = NodeAttachments {
            names: names(),
            name: "n1",
            node: self.node.as_ref(),
            pods,
            attachments: &attachments,
            volume: &|name| Some(Arc::new(self.disk(name))),
            unmount: Duration::from_secs(6 * 60),
            out_of_service: self.out_of_service,
            users_elsewhere: &|_| users_elsewhere.clone(),
        };
        let plan = plan(&view, &mut state, now);
        self.state = state;
        plan
    }

    fn plan(&mut self) -> Plan {
        self.plan_at(Instant::now())
    }
}

fn attachment(volume: &str, node: &str, attached: bool) -> VolumeAttachment {
    let mut made = VolumeAttachment::default();
    made.metadata.name = attachment_name(&format!("h-{volume}"), "disk.csi.test", node);
    made.metadata.uid = format!("uid-{volume}-{node}");
    made.spec.attacher = "disk.csi.test".into();
    made.spec.node_name = node.into();
    made.spec.source.persistent_volume_name = Some(volume.into());
    made.status.attached = attached;
    made
}

/// The plan in short form.
fn short(plan: &Plan) -> Vec<String> {
    let write = |write: &ApiWrite| match write {
        ApiWrite::Create(_) => "attach".to_owned(),
        ApiWrite::Delete { .. } => "detach".to_owned(),
        ApiWrite::Patch { patch, .. } => {
            let list = patch["status"]["volumesAttached"].as_array().unwrap();
            format!("report {}", list.len())
        }
        other => unreachable!("{other:?}"),
    };
    let reports = plan.reports.iter().map(|event| event.reason.to_string());
    plan.writes.iter().map(write).chain(reports).collect()
}

const UNIQUE: &str = "kubernetes.io/csi/disk.csi.test^h-d";

#[test]
fn the_life_of_an_attachment() {
    let mut cluster = Cluster::new();
    assert_eq!(short(&cluster.plan()), [""; 0]);
    cluster.pods = vec![(user("p", "c", "n1"), "d")];
    let plan = cluster.plan();
    let [ApiWrite::Create(crate::api_writes::WrittenObject::VolumeAttachment(made))] =
        &plan.writes[..]
    else {
        unreachable!("{plan:?}")
    };
    assert_eq!(made.metadata.name, attachment("d", "n1", false).metadata.name);
    assert_eq!(made.spec, attachment("d", "n1", false).spec);
    cluster.attachments = vec![attachment("d", "n1", false)];
    assert_eq!(short(&cluster.plan()), [""; 0], "the attacher's turn");
    cluster.attachments[0].status.attached = true;
    let plan = cluster.plan();
    assert_eq!(short(&plan), ["report 1", "SuccessfulAttachVolume"]);
    assert_eq!(plan.reports[0].message, "AttachVolume.Attach succeeded for volume \"d\" ");
    let reported = AttachedVolume { name: UNIQUE.into(), device_path: String::new() };
    cluster.node().status.volumes_attached.push(reported);
    cluster.node().status.volumes_in_use.push(UNIQUE.into());
    assert_eq!(short(&cluster.plan()), [""; 0]);
    cluster.pods.clear();
    assert_eq!(short(&cluster.plan()), [""; 0], "still mounted");
    cluster.node().status.volumes_in_use.clear();
    assert_eq!(short(&cluster.plan()), ["report 0", "detach"]);
    cluster.node().status.volumes_attached.clear();
    cluster.attachments[0].metadata.deletion_timestamp = Some(Time::from_unix(1));
    assert_eq!(short(&cluster.plan()), [""; 0], "the attacher's turn again");
}

#[test]
fn a_volume_for_one_node_is_not_given_to_two() {
    let mut cluster = Cluster::new();
    cluster.pods = vec![(user("p", "c", "n1"), "d")];
    cluster.attachments = vec![attachment("d", "n2", true)];
    let plan = cluster.plan();
    assert_eq!(short(&plan), ["FailedAttachVolume"]);
    assert_eq!(
        plan.reports[0].message,
        "Multi-Attach error for volume \"d\" Volume is already exclusively attached to one node and can't be attached to another"
    );
    assert_eq!(short(&cluster.plan()), [""; 0], "told once");
    cluster.pods[0].0.metadata.uid = "another".into();
    let mut far = user("far", "c", "n2");
    far.metadata.namespace = "other".into();
    cluster.users_elsewhere = vec![user("a", "c", "n2"), far];
    assert!(
        cluster.plan().reports[0]
            .message
            .ends_with("used by pod(s) a and 1 pod(s) in different namespaces")
    );
    cluster.shared = true;
    assert_eq!(short(&cluster.plan()), ["attach"], "many nodes may have it");
    cluster.shared = false;
    cluster.attachments.clear();
    assert_eq!(short(&cluster.plan()), ["attach"]);
}

#[test]
fn two_nodes_that_are_looked_at_at_once_are_not_given_one_volume() {
    let mut cluster = Cluster::new();
    cluster.pods = vec![(user("p", "c", "n1"), "d")];
    cluster.state.requested.insert(UNIQUE.into(), "n2".into());
    let plan = cluster.plan();
    assert_eq!((short(&plan), plan.requeue_after), (Vec::new(), Some(RETRY)));
    cluster.state.requested.clear();
    assert_eq!(short(&cluster.plan()), ["attach"]);
    assert_eq!(cluster.state.requested.get(UNIQUE).map(String::as_str), Some("n1"));
    assert_eq!(short(&cluster.plan()), ["attach"], "it was refused: asked for again");
}

#[test]
fn an_attach_error_is_reported_once() {
    let mut cluster = Cluster::new();
    cluster.pods = vec![(user("p", "c", "n1"), "d")];
    let mut failed = attachment("d", "n1", false);
    failed.status.attach_error =
        Some(VolumeError { time: Time::from_unix(1), message: "no such shelf".into() });
    cluster.attachments = vec![failed];
    let plan = cluster.plan();
    assert_eq!(
        plan.reports[0].message,
        "AttachVolume.Attach failed for volume \"d\" : no such shelf"
    );
    assert_eq!(short(&cluster.plan()), [""; 0]);
    cluster.attachments[0].status.attach_error.as_mut().unwrap().time = Time::from_unix(2);
    assert_eq!(short(&cluster.plan()), ["FailedAttachVolume"], "it has failed again");
}

#[test]
fn a_silent_node_has_six_minutes() {
    let mut cluster = Cluster::new();
    cluster.attachments = vec![attachment("d", "n1", true)];
    cluster.node().status.volumes_in_use.push(UNIQUE.into());
    let start = Instant::now();
    let at = |secs| start + Duration::from_secs(secs);
    assert_eq!(cluster.plan_at(at(0)).requeue_after, None, "a node that is well unmounts it");
    cluster.node().status.conditions[0].status = "Unknown".into();
    assert_eq!(cluster.plan_at(at(100)).requeue_after, Some(Duration::from_secs(260)));
    assert!(!short(&cluster.plan_at(at(100))).contains(&"detach".to_owned()));
    assert!(short(&cluster.plan_at(at(360))).contains(&"detach".to_owned()));
}

#[test]
fn a_node_that_is_off_has_nothing_mounted() {
    let mut cluster = Cluster::new();
    cluster.attachments = vec![attachment("d", "n1", true)];
    cluster.node().status.volumes_in_use.push(UNIQUE.into());
    cluster.node().spec.taints.push(Taint {
        key: "node.kubernetes.io/out-of-service".into(),
        effect: "NoExecute".into(),
        ..Default::default()
    });
    assert!(!short(&cluster.plan()).contains(&"detach".to_owned()), "the feature gate is off");
    cluster.out_of_service = OutOfServiceTaint::NodeIsOff;
    assert!(short(&cluster.plan()).contains(&"detach".to_owned()));
}

/// Deleting a Node object does not stop the machine: its pods may still write to mounted volumes.
#[test]
fn volumes_of_a_deleted_node_are_detached_after_six_minutes() {
    let mut cluster = Cluster::new();
    cluster.attachments = vec![attachment("d", "n1", true), attachment("e", "n1", false)];
    cluster.node = None;
    let start = Instant::now();
    let at = |secs| start + Duration::from_secs(secs);
    let plan = cluster.plan_at(at(0));
    assert_eq!(short(&plan), ["detach"], "what never was attached");
    cluster.attachments.pop();
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(360)));
    assert_eq!(short(&cluster.plan_at(at(359))), [""; 0]);
    assert_eq!(short(&cluster.plan_at(at(360))), ["detach"]);
}

/// Two PersistentVolumes with one handle are one volume.
#[test]
fn a_disk_with_two_names_is_not_given_to_two_nodes() {
    let (pod, same) = (Arc::new(user("p", "c", "n1")), "same");
    let named = |name: &str| {
        let mut volume = disk(name);
        let csi = volume.spec.persistent_volume_source.csi.as_mut().unwrap();
        csi.volume_handle = same.into();
        volume
    };
    let cluster = Cluster::new();
    let mut theirs = attachment("other-name", "n2", true);
    theirs.metadata.name = attachment_name(same, "disk.csi.test", "n2");
    let attachments = [Arc::new(theirs)];
    let (find, nobody) = (|name: &str| Some(Arc::new(named(name))), |_: &str| Vec::new());
    let view = |attachments| NodeAttachments {
        names: names(),
        name: "n1",
        node: cluster.node.as_ref(),
        pods: vec![(pod.clone(), vec![Attachable::from_volume(&named("d")).unwrap()])],
        attachments,
        volume: &find,
        unmount: Duration::ZERO,
        out_of_service: OutOfServiceTaint::Ignored,
        users_elsewhere: &nobody,
    };
    let now = Instant::now();
    let planned = plan(&view(&attachments), &mut AttachState::default(), now);
    assert_eq!(short(&planned), ["FailedAttachVolume"]);
    let mut state = AttachState::default();
    state.requested.insert(format!("kubernetes.io/csi/disk.csi.test^{same}"), "n2".into());
    assert_eq!(plan(&view(&[]), &mut state, now).requeue_after, Some(RETRY));
}

#[test]
fn volume_attachments_of_others_are_not_changed() {
    let mut cluster = Cluster::new();
    let mut theirs = attachment("d", "n1", true);
    theirs.metadata.name = "by-hand".into();
    cluster.attachments = vec![theirs];
    assert_eq!(short(&cluster.plan()), ["report 1"]);
}
