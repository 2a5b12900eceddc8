//! The store's record of an object: the decoded tree and its JSON and Protobuf encodings, in the stored version and in the others
//! that readers ask for. Each is made on first use and then shared by responses, lists and watches.
//!
//! The Protobuf of the stored version is made a second time for readers: what is written to disk has no `resourceVersion`, since the
//! revision is known only when the write is committed.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use apiserver_encryption::is_encrypted;
use apiserver_schema::{DecodeError, Engine, Kind, Object};
use apiserver_store::{BackupValue, Record, RestoreError, Revision, Stamp, TransformError};
use bytes::Bytes;

use crate::key;
use crate::service_values;
use crate::status::ApiError;
use crate::versions;

mod shrunk;
mod views;

use shrunk::{IDLE, READ, ShrunkObject};
use views::Views;

/// An object at one revision.
pub struct StoredObject {
    /// The tree, `resourceVersion` included. Unset between opening a store and [`StoredObject::load`], and of a shrunk record until it is read.
    object: OnceLock<Object>,
    origin: Origin,
    stamp: Stamp,
    json: OnceLock<Bytes>,
    protobuf: OnceLock<Bytes>,
    /// The record in another version, once a reader has asked for one; it has the next.
    converted: OnceLock<Arc<Self>>,
    /// An object of a custom kind as its readers see it.
    views: OnceLock<Views>,
    /// Of a view: the kind of the record itself.
    stored_as: Option<Arc<Kind>>,
    /// [`IDLE`], [`READ`] or `KEPT`, which says that it cannot be shrunk.
    usage: AtomicU8,
}

/// Where a record comes from.
enum Origin {
    /// A write with this size in the store, and this one in memory.
    Memory { stored_len: usize, memory_len: usize },
    /// These bytes on disk, for [`StoredObject::load`]; what the object takes in memory is calculated once it is asked for.
    Disk { raw: Bytes, memory_len: OnceLock<usize> },
    /// One of these, shrunk: bytes from which the tree is made again when it is read.
    Shrunk(Box<ShrunkObject>),
    /// Bytes on disk that cannot be read. Its tree has a name and no content: it stands for the object where names count, and is never served.
    Unreadable(Box<UnreadableObject>),
}

/// An object whose encryption key is gone.
struct UnreadableObject {
    key: String,
    stored: Bytes,
    why: String,
}

/// Kinds that the server itself decides by. If one of their objects cannot be read the server does not start: what stands for it would allow what the
/// object forbids, or give away an address that it has.
const DECIDED_BY: [(&str, &str); 9] = [
    ("apiextensions", "customresourcedefinitions"),
    ("", "namespaces"),
    ("", "services"),
    ("", "resourcequotas"),
    ("", "limitranges"),
    ("policy", "poddisruptionbudgets"),
    ("scheduling", "priorityclasses"),
    ("admissionregistration", "mutatingwebhookconfigurations"),
    ("admissionregistration", "validatingwebhookconfigurations"),
];

/// Why a record cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Its bytes are not an object.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// It cannot be decrypted, and the server needs it.
    #[error("it cannot be decoded, and the server needs it to start: {0}")]
    Needed(String),
    /// It cannot be decrypted, and its kind is not served.
    #[error("it cannot be decoded, and its kind is not served: {0}")]
    NoKind(String),
}

/// An object to be written, without a revision.
pub struct Draft {
    object: Object,
    raw: Bytes,
    memory_len: usize,
}

impl Draft {
    /// Encodes `object` as Protobuf for the store. Called on the request's task, not on the writer thread.
    #[must_use]
    pub fn new(engine: &Engine, mut object: Object) -> Self {
        object.set_meta_str("resourceVersion", "");
        let object = engine.in_storage_version(object);
        let raw = Bytes::from(engine.encode_stored(&object));
        let memory_len = memory_len(&object, &raw);
        Self { object, raw, memory_len }
    }
}

impl StoredObject {
    /// Decodes the bytes read from disk. Called once for each record when a store is opened.
    ///
    /// # Errors
    /// The bytes are not an object of a known kind, or are unreadable and of a kind that the server decides by.
    pub fn load(&self, engine: &Engine) -> Result<(), LoadError> {
        let object = match &self.origin {
            Origin::Memory { .. } | Origin::Shrunk(_) => return Ok(()),
            Origin::Disk { raw, .. } => engine.decode_stored(raw)?,
            Origin::Unreadable(unreadable) => unreadable.stand_in(engine)?,
        };
        let _ = self.object.set(stamped(object, self.stamp));
        Ok(())
    }

    /// The 500 for an object that cannot be decrypted.
    ///
    /// # Errors
    /// That one.
    pub fn check_readable(&self) -> Result<(), ApiError> {
        match &self.origin {
            Origin::Memory { .. } | Origin::Disk { .. } | Origin::Shrunk(_) => Ok(()),
            Origin::Unreadable(unreadable) => {
                let UnreadableObject { key, why, .. } = &**unreadable;
                Err(ApiError::internal(format!("unable to transform key {key:?}: {why}")))
            }
        }
    }

    /// The stored form for a backup.
    #[must_use]
    pub fn backup_value(&self, engine: &Engine) -> BackupValue {
        match &self.origin {
            Origin::Unreadable(unreadable) => BackupValue::AsOnDisk(unreadable.stored.clone()),
            Origin::Disk { raw, .. } => BackupValue::Value(raw.clone()),
            // A backup reads all objects, and leaves them as they are.
            Origin::Memory { .. } | Origin::Shrunk(_) => {
                let draft = Draft::new(engine, self.object_once().into_owned());
                BackupValue::Value(draft.raw)
            }
        }
    }

    /// The decoded object.
    #[must_use]
    pub fn object(&self) -> &Object {
        // Most reads find it noted, and leave the line of the cache to other processors.
        if self.usage.load(Ordering::Relaxed) == IDLE {
            self.usage.store(READ, Ordering::Relaxed);
        }
        self.object.get_or_init(|| self.decode())
    }

    #[expect(
        clippy::expect_used,
        reason = "the invariant is kept by the only ways to make a record"
    )]
    fn decode(&self) -> Object {
        let shrunk = match &self.origin {
            Origin::Shrunk(shrunk) => Some(shrunk),
            _ => None,
        };
        let shrunk = shrunk
            .expect("invariant: set by stamp and tombstone, or by load before the store is served");
        shrunk.decode(self.stamp)
    }

    /// The size in which a store writes the object; 0 for what is not stored.
    #[must_use]
    pub fn stored_len(&self) -> usize {
        match &self.origin {
            Origin::Memory { stored_len, .. } => *stored_len,
            Origin::Disk { raw, .. } => raw.len(),
            Origin::Shrunk(shrunk) => shrunk.stored_len,
            Origin::Unreadable(unreadable) => unreadable.stored.len(),
        }
    }

    /// The object encoded as JSON.
    pub fn json(&self, engine: &Engine) -> &Bytes {
        let object = self.object();
        // Kept for as long as the record, so without the room that an encoder's buffer has left.
        self.json.get_or_init(|| Bytes::from(engine.encode_json(object).into_boxed_slice()))
    }

    /// The object encoded as Protobuf, envelope included.
    pub fn protobuf(&self, engine: &Engine) -> &Bytes {
        let object = self.object();
        self.protobuf.get_or_init(|| Bytes::from(engine.encode_protobuf(object)))
    }

    /// The revision at which this version was written.
    #[must_use]
    pub fn revision(&self) -> apiserver_store::Revision {
        self.stamp.modified
    }

    /// The record converted to `kind`, another version of its kind; the record itself when `kind` is the stored version, when it cannot be
    /// decrypted, and when only a webhook can convert it, which the requests ask before.
    #[must_use]
    pub fn as_version(self: &Arc<Self>, kind: &Arc<Kind>) -> Arc<Self> {
        if !self.is_readable() || self.is_view_of(kind) {
            return self.clone();
        }
        if kind.custom_version().is_some() {
            return self.view_of(kind).unwrap_or_else(|| self.clone());
        }
        let mut shown = self;
        // Ends: each step is a version that the kind has.
        while !Arc::ptr_eq(&shown.object().kind, kind) {
            let convert = || Self::from_object(versions::convert(self.object(), kind), self.stamp);
            shown = shown.converted.get_or_init(|| Arc::new(convert()));
        }
        shown.clone()
    }

    /// The record of a custom kind as an object of `kind`; `None` if only a webhook can make it one.
    pub(crate) fn view_of(self: &Arc<Self>, kind: &Arc<Kind>) -> Option<Arc<Self>> {
        if !self.is_readable() || self.is_view_of(kind) {
            return Some(self.clone());
        }
        let version = kind.custom_version()?;
        self.views.get_or_init(Views::default).get_or_convert(self, kind, &version)
    }

    /// Keeps what a webhook has made of the record: an object of `kind` by the rules of this number.
    pub(crate) fn put_view(
        self: &Arc<Self>,
        kind: &Arc<Kind>,
        rules: u64,
        object: Object,
    ) -> Arc<Self> {
        self.views.get_or_init(Views::default).put(self, kind, rules, Some(object))
    }

    fn is_view_of(&self, kind: &Arc<Kind>) -> bool {
        self.stored_as.is_some() && Arc::ptr_eq(&self.object().kind, kind)
    }

    /// The record with another object at the same revision.
    fn showing(&self, object: Object) -> Self {
        let stored_as = Some(self.stored_as.clone().unwrap_or_else(|| self.object().kind.clone()));
        Self { stored_as, ..Self::from_object(object, self.stamp) }
    }

    /// Whether an object of a custom kind was stored in another version than its definition says now: an update that changes nothing stores it again.
    pub(crate) fn is_outdated(&self) -> bool {
        let kind = self.stored_as.as_ref().unwrap_or(&self.object().kind);
        self.object().kind.custom_version().is_some_and(|now| now.storage_version != kind.version())
    }

    /// A record of an object that is in no store, for lists of what is calculated.
    #[must_use]
    pub fn unstored(object: Object) -> Self {
        Self::from_object(object, Stamp { created: Revision(0), modified: Revision(0) })
    }

    fn from_object(object: Object, stamp: Stamp) -> Self {
        Self::new(OnceLock::from(object), Origin::Memory { stored_len: 0, memory_len: 0 }, stamp)
    }

    fn new(object: OnceLock<Object>, origin: Origin, stamp: Stamp) -> Self {
        let (json, protobuf, converted) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Self {
            object,
            origin,
            stamp,
            json,
            protobuf,
            converted,
            views: OnceLock::new(),
            stored_as: None,
            usage: AtomicU8::new(READ),
        }
    }

    /// The same object with another revision: the `DELETED` event of an object that no longer matches a watch's selector.
    #[must_use]
    pub fn at(&self, stamp: Stamp) -> Arc<Self> {
        Arc::new(Self::tombstone(self, stamp))
    }
}

impl Record for StoredObject {
    type Draft = Draft;

    /// Of a pod its node, each of which watches its own.
    fn topic(&self) -> Option<&str> {
        let object = self.is_readable().then(|| self.object())?;
        object.kind.is("", "Pod").then(|| object.str_at(&["spec", "nodeName"]))
    }

    /// Of each kind: `/core/pods/` and `/custom/example.com/foos/`.
    fn history_group(key: &str) -> &str {
        let segments = if key.starts_with("/custom/") { 4 } else { 3 };
        let end = key.match_indices('/').nth(segments - 1).map_or(key.len(), |(at, _)| at + 1);
        key.get(..end).unwrap_or(key)
    }

    fn stored(draft: &Draft) -> Bytes {
        draft.raw.clone()
    }

    fn stamp(draft: Draft, stamp: Stamp) -> Self {
        let object = OnceLock::from(stamped(draft.object, stamp));
        let (stored_len, memory_len) = (draft.raw.len(), draft.memory_len);
        Self::new(object, Origin::Memory { stored_len, memory_len }, stamp)
    }

    fn tombstone(last: &Self, stamp: Stamp) -> Self {
        let object = OnceLock::from(stamped(last.object_once().into_owned(), stamp));
        let memory_len = last.memory_len();
        Self::new(object, Origin::Memory { stored_len: 0, memory_len }, stamp)
    }

    fn memory_len(&self) -> usize {
        match &self.origin {
            Origin::Memory { memory_len, .. } => *memory_len,
            Origin::Disk { raw, memory_len: known } => match self.object.get() {
                Some(object) => *known.get_or_init(|| memory_len(object, raw)),
                None => raw.len(),
            },
            Origin::Shrunk(shrunk) => shrunk.memory_len,
            Origin::Unreadable(unreadable) => unreadable.stored.len(),
        }
    }

    fn restore(key: &str, raw: Bytes, stamp: Stamp) -> Result<Self, RestoreError> {
        if is_encrypted(&raw) {
            let why = "it is encrypted, and there is no --encryption-provider-config";
            return Self::unreadable(key, raw, stamp, why.into());
        }
        // Decoding needs the engine, which `Record::restore` does not get: `load` follows.
        Ok(Self::new(OnceLock::new(), Origin::Disk { raw, memory_len: OnceLock::new() }, stamp))
    }

    fn unreadable(
        key: &str,
        stored: Bytes,
        stamp: Stamp,
        why: TransformError,
    ) -> Result<Self, RestoreError> {
        let unreadable = UnreadableObject { key: key.to_owned(), stored, why: why.to_string() };
        Ok(Self::new(OnceLock::new(), Origin::Unreadable(Box::new(unreadable)), stamp))
    }

    fn claims(&self) -> Vec<String> {
        service_values::claims(self.object())
    }

    fn claims_of(draft: &Draft) -> Vec<String> {
        service_values::claims(&draft.object)
    }

    fn is_readable(&self) -> bool {
        !matches!(self.origin, Origin::Unreadable(_))
    }
}

/// What a record takes: itself with its keys and events, the tree, and three times its stored form for the texts in it, JSON and Protobuf. Some characters
/// take six bytes in JSON.
fn memory_len(object: &Object, stored: &[u8]) -> usize {
    let escaped = match stored.len() {
        ..ESCAPES_COUNTED_FROM => 0,
        _ => stored.iter().filter(|byte| matches!(byte, 0..0x20 | b'<' | b'>' | b'&')).count(),
    };
    let texts = stored.len().saturating_mul(3).saturating_add(escaped.saturating_mul(5));
    object.tree_len().saturating_add(texts).saturating_add(RECORD_LEN)
}

/// What each record takes besides its content, as measured with small ConfigMaps: keys, versions, allocations.
const RECORD_LEN: usize = 1 << 10;

/// In shorter records most bytes below a blank are those of the encoding.
const ESCAPES_COUNTED_FROM: usize = 16 << 10;

impl UnreadableObject {
    /// An object of the kind and name that its key says.
    fn stand_in(&self, engine: &Engine) -> Result<Object, LoadError> {
        let mut kinds = engine.kinds().iter().filter(|kind| kind.resource.is_some());
        let kind = kinds.find(|kind| self.key.starts_with(&key::prefix(kind, "")));
        let kind = kind.ok_or_else(|| LoadError::NoKind(self.why.clone()))?;
        if DECIDED_BY.contains(&(kind.short_group, kind.plural())) {
            return Err(LoadError::Needed(self.why.clone()));
        }
        let kind = versions::stored_kind(engine, engine.names(), kind);
        let rest = self.key.strip_prefix(&key::prefix(&kind, "")).unwrap_or_default();
        let (namespace, name) = rest.split_once('/').unwrap_or(("", rest));
        let mut object = Object::new(kind);
        object.set_meta_str("namespace", namespace);
        object.set_meta_str("name", name);
        Ok(object)
    }
}

fn stamped(mut object: Object, stamp: Stamp) -> Object {
    object.set_meta_str("resourceVersion", &stamp.modified.to_string());
    object
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use apiserver_schema::{Format, Strictness};
    use proto_api::names::{Names, Profile};

    use super::*;

    /// A text of `<` is six times as long in JSON.
    #[test]
    fn escaped_characters_count_as_long_as_they_are() {
        let engine = Engine::new(Names::new(Profile::Kubernetes));
        let text = "<".repeat(100_000);
        let object = format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"a"}},"data":{{"k":"{text}"}}}}"#
        );
        let object = engine.decode_any(Format::Json, object.as_bytes(), Strictness::Strict);
        let stamp = Stamp { created: Revision(7), modified: Revision(7) };
        let draft = Draft::new(&engine, object.expect("valid").object);
        let record = StoredObject::stamp(draft, stamp);
        let made = record.json(&engine).len() + record.protobuf(&engine).len();
        assert!(record.memory_len() >= made, "{} of {made}", record.memory_len());
    }

    /// The history is bounded by what its records take in memory: a tree is larger than its bytes, and a deletion has one as well.
    #[test]
    fn records_take_more_memory_than_bytes_on_disk() {
        let engine = Engine::new(Names::new(Profile::Kubernetes));
        let stamp = Stamp { created: Revision(7), modified: Revision(7) };
        let record = |labels: usize, text: usize| {
            let labels: Vec<String> = (0..labels).map(|n| format!(r#""l{n}":"v""#)).collect();
            let (labels, text) = (labels.join(","), "x".repeat(text));
            let object = format!(
                r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"a","labels":{{{labels}}}}},"data":{{"k":"{text}"}}}}"#
            );
            let object = engine.decode_any(Format::Json, object.as_bytes(), Strictness::Strict);
            StoredObject::stamp(Draft::new(&engine, object.expect("valid").object), stamp)
        };
        for (small, large, entry) in
            [(record(0, 1), record(100, 1), 6400), (record(0, 1), record(0, 6400), 12_800)]
        {
            let deleted = StoredObject::tombstone(&large, stamp);
            assert!(large.memory_len() >= small.memory_len() + entry, "{}", large.memory_len());
            assert_eq!((deleted.stored_len(), deleted.memory_len()), (0, large.memory_len()));
        }
        let stored = StoredObject::stored(&Draft::new(&engine, record(100, 1).object().clone()));
        let restored = StoredObject::restore("k", stored, stamp).expect("bytes");
        restored.load(&engine).expect("an object");
        // Its resourceVersion is there as well.
        assert!(restored.memory_len().abs_diff(record(100, 1).memory_len()) <= 200);
    }

    #[test]
    fn every_version_is_encoded_once_for_all_its_readers() {
        let engine = Engine::new(Names::new(Profile::Kubernetes));
        let kind = |version: &str| {
            let resource = engine.resource("autoscaling", version, "horizontalpodautoscalers");
            resource.expect("served").clone()
        };
        let text = br#"{"apiVersion":"autoscaling/v2","kind":"HorizontalPodAutoscaler","metadata":{"name":"a"},
            "spec":{"maxReplicas":3,"scaleTargetRef":{"kind":"Deployment","name":"d"}}}"#;
        let object =
            engine.decode_any(Format::Json, text, Strictness::Strict).expect("valid").object;
        let stamp = Stamp { created: Revision(7), modified: Revision(7) };
        let record = Arc::new(StoredObject::stamp(Draft::new(&engine, object), stamp));
        let kinds = ["v1", "v2"].map(kind);
        // Held, so that no two encodings have one address one after the other.
        let (mut encodings, mut held) = (BTreeSet::new(), Vec::new());
        for _reader in 0..5 {
            for kind in &kinds {
                let shown = record.as_version(kind);
                assert!(Arc::ptr_eq(&shown.object().kind, kind));
                encodings.insert(shown.json(&engine).as_ptr());
                encodings.insert(shown.protobuf(&engine).as_ptr());
                held.push(shown);
            }
        }
        assert_eq!(encodings.len(), kinds.len() * 2);
        let later = Stamp { modified: Revision(8), ..stamp };
        let deleted = record.at(later).as_version(&kinds[0]);
        assert_eq!(
            deleted.object().meta_str("resourceVersion"),
            "8",
            "converted from its own tree"
        );
    }
}
