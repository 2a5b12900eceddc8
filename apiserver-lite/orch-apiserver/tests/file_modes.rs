//! The process started with umask 000: all files it writes are private to its user.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

/// Runs the process until it has written its kubeconfig, the last step before it serves.
fn start(directory: &Path, kubeconfig: &Path) -> Child {
    let mut program = Command::new("sh");
    program.args(["-c", "umask 000; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_orch-apiserver")]);
    program.args(["--bind-address=127.0.0.1", "--secure-port=0"]);
    program.arg(format!("--data-dir={}", directory.display()));
    program.arg(format!("--write-kubeconfig={}", kubeconfig.display()));
    let mut child = program.stdout(Stdio::null()).spawn().unwrap();
    while !kubeconfig.exists() {
        assert!(child.try_wait().unwrap().is_none(), "the program ended");
        std::thread::sleep(Duration::from_millis(20));
    }
    child
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn below(directory: &Path, found: &mut Vec<(PathBuf, u32)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let metadata = fs::symlink_metadata(&path).unwrap();
        found.push((path.clone(), metadata.mode() & 0o7777));
        if metadata.is_dir() {
            below(&path, found);
        }
    }
}

#[test]
fn files_are_the_owners_alone() {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("made/data");
    let kubeconfig = root.path().join("admin.conf");
    end(start(&data, &kubeconfig));
    let look = || {
        let mut found = Vec::new();
        below(root.path(), &mut found);
        for (path, mode) in &found {
            let expected = if path.is_dir() { 0o700 } else { 0o600 };
            assert_eq!(*mode, expected, "{} has mode {mode:04o}", path.display());
        }
        found
    };
    let found = look();
    for name in ["records.redb", "acknowledged", "ca.key", "sa.key", "admin.conf", "store"] {
        assert!(found.iter().any(|(path, _)| path.ends_with(name)), "{name}: {found:?}");
    }
    assert!(found.iter().any(|(path, _)| path.to_string_lossy().contains("/log.0000")));
    // Files that an older version left open; the parent directory may be shared.
    for (path, _) in &found {
        let mode = if path.is_dir() { 0o755 } else { 0o644 };
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    for shared in [&data, &root.path().join("made")] {
        fs::set_permissions(shared, fs::Permissions::from_mode(0o700)).unwrap();
    }
    fs::remove_file(&kubeconfig).unwrap();
    end(start(&data, &kubeconfig));
    look();
}
