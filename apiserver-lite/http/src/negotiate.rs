//! Content negotiation: the encoding of a request's body and the accepted representation of its response.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use apiserver_core::request::{Accepted, Encoding, MetaVersion, Representation};
use apiserver_schema::table::Include;
use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_TYPE};
use proto_api::names::Names;

/// Format of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchKind {
    /// RFC 6902.
    Json,
    /// RFC 7396.
    Merge,
    /// Strategic merge patch.
    Strategic,
    /// Server-side apply.
    Apply,
}

/// No media type of `Accept` is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAcceptable;

/// Most media ranges of `Accept` that are read.
const RANGES_MAX: usize = 32;

/// The served representation that the client prefers; JSON when it names none. A stream (`is_stream`) has no form in YAML.
///
/// # Errors
/// [`NotAcceptable`] when it names media types and none of them is served.
pub fn accepted(
    headers: &HeaderMap,
    names: &Names,
    is_stream: bool,
) -> Result<Accepted, NotAcceptable> {
    let json = Accepted { encoding: Encoding::Json, representation: Representation::Object };
    let mut best: Option<(u16, Accepted)> = None;
    let mut named = false;
    let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    for range in values.flat_map(|value| value.split(',')).take(RANGES_MAX) {
        let range = MediaType::parse(range);
        named |= !range.name.is_empty();
        // Of ranges with equal weight the first one wins.
        if let Some(candidate) = acceptable(&range, names)
            && !(is_stream && candidate.encoding == Encoding::Yaml)
            && range.weight > best.map_or(0, |(weight, _)| weight)
        {
            best = Some((range.weight, candidate));
        }
    }
    match best {
        Some((_, accepted)) => Ok(accepted),
        None if named => Err(NotAcceptable),
        None => Ok(json),
    }
}

fn acceptable(range: &MediaType<'_>, names: &Names) -> Option<Accepted> {
    let encoding = match range.name.as_str() {
        "application/json" | "application/*" | "*/*" => Encoding::Json,
        "application/yaml" => Encoding::Yaml,
        name if name == names.protobuf_media_type() => Encoding::Protobuf,
        _ => return None,
    };
    let Some(transform) = range.parameter("as") else {
        return Some(Accepted { encoding, representation: Representation::Object });
    };
    if range.parameter("g").is_some_and(|group| group != names.group("meta")) {
        return None;
    }
    let version = match range.parameter("v")? {
        "v1" => MetaVersion::V1,
        "v1beta1" => MetaVersion::V1Beta1,
        _ => return None,
    };
    let representation = match transform {
        // Rows of a Table embed raw objects, which only JSON can nest.
        "Table" if encoding == Encoding::Json => Representation::Table(version, Include::Metadata),
        "PartialObjectMetadata" | "PartialObjectMetadataList" => {
            Representation::PartialObjectMetadata(version)
        }
        _ => return None,
    };
    Some(Accepted { encoding, representation })
}

/// The encoding of the request's body; JSON without a `Content-Type`, `None` for an unsupported one.
#[must_use]
pub fn body_encoding(headers: &HeaderMap, names: &Names) -> Option<Encoding> {
    match content_type(headers).as_str() {
        "" | "application/json" => Some(Encoding::Json),
        "application/yaml" | "text/yaml" | "application/x-yaml" => Some(Encoding::Yaml),
        name if name == names.protobuf_media_type() => Some(Encoding::Protobuf),
        _ => None,
    }
}

/// The format of a patch by its `Content-Type`; `None` for an unsupported one.
#[must_use]
pub fn patch_kind(headers: &HeaderMap) -> Option<PatchKind> {
    match content_type(headers).as_str() {
        "application/json-patch+json" => Some(PatchKind::Json),
        "application/merge-patch+json" => Some(PatchKind::Merge),
        "application/strategic-merge-patch+json" => Some(PatchKind::Strategic),
        "application/apply-patch+yaml" => Some(PatchKind::Apply),
        _ => None,
    }
}

/// The media type of the body in lower case, without parameters; empty without a `Content-Type`.
#[must_use]
pub fn content_type(headers: &HeaderMap) -> String {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    MediaType::parse(value).name
}

/// A media range with its parameters.
struct MediaType<'a> {
    name: String,
    parameters: Vec<(&'a str, &'a str)>,
    /// `q`, in thousandths.
    weight: u16,
}

impl<'a> MediaType<'a> {
    fn parse(text: &'a str) -> Self {
        let mut parts = text.split(';');
        let name = parts.next().unwrap_or_default().trim().to_ascii_lowercase();
        let mut weight = 1000;
        let mut parameters = Vec::new();
        for (key, value) in parts.take(8).filter_map(|part| part.split_once('=')) {
            let (key, value) = (key.trim(), value.trim().trim_matches('"'));
            if key == "q" {
                weight = thousandths(value);
            } else {
                parameters.push((key, value));
            }
        }
        Self { name, parameters, weight }
    }

    fn parameter(&self, key: &str) -> Option<&'a str> {
        self.parameters.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
    }
}

/// A weight such as `0.75` in thousandths; 0 if it is invalid.
fn thousandths(text: &str) -> u16 {
    match text.parse::<f32>() {
        // The value is in range, so the cast only drops the fraction.
        Ok(weight) if (0.0..=1.0).contains(&weight) => (weight * 1000.0) as u16,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proto_api::names::Profile;

    fn ask(accept: &str) -> Result<Accepted, NotAcceptable> {
        ask_of(accept, false)
    }

    fn ask_of(accept: &str, is_stream: bool) -> Result<Accepted, NotAcceptable> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_str(accept).unwrap());
        accepted(&headers, Names::new(Profile::Kubernetes), is_stream)
    }

    #[test]
    fn a_stream_has_no_yaml() {
        let yaml = "application/yaml";
        assert_eq!(ask_of(yaml, false), object(Encoding::Yaml));
        assert_eq!(ask_of(yaml, true), Err(NotAcceptable));
        assert_eq!(ask_of(&format!("{yaml}, */*;q=0.1"), true), object(Encoding::Json));
    }

    fn object(encoding: Encoding) -> Result<Accepted, NotAcceptable> {
        Ok(Accepted { encoding, representation: Representation::Object })
    }

    #[test]
    fn picks_the_best_range() {
        assert_eq!(
            accepted(&HeaderMap::new(), Names::new(Profile::Kubernetes), false),
            object(Encoding::Json)
        );
        assert_eq!(ask("application/json"), object(Encoding::Json));
        assert_eq!(ask("*/*"), object(Encoding::Json));
        assert_eq!(
            ask("application/vnd.kubernetes.protobuf, application/json"),
            object(Encoding::Protobuf)
        );
        assert_eq!(ask("application/json;q=0.5, application/yaml"), object(Encoding::Yaml));
        assert_eq!(ask("text/html"), Err(NotAcceptable));
        assert_eq!(ask("application/vnd.orch.protobuf"), Err(NotAcceptable));
        assert_eq!(ask("application/json;q=0"), Err(NotAcceptable));
    }

    #[test]
    fn tables_are_negotiated_as_kubectl_requests_them() {
        let accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        let table = Accepted {
            encoding: Encoding::Json,
            representation: Representation::Table(MetaVersion::V1, Include::Metadata),
        };
        assert_eq!(ask(accept), Ok(table));
        assert_eq!(ask("application/json;as=Table;v=v9;g=meta.k8s.io"), Err(NotAcceptable));
        assert_eq!(
            ask("application/json;as=Table;v=v9;g=meta.k8s.io,application/json"),
            object(Encoding::Json)
        );
        assert_eq!(ask("application/json;as=Table;v=v1;g=meta.orch.io"), Err(NotAcceptable));
    }
}
