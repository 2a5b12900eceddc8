//! Disks that something else on the node uses: other programs, or volumes of other pods by other names.

use std::os::unix::fs::OpenOptionsExt as _;

use rustix::fs::OFlags;
use rustix::mount::{MountFlags, UnmountFlags};

use super::*;

/// Lets a name of a disk lead to a device.
fn link(world: &World, name: &str, device: &str) {
    let link = world.root.path().join(name);
    std::fs::create_dir_all(link.parent().expect("parent")).expect("made");
    symlink(device, link).expect("linked");
}

fn fibre_channel(id: &str) -> AttachedDisk {
    AttachedDisk::FibreChannel(FibreChannel {
        name: format!("[{id}]"),
        ids: vec![id.into()],
        ..FibreChannel::default()
    })
}

fn open_exclusively(device: &str) -> std::fs::File {
    let flags = i32::try_from(OFlags::EXCL.bits()).expect("a flag");
    let opened = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(device);
    opened.expect("opened")
}

/// Counts commands, and runs them.
#[derive(Default)]
struct Counting(NodeHelpers, Mutex<Vec<String>>);

impl Helpers for Counting {
    fn run<'a>(&'a self, run: &'a ProgramRun) -> BoxFuture<'a, Result<ProgramOutput, HelperError>> {
        self.1.lock().expect("lock").push(run.program.clone());
        self.0.run(run)
    }
}

/// On a real device, with the real programs.
#[tokio::test]
async fn a_device_that_something_else_uses_is_neither_formatted_nor_mounted() {
    let Some(device) = Loop::new() else {
        eprintln!("SKIPPED a_device_that_something_else_uses: no loop devices or mkfs.ext4");
        return;
    };
    let world = World::new();
    let helpers = Arc::new(Counting::default());
    let disks = world.disks(helpers.clone());
    for id in ["one", "other"] {
        link(&world, &format!("by-id/scsi-{id}"), &device.0);
    }
    let (one, other) = (fibre_channel("one"), fibre_channel("other"));
    let bind = |uid, disk| disks.bind(&world.pods, uid, on_disk(DiskSource::Attached(disk)));
    let opened = open_exclusively(&device.0);
    let held = bind("u1", &one).await.map(drop);
    let local = disks.bind(&world.pods, "u9", on_disk(DiskSource::Device(&device.0))).await;
    let local = local.map(drop);
    drop(opened);
    let ran = helpers.1.lock().expect("lock").clone();
    let (first, _) = bind("u1", &one).await.expect("bound");
    let written = std::fs::write(first.join("f"), "kept");
    // The node mounts the same device, also at several places.
    let second = bind("u2", &other).await.map(|(path, _)| std::fs::read_to_string(path.join("f")));
    for uid in ["u1", "u2"] {
        world.pods.tear_down(uid).expect("torn down");
    }
    disks.detach_all(&world.pods).await.expect("detached");
    let elsewhere = tempfile::tempdir().expect("tempdir");
    let none = None::<&std::ffi::CStr>;
    rustix::mount::mount(&*device.0, elsewhere.path(), "ext4", MountFlags::empty(), none)
        .expect("mounted");
    let mounted = bind("u3", &one).await.map(drop);
    rustix::mount::unmount(elsewhere.path(), UnmountFlags::DETACH).expect("unmounted");
    world.pods.tear_down("u3").expect("torn down");
    world.pods.tear_down("u9").expect("torn down");
    disks.detach_all(&world.pods).await.expect("detached");
    assert!(matches!(held, Err(DiskError::DeviceInUse { .. })), "{held:?}");
    assert!(matches!(local, Err(DiskError::DeviceInUse { .. })), "{local:?}");
    assert!(!ran.iter().any(|program| program.starts_with("mkfs")), "{ran:?}");
    written.expect("written");
    assert_eq!(second.expect("mounted under its other name too").expect("read"), "kept");
    assert!(matches!(mounted, Err(DiskError::DeviceInUse { .. })), "{mounted:?}");
}

/// The disk of the same target with another number, through this portal.
fn through(portal: &str, lun: i32) -> AttachedDisk {
    let AttachedDisk::Iscsi(disk) = numbered(lun) else { panic!("no iSCSI") };
    AttachedDisk::Iscsi(Iscsi {
        name: format!("{portal}:iqn.2003-04.com.example:x:{lun}"),
        portals: vec![portal.to_owned()],
        ..disk
    })
}

fn logouts(fake: &Fake) -> usize {
    let said = fake.said.lock().expect("lock");
    said.iter().filter(|line| line.ends_with("--logout")).count()
}

/// A host name may be another's address: iscsiadm resolves it.
#[tokio::test(start_paused = true)]
async fn a_name_of_a_portal_ends_no_session_of_its_address() {
    for other in ["san:3260", "10.0.0.2:3260"] {
        let world = World::new();
        let fake = Arc::new(Fake::default());
        let disks = world.disks(fake.clone());
        link(&world, "by-path/ip-10.0.0.1:3260-iscsi-iqn.2003-04.com.example:x-lun-0", "/dev/null");
        let (first, second) = (numbered(0), through(other, 1));
        let device =
            |uid, disk| disks.device(&world.pods, uid, on_disk(DiskSource::Attached(disk)));
        device("u1", &first).await.expect("there");
        device("u2", &second).await.expect_err("no disk");
        world.pods.tear_down("u2").expect("torn down");
        disks.detach_all(&world.pods).await.expect("detached");
        let expect = usize::from(!other.starts_with("san"));
        assert_eq!(logouts(&fake), expect, "{other}: another portal has a session of its own");
    }
}

/// On a real device: the session of another program, of which nothing is recorded.
#[tokio::test]
async fn a_session_whose_disks_are_in_use_is_not_ended_by_a_name_of_its_portal() {
    let Some(device) = Loop::new() else {
        eprintln!("SKIPPED a_session_whose_disks_are_in_use: no loop devices or mkfs.ext4");
        return;
    };
    // In use last: a device that was closed may count as in use for a moment.
    for in_use in [false, true] {
        let world = World::new();
        let fake = Arc::new(Fake { missing: "blkid", ..Fake::default() });
        let disks = world.disks(fake.clone());
        let at = "by-path/ip-10.0.0.1:3260-iscsi-iqn.2003-04.com.example:x-lun-1";
        link(&world, at, &device.0);
        let opened = in_use.then(|| open_exclusively(&device.0));
        let disk = through("san:3260", 0);
        let name = disk.mount_name();
        let wanted = on_disk(DiskSource::Attached(&disk));
        let logged_in = || {
            let said = fake.said.lock().expect("lock");
            said.iter().any(|line| line.ends_with("--login"))
        };
        let recorded = async {
            while !logged_in()
                || world.mounts.pending_record(VolumePlugin::Iscsi, &name) == Ok(None)
            {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        // Recorded, and given up before a device appears.
        tokio::select! {
            device = disks.device(&world.pods, "u", wanted) => {
                device.expect_err("no device");
            }
            recorded = tokio::time::timeout(Duration::from_secs(60), recorded) => {
                recorded.expect("recorded");
            }
        }
        world.pods.tear_down("u").expect("torn down");
        disks.detach(&world.pods, VolumePlugin::Iscsi, &name).await.expect("detached");
        drop(opened);
        assert_eq!(logouts(&fake), usize::from(!in_use));
    }
}
