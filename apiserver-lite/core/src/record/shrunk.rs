//! Records that are not read keep no tree: it is made again from the stored bytes. Readers of many, as lists are, make it for themselves and leave the
//! record as it is.

use std::borrow::Cow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use apiserver_schema::{Engine, Object};
use apiserver_store::{Record, Stamp};
use bytes::Bytes;

use super::{Origin, StoredObject, stamped};

/// Usage of a record that was not read since [`StoredObject::shrunk`] was last called.
pub(super) const IDLE: u8 = 0;
/// Usage of a record that was read since.
pub(super) const READ: u8 = 1;
/// Usage of a record that cannot be shrunk.
const KEPT: u8 = 2;

/// An object without its tree.
pub(super) struct ShrunkObject {
    engine: Arc<Engine>,
    raw: Bytes,
    pub(super) stored_len: usize,
    pub(super) memory_len: usize,
}

impl ShrunkObject {
    #[expect(clippy::expect_used, reason = "the bytes have been decoded before")]
    pub(super) fn decode(&self, stamp: Stamp) -> Object {
        let object = self.engine.decode_stored(&self.raw);
        stamped(object.expect("invariant: the bytes of an object"), stamp)
    }
}

impl StoredObject {
    /// The decoded object for a reader of many, as a list is: unlike [`object`](Self::object) it leaves a shrunk record as it is.
    #[must_use]
    pub fn object_once(&self) -> Cow<'_, Object> {
        self.object.get().map_or_else(|| Cow::Owned(self.decode()), Cow::Borrowed)
    }

    /// The object encoded as JSON for a reader of many.
    pub fn json_once(&self, engine: &Engine) -> Bytes {
        let encode = || Bytes::from(engine.encode_json(&self.object_once()).into_boxed_slice());
        if self.is_shrunk() { encode() } else { self.json.get_or_init(encode).clone() }
    }

    /// The object encoded as Protobuf for a reader of many.
    pub fn protobuf_once(&self, engine: &Engine) -> Bytes {
        let encode = || Bytes::from(engine.encode_protobuf(&self.object_once()));
        if self.is_shrunk() { encode() } else { self.protobuf.get_or_init(encode).clone() }
    }

    /// Whether the tree has to be made for a reader.
    #[must_use]
    pub fn is_shrunk(&self) -> bool {
        self.object.get().is_none()
    }

    /// The record without its tree and its encodings, which are made again when it is read; `None` if it was read since the last call, has none, or
    /// cannot be shrunk. Of the current versions of objects only Events are shrunk, which Kubernetes does not cache either: lists, selectors, indexes and
    /// backups read all others at once.
    pub fn shrunk(&self, engine: &Arc<Engine>, is_current: bool) -> Option<Self> {
        match self.usage.load(Ordering::Relaxed) {
            IDLE => {}
            READ => {
                self.usage.store(IDLE, Ordering::Relaxed);
                return None;
            }
            _ => return None,
        }
        let object = self.object.get()?;
        if is_current && !object.kind.is("", "Event") {
            return None;
        }
        let Some(raw) = self.raw_for(object, engine) else {
            self.usage.store(KEPT, Ordering::Relaxed);
            return None;
        };
        let (stored_len, memory_len) = (self.stored_len(), self.memory_len());
        let shrunk = ShrunkObject { engine: engine.clone(), raw, stored_len, memory_len };
        Some(Self::new(OnceLock::new(), Origin::Shrunk(Box::new(shrunk)), self.stamp))
    }

    /// Bytes that give back `object`, which is that of the record; `None` where there are none.
    fn raw_for(&self, object: &Object, engine: &Engine) -> Option<Bytes> {
        // A webhook is not asked again for the views that it has made.
        if object.kind.custom_version().is_some_and(|version| version.has_webhook) {
            return None;
        }
        match &self.origin {
            Origin::Memory { .. } => {
                let raw = engine.encode_stored(object).into_boxed_slice();
                let decoded = stamped(engine.decode_stored(&raw).ok()?, self.stamp);
                let is_same = Arc::ptr_eq(&decoded.kind, &object.kind) && decoded == *object;
                is_same.then(|| Bytes::from(raw))
            }
            Origin::Disk { raw, .. } => Some(raw.clone()),
            Origin::Shrunk(shrunk) => Some(shrunk.raw.clone()),
            Origin::Unreadable(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use apiserver_schema::{Format, Strictness};
    use apiserver_store::{BackupValue, Revision};
    use proto_api::names::{Names, Profile};

    use super::super::Draft;
    use super::*;

    #[test]
    fn an_idle_record_is_shrunk_and_comes_back_as_it_was() {
        let engine = Arc::new(Engine::new(Names::new(Profile::Kubernetes)));
        let text = br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","annotations":{"k":"v"},
            "managedFields":[{"manager":"m","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{}}}]},
            "spec":{"containers":[{"name":"c","image":"i","resources":{"limits":{"cpu":"1"}}}],"tolerations":[]}}"#;
        let object = engine.decode_any(Format::Json, text, Strictness::Strict);
        let stamp = Stamp { created: Revision(5), modified: Revision(7) };
        let draft = Draft::new(&engine, object.expect("valid").object);
        let stored = StoredObject::stored(&draft);
        let restored = StoredObject::restore("k", stored, stamp).expect("bytes");
        restored.load(&engine).expect("an object");
        let written = StoredObject::stamp(draft, stamp);
        let deleted = StoredObject::tombstone(&written, Stamp { modified: Revision(9), ..stamp });
        for record in [written, restored, deleted] {
            assert!(record.shrunk(&engine, false).is_none(), "it is new");
            assert!(record.shrunk(&engine, true).is_none(), "no current pod is shrunk");
            let shrunk = record.shrunk(&engine, false).expect("it was not read since");
            assert!(*shrunk.object_once() == *record.object());
            assert!(shrunk.json_once(&engine) == record.json_once(&engine));
            assert!(shrunk.protobuf_once(&engine) == record.protobuf_once(&engine));
            assert!(shrunk.is_shrunk() && shrunk.shrunk(&engine, false).is_none());
            let lens = |record: &StoredObject| (record.stored_len(), record.memory_len());
            assert_eq!(lens(&shrunk), lens(&record));
            assert!(matches!(
                (shrunk.backup_value(&engine), record.backup_value(&engine)),
                (BackupValue::Value(shrunk), BackupValue::Value(kept)) if shrunk == kept
            ));
            assert!(shrunk.is_shrunk(), "a backup leaves it as it is");
            assert!(shrunk.json(&engine) == record.json(&engine));
            assert!(shrunk.protobuf(&engine) == record.protobuf(&engine));
            assert!(shrunk.object() == record.object() && shrunk.revision() == record.revision());
            assert!(shrunk.shrunk(&engine, false).is_none(), "it was read");
            assert!(*shrunk.object_once() == *record.object());
            let again = shrunk.shrunk(&engine, false).expect("it was not read again");
            assert!(again.object() == record.object());
        }
    }

    /// What a reader has been shown is not changed by time: an object that its bytes do not give back stays.
    #[test]
    fn an_object_that_would_not_come_back_is_not_shrunk() {
        let engine = Arc::new(Engine::new(Names::new(Profile::Kubernetes)));
        let text = br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}"#;
        let object = engine.decode_any(Format::Json, text, Strictness::Strict);
        let mut object = object.expect("valid").object;
        // No field of a ConfigMap.
        object.fields.insert("unknown", 1);
        let stamp = Stamp { created: Revision(7), modified: Revision(7) };
        let record = StoredObject::new(
            OnceLock::from(stamped(object, stamp)),
            Origin::Memory { stored_len: 0, memory_len: 0 },
            stamp,
        );
        for _ in 0..3 {
            assert!(record.shrunk(&engine, false).is_none());
        }
        assert_eq!(record.usage.load(Ordering::Relaxed), KEPT, "it is not tried again");
    }

    #[test]
    fn current_events_are_shrunk() {
        let engine = Arc::new(Engine::new(Names::new(Profile::Kubernetes)));
        let text = br#"{"apiVersion":"v1","kind":"Event","metadata":{"name":"a","namespace":"b"},"reason":"r"}"#;
        let object = engine.decode_any(Format::Json, text, Strictness::Strict);
        let draft = Draft::new(&engine, object.expect("valid").object);
        let stamp = Stamp { created: Revision(7), modified: Revision(7) };
        let record = StoredObject::stamp(draft, stamp);
        assert!(record.shrunk(&engine, true).is_none(), "it is new");
        assert!(record.shrunk(&engine, true).is_some());
    }
}
