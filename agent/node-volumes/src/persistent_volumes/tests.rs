//! The step of each failure, which selects the reason of its event.

use std::sync::Arc;

use agent_csi::CallError;
use agent_csi::drivers::Drivers;
use agent_interfaces::testing::Api;
use agent_pod::events::volumes_failed;
use agent_volume::disk::ProgramOutput;
use agent_volume::persistent::attached::FibreChannel;
use agent_volume::shared_mounts::SharedMounts;
use proto_api::names::{Names, Profile};

use super::helpers::{HelperError, NodeHelpers};
use super::*;

/// Persistent volumes below a directory.
pub fn persistent_volumes(
    root: &Path,
    reports: Arc<dyn Reports>,
    helpers: Arc<dyn Helpers>,
) -> PersistentVolumes {
    let names = Names::new(Profile::Kubernetes);
    let csi = CsiNode::open(root, names, "node", Drivers::default()).expect("csi");
    let mounts = SharedMounts::new(root, names);
    PersistentVolumes {
        disks: Arc::new(Disks::new(mounts, helpers.clone(), csi.changes().clone())),
        csi: Arc::new(csi),
        volumes: VolumesOnDisk::new(root, names),
        node: "node".into(),
        client: None,
        reports,
        helpers,
        operations: agent_telemetry::metrics::AgentMetrics::default().operations,
        selinux: false,
    }
}

/// Processes that were given a path below a directory, once they are `expected` or more: that of a process which has just begun is not to be seen yet.
pub fn count_processes(below: &Path, expected: usize) -> usize {
    let began = std::time::Instant::now();
    while processes(below) < expected && began.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(10));
    }
    // Time for one too many.
    std::thread::sleep(Duration::from_millis(100));
    processes(below)
}

fn processes(below: &Path) -> usize {
    let below = below.as_os_str().as_encoded_bytes();
    let all = std::fs::read_dir("/proc").expect("proc").flatten();
    let commands = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    commands
        .filter(|command| command.split(|byte| *byte == 0).any(|arg| arg.starts_with(below)))
        .count()
}

fn reason(failure: &VolumeError) -> String {
    volumes_failed(failure.step, &failure.message).reason.to_string()
}

#[test]
fn errors_of_objects_are_of_the_attachment_or_of_the_mount() {
    let (volume, why) = ("pv".to_owned(), "why".to_owned());
    let (namespace, name) = ("a".to_owned(), "claim".to_owned());
    let cases = [
        (PersistentError::Unknown(volume.clone()), "FailedMount"),
        (
            PersistentError::NoClaim { namespace: namespace.clone(), name: name.clone() },
            "FailedMount",
        ),
        (PersistentError::Claim { namespace, name, why: why.clone() }, "FailedMount"),
        (PersistentError::Volume { volume: volume.clone(), why: why.clone() }, "FailedMount"),
        (PersistentError::NotAttached { volume, why }, "FailedAttachVolume"),
    ];
    for (error, expect) in cases {
        assert_eq!(reason(&unresolved(&Pod::default(), &error)), expect, "{error}");
    }
}

#[test]
fn errors_of_drivers_are_of_the_expansion_or_of_the_mount() {
    let volume = || "pv".to_owned();
    let call = |step| CsiError::Call {
        step,
        volume: volume(),
        source: CallError { code: 13.into(), message: "no".into() },
    };
    let no_driver = |step| CsiError::NoDriver {
        step,
        volume: volume(),
        driver: "driver".into(),
        plugin: "kubernetes.io/csi".into(),
    };
    let cases = [
        (call("MountVolume.NodeExpandVolume"), "VolumeResizeFailed"),
        (no_driver("MountVolume.NodeExpandVolume"), "VolumeResizeFailed"),
        (call("MountVolume.MountDevice"), "FailedMount"),
        (no_driver("MountVolume.SetUp"), "FailedMount"),
        (CsiError::NotListed { volume: volume() }, "FailedMount"),
        (CsiError::OnePodOnly { volume: volume() }, "FailedMount"),
    ];
    for (error, expect) in cases {
        let failure = csi_failure(&error);
        assert_eq!(reason(&failure), expect, "{error}");
        assert_eq!(failure.message, proto_daemon::exit::chain(&error));
    }
    let failure = csi_failure(&call("MountVolume.MountDevice"));
    let expected =
        "MountVolume.MountDevice failed for volume \"pv\" : rpc error: code = Internal desc = no";
    assert_eq!(failure.message, expected);
}

#[tokio::test]
async fn errors_of_set_ups_are_of_the_operation_that_failed() {
    let root = tempfile::tempdir().expect("tempdir");
    // A node without any program.
    let helpers = Arc::new(NodeHelpers::in_dirs(Vec::new()));
    let volumes = persistent_volumes(root.path(), Arc::new(Api::default()), helpers);
    let nowhere = root.path().join("nowhere").to_string_lossy().into_owned();
    let local = Backing::Local { path: nowhere.clone(), fs_type: String::new() };
    let disk = Backing::Disk {
        disk: AttachedDisk::FibreChannel(FibreChannel::default()),
        fs_type: String::new(),
    };
    let nfs = Backing::Nfs { server: "10.0.0.9".into(), path: "/".into() };
    let host_path = Backing::HostPath { path: nowhere, kind: HostPathKind::Directory };
    let cases = [
        (&disk, true, "FailedMapVolume", "MapVolume.WaitForAttach"),
        (&disk, false, "FailedMount", "MountVolume.MountDevice"),
        (&local, true, "FailedMount", "MountVolume.SetUp"),
        (&local, false, "FailedMount", "MountVolume.SetUp"),
        (&nfs, false, "FailedMount", "MountVolume.SetUp"),
        (&host_path, false, "FailedMount", "MountVolume.SetUp"),
    ];
    let mut pod = Pod::default();
    pod.metadata.uid = "u".into();
    let pod = Arc::new(pod);
    for (backing, block, expect, operation) in cases {
        let volume = PersistentSource {
            name: "v".into(),
            spec_name: "pv".into(),
            backing: backing.clone(),
            read_only: false,
            block,
            mount_options: Vec::new(),
            grow_to: None,
            claim: None,
        };
        let (known, tokens) = (KnownObjects::default(), DriverTokens::new());
        let failure = volumes.set_up(&pod, &volume, &known, &tokens).await.expect_err("nothing");
        assert_eq!(reason(&failure), expect, "{backing:?} {block}: {failure}");
        assert!(failure.message.starts_with(operation), "{backing:?} {block}: {failure}");
    }
}

/// `mount.nfs` that succeeds and mounts nothing, as `mount.nfs -V` does, or a file system in memory.
struct MountsNothing(bool);

impl Helpers for MountsNothing {
    fn run<'a>(
        &'a self,
        run: &'a ProgramRun,
    ) -> futures_util::future::BoxFuture<'a, Result<ProgramOutput, HelperError>> {
        if self.0 {
            let (at, none) = (run.args[1].as_str(), None::<&std::ffi::CStr>);
            let flags = rustix::mount::MountFlags::empty();
            rustix::mount::mount("none", at, "tmpfs", flags, none).expect("mounted");
        }
        Box::pin(std::future::ready(Ok(ProgramOutput::default())))
    }
}

#[tokio::test]
async fn an_nfs_volume_is_used_only_once_it_is_mounted() {
    for mounts in [false, true] {
        let root = tempfile::tempdir().expect("tempdir");
        if mounts && !std::path::Path::new("/proc/1/root/.").exists() {
            eprintln!("SKIPPED an_nfs_volume_is_used_only_once_it_is_mounted: needs root");
            return;
        }
        let helpers = Arc::new(MountsNothing(mounts));
        let volumes = persistent_volumes(root.path(), Arc::new(Api::default()), helpers);
        let volume = PersistentSource {
            name: "v".into(),
            spec_name: "v".into(),
            backing: Backing::Nfs { server: "10.0.0.9".into(), path: "/".into() },
            read_only: false,
            block: false,
            mount_options: Vec::new(),
            grow_to: None,
            claim: None,
        };
        let mut pod = Pod::default();
        pod.metadata.uid = "u".into();
        let pod = Arc::new(pod);
        let (known, tokens) = (KnownObjects::default(), DriverTokens::new());
        let done = volumes.set_up(&pod, &volume, &known, &tokens).await;
        let torn_down = volumes.volumes.tear_down("u");
        assert_eq!(done.is_ok(), mounts, "{done:?}");
        if let Err(failure) = done {
            assert!(failure.message.contains("nothing is mounted at "), "{failure}");
            assert_eq!(reason(&failure), "FailedMount");
        }
        torn_down.expect("torn down");
    }
}
