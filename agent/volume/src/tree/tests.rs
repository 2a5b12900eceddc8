use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;

/// Linger time of these tests, short so that many writes take little time.
const SHORT: Duration = Duration::from_millis(100);

fn tree(path: &Path) -> Tree {
    Tree::new(beneath::open_directory(path).unwrap(), Ownership::default()).with_linger(SHORT)
}

fn payload(files: &[(&str, &str)]) -> Payload {
    let mut payload = Payload::default();
    for (path, data) in files {
        let file = PayloadFile { data: data.as_bytes().to_vec(), mode: 0o644 };
        payload.insert(path, file).unwrap();
    }
    payload
}

/// Names in a volume; links with their targets.
fn listing(path: &Path) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(path).unwrap().map(Result::unwrap);
    entries
        .map(|entry| {
            let target = std::fs::read_link(entry.path()).unwrap_or_default();
            let name = entry.file_name().into_string().unwrap();
            (name, target.display().to_string())
        })
        .collect()
}

fn generations(path: &Path) -> usize {
    listing(path).keys().filter(|name| is_generation(name)).count()
}

#[test]
fn the_layout_is_the_kubelets() {
    let dir = tempfile::tempdir().unwrap();
    let volume = tree(dir.path());
    let files = payload(&[("key", "1"), ("sub/deep/key", "2"), ("sub/key", "3")]);
    assert_eq!(volume.write(&files).unwrap(), TreeWrite::Switched);
    let listed = listing(dir.path());
    assert_eq!(listed["key"], "..data/key");
    assert_eq!(listed["sub"], "..data/sub");
    assert!(listed.contains_key(&listed["..data"]), "{listed:?}");
    assert_eq!(listed.len(), 4);
    assert_eq!(std::fs::read_to_string(dir.path().join("sub/deep/key")).unwrap(), "2");
    let meta = std::fs::metadata(dir.path().join("sub/key")).unwrap();
    assert_eq!(meta.permissions().mode() & 0o7777, 0o644);
}

#[test]
fn an_unchanged_payload_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let volume = tree(dir.path());
    let files = payload(&[("a", "1"), ("b/c", "2")]);
    volume.write(&files).unwrap();
    let before = listing(dir.path());
    assert_eq!(volume.write(&files).unwrap(), TreeWrite::Unchanged);
    assert_eq!(listing(dir.path()), before);
    // Content, mode, one file more or less: each is a change.
    for other in [
        payload(&[("a", "x"), ("b/c", "2")]),
        payload(&[("a", "x")]),
        payload(&[("a", "x"), ("b", "2")]),
        payload(&[("a", "x"), ("b", "2"), ("d/e", "3")]),
        payload(&[]),
    ] {
        assert_eq!(volume.write(&other).unwrap(), TreeWrite::Switched, "{other:?}");
        assert_eq!(volume.write(&other).unwrap(), TreeWrite::Unchanged, "{other:?}");
        let links: Vec<_> =
            listing(dir.path()).into_keys().filter(|name| !name.starts_with("..")).collect();
        assert_eq!(links, other.top_names().collect::<Vec<_>>());
    }
    let mut other = Payload::default();
    other.insert("a", PayloadFile { data: b"1".to_vec(), mode: 0o600 }).unwrap();
    volume.write(&payload(&[("a", "1")])).unwrap();
    assert_eq!(volume.write(&other).unwrap(), TreeWrite::Switched);
}

/// Sweeps until the last switch is long enough ago.
fn sweep(volume: &Tree, path: &Path) {
    while generations(path) > 1 {
        volume.sweep().unwrap();
        std::thread::yield_now();
    }
}

#[test]
fn ended_generations_linger_and_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let volume = tree(dir.path());
    for number in 0..3 * LINGERING_MAX {
        volume.write(&payload(&[("a", &number.to_string())])).unwrap();
        assert!(generations(dir.path()) <= LINGERING_MAX + 1);
    }
    sweep(&volume, dir.path());
    let last = std::fs::read_to_string(dir.path().join("a")).unwrap();
    assert_eq!(last, (3 * LINGERING_MAX - 1).to_string());
}

#[test]
fn each_ended_generation_goes_after_its_own_time() {
    let dir = tempfile::tempdir().unwrap();
    let ages = |volume: &Tree, number: u64| {
        volume.write(&payload(&[("a", &number.to_string())])).unwrap();
        volume.current().unwrap().unwrap()
    };
    let root = beneath::open_directory(dir.path()).unwrap();
    let volume = Tree::new(root, Ownership::default()).with_linger(Duration::from_secs(1000));
    let all: Vec<String> = (0..4).map(|number| ages(&volume, number)).collect();
    assert_eq!(generations(dir.path()), 4);
    // The first two ended long ago: the writer was slow before its last switch.
    for name in &all[..2] {
        let long_ago = Timespec { tv_sec: 1_000_000, tv_nsec: 0 };
        let times = Timestamps { last_access: long_ago, last_modification: long_ago };
        rustix::fs::utimensat(rustix::fs::CWD, dir.path().join(name), &times, AtFlags::empty())
            .unwrap();
    }
    volume.sweep().unwrap();
    let left = listing(dir.path());
    assert!(all[..2].iter().all(|name| !left.contains_key(name)), "{left:?}");
    assert!(all[2..].iter().all(|name| left.contains_key(name)), "{left:?}");
    assert!(volume.remaining_linger(&all[2]).unwrap().unwrap() > Duration::from_secs(900));
}

/// A time of the kernel's last tick would be earlier than the switch, and the generation removed early by as much.
#[test]
fn the_end_of_a_generation_is_not_before_its_switch() {
    let dir = tempfile::tempdir().unwrap();
    let volume = tree(dir.path());
    volume.write(&payload(&[("a", "0")])).unwrap();
    for number in 1..50 {
        let before = volume.current().unwrap().unwrap();
        let began = std::time::SystemTime::now();
        volume.write(&payload(&[("a", &number.to_string())])).unwrap();
        let ended = std::fs::metadata(dir.path().join(before)).unwrap().modified().unwrap();
        assert!(ended >= began, "{ended:?} is before {began:?}");
    }
}

#[test]
fn a_clock_that_is_set_back_removes_nothing_early() {
    let dir = tempfile::tempdir().unwrap();
    let volume = tree(dir.path());
    volume.write(&payload(&[("a", "1")])).unwrap();
    let first = volume.current().unwrap().unwrap();
    volume.write(&payload(&[("a", "2")])).unwrap();
    let to_come = Timespec { tv_sec: i64::from(u32::MAX), tv_nsec: 0 };
    let times = Timestamps { last_access: to_come, last_modification: to_come };
    let path = dir.path().join(&first);
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, AtFlags::empty()).unwrap();
    assert_eq!(volume.remaining_linger(&first).unwrap(), Some(SHORT));
    volume.sweep().unwrap();
    assert_eq!(generations(dir.path()), 2);
}

#[test]
fn an_interrupted_update_of_a_volume_is_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let volume = tree(dir.path());
    let old = payload(&[("a", "1")]);
    let new = payload(&[("a", "2"), ("b", "3")]);
    let at = |name: &str| dir.path().join(name);
    let half_built = || {
        std::fs::create_dir(at("..9.000000001")).unwrap();
        std::fs::write(at("..9.000000001/a"), "half").unwrap();
    };
    let stale_link = || std::os::unix::fs::symlink("..9.000000001", at(DATA_NEW)).unwrap();
    let check = |what: &str| {
        assert_eq!(std::fs::read_to_string(at("a")).unwrap(), "2", "{what}");
        assert_eq!(std::fs::read_to_string(at("b")).unwrap(), "3", "{what}");
        sweep(&volume, dir.path());
        let names: Vec<_> =
            listing(dir.path()).into_keys().filter(|n| !n.starts_with("..1")).collect();
        assert_eq!(names, ["..data", "a", "b"], "{what}");
    };

    volume.write(&old).unwrap();
    half_built();
    stale_link();
    volume.write(&new).unwrap();
    check("while building and before the rename");

    std::fs::remove_file(at("b")).unwrap();
    stale_link();
    assert_eq!(volume.write(&new).unwrap(), TreeWrite::Unchanged);
    check("before the links");

    std::fs::remove_file(at("a")).unwrap();
    std::fs::create_dir(at("a")).unwrap();
    std::os::unix::fs::symlink("nowhere", at(LINK_NEW)).unwrap();
    volume.write(&new).unwrap();
    check("something else under a name of ours");

    std::fs::remove_file(at("..data")).unwrap();
    std::os::unix::fs::symlink("/etc", at("..data")).unwrap();
    volume.write(&new).unwrap();
    check("..data leads out of the volume");
}

#[test]
fn a_group_may_read_whatever_the_mode() {
    let dir = tempfile::tempdir().unwrap();
    if std::fs::metadata(dir.path()).unwrap().uid() != 0 {
        eprintln!("SKIPPED a_group_may_read_whatever_the_mode: needs root");
        return;
    }
    let root = beneath::open_directory(dir.path()).unwrap();
    let volume = Tree::new(root, Ownership { uid: Some(1000), gid: Some(2000) });
    let mut files = Payload::default();
    files.insert("d/a", PayloadFile { data: b"1".to_vec(), mode: 0o400 }).unwrap();
    volume.write(&files).unwrap();
    let meta = std::fs::metadata(dir.path().join("d/a")).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (1000, 2000, 0o440));
    let meta = std::fs::metadata(dir.path().join("d")).unwrap();
    assert_eq!((meta.gid(), meta.mode() & 0o7777), (2000, 0o2755));
    assert_eq!(volume.write(&files).unwrap(), TreeWrite::Unchanged);
}

/// Readers in tight loops during thousands of writes: each sees a whole generation, none sees nothing.
#[test]
fn readers_see_the_old_or_the_new() {
    const WRITES: u64 = 2_000;
    let dir = tempfile::tempdir().unwrap();
    let volume = tree(dir.path());
    let version = |n: u64| {
        // Two files of varying length that must agree when read from one generation.
        let text = format!("{n}:").repeat(50 + usize::try_from(n % 7).unwrap() * 40);
        payload(&[("a", &text), ("b/c", &text)])
    };
    volume.write(&version(0)).unwrap();
    let done = AtomicBool::new(false);
    let reads = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let began = std::time::Instant::now();
                    let one = match std::fs::read_to_string(dir.path().join("a")) {
                        // Stopped on its way for longer than the linger time: the generation may be gone, so this read does not count.
                        Err(_) if began.elapsed() >= SHORT => continue,
                        read => read.unwrap(),
                    };
                    let number = one.split(':').next().unwrap().to_owned();
                    assert!(one.split_terminator(':').all(|part| part == number), "{one}");
                    // A whole generation, through a directory opened once.
                    let began = std::time::Instant::now();
                    let data = match std::fs::File::open(dir.path().join("..data")) {
                        // As above.
                        Err(_) if began.elapsed() >= SHORT => continue,
                        data => data.unwrap(),
                    };
                    let below = |name: &str| {
                        rustix::fs::openat(&data, name, OFlags::RDONLY, Mode::empty())
                            .map(|fd| std::io::read_to_string(std::fs::File::from(fd)).unwrap())
                    };
                    let both = (below("a"), below("b/c"));
                    // Slower than the linger time: the generation may be gone, so this read does not count.
                    if began.elapsed() >= SHORT {
                        continue;
                    }
                    assert_eq!(both.0.unwrap(), both.1.unwrap());
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for n in 1..=WRITES {
            assert_eq!(volume.write(&version(n)).unwrap(), TreeWrite::Switched);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(reads.load(Ordering::Relaxed) > 100);
}
