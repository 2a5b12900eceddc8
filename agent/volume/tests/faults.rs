//! Projected volumes under faults: a writer killed at any point, a file system that is full.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "a test")]

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use agent_volume::mount::{self, Swap, Tmpfs};
use agent_volume::tree::{Ownership, Tree, TreeError, Written};
use agent_volume::{Payload, PayloadFile};
use rustix::fs::{CWD, Mode, OFlags};

/// Names the directory that a child process writes to.
const WRITER: &str = "AGENT_VOLUME_TEST_WRITER";

/// Files that all name the version they are of; which files there are differs from one version to the next.
fn version(number: u64) -> Payload {
    let mut payload = Payload::default();
    let text = format!("{number}\n").repeat(200);
    let mut add = |path: &str| {
        let data = text.clone().into_bytes();
        payload.insert(path, PayloadFile { data, mode: 0o644 }).unwrap();
    };
    add("always");
    add("deep/down/always");
    add(if number.is_multiple_of(2) { "even" } else { "odd/inner" });
    payload
}

fn tree(path: &Path) -> Tree {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat(CWD, path, flags, Mode::empty()).unwrap();
    Tree::new(root, Ownership::default())
}

/// The one version that a file is of.
fn read_version(path: &Path) -> u64 {
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    let first = lines.next().unwrap().to_owned();
    assert_eq!(lines.filter(|line| *line == first).count(), 199, "{}", path.display());
    first.parse().unwrap()
}

/// Not a test: what the child of the one below does.
#[test]
fn write_for_ever() {
    let Ok(directory) = std::env::var(WRITER) else { return };
    let volume = tree(Path::new(&directory));
    for number in 2.. {
        volume.write(&version(number)).unwrap();
    }
}

#[test]
fn a_killed_writer_leaves_a_whole_volume() {
    const KILLS: u64 = 60;
    let dir = tempfile::tempdir().unwrap();
    let volume = tree(dir.path());
    volume.write(&version(1)).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for kill in 0..KILLS {
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args(["write_for_ever", "--exact", "--test-threads=1"])
            .env(WRITER, dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // until it has written a number of versions, then a little longer, both differently each time
        let switch = || std::fs::read_link(dir.path().join("..data")).unwrap();
        let mut last = switch();
        for _ in 0..=kill % 8 {
            while switch() == last {
                assert!(writer.try_wait().unwrap().is_none(), "the writer has ended");
            }
            last = switch();
        }
        let moment = std::time::Instant::now() + Duration::from_micros(37 * kill);
        while std::time::Instant::now() < moment {}
        writer.kill().unwrap();
        writer.wait().unwrap();

        // readers find one whole generation, whatever was under way
        let data = std::fs::canonicalize(dir.path().join("..data")).unwrap();
        let number = read_version(&data.join("always"));
        assert_eq!(read_version(&data.join("deep/down/always")), number);
        let alternating = if number.is_multiple_of(2) { "even" } else { "odd/inner" };
        assert_eq!(read_version(&data.join(alternating)), number);
        assert_eq!(read_version(&dir.path().join("always")), number);
        seen.insert(number);

        // and the next writer puts the rest right
        volume.write(&version(0)).unwrap();
        let names = visible(dir.path());
        assert_eq!(names, ["always", "deep", "even"], "after kill {kill}");
        assert_eq!(read_version(&dir.path().join("even")), 0);
    }
    assert!(seen.len() > 3, "the kills hit at different versions: {seen:?}");
}

fn visible(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).unwrap().map(Result::unwrap);
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().into_string().unwrap())
        .filter(|name| !name.starts_with(".."))
        .collect();
    names.sort();
    names
}

#[test]
fn a_full_file_system_keeps_the_old_files() {
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        eprintln!("SKIPPED a_full_file_system_keeps_the_old_files: needs root");
        return;
    }
    // detached: on no path, so nothing is left to unmount
    let tmpfs = Tmpfs { size_bytes: Some(256 << 10), mode: 0o755, swap: Swap::Never, exec: false };
    let detached = mount::detached(tmpfs).unwrap();
    let path =
        PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&detached)));
    let volume = Tree::new(mount::top(&detached).unwrap(), Ownership::default());
    let of = |size: usize, letter: u8| {
        let mut payload = Payload::default();
        payload.insert("a", PayloadFile { data: vec![letter; size], mode: 0o644 }).unwrap();
        payload.insert("b", PayloadFile { data: vec![letter], mode: 0o644 }).unwrap();
        payload
    };
    volume.write(&of(64 << 10, b'1')).unwrap();
    for _ in 0..3 {
        let error = volume.write(&of(300 << 10, b'2')).unwrap_err();
        assert!(matches!(error, TreeError::Write { .. }), "{error}");
        assert_eq!(std::fs::read(path.join("a")).unwrap(), vec![b'1'; 64 << 10]);
        assert_eq!(std::fs::read(path.join("b")).unwrap(), b"1");
    }
    // room for two generations, not for three: ended ones make way, the one in force never
    for letter in b'3'..b'9' {
        assert_eq!(volume.write(&of(100 << 10, letter)).unwrap(), Written::Switched);
        assert_eq!(std::fs::read(path.join("b")).unwrap(), [letter]);
    }
}
