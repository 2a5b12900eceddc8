//! The representation that a client accepts: encoding, and object, table or metadata.

use apiserver_schema::table::Include;
use proto_api::names::Names;

use super::Query;
use crate::status::ApiError;

/// Bytes on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// `application/json`.
    Json,
    /// `application/yaml`.
    Yaml,
    /// The Protobuf type of the naming profile.
    Protobuf,
}

/// What the bytes represent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Representation {
    /// The object or list itself.
    Object,
    /// A table of columns and rows, of the given version of the meta group, and what its rows hold of the objects.
    Table(MetaVersion, Include),
    /// Metadata only.
    PartialObjectMetadata(MetaVersion),
}

/// Version of the meta group that a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaVersion {
    /// `v1`
    V1,
    /// `v1beta1`
    V1Beta1,
}

/// What a client accepts best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Bytes on the wire.
    pub encoding: Encoding,
    /// What they represent.
    pub representation: Representation,
}

impl Accepted {
    /// Reads `includeObject`, which says what a table's rows hold.
    ///
    /// # Errors
    /// 400 for an unknown value.
    pub fn with_include(self, query: &Query) -> Result<Self, ApiError> {
        let Representation::Table(version, _) = self.representation else { return Ok(self) };
        let text = query.get("includeObject").unwrap_or_default();
        let include = Include::parse(text).ok_or_else(|| {
            ApiError::bad_request(format!("invalid value {text:?} for includeObject"))
        })?;
        Ok(Self { representation: Representation::Table(version, include), ..self })
    }
}

impl MetaVersion {
    /// As it stands in `apiVersion`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V1Beta1 => "v1beta1",
        }
    }
}

impl Encoding {
    /// The media type.
    #[must_use]
    pub fn media_type(self, names: &Names) -> &str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => names.protobuf_media_type(),
        }
    }
}
