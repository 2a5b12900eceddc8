//! pure: requests that foreign clients have sent, as lines of a file: the first of each shape, in the order in which they came.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

/// Largest file.
pub const LEN_MAX: usize = 400_000;
/// Largest body that is recorded.
const BODY_LEN_MAX: usize = 16 << 10;
/// Stands for the version of the object that the server has.
pub const VERSION: &str = "{resourceVersion}";
/// Stands for its uid.
pub const UID: &str = "{uid}";

/// Maps whose keys are names that users give.
const FREE_KEYS: [&str; 9] = [
    "annotations",
    "binaryData",
    "data",
    "labels",
    "limits",
    "matchLabels",
    "nodeSelector",
    "requests",
    "stringData",
];

/// One request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    /// The program that sent it, with its version.
    pub client: String,
    pub method: String,
    /// Path and query.
    pub path: String,
    /// The header `Accept`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub accept: String,
    /// The header `Content-Type`.
    #[serde(default, rename = "type", skip_serializing_if = "String::is_empty")]
    pub content_type: String,
    /// The body as text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub body: String,
}

/// The parts of the path of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourcePath<'a> {
    /// `api/v1` or `apis/apps/v1`.
    pub root: &'a str,
    /// Empty for none.
    pub namespace: &'a str,
    pub plural: &'a str,
    /// Empty for collections.
    pub name: &'a str,
    /// Empty for none.
    pub subresource: &'a str,
}

impl<'a> ResourcePath<'a> {
    /// The parts; `None` if it is no path of a resource.
    pub fn parse(path: &'a str) -> Option<Self> {
        let path = path.split_once('?').map_or(path, |(path, _)| path).trim_matches('/');
        let parts = if path.starts_with("api/") { 2 } else { 3 };
        let mut ends = path.match_indices('/').map(|(at, _)| at);
        let end = ends.nth(parts - 1)?;
        let (root, rest) = (path.get(..end)?, path.get(end + 1..)?);
        if !root.starts_with("api/") && !root.starts_with("apis/") {
            return None;
        }
        let rest = rest.strip_prefix("watch/").unwrap_or(rest);
        let parts: Vec<&str> = rest.split('/').collect();
        let (namespace, rest) = match parts.as_slice() {
            ["namespaces", namespace, rest @ ..]
                if rest.first().is_some_and(|next| !["status", "finalize"].contains(next)) =>
            {
                (*namespace, rest)
            }
            rest => ("", rest),
        };
        let (plural, rest) = rest.split_first()?;
        let at = |at: usize| rest.get(at).copied().unwrap_or_default();
        Some(Self { root, namespace, plural, name: at(0), subresource: at(1) })
    }

    /// The group and version: `v1` or `apps/v1`.
    pub fn version(&self) -> &'a str {
        self.root.split_once('/').map_or("", |(_, version)| version)
    }
}

/// The file that is being written.
#[derive(Default)]
pub struct Recording {
    shapes: BTreeSet<String>,
    text: String,
    /// Requests that found no room.
    pub dropped: usize,
}

impl Recording {
    /// Adds a request if it is one of resources and the first of its shape. Says whether it is.
    pub fn add(&mut self, request: Recorded) -> bool {
        let Some(path) = ResourcePath::parse(&request.path) else { return false };
        let is_stream = ["exec", "attach", "portforward", "proxy"].contains(&path.subresource);
        if is_stream || request.body.len() > BODY_LEN_MAX {
            return false;
        }
        let mut request = request;
        request.body = with_placeholders(&request.body);
        if !self.shapes.insert(shape(&request)) {
            return false;
        }
        let line = serde_json::to_string(&request).unwrap_or_default();
        if self.text.len() + line.len() >= LEN_MAX {
            self.dropped += 1;
            return false;
        }
        self.text.push_str(&line);
        self.text.push('\n');
        true
    }

    /// The lines so far.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Reads a file.
pub fn parse(text: &str) -> Result<Vec<Recorded>> {
    let lines = text.lines().enumerate();
    lines
        .map(|(at, line)| serde_json::from_str(line).with_context(|| format!("line {}", at + 1)))
        .collect()
}

/// The body, with what each server makes for itself left open.
fn with_placeholders(body: &str) -> String {
    let Ok(mut json) = serde_json::from_str::<Json>(body) else { return body.to_owned() };
    let mut changed = false;
    for holder in ["metadata", "preconditions"] {
        for (field, stands) in [("resourceVersion", VERSION), ("uid", UID)] {
            let value = json.get_mut(holder).and_then(|holder| holder.get_mut(field));
            if let Some(value) =
                value.filter(|value| value.as_str().is_some_and(|text| !text.is_empty()))
            {
                *value = Json::from(stands);
                changed = true;
            }
        }
    }
    if changed { json.to_string() } else { body.to_owned() }
}

/// What requests have in common that ask for the same in the same way, whatever the objects are called.
fn shape(request: &Recorded) -> String {
    let path = ResourcePath::parse(&request.path).unwrap_or_default();
    let there = |text: &str| !text.is_empty();
    let query = request.path.split_once('?').map_or("", |(_, query)| query);
    let mut query: Vec<String> =
        query.split('&').filter(|part| !part.is_empty()).map(query_shape).collect();
    query.sort();
    let (namespaced, named) = (there(path.namespace), there(path.name));
    format!(
        "{} {} {namespaced} {} {named} {} {query:?} {} {} {}",
        request.method,
        path.root,
        path.plural,
        path.subresource,
        request.accept,
        request.content_type,
        body_shape(&request.body)
    )
}

fn query_shape(part: &str) -> String {
    let (name, value) = part.split_once('=').unwrap_or((part, ""));
    let value = match name {
        "resourceVersion" if value.len() > 1 => "N",
        "continue" | "timeoutSeconds" | "timeout" | "labelSelector" | "fieldSelector"
        | "tailLines" => "X",
        _ => value,
    };
    format!("{name}={value}")
}

/// The fields of a body, without values; of a JSON patch its operations.
fn body_shape(body: &str) -> String {
    let Ok(json) = serde_json::from_str::<Json>(body) else {
        // YAML of an apply.
        let keys = body.lines().filter_map(|line| line.split_once(':')).map(|(key, _)| key.trim());
        return keys.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(",");
    };
    let mut fields = BTreeSet::new();
    match &json {
        Json::Array(operations) => {
            for operation in operations {
                let text = |field: &str| operation[field].as_str().unwrap_or_default();
                fields.insert(format!("{} {}", text("op"), text("path")));
            }
        }
        json => collect(json, "", &mut fields),
    }
    fields.into_iter().collect::<Vec<_>>().join(",")
}

fn collect(json: &Json, path: &str, fields: &mut BTreeSet<String>) {
    match json {
        Json::Object(members) => {
            let is_free = FREE_KEYS.iter().any(|free| path.ends_with(free));
            for (name, value) in members {
                // A strategic merge patch says things in fields of its own.
                let name = if is_free && !name.starts_with('$') { "*" } else { name };
                collect(value, &format!("{path}.{name}"), fields);
            }
        }
        Json::Array(items) => items.iter().for_each(|item| collect(item, path, fields)),
        Json::Null => drop(fields.insert(format!("{path}=null"))),
        _ => drop(fields.insert(path.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, path: &str, body: &str) -> Recorded {
        Recorded {
            client: "kubectl v1.31.0".to_owned(),
            method: method.to_owned(),
            path: path.to_owned(),
            accept: "application/json".to_owned(),
            content_type: String::new(),
            body: body.to_owned(),
        }
    }

    #[test]
    fn paths_of_resources_have_parts() {
        let parts = |path| {
            let found = ResourcePath::parse(path)?;
            Some((found.version(), found.namespace, found.plural, found.name, found.subresource))
        };
        assert_eq!(
            parts("/api/v1/namespaces/n/pods/a/log?x=1"),
            Some(("v1", "n", "pods", "a", "log"))
        );
        assert_eq!(
            parts("/apis/apps/v1/deployments"),
            Some(("apps/v1", "", "deployments", "", ""))
        );
        assert_eq!(parts("/api/v1/namespaces/n"), Some(("v1", "", "namespaces", "n", "")));
        assert_eq!(
            parts("/api/v1/namespaces/n/finalize"),
            Some(("v1", "", "namespaces", "n", "finalize"))
        );
        assert_eq!(parts("/api/v1/watch/namespaces/n/pods"), Some(("v1", "n", "pods", "", "")));
        for none in
            ["/api", "/api/v1", "/apis/apps/v1", "/openapi/v3/apis/apps/v1", "/version", "/"]
        {
            assert_eq!(parts(none), None, "{none}");
        }
    }

    #[test]
    fn the_first_request_of_a_shape_is_kept() {
        let mut recording = Recording::default();
        let maps = "/api/v1/namespaces/n/configmaps";
        let map = r#"{"metadata":{"name":"a","labels":{"x":"y"}},"data":{"k":"v"}}"#;
        assert!(recording.add(request("POST", maps, map)));
        let other = map.replace("\"a\"", "\"b\"").replace("\"k\"", "\"l\"").replace("/n/", "/m/");
        assert!(!recording.add(request("POST", maps, &other)), "only names differ");
        assert!(recording.add(request("POST", &format!("{maps}?dryRun=All"), map)));
        assert!(recording.add(request(
            "GET",
            &format!("{maps}?watch=true&resourceVersion=12"),
            ""
        )));
        assert!(!recording.add(request(
            "GET",
            &format!("{maps}?resourceVersion=77&watch=true"),
            ""
        )));
        assert!(recording.add(request("GET", &format!("{maps}?watch=true&resourceVersion=0"), "")));
        assert!(!recording.add(request("GET", "/openapi/v2", "")));
        assert!(!recording.add(request("POST", "/api/v1/namespaces/n/pods/p/exec?command=a", "")));
        let lines = parse(recording.text()).expect("lines");
        assert_eq!((lines.len(), lines[0].body.as_str()), (4, map));
    }

    #[test]
    fn versions_and_uids_are_left_open() {
        let mut recording = Recording::default();
        let body =
            r#"{"kind":"ConfigMap","metadata":{"name":"a","resourceVersion":"77","uid":"u-1"}}"#;
        recording.add(request("PUT", "/api/v1/namespaces/n/configmaps/a", body));
        let line = parse(recording.text()).expect("lines").remove(0);
        let json: Json = serde_json::from_str(&line.body).expect("JSON");
        assert_eq!(
            (&json["metadata"]["resourceVersion"], &json["metadata"]["uid"]),
            (&Json::from(VERSION), &Json::from(UID))
        );
        assert_eq!(
            with_placeholders(r#"{"metadata":{"name":"a"}}"#),
            r#"{"metadata":{"name":"a"}}"#
        );
    }

    #[test]
    fn a_recording_has_a_largest_length() {
        let mut recording = Recording::default();
        let value = "x".repeat(10_000);
        for at in 0..100 {
            let body = format!(r#"{{"spec":{{"field{at}":"{value}"}}}}"#);
            recording.add(request("POST", "/apis/example.com/v1/things", &body));
        }
        assert!(
            recording.text().len() <= LEN_MAX && recording.dropped > 50,
            "{}",
            recording.dropped
        );
    }
}
