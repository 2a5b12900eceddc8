use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use super::*;

fn root(path: &Path) -> OwnedFd {
    beneath::open_directory(path).unwrap()
}

fn identity(fd: &OwnedFd) -> u64 {
    rustix::fs::fstat(fd).unwrap().st_ino
}

#[test]
fn what_stays_inside_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir_all(at("..1/deep")).unwrap();
    std::fs::write(at("..1/deep/f"), "").unwrap();
    symlink("..1", at("..data")).unwrap();
    symlink("..data/deep", at("deep")).unwrap();
    let inode = |name: &str| at(name).metadata().unwrap().ino();
    for path in ["deep/f", "./deep//f", "deep/./f"] {
        assert_eq!(identity(&open(root(dir.path()), path).unwrap()), inode("..1/deep/f"), "{path}");
    }
    assert_eq!(identity(&open(root(dir.path()), "").unwrap()), inode("."));
}

#[test]
fn what_leads_out_is_refused() {
    let outside = tempfile::tempdir().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir(at("in")).unwrap();
    symlink(outside.path(), at("absolute")).unwrap();
    symlink("/proc/self/root", at("magic")).unwrap();
    symlink("../..", at("in/up")).unwrap();
    let back = format!("../../{}", dir.path().file_name().unwrap().to_str().unwrap());
    symlink(back, at("in/up-and-back")).unwrap();
    symlink("loop", at("loop")).unwrap();
    std::fs::write(at("file"), "").unwrap();
    let cases = [
        "..",
        "in/../..",
        "/",
        "/etc",
        "absolute",
        "absolute/made",
        "magic",
        "magic/etc",
        "in/up",
        "in/up/made",
        "in/up-and-back/in",
        "loop",
        "file/made",
    ];
    for path in cases {
        assert!(open(root(dir.path()), path).is_err(), "{path}");
    }
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0, "nothing was made outside");
}

#[test]
fn what_is_missing_is_made_as_the_volume_is() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o2777)).unwrap();
    let made = open(root(dir.path()), "a/b/c").unwrap();
    let stat = dir.path().join("a/b/c").metadata().unwrap();
    assert_eq!(identity(&made), stat.ino());
    assert_eq!(stat.mode() & 0o7777, 0o2777);
    // a link to what is not there yet is not a way to make it somewhere else
    symlink("nowhere", dir.path().join("dangling")).unwrap();
    assert!(open(root(dir.path()), "dangling").is_err());
    assert!(!dir.path().join("nowhere").exists());
}

#[test]
fn read_only_goes_all_the_way_down() {
    use agent_pod::volume_mounts::AllReadOnly;
    use proto_api::names::{Names, Profile};
    let (agent, volume) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    if volume.path().metadata().unwrap().uid() != 0 {
        eprintln!("SKIPPED read_only_goes_all_the_way_down: needs root");
        return;
    }
    std::fs::create_dir_all(agent.path().join("pods/u")).unwrap();
    let tmpfs =
        mount::Tmpfs { size_bytes: None, mode: 0o755, swap: mount::Swap::Allowed, exec: false };
    mount::tmpfs_on(root(volume.path()), "below", tmpfs, |_| Ok::<(), Errno>(())).unwrap();
    let pods = crate::PodVolumes::new(agent.path(), Names::new(Profile::Kubernetes));
    let give = |root: &Path, index, all_read_only| {
        let on_node = Some(HostPathKind::Directory);
        let part =
            SubPath { volume: "v", root, container: "c", index, path: "", on_node, all_read_only };
        pods.sub_path("u", &part)
    };
    let bound = give(volume.path(), 0, Some(AllReadOnly::Enabled)).unwrap();
    let plain = give(volume.path(), 1, None).unwrap();
    let write = |at: &Path| std::fs::write(at.join("f"), "x").map_err(|e| e.raw_os_error());
    let read_only = Err(Some(Errno::ROFS.raw_os_error()));
    let frozen = [write(&bound), write(&bound.join("below"))];
    let free = [write(&plain), write(&plain.join("below")), write(&volume.path().join("below"))];
    // the agent's own directory lies in its parent: all of that is not copied
    let above = agent.path().parent().unwrap();
    let refused = give(above, 2, Some(AllReadOnly::Enabled)).map_err(|e| e.source.to_string());
    let given = give(above, 2, Some(AllReadOnly::IfPossible)).unwrap();
    pods.tear_down("u").unwrap();
    mount::unmount(root(volume.path()), "below").unwrap();
    assert_eq!(frozen, [read_only, read_only]);
    assert_eq!(free, [Ok(()); 3]);
    assert!(refused.unwrap_err().contains("the agent's own directory"));
    assert_eq!(given, above);
}
