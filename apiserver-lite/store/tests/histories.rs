//! Concurrent histories of the store on disk, judged as those of etcd are: what clients did with each key can be put in an order in which every answer is
//! true. Segments of the log are short, so that rotation and the checkpoint go on meanwhile. One test kills the process that serves the clients; it runs
//! itself as the killed process.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use apiserver_store::{
    Entry, Medium, Range, Store, StoreConfig, StoreIdentity, Write, WriteCondition, WriteError,
};
use bytes::Bytes;
use tokio::sync::Barrier;

#[path = "histories/order.rs"]
mod order;

use order::{Did, Operation, find_order};

const CLIENTS: u64 = 8;
const KEYS: u64 = 3;
/// Operations after which a client waits for the others, so that only so many are under way together as the judge bears, however busy the machine is.
const STRIDE: u64 = 8;
const DIRECTORY: &str = "STORE_HISTORIES_DIRECTORY";
/// The first number of the process, which none before it has written.
const FIRST: &str = "STORE_HISTORIES_FIRST";

fn open(path: &Path) -> Store<Bytes> {
    let identity = StoreIdentity { profile: "orch".into(), domain: "orch.io".into() };
    let config = StoreConfig::new(Medium::Directory(path.to_owned()), identity);
    Store::open(StoreConfig { segment_len_max: 2 << 10, ..config }).unwrap()
}

/// What a client wants of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Read,
    /// The number, whatever is there.
    Write(u64),
    /// The number, in the place of what was read before.
    Swap(u64),
    Delete,
}

impl Request {
    /// Of the `nth` operation of a client. No client has written `number`.
    fn nth(nth: u64, number: u64, deletes: bool) -> Self {
        match nth % 5 {
            0 => Self::Write(number),
            1 | 3 => Self::Swap(number),
            2 if deletes => Self::Delete,
            _ => Self::Read,
        }
    }
}

fn number(text: &Bytes) -> u64 {
    std::str::from_utf8(text).unwrap().parse().unwrap()
}

/// One of the ways to read: all show what was written last.
fn find(store: &Store<Bytes>, nth: u64, key: &str) -> Option<Entry<Bytes>> {
    let range = Range { prefix: key, ..Range::default() };
    match nth % 3 {
        0 => store.current(key),
        1 => store.snapshot().get(key).unwrap(),
        _ => store.current_range(range).entries.into_iter().next(),
    }
}

/// Runs one operation. `began` and `read` are reported as soon as they are known: there may never be an answer.
async fn do_one(
    store: &Store<Bytes>,
    key: &str,
    nth: u64,
    request: Request,
    mut began: impl FnMut(Option<u64>),
) -> Did {
    let key = key.to_owned();
    let (expect, draft, found) = match request {
        Request::Read => {
            began(None);
            return Did::Read(find(store, nth, &key).map(|entry| number(&entry.record)));
        }
        Request::Write(number) => (WriteCondition::Anything, Some(number), None),
        Request::Swap(number) => {
            let found = find(store, nth, &key);
            let expect = found
                .as_ref()
                .map_or(WriteCondition::Absent, |entry| WriteCondition::At(entry.stamp.modified));
            (expect, Some(number), found.map(|entry| self::number(&entry.record)))
        }
        Request::Delete => (WriteCondition::Anything, None, None),
    };
    began(found);
    let write = match draft {
        Some(number) => Write::Put { key, expect, draft: Bytes::from(number.to_string()) },
        None => Write::Delete { key, expect },
    };
    match store.write(write).await {
        Ok(done) => {
            let previous = done.previous.as_deref().map(number);
            assert!(found.is_none() || previous == found, "{previous:?} for {found:?}");
            match draft {
                Some(draft) => Did::Swap(previous, draft),
                None => Did::Delete(previous.unwrap()),
            }
        }
        // A refusal says what is there: it is a read.
        Err(WriteError::Exists { current, .. } | WriteError::Conflict { current, .. }) => {
            Did::Read(Some(number(&current)))
        }
        Err(WriteError::NotFound { .. }) => Did::Read(None),
        Err(error) => panic!("{error}"),
    }
}

fn key(client: u64, nth: u64) -> String {
    format!("/core/maps/{}", (client + nth) % KEYS)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_clients_do_at_the_same_time_has_one_order_of_each_key() {
    const OPERATIONS: u64 = 400;
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let moment = Arc::new(AtomicU64::new(1));
    let stride = Arc::new(Barrier::new(CLIENTS as usize));
    let clients = (0..CLIENTS).map(|client| {
        let (store, moment, stride) = (store.clone(), moment.clone(), stride.clone());
        tokio::spawn(async move {
            let next = || moment.fetch_add(1, Ordering::SeqCst);
            let mut did = Vec::new();
            for nth in 0..OPERATIONS {
                let key = key(client, nth);
                let request = Request::nth(nth, client * OPERATIONS + nth, true);
                let mut began = 0;
                let done = do_one(&store, &key, client + nth, request, |_| began = next()).await;
                did.push((key, Operation { began, ended: Some(next()), did: done }));
                if nth % STRIDE == 0 {
                    stride.wait().await;
                }
            }
            did
        })
    });
    let mut registers: BTreeMap<String, Vec<Operation>> = BTreeMap::new();
    for client in clients.collect::<Vec<_>>() {
        for (key, operation) in client.await.unwrap() {
            registers.entry(key).or_default().push(operation);
        }
    }
    assert_eq!(registers.len() as u64, KEYS);
    let count = |what: fn(&Did) -> bool| {
        registers.values().flatten().filter(|operation| what(&operation.did)).count()
    };
    for what in [
        |did: &Did| matches!(did, Did::Swap(..)),
        |did: &Did| matches!(did, Did::Delete(_)),
        |did: &Did| matches!(did, Did::Read(Some(_))),
    ] {
        assert!(count(what) > 100, "hardly anything was done");
    }
    for (key, operations) in &registers {
        find_order(operations).unwrap_or_else(|broken| panic!("{key}: {broken}"));
    }
    store.close().await;
}

/// The killed process: prints when each operation begins and what became of it.
#[test]
fn victim() {
    let Some(path) = std::env::var_os(DIRECTORY) else { return };
    let first: u64 = std::env::var(FIRST).unwrap().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let store = open(Path::new(&path));
        // The harness has begun a line with the name of the test.
        say("");
        let stride = Arc::new(Barrier::new(CLIENTS as usize));
        let clients = (0..CLIENTS).map(|client| {
            let (store, stride) = (store.clone(), stride.clone());
            tokio::spawn(async move {
                for nth in 0.. {
                    let key = key(client, nth);
                    let number = first + nth * CLIENTS + client;
                    let request = Request::nth(nth, number, false);
                    let began = |found: Option<u64>| {
                        let what = match request {
                            Request::Write(_) => "write",
                            Request::Swap(_) => "swap",
                            Request::Read | Request::Delete => "read",
                        };
                        say(&format!("begin {number} {key} {what} {}", text(found)));
                    };
                    let done = do_one(&store, &key, client + nth, request, began).await;
                    say(&match done {
                        Did::Swap(found, _) => format!("end {number} swap {}", text(found)),
                        Did::Read(found) => format!("end {number} read {}", text(found)),
                        Did::Write(_) | Did::Delete(_) => unreachable!("all writes are swaps"),
                    });
                    if nth % STRIDE == 0 {
                        stride.wait().await;
                    }
                }
            })
        });
        for client in clients.collect::<Vec<_>>() {
            client.await.unwrap();
        }
    });
}

fn text(found: Option<u64>) -> String {
    found.map_or("-".to_owned(), |number| number.to_string())
}

/// One line in one write, so that lines are in the order of time and a kill cannot mix them.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(format!("{line}\n").as_bytes());
    let _ = out.flush();
}

#[test]
fn what_clients_did_has_one_order_across_kills() {
    const KILLS: u64 = 8;
    let directory = tempfile::tempdir().unwrap();
    let mut history = History::default();
    for round in 0..KILLS {
        history.run_victim(directory.path(), 300 + (round * 7919) % 900);
    }
    let all = || history.registers.values().flatten();
    assert!(
        all().filter(|(_, operation)| operation.ended.is_none()).count() > 0,
        "no kill mattered"
    );
    assert!(all().filter(|(_, operation)| matches!(operation.did, Did::Swap(..))).count() > 100);
    for (key, operations) in &history.registers {
        let operations: Vec<Operation> =
            operations.iter().map(|(_, operation)| *operation).collect();
        find_order(&operations).unwrap_or_else(|broken| panic!("{key}: {broken}"));
    }
}

/// What all victims said. The moments are the numbers of their lines.
#[derive(Default)]
struct History {
    moment: u64,
    largest: u64,
    /// Operations of each key, with the number of each.
    registers: BTreeMap<String, Vec<(u64, Operation)>>,
}

impl History {
    /// Runs one process until it has printed `lines` lines, and kills it.
    fn run_victim(&mut self, path: &Path, lines: u64) {
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "victim", "--nocapture"])
            .env(DIRECTORY, path)
            .env(FIRST, (self.largest + 1).to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut open = BTreeMap::new();
        let mut left = lines;
        for line in BufReader::new(victim.stdout.take().unwrap()).lines() {
            self.take(&line.unwrap(), &mut open);
            left = left.saturating_sub(1);
            if left == 0 {
                victim.kill().unwrap();
            }
        }
        victim.wait().unwrap();
        assert_eq!(left, 0, "the victim ended on its own");
        for (number, (key, operation)) in open {
            // A read that was not answered says nothing.
            if !matches!(operation.did, Did::Read(_)) {
                self.registers.entry(key).or_default().push((number, operation));
            }
        }
    }

    fn take(&mut self, line: &str, open: &mut BTreeMap<u64, (String, Operation)>) {
        self.moment += 1;
        let found = |text: &str| (text != "-").then(|| text.parse::<u64>().unwrap());
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["begin", number, key, what, value] => {
                let number = number.parse().unwrap();
                self.largest = self.largest.max(number);
                let did = match what {
                    "write" => Did::Write(number),
                    "swap" => Did::Swap(found(value), number),
                    _ => Did::Read(None),
                };
                let operation = Operation { began: self.moment, ended: None, did };
                open.insert(number, (key.to_owned(), operation));
            }
            ["end", number, what, value] => {
                let number = number.parse().unwrap();
                let (key, begun) = open.remove(&number).unwrap();
                let did = match what {
                    "swap" => Did::Swap(found(value), number),
                    _ => Did::Read(found(value)),
                };
                let operation = Operation { did, ended: Some(self.moment), ..begun };
                self.registers.entry(key).or_default().push((number, operation));
            }
            _ => {}
        }
    }
}
