//! What the steps of a request leave besides its result: warnings for the client, annotations for an audit log, and the deadline of webhook calls.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

/// Most annotations of one request.
const ANNOTATIONS_MAX: usize = 1024;
/// Most warnings of one request; a response shows fewer.
const WARNINGS_MAX: usize = 64;

/// Warnings and annotations of one request.
#[derive(Debug, Default)]
pub struct RequestNotes(Mutex<Notes>);

#[derive(Debug, Default)]
struct Notes {
    warnings: Vec<String>,
    annotations: BTreeMap<String, String>,
    webhooks_deadline: Option<Instant>,
}

impl RequestNotes {
    fn lock(&self) -> MutexGuard<'_, Notes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Deadline of all webhook calls, set by the first step that calls one. A retried write has the time that remains.
    pub(crate) fn webhooks_deadline(&self, first: Instant) -> Instant {
        *self.lock().webhooks_deadline.get_or_insert(first)
    }

    /// Adds a warning, unless it is there already: a write that is tried again gives each of its warnings again.
    pub(crate) fn warn(&self, text: String) {
        let mut notes = self.lock();
        if notes.warnings.len() < WARNINGS_MAX && !notes.warnings.contains(&text) {
            notes.warnings.push(text);
        }
    }

    /// Sets an annotation. As in Kubernetes the first value stays.
    pub(crate) fn annotate(&self, key: String, value: String) {
        let mut notes = self.lock();
        if notes.annotations.len() < ANNOTATIONS_MAX {
            notes.annotations.entry(key).or_insert(value);
        }
    }

    /// The warnings so far; they are no longer among the notes.
    #[must_use]
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().warnings)
    }

    /// The annotations so far.
    #[must_use]
    pub fn annotations(&self) -> BTreeMap<String, String> {
        self.lock().annotations.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_given_once_and_annotations_stay() {
        let notes = RequestNotes::default();
        for text in ["a", "b", "a"] {
            notes.warn(text.to_owned());
            notes.annotate("k".to_owned(), text.to_owned());
        }
        assert_eq!(notes.take_warnings(), ["a", "b"]);
        assert!(notes.take_warnings().is_empty());
        assert_eq!(notes.annotations(), BTreeMap::from([("k".to_owned(), "a".to_owned())]));
        (0..2000).for_each(|n| notes.annotate(n.to_string(), String::new()));
        assert_eq!(notes.annotations().len(), ANNOTATIONS_MAX);
    }
}
