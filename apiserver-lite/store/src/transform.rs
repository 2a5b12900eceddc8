//! How values lie on disk: as the records encode them, or transformed, which is encrypted. In memory values are always in clear text.
//!
//! The store asks a [`Transform`] at two places only: for each value that the writer puts into the log, and for each one that is read
//! when the store opens. The checkpoint gets the bytes of the log as they are. Without a transform neither place does anything.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;

use crate::{WriteError, log::Change};

/// Transforms values between memory and disk.
pub trait Transform: Send + Sync {
    /// The bytes to be written for `value`, and their form. Called on the thread of all writes.
    ///
    /// # Errors
    /// The value cannot be transformed now; its write is refused.
    fn encode_stored(&self, key: &str, value: Bytes) -> Result<(Bytes, Form), TransformError>;

    /// The value of bytes that were written for `key`, and their form.
    ///
    /// # Errors
    /// The bytes cannot be read now; the record is [unreadable](crate::Record::unreadable).
    fn decode_stored(&self, key: &str, stored: Bytes) -> Result<(Bytes, Form), TransformError>;

    /// The form of the bytes that [`encode_stored`](Transform::encode_stored) makes for `key` now.
    fn current_form(&self, key: &str) -> Form;
}

/// Which transformation made the bytes of a value: equal for the same algorithm and key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Form(pub u64);

impl Form {
    /// The bytes are those of the record.
    pub const AS_IS: Self = Self(0);
    /// The bytes cannot be read now.
    pub const UNREADABLE: Self = Self(1);
}

/// Why a value cannot be transformed. Names the key that is needed, never the key's bytes or the value.
pub type TransformError = Box<dyn std::error::Error + Send + Sync>;

/// The transform of a store, and the form of each value on disk.
#[derive(Default)]
pub struct StoredForms {
    transform: Option<Arc<dyn Transform>>,
    /// The forms of the current versions, except for those that are as they are.
    forms: Mutex<HashMap<Arc<str>, Form>>,
}

impl StoredForms {
    pub fn new(transform: Option<Arc<dyn Transform>>) -> Self {
        Self { transform, forms: Mutex::default() }
    }

    pub fn transform(&self) -> Option<&dyn Transform> {
        self.transform.as_deref()
    }

    /// The bytes that are written for a value, and their form.
    pub fn encode<T>(&self, key: &str, value: Bytes) -> Result<(Bytes, Form), WriteError<T>> {
        let Some(transform) = self.transform() else { return Ok((value, Form::AS_IS)) };
        transform.encode_stored(key, value).map_err(|error| WriteError::Transform {
            key: key.to_owned(),
            reason: error.to_string(),
        })
    }

    /// Whether the value of `key` would be written in another form than it has on disk.
    pub fn is_stale(&self, key: &str) -> bool {
        let Some(transform) = &self.transform else { return false };
        self.form(key) != transform.current_form(key)
    }

    /// The form of a value.
    pub fn form(&self, key: &str) -> Form {
        let forms = self.forms.lock().unwrap_or_else(PoisonError::into_inner);
        forms.get(key).copied().unwrap_or(Form::AS_IS)
    }

    /// The number of values in each form that is not [`Form::AS_IS`].
    pub fn count(&self) -> HashMap<Form, usize> {
        let mut count: HashMap<Form, usize> = HashMap::new();
        for form in self.forms.lock().unwrap_or_else(PoisonError::into_inner).values() {
            let count = count.entry(*form).or_default();
            *count = count.saturating_add(1);
        }
        count
    }

    /// Notes the form of a value that was read from disk.
    pub fn note(&self, key: &Arc<str>, form: Form) {
        let mut forms = self.forms.lock().unwrap_or_else(PoisonError::into_inner);
        note(&mut forms, key, form);
    }

    /// Notes the forms of committed changes; there are none without a transform.
    pub fn note_all(&self, changes: &[Change], written: &[Form]) {
        if written.is_empty() {
            return;
        }
        let mut forms = self.forms.lock().unwrap_or_else(PoisonError::into_inner);
        for (change, form) in changes.iter().zip(written) {
            note(&mut forms, &change.key, *form);
        }
    }
}

fn note(forms: &mut HashMap<Arc<str>, Form>, key: &Arc<str>, form: Form) {
    if form == Form::AS_IS {
        forms.remove(key);
    } else {
        forms.insert(key.clone(), form);
    }
}
