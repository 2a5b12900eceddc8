//! Structures of custom resources, from the OpenAPI schema of a version.

use std::borrow::Cow;

use apiserver_schema::value::Key;
use apiserver_schema::{Map, Value};

use super::{Atom, KeyField, MapType, Relation, Scalar, Structure, TypeId, Types, built_in};
use crate::set::MAX_DEPTH;

/// Why a schema has no structure: the CustomResourceDefinition should have been refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StructureError {
    /// A marker has an unknown value.
    #[error("schema{path}: {marker} is {value:?}; write one of {known}")]
    Marker {
        /// Path of the schema.
        path: String,
        /// Name of the marker.
        marker: &'static str,
        value: String,
        /// The values that it may have.
        known: &'static str,
    },
    /// A list that is identified by keys names none.
    #[error(
        "schema{path}: x-kubernetes-list-type is map; name the key fields in x-kubernetes-list-map-keys"
    )]
    NoKeys {
        /// Path of the schema.
        path: String,
    },
    /// The schema is nested too deep.
    #[error("schema{path} is nested more than {MAX_DEPTH} levels deep")]
    TooDeep {
        /// Path of the schema.
        path: String,
    },
}

impl Structure {
    /// The structure for `openAPIV3Schema` of a custom resource. `preserve_unknown` is the definition's `preserveUnknownFields`.
    pub fn from_openapi(schema: &Map, preserve_unknown: bool) -> Result<Self, StructureError> {
        let mut reader = Reader { types: Types::default(), path: String::new() };
        let mut map = reader.object(schema, preserve_unknown, 0)?;
        reader.embed(&mut map);
        let root = reader.types.push(Atom::map(map));
        Ok(reader.types.finish(root))
    }
}

struct Reader {
    types: Types,
    path: String,
}

impl Reader {
    /// Adds the fields that every object has.
    fn embed(&mut self, map: &mut MapType) {
        let text = self.types.push(Atom::scalar(Scalar::Text));
        let metadata = built_in::object_meta(&mut self.types);
        for (name, ty) in [("apiVersion", text), ("kind", text), ("metadata", metadata)] {
            map.fields.retain(|(have, _)| have != name);
            map.fields.push((Cow::Borrowed(name), ty));
        }
        map.fields.sort_by(|a, b| a.0.cmp(&b.0));
    }

    fn schema(
        &mut self,
        schema: &Map,
        preserve: bool,
        depth: usize,
    ) -> Result<TypeId, StructureError> {
        if depth > MAX_DEPTH {
            return Err(StructureError::TooDeep { path: self.path.clone() });
        }
        let atom = match schema.str("type") {
            "string" => {
                let scalar = matches!(schema.str("format"), "" | "byte");
                Atom::scalar(if scalar { Scalar::Text } else { Scalar::Any })
            }
            "integer" | "number" => Atom::scalar(Scalar::Number),
            "boolean" => Atom::scalar(Scalar::Bool),
            "array" => self.list(schema, preserve, depth)?,
            "object" => Atom::map(self.object(schema, preserve, depth)?),
            _ if preserve || schema.is_true("x-kubernetes-preserve-unknown-fields") => {
                return Ok(self.types.deduced());
            }
            _ => return Ok(self.types.untyped()),
        };
        Ok(self.types.push(atom))
    }

    /// A message if it has properties, or else a map. The values of a map without a type have one owner, also with
    /// `x-kubernetes-preserve-unknown-fields`: that is inherited by what is in properties only.
    fn object(
        &mut self,
        schema: &Map,
        inherited: bool,
        depth: usize,
    ) -> Result<MapType, StructureError> {
        let preserve = inherited || schema.is_true("x-kubernetes-preserve-unknown-fields");
        let atomic = match schema.str("x-kubernetes-map-type") {
            "atomic" => true,
            "granular" | "" => false,
            other => return Err(self.marker("x-kubernetes-map-type", other, "atomic, granular")),
        };
        let embedded = schema.is_true("x-kubernetes-embedded-resource");
        let mut fields = Vec::new();
        for (name, property) in schema.map("properties").into_iter().flat_map(Map::iter_sorted) {
            let Value::Map(property) = property else { continue };
            let ty = self.below(name, property, preserve, depth)?;
            fields.push((Key::Owned(name.to_owned()), ty));
        }
        let other = match schema.get("additionalProperties") {
            Some(Value::Map(value)) => Some(self.below("*", value, inherited, depth)?),
            _ if schema.contains("properties") || embedded || depth == 0 => {
                preserve.then(|| self.types.deduced())
            }
            _ if inherited => Some(self.types.deduced()),
            _ => Some(self.types.untyped()),
        };
        let mut map = MapType { atomic, fields, other };
        if embedded {
            self.embed(&mut map);
        }
        Ok(map)
    }

    fn list(&mut self, schema: &Map, preserve: bool, depth: usize) -> Result<Atom, StructureError> {
        let empty = Map::new();
        let items = schema.map("items").unwrap_or(&empty);
        let item = self.below("[]", items, preserve, depth)?;
        let relation = match schema.str("x-kubernetes-list-type") {
            "atomic" | "" => Relation::Atomic,
            "set" => Relation::Set,
            "map" => {
                let properties = items.map("properties").unwrap_or(&empty);
                let names = schema.list("x-kubernetes-list-map-keys").iter();
                let keys = names.filter_map(Value::as_str).map(|name| KeyField {
                    name: Cow::Owned(name.to_owned()),
                    default: properties.map(name).and_then(|key| key.get("default")).cloned(),
                });
                let keys: Vec<KeyField> = keys.collect();
                if keys.is_empty() {
                    return Err(StructureError::NoKeys { path: self.path.clone() });
                }
                Relation::Map(keys)
            }
            other => return Err(self.marker("x-kubernetes-list-type", other, "atomic, set, map")),
        };
        Ok(Atom::list(relation, item))
    }

    fn below(
        &mut self,
        name: &str,
        schema: &Map,
        preserve: bool,
        depth: usize,
    ) -> Result<TypeId, StructureError> {
        let length = self.path.len();
        self.path.push('.');
        self.path.push_str(name);
        let ty = self.schema(schema, preserve, depth.saturating_add(1));
        if ty.is_ok() {
            self.path.truncate(length);
        }
        ty
    }

    fn marker(&self, marker: &'static str, value: &str, known: &'static str) -> StructureError {
        StructureError::Marker { path: self.path.clone(), marker, value: value.to_owned(), known }
    }
}
