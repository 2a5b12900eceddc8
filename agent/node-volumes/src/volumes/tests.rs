mod hung_mount;
mod shares;

use agent_interfaces::testing::Api;
use agent_volume::disk::{ProgramOutput, ProgramRun};
use futures_util::future::join_all;
use proto_api::names::{Names, Profile};

use self::hung_mount::HungMount;
use super::*;
use crate::persistent_volumes::helpers::{HelperError, Helpers, NodeHelpers};
use crate::persistent_volumes::tests::{count_processes, persistent_volumes};

/// Pods whose NFS server does not answer; more than the threads of the blocking pool.
const HUNG: usize = 4;
/// Threads of the blocking pool.
const POOL: usize = 2;
/// Limit for a teardown that does not wait.
const SOON: Duration = Duration::from_secs(60);

/// Volumes below a directory.
struct World {
    root: tempfile::TempDir,
    api: Arc<Api>,
    volumes: NodeVolumes,
    runtime: tokio::runtime::Runtime,
}

impl World {
    fn new(helpers: Arc<dyn Helpers>) -> Self {
        let root = tempfile::tempdir().expect("tempdir");
        let names = Names::new(Profile::Kubernetes);
        let on_disk = agent_volume::VolumesOnDisk::new(root.path(), names);
        let api = Arc::new(Api::default());
        let persistent = persistent_volumes(root.path(), api.clone(), helpers);
        let (_, node) = watch::channel(None);
        let volumes = NodeVolumes::new(on_disk, persistent, None, node, "boot".into());
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().max_blocking_threads(POOL).build().expect("runtime");
        Self { root, api, volumes, runtime }
    }

    /// Makes the directory of a volume of a pod.
    fn make_volume(&self, uid: &str, plugin: &str) -> std::path::PathBuf {
        let path = self.root.path().join(format!("pods/{uid}/volumes/kubernetes.io~{plugin}/v"));
        std::fs::create_dir_all(&path).expect("directory");
        path
    }

    fn exists(&self, uid: &str) -> bool {
        self.root.path().join("pods").join(uid).exists()
    }
}

fn pod(uid: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.uid = uid.into();
    pod.metadata.name = uid.into();
    pod
}

/// Mounts that hang, of as many pods; `None` where the machine cannot mount FUSE.
fn hung_mounts(world: &World) -> Option<Vec<HungMount>> {
    let uids = (0..HUNG).map(|number| format!("hung{number}"));
    let mount = |uid: String| HungMount::new(&world.make_volume(&uid, "nfs"));
    match uids.map(mount).collect() {
        Ok(mounts) => Some(mounts),
        Err(error) => {
            eprintln!("SKIPPED: FUSE cannot be mounted here: {error}");
            None
        }
    }
}

fn hung_pods() -> Vec<Pod> {
    (0..HUNG).map(|number| pod(&format!("hung{number}"))).collect()
}

/// Tears the pods down together with one that has an emptyDir only; the outcomes of the former.
fn tear_down(world: &World, hung: &[Pod]) -> Vec<Result<(), UnmountError>> {
    world.make_volume("well", "empty-dir");
    let well = pod("well");
    let hung = join_all(hung.iter().map(|pod| world.volumes.tear_down(pod)));
    let both =
        async { tokio::join!(hung, tokio::time::timeout(SOON, world.volumes.tear_down(&well))) };
    let both = async { tokio::time::timeout(SOON * 2, both).await.expect("all teardowns end") };
    let (outcomes, well) = world.runtime.block_on(both);
    assert!(matches!(well, Ok(Ok(()))), "a pod without such a mount: {well:?}");
    assert!(!world.exists("well"));
    outcomes
}

#[test]
fn an_nfs_volume_is_unmounted_while_its_server_does_not_answer() {
    let world = World::new(Arc::new(NodeHelpers::default()));
    let Some(mounts) = hung_mounts(&world) else { return };
    let part = world.root.path().join("pods/hung0/volume-subpaths/v/c/0");
    std::fs::create_dir_all(&part).expect("directory");
    let part = HungMount::new(&part).expect("mounted");
    let outcomes = tear_down(&world, &hung_pods());
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    assert!(!part.is_mounted() && !mounts.iter().any(HungMount::is_mounted));
    assert!(!world.exists("hung0"));
}

/// Programs of the node with a short deadline, until which they have begun on a busy machine too: what is killed before it hangs ends.
struct Hurried(NodeHelpers);

impl Helpers for Hurried {
    fn run<'a>(&'a self, run: &'a ProgramRun) -> BoxFuture<'a, Result<ProgramOutput, HelperError>> {
        let run = run.clone().within(Duration::from_secs(10));
        async move { self.0.run(&run).await }.boxed()
    }
}

/// `umount` is a program that calls stat(2) on the mount, and so neither ends nor can be killed.
#[test]
fn a_hung_umount_is_started_once_and_fails_only_its_own_pod() {
    let programs = tempfile::tempdir().expect("tempdir");
    std::os::unix::fs::symlink("/usr/bin/stat", programs.path().join("umount")).expect("linked");
    let helpers = NodeHelpers::in_dirs(vec![programs.path().to_owned()]);
    let world = World::new(Arc::new(Hurried(helpers)));
    let Some(mounts) = hung_mounts(&world) else { return };
    let pods = world.root.path().join("pods");
    let all_contain = |outcomes: Vec<Result<(), UnmountError>>, text: &str| {
        let contains = |outcome: &Result<(), UnmountError>| {
            outcome.as_ref().is_err_and(|error| chain(error).contains(text))
        };
        assert!(outcomes.iter().all(contains), "{text:?} in {outcomes:?}");
    };
    all_contain(tear_down(&world, &hung_pods()), "umount did not end within");
    let count = || count_processes(&pods, 2 * HUNG);
    assert_eq!(count(), 2 * HUNG, "one that unmounts and one that does so by force");
    all_contain(tear_down(&world, &hung_pods()), "was killed and has not ended");
    assert_eq!(count(), 2 * HUNG, "none is started beside one that has not ended");
    assert_eq!(world.api.reasons(), [UNMOUNT_FAILED; 2 * HUNG]);
    drop(mounts);
    let outcomes = tear_down(&world, &hung_pods());
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    assert!(!world.exists("hung0"));
}
