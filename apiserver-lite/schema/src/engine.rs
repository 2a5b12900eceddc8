//! The engine: the registered kinds, and decoding, defaulting, patching, validation and encoding of their objects.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use compact_str::CompactString;
use proto_api::names::Names;
use proto_api::schema;

use crate::field_gates::FieldGates;
use crate::gated_fields::DroppedField;
use crate::json_writer::{write_object, write_tree};
use crate::list::{envelope, open_envelope};
use crate::object::custom::CustomKinds;
use crate::object::custom::codec::{custom_fields, write_custom};
use crate::object::{Kind, Object};
use crate::patch::{PatchError, PatchType, apply_json_patch, apply_merge_patch, apply_strategic};
use crate::shape::compile;
use crate::shape_check::{TypeError, conform};
use crate::update::Subresource;
use crate::validate::{self, FieldErrors, ValidationOptions};
use crate::value::{Allowance, Map, TooLarge, Value, write_json_string};
use crate::wire::{WireError, decode_message, encode_message};

mod bounds;
mod custom;
mod problems;

use bounds::{parse_patch, within_bounds};
use problems::Problems;

/// Encoding of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `application/json`.
    Json,
    /// `application/yaml`.
    Yaml,
    /// Protobuf in its envelope.
    Protobuf,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Json => "JSON",
            Format::Yaml => "YAML",
            Format::Protobuf => "Protobuf",
        })
    }
}

/// Treatment of unknown and duplicate fields (query parameter `fieldValidation`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// They are dropped.
    Ignore,
    /// They are dropped with a warning each.
    Warn,
    /// They are an error.
    Strict,
}

/// A decoded object with warnings for the client.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodedObject {
    /// The object, not defaulted.
    pub object: Object,
    /// One warning per field; empty unless [`Strictness::Warn`].
    pub warnings: Vec<String>,
}

/// Why a body is not an object of the expected kind: a 400, unless it says otherwise.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not valid in the format.
    #[error("the body is not valid {format}: {detail}")]
    Malformed {
        /// The expected format.
        format: Format,
        /// The error of the parser.
        detail: String,
    },
    /// The document is not an object.
    #[error("the body must be an object, got {0}")]
    NotAnObject(&'static str),
    /// The document has no `kind`.
    #[error("Object 'Kind' is missing")]
    NoKind,
    /// The document is of a kind that is not registered.
    #[error("no kind {kind:?} is registered for version {api_version:?}")]
    UnknownKind {
        /// `apiVersion` in the document.
        api_version: String,
        /// `kind` in the document.
        kind: String,
    },
    /// The document has another kind than the resource.
    #[error("{kind} in version {api_version:?} cannot be handled as a {expected}")]
    WrongKind {
        /// `apiVersion` in the document.
        api_version: String,
        /// `kind` in the document.
        kind: String,
        /// The kind of the resource.
        expected: String,
    },
    /// A field has another type than the descriptor's.
    #[error("{kind} in version {version:?} cannot be handled as a {kind}: {error}")]
    Type {
        kind: String,
        /// Without the group.
        version: String,
        /// The field, the expected type, and the value found.
        error: TypeError,
    },
    /// The Protobuf message does not match the descriptor.
    #[error("{kind} in version {version:?} cannot be handled as a {kind}: {error}")]
    Wire {
        kind: String,
        version: String,
        /// The error of the decoder.
        error: WireError,
    },
    /// The object has too many values: a 413.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// Unknown or duplicate fields, under [`Strictness::Strict`].
    #[error("strict decoding error: {}", .0.join(", "))]
    Strict(Vec<String>),
}

/// The registered kinds, under the names of one profile.
pub struct Engine {
    names: &'static Names,
    gates: FieldGates,
    kinds: Vec<Arc<Kind>>,
    by_kind: HashMap<(&'static str, &'static str, &'static str), usize>,
    by_resource: HashMap<(&'static str, &'static str, &'static str), usize>,
    pub(crate) custom: CustomKinds,
}

impl Engine {
    /// An engine with the built-in kinds. It compiles all descriptors: create it once per process.
    pub fn new(names: &'static Names) -> Self {
        Self::with_optional(names, &|_| false)
    }

    /// [`Engine::new`] with those kinds of [`schema::optional_resources`], too, that are `on`. To the engine the others do not exist.
    pub fn with_optional(
        names: &'static Names,
        on: &dyn Fn(&schema::ResourceDescriptor) -> bool,
    ) -> Self {
        let is_on = |kind: &&schema::KindDescriptor| {
            schema::optional_resource_of_kind(kind.group, kind.version, kind.kind).is_none_or(on)
        };
        let kinds = schema::kinds().iter().filter(is_on);
        let kinds = kinds.map(|kind| (kind.group, kind.version, kind.kind, kind.message));
        // A WatchEvent has no `kind`, but is encoded and decoded like one.
        let event = schema::message_id("meta", "v1", "WatchEvent");
        let kinds: Vec<_> = kinds.chain(event.map(|id| ("", "v1", "WatchEvent", id))).collect();
        let (shapes, roots) = compile(kinds.iter().map(|(.., message)| *message));
        let shapes = Arc::new(shapes);
        let mut engine = Engine {
            names,
            gates: FieldGates::default(),
            kinds: Vec::new(),
            by_kind: HashMap::new(),
            by_resource: HashMap::new(),
            custom: CustomKinds::default(),
        };
        for (short_group, version, kind, message) in kinds {
            let Some(&root) = roots.get(&message) else { continue };
            let api_version = names.api_version(short_group, version);
            let type_meta_json = if message.get().is_kind {
                type_meta_json(kind, &api_version)
            } else {
                String::new()
            };
            let at = engine.kinds.len();
            let resource = schema::resource_of_kind(short_group, version, kind).or_else(|| {
                let found = schema::optional_resource_of_kind(short_group, version, kind);
                found.filter(|found| found.kind == kind)
            });
            engine.by_kind.insert((short_group, version, kind), at);
            if let Some(resource) = resource {
                engine.by_resource.insert((resource.group, resource.version, resource.plural), at);
            }
            engine.kinds.push(Arc::new(Kind {
                group: names.group(short_group),
                short_group,
                version: version.into(),
                kind: kind.into(),
                names,
                api_version,
                resource,
                custom: None,
                shapes: Arc::clone(&shapes),
                root,
                type_meta_json,
            }));
        }
        engine
    }

    /// The engine with these feature gates: fields and values that need another one are not for new objects.
    #[must_use]
    pub fn with_gates(self, gates: FieldGates) -> Self {
        Self { gates, ..self }
    }

    /// The naming profile.
    pub fn names(&self) -> &'static Names {
        self.names
    }

    /// All registered kinds.
    pub fn kinds(&self) -> &[Arc<Kind>] {
        &self.kinds
    }

    /// A kind by group (domain included, empty for core), version and name. Kinds of options are found under every group.
    pub fn kind(&self, group: &str, version: &str, kind: &str) -> Option<&Arc<Kind>> {
        let short_group = self.names.short_group(group)?;
        let at = self.by_kind.get(&(short_group, version, kind)).or_else(|| {
            let shared = schema::kind(short_group, version, kind)?;
            self.by_kind.get(&(shared.group, shared.version, shared.kind))
        })?;
        self.kinds.get(*at)
    }

    /// A kind by the `apiVersion` and `kind` of a document.
    pub fn kind_of(&self, api_version: &str, kind: &str) -> Option<&Arc<Kind>> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        self.kind(group, version, kind)
    }

    /// The kind of a resource, by group (domain included, empty for core), version and plural name.
    pub fn resource(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Kind>> {
        let short_group = self.names.short_group(group)?;
        let at = self.by_resource.get(&(short_group, version, plural))?;
        self.kinds.get(*at)
    }

    /// Decodes an object of `kind`. A document without `kind` and `apiVersion` is accepted.
    pub fn decode(
        &self,
        kind: &Arc<Kind>,
        format: Format,
        body: &[u8],
        strictness: Strictness,
    ) -> Result<DecodedObject, DecodeError> {
        let decoded = match format {
            Format::Protobuf => self.decode_protobuf(Some(kind), body, Allowance::of_body()),
            Format::Json | Format::Yaml => {
                let mut problems = Problems::default();
                let document = problems.parse(format, body, Allowance::of_body())?;
                self.check(kind, document, problems, strictness)
            }
        };
        within_bounds(decoded?, None)
    }

    /// Decodes an object of the kind that the document names.
    pub fn decode_any(
        &self,
        format: Format,
        body: &[u8],
        strictness: Strictness,
    ) -> Result<DecodedObject, DecodeError> {
        if format == Format::Protobuf {
            let decoded = self.decode_protobuf(None, body, Allowance::of_body());
            return within_bounds(decoded?, None);
        }
        let mut problems = Problems::default();
        let document = problems.parse(format, body, Allowance::of_body())?;
        let Value::Map(map) = &document else {
            return Err(DecodeError::NotAnObject(document.shape()));
        };
        let (api_version, name) = (map.str("apiVersion"), map.str("kind"));
        if name.is_empty() {
            return Err(DecodeError::NoKind);
        }
        let kind = self.kind_of(api_version, name).ok_or_else(|| DecodeError::UnknownKind {
            api_version: api_version.to_owned(),
            kind: name.to_owned(),
        })?;
        within_bounds(self.check(&Arc::clone(kind), document, problems, strictness)?, None)
    }

    /// Parses a body of JSON or YAML without looking at its kind; an apply patch is such a document. Of duplicate keys the last value wins, with a
    /// warning or an error as `strictness` says.
    pub fn parse_document(
        &self,
        format: Format,
        body: &[u8],
        strictness: Strictness,
    ) -> Result<(Value, Vec<String>), DecodeError> {
        let mut problems = Problems::default();
        let document = problems.parse(format, body, Allowance::of_body())?;
        Ok((document, problems.into_warnings(strictness)?))
    }

    /// The object of `kind` that apply has made of `old`, or of nothing. It is not defaulted.
    pub fn applied(
        &self,
        kind: &Arc<Kind>,
        document: Value,
        old: Option<&Object>,
        strictness: Strictness,
    ) -> Result<DecodedObject, DecodeError> {
        within_bounds(self.object_of(kind, document, strictness)?, old)
    }

    /// The object of `kind` that a document is, for documents that are made from objects. It is not defaulted.
    pub fn object_of(
        &self,
        kind: &Arc<Kind>,
        document: Value,
        strictness: Strictness,
    ) -> Result<DecodedObject, DecodeError> {
        self.check(kind, document, Problems::default(), strictness)
    }

    /// Checks a document against the descriptor: the last step of decoding and patching.
    fn check(
        &self,
        kind: &Arc<Kind>,
        document: Value,
        mut problems: Problems,
        strictness: Strictness,
    ) -> Result<DecodedObject, DecodeError> {
        let shape = document.shape();
        let Value::Map(mut map) = document else { return Err(DecodeError::NotAnObject(shape)) };
        if !kind.type_meta_json.is_empty() {
            let text = |value: Option<Value>| match value {
                Some(Value::String(text)) => text,
                _ => CompactString::default(),
            };
            let (name, api_version) = (text(map.remove("kind")), text(map.remove("apiVersion")));
            require_kind(kind, &api_version, &name)?;
        }
        let type_error = |error| DecodeError::Type {
            kind: kind.kind().to_owned(),
            version: kind.version().to_owned(),
            error,
        };
        let fields = match kind.custom() {
            Some(_) => custom_fields(kind, map, &mut problems.unknown),
            None => conform(&kind.shapes, kind.root, map, &mut problems.unknown),
        };
        let fields = fields.map_err(type_error)?;
        let warnings = problems.into_warnings(strictness)?;
        Ok(DecodedObject { object: Object { kind: Arc::clone(kind), fields }, warnings })
    }

    fn decode_protobuf(
        &self,
        kind: Option<&Arc<Kind>>,
        body: &[u8],
        allowance: Allowance,
    ) -> Result<DecodedObject, DecodeError> {
        let envelope = open_envelope(body).ok_or_else(|| DecodeError::Malformed {
            format: Format::Protobuf,
            detail: "the Protobuf envelope is missing or malformed".to_owned(),
        })?;
        let kind = match kind {
            Some(kind) => {
                require_kind(kind, envelope.api_version, envelope.kind)?;
                kind
            }
            None => self.kind_of(envelope.api_version, envelope.kind).ok_or_else(|| {
                DecodeError::UnknownKind {
                    api_version: envelope.api_version.to_owned(),
                    kind: envelope.kind.to_owned(),
                }
            })?,
        };
        let fields = decode_message(&kind.shapes, kind.root, envelope.raw, allowance);
        let fields = fields.map_err(|error| match error {
            WireError::TooLarge(error) => error.into(),
            error => DecodeError::Wire {
                kind: kind.kind().to_owned(),
                version: kind.version().to_owned(),
                error,
            },
        })?;
        Ok(DecodedObject {
            object: Object { kind: Arc::clone(kind), fields },
            warnings: Vec::new(),
        })
    }

    /// Encodes as compact JSON, `kind` and `apiVersion` first, without a final newline.
    pub fn encode_json(&self, object: &Object) -> Vec<u8> {
        let mut out = Vec::with_capacity(512);
        let kind = &object.kind;
        if kind.custom.is_some() {
            write_custom(&mut out, kind, &object.fields);
            return out;
        }
        write_object(&mut out, &kind.shapes, kind.root, &object.fields, &kind.type_meta_json);
        out
    }

    /// Encodes as YAML as kubectl prints it, keys sorted.
    pub fn encode_yaml(&self, object: &Object) -> String {
        let json: serde_json::Value =
            serde_json::from_slice(&self.encode_json(object)).unwrap_or_default(); // own output is JSON
        proto_api::yaml::to_string(&json)
    }

    /// Protobuf in its envelope.
    pub fn encode_protobuf(&self, object: &Object) -> Vec<u8> {
        let kind = &object.kind;
        let mut raw = Vec::with_capacity(512);
        encode_message(&mut raw, &kind.shapes, kind.root, &object.fields);
        if kind.type_meta_json.is_empty() {
            return envelope("", "", &raw);
        }
        envelope(&kind.api_version, kind.kind(), &raw)
    }

    /// The PartialObjectMetadata of an object.
    pub fn metadata_only(&self, object: &Object) -> Object {
        let kind = self.by_kind.get(&("meta", "v1", "PartialObjectMetadata"));
        let kind = kind.and_then(|&at| self.kinds.get(at)).unwrap_or(&object.kind);
        let mut partial = Object::new(Arc::clone(kind));
        if let Some(metadata) = object.fields.get("metadata") {
            partial.fields.insert("metadata", metadata.clone());
        }
        partial
    }

    /// The object as a JSON tree with `apiVersion` and `kind`, without zero values.
    pub fn document(&self, object: &Object) -> Value {
        let mut map = object.fields.clone();
        if !object.kind.type_meta_json.is_empty() {
            map.insert("kind", object.kind.kind());
            map.insert("apiVersion", object.kind.api_version.as_str());
        }
        Value::Map(map)
    }

    /// The object as clients read it in JSON, with `apiVersion`, `kind` and the zero values that JSON does not omit. Ownership of fields is
    /// computed over this form.
    pub fn written_document(&self, object: &Object) -> Value {
        let kind = &object.kind;
        let mut map = match kind.custom {
            Some(_) => object.fields.clone(),
            None => write_tree(&kind.shapes, kind.root, &object.fields),
        };
        if !kind.type_meta_json.is_empty() {
            map.insert("kind", kind.kind());
            map.insert("apiVersion", kind.api_version.as_str());
        }
        Value::Map(map)
    }

    /// Sets Kubernetes' defaults for unset fields. Idempotent.
    pub fn default(&self, object: &mut Object) {
        if let Some(version) = object.kind.custom_version() {
            return version.rules.default(&mut object.fields);
        }
        crate::defaults::apply(self.names, object);
        crate::defaults::apply_gated(self.gates, object);
    }

    /// Drops the fields whose feature gate is off from an object that is written, unless `before`, the stored object, has them. Gives what was dropped.
    pub fn drop_disabled(&self, object: &mut Object, before: Option<&Object>) -> Vec<DroppedField> {
        crate::gated_fields::drop_disabled(self.gates, object, before)
    }

    /// Applies a patch to `object` and checks the result against the descriptor; the result is not defaulted.
    pub fn patch(
        &self,
        object: &Object,
        patch_type: PatchType,
        body: &[u8],
        strictness: Strictness,
    ) -> Result<Result<DecodedObject, DecodeError>, PatchError> {
        let (patch, problems) = parse_patch(body)?;
        let kind = Some(&*object.kind);
        let document = Self::patch_document(kind, self.document(object), patch_type, patch)?;
        let patched = self.check(&object.kind, document, problems, strictness);
        Ok(patched.and_then(|patched| within_bounds(patched, Some(object))))
    }

    /// Applies a patch to a document, which is a map. The keys of a strategic merge patch are those of the kind's lists.
    ///
    /// # Errors
    /// The patch does not fit, or is a strategic one of an unknown kind.
    pub fn patch_document(
        kind: Option<&Kind>,
        mut document: Value,
        patch_type: PatchType,
        patch: Value,
    ) -> Result<Value, PatchError> {
        match (patch_type, patch, kind) {
            (PatchType::Json, patch, _) => apply_json_patch(&mut document, &patch)?,
            (PatchType::Merge, patch @ Value::Map(_), _) => apply_merge_patch(&mut document, patch),
            (PatchType::Strategic, Value::Map(patch), Some(kind)) => {
                let original = match document {
                    Value::Map(original) => original,
                    other => return Err(not_an_object("the patched document", &other)),
                };
                document = Value::Map(apply_strategic(&kind.shapes, kind.root, original, patch)?);
            }
            (PatchType::Strategic, Value::Map(_), None) => {
                let why = "a strategic merge patch needs a kind of Kubernetes' own";
                return Err(PatchError::Malformed(why.to_owned()));
            }
            (_, other, _) => return Err(not_an_object("a patch", &other)),
        }
        Ok(document)
    }

    /// The strategic merge patch that brings `current`, as the server has it, from what a user described last to what they describe now. The documents have
    /// `apiVersion` and `kind`.
    pub fn difference(
        kind: &Kind,
        original: &Map,
        modified: &Map,
        current: &Map,
    ) -> Result<Map, PatchError> {
        crate::patch::strategic_difference(&kind.shapes, kind.root, original, modified, current)
    }

    /// Applies a JSON patch to the object as clients read it, with the empty fields that JSON does not omit; unknown fields are dropped. Webhooks make
    /// their patches for this form: `resources` of a container is there even if it is empty.
    pub fn patch_written(
        &self,
        object: &Object,
        body: &[u8],
    ) -> Result<Result<DecodedObject, DecodeError>, PatchError> {
        let (patch, problems) = parse_patch(body)?;
        let mut document = self.written_document(object);
        apply_json_patch(&mut document, &patch)?;
        let patched = self.check(&object.kind, document, problems, Strictness::Ignore);
        Ok(patched.and_then(|patched| within_bounds(patched, Some(object))))
    }

    /// Validates an object to be created: defaulted, with name and namespace.
    pub fn validate_create(&self, object: &Object) -> Result<(), FieldErrors> {
        validate::create(self.validation_options(), object)
    }

    /// Validates only the metadata of an object.
    pub fn validate_metadata(&self, object: &Object) -> Result<(), FieldErrors> {
        validate::metadata_of(object)
    }

    /// Validates `new`, made by [`crate::update::merge_for_update`], as an update of `old`.
    pub fn validate_update(
        &self,
        old: &Object,
        new: &Object,
        subresource: Subresource,
    ) -> Result<(), FieldErrors> {
        validate::update(self.validation_options(), old, new, subresource)
    }

    fn validation_options(&self) -> ValidationOptions {
        ValidationOptions { names: self.names, gates: self.gates }
    }
}

/// `"kind":"…","apiVersion":"…"`.
fn type_meta_json(kind: &str, api_version: &str) -> String {
    let mut out = b"\"kind\":".to_vec();
    write_json_string(&mut out, kind);
    out.extend_from_slice(b",\"apiVersion\":");
    write_json_string(&mut out, api_version);
    String::from_utf8_lossy(&out).into_owned()
}

/// Checks that the document's `kind` and `apiVersion`, if set, are those of the resource.
fn require_kind(kind: &Kind, api_version: &str, name: &str) -> Result<(), DecodeError> {
    let fits = |have: &str, want: &str| have.is_empty() || have == want;
    // Option kinds are the same message in every group, and clients use the group of their request.
    let is_options = kind.custom().is_none() && kind.kind().ends_with("Options");
    let shared = is_options && name == kind.kind();
    // An eviction may be one of v1beta1, which has the same fields: clients from before 1.22 send no other, and Kubernetes still takes it.
    let is_older = kind.is("policy", "Eviction")
        && api_version.strip_prefix(kind.group.as_str()) == Some("/v1beta1");
    let is_version = is_older || fits(api_version, &kind.api_version);
    if shared || fits(name, kind.kind()) && is_version {
        return Ok(());
    }
    Err(DecodeError::WrongKind {
        api_version: api_version.to_owned(),
        kind: name.to_owned(),
        expected: kind.kind().to_owned(),
    })
}

fn not_an_object(what: &str, found: &Value) -> PatchError {
    PatchError::Malformed(format!("{what} must be an object, not a {}", found.shape()))
}
