use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent_volume::fs_group::FsGroupChangePolicy;
use agent_volume::persistent::Backing;
use futures_util::FutureExt as _;
use proto_api::names::Profile;
use tonic::{Request, Response, Status};

use super::*;
use crate::driver::{Capabilities, DriverFuture, NodeService};
use crate::mounts;

const DRIVER: &str = "d.test";
const ATTACHMENT: &str = "csi-1";
const LISTED_AS: &str = "kubernetes.io/csi/d.test^h";

/// A driver that serves requests, or fails as configured.
#[derive(Debug, Default)]
struct Fake {
    calls: Mutex<Vec<&'static str>>,
    fails: Mutex<BTreeSet<&'static str>>,
    hangs: Mutex<BTreeSet<&'static str>>,
    mounts: Mutex<BTreeSet<PathBuf>>,
}

impl Fake {
    fn answer<A: Default + Send + 'static>(
        &self,
        call: &'static str,
        mount: Option<&str>,
        unmount: Option<&str>,
    ) -> DriverFuture<A> {
        self.calls.lock().unwrap().push(call);
        if self.hangs.lock().unwrap().contains(call) {
            return std::future::pending().boxed();
        }
        if self.fails.lock().unwrap().contains(call) {
            return async { Err(Status::internal("no")) }.boxed();
        }
        let mut table = self.mounts.lock().unwrap();
        table.extend(mount.map(PathBuf::from));
        if let Some(path) = unmount {
            table.remove(Path::new(path));
        }
        mounts::simulated::set(Some(table.clone()));
        async { Ok(Response::new(A::default())) }.boxed()
    }

    fn count(&self, call: &str) -> usize {
        self.calls.lock().unwrap().iter().filter(|made| **made == call).count()
    }
}

impl NodeService for Fake {
    fn stage(
        &self,
        asked: Request<wire::NodeStageVolumeRequest>,
    ) -> DriverFuture<wire::NodeStageVolumeResponse> {
        self.answer("stage", Some(&asked.into_inner().staging_target_path), None)
    }

    fn unstage(
        &self,
        asked: Request<wire::NodeUnstageVolumeRequest>,
    ) -> DriverFuture<wire::NodeUnstageVolumeResponse> {
        self.answer("unstage", None, Some(&asked.into_inner().staging_target_path))
    }

    fn publish(
        &self,
        asked: Request<wire::NodePublishVolumeRequest>,
    ) -> DriverFuture<wire::NodePublishVolumeResponse> {
        self.answer("publish", Some(&asked.into_inner().target_path), None)
    }

    fn unpublish(
        &self,
        asked: Request<wire::NodeUnpublishVolumeRequest>,
    ) -> DriverFuture<wire::NodeUnpublishVolumeResponse> {
        self.answer("unpublish", None, Some(&asked.into_inner().target_path))
    }

    fn expand(
        &self,
        _: Request<wire::NodeExpandVolumeRequest>,
    ) -> DriverFuture<wire::NodeExpandVolumeResponse> {
        self.answer("expand", None, None)
    }

    fn stats(
        &self,
        _: Request<wire::NodeGetVolumeStatsRequest>,
    ) -> DriverFuture<wire::NodeGetVolumeStatsResponse> {
        self.answer("stats", None, None)
    }
}

struct World {
    root: tempfile::TempDir,
    fake: Arc<Fake>,
    node: Arc<CsiNode>,
    told: Arc<Mutex<Vec<String>>>,
    keeper: Option<tokio::task::JoinHandle<()>>,
}

impl World {
    fn new() -> Self {
        mounts::simulated::set(Some(BTreeSet::new()));
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("pods")).unwrap();
        let node = Arc::new(open(root.path()));
        Self { root, fake: Arc::default(), node, told: Arc::default(), keeper: None }
    }

    /// The driver is registered, and unused volumes are unstaged.
    fn driven() -> Self {
        let mut world = Self::new();
        world.register();
        world.keep();
        world
    }

    fn register(&self) {
        let able = Capabilities { stage: true, ..Capabilities::default() };
        let driver = Driver::of_service(DRIVER, able, self.fake.clone());
        self.node.drivers().add(driver);
    }

    fn keep(&mut self) {
        let (node, told) = (self.node.clone(), self.told.clone());
        let tell = move |error: &CsiError| told.lock().unwrap().push(chain(error));
        self.keeper = Some(tokio::spawn(async move { node.keep_unstaged(tell).await }));
    }

    /// A new process replaces this one.
    fn restart(&mut self) {
        self.keeper.take().unwrap().abort();
        self.node = Arc::new(open(self.root.path()));
    }

    async fn set_up(&self, uid: &str) -> Result<PublishedVolume, CsiError> {
        self.set_up_as(uid, None).await
    }

    async fn set_up_as(
        &self,
        uid: &str,
        attachment: Option<&str>,
    ) -> Result<PublishedVolume, CsiError> {
        let (volume, csi) = volume(attachment);
        self.node.set_up(&pod(uid), &volume, &csi, CallMaterial::default()).await
    }

    /// Whether the stage record is on disk.
    fn has_stage(&self) -> bool {
        let of =
            VolumeRecord { driver: DRIVER.into(), handle: "h".into(), ..VolumeRecord::default() };
        self.node.paths.stage_record(&of).exists()
    }
}

fn open(root: &Path) -> CsiNode {
    CsiNode::open(root, Names::new(Profile::Kubernetes), "node", Drivers::default()).unwrap()
}

fn pod(uid: &str) -> PodFacts {
    PodFacts {
        uid: uid.into(),
        name: uid.into(),
        namespace: "ns".into(),
        account: "default".into(),
        group: None,
        change: FsGroupChangePolicy::Always,
    }
}

fn volume(attachment: Option<&str>) -> (PersistentSource, CsiVolume) {
    let csi = CsiVolume {
        driver: DRIVER.into(),
        handle: "h".into(),
        access_modes: vec!["ReadWriteOnce".into()],
        attachment: attachment.map(str::to_owned),
        ..CsiVolume::default()
    };
    let volume = PersistentSource {
        name: "v".into(),
        spec_name: "pv".into(),
        claim: None,
        backing: Backing::Csi(Box::new(csi.clone())),
        read_only: false,
        block: false,
        mount_options: Vec::new(),
        grow_to: None,
    };
    (volume, csi)
}

async fn passes(secs: u64) {
    tokio::time::sleep(Duration::from_secs(secs)).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_goes_though_its_volume_cannot_be_unstaged() {
    let world = World::driven();
    world.node.set_listed_in_use([LISTED_AS.to_owned()]);
    world.set_up_as("u", Some(ATTACHMENT)).await.unwrap();
    world.fake.fails.lock().unwrap().insert("unstage");
    world.node.tear_down("u").await.unwrap();
    assert!(!world.node.has("u"), "the pod still has a record");
    passes(10).await;
    let tries = world.fake.count("unstage");
    assert!((3..=6).contains(&tries), "tried {tries} times in ten seconds");
    assert_eq!(world.node.in_use(), [LISTED_AS]);
    let told = world.told.lock().unwrap().first().cloned().unwrap();
    assert!(told.starts_with("UnmountDevice failed for volume \"pv\" :"), "{told}");
    assert!(world.has_stage());
    world.fake.fails.lock().unwrap().clear();
    passes(130).await;
    assert!(world.node.in_use().is_empty() && !world.has_stage());
    assert!(world.fake.mounts.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_hangs_holds_no_other_volume() {
    let world = World::driven();
    world.set_up("u").await.unwrap();
    world.fake.hangs.lock().unwrap().insert("unstage");
    world.node.tear_down("u").await.unwrap();
    passes(1).await;
    // Another volume of the driver while the call hangs.
    world.fake.hangs.lock().unwrap().clear();
    let (volume, mut csi) = volume(None);
    csi.handle = "other".into();
    let volume = PersistentSource { spec_name: "other".into(), ..volume };
    world.node.set_up(&pod("w"), &volume, &csi, CallMaterial::default()).await.unwrap();
    world.node.tear_down("w").await.unwrap();
    passes(1).await;
    assert_eq!(world.fake.mounts.lock().unwrap().len(), 1, "only the one that hung is left");
    passes(300).await;
    assert!(world.fake.mounts.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_volume_whose_unstage_failed_is_staged_again() {
    let world = World::driven();
    world.set_up("u").await.unwrap();
    world.set_up("w").await.unwrap();
    assert_eq!(world.fake.count("stage"), 1, "once for both");
    world.node.tear_down("u").await.unwrap();
    passes(1).await;
    assert_eq!(world.fake.count("unstage"), 0, "another pod has it");
    world.fake.fails.lock().unwrap().insert("unstage");
    world.node.tear_down("w").await.unwrap();
    passes(1).await;
    world.set_up("x").await.unwrap();
    assert_eq!(world.fake.count("stage"), 2);
    let before = world.fake.count("unstage");
    passes(600).await;
    assert_eq!(world.fake.count("unstage"), before, "a pod has it again");
}

#[tokio::test(start_paused = true)]
async fn a_volume_for_one_pod_is_given_to_one() {
    let mut world = World::driven();
    let (volume, csi) = volume(None);
    let csi = CsiVolume { access_modes: vec!["ReadWriteOncePod".into()], ..csi };
    let set_up = async |world: &World, uid| {
        world.node.set_up(&pod(uid), &volume, &csi, CallMaterial::default()).await.map(drop)
    };
    let refused = "volume uses the ReadWriteOncePod access mode and is already in use by another";
    set_up(&world, "u").await.unwrap();
    set_up(&world, "u").await.unwrap();
    // A restarted process finds it in the records.
    world.restart();
    world.register();
    world.keep();
    let told = chain(&set_up(&world, "w").await.unwrap_err());
    assert!(told.contains(refused), "{told}");
    assert!(!world.node.has("w"), "there is nothing to undo");
    set_up(&world, "u").await.unwrap();
    world.node.tear_down("u").await.unwrap();
    set_up(&world, "w").await.unwrap();
    // With several modes any may be meant.
    let csi = CsiVolume { access_modes: vec!["ReadWriteOncePod".into(); 2], ..csi.clone() };
    world.node.set_up(&pod("x"), &volume, &csi, CallMaterial::default()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn staged_volumes_of_pods_are_kept_over_a_restart() {
    let mut world = World::driven();
    world.set_up("u").await.unwrap();
    world.restart();
    world.register();
    world.keep();
    passes(300).await;
    assert_eq!(world.fake.count("unstage"), 0, "the pod has it");
    assert!(
        world.node.published_volumes(&pod("u"), &volume(None).0, &volume(None).1).await.is_some()
    );
    world.set_up("w").await.unwrap();
    assert_eq!(world.fake.count("stage"), 1, "it was staged by the process before");
    for uid in ["u", "w"] {
        world.node.tear_down(uid).await.unwrap();
    }
    // This process dies before it has unstaged, and the next one has no driver at first.
    world.restart();
    world.keep();
    passes(300).await;
    assert!(world.has_stage());
    world.register();
    passes(1).await;
    assert_eq!((world.fake.count("unstage"), world.has_stage()), (1, false));
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_read_may_be_anybodys() {
    let mut world = World::driven();
    world.set_up("u").await.unwrap();
    let of = VolumeRecord { spec_name: "pv".into(), ..VolumeRecord::default() };
    let record = world.node.paths.record("u", &of).join("vol_data.json");
    std::fs::write(record, "{").unwrap();
    world.restart();
    world.register();
    world.keep();
    passes(300).await;
    assert_eq!(world.fake.count("unstage"), 0);
}

#[tokio::test(start_paused = true)]
async fn nothing_attached_is_staged_before_it_is_listed() {
    let world = World::driven();
    let error = world.set_up_as("u", Some(ATTACHMENT)).await.unwrap_err().to_string();
    assert!(error.contains("has not been added to the list of VolumesInUse"), "{error}");
    assert_eq!(world.fake.count("stage"), 0);
    assert_eq!(world.node.in_use(), [LISTED_AS], "it is asked for");
    let mut changes = world.node.changes().subscribe();
    let node = world.node.clone();
    let lists = async move {
        changes.changed().await.unwrap();
        let names = node.in_use();
        node.set_listed_in_use(names);
    };
    let (done, ()) = tokio::join!(world.set_up_as("u", Some(ATTACHMENT)), lists);
    done.unwrap();
}

#[tokio::test(start_paused = true)]
async fn complete_volumes_are_found_without_calls_to_the_driver() {
    let world = World::driven();
    let (volume, csi) = volume(None);
    assert_eq!(world.node.published_volumes(&pod("u"), &volume, &csi).await, None);
    let there = world.set_up("u").await.unwrap().path;
    world.fake.hangs.lock().unwrap().extend(["stage", "publish"]);
    assert_eq!(world.node.published_volumes(&pod("u"), &volume, &csi).await, Some(there));
    // A volume whose `fsGroup` is still to be applied is not complete.
    let grouped = PodFacts { group: Some(7), ..pod("u") };
    let takes = CsiVolume { fs_type: "ext4".into(), ..csi.clone() };
    assert_eq!(world.node.published_volumes(&grouped, &volume, &takes).await, None);
    let other = CsiVolume { handle: "other".into(), ..csi };
    assert_eq!(world.node.published_volumes(&pod("u"), &volume, &other).await, None);
    mounts::simulated::set(Some(BTreeSet::new()));
    assert_eq!(
        world.node.published_volumes(&pod("u"), &volume, &takes).await,
        None,
        "it is not mounted"
    );
}

/// The walk over the volume takes as long as its users want.
#[tokio::test]
async fn a_volume_is_given_to_its_group_in_the_share_of_its_pod() {
    let world = World::driven();
    let (volume, csi) = volume(None);
    let takes = CsiVolume { fs_type: "ext4".into(), ..csi };
    let grouped = PodFacts { group: Some(7), ..pod("u") };
    let mut hung = Vec::new();
    for _ in 0..2 {
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let (begun, begins) = tokio::sync::oneshot::channel();
        let of = grouped.clone();
        tokio::spawn(async move {
            let work = move || {
                let _ = begun.send(());
                let _ = wait.recv();
            };
            let share = (of.namespace.as_str(), of.uid.as_str());
            agent_host::offload_for_pod(share, agent_host::PodWork::SetUp, work).await
        });
        begins.await.unwrap();
        hung.push(release);
    }
    let set_up = || world.node.set_up(&grouped, &volume, &takes, CallMaterial::default());
    let watched = Duration::from_millis(200);
    let mut waits = Box::pin(set_up());
    // It is published first, which takes longer on a busy machine.
    let mut looks = 0;
    while world.fake.count("publish") == 0 && looks < 300 {
        assert!(tokio::time::timeout(watched, &mut waits).await.is_err(), "it waits for its turn");
        looks += 1;
    }
    assert!(tokio::time::timeout(watched, &mut waits).await.is_err(), "it waits for its turn");
    drop(waits);
    assert_eq!(world.fake.count("publish"), 1, "for the group only");
    drop(hung);
    // The volume of the test is no mount that can be given to a group.
    let error = set_up().await.unwrap_err();
    assert!(
        matches!(&error, CsiError::Node { what, .. } if what == "give to the group"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_dead_mount_at_a_stage_is_left_to_its_driver() {
    let mut world = World::driven();
    world.set_up("u").await.unwrap();
    let of = VolumeRecord { driver: DRIVER.into(), handle: "h".into(), ..VolumeRecord::default() };
    let stage = world.node.paths.stage(&of);
    // The node was rebooted, but the stage survived; its mount cannot be accessed.
    world.fake.mounts.lock().unwrap().retain(|path| *path == stage);
    std::fs::remove_dir(&stage).unwrap();
    std::fs::write(&stage, "").unwrap();
    mounts::simulated::set(Some(world.fake.mounts.lock().unwrap().clone()));
    world.restart();
    world.register();
    world.set_up("u").await.unwrap();
    assert_eq!((world.fake.count("stage"), world.fake.count("publish")), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn silent_drivers_are_waited_for_together() {
    let world = World::new();
    let able = Capabilities { stats: true, ..Capabilities::default() };
    world.node.drivers().add(Driver::of_service(DRIVER, able, world.fake.clone()));
    for name in ["pv", "pv2", "pv3"] {
        let (mut volume, mut csi) = volume(None);
        (volume.spec_name, csi.handle) = (name.into(), name.into());
        world.node.set_up(&pod("u"), &volume, &csi, CallMaterial::default()).await.unwrap();
    }
    assert_eq!(world.node.volume_stats("u").await.len(), 3);
    world.fake.hangs.lock().unwrap().insert("stats");
    let began = tokio::time::Instant::now();
    assert_eq!(world.node.volume_stats("u").await, []);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}
