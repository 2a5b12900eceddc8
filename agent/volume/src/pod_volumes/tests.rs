use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;

use agent_pod::env::EnvObjects;
use proto_api::core::v1::{ConfigMap, Pod, Secret};
use proto_api::names::Profile;

use super::*;
use crate::sources::{HostPathKind, Keys};
use crate::sub_path::SubPath;

struct Fixed(ConfigMap, Secret);

impl EnvObjects for Fixed {
    fn config_map(&self, name: &str) -> Option<&ConfigMap> {
        (name == "c").then_some(&self.0)
    }

    fn secret(&self, name: &str) -> Option<&Secret> {
        (name == "s").then_some(&self.1)
    }
}

fn objects(value: &str) -> Fixed {
    let mut fixed = Fixed(ConfigMap::default(), Secret::default());
    fixed.0.data.insert("key".into(), value.into());
    fixed.1.data.insert("key".into(), value.into());
    fixed
}

fn keys(object: &str) -> Keys {
    Keys { object: object.into(), items: Vec::new(), optional: false, mode: 0o644 }
}

fn projected(name: &str, plugin: VolumePlugin, projection: Projection) -> Volume {
    let projected = Projected { plugin, projections: vec![projection] };
    Volume { name: name.into(), kind: VolumeKind::Projected(projected) }
}

fn set_up(
    volumes: &VolumesOnDisk,
    volume: &Volume,
    value: &str,
) -> Result<ReadyVolume, SetUpError> {
    let mut pod = Pod::default();
    pod.metadata.uid = "u1".into();
    let objects = objects(value);
    let nothing = BTreeMap::new();
    let inputs = PayloadInputs {
        pod: &pod,
        objects: &objects,
        tokens: &BTreeMap::new(),
        allocatable: &nothing,
        budget: &crate::Budget::default(),
    };
    volumes.set_up(&inputs, volume)
}

fn root(test: &str) -> Option<(tempfile::TempDir, VolumesOnDisk)> {
    let dir = tempfile::tempdir().unwrap();
    if dir.path().metadata().unwrap().uid() != 0 {
        eprintln!("SKIPPED {test}: needs root");
        return None;
    }
    let volumes = VolumesOnDisk::new(dir.path(), Names::new(Profile::Kubernetes));
    Some((dir, volumes))
}

fn mounts_below(path: &Path) -> usize {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().filter(|line| line.contains(path.to_str().unwrap())).count()
}

#[test]
fn each_kind_has_the_kubelets_path() {
    let Some((dir, volumes)) = root("each_kind_has_the_kubelets_path") else { return };
    let config = projected("settings", VolumePlugin::ConfigMap, Projection::ConfigMap(keys("c")));
    let secret = projected("login", VolumePlugin::Secret, Projection::Secret(keys("s")));
    let scratch = Volume { name: "tmp".into(), kind: VolumeKind::EmptyDir(Medium::Disk) };
    let memory = Medium::Memory { size_bytes: Some(1 << 20) };
    let shm = Volume { name: "shm".into(), kind: VolumeKind::EmptyDir(memory) };

    let below = |path: &str| dir.path().join("pods/u1/volumes").join(path);
    for (volume, path, in_memory) in [
        (&config, "kubernetes.io~configmap/settings", false),
        (&secret, "kubernetes.io~secret/login", true),
        (&scratch, "kubernetes.io~empty-dir/tmp", false),
        (&shm, "kubernetes.io~empty-dir/shm", true),
    ] {
        let set = set_up(&volumes, volume, "1").unwrap();
        assert_eq!((&set.path, set.mounted), (&below(path), in_memory));
        let opened = beneath::open_directory(&below(path)).unwrap();
        assert_eq!(mount::is_in_memory(&opened).unwrap(), in_memory, "{path}");
        assert_eq!(below(path).metadata().unwrap().mode() & 0o777, 0o777, "{path}");
    }
    assert_eq!(std::fs::read_to_string(below("kubernetes.io~secret/login/key")).unwrap(), "1");

    // Files of a container survive another set-up, as after a restart of the agent.
    std::fs::write(below("kubernetes.io~empty-dir/tmp/mine"), "x").unwrap();
    std::fs::write(below("kubernetes.io~empty-dir/shm/mine"), "x").unwrap();
    let mounted = mounts_below(dir.path());
    for volume in [&config, &secret, &scratch, &shm] {
        let again = set_up(&volumes, volume, "1").unwrap();
        assert!(matches!(again.written, None | Some(TreeWrite::Unchanged)), "{again:?}");
    }
    assert_eq!(mounts_below(dir.path()), mounted);
    assert!(below("kubernetes.io~empty-dir/tmp/mine").exists());
    assert!(below("kubernetes.io~empty-dir/shm/mine").exists());

    assert_eq!(set_up(&volumes, &secret, "2").unwrap().written, Some(TreeWrite::Switched));
    assert_eq!(std::fs::read_to_string(below("kubernetes.io~secret/login/key")).unwrap(), "2");
    volumes.sweep("u1", &secret).unwrap();

    assert!(volumes.has_any("u1"));
    assert_eq!(volumes.uids().unwrap(), ["u1"]);
    volumes.tear_down("u1").unwrap();
    assert!(!volumes.has_any("u1"));
    assert_eq!(mounts_below(dir.path()), 0);
    volumes.tear_down("u1").unwrap();
}

#[test]
fn a_failed_refresh_leaves_the_volume() {
    let Some((_dir, volumes)) = root("a_failed_refresh_leaves_the_volume") else { return };
    let good = projected("v", VolumePlugin::Secret, Projection::Secret(keys("s")));
    let path = set_up(&volumes, &good, "1").unwrap().path;
    let gone = projected("v", VolumePlugin::Secret, Projection::Secret(keys("nothing")));
    let error = set_up(&volumes, &gone, "2").unwrap_err();
    assert!(matches!(error, SetUpError::Source { .. }), "{error}");
    assert_eq!(std::fs::read_to_string(path.join("key")).unwrap(), "1");
    volumes.tear_down("u1").unwrap();
}

#[test]
fn tokens_are_found_again() {
    let Some((_dir, volumes)) = root("tokens_are_found_again") else { return };
    let want = TokenWant { audience: String::new(), expiration_secs: 3607 };
    let projection = Projection::Token { want: want.clone(), path: "d/token".into(), mode: 0o644 };
    let volume = projected("api", VolumePlugin::Projected, projection);
    let mut pod = Pod::default();
    pod.metadata.uid = "u1".into();
    let tokens = BTreeMap::from([(want, "e30.e30.x".to_owned())]);
    let (objects, allocatable) = (objects(""), BTreeMap::new());
    let inputs = PayloadInputs {
        pod: &pod,
        objects: &objects,
        tokens: &tokens,
        allocatable: &allocatable,
        budget: &crate::Budget::default(),
    };
    assert_eq!(volumes.tokens("u1", std::slice::from_ref(&volume)), BTreeMap::new());
    volumes.set_up(&inputs, &volume).unwrap();
    assert_eq!(volumes.tokens("u1", std::slice::from_ref(&volume)), tokens);
    let again = volumes.set_up(&inputs, &volume).unwrap();
    assert_eq!(again.written, Some(TreeWrite::Unchanged));
    volumes.tear_down("u1").unwrap();
}

#[test]
fn foreign_mounts_in_volumes_are_not_removed() {
    let Some((dir, volumes)) = root("foreign_mounts_in_volumes_are_not_removed") else { return };
    let scratch = Volume { name: "tmp".into(), kind: VolumeKind::EmptyDir(Medium::Disk) };
    let path = set_up(&volumes, &scratch, "").unwrap().path;
    std::fs::create_dir(path.join("deep")).unwrap();
    let strange = beneath::open_directory(&path).unwrap();
    let tmpfs = Tmpfs { size_bytes: None, mode: 0o755, swap: Swap::Allowed, exec: true };
    let mounted = mount::tmpfs_on::<Errno>(&strange, "deep", tmpfs, |_| Ok(())).unwrap();
    std::fs::write(path.join("deep/data"), "precious").unwrap();

    let error = volumes.tear_down("u1").unwrap_err();
    assert_eq!(error.source, Errno::BUSY, "{error}");
    assert_eq!(std::fs::read_to_string(path.join("deep/data")).unwrap(), "precious");

    drop(mounted);
    mount::unmount(&strange, "deep").unwrap();
    drop(strange);
    volumes.tear_down("u1").unwrap();
    assert!(!dir.path().join("pods/u1").exists());
}

#[test]
fn links_lead_nowhere() {
    let Some((dir, volumes)) = root("links_lead_nowhere") else { return };
    let outside = dir.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("data"), "precious").unwrap();
    let pods = dir.path().join("pods/u1");
    std::fs::create_dir_all(&pods).unwrap();
    std::os::unix::fs::symlink(&outside, pods.join("volumes")).unwrap();
    let scratch = Volume { name: "tmp".into(), kind: VolumeKind::EmptyDir(Medium::Disk) };
    set_up(&volumes, &scratch, "").unwrap_err();
    let _ = volumes.tear_down("u1");
    assert_eq!(std::fs::read_to_string(outside.join("data")).unwrap(), "precious");
    for name in ["../x", "a/b", "..", ""] {
        let volume = Volume { name: name.into(), kind: VolumeKind::EmptyDir(Medium::Disk) };
        set_up(&volumes, &volume, "").unwrap_err();
        volumes.tear_down(name).unwrap_err();
    }
}

#[test]
fn a_sweep_after_the_end_makes_nothing() {
    let Some((_dir, volumes)) = root("a_sweep_after_the_end_makes_nothing") else { return };
    let volume = projected("v", VolumePlugin::ConfigMap, Projection::ConfigMap(keys("c")));
    set_up(&volumes, &volume, "1").unwrap();
    volumes.tear_down("u1").unwrap();
    volumes.sweep("u1", &volume).unwrap();
    assert!(!volumes.has_any("u1"));
}

#[test]
fn a_path_of_the_node_is_bound_as_what_it_was_checked_to_be() {
    let Some((dir, volumes)) = root("a_path_of_the_node_is_bound") else { return };
    let node = tempfile::tempdir().unwrap();
    let at = |name: &str| node.path().join(name);
    std::fs::create_dir(at("directory")).unwrap();
    std::fs::write(at("file"), "text").unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    std::fs::create_dir_all(dir.path().join("pods/u")).unwrap();
    let bind = |path: &Path, kind: HostPathKind, index: usize| {
        let on_node = Some(kind);
        let part = SubPath {
            volume: "v",
            root: path,
            container: "c",
            index,
            path: "",
            on_node,
            all_read_only: None,
            follows: false,
        };
        volumes.sub_path("u", &part)
    };
    let cases = [
        (at("directory"), HostPathKind::Directory),
        (at("file"), HostPathKind::File),
        (at("socket"), HostPathKind::Socket),
        ("/dev/null".into(), HostPathKind::CharDevice),
        (at("made"), HostPathKind::DirectoryOrCreate),
    ];
    for (index, (path, kind)) in cases.iter().enumerate() {
        let bound = bind(path, *kind, index).unwrap();
        let (one, other) = (bound.metadata().unwrap(), path.metadata().unwrap());
        assert_eq!((one.dev(), one.ino()), (other.dev(), other.ino()), "{}", path.display());
        assert_eq!(bind(path, *kind, index).unwrap(), bound, "again is the same");
    }
    let wrong = bind(&at("file"), HostPathKind::Directory, 9).unwrap_err();
    assert!(matches!(wrong.source, crate::sub_path::SubPathFailure::HostPath(_)), "{wrong}");
    assert_eq!(mounts_below(dir.path()), cases.len());
    // At the container's next start the path leads elsewhere: the mount follows.
    std::fs::rename(at("file"), at("old")).unwrap();
    std::fs::write(at("file"), "new").unwrap();
    let bound = bind(&at("file"), HostPathKind::File, 1).unwrap();
    assert_eq!(std::fs::read_to_string(bound).unwrap(), "new");
    // A mount on the node below a `hostPath` outlives the pod.
    std::fs::create_dir(at("made/inner")).unwrap();
    let tmpfs = Tmpfs { size_bytes: Some(1 << 20), mode: 0o755, swap: Swap::Allowed, exec: false };
    mount::attach(
        mount::detached(tmpfs).unwrap(),
        beneath::open_directory(&at("made/inner")).unwrap(),
    )
    .unwrap();
    volumes.tear_down("u").unwrap();
    assert_eq!(mounts_below(dir.path()), 0);
    let inner = beneath::open_directory(&at("made/inner")).unwrap();
    assert!(beneath::is_mount_point(&inner).unwrap(), "a mount of the node went with the pod");
    drop(inner);
    mount::unmount(beneath::open_directory(&at("made")).unwrap(), "inner").unwrap();
    assert!(at("directory").exists() && at("made").exists() && at("old").exists());
    assert!(volumes.are_below("/") && !volumes.are_below(node.path().to_str().unwrap()));
}

/// A mount that was lost or never made leaves the pod to write below it.
#[test]
fn what_a_pod_wrote_below_a_mount_that_is_not_there_is_freed() {
    let Some((dir, volumes)) = root("what_a_pod_wrote_below_a_mount") else { return };
    for (uid, plugin) in [("u1", VolumePlugin::Nfs), ("u2", VolumePlugin::Fc)] {
        let (path, mounted) = volumes.mount_point(uid, plugin, "v").unwrap();
        assert!(!mounted);
        std::fs::create_dir(path.join("deep")).unwrap();
        std::fs::write(path.join("deep/data"), "x").unwrap();
        std::os::unix::fs::symlink("/", path.join("link")).unwrap();
        // What is mounted below is another's.
        let tmpfs = Tmpfs { size_bytes: None, mode: 0o755, swap: Swap::Allowed, exec: true };
        let strange = beneath::open_directory(&path).unwrap();
        let mounted = mount::tmpfs_on::<Errno>(&strange, "other", tmpfs, |_| Ok(())).unwrap();
        std::fs::write(path.join("other/data"), "precious").unwrap();
        let error = volumes.tear_down(uid).unwrap_err();
        assert_eq!(error.source, Errno::BUSY, "{error}");
        assert_eq!(std::fs::read_to_string(path.join("other/data")).unwrap(), "precious");
        drop(mounted);
        mount::unmount(&strange, "other").unwrap();
        drop(strange);
        volumes.tear_down(uid).unwrap();
        assert!(!dir.path().join("pods").join(uid).exists());
    }
}
