//! Bodies: content negotiation, and decoding of either form.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use proto_api::codec::Field;
use proto_api::meta::v1::Status;
use proto_api::names::Names;
use proto_api::object::{self, Envelope};
use proto_api::{Kind, List, Message};
use serde::de::DeserializeOwned;

use crate::error::DecodeError;

/// An encoding of bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Json,
    Protobuf,
}

/// Which part of objects is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Whole,
    /// One object, or a stream of them, as `PartialObjectMetadata`.
    Metadata,
    /// A list of those.
    MetadataList,
}

impl Encoding {
    /// The `Accept` header of this form. With Protobuf JSON is accepted too: custom resources have nothing else, and errors may be either.
    pub(crate) fn accept(self, form: Form, names: &Names) -> HeaderValue {
        let partial = |kind: &str| format!(";as={kind};g={};v=v1", names.group("meta"));
        let form = match form {
            Form::Whole => String::new(),
            Form::Metadata => partial("PartialObjectMetadata"),
            Form::MetadataList => partial("PartialObjectMetadataList"),
        };
        let text = match self {
            Self::Json => format!("application/json{form}"),
            Self::Protobuf => {
                format!("{}{form},application/json{form}", names.protobuf_media_type())
            }
        };
        HeaderValue::from_str(&text)
            .unwrap_or_else(|_| HeaderValue::from_static("application/json"))
    }

    pub(crate) fn content_type(self, names: &Names) -> &'static str {
        match self {
            Self::Json => crate::request::JSON,
            Self::Protobuf => names.protobuf_media_type(),
        }
    }

    /// The form of a response. Without a content type it is JSON.
    pub(crate) fn from_headers(headers: &HeaderMap, names: &Names) -> Result<Self, DecodeError> {
        let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(Self::Json) };
        let text = String::from_utf8_lossy(value.as_bytes());
        let media_type = text.split(';').next().unwrap_or_default().trim();
        if media_type.eq_ignore_ascii_case(names.protobuf_media_type()) {
            Ok(Self::Protobuf)
        } else if media_type.eq_ignore_ascii_case("application/json") {
            Ok(Self::Json)
        } else {
            Err(DecodeError::ContentType(text.into_owned()))
        }
    }

    pub(crate) fn encode<T: Kind>(
        self,
        object: &T,
        names: &Names,
    ) -> Result<Bytes, serde_json::Error> {
        match self {
            Self::Json => object::to_json(object, names).map(Bytes::from),
            Self::Protobuf => Ok(Bytes::from(object::to_protobuf_envelope(object, names))),
        }
    }

    pub(crate) fn decode<T: Kind>(self, body: &[u8], names: &Names) -> Result<T, DecodeError> {
        Ok(match self {
            Self::Json => object::from_json(body, names)?,
            Self::Protobuf => object::from_protobuf_envelope(body, names)?,
        })
    }

    /// A list of `T`. Its kind is not checked: the requested path decides that items are `T`.
    pub(crate) fn decode_list<T: Kind>(self, body: &[u8]) -> Result<List<T>, DecodeError> {
        self.decode_message(body)
    }

    /// An error response as `Status`; `None` if it is not one.
    pub(crate) fn decode_status(self, body: &[u8]) -> Option<Status> {
        let status: Status = self.decode_message(body).ok()?;
        (status.code != 0 || !status.message.is_empty() || !status.reason.is_empty())
            .then_some(status)
    }

    fn decode_message<T: Message + Field>(self, body: &[u8]) -> Result<T, DecodeError> {
        match self {
            Self::Json => {
                let mut reader = serde_json::Deserializer::from_slice(body);
                let message = T::read_json(&mut reader)?;
                reader.end()?;
                Ok(message)
            }
            Self::Protobuf => {
                let no_envelope =
                    || object::DecodeObjectError::NoEnvelope { kind: "List".to_owned() };
                let envelope = Envelope::read(body).ok_or_else(no_envelope)??;
                Ok(T::decode(envelope.raw.unwrap_or_default().as_slice())?)
            }
        }
    }
}

/// JSON of an untyped kind.
pub(crate) fn json<T: DeserializeOwned>(body: &[u8]) -> Result<T, DecodeError> {
    Ok(serde_json::from_slice(body)?)
}
