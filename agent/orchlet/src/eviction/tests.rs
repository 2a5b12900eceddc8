//! A node that runs short, on the runtime in memory: readings of the real machine, thresholds that it is always or never below.

use std::path::PathBuf;

use agent_node::eviction::thresholds::Amount;
use agent_runtime::fake::FakeRuntime;
use proto_api::core::v1::{Container, EmptyDirVolumeSource, Pod, Volume};

use super::*;
use crate::pods::pod_context::Counts;
use crate::pods::test_support;

struct World {
    evictor: Evictor,
    parts: Arc<Parts>,
    _dir: tempfile::TempDir,
}

const ALWAYS: Amount = Amount::Absolute(u64::MAX);
const NEVER: Amount = Amount::Absolute(0);

fn world(runtime: &Arc<FakeRuntime>, thresholds: &[(Signal, Amount)]) -> World {
    let dir = tempfile::tempdir().expect("tempdir");
    let parts = test_support::plain(runtime.clone(), dir.path());
    let threshold = |(signal, below): &(Signal, Amount)| Threshold {
        signal: *signal,
        below: *below,
        grace: None,
        min_reclaim: None,
    };
    let evictor = Evictor {
        parts: parts.clone(),
        thresholds: thresholds.iter().map(threshold).collect(),
        transition: Duration::from_secs(300),
        soft_grace: Duration::ZERO,
        image_limits: Limits { min_age: Duration::ZERO, ..Limits::default() },
        pods_memory: 1 << 30,
        limits_storage: true,
        events: NodeEvents::new(None, "n"),
        state: State::default(),
    };
    World { evictor, parts, _dir: dir }
}

/// A pod that runs, and whose task ends it as soon as it is told.
fn run(parts: &Arc<Parts>, name: &str, change: impl Fn(&mut Pod)) {
    run_from(Source::Api, parts, name, change);
}

fn run_from(source: Source, parts: &Arc<Parts>, name: &str, change: impl Fn(&mut Pod)) {
    let mut pod = Pod::default();
    pod.metadata.uid = name.into();
    pod.metadata.name = name.into();
    pod.spec.containers =
        vec![Container { name: "c".into(), image: "app:1".into(), ..Container::default() }];
    change(&mut pod);
    let known =
        Known { pod: Arc::new(pod), status: Default::default(), counts: Counts::Yes, source };
    parts.know(known.clone());
    let (poke, parts) = (parts.poke(name), parts.clone());
    tokio::spawn(async move {
        while parts.verdict(&known.pod.metadata.uid).is_none() {
            poke.notified().await;
        }
        parts.know(Known { counts: Counts::No, ..known });
    });
}

fn runtime() -> Arc<FakeRuntime> {
    Arc::new(FakeRuntime::new().0)
}

#[tokio::test]
async fn one_pod_at_a_time_and_the_node_says_what_is_short() {
    let mut world = world(&runtime(), &[(Signal::MemoryAvailable, ALWAYS)]);
    run(&world.parts, "important", |pod| pod.spec.priority = Some(10));
    run(&world.parts, "other", |pod| pod.spec.priority = Some(1));
    run(&world.parts, "critical", |pod| pod.spec.priority = Some(2_000_000_000));
    let (did, _) = world.evictor.look().await;
    assert_eq!(did, Did::Evicted(1));
    let verdict = world.parts.verdict("other").expect("evicted");
    assert_eq!((verdict.reason.as_str(), verdict.grace), ("Evicted", Some(Duration::ZERO)));
    assert_eq!(world.parts.verdict("important"), None);
    assert!(world.parts.strain.borrow().pressure.memory);
    assert_eq!(world.evictor.look().await.0, Did::Evicted(1));
    assert!(world.parts.verdict("important").is_some());
    assert_eq!(world.evictor.look().await.0, Did::Helpless);
    assert_eq!(world.parts.verdict("critical"), None);
}

#[tokio::test]
async fn images_go_before_pods() {
    let runtime = runtime();
    runtime.add_image("app:1");
    runtime.add_image("unused:1");
    runtime.add_image("pause:1");
    let mut world = world(&runtime, &[(Signal::NodefsInodesFree, ALWAYS)]);
    run(&world.parts, "p", |_| {});
    world.parts.images.look(&world.parts).await.expect("look");
    let (did, _) = world.evictor.look().await;
    assert_eq!(did, Did::Evicted(1), "it was not enough");
    assert!(world.parts.strain.borrow().pressure.disk);
    assert_eq!(world.parts.dead_kept(), 0);
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
    run(&world.parts, "p", |_| {});
    assert_eq!(world.evictor.look().await, (Did::Nothing, None));
    assert!(!world.parts.strain.borrow().pressure.any());
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
        run(&world.parts, name, limited(limit));
        let volume = empty_dirs(&world.parts, name).join("v");
        std::fs::create_dir_all(&volume).expect("mkdir");
        std::fs::write(volume.join("f"), vec![1; 100_000]).expect("write");
    }
    assert_eq!(world.evictor.look().await.0, Did::Evicted(1));
    let verdict = world.parts.verdict("small").expect("evicted");
    assert_eq!(verdict.message, "Usage of EmptyDir volume \"v\" exceeds the limit \"4Ki\". ");
    assert_eq!(world.parts.verdict("large"), None);
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
    run_from(Source::Static, &world.parts, "static", over(None));
    run(&world.parts, "system", over(Some(2_000_000_000)));
    run(&world.parts, "other", over(Some(0)));
    for name in ["static", "system", "other"] {
        let volume = empty_dirs(&world.parts, name).join("v");
        std::fs::create_dir_all(&volume).expect("mkdir");
        std::fs::write(volume.join("f"), vec![1; 100_000]).expect("write");
    }
    assert_eq!(world.evictor.look().await.0, Did::Evicted(1));
    let ended = ["static", "system", "other"].map(|name| world.parts.verdict(name).is_some());
    assert_eq!(ended, [false, false, true]);
}

#[tokio::test]
async fn what_ephemeral_containers_write_counts_and_no_number_of_the_runtime_is_too_large() {
    let runtime = runtime();
    let world = world(&runtime, &[]);
    run(&world.parts, "p", |pod| {
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
    for extent in [Extent::Memory, Extent::Disk] {
        let measured = measure(&world.parts, &world.parts.current_pods(), extent).await;
        let uses = &measured["p"].uses;
        assert_eq!((uses.memory, uses.disk(), uses.inodes), (u64::MAX, u64::MAX, u64::MAX));
        let names: Vec<&str> = uses.containers.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["c", "debugger"]);
    }
}

/// The directory of a pod's volumes of one kind.
fn empty_dirs(parts: &Parts, uid: &str) -> PathBuf {
    let plugin = format!("{}~empty-dir", parts.names.label_domain());
    parts.pod_dir(uid).join("volumes").join(plugin)
}
