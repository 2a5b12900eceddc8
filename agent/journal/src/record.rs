//! What is stored: the record of a pod, and what one commit writes.

use std::collections::BTreeMap;

use agent_pod::record::PodRecord;
use serde::{Deserialize, Serialize};

/// The record of one pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// The record of its state machine.
    pub memory: PodRecord,
}

/// A transaction: records by uid and notes by key; `None` removes. Bounded by the number of pods,
/// since newer records replace older ones.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) records: BTreeMap<String, Option<Record>>,
    pub(crate) notes: BTreeMap<String, Option<Vec<u8>>>,
}

impl Batch {
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.notes.is_empty()
    }
}
