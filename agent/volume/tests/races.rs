//! An attacker who owns a volume swaps its names while the agent bind-mounts parts of it: nothing outside is reached, created or
//! changed.
//!
//! `AGENT_VOLUME_RACE_SECS` sets the duration of each case; otherwise the number of attempts is bounded.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "a test")]

use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use agent_volume::VolumesOnDisk;
use agent_volume::fs_group::FsGroupChangePolicy;
use agent_volume::host_path;
use agent_volume::sources::HostPathKind;
use agent_volume::sub_path::SubPath;
use proto_api::names::{Names, Profile};
use rustix::fs::{CWD, RenameFlags};

const ATTEMPTS: u64 = 3000;
/// Attempts after which a race that never occurred counts as failed.
const ATTEMPTS_MAX: u64 = 10_000_000;

/// A race that runs for a number of attempts, or for the configured time.
struct Race {
    until: Option<Instant>,
    attempts: u64,
}

impl Race {
    fn new() -> Self {
        let secs = std::env::var("AGENT_VOLUME_RACE_SECS").ok().and_then(|s| s.parse().ok());
        let until = secs.map(|secs| Instant::now() + Duration::from_secs(secs));
        Self { until, attempts: 0 }
    }

    /// `met`: whether both sides have won at least once; otherwise there was no race.
    fn goes_on(&mut self, met: bool) -> bool {
        self.attempts += 1;
        match self.until {
            Some(until) => Instant::now() < until,
            None => self.attempts <= if met { ATTEMPTS } else { ATTEMPTS_MAX },
        }
    }
}

/// Swaps two names in a directory as fast as it can.
struct Attacker {
    stop: Arc<AtomicBool>,
    swaps: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Attacker {
    fn swapping(one: PathBuf, other: PathBuf) -> Self {
        let (stop, swaps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (told, counted) = (stop.clone(), swaps.clone());
        let thread = std::thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                let swap = rustix::fs::renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE);
                if swap.is_ok() {
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Self { stop, swaps, thread: Some(thread) }
    }

    fn swaps(&self) -> u64 {
        self.swaps.load(Ordering::Relaxed)
    }

    fn stop(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        self.swaps()
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The attacker's volume, a directory outside, and the agent's directory; `None` without permission to mount.
struct Ground {
    volume: tempfile::TempDir,
    outside: tempfile::TempDir,
    agent: tempfile::TempDir,
    pods: VolumesOnDisk,
}

impl Ground {
    fn new(test: &str) -> Option<Self> {
        let [volume, outside, agent] = [(); 3].map(|()| tempfile::tempdir().unwrap());
        if volume.path().metadata().unwrap().uid() != 0 {
            eprintln!("SKIPPED {test}: needs root");
            return None;
        }
        std::fs::create_dir_all(agent.path().join("pods/u")).unwrap();
        std::fs::write(outside.path().join("file"), "secret").unwrap();
        let pods = VolumesOnDisk::new(agent.path(), Names::new(Profile::Kubernetes));
        Some(Self { volume, outside, agent, pods })
    }

    fn part(&self, path: &str) -> Option<PathBuf> {
        let root = self.volume.path();
        let part = SubPath {
            volume: "v",
            root,
            container: "c",
            index: 0,
            path,
            on_node: None,
            all_read_only: None,
            follows: false,
        };
        self.pods.sub_path("u", &part).ok()
    }

    /// Checks that the outside is unchanged.
    fn check_outside(&self) {
        let names: Vec<_> = std::fs::read_dir(self.outside.path()).unwrap().collect();
        assert_eq!(names.len(), 1, "something was made outside: {names:?}");
        let stat = self.outside.path().join("file").metadata().unwrap();
        assert_eq!((stat.gid(), stat.mode() & 0o7777), (0, 0o644), "something outside was changed");
        assert_eq!(self.outside.path().metadata().unwrap().gid(), 0);
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        // Also after a failure: no mount may be left in a directory that is removed next.
        let _ = self.pods.tear_down("u");
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let agent = self.agent.path().to_str().unwrap().to_owned();
        assert!(std::thread::panicking() || !table.contains(&agent), "a mount is left");
    }
}

fn identity(path: &Path) -> (u64, u64) {
    let stat = path.metadata().unwrap();
    (stat.dev(), stat.ino())
}

#[test]
fn a_directory_that_becomes_a_link_leads_nowhere() {
    let Some(ground) = Ground::new("a_directory_that_becomes_a_link_leads_nowhere") else { return };
    let at = |name: &str| ground.volume.path().join(name);
    std::fs::create_dir(at("sub")).unwrap();
    std::fs::write(at("sub/file"), "mine").unwrap();
    symlink(ground.outside.path(), at("link")).unwrap();
    let outside = [identity(ground.outside.path()), identity(&ground.outside.path().join("file"))];
    let attacker = Attacker::swapping(at("sub"), at("link"));
    let (mut bound, mut refused) = (0_u64, 0_u64);
    let mut race = Race::new();
    while race.goes_on(bound > 0 && refused > 0 && attacker.swaps() > 100) {
        let path = ["sub", "sub/file", "sub/new/dir", "link/file"][(race.attempts % 4) as usize];
        match ground.part(path) {
            Some(at) => {
                assert!(!outside.contains(&identity(&at)), "{path} leads out of the volume");
                bound += 1;
            }
            None => refused += 1,
        }
    }
    let swaps = attacker.stop();
    ground.check_outside();
    assert!(bound > 0 && refused > 0 && swaps > 100, "no race: {bound}, {refused}, {swaps}");
}

#[test]
fn fs_group_changes_stay_within_the_volume() {
    let Some(ground) = Ground::new("fs_group_changes_stay_within_the_volume") else { return };
    let at = |name: &str| ground.volume.path().join(name);
    std::fs::create_dir(at("sub")).unwrap();
    std::fs::write(at("sub/file"), "mine").unwrap();
    symlink(ground.outside.path(), at("link")).unwrap();
    let attacker = Attacker::swapping(at("sub"), at("link"));
    let mut race = Race::new();
    let mut given = 0;
    while race.goes_on(given > 0 && attacker.swaps() > 100) {
        // A different group each time, so that there is something to change.
        let gid = 100 + u32::try_from(race.attempts % 7).unwrap();
        // A name that disappears meanwhile is an error, which the agent retries.
        given += u32::from(
            ground
                .pods
                .apply_fs_group(ground.volume.path(), gid, false, FsGroupChangePolicy::Always)
                .is_ok(),
        );
    }
    let swaps = attacker.stop();
    ground.check_outside();
    assert!(given > 0 && swaps > 100, "no race: {given}, {swaps}");
}

#[test]
fn removal_reaches_nothing_outside() {
    let Some(ground) = Ground::new("removal_reaches_nothing_outside") else { return };
    let mut race = Race::new();
    let mut swaps = 0;
    race.attempts = ATTEMPTS - ATTEMPTS / 20; // each attempt has a race of its own
    while race.goes_on(swaps > 0) {
        let plugin = ground.agent.path().join("pods/u/volumes/kubernetes.io~empty-dir/v");
        std::fs::create_dir_all(plugin.join("a/sub")).unwrap();
        for n in 0..50 {
            std::fs::write(plugin.join(format!("a/sub/{n}")), "").unwrap();
        }
        symlink(ground.outside.path(), plugin.join("a/link")).unwrap();
        let attacker = Attacker::swapping(plugin.join("a/sub"), plugin.join("a/link"));
        let removed = ground.pods.tear_down("u");
        swaps += attacker.stop();
        if removed.is_err() {
            ground.pods.tear_down("u").unwrap();
        }
        ground.check_outside();
    }
    assert!(swaps > 0, "no race");
}

#[test]
fn a_checked_path_of_the_node_is_the_path_that_is_given() {
    let Some(ground) = Ground::new("a_checked_path_of_the_node") else { return };
    let at = |name: &str| ground.volume.path().join(name);
    std::fs::create_dir(at("sub")).unwrap();
    std::fs::write(at("file"), "").unwrap();
    let attacker = Attacker::swapping(at("sub"), at("file"));
    let mut race = Race::new();
    let path = at("sub");
    let (mut directories, mut others) = (0_u64, 0_u64);
    while race.goes_on(directories > 0 && others > 0) {
        match host_path::open(path.to_str().unwrap(), HostPathKind::Directory) {
            Ok(opened) => {
                let kind = rustix::fs::FileType::from_raw_mode(
                    rustix::fs::fstat(&opened).unwrap().st_mode,
                );
                assert_eq!(
                    kind,
                    rustix::fs::FileType::Directory,
                    "the check was of something else"
                );
                directories += 1;
            }
            Err(_) => others += 1,
        }
    }
    attacker.stop();
    assert!(directories > 0 && others > 0, "no race: {directories}, {others}");
}

/// An attacker with write access to the directory of a projected volume swaps the `..data` link: the agent reads, writes and
/// removes nothing at its target.
#[test]
fn links_of_a_projected_volume_lead_nowhere() {
    use std::io::Read as _;

    use agent_volume::tree::{Ownership, Tree};
    use agent_volume::{Payload, PayloadFile};
    let Some(ground) = Ground::new("links_of_a_projected_volume_lead_nowhere") else { return };
    let (volume, outside) = (ground.volume.path().to_owned(), ground.outside.path().to_owned());
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
    let root = rustix::fs::openat(CWD, &volume, flags, rustix::fs::Mode::empty()).unwrap();
    let tree = Tree::new(root, Ownership::default()).with_linger(Duration::from_millis(20));
    let (stop, swaps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let attacker = {
        let (stop, swaps, volume) = (stop.clone(), swaps.clone(), volume.clone());
        std::thread::spawn(move || {
            let (evil, data) = (volume.join("..evil"), volume.join("..data"));
            while !stop.load(Ordering::Relaxed) {
                let _ = symlink(&outside, &evil); // it may be there
                let flags = RenameFlags::EXCHANGE;
                if rustix::fs::renameat_with(CWD, &evil, CWD, &data, flags).is_ok() {
                    swaps.fetch_add(1, Ordering::Relaxed);
                }
            }
        })
    };
    let mut race = Race::new();
    let (mut written, mut read) = (0_u64, 0_u64);
    race.attempts = ATTEMPTS - ATTEMPTS / 10; // each writes files and lets generations linger
    while race.goes_on(written > 0 && read > 0 && swaps.load(Ordering::Relaxed) > 100) {
        let mut payload = Payload::default();
        let data = format!("mine {}", race.attempts).into_bytes();
        payload.insert("file", PayloadFile { data, mode: 0o644 }).unwrap();
        // A write that meets a swap is an error, which the agent retries.
        written += u64::from(tree.write(&payload).is_ok());
        if let Ok(Some(mut file)) = tree.open("file") {
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            assert!(text.starts_with("mine"), "read from outside: {text}");
            read += 1;
        }
        ground.check_outside();
    }
    stop.store(true, Ordering::Relaxed);
    attacker.join().unwrap();
    let swaps = swaps.load(Ordering::Relaxed);
    assert!(written > 0 && read > 0 && swaps > 100, "no race: {written}, {read}, {swaps}");
    eprintln!("{} attempts, {written} written, {read} read, {swaps} swaps", race.attempts);
}
