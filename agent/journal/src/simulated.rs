//! A journal in memory for tests that commit explicitly.

#![allow(clippy::arithmetic_side_effects, clippy::expect_used, reason = "of tests only")]

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};

use tokio::sync::Notify;

use crate::journal::Journal;
use crate::queue::{Progress, Shared};
use crate::record::Record;

/// Committed and pending records.
#[derive(Debug)]
pub struct Disk {
    /// Committed records.
    pub records: BTreeMap<String, Record>,
    /// Committed notes.
    pub notes: BTreeMap<String, Vec<u8>>,
    shared: Arc<Shared>,
    durable: Arc<Progress>,
}

impl Disk {
    /// A journal with these records and notes; pending ones of an earlier journal are lost.
    /// `given` is notified of each queued record.
    pub fn open(
        records: BTreeMap<String, Record>,
        notes: BTreeMap<String, Vec<u8>>,
        given: Arc<Notify>,
    ) -> (Journal, Self) {
        let shared = Arc::new(Shared {
            pending: Mutex::default(),
            changed: Condvar::new(),
            given,
            notes: notes.clone(),
        });
        let durable = Arc::new(Progress::default());
        let journal = Journal { shared: shared.clone(), durable: durable.clone() };
        (journal, Self { records, notes, shared, durable })
    }

    /// Commits everything pending. Returns the uids of its records.
    pub fn commit(&mut self) -> Vec<String> {
        let (records, notes, number) = {
            let mut pending = self.shared.pending.lock().expect("lock");
            let pending = &mut *pending;
            let notes = std::mem::take(&mut pending.batch.notes);
            (std::mem::take(&mut pending.batch.records), notes, pending.number)
        };
        for (key, note) in notes {
            match note {
                Some(note) => drop(self.notes.insert(key, note)),
                None => drop(self.notes.remove(&key)),
            }
        }
        let uids = records.keys().cloned().collect();
        for (uid, record) in records {
            match record {
                Some(record) => drop(self.records.insert(uid, record)),
                None => drop(self.records.remove(&uid)),
            }
        }
        self.durable.advance(number);
        uids
    }

    /// Whether a pending record is awaited.
    pub fn is_awaited(&self) -> bool {
        let awaited = self.shared.pending.lock().expect("lock").awaited;
        awaited > self.durable.number.load(Ordering::Acquire)
    }

    /// Whether a record or a note contains this text.
    pub fn holds(&self, words: &str) -> bool {
        let records = serde_json::to_string(&self.records).expect("encode");
        let note = |note: &Vec<u8>| String::from_utf8_lossy(note).contains(words);
        records.contains(words) || self.notes.values().any(note)
    }

    /// The records that a new process reads, with or without a reboot.
    pub fn read(&mut self, rebooted: bool) -> BTreeMap<String, Record> {
        let records = std::mem::take(&mut self.records).into_iter();
        let read = |(uid, record): (String, Record)| {
            let stored = serde_json::to_vec(&record).expect("encode");
            let mut record: Record = serde_json::from_slice(&stored).expect("decode");
            if rebooted {
                record.memory = record.memory.after_reboot();
            }
            (uid, record)
        };
        records.map(read).collect()
    }
}
