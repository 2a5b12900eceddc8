//! Memory that a volume of many files takes. The only test of its process, whose peak it measures.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use agent_volume::fs_group::{FsGroupChangePolicy, apply_group};

const FILES: usize = 40_000;
/// Of each name, so that all names come to 8 MB.
const NAME_LEN: usize = 200;
const TAKEN_MAX_KIB: usize = 2048;

/// Peak resident memory of this process in KiB.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_large_directory_takes_no_memory() {
    let dir = tempfile::tempdir().unwrap();
    let name = |number: usize| format!("{number:0NAME_LEN$}");
    for number in 0..FILES {
        std::fs::write(dir.path().join(name(number)), "").unwrap();
    }
    let gid = dir.path().metadata().unwrap().gid();
    let top = std::fs::File::open(dir.path()).unwrap();
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = peak();
    apply_group(&top, gid, false, FsGroupChangePolicy::Always).unwrap();
    let taken = peak() - before;
    assert!(taken < TAKEN_MAX_KIB, "{taken} KiB");
    for number in [0, FILES / 2, FILES - 1] {
        let mode = dir.path().join(name(number)).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o660, 0o660, "file {number}");
    }
}
