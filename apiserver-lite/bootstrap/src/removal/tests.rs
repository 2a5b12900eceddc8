use std::os::unix::fs::symlink;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use proto_daemon::mountinfo;

use super::*;

/// Runs in a mount namespace of its own, which ends with the thread.
fn in_own_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
        test();
    });
    thread.join().unwrap();
}

fn bind(from: &Path, to: &Path) {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
}

#[test]
fn mounted_directories_are_kept_and_the_rest_is_removed() {
    in_own_namespace(|| {
        let root = tempfile::tempdir().unwrap();
        let (dir, precious) = (root.path().join("dir"), root.path().join("precious"));
        for made in [&dir.join("a/mounted"), &dir.join("b"), &precious] {
            fs::create_dir_all(made).unwrap();
        }
        for file in [&dir.join("a/f"), &dir.join("b/f"), &precious.join("f")] {
            fs::write(file, "x").unwrap();
        }
        // Of the same device: st_dev does not tell.
        bind(&precious, &dir.join("a/mounted"));
        let error = remove_dir(&dir).unwrap_err();
        assert!(format!("{error:#}").contains("a/mounted: is a mount point"), "{error:#}");
        assert!(precious.join("f").exists());
        assert!(!dir.join("a/f").exists() && !dir.join("b").exists());
        umount2(&dir.join("a/mounted"), MntFlags::MNT_DETACH).unwrap();
        remove_dir(&dir).unwrap();
        assert!(!dir.exists() && precious.join("f").exists());
    });
}

#[test]
fn a_mount_point_keeps_its_content_and_is_done_when_it_is_empty() {
    in_own_namespace(|| {
        let root = tempfile::tempdir().unwrap();
        let (dir, precious) = (root.path().join("dir"), root.path().join("precious"));
        fs::create_dir(&dir).unwrap();
        fs::create_dir(&precious).unwrap();
        fs::write(precious.join("f"), "x").unwrap();
        bind(&precious, &dir);
        assert!(remove_dir(&dir).is_err());
        fs::remove_file(dir.join("f")).unwrap();
        remove_dir(&dir).unwrap();
        umount2(&dir, MntFlags::MNT_DETACH).unwrap();
    });
}

#[test]
fn a_link_to_the_directory_is_followed_and_links_in_it_are_not() {
    let root = tempfile::tempdir().unwrap();
    let (target, precious) = (root.path().join("target"), root.path().join("precious"));
    fs::create_dir(&target).unwrap();
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("f"), "x").unwrap();
    symlink(&precious, target.join("l")).unwrap();
    let link = root.path().join("link");
    symlink(&target, &link).unwrap();
    remove_dir(&link).unwrap();
    assert!(!target.exists() && !link.is_symlink() && precious.join("f").exists());
    remove_dir(&link).unwrap();
    symlink("/etc", &link).unwrap();
    assert!(remove_dir(&link).unwrap_err().to_string().contains("of the system"));
    fs::remove_file(&link).unwrap();
    symlink("/", &link).unwrap();
    assert!(remove_dir(&link).is_err());
}

#[test]
fn no_depth_is_too_deep() {
    let root = tempfile::tempdir().unwrap();
    let top = root.path().join("top");
    fs::create_dir(&top).unwrap();
    let mut dir = openat(CWD, &top, DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..3000 {
        rustix::fs::mkdirat(&dir, "d", Mode::from_raw_mode(0o700)).unwrap();
        dir = openat(&dir, "d", DIRECTORY, Mode::empty()).unwrap();
    }
    remove_dir(&top).unwrap();
    assert!(!top.exists());
}

#[test]
fn mounts_below_a_directory_are_unmounted_in_reverse_order_and_a_mount_at_it_is_kept() {
    let undone = |table: &[u8], dir: &str| -> Vec<PathBuf> {
        let all = mountinfo::parse(table);
        mounts_to_undo(&all, Path::new(dir)).into_iter().map(Path::to_owned).collect()
    };
    let table =
        b"1 0 0:1 / / rw - t t rw\n2 1 0:2 / /v/k rw - t t rw\n3 2 0:1 / /v/k/a rw - t t rw\n\
        4 1 0:1 / /v/kk rw - t t rw\n5 3 0:1 / /v/k/a/b rw - t t rw\n";
    assert_eq!(undone(table, "/v/k"), [Path::new("/v/k/a/b"), Path::new("/v/k/a")]);
    assert_eq!(undone(table, "/x"), [] as [&Path; 0]);
    let onto_itself = b"1 0 0:1 /sub / rw - t t rw\n2 1 0:1 /sub/v/k /v/k rw - t t rw\n";
    assert_eq!(undone(onto_itself, "/v/k"), [Path::new("/v/k")]);
    let elsewhere = b"1 0 0:1 /sub / rw - t t rw\n2 1 0:1 /other /v/k rw - t t rw\n";
    assert_eq!(undone(elsewhere, "/v/k"), [] as [&Path; 0]);
    let on_a_disk =
        b"1 0 0:1 / / rw - t t rw\n2 1 0:2 / /v/k rw - t t rw\n3 2 0:2 / /v/k rw - t t rw\n";
    assert_eq!(undone(on_a_disk, "/v/k"), [Path::new("/v/k")], "one of the two");
}

#[test]
fn a_directory_that_is_mounted_onto_itself_is_seen_by_the_kernel_s_table() {
    in_own_namespace(|| {
        let root = tempfile::tempdir().unwrap();
        let (dir, other) = (root.path().join("dir"), root.path().join("other"));
        fs::create_dir(&dir).unwrap();
        fs::create_dir(&other).unwrap();
        let undone = || {
            let all = mountinfo::read_of(Path::new("/proc/thread-self")).unwrap();
            mounts_to_undo(&all, &fs::canonicalize(&dir).unwrap()).len()
        };
        assert_eq!(undone(), 0);
        bind(&dir, &dir);
        assert_eq!(undone(), 1);
        umount2(&dir, MntFlags::MNT_DETACH).unwrap();
        bind(&other, &dir);
        assert_eq!(undone(), 0);
        umount2(&dir, MntFlags::MNT_DETACH).unwrap();
    });
}

#[test]
fn links_above_a_path_are_followed_whether_it_exists_or_not() {
    let dir = tempfile::tempdir().unwrap();
    let root = std::fs::canonicalize(dir.path()).unwrap();
    std::fs::create_dir(root.join("real")).unwrap();
    std::os::unix::fs::symlink(root.join("real"), root.join("link")).unwrap();
    assert_eq!(resolved(&root.join("link")).unwrap(), root.join("real"));
    assert_eq!(resolved(&root.join("link/a/b")).unwrap(), root.join("real/a/b"));
    assert_eq!(resolved(Path::new("/")).unwrap(), Path::new("/"));
    assert!(resolved(&root.join("link/a/../b")).is_err());
}

#[test]
fn kept_entries_are_not_removed() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("dir");
    let kept = c"backups";
    for (with, expect) in [("backups/a/f", true), ("backups", false), ("store/backups/f", false)] {
        fs::create_dir_all(dir.join("store")).unwrap();
        fs::write(dir.join("store/f"), "x").unwrap();
        let path = dir.join(with);
        fs::create_dir_all(if with == "backups" { &path } else { path.parent().unwrap() }).unwrap();
        if with != "backups" {
            fs::write(&path, "x").unwrap();
        }
        let found = remove_dir_but(&dir, kept).unwrap();
        assert_eq!(found, expect.then(|| dir.canonicalize().unwrap().join("backups")), "{with}");
        assert_eq!((path.exists(), dir.exists()), (expect, expect), "{with}");
        assert!(!dir.join("store").exists());
        remove_dir(&dir).unwrap();
        assert!(!dir.exists());
    }
    assert_eq!(remove_dir_but(&dir, kept).unwrap(), None, "a missing one is fine");
}

#[test]
fn only_empty_directories_are_removed_where_others_may_have_content() {
    let root = tempfile::tempdir().unwrap();
    let (empty, full) = (root.path().join("empty"), root.path().join("full"));
    fs::create_dir(&empty).unwrap();
    fs::create_dir(&full).unwrap();
    fs::write(full.join("f"), "x").unwrap();
    for path in [&empty, &full, &full.join("f"), &root.path().join("missing/d")] {
        remove_if_empty(path).unwrap();
    }
    assert!(!empty.exists() && full.join("f").exists());
}
