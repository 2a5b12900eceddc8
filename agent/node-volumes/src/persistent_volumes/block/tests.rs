mod shared_devices;

use std::os::unix::fs::symlink;

use agent_volume::disk::{ProgramOutput, ProgramRun};
use agent_volume::persistent::attached::FibreChannel;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use proto_api::names::{Names, Profile};
use proto_daemon::exit::chain;

use super::super::helpers::{HelperError, NodeHelpers};
use super::*;

/// Records commands instead of running them. `missing` names a program that is not installed.
#[derive(Default)]
struct Fake {
    said: Mutex<Vec<String>>,
    missing: &'static str,
    /// Commands for this portal never end.
    silent: &'static str,
    /// A disk appears under this name when a session begins.
    appears: Mutex<Option<PathBuf>>,
}

impl Helpers for Fake {
    fn run<'a>(&'a self, run: &'a ProgramRun) -> BoxFuture<'a, Result<ProgramOutput, HelperError>> {
        let line = format!("{} {}", run.program, run.args.join(" "));
        self.said.lock().expect("lock").push(line);
        let answer = match run.program.as_str() {
            missing if missing == self.missing => Err(HelperError::Missing(missing.to_owned())),
            // as if nothing were on the disk
            "blkid" => Ok(ProgramOutput { exit: Some(2), stdout: String::new() }),
            _ => Ok(ProgramOutput { exit: Some(0), stdout: String::new() }),
        };
        if run.args.iter().any(|arg| arg == "--login")
            && let Some(link) = self.appears.lock().expect("lock").take()
        {
            std::fs::create_dir_all(link.parent().expect("parent")).expect("made");
            symlink("/dev/null", link).expect("linked");
        }
        if !self.silent.is_empty() && run.args.iter().any(|arg| arg == self.silent) {
            return std::future::pending().boxed();
        }
        std::future::ready(answer).boxed()
    }
}

struct World {
    root: tempfile::TempDir,
    pods: VolumesOnDisk,
    mounts: SharedMounts,
}

impl World {
    fn new() -> Self {
        let root = tempfile::tempdir().expect("tempdir");
        std::fs::create_dir(root.path().join("pods")).expect("pods");
        let names = Names::new(Profile::Kubernetes);
        let pods = VolumesOnDisk::new(root.path(), names);
        let mounts = SharedMounts::new(root.path(), names);
        Self { root, pods, mounts }
    }

    fn disks(&self, helpers: Arc<dyn Helpers>) -> Disks {
        let changes = watch::channel(0).0;
        Disks::new(self.mounts.clone(), helpers, changes).with_links_dir(self.root.path())
    }
}

impl Disks {
    /// Detaches all unused devices at once.
    async fn detach_all(&self, pods: &VolumesOnDisk) -> Result<(), DiskError> {
        for (plugin, pending) in self.list_unused(pods).await? {
            self.detach(pods, plugin, &pending.name).await?;
        }
        Ok(())
    }
}

fn on_disk(source: DiskSource<'_>) -> OnDisk<'_> {
    let (options, namespace) = (&[], "ns");
    OnDisk { name: "pv", source, fs_type: "", read_only: false, options, secret: None, namespace }
}

fn iscsi() -> AttachedDisk {
    numbered(0)
}

/// One of a target's disks.
fn numbered(lun: i32) -> AttachedDisk {
    AttachedDisk::Iscsi(Iscsi {
        name: format!("10.0.0.1:iqn.2003-04.com.example:x:{lun}"),
        portals: vec!["10.0.0.1:3260".into()],
        iqn: "iqn.2003-04.com.example:x".into(),
        lun,
        interface: "default".into(),
        ..Iscsi::default()
    })
}

#[tokio::test(start_paused = true)]
async fn a_session_lasts_while_a_pod_uses_the_device() {
    let world = World::new();
    let link = "by-path/ip-10.0.0.1:3260-iscsi-iqn.2003-04.com.example:x-lun-0";
    let fake = Arc::new(Fake {
        appears: Mutex::new(Some(world.root.path().join(link))),
        ..Fake::default()
    });
    let disks = world.disks(fake.clone());
    let disk = iscsi();
    let wanted = on_disk(DiskSource::Attached(&disk));
    for uid in ["u1", "u2"] {
        let device = disks.device(&world.pods, uid, wanted).await;
        assert_eq!(device.expect("attached"), PathBuf::from("/dev/null"));
    }
    let logins = |end: &str| {
        fake.said.lock().expect("lock").iter().filter(|line| line.ends_with(end)).count()
    };
    assert_eq!((logins("--login"), logins("--discover")), (1, 1));
    let listed = ["kubernetes.io/iscsi/10.0.0.1:iqn.2003-04.com.example:x:0"];
    assert_eq!(disks.in_use(), listed);
    world.pods.tear_down("u1").expect("torn down");
    disks.detach_all(&world.pods).await.expect("detached");
    assert_eq!(logins("--logout"), 0, "another pod has it");
    world.pods.tear_down("u2").expect("torn down");
    // what an agent began another one ends
    let disks = world.disks(fake.clone());
    assert_eq!(disks.in_use(), listed);
    disks.detach_all(&world.pods).await.expect("detached");
    assert_eq!(logins("--logout"), 1);
    assert!(disks.in_use().is_empty());
    assert_eq!(world.mounts.pending_records(VolumePlugin::Iscsi), Ok(vec![]));
}

/// Two disks of one target share its session, also when they go at the same time.
#[tokio::test(start_paused = true)]
async fn a_session_lasts_as_long_as_a_disk_of_its_target_is_needed() {
    let world = World::new();
    let fake = Arc::new(Fake::default());
    let disks = world.disks(fake.clone());
    for lun in 0..2 {
        let name = format!("ip-10.0.0.1:3260-iscsi-iqn.2003-04.com.example:x-lun-{lun}");
        let link = world.root.path().join("by-path").join(name);
        std::fs::create_dir_all(link.parent().expect("parent")).expect("made");
        symlink("/dev/null", link).expect("linked");
    }
    let logouts = || {
        let said = fake.said.lock().expect("lock");
        said.iter().filter(|line| line.ends_with("--logout")).count()
    };
    let (first, second) = (numbered(0), numbered(1));
    for (uid, disk) in [("u1", &first), ("u2", &second)] {
        // both pods call it the same
        let wanted = on_disk(DiskSource::Attached(disk));
        disks.device(&world.pods, uid, wanted).await.expect("there");
    }
    assert_eq!(disks.in_use().len(), 2);
    world.pods.tear_down("u1").expect("torn down");
    disks.detach_all(&world.pods).await.expect("detached");
    assert_eq!((logouts(), disks.in_use().len()), (0, 1), "another disk of the target is in use");
    disks.device(&world.pods, "u3", on_disk(DiskSource::Attached(&first))).await.expect("there");
    for uid in ["u2", "u3"] {
        world.pods.tear_down(uid).expect("torn down");
    }
    let all = disks.list_unused(&world.pods).await.expect("known");
    let [(one, this), (other, that)] = all.as_slice() else { panic!("not two: {all:?}") };
    let (one, other) = tokio::join!(
        disks.detach(&world.pods, *one, &this.name),
        disks.detach(&world.pods, *other, &that.name)
    );
    assert!(one.is_ok() && other.is_ok(), "{one:?} {other:?}");
    assert_eq!(logouts(), 1);
    assert!(disks.in_use().is_empty() && disks.locks.lock().expect("lock").is_empty());
}

/// One portal of two is enough, also when the first one does not answer.
#[tokio::test(start_paused = true)]
async fn a_portal_that_does_not_answer_holds_nothing_up() {
    let world = World::new();
    let link = "by-path/ip-10.0.0.1:3260-iscsi-iqn.2003-04.com.example:x-lun-0";
    let fake = Fake {
        appears: Mutex::new(Some(world.root.path().join(link))),
        silent: "10.0.0.9:3260",
        ..Fake::default()
    };
    let disks = world.disks(Arc::new(fake));
    let AttachedDisk::Iscsi(mut disk) = iscsi() else { panic!("no iSCSI") };
    disk.portals.insert(0, "10.0.0.9:3260".to_owned());
    let disk = AttachedDisk::Iscsi(disk);
    let attached = disks.device(&world.pods, "u", on_disk(DiskSource::Attached(&disk)));
    let device = tokio::time::timeout(Duration::from_secs(60), attached).await;
    assert_eq!(device.expect("held up").expect("attached"), PathBuf::from("/dev/null"));
}

/// Each portal is a program of root.
#[tokio::test(start_paused = true)]
async fn a_few_portals_are_tried_at_the_same_time_and_not_for_ever() {
    let world = World::new();
    let fake = Arc::new(Fake { silent: "discoverydb", ..Fake::default() });
    let disks = world.disks(fake.clone());
    let disk = with_portals((1..=64).map(|number| format!("10.0.1.{number}:3260")));
    let attached = disks.device(&world.pods, "u", on_disk(DiskSource::Attached(&disk)));
    let attached = tokio::time::timeout(LOG_IN_TIMEOUT * 2, attached).await.expect("it ends");
    assert!(matches!(attached, Err(DiskError::LogInTimeout)), "{attached:?}");
    assert_eq!(fake.said.lock().expect("lock").len(), PORTALS_AT_ONCE);
}

/// The disk, with these portals after its own.
fn with_portals(more: impl IntoIterator<Item = String>) -> AttachedDisk {
    let AttachedDisk::Iscsi(mut disk) = iscsi() else { panic!("no iSCSI") };
    disk.portals.extend(more);
    AttachedDisk::Iscsi(disk)
}

/// A pod of another user may name the same disk with other portals, in a pod that comes later or first.
#[tokio::test(start_paused = true)]
async fn a_pod_that_names_a_disk_too_changes_nothing_for_its_other_pods() {
    let world = World::new();
    let link = "by-path/ip-10.0.0.1:3260-iscsi-iqn.2003-04.com.example:x-lun-0";
    let link = world.root.path().join(link);
    std::fs::create_dir_all(link.parent().expect("parent")).expect("made");
    symlink("/dev/null", link).expect("linked");
    let own = with_portals(["10.0.0.2:3260".to_owned()]);
    let foreign = |number: i32| with_portals((0..60).map(|n| format!("10.{number}.1.{n}:3260")));
    let many = [foreign(1), foreign(2), foreign(3)];
    let long = with_portals(["x".repeat(1 << 20)]);
    let disks_in_order = [&own, &many[0], &many[1], &many[2]];
    for reversed in [false, true] {
        let fake = Arc::new(Fake::default());
        let disks = world.disks(fake.clone());
        let error = disks.device(&world.pods, "u9", on_disk(DiskSource::Attached(&long))).await;
        assert!(matches!(error, Err(DiskError::RecordTooLong)), "{error:?}");
        assert!(disks.in_use().is_empty(), "a volume that is refused is not listed");
        let mut order = disks_in_order.to_vec();
        if reversed {
            order.reverse();
        }
        for (number, disk) in order.into_iter().enumerate() {
            let (uid, wanted) = (format!("u{number}"), on_disk(DiskSource::Attached(disk)));
            disks.device(&world.pods, &uid, wanted).await.expect("attached");
            if number == 0 {
                let error = disks.device(&world.pods, "u9", on_disk(DiskSource::Attached(&long)));
                assert!(matches!(error.await, Err(DiskError::RecordTooLong)));
            }
        }
        for number in 0..10 {
            world.pods.tear_down(&format!("u{number}")).expect("torn down");
        }
        disks.detach_all(&world.pods).await.expect("detached");
        assert_eq!(world.mounts.pending_records(VolumePlugin::Iscsi), Ok(vec![]));
        let said = fake.said.lock().expect("lock");
        let out: Vec<_> = said.iter().filter(|line| line.ends_with("--logout")).collect();
        assert_eq!(out.len(), 128, "the portals are bounded together");
        let has = |portal: &str| out.iter().any(|line| line.contains(&format!(" {portal} ")));
        assert!(has("10.0.0.1:3260"), "{out:?}");
        assert_eq!(has("10.0.0.2:3260"), !reversed, "later ones as long as there is room");
    }
}

#[tokio::test(start_paused = true)]
async fn the_record_of_a_disk_is_one_disks_and_no_pod_fills_it() {
    let world = World::new();
    let fake = Arc::new(Fake::default());
    let disks = world.disks(fake.clone());
    let disk = iscsi();
    let names: Vec<String> = (0..=USES_OF_POD_MAX).map(|n| n.to_string()).collect();
    let mut errors = Vec::new();
    for name in &names {
        let wanted = OnDisk { name, ..on_disk(DiskSource::Attached(&disk)) };
        errors.extend(disks.device(&world.pods, "u1", wanted).await.err());
    }
    let last = errors.pop();
    assert!(errors.iter().all(|error| matches!(error, DiskError::NoDevice { .. })), "{errors:?}");
    assert!(matches!(last, Some(DiskError::TooManyUses)), "{last:?}");
    let again = disks.device(
        &world.pods,
        "u1",
        OnDisk { name: "0", ..on_disk(DiskSource::Attached(&disk)) },
    );
    assert!(matches!(again.await, Err(DiskError::NoDevice { .. })));
    let AttachedDisk::Iscsi(of) = iscsi() else { panic!("no iSCSI") };
    let crafted = AttachedDisk::Iscsi(Iscsi { iqn: "iqn.2003-04.com.example".into(), ..of });
    let error = disks.device(&world.pods, "u2", on_disk(DiskSource::Attached(&crafted))).await;
    assert!(matches!(error, Err(DiskError::OtherDisk)), "{error:?}");
    let records = world.mounts.pending_records(VolumePlugin::Iscsi).expect("read");
    assert_eq!((records.len(), records[0].users.len()), (1, USES_OF_POD_MAX));
    assert_eq!(records[0].namespace, "ns");
}

/// What is left of a record does not refuse its disk to the next pod.
#[tokio::test(start_paused = true)]
async fn a_disk_with_a_damaged_record_is_attached_and_undone() {
    let world = World::new();
    let fake = Arc::new(Fake::default());
    let disks = world.disks(fake.clone());
    let disk = iscsi();
    let path = format!("plugins/kubernetes.io/iscsi/mounts/{}.json", disk.mount_name());
    let device = |uid| disks.device(&world.pods, uid, on_disk(DiskSource::Attached(&disk)));
    device("u1").await.expect_err("no disk");
    std::fs::write(world.root.path().join(&path), "{").expect("written");
    device("u2").await.expect_err("no disk");
    world.pods.tear_down("u2").expect("torn down");
    disks.detach_all(&world.pods).await.expect("nothing to detach");
    let out = || {
        let said = fake.said.lock().expect("lock");
        said.iter().filter(|line| line.ends_with("--logout")).count()
    };
    assert_eq!(out(), 0, "a pod that may have used it is left");
    std::fs::write(world.root.path().join(&path), "{").expect("written");
    disks.detach_all(&world.pods).await.expect("nothing to detach");
    assert!(world.root.path().join(&path).exists());
    device("u1").await.expect_err("no disk");
    world.pods.tear_down("u1").expect("torn down");
    disks.detach_all(&world.pods).await.expect("detached");
    assert_eq!((out(), world.root.path().join(&path).exists()), (1, false));
}

/// Each failure is reported and retried.
#[tokio::test(start_paused = true)]
async fn a_failed_detach_is_retried() {
    struct Stubborn(Mutex<u32>);
    impl Helpers for Stubborn {
        fn run<'a>(
            &'a self,
            run: &'a ProgramRun,
        ) -> BoxFuture<'a, Result<ProgramOutput, HelperError>> {
            let is_end = run.args.iter().any(|arg| arg == "--logout");
            let mut left = self.0.lock().expect("lock");
            let answer = if is_end && *left > 0 {
                *left -= 1;
                Err(HelperError::StillRunning(run.program.clone()))
            } else {
                Ok(ProgramOutput { exit: Some(0), stdout: String::new() })
            };
            std::future::ready(answer).boxed()
        }
    }
    let world = World::new();
    let disks = world.disks(Arc::new(Stubborn(Mutex::new(3))));
    let disk = iscsi();
    disks
        .device(&world.pods, "u", on_disk(DiskSource::Attached(&disk)))
        .await
        .expect_err("no disk");
    let said = Mutex::new(Vec::new());
    let report = |error: &str| said.lock().expect("lock").push(error.to_owned());
    let patience = Duration::from_secs(600);
    let kept = disks.detach_unused(&world.pods, report);
    let detached = async {
        world.pods.tear_down("u").expect("torn down");
        disks.pod_ended();
        while !disks.in_use().is_empty() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        () = kept => {}
        () = detached => {}
        () = tokio::time::sleep(patience) => panic!("it is still there: {said:?}"),
    }
    let said = said.into_inner().expect("lock");
    assert_eq!(said.len(), 3, "{said:?}");
    assert!(said.iter().all(|line| line.contains("iscsiadm")), "{said:?}");
}

#[tokio::test(start_paused = true)]
async fn missing_programs_and_devices_are_named() {
    let world = World::new();
    let disks = world.disks(Arc::new(Fake { missing: "iscsiadm", ..Fake::default() }));
    let disk = iscsi();
    let error =
        disks.bind(&world.pods, "u", on_disk(DiskSource::Attached(&disk))).await.unwrap_err();
    assert_eq!(chain(&error), "iscsiadm is not on this node");
    // Nothing is left to undo after the pod.
    world.pods.tear_down("u").expect("torn down");
    disks.detach_all(&world.pods).await.expect("detached");
    assert_eq!(world.mounts.pending_records(VolumePlugin::Iscsi), Ok(vec![]));
    let disks = world.disks(Arc::new(Fake::default()));
    let error =
        disks.bind(&world.pods, "u", on_disk(DiskSource::Attached(&disk))).await.unwrap_err();
    assert!(
        error.to_string().starts_with("no block device appeared at by-path/ip-10.0.0.1:3260"),
        "{error}"
    );
    let fc =
        AttachedDisk::FibreChannel(FibreChannel { ids: vec!["w".into()], ..Default::default() });
    let error = disks.bind(&world.pods, "u", on_disk(DiskSource::Attached(&fc))).await.unwrap_err();
    let is_missing = match &error {
        DiskError::NoDevice { .. } => true,
        DiskError::Kernel(errno) => matches!(*errno, Errno::NODEV | Errno::NXIO),
        _ => false,
    };
    assert!(is_missing, "{error}");
    let error = disks.bind(&world.pods, "u", on_disk(DiskSource::Device("/dev/null"))).await;
    assert!(error.unwrap_err().to_string().contains("is not a block device"));
}

/// A file that is a disk, for as long as this lives.
struct Loop(String, tempfile::NamedTempFile);

impl Loop {
    /// `None` where there are no such devices, or no tools for them.
    fn new() -> Option<Self> {
        let file = tempfile::NamedTempFile::new().ok()?;
        file.as_file().set_len(16 << 20).ok()?;
        let mut tool = std::process::Command::new("losetup");
        let output = tool.arg("-f").arg("--show").arg(file.path()).output().ok()?;
        let output = Some(output).filter(|output| output.status.success())?;
        let device = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        std::path::Path::new("/sbin/mkfs.ext4").exists().then_some(Self(device, file))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

/// On a real device, with the real programs.
#[tokio::test]
async fn a_disk_is_given_a_file_system_once_and_kept() {
    let Some(device) = Loop::new() else {
        eprintln!(
            "SKIPPED a_disk_is_given_a_file_system_once_and_kept: no loop devices or mkfs.ext4"
        );
        return;
    };
    let world = World::new();
    let disks = world.disks(Arc::new(NodeHelpers::default()));
    let wanted = on_disk(DiskSource::Device(&device.0));
    let (one, fresh) = disks.bind(&world.pods, "u1", wanted).await.expect("bound");
    let again = disks.bind(&world.pods, "u1", wanted).await.expect("there");
    let (two, _) = disks.bind(&world.pods, "u2", wanted).await.expect("bound");
    let written = std::fs::write(one.join("f"), "kept");
    let read = std::fs::read_to_string(two.join("f"));
    world.pods.tear_down("u1").expect("torn down");
    disks.detach_all(&world.pods).await.expect("detached");
    let still = std::fs::read_to_string(two.join("f"));
    world.pods.tear_down("u2").expect("torn down");
    // a new agent finds what is to be undone
    let disks = world.disks(Arc::new(NodeHelpers::default()));
    disks.detach_all(&world.pods).await.expect("detached");
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("table");
    let left = table.contains(world.root.path().to_str().expect("a path"));
    // Existing content is neither formatted nor mounted as another type.
    let other = disks.bind(&world.pods, "u3", OnDisk { fs_type: "xfs", ..wanted }).await;
    let (three, _) =
        disks.bind(&world.pods, "u3", OnDisk { read_only: true, ..wanted }).await.expect("bound");
    let kept = std::fs::read_to_string(three.join("f"));
    let refused = std::fs::write(three.join("g"), "");
    let writer = disks.bind(&world.pods, "u5", wanted).await;
    world.pods.tear_down("u3").expect("torn down");
    disks.detach_all(&world.pods).await.expect("nothing to detach");
    let (five, _) = disks.bind(&world.pods, "u5", wanted).await.expect("bound");
    let at_last = std::fs::write(five.join("g"), "");
    world.pods.tear_down("u5").expect("torn down");
    disks.detach_all(&world.pods).await.expect("detached");
    // A partition table is data.
    let partitioned = {
        use std::os::unix::fs::FileExt as _;
        let blank = vec![0; 1 << 20];
        device.1.as_file().write_all_at(&blank, 0).expect("blank");
        let mut table = [0_u8; 512];
        table[446..450].copy_from_slice(&[0, 1, 1, 0]);
        table[450] = 0x83;
        table[454..458].copy_from_slice(&2048_u32.to_le_bytes());
        table[458..462].copy_from_slice(&4096_u32.to_le_bytes());
        table[510..].copy_from_slice(&[0x55, 0xaa]);
        device.1.as_file().write_all_at(&table, 0).expect("a table");
        disks.bind(&world.pods, "u4", wanted).await
    };
    world.pods.tear_down("u4").expect("torn down");
    disks.detach_all(&world.pods).await.expect("detached");
    assert!(fresh && !again.1 && again.0 == one);
    assert!(written.is_ok());
    assert_eq!((read.ok().as_deref(), still.ok().as_deref()), (Some("kept"), Some("kept")));
    assert!(!left, "a mount is left: {table}");
    assert!(other.unwrap_err().to_string().contains("it already contains ext4"));
    assert_eq!(kept.ok().as_deref(), Some("kept"));
    assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert!(at_last.is_ok(), "a writer gets the device after the readers");
    assert!(matches!(writer, Err(DiskError::ReadOnly)), "{writer:?}");
    assert!(partitioned.unwrap_err().to_string().contains("probably partitions"));
}
