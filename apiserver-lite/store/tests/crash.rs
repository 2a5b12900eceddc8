//! SIGKILL at any moment: acknowledged writes survive, revisions increase, and a watch continues without a gap. The test runs
//! itself as the killed process.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use apiserver_store::{
    Medium, OpenError, Range, Store, StoreConfig, StoreIdentity, Transform, Write, WriteCondition,
};
use bytes::Bytes;

#[path = "transform/support.rs"]
mod support;

use support::Shift;

const DIRECTORY: &str = "STORE_CRASH_DIRECTORY";
/// The number that writes; all smaller ones read. Without it values are as they are.
const SHIFT: &str = "STORE_CRASH_SHIFT";
/// How often each test kills, if the environment does not say it: `ORCH_KILLS=200 cargo test -p apiserver-store --test crash`.
const KILLS: u64 = 12;
const WRITERS: u64 = 8;
const KEYS: u64 = 50;

fn open(path: &Path, shift: Option<u8>) -> Result<Store<Bytes>, OpenError> {
    let identity = StoreIdentity { profile: "orch".into(), domain: "orch.io".into() };
    let config = StoreConfig::new(Medium::Directory(path.to_owned()), identity);
    // A segment every hundred writes, so that kills hit rotation and checkpoint too.
    let shift = shift.map(|newest| Shift::new(&(1..=newest).rev().collect::<Vec<_>>()));
    let transform = shift.map(|shift| Arc::new(shift) as Arc<dyn Transform>);
    Store::open(StoreConfig { segment_len_max: 8 << 10, transform, ..config })
}

/// The killed process: writes and prints what was acknowledged and what its watch delivered.
#[test]
fn victim() {
    let Some(path) = std::env::var_os(DIRECTORY) else { return };
    let shift = std::env::var(SHIFT).ok().map(|number| number.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let store = open(Path::new(&path), shift).unwrap();
        // On one processor the harness has begun a line with the name of the test: the first acknowledgement would be lost in it.
        say("");
        let mut watch = store.watch("", store.revision()).unwrap();
        for writer in 0..WRITERS {
            let store = store.clone();
            tokio::spawn(async move {
                for nth in 0.. {
                    let kind = if u64::is_multiple_of(nth, 2) { "secrets" } else { "pods" };
                    let key = format!("{writer}/{kind}/{}", nth % KEYS);
                    let delete = nth % 7 == 6;
                    let draft = Bytes::from(format!("{key}={nth}"));
                    let write = if delete {
                        Write::Delete { key: key.clone(), expect: WriteCondition::Anything }
                    } else {
                        Write::Put { key: key.clone(), expect: WriteCondition::Anything, draft }
                    };
                    // Deleting a missing key is refused and changes nothing.
                    let Ok(done) = store.write(write).await else { continue };
                    let value = if delete { "-".to_owned() } else { format!("{key}={nth}") };
                    say(&format!("ack {} {key} {value}", done.revision));
                }
            });
        }
        let mut events = Vec::new();
        while watch.next_batch(&mut events).await.is_ok() {
            for event in events.drain(..) {
                say(&format!("event {}", event.stamp.modified));
            }
        }
    });
}

/// One line in one write, so that a kill cannot mix lines.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(format!("{line}\n").as_bytes());
}

/// What the victims said.
#[derive(Default)]
struct VictimLog {
    /// The last acknowledged write of each key.
    acknowledged: BTreeMap<String, (u64, String)>,
    revision: u64,
}

#[test]
fn nothing_acknowledged_is_lost() {
    kill_again_and_again(|_| None);
}

/// With another key at every start, as if each one were a rotation.
#[test]
fn nothing_acknowledged_is_lost_of_transformed_values() {
    let directory = kill_again_and_again(|round| u8::try_from(round + 1).ok());
    let mut transformed = 0;
    for entry in std::fs::read_dir(directory.path()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        let count = |what: &[u8]| bytes.windows(what.len()).filter(|part| *part == what).count();
        // Keys are in clear text, values begin with their key. What follows a removed key is a number of the log, whose lowest byte may
        // be `=`: two digits after it are a value's.
        for key in (0..KEYS).map(|nth| format!("secrets/{nth}=")) {
            let in_clear = bytes.windows(key.len() + 2).any(|part| {
                let (start, digits) = part.split_at(key.len());
                start == key.as_bytes() && digits.iter().all(u8::is_ascii_digit)
            });
            assert!(!in_clear, "{key}");
        }
        transformed += count(b"shifted:");
    }
    assert!(transformed > 10, "{transformed}");
}

fn kill_again_and_again(shift: impl Fn(u64) -> Option<u8>) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let mut said = VictimLog::default();
    let kills = std::env::var("ORCH_KILLS").map_or(KILLS, |count| count.parse().unwrap());
    for round in 0..kills {
        // Deterministic, so that failures can be repeated; covers start, rotation and checkpoint.
        let shift = shift(round);
        run_victim(directory.path(), shift, 20 + (round * 7919) % 3000, &mut said);
        check(directory.path(), shift, &mut said);
    }
    assert!(said.revision > 1000, "the victims hardly wrote: {}", said.revision);
    directory
}

/// Runs one process until it has printed `lines` lines, and kills it.
fn run_victim(path: &Path, shift: Option<u8>, lines: u64, said: &mut VictimLog) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    if let Some(number) = shift {
        command.env(SHIFT, number.to_string());
    }
    let mut victim = command
        .args(["--exact", "victim", "--nocapture"])
        .env(DIRECTORY, path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut seen = None;
    let mut left = lines;
    for line in BufReader::new(victim.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["ack", revision, key, value] => {
                let revision = revision.parse().unwrap();
                said.revision = said.revision.max(revision);
                let last = said.acknowledged.entry(key.to_owned()).or_default();
                if revision > last.0 {
                    *last = (revision, value.to_owned());
                }
            }
            ["event", revision] => {
                let revision: u64 = revision.parse().unwrap();
                assert!(seen.is_none_or(|seen| revision == seen + 1), "{seen:?} then {revision}");
                seen = Some(revision);
            }
            _ => continue,
        }
        left = left.saturating_sub(1);
        if left == 0 {
            victim.kill().unwrap();
        }
    }
    victim.wait().unwrap();
    assert_eq!(left, 0, "the victim ended on its own");
}

/// Compares the store with the acknowledged writes, and takes its content for the next round. A writer prints each write before it
/// starts the next, so at most one of its keys is ahead.
fn check(path: &Path, shift: Option<u8>, said: &mut VictimLog) {
    let store = open(path, shift).unwrap();
    assert!(store.revision().0 >= said.revision);
    let snapshot = store.snapshot();
    let mut ahead = BTreeMap::<String, u32>::new();
    for (key, (revision, value)) in &mut said.acknowledged {
        let (found, holds) = match snapshot.get(key).unwrap() {
            Some(entry) => {
                let holds = String::from_utf8(entry.record.to_vec()).unwrap();
                (entry.stamp.modified.0, holds)
            }
            None => (*revision, "-".to_owned()),
        };
        assert!(found >= *revision, "{key} went back");
        if holds != *value {
            let writer = key.split('/').next().unwrap_or_default().to_owned();
            *ahead.entry(writer).or_default() += 1;
            (*revision, *value) = (found, holds);
        }
    }
    assert!(ahead.values().all(|keys| *keys == 1), "acknowledged writes are lost: {ahead:?}");
    let page = snapshot.range(Range::default()).unwrap();
    assert!(page.entries.iter().all(|entry| entry.stamp.modified <= store.revision()));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(store.close());
}
