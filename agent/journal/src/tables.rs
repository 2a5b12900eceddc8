//! The tables of the store: read when it is opened, written in one transaction a commit.

use std::collections::BTreeMap;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

use crate::record::{Batch, Record};

const PODS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("pods");
const NODE: TableDefinition<'_, &str, &str> = TableDefinition::new("node");
/// Notes of other parts of the agent, by key.
const NOTES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("notes");
const BOOT_ID: &str = "boot-id";

/// Most entries of a table that are read; more than a node has pods, and than a damaged tree that
/// has no end may cost.
const ENTRIES_MAX: usize = 100_000;

/// What the store contained when it was opened.
#[derive(Debug, Default)]
pub(crate) struct Content {
    pub(crate) records: BTreeMap<String, Record>,
    pub(crate) notes: BTreeMap<String, Vec<u8>>,
}

/// Reads everything, and prepares a new store.
pub(crate) fn load(store: &Database, boot_id: &str) -> Result<Content, redb::Error> {
    let records = read(store, boot_id)?;
    mark_boot(store, boot_id)?;
    let notes = read_notes(store)?;
    Ok(Content { records, notes })
}

fn has_no_end(table: &str) -> redb::Error {
    redb::Error::Corrupted(format!("the table {table} has more than {ENTRIES_MAX} entries"))
}

/// Skips records that cannot be read: their pods are adopted from the runtime and the API.
fn read(store: &Database, boot_id: &str) -> Result<BTreeMap<String, Record>, redb::Error> {
    let transaction = store.begin_read()?;
    let same_boot = match transaction.open_table(NODE) {
        Ok(node) => node.get(BOOT_ID)?.is_some_and(|known| known.value() == boot_id),
        // Never written, unless there are others.
        Err(redb::TableError::TableDoesNotExist(name)) => {
            return match transaction.list_tables()?.next() {
                None => Ok(BTreeMap::new()),
                Some(_) => Err(redb::Error::TableDoesNotExist(name)),
            };
        }
        Err(error) => return Err(error.into()),
    };
    let mut records = BTreeMap::new();
    for (nth, entry) in transaction.open_table(PODS)?.iter()?.enumerate() {
        if nth >= ENTRIES_MAX {
            return Err(has_no_end("pods"));
        }
        let (uid, bytes) = entry?;
        match serde_json::from_slice::<Record>(bytes.value()) {
            Ok(mut record) => {
                if !same_boot {
                    record.memory = record.memory.after_reboot();
                }
                records.insert(uid.value().to_owned(), record);
            }
            Err(error) => {
                tracing::warn!(uid = uid.value(), %error, "cannot decode a journal record; its pod is adopted from the runtime and the API")
            }
        }
    }
    Ok(records)
}

fn read_notes(store: &Database) -> Result<BTreeMap<String, Vec<u8>>, redb::Error> {
    let transaction = store.begin_read()?;
    let mut notes = BTreeMap::new();
    for (nth, entry) in transaction.open_table(NOTES)?.iter()?.enumerate() {
        if nth >= ENTRIES_MAX {
            return Err(has_no_end("notes"));
        }
        let (key, note) = entry?;
        notes.insert(key.value().to_owned(), note.value().to_vec());
    }
    Ok(notes)
}

/// Records the boot id if it has changed: a restart in the same boot needs no disk space.
pub(crate) fn mark_boot(store: &Database, boot_id: &str) -> Result<(), redb::Error> {
    let known = match store.begin_read()?.open_table(NODE) {
        Ok(node) => node.get(BOOT_ID)?.is_some_and(|known| known.value() == boot_id),
        Err(redb::TableError::TableDoesNotExist(_)) => false,
        Err(error) => return Err(error.into()),
    };
    if known {
        return Ok(());
    }
    let transaction = store.begin_write()?;
    transaction.open_table(PODS)?;
    transaction.open_table(NOTES)?;
    transaction.open_table(NODE)?.insert(BOOT_ID, boot_id)?;
    transaction.commit()?;
    Ok(())
}

pub(crate) fn commit(store: &Database, batch: &Batch) -> Result<(), redb::Error> {
    if batch.is_empty() {
        return Ok(());
    }
    let Batch { records, notes } = batch;
    let transaction = store.begin_write()?;
    {
        let mut pods = transaction.open_table(PODS)?;
        for (uid, record) in records {
            match record.as_ref().map(serde_json::to_vec) {
                Some(Ok(bytes)) => {
                    pods.insert(uid.as_str(), bytes.as_slice())?;
                }
                Some(Err(error)) => {
                    tracing::error!(uid, %error, "cannot encode a journal record; it is not stored")
                }
                None => {
                    pods.remove(uid.as_str())?;
                }
            }
        }
        let mut all = transaction.open_table(NOTES)?;
        for (key, note) in notes {
            match note {
                Some(note) => all.insert(key.as_str(), note.as_slice())?,
                None => all.remove(key.as_str())?,
            };
        }
    }
    transaction.commit()?;
    Ok(())
}
