//! The representation that a client accepts: encoding, and object, table or metadata.

use apiserver_schema::table::Include;
use proto_api::names::Names;

use super::Query;
use crate::status::ApiError;

/// The encoding of a request or response body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// `application/json`.
    Json,
    /// `application/yaml`.
    Yaml,
    /// The Protobuf media type of the naming profile.
    Protobuf,
}

/// What a response shows of its objects (parameter `as` of the media type).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Representation {
    /// The object or list itself.
    Object,
    /// A Table in this version of the meta group, and what its rows include of the objects.
    Table(MetaVersion, Include),
    /// PartialObjectMetadata, or a list of them.
    PartialObjectMetadata(MetaVersion),
}

/// Requested version of the meta group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaVersion {
    V1,
    /// `v1beta1`
    V1Beta1,
}

/// The representation that a client prefers among those served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    pub encoding: Encoding,
    /// Object, Table or metadata.
    pub representation: Representation,
}

impl Accepted {
    /// Applies the query parameter `includeObject` to a Table; other representations are unchanged.
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
    /// The version as text, as in `apiVersion`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V1Beta1 => "v1beta1",
        }
    }
}

impl Encoding {
    /// The media type in the naming profile `names`.
    #[must_use]
    pub fn media_type(self, names: &Names) -> &str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => names.protobuf_media_type(),
        }
    }
}
