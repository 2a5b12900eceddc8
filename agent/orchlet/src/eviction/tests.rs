//! A node that runs short, on the runtime in memory: readings of the real machine, thresholds that it is always or never below.

use std::path::PathBuf;

use agent_node::eviction::thresholds::Amount;
use agent_resources::pod_disk_usage::PodDirectories;
use agent_runtime::fake::FakeRuntime;
use agent_workers::pod_context::HoldsResources;
use agent_workers::test_support;
use proto_api::core::v1::{Container, EmptyDirVolumeSource, Pod, Volume};
use proto_daemon::statusz::StatusBoard;

use super::*;

struct World {
    evictor: Evictor,
    shared: Arc<PodContext>,
    _dir: tempfile::TempDir,
}

const ALWAYS: Amount = Amount::Absolute(u64::MAX);
const NEVER: Amount = Amount::Absolute(0);

fn world(runtime: &Arc<FakeRuntime>, thresholds: &[(Signal, Amount)]) -> World {
    let dir = tempfile::tempdir().expect("tempdir");
    let shared = test_support::plain_context(runtime.clone(), dir.path());
    let threshold = |(signal, below): &(Signal, Amount)| Threshold {
        signal: *signal,
        below: *below,
        grace: None,
        min_reclaim: None,
    };
    let directories = PodDirectories {
        root_dir: shared.settings.root_dir.clone(),
        pod_logs_dir: shared.settings.facts.pod_logs_dir.clone(),
    };
    let evictor = Evictor {
        shared: shared.clone(),
        disk_usages: Arc::new(PodDiskUsages::new(directories, shared.runtime.clone())),
        thresholds: thresholds.iter().map(threshold).collect(),
        transition: Duration::from_secs(300),
        soft_grace: Duration::ZERO,
        image_limits: ImageGcLimits { min_age: Duration::ZERO, ..ImageGcLimits::default() },
        pods_memory: 1 << 30,
        limits_storage: true,
        events: NodeEvents::new(None, "n"),
        state: EvictionState::default(),
    };
    World { evictor, shared, _dir: dir }
}

impl World {
    /// Measures the disk usage of all pods once.
    async fn measure_disks(&self) {
        let (usages, shared) = (self.evictor.disk_usages.clone(), self.shared.clone());
        let pods = move || shared.pods.current_pods().into_iter().map(|known| known.pod).collect();
        let page = StatusBoard::default().task("disk usage");
        let task = tokio::spawn(usages.clone().run(pods, true, page));
        for known in self.shared.pods.current_pods() {
            while usages.latest(&known.pod.metadata.uid).is_none() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        task.abort();
    }
}

/// A pod that runs, and whose task ends it as soon as it is told.
fn run(shared: &Arc<PodContext>, name: &str, change: impl Fn(&mut Pod)) {
    run_from(PodSource::Api, shared, name, change);
}

fn run_from(source: PodSource, shared: &Arc<PodContext>, name: &str, change: impl Fn(&mut Pod)) {
    let mut pod = Pod::default();
    pod.metadata.uid = name.into();
    pod.metadata.name = name.into();
    pod.spec.containers =
        vec![Container { name: "c".into(), image: "app:1".into(), ..Container::default() }];
    change(&mut pod);
    let known = PodSnapshot {
        pod: Arc::new(pod),
        status: Default::default(),
        holds_resources: HoldsResources::Yes,
        source,
    };
    shared.update_snapshot(known.clone());
    let (poke, shared) = (shared.pods.waker(name), shared.clone());
    tokio::spawn(async move {
        while shared.pods.decision(&known.pod.metadata.uid).is_none() {
            poke.notified().await;
        }
        shared.update_snapshot(PodSnapshot { holds_resources: HoldsResources::No, ..known });
    });
}

fn runtime() -> Arc<FakeRuntime> {
    Arc::new(FakeRuntime::new().0)
}

#[tokio::test]
async fn one_pod_at_a_time_and_the_node_says_what_is_short() {
    let mut world = world(&runtime(), &[(Signal::MemoryAvailable, ALWAYS)]);
    run(&world.shared, "important", |pod| pod.spec.priority = Some(10));
    run(&world.shared, "other", |pod| pod.spec.priority = Some(1));
    run(&world.shared, "critical", |pod| pod.spec.priority = Some(2_000_000_000));
    let (did, _) = world.evictor.run_pass().await;
    assert_eq!(did, PassOutcome::Evicted(1));
    let verdict = world.shared.pods.decision("other").expect("evicted");
    assert_eq!((verdict.reason.as_str(), verdict.grace), ("Evicted", Some(Duration::ZERO)));
    assert_eq!(world.shared.pods.decision("important"), None);
    assert!(world.shared.node_pressure.borrow().pressure.memory);
    assert_eq!(world.evictor.run_pass().await.0, PassOutcome::Evicted(1));
    assert!(world.shared.pods.decision("important").is_some());
    assert_eq!(world.evictor.run_pass().await.0, PassOutcome::Helpless(Signal::MemoryAvailable));
    assert_eq!(world.shared.pods.decision("critical"), None);
}

#[tokio::test]
async fn images_go_before_pods() {
    let runtime = runtime();
    runtime.add_image("app:1");
    runtime.add_image("unused:1");
    runtime.add_image("pause:1");
    let mut world = world(&runtime, &[(Signal::NodefsInodesFree, ALWAYS)]);
    run(&world.shared, "p", |_| {});
    world.shared.images.refresh_images(&*world.shared).await.expect("look");
    let (did, _) = world.evictor.run_pass().await;
    assert_eq!(did, PassOutcome::Measuring, "they are not measured yet");
    world.measure_disks().await;
    let (did, _) = world.evictor.run_pass().await;
    assert_eq!(did, PassOutcome::Evicted(1), "it was not enough");
    assert!(world.shared.node_pressure.borrow().pressure.disk);
    assert_eq!(world.shared.dead_kept(), 0);
    let removed: Vec<String> = runtime
        .changes()
        .into_iter()
        .filter(|change| change.call == "RemoveImage")
        .map(|change| change.object)
        .collect();
    assert_eq!(removed, ["sha256:unused:1"]);
}

#[tokio::test]
async fn a_calm_node_does_nothing() {
    let all: Vec<(Signal, Amount)> = Signal::ALL.into_iter().map(|s| (s, NEVER)).collect();
    let mut world = world(&runtime(), &all);
    run(&world.shared, "p", |_| {});
    assert_eq!(world.evictor.run_pass().await, (PassOutcome::Nothing, None));
    assert!(!world.shared.node_pressure.borrow().pressure.is_any());
}

#[tokio::test]
async fn a_volume_over_its_limit_ends_its_pod_alone() {
    let mut world = world(&runtime(), &[]);
    let limited = |limit: &'static str| {
        move |pod: &mut Pod| {
            let mut volume = Volume { name: "v".into(), ..Volume::default() };
            volume.volume_source.empty_dir = Some(EmptyDirVolumeSource {
                size_limit: Some(limit.parse().expect("quantity")),
                ..EmptyDirVolumeSource::default()
            });
            pod.spec.volumes = vec![volume];
        }
    };
    for (name, limit) in [("small", "4Ki"), ("large", "1Gi")] {
        run(&world.shared, name, limited(limit));
        let volume = empty_dirs(&world.shared, name).join("v");
        std::fs::create_dir_all(&volume).expect("mkdir");
        std::fs::write(volume.join("f"), vec![1; 100_000]).expect("write");
    }
    world.measure_disks().await;
    assert_eq!(world.evictor.run_pass().await.0, PassOutcome::Evicted(1));
    let verdict = world.shared.pods.decision("small").expect("evicted");
    assert_eq!(verdict.message, "Usage of EmptyDir volume \"v\" exceeds the limit \"4Ki\". ");
    assert_eq!(world.shared.pods.decision("large"), None);
}

#[tokio::test]
async fn a_shortage_of_memory_waits_for_no_walk_over_files() {
    let mut world = world(&runtime(), &[(Signal::MemoryAvailable, ALWAYS)]);
    run(&world.shared, "over", |pod| {
        let mut volume = Volume { name: "v".into(), ..Volume::default() };
        let size_limit = Some("4Ki".parse().expect("quantity"));
        volume.volume_source.empty_dir =
            Some(EmptyDirVolumeSource { size_limit, ..EmptyDirVolumeSource::default() });
        (pod.spec.volumes, pod.spec.priority) = (vec![volume], Some(10));
    });
    run(&world.shared, "first", |pod| pod.spec.priority = Some(1));
    let volume = empty_dirs(&world.shared, "over").join("v");
    std::fs::create_dir_all(&volume).expect("mkdir");
    std::fs::write(volume.join("f"), vec![1; 100_000]).expect("write");
    // No pod is measured yet, as if a walk went on.
    assert_eq!(world.evictor.run_pass().await.0, PassOutcome::Evicted(1));
    assert!(world.shared.pods.decision("first").is_some(), "for the shortage");
    assert_eq!(world.shared.pods.decision("over"), None);
    // Once it is measured, one pass ends one for the shortage and one for its limit.
    run(&world.shared, "second", |pod| pod.spec.priority = Some(1));
    world.measure_disks().await;
    assert_eq!(world.evictor.run_pass().await.0, PassOutcome::Evicted(2));
    let verdict = world.shared.pods.decision("over").expect("evicted");
    assert!(verdict.message.starts_with("Usage of EmptyDir volume"), "{verdict:?}");
    assert!(world.shared.pods.decision("second").is_some());
}

#[tokio::test]
async fn critical_pods_are_not_ended_for_a_limit_of_their_own() {
    let mut world = world(&runtime(), &[]);
    let over = |priority: Option<i32>| {
        move |pod: &mut Pod| {
            let mut volume = Volume { name: "v".into(), ..Volume::default() };
            let size_limit = Some("4Ki".parse().expect("quantity"));
            volume.volume_source.empty_dir =
                Some(EmptyDirVolumeSource { size_limit, ..EmptyDirVolumeSource::default() });
            (pod.spec.volumes, pod.spec.priority) = (vec![volume], priority);
        }
    };
    run_from(PodSource::Static, &world.shared, "static", over(None));
    run(&world.shared, "system", over(Some(2_000_000_000)));
    run(&world.shared, "other", over(Some(0)));
    for name in ["static", "system", "other"] {
        let volume = empty_dirs(&world.shared, name).join("v");
        std::fs::create_dir_all(&volume).expect("mkdir");
        std::fs::write(volume.join("f"), vec![1; 100_000]).expect("write");
    }
    world.measure_disks().await;
    assert_eq!(world.evictor.run_pass().await.0, PassOutcome::Evicted(1));
    let ended =
        ["static", "system", "other"].map(|name| world.shared.pods.decision(name).is_some());
    assert_eq!(ended, [false, false, true]);
}

#[tokio::test]
async fn ephemeral_containers_count_for_storage_limits_and_huge_usage_does_not_overflow() {
    let runtime = runtime();
    let world = world(&runtime, &[]);
    run(&world.shared, "p", |pod| {
        let mut debugger = proto_api::core::v1::EphemeralContainer::default();
        debugger.ephemeral_container_common.name = "debugger".into();
        pod.spec.ephemeral_containers = vec![debugger];
    });
    let usage = |name: &str| agent_runtime::runtime::ContainerUsage {
        id: name.into(),
        name: name.into(),
        pod_uid: "p".into(),
        working_set_bytes: u64::MAX,
        writable_bytes: u64::MAX,
        writable_inodes: u64::MAX,
        ..Default::default()
    };
    runtime.set_usage(vec![usage("c"), usage("debugger")]);
    for extent in [MeasureScope::Memory, MeasureScope::Disk] {
        let (disks, pods) = (&world.evictor.disk_usages, world.shared.pods.current_pods());
        let measured = measure(&world.shared, disks, &pods, extent).await;
        let uses = &measured["p"].uses;
        assert_eq!((uses.memory, uses.disk(), uses.inodes), (u64::MAX, u64::MAX, u64::MAX));
        let names: Vec<&str> = uses.containers.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["c", "debugger"]);
    }
}

/// The directory of a pod's volumes of one kind.
fn empty_dirs(shared: &PodContext, uid: &str) -> PathBuf {
    let plugin = format!("{}~empty-dir", shared.settings.names.label_domain());
    shared.pod_dir(uid).join("volumes").join(plugin)
}
