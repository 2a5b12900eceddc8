//! What the store keeps of an object: the decoded tree and its encoded forms, each made at most once per revision and
//! shared by responses, lists and watchers.

use std::sync::{Arc, OnceLock};

use apiserver_schema::{DecodeError, Engine, Format, Kind, Object, Strictness};
use apiserver_store::{Record, RestoreError, Stamp};
use bytes::Bytes;

use crate::registry::versions;

/// An object at its revision.
pub struct StoredObject {
    /// The tree, `resourceVersion` included. Empty only between opening a store and [`StoredObject::load`].
    object: OnceLock<Object>,
    /// What came from disk, until it has been loaded.
    raw: Bytes,
    stamp: Stamp,
    json: OnceLock<Bytes>,
    protobuf: OnceLock<Bytes>,
}

/// An object on its way into the store, without a revision.
pub struct Draft {
    object: Object,
    raw: Bytes,
}

impl Draft {
    /// Encodes the object for the disk. Costs an encoding: call it on the request's own thread.
    #[must_use]
    pub fn new(engine: &Engine, mut object: Object) -> Self {
        object.set_meta_str("resourceVersion", "");
        let raw = Bytes::from(engine.encode_protobuf(&object));
        Self { object, raw }
    }
}

impl StoredObject {
    /// Decodes what came from disk. Called once for every record after a store has been opened.
    ///
    /// # Errors
    /// The bytes are no object of a known kind.
    pub fn load(&self, engine: &Engine) -> Result<(), DecodeError> {
        if self.object.get().is_none() {
            let object = engine.decode_any(Format::Protobuf, &self.raw, Strictness::Ignore)?.object;
            let _ = self.object.set(stamped(object, self.stamp));
        }
        Ok(())
    }

    /// The tree.
    #[expect(
        clippy::expect_used,
        reason = "the invariant is kept by the only two ways to make a record"
    )]
    #[must_use]
    pub fn object(&self) -> &Object {
        self.object
            .get()
            .expect("invariant: set by stamp and tombstone, or by load before the store is served")
    }

    /// The object as JSON.
    pub fn json(&self, engine: &Engine) -> &Bytes {
        self.json.get_or_init(|| Bytes::from(engine.encode_json(self.object())))
    }

    /// The object as Protobuf, envelope included.
    pub fn protobuf(&self, engine: &Engine) -> &Bytes {
        self.protobuf.get_or_init(|| Bytes::from(engine.encode_protobuf(self.object())))
    }

    /// Revision of this version.
    #[must_use]
    pub fn revision(&self) -> apiserver_store::Revision {
        self.stamp.modified
    }

    /// The record as an object of another version of its kind; itself when that is its own.
    #[must_use]
    pub fn as_version(self: &Arc<Self>, kind: &Arc<Kind>) -> Arc<Self> {
        if Arc::ptr_eq(&self.object().kind, kind) {
            return self.clone();
        }
        let object = OnceLock::from(versions::convert(self.object(), kind));
        let (json, protobuf) = (OnceLock::new(), OnceLock::new());
        Arc::new(Self { object, raw: Bytes::new(), stamp: self.stamp, json, protobuf })
    }

    /// The same object under another revision: what a watcher with a selector is told when an object leaves its view.
    #[must_use]
    pub fn at(&self, stamp: Stamp) -> Arc<Self> {
        Arc::new(Self::tombstone(self, stamp))
    }
}

impl Record for StoredObject {
    type Draft = Draft;

    fn stored(draft: &Draft) -> Bytes {
        draft.raw.clone()
    }

    fn stamp(draft: Draft, stamp: Stamp) -> Self {
        Self {
            object: OnceLock::from(stamped(draft.object, stamp)),
            raw: Bytes::new(),
            stamp,
            json: OnceLock::new(),
            protobuf: OnceLock::new(),
        }
    }

    fn tombstone(last: &Self, stamp: Stamp) -> Self {
        Self {
            object: OnceLock::from(stamped(last.object().clone(), stamp)),
            raw: Bytes::new(),
            stamp,
            json: OnceLock::new(),
            protobuf: OnceLock::new(),
        }
    }

    fn restore(_key: &str, raw: Bytes, stamp: Stamp) -> Result<Self, RestoreError> {
        // Decoding needs the engine, which the store does not know: `load` follows.
        Ok(Self {
            object: OnceLock::new(),
            raw,
            stamp,
            json: OnceLock::new(),
            protobuf: OnceLock::new(),
        })
    }
}

fn stamped(mut object: Object, stamp: Stamp) -> Object {
    object.set_meta_str("resourceVersion", &stamp.modified.to_string());
    object
}
