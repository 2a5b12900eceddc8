//! Modes under any umask, owners, and remainders of interrupted writes.

use std::{os::unix::fs::symlink, process::Command, time::SystemTime};

use super::*;

/// Set for the process that runs with umask 000.
const UNDER_UMASK: &str = "PRIVATE_FILES_UNDER_UMASK";

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// The umask belongs to the whole process, so the test runs in another one.
#[test]
fn private_whatever_the_umask() {
    let Some(root) = std::env::var_os(UNDER_UMASK).map(PathBuf::from) else {
        let root = tempfile::tempdir().unwrap();
        let mut child = Command::new("sh");
        child.args(["-c", "umask 000; exec \"$0\" \"$@\""]);
        child.arg(std::env::current_exe().unwrap());
        child.args(["--exact", "private_files::tests::private_whatever_the_umask"]);
        let status = child.env(UNDER_UMASK, root.path()).status().unwrap();
        assert!(status.success());
        assert!(root.path().join("done").exists(), "the process looked at nothing");
        return;
    };
    let deep = root.join("a/b");
    create_private_dir(&deep).unwrap();
    let trusted = root.join("c/d");
    create_trusted_dir(&trusted).unwrap();
    drop(create_private(&deep.join("made")).unwrap());
    drop(open_shared(&deep.join("for-all"), 0o666).unwrap());
    let missing = root.join("e/f");
    create_missing_dir(&missing).unwrap();
    write_private_atomically(&deep.join("written"), b"1").unwrap();
    write_atomically(&deep.join("shown"), b"1", 0o644).unwrap();
    for directory in [&deep, &root.join("a"), &trusted, &root.join("c"), &missing] {
        assert_eq!(mode(directory), 0o700, "{}", directory.display());
    }
    for (name, expected) in
        [("made", 0o600), ("written", 0o600), ("shown", 0o644), ("for-all", 0o666)]
    {
        assert_eq!(mode(&deep.join(name)), expected, "{name}");
    }
    fs::write(root.join("done"), "").unwrap();
}

#[test]
fn an_existing_directory_is_made_private() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("d");
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
    create_trusted_dir(&directory).unwrap();
    assert_eq!(mode(&directory), 0o755);
    create_private_dir(&directory).unwrap();
    assert_eq!(mode(&directory), 0o700);
    let file = directory.join("f");
    fs::write(&file, "x").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    make_private(&file).unwrap();
    assert_eq!(mode(&file), 0o600);
    make_private(&directory.join("none")).unwrap();
    assert_eq!(open_private(&directory, &mut OpenOptions::new()).unwrap_err().kind(), {
        ErrorKind::InvalidInput
    });
}

#[test]
fn shared_directories_are_refused() {
    let root = tempfile::tempdir().unwrap();
    fs::set_permissions(root.path(), Permissions::from_mode(0o1777)).unwrap();
    assert_eq!(create_private_dir(root.path()).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(mode(root.path()), 0o1777);
    create_trusted_dir(root.path()).unwrap();
    fs::set_permissions(root.path(), Permissions::from_mode(0o777)).unwrap();
    let refused = create_trusted_dir(root.path()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    assert!(refused.to_string().contains("0777"), "{refused}");
}

#[test]
fn foreign_owners_are_refused() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED foreign_owners_are_refused: needs root to give files away");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let theirs = root.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    std::os::unix::fs::chown(&theirs, Some(4711), None).unwrap();
    for made in [create_private_dir(&theirs), create_trusted_dir(&theirs)] {
        let refused = made.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
        assert!(refused.to_string().contains("user 4711"), "{refused}");
    }
    // Their link to a directory of ours.
    let ours = root.path().join("ours");
    fs::create_dir(&ours).unwrap();
    fs::set_permissions(&ours, Permissions::from_mode(0o755)).unwrap();
    let link = root.path().join("link");
    symlink(&ours, &link).unwrap();
    create_trusted_dir(&link).unwrap();
    std::os::unix::fs::lchown(&link, Some(4711), None).unwrap();
    assert_eq!(create_private_dir(&link).unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(mode(&ours), 0o755);
    let file = ours.join("file");
    fs::write(&file, "x").unwrap();
    std::os::unix::fs::chown(&file, Some(4711), None).unwrap();
    assert_eq!(make_private(&file).unwrap_err().kind(), ErrorKind::PermissionDenied);
}

#[test]
fn a_name_that_is_taken_is_not_followed() {
    let root = tempfile::tempdir().unwrap();
    let target = root.path().join("target");
    fs::write(&target, "as it was").unwrap();
    let link = root.path().join("link");
    symlink(&target, &link).unwrap();
    assert_eq!(create_private(&link).unwrap_err().kind(), ErrorKind::AlreadyExists);
    write_private_atomically(&link, b"new").unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_file());
    assert_eq!(fs::read(&target).unwrap(), b"as it was");
    assert_eq!(fs::read(&link).unwrap(), b"new");
}

#[test]
fn unfinished_files_go_when_they_are_old() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("key");
    let old = unfinished_path(&path);
    let fresh = unfinished_path(&path);
    let other = root.path().join(".key.backup.new");
    for path in [&old, &fresh, &other] {
        fs::write(path, "half").unwrap();
    }
    let past = SystemTime::now() - LEFT_AFTER - Duration::from_secs(60);
    for path in [&old, &other] {
        File::options().write(true).open(path).unwrap().set_modified(past).unwrap();
    }
    write_private_atomically(&path, b"whole").unwrap();
    assert!(!old.exists() && fresh.exists() && other.exists());
    // A directory cannot be replaced by a file; the unfinished file is removed.
    let taken = root.path().join("taken");
    fs::create_dir(&taken).unwrap();
    let before = fs::read_dir(root.path()).unwrap().count();
    assert!(write_private_atomically(&taken, b"x").is_err());
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), before);
}

#[test]
fn a_file_is_removed_with_its_unfinished_copy() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("record");
    remove_private(&path).unwrap();
    write_private_atomically(&path, b"1").unwrap();
    drop(create_private(&unfinished_path(&path)).unwrap());
    fs::write(root.path().join("recorded"), "").unwrap();
    remove_private(&path).unwrap();
    let left: Vec<_> = fs::read_dir(root.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["recorded"]);
}

#[test]
fn a_directory_for_others_stays_theirs() {
    let root = tempfile::tempdir().unwrap();
    fs::set_permissions(root.path(), Permissions::from_mode(0o755)).unwrap();
    create_missing_dir(root.path()).unwrap();
    assert_eq!(mode(root.path()), 0o755);
}

#[test]
fn shared_files_keep_their_inode_and_links_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("hosts");
    let mut made = open_shared(&path, 0o644).unwrap();
    made.write_all(b"1").unwrap();
    let again = open_shared(&path, 0o666).unwrap();
    assert_eq!(again.metadata().unwrap().ino(), made.metadata().unwrap().ino());
    assert_eq!((again.metadata().unwrap().len(), mode(&path)), (1, 0o666));
    let link = root.path().join("link");
    symlink(&path, &link).unwrap();
    open_shared(&link, 0o600).unwrap_err();
    assert_eq!(mode(&path), 0o666);
    let fifo = root.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).unwrap();
    assert_eq!(open_shared(&fifo, 0o600).unwrap_err().kind(), ErrorKind::InvalidInput);
}
