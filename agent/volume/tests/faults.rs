//! Projected volumes under faults: a writer killed at any point, and a full file system.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "a test")]

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use agent_volume::mount::{self, Swap, Tmpfs};
use agent_volume::tree::{Ownership, Tree, TreeError, TreeWrite};
use agent_volume::{Payload, PayloadFile};
use rustix::fs::{CWD, Mode, OFlags};

/// Linger time of these tests, short so that many writes take less time.
const LINGER: Duration = Duration::from_millis(250);

/// Names the directory that the child process writes to.
const WRITER: &str = "AGENT_VOLUME_TEST_WRITER";

/// Files that contain their version; the set of files differs between versions.
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
    Tree::new(root, Ownership::default()).with_linger(LINGER)
}

/// The version in a file.
fn read_version(path: &Path) -> u64 {
    parse_version(&std::fs::read_to_string(path).unwrap(), path)
}

fn parse_version(text: &str, path: &Path) -> u64 {
    let mut lines = text.lines();
    let first = lines.next().unwrap().to_owned();
    assert_eq!(lines.filter(|line| *line == first).count(), 199, "{}", path.display());
    first.parse().unwrap()
}

/// Not a test: the child process of the tests below. A full disk does not stop the writer.
#[test]
fn write_for_ever() {
    let Ok(directory) = std::env::var(WRITER) else { return };
    let volume = tree(Path::new(&directory));
    for number in 2.. {
        let written = volume.write(&version(number));
        let full = matches!(&written, Err(TreeError::Write { source, .. }) if *source == rustix::io::Errno::NOSPC);
        assert!(written.is_ok() || full, "{written:?}");
    }
}

fn spawn_writer(directory: &Path) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["write_for_ever", "--exact", "--test-threads=1"])
        .env(WRITER, directory)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// A small in-memory file system, unmounted at the end of the test.
struct Small(tempfile::TempDir);

impl Small {
    fn new(bytes: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tmpfs = Tmpfs { size_bytes: Some(bytes), mode: 0o755, swap: Swap::Never, exec: false };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = rustix::fs::openat(CWD, dir.path(), flags, Mode::empty()).unwrap();
        mount::attach(mount::detached(tmpfs).unwrap(), top).unwrap();
        Self(dir)
    }

    fn fill(&self) -> PathBuf {
        use std::io::Write as _;
        let ballast = self.0.path().join("ballast");
        let mut file = std::fs::File::create(&ballast).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
        ballast
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

/// What a reader in a tight loop has seen.
#[derive(Default)]
struct Seen {
    reads: std::sync::atomic::AtomicU64,
    wholes: std::sync::atomic::AtomicU64,
    switches: std::sync::atomic::AtomicU64,
    last: std::sync::atomic::AtomicU64,
    stop: std::sync::atomic::AtomicBool,
}

/// Reads in a tight loop: one file by its plain path, which always has to exist, and all files of one generation, which have to
/// be of one version. A read slower than the linger time may find its generation gone and does not count.
fn read_for_ever(volume: &Path, seen: &Seen) {
    use std::sync::atomic::Ordering::Relaxed;
    while !seen.stop.load(Relaxed) {
        let always = volume.join("always");
        let began = std::time::Instant::now();
        let text = std::fs::read_to_string(&always);
        if text.is_err() && began.elapsed() >= LINGER {
            continue;
        }
        let number = parse_version(&text.unwrap(), &always);
        seen.reads.fetch_add(1, Relaxed);
        if seen.last.swap(number, Relaxed) != number {
            seen.switches.fetch_add(1, Relaxed);
        }
        let began = std::time::Instant::now();
        let generation = volume.join(std::fs::read_link(volume.join("..data")).unwrap());
        let texts = ["always", "deep/down/always"].map(|name| std::fs::read(generation.join(name)));
        let others = ["even", "odd/inner"].map(|name| generation.join(name).exists());
        if began.elapsed() >= LINGER {
            continue;
        }
        let texts = texts.map(Result::unwrap);
        assert_eq!(texts[0], texts[1], "a mix of versions");
        let number: u64 =
            std::str::from_utf8(&texts[0]).unwrap().lines().next().unwrap().parse().unwrap();
        assert_eq!(others, [number.is_multiple_of(2), !number.is_multiple_of(2)], "of {number}");
        seen.wholes.fetch_add(1, Relaxed);
    }
}

/// `AGENT_VOLUME_UPDATES` sets the number of versions that the reader has to see; the rest is bounded by it.
#[test]
fn a_reader_in_a_tight_loop_sees_whole_versions_only() {
    use std::sync::atomic::Ordering::Relaxed;
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        eprintln!("SKIPPED a_reader_in_a_tight_loop_sees_whole_versions_only: needs root");
        return;
    }
    let updates: u64 =
        std::env::var("AGENT_VOLUME_UPDATES").ok().and_then(|n| n.parse().ok()).unwrap_or(150);
    let small = Small::new(4 << 20);
    let volume = small.0.path().join("v");
    std::fs::create_dir(&volume).unwrap();
    tree(&volume).write(&version(1)).unwrap();
    let seen = std::sync::Arc::new(Seen::default());
    let reader = {
        let (seen, volume) = (seen.clone(), volume.clone());
        std::thread::spawn(move || read_for_ever(&volume, &seen))
    };
    let mut kills = 0_u64;
    while seen.switches.load(Relaxed) < updates && !reader.is_finished() {
        let before = seen.switches.load(Relaxed);
        let mut writer = spawn_writer(&volume);
        // Somewhere in the middle of a write, each time elsewhere.
        while seen.switches.load(Relaxed) < before + 7 + kills % 13 && !reader.is_finished() {
            assert!(writer.try_wait().unwrap().is_none(), "the writer has ended");
        }
        if kills.is_multiple_of(5) {
            // No space at all for a while.
            let ballast = small.fill();
            let reads = seen.reads.load(Relaxed);
            while seen.reads.load(Relaxed) < reads + 200 && !reader.is_finished() {
                std::thread::yield_now();
            }
            std::fs::remove_file(ballast).unwrap();
        }
        writer.kill().unwrap();
        writer.wait().unwrap();
        kills += 1;
    }
    // In the end the last version written is read.
    let last = tree(&volume);
    last.write(&version(1_000_000)).unwrap();
    while seen.last.load(Relaxed) != 1_000_000 && !reader.is_finished() {
        std::thread::yield_now();
    }
    seen.stop.store(true, Relaxed);
    reader.join().unwrap();
    assert!(seen.wholes.load(Relaxed) > updates, "whole generations were read");
    eprintln!(
        "{} switches seen in {} reads, {kills} kills",
        seen.switches.load(Relaxed),
        seen.reads.load(Relaxed)
    );
}

#[test]
fn a_killed_writer_leaves_a_whole_volume() {
    const KILLS: u64 = 60;
    let dir = tempfile::tempdir().unwrap();
    let volume = tree(dir.path());
    volume.write(&version(1)).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for kill in 0..KILLS {
        let mut writer = spawn_writer(dir.path());
        // Until it has written a number of versions, then a little longer; both differ each time.
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

        // Readers find one whole generation, whatever was in progress.
        let data = std::fs::canonicalize(dir.path().join("..data")).unwrap();
        let number = read_version(&data.join("always"));
        assert_eq!(read_version(&data.join("deep/down/always")), number);
        let alternating = if number.is_multiple_of(2) { "even" } else { "odd/inner" };
        assert_eq!(read_version(&data.join(alternating)), number);
        assert_eq!(read_version(&dir.path().join("always")), number);
        seen.insert(number);

        // The next writer repairs the rest.
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
    // Detached: it has no path, so there is nothing to unmount.
    let tmpfs = Tmpfs { size_bytes: Some(256 << 10), mode: 0o755, swap: Swap::Never, exec: false };
    let detached = mount::detached(tmpfs).unwrap();
    let path =
        PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&detached)));
    let volume =
        Tree::new(mount::top(&detached).unwrap(), Ownership::default()).with_linger(LINGER);
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
    // Space for two generations, not for three: previous ones are removed, never the current one.
    for letter in b'3'..b'9' {
        assert_eq!(volume.write(&of(100 << 10, letter)).unwrap(), TreeWrite::Switched);
        assert_eq!(std::fs::read(path.join("b")).unwrap(), [letter]);
    }
}
