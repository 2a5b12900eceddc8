//! Puts a pod's record into the journal.

use std::sync::{Arc, Mutex, PoisonError};

use agent_journal::{CommitHandle, Journal, Record};
use agent_pod::record::PodRecord;
use proto_api::core::v1::Pod;

/// Writes the record of one pod.
pub struct RecordWriter {
    journal: Journal,
    /// The record last put into the journal.
    recorded: Arc<Mutex<Option<PodRecord>>>,
    commit: Option<CommitHandle>,
    /// The commit of the newest record with results of probes or hooks.
    findings_commit: Option<CommitHandle>,
}

impl RecordWriter {
    /// `recorded` is the record that the journal has.
    pub fn new(journal: Journal, recorded: Option<PodRecord>) -> Self {
        let recorded = Arc::new(Mutex::new(recorded));
        Self { journal, recorded, commit: None, findings_commit: None }
    }

    /// The record last put into the journal, readable also after the task has ended.
    pub fn last_record(&self) -> Arc<Mutex<Option<PodRecord>>> {
        self.recorded.clone()
    }

    /// Puts the record into the journal if it has changed.
    pub fn write(&mut self, pod: &Pod, memory: &PodRecord) {
        let before = {
            let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
            if recorded.as_ref() == Some(memory) {
                return;
            }
            recorded.replace(memory.clone()).unwrap_or_default()
        };
        let record = Record {
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            memory: memory.clone(),
        };
        let commit = self.journal.put(&pod.metadata.uid, Some(record));
        if memory.has_newer_results(&before) {
            self.findings_commit = Some(commit.clone());
        }
        self.commit = Some(commit);
    }

    /// Removes the record of a pod of which nothing is left.
    pub fn remove(&self, uid: &str) {
        self.journal.put(uid, None);
    }

    /// The commit of the last record.
    pub fn commit(&self) -> Option<CommitHandle> {
        self.commit.clone()
    }

    /// The commit of the newest record with results of probes or hooks.
    pub fn findings_commit(&self) -> Option<CommitHandle> {
        self.findings_commit.clone()
    }
}
