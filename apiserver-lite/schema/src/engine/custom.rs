//! Kinds of definitions, and the form in which objects are stored.

use std::sync::Arc;

use super::{DecodeError, Engine, Format, Problems};
use crate::list::PROTOBUF_MAGIC;
use crate::object::custom::codec::{checked_metadata, custom_type_meta_json, write_stored};
use crate::object::custom::{CUSTOM, CustomKind, CustomNames, CustomVersion};
use crate::object::{Kind, Object};
use crate::value::{Allowance, Value};

impl Engine {
    /// The custom kind with these names: the same one as long as anything has it. Its rules are those of its definition, if there is one.
    pub fn custom_kind(&self, names: &CustomNames<'_>) -> Option<Arc<Kind>> {
        // The descriptor of an object with nothing but metadata.
        let metadata = self.by_kind.get(&("meta", "v1", "PartialObjectMetadata"))?;
        let metadata = self.kinds.get(*metadata)?;
        Some(self.custom.get(names, || {
            let api_version = format!("{}/{}", names.group, names.version);
            Kind {
                group: names.group.to_owned(),
                short_group: CUSTOM,
                version: names.version.to_owned().into(),
                kind: names.kind.to_owned().into(),
                names: self.names,
                resource: None,
                custom: Some(CustomKind::new(names.plural, names.namespaced)),
                shapes: Arc::clone(&metadata.shapes),
                root: metadata.root,
                type_meta_json: custom_type_meta_json(names.kind, &api_version),
                api_version,
            }
        }))
    }

    /// The object in the version in which it is stored, without the fields that this version does not have; of built-in kinds, and where a webhook
    /// converts, the caller has chosen it.
    pub fn in_storage_version(&self, mut object: Object) -> Object {
        let version = object.kind.custom_version().filter(|version| !version.has_webhook);
        let Some(kind) = version.and_then(|version| self.storage_kind(&object.kind, &version))
        else {
            return object;
        };
        if let Some(stored) = kind.custom_version().filter(|_| !Arc::ptr_eq(&kind, &object.kind)) {
            stored.rules.prune(&mut object.fields, &mut Vec::new());
        }
        Object { kind, ..object }
    }

    /// The kind in the version in which objects of `kind`, a custom one with these rules, are stored.
    pub fn storage_kind(&self, kind: &Kind, version: &CustomVersion) -> Option<Arc<Kind>> {
        let names = CustomNames {
            group: &kind.group,
            version: &version.storage_version,
            kind: kind.kind(),
            plural: kind.plural(),
            namespaced: kind.namespaced(),
        };
        self.custom_kind(&names)
    }

    /// The bytes that a store keeps of an object: Protobuf in its envelope; of a custom kind JSON with the names of its resource.
    pub fn encode_stored(&self, object: &Object) -> Vec<u8> {
        match object.kind.custom() {
            Some(_) => write_stored(&object.kind, &self.encode_json(object)),
            None => self.encode_protobuf(object),
        }
    }

    /// The object of [`Engine::encode_stored`], as it was written: it is neither pruned nor defaulted.
    pub fn decode_stored(&self, raw: &[u8]) -> Result<Object, DecodeError> {
        if raw.starts_with(&PROTOBUF_MAGIC) {
            return Ok(self.decode_protobuf(None, raw, Allowance::unbounded())?.object);
        }
        let damaged = || DecodeError::Malformed {
            format: Format::Json,
            detail: "it is not a stored object of a custom kind".to_owned(),
        };
        let end = raw.iter().position(|byte| *byte == b'\n').ok_or_else(damaged)?;
        let (head, object) = raw.split_at(end);
        let parse =
            |text: &[u8]| Problems::default().parse(Format::Json, text, Allowance::unbounded());
        let head = parse(head)?;
        let head = head.as_map().ok_or_else(damaged)?;
        let (plural, namespaced) = (head.str("plural"), head.is_true("namespaced"));
        let object = parse(object)?;
        let Value::Map(mut fields) = object else { return Err(damaged()) };
        let api_version = fields.remove("apiVersion").unwrap_or_default();
        let kind = fields.remove("kind").unwrap_or_default();
        let (group, version) =
            api_version.as_str().and_then(|text| text.split_once('/')).ok_or_else(damaged)?;
        let kind = kind.as_str().ok_or_else(damaged)?;
        let names = CustomNames { group, version, kind, plural, namespaced };
        let kind = self.custom_kind(&names).ok_or_else(damaged)?;
        let fields = checked_metadata(&kind, fields, &mut Vec::new()).map_err(|error| {
            DecodeError::Type {
                kind: kind.kind().to_owned(),
                version: kind.version().to_owned(),
                error,
            }
        })?;
        Ok(Object { kind, fields })
    }
}
