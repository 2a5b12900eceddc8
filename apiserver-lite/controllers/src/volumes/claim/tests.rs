//! Tables of claims and their plans.

use super::*;
use crate::volumes::examples::*;

/// The objects of a cluster.
#[derive(Default)]
struct Cluster {
    volumes: Vec<PersistentVolume>,
    classes: Vec<StorageClass>,
    pods: Vec<Pod>,
    default: Option<String>,
}

impl Cluster {
    fn plan(&self, claim: &PersistentVolumeClaim) -> Plan {
        let annotations = VolumeAnnotations::new(names());
        let volumes: Vec<_> = self.volumes.iter().cloned().map(Arc::new).collect();
        let class = |name: &str| {
            let found = self.classes.iter().find(|class| class.metadata.name == name);
            found.cloned().map(Arc::new)
        };
        let context = ClaimContext {
            names: names(),
            annotations: &annotations,
            volume: &|name| volumes.iter().find(|v| v.metadata.name == name).cloned(),
            volumes: &|| volumes.clone(),
            class: &class,
            default_class: &|| self.default.clone(),
            pods: &|| self.pods.iter().cloned().map(Arc::new).collect(),
        };
        plan(claim, &context)
    }

    fn with(volume: PersistentVolume) -> Self {
        Self { volumes: vec![volume], ..Self::default() }
    }
}

fn events(plan: &Plan) -> Vec<(&str, &str)> {
    plan.reports.iter().map(|event| (&*event.reason, event.message.as_str())).collect()
}

fn patches(plan: &Plan) -> Vec<(ObjectKind, Part, Value)> {
    let patch = |write: &ApiWrite| match write {
        ApiWrite::Patch { kind, part, patch, .. } => (*kind, *part, patch.clone()),
        other => unreachable!("{other:?}"),
    };
    plan.writes.iter().map(patch).collect()
}

const BOUND: &str = "pv.kubernetes.io/bound-by-controller";
const DONE: &str = "pv.kubernetes.io/bind-completed";

fn completed(name: &str, volume: &str) -> PersistentVolumeClaim {
    let mut claim = claim(name);
    claim.metadata.annotations.insert(DONE.into(), "yes".into());
    claim.spec.volume_name = volume.into();
    claim
}

#[test]
fn binding_is_two_writes_the_volume_first() {
    let plan = Cluster::with(volume("v", "2Gi")).plan(&claim("c"));
    let writes = patches(&plan);
    let [(ObjectKind::PersistentVolume, Part::Main, first), (kind, Part::Main, second)] =
        &writes[..]
    else {
        unreachable!("{plan:?}")
    };
    assert_eq!(first["spec"]["claimRef"]["uid"], "uid-c");
    assert_eq!(first["spec"]["claimRef"]["kind"], "PersistentVolumeClaim");
    assert_eq!(first["metadata"]["resourceVersion"], "5");
    assert_eq!(first["metadata"]["annotations"][BOUND], "yes");
    assert_eq!(*kind, ObjectKind::PersistentVolumeClaim);
    assert_eq!(second["spec"]["volumeName"], "v");
    assert_eq!(second["metadata"]["resourceVersion"], "7");
    assert_eq!(second["metadata"]["annotations"], json!({DONE: "yes", BOUND: "yes"}));
}

#[test]
fn a_crash_between_the_two_writes_is_made_good() {
    let half = promised("v", &claim("c"), true);
    let mut others = Cluster::with(half);
    others.volumes.push(volume("smaller", "1Gi"));
    let writes = patches(&others.plan(&claim("c")));
    let [(ObjectKind::PersistentVolumeClaim, _, patch)] = &writes[..] else {
        unreachable!("{writes:?}")
    };
    assert_eq!(patch["spec"]["volumeName"], "v", "the promised one, not another");
}

#[test]
fn the_status_of_a_bound_claim_is_written_once() {
    let claim = completed("c", "v");
    let mut volume = promised("v", &claim, true);
    volume.spec.capacity.insert("storage".into(), "3Gi".parse().unwrap());
    let writes = patches(&Cluster::with(volume.clone()).plan(&claim));
    let [(_, Part::Status, patch)] = &writes[..] else { unreachable!("{writes:?}") };
    assert_eq!(patch["status"]["phase"], "Bound");
    assert_eq!(patch["status"]["capacity"]["storage"], "3Gi");
    let mut shown = claim;
    shown.status.phase = "Bound".into();
    shown.status.access_modes = volume.spec.access_modes.clone();
    assert_eq!(Cluster::with(volume).plan(&shown), Plan::default(), "its size is others' to tell");
}

#[test]
fn a_named_volume_must_fit() {
    let asks = |change: &dyn Fn(&mut PersistentVolume)| {
        let (mut wanted, mut there) = (claim("c"), volume("v", "2Gi"));
        wanted.spec.volume_name = "v".into();
        change(&mut there);
        let plan = Cluster::with(there).plan(&wanted);
        plan.reports.first().map_or_else(
            || format!("{} writes", plan.writes.len()),
            |event| format!("{} {}", event.reason, event.message),
        )
    };
    let no = |why: &str| format!("VolumeMismatch Cannot bind to requested volume \"v\": {why}");
    assert_eq!(asks(&|_| ()), "2 writes");
    assert_eq!(
        asks(&|v| v.spec.capacity = [("storage".to_owned(), "1Mi".parse().unwrap())].into()),
        no("requested PV is too small")
    );
    assert_eq!(
        asks(&|v| v.spec.storage_class_name = "x".into()),
        no("storageClassName does not match")
    );
    assert_eq!(asks(&|v| v.spec.volume_mode = Some("Block".into())), no("incompatible volumeMode"));
    assert_eq!(
        asks(&|v| v.spec.access_modes = vec!["ReadOnlyMany".into()]),
        no("incompatible accessMode")
    );
    assert_eq!(
        asks(&|v| v.spec.claim_ref = promised("v", &claim("other"), true).spec.claim_ref),
        "FailedBinding volume \"v\" already bound to a different claim."
    );
    let mut wanted = claim("c");
    wanted.spec.volume_name = "nowhere".into();
    assert_eq!(Cluster::default().plan(&wanted), Plan::default(), "it may come yet");
}

#[test]
fn both_named_each_other() {
    let mut wanted = claim("c");
    wanted.spec.volume_name = "v".into();
    let plan = Cluster::with(promised("v", &wanted, false)).plan(&wanted);
    let writes = patches(&plan);
    assert_eq!(writes.len(), 2, "{plan:?}");
    assert_eq!(writes[0].2["metadata"].get("annotations"), None, "the user bound it");
    assert_eq!(writes[1].2["metadata"]["annotations"], json!({DONE: "yes"}));
    assert_eq!(writes[1].2.get("spec"), None);
}

#[test]
fn a_claim_whose_volume_is_lost_is_reported_and_not_bound_again() {
    let others = || Cluster::with(volume("another", "2Gi"));
    for (claim, reason) in [
        (completed("c", ""), "ClaimLost"),
        (completed("c", "gone"), "ClaimLost"),
        (completed("c", "taken"), "ClaimMisbound"),
    ] {
        let mut cluster = others();
        cluster.volumes.push(promised("taken", &super::super::examples::claim("other"), true));
        let plan = cluster.plan(&claim);
        assert_eq!(plan.reports[0].reason, reason);
        let writes = patches(&plan);
        let [(_, Part::Status, patch)] = &writes[..] else { unreachable!("{plan:?}") };
        assert_eq!(patch["status"]["phase"], "Lost");
        let mut lost = claim;
        lost.status.phase = "Lost".into();
        assert_eq!(cluster.plan(&lost), Plan::default());
    }
}

#[test]
fn classes_provision() {
    let mut wanted = claim("c");
    wanted.spec.storage_class_name = Some("fast".into());
    let with = |class: StorageClass| Cluster { classes: vec![class], ..Cluster::default() };
    let plan = with(class("fast", "disk.csi.test", "Immediate")).plan(&wanted);
    assert_eq!(
        events(&plan),
        [(
            "ExternalProvisioning",
            "waiting for a volume to be created, either by external provisioner \"disk.csi.test\" or manually created by system administrator"
        )]
    );
    let asked = &patches(&plan)[0].2["metadata"]["annotations"];
    assert_eq!(asked["volume.kubernetes.io/storage-provisioner"], "disk.csi.test");
    assert_eq!(asked["volume.beta.kubernetes.io/storage-provisioner"], "disk.csi.test");
    assert_eq!(
        events(&Cluster::default().plan(&wanted)),
        [("ProvisioningFailed", "storageclass.storage.k8s.io \"fast\" not found")]
    );
    let none = "kubernetes.io/no-provisioner";
    assert_eq!(
        events(&with(class("fast", none, "Immediate")).plan(&wanted)),
        [("ProvisioningFailed", "no volume plugin matched name: kubernetes.io/no-provisioner")]
    );
    assert_eq!(
        events(&Cluster::default().plan(&claim("c"))),
        [(
            "FailedBinding",
            "no persistent volumes available for this claim and no storage class is set"
        )]
    );
}

#[test]
fn a_class_may_wait_for_a_pod() {
    let mut wanted = claim("c");
    wanted.spec.storage_class_name = Some("late".into());
    let mut fits = volume("v", "1Gi");
    fits.spec.storage_class_name = "late".into();
    let mut cluster = Cluster {
        classes: vec![class("late", "disk.csi.test", WAIT)],
        volumes: vec![fits.clone()],
        ..Cluster::default()
    };
    assert_eq!(
        events(&cluster.plan(&wanted)),
        [("WaitForFirstConsumer", "waiting for first consumer to be created before binding")]
    );
    cluster.pods = vec![user("p", "c", ""), user("q", "c", "")];
    assert_eq!(
        events(&cluster.plan(&wanted)),
        [("WaitForPodScheduled", "waiting for pods p,q to be scheduled")]
    );
    wanted.metadata.annotations.insert("volume.kubernetes.io/selected-node".into(), "n".into());
    assert_eq!(events(&cluster.plan(&wanted))[0].0, "ExternalProvisioning");
    let mut chosen = promised("v", &wanted, true);
    chosen.spec.storage_class_name = "late".into();
    cluster.volumes = vec![chosen];
    assert_eq!(cluster.plan(&wanted).writes.len(), 1, "what the scheduler chose");
}

#[test]
fn a_claim_without_a_class_gets_the_default_when_there_is_one() {
    let mut wanted = claim("c");
    wanted.spec.storage_class_name = None;
    let mut cluster = Cluster::with(volume("v", "1Gi"));
    assert_eq!(cluster.plan(&wanted).writes.len(), 2, "a volume without a class will do");
    cluster.default = Some("usual".into());
    let writes = patches(&cluster.plan(&wanted));
    assert_eq!(writes[0].2["spec"], json!({"storageClassName": "usual"}));
    assert_eq!(writes.len(), 1);
}

#[test]
fn a_terminating_claim_is_not_bound() {
    let mut going = claim("c");
    going.metadata.deletion_timestamp = Some(proto_api::Time::from_unix(1));
    assert_eq!(Cluster::with(volume("v", "1Gi")).plan(&going), Plan::default());
}
