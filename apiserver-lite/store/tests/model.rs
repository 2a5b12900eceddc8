//! Random histories against a model that keeps every revision: reads, watches and writes have the same results, across compactions
//! and reopenings.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;

use apiserver_store::{
    CommittedWrite, Event, EventKind, Medium, Range, Retention, Revision, SnapshotError, Store,
    StoreConfig, StoreIdentity, Watch, Write, WriteCondition, WriteError,
};
use bytes::Bytes;
use proptest::prelude::*;

const HISTORY_LEN_MAX: u64 = 5;

/// A version of a key: created, modified, value.
type Version = (u64, u64, u8);

/// The complete content at every revision.
struct Model {
    revisions: Vec<BTreeMap<String, Version>>,
    oldest: u64,
}

struct ModelWatch {
    watch: Watch<Bytes>,
    prefix: &'static str,
    seen: u64,
    looked: bool,
}

#[derive(Clone, Debug)]
enum Op {
    Put { key: u8, expect: Guess, value: u8 },
    Delete { key: u8, expect: Guess },
    Read { back: u64, prefix: u8, after: Option<u8>, limit: Option<usize> },
    Compact { back: u64 },
    Watch { back: u64, prefix: u8 },
    Poll,
    Reopen,
}

/// A condition that often holds.
#[derive(Clone, Debug)]
enum Guess {
    Absent,
    Present,
    Anything,
    Current,
    Old(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0..6u8;
    let guess = prop_oneof![
        3 => Just(Guess::Absent),
        1 => Just(Guess::Present),
        2 => Just(Guess::Anything),
        5 => Just(Guess::Current),
        1 => (0..4u64).prop_map(Guess::Old),
    ];
    let limit = proptest::option::of(0..4usize);
    prop_oneof![
        8 => (key.clone(), guess.clone(), any::<u8>())
            .prop_map(|(key, expect, value)| Op::Put { key, expect, value }),
        4 => (key.clone(), guess).prop_map(|(key, expect)| Op::Delete { key, expect }),
        4 => (0..12u64, 0..4u8, proptest::option::of(key), limit)
            .prop_map(|(back, prefix, after, limit)| Op::Read { back, prefix, after, limit }),
        1 => (0..8u64).prop_map(|back| Op::Compact { back }),
        2 => (0..8u64, 0..4u8).prop_map(|(back, prefix)| Op::Watch { back, prefix }),
        3 => Just(Op::Poll),
        1 => Just(Op::Reopen),
    ]
}

/// Six keys under two prefixes, one of which is a prefix of the other's text.
fn key(nth: u8) -> String {
    ["a/1", "a/2", "a/22", "ab/1", "ab/2", "b"][usize::from(nth)].to_owned()
}

fn prefix(nth: u8) -> &'static str {
    ["", "a/", "ab/", "nothing/"][usize::from(nth)]
}

fn config(medium: Medium) -> StoreConfig {
    let identity = StoreIdentity { profile: "orch".into(), domain: "orch.io".into() };
    // Small, so that the history overflows and most writes pass through the checkpoint.
    let config = StoreConfig::new(medium, identity);
    let retention = Retention { events_max: HISTORY_LEN_MAX as usize, ..Retention::default() };
    StoreConfig { segment_len_max: 700, retention, ..config }
}

impl Model {
    fn current(&self) -> u64 {
        self.revisions.len() as u64 - 1
    }

    fn at(&self, revision: u64) -> &BTreeMap<String, Version> {
        &self.revisions[usize::try_from(revision).unwrap()]
    }

    /// The expected result of a write; `Err` names the error.
    fn write(
        &mut self,
        key: &str,
        expect: WriteCondition,
        value: Option<u8>,
    ) -> Result<u64, &'static str> {
        let mut next = self.at(self.current()).clone();
        let current = next.get(key).copied();
        match (expect, current) {
            (WriteCondition::Absent, Some(_)) => return Err("exists"),
            (WriteCondition::Present | WriteCondition::At(_), None) => return Err("not found"),
            (WriteCondition::At(at), Some((_, modified, _))) if modified != at.0 => {
                return Err("conflict");
            }
            (_, None) if value.is_none() => return Err("not found"),
            _ => {}
        }
        let revision = self.current() + 1;
        match value {
            Some(value) => {
                let created = current.map_or(revision, |(created, ..)| created);
                next.insert(key.to_owned(), (created, revision, value));
            }
            None => {
                next.remove(key);
            }
        }
        self.revisions.push(next);
        self.oldest = self.oldest.max(revision.saturating_sub(HISTORY_LEN_MAX));
        Ok(revision)
    }

    /// What happened at `revision`.
    fn event(&self, revision: u64) -> (String, EventKind, Option<u8>, Option<u8>) {
        let (before, after) = (self.at(revision - 1), self.at(revision));
        for (key, version) in after {
            if version.1 == revision {
                let previous = before.get(key).map(|version| version.2);
                let kind = if previous.is_some() { EventKind::Updated } else { EventKind::Created };
                return (key.clone(), kind, Some(version.2), previous);
            }
        }
        let (key, version) = before.iter().find(|(key, _)| !after.contains_key(*key)).unwrap();
        (key.clone(), EventKind::Deleted, Some(version.2), Some(version.2))
    }
}

/// A store and its model.
struct Pair {
    directory: tempfile::TempDir,
    store: Store<Bytes>,
    model: Model,
    watches: Vec<ModelWatch>,
}

impl Pair {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(config(Medium::Directory(directory.path().into()))).unwrap();
        let model = Model { revisions: vec![BTreeMap::new()], oldest: 0 };
        Self { directory, store, model, watches: vec![] }
    }

    async fn step(&mut self, op: Op) {
        match op {
            Op::Put { key: nth, expect, value } => self.write(&key(nth), expect, Some(value)).await,
            Op::Delete { key: nth, expect } => self.write(&key(nth), expect, None).await,
            Op::Read { back, prefix: nth, after, limit } => {
                self.read(back, prefix(nth), after.map(key).as_deref(), limit);
            }
            Op::Compact { back } => {
                let oldest = self.model.current().saturating_sub(back);
                self.store.compact(Revision(oldest));
                self.model.oldest = self.model.oldest.max(oldest);
                assert_eq!(self.store.oldest().0, self.model.oldest);
            }
            Op::Watch { back, prefix: nth } => self.watch(back, prefix(nth)),
            Op::Poll => self.poll(),
            Op::Reopen => self.reopen().await,
        }
        assert_eq!(self.store.revision().0, self.model.current());
    }

    async fn write(&mut self, key: &str, guess: Guess, value: Option<u8>) {
        let current = self.model.at(self.model.current()).get(key).map_or(0, |version| version.1);
        let expect = match guess {
            Guess::Absent => WriteCondition::Absent,
            Guess::Present => WriteCondition::Present,
            Guess::Anything => WriteCondition::Anything,
            Guess::Current => WriteCondition::At(Revision(current)),
            Guess::Old(by) => WriteCondition::At(Revision(current.saturating_sub(by))),
        };
        if value.is_none() && expect == WriteCondition::Absent {
            return;
        }
        let key = key.to_owned();
        let expected = self.model.write(&key, expect, value);
        let write = match value {
            Some(value) => Write::Put { key, expect, draft: Bytes::copy_from_slice(&[value]) },
            None => Write::Delete { key, expect },
        };
        let found = match self.store.write(write).await {
            Ok(CommittedWrite { revision, .. }) => Ok(revision.0),
            Err(WriteError::Exists { .. }) => Err("exists"),
            Err(WriteError::NotFound { .. }) => Err("not found"),
            Err(WriteError::Conflict { .. }) => Err("conflict"),
            Err(error) => unreachable!("{error}"),
        };
        assert_eq!(found, expected);
    }

    fn read(&self, back: u64, prefix: &str, after: Option<&str>, limit: Option<usize>) {
        let revision = self.model.current().saturating_sub(back);
        let snapshot = self.store.snapshot_at("", Revision(revision));
        if revision < self.model.oldest {
            assert!(matches!(snapshot, Err(SnapshotError::Compacted(_))));
            return;
        }
        let snapshot = snapshot.unwrap();
        let within = |key: &str| key.starts_with(prefix) && after.is_none_or(|after| key > after);
        let all: Vec<(String, Version)> = self
            .model
            .at(revision)
            .iter()
            .filter(|(key, _)| within(key))
            .map(|(key, version)| (key.clone(), *version))
            .collect();
        let page = snapshot.range(Range { prefix, after, limit }).unwrap();
        let found: Vec<(String, Version)> = page
            .entries
            .iter()
            .map(|entry| {
                let (created, modified) = (entry.stamp.created.0, entry.stamp.modified.0);
                (entry.key.to_string(), (created, modified, entry.record[0]))
            })
            .collect();
        let limit = limit.unwrap_or(usize::MAX);
        assert_eq!(found, all[..all.len().min(limit)]);
        assert_eq!(page.more, all.len() > limit);
        assert_eq!(snapshot.count(Range { prefix, after, limit: None }).unwrap(), all.len());
        for nth in 0..6 {
            let found = snapshot.get(&key(nth)).unwrap().map(|entry| entry.record[0]);
            assert_eq!(found, self.model.at(revision).get(&key(nth)).map(|version| version.2));
        }
    }

    fn watch(&mut self, back: u64, prefix: &'static str) {
        let after = self.model.current().saturating_sub(back);
        match self.store.watch(prefix, Revision(after)) {
            Ok(watch) => {
                assert!(after >= self.model.oldest);
                self.watches.push(ModelWatch { watch, prefix, seen: after, looked: false });
            }
            Err(error) => {
                assert!(after < self.model.oldest, "{error}");
            }
        }
    }

    /// Every watch gets exactly its undelivered events, or ends as lagged.
    fn poll(&mut self) {
        let (model, mut alive) = (&self.model, Vec::new());
        for ModelWatch { mut watch, prefix, seen, looked } in self.watches.drain(..) {
            let mut events: Vec<Event<Bytes>> = Vec::new();
            let expected: Vec<_> = (seen + 1..=model.current())
                .map(|revision| (revision, model.event(revision)))
                .filter(|(_, (key, ..))| key.starts_with(prefix))
                .collect();
            // After a read, events of other prefixes may be compacted without the watch noticing.
            let next = expected.first().map(|(revision, _)| revision - 1);
            let needs = if looked { next } else { Some(seen) };
            let late = needs.is_some_and(|needs| needs < model.oldest);
            assert_eq!(watch.try_batch(&mut events).is_err(), late);
            if late {
                continue;
            }
            let found: Vec<_> = events
                .iter()
                .map(|event| {
                    let value = |record: &Bytes| record.first().copied();
                    let previous = event.previous.as_deref().and_then(value);
                    let record = value(&event.record);
                    (event.stamp.modified.0, (event.key.to_string(), event.kind, record, previous))
                })
                .collect();
            assert_eq!(found, expected);
            assert_eq!(watch.delivered_revision(), Revision(model.current()));
            alive.push(ModelWatch { watch, prefix, seen: model.current(), looked: true });
        }
        self.watches = alive;
    }

    /// Closes and opens the store: the same records; the history is that of the log.
    async fn reopen(&mut self) {
        self.watches.clear();
        self.store.close().await;
        let medium = Medium::Directory(self.directory.path().to_owned());
        self.store = Store::open(config(medium)).unwrap();
        let oldest = self.store.oldest().0;
        assert!(oldest <= self.model.current());
        self.model.oldest = oldest;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_history(ops in proptest::collection::vec(op(), 1..80)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut pair = Pair::new();
            for op in ops {
                pair.step(op).await;
            }
            pair.step(Op::Poll).await;
            pair.step(Op::Reopen).await;
            pair.step(Op::Read { back: 0, prefix: 0, after: None, limit: None }).await;
        });
    }
}
