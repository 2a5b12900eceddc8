//! The store's record of an object: the decoded tree and its JSON and Protobuf encodings. An encoding is made on first use
//! and then shared by responses, lists and watches. A conversion to another version is encoded per use.

use std::sync::{Arc, OnceLock};

use apiserver_schema::{DecodeError, Engine, Format, Kind, Object, Strictness};
use apiserver_store::{Record, RestoreError, Stamp};
use bytes::Bytes;

use crate::versions;

/// An object at one revision.
pub struct StoredObject {
    /// The tree, `resourceVersion` included. Unset only between opening a store and [`StoredObject::load`].
    object: OnceLock<Object>,
    /// The bytes read from disk, until [`StoredObject::load`] has decoded them.
    raw: Bytes,
    stamp: Stamp,
    json: OnceLock<Bytes>,
    protobuf: OnceLock<Bytes>,
}

/// An object to be written, without a revision.
pub struct Draft {
    object: Object,
    raw: Bytes,
}

impl Draft {
    /// Encodes `object` as Protobuf for the store. Called on the request's task, not on the writer thread.
    #[must_use]
    pub fn new(engine: &Engine, mut object: Object) -> Self {
        object.set_meta_str("resourceVersion", "");
        let raw = Bytes::from(engine.encode_protobuf(&object));
        Self { object, raw }
    }
}

impl StoredObject {
    /// Decodes the bytes read from disk. Called once for each record when a store is opened.
    ///
    /// # Errors
    /// The bytes are not an object of a known kind.
    pub fn load(&self, engine: &Engine) -> Result<(), DecodeError> {
        if self.object.get().is_none() {
            let object = engine.decode_any(Format::Protobuf, &self.raw, Strictness::Ignore)?.object;
            let _ = self.object.set(stamped(object, self.stamp));
        }
        Ok(())
    }

    /// The decoded object.
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

    /// The object encoded as JSON.
    pub fn json(&self, engine: &Engine) -> &Bytes {
        self.json.get_or_init(|| Bytes::from(engine.encode_json(self.object())))
    }

    /// The object encoded as Protobuf, envelope included.
    pub fn protobuf(&self, engine: &Engine) -> &Bytes {
        self.protobuf.get_or_init(|| Bytes::from(engine.encode_protobuf(self.object())))
    }

    /// The revision at which this version was written.
    #[must_use]
    pub fn revision(&self) -> apiserver_store::Revision {
        self.stamp.modified
    }

    /// The record converted to `kind`, another version of its kind; the record itself when `kind` is the stored version.
    #[must_use]
    pub fn as_version(self: &Arc<Self>, kind: &Arc<Kind>) -> Arc<Self> {
        if Arc::ptr_eq(&self.object().kind, kind) {
            return self.clone();
        }
        let object = OnceLock::from(versions::convert(self.object(), kind));
        let (json, protobuf) = (OnceLock::new(), OnceLock::new());
        Arc::new(Self { object, raw: Bytes::new(), stamp: self.stamp, json, protobuf })
    }

    /// The same object with another revision: the `DELETED` event of an object that no longer matches a watch's selector.
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
        // Decoding needs the engine, which `Record::restore` does not get: `load` follows.
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
