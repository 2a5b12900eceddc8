//! One event as JSON, with the fields of audit.k8s.io/v1 `Event` in their order.

use std::collections::BTreeMap;

use proto_api::MicroTime;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::stage::{Level, Stage};

/// A user as events name it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AuditUserInfo {
    /// The name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub username: String,
    /// The identifier.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Further attributes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The object of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectReference {
    /// The plural name of the resource.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The uid that the client sent.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The group; empty for the core group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_group: String,
    /// The version of the group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// The version that the client sent.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subresource: String,
}

/// What the object in a request's body says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectIdentity<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
    pub resource_version: &'a str,
}

impl ObjectReference {
    /// Adds what the path of the request does not say.
    pub(crate) fn complete(&mut self, identity: ObjectIdentity<'_>) {
        for (field, found) in [
            (&mut self.namespace, identity.namespace),
            (&mut self.name, identity.name),
            (&mut self.uid, identity.uid),
            (&mut self.resource_version, identity.resource_version),
        ] {
            if field.is_empty() {
                found.clone_into(field);
            }
        }
    }
}

/// What is known of a request at its start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestHead {
    /// `audit.k8s.io/v1` in the naming profile.
    pub api_version: String,
    /// The identifier of the request.
    pub audit_id: String,
    /// Path and query.
    pub request_uri: String,
    /// The API verb, or the method in lower case.
    pub verb: String,
    /// The authenticated user.
    pub user: AuditUserInfo,
    /// Where it comes from: proxies and the client, the peer of the connection last.
    pub source_ips: Vec<String>,
    /// The header `User-Agent`.
    pub user_agent: String,
    /// The object; `None` for paths that are no resources.
    pub object: Option<ObjectReference>,
    /// Microseconds since the Unix epoch.
    pub received_micros: i64,
}

/// Longest user agent in an event, in bytes.
const USER_AGENT_LEN_MAX: usize = 1024;
const TRUNCATED: &str = "...TRUNCATED";

/// What an event says, but for its stage.
#[derive(Debug)]
pub(crate) struct Content {
    pub head: RequestHead,
    pub level: Level,
    pub impersonated: Option<AuditUserInfo>,
    pub status: Option<Value>,
    pub request_object: Option<Box<RawValue>>,
    pub response_object: Option<Box<RawValue>>,
    pub annotations: BTreeMap<String, String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Event<'a> {
    kind: &'static str,
    api_version: &'a str,
    level: &'static str,
    #[serde(rename = "auditID")]
    audit_id: &'a str,
    stage: &'static str,
    #[serde(rename = "requestURI")]
    request_uri: &'a str,
    verb: &'a str,
    user: &'a AuditUserInfo,
    #[serde(skip_serializing_if = "Option::is_none")]
    impersonated_user: Option<&'a AuditUserInfo>,
    #[serde(rename = "sourceIPs", skip_serializing_if = "<[String]>::is_empty")]
    source_ips: &'a [String],
    #[serde(skip_serializing_if = "String::is_empty")]
    user_agent: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    object_ref: Option<&'a ObjectReference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_status: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_object: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_object: Option<&'a RawValue>,
    request_received_timestamp: String,
    stage_timestamp: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: &'a BTreeMap<String, String>,
}

/// The event of one stage.
pub(crate) fn encode(content: &Content, stage: Stage, micros: i64) -> Vec<u8> {
    let head = &content.head;
    let time = |micros| MicroTime::from_unix_micros(micros).to_string();
    let received = time(head.received_micros);
    let event = Event {
        kind: "Event",
        api_version: &head.api_version,
        level: content.level.as_str(),
        audit_id: &head.audit_id,
        stage: stage.as_str(),
        request_uri: &head.request_uri,
        verb: &head.verb,
        user: &head.user,
        impersonated_user: content.impersonated.as_ref(),
        source_ips: &head.source_ips,
        user_agent: shorten(&head.user_agent),
        object_ref: head.object.as_ref(),
        response_status: content.status.as_ref(),
        request_object: content.request_object.as_deref(),
        response_object: content.response_object.as_deref(),
        stage_timestamp: match stage {
            Stage::RequestReceived => received.clone(),
            _ => time(micros),
        },
        request_received_timestamp: received,
        annotations: &content.annotations,
    };
    // Text and valid JSON only, whose encoding cannot fail.
    serde_json::to_vec(&event).unwrap_or_default()
}

fn shorten(user_agent: &str) -> String {
    let end = user_agent.floor_char_boundary(USER_AGENT_LEN_MAX);
    match user_agent.get(..end).filter(|_| user_agent.len() > USER_AGENT_LEN_MAX) {
        Some(start) => format!("{start}{TRUNCATED}"),
        None => user_agent.to_owned(),
    }
}

/// The field `responseStatus`: what a Status in a response says, or only the code of a response without one.
#[must_use]
pub fn response_status(code: u16, status: Option<&Value>) -> Value {
    let mut fields = Map::new();
    fields.insert("metadata".to_owned(), json!({}));
    let of = |field: &str| status.and_then(|status| status.get(field)).cloned();
    for field in ["status", "message", "reason", "details"] {
        fields.extend(of(field).map(|value| (field.to_owned(), value)));
    }
    fields.insert("code".to_owned(), code.into());
    Value::Object(fields)
}

/// JSON as it is recorded; `None` for what is no JSON.
pub(crate) fn recorded_object(json: &[u8], omit_managed_fields: bool) -> Option<Box<RawValue>> {
    // An event is one line.
    if !omit_managed_fields && !json.contains(&b'\n') && !json.contains(&b'\r') {
        return serde_json::from_slice(json).ok();
    }
    let mut tree: Value = serde_json::from_slice(json).ok()?;
    if !omit_managed_fields {
        return serde_json::value::to_raw_value(&tree).ok();
    }
    remove_managed_fields(&mut tree);
    for part in ["items", "rows"] {
        let entries = tree.get_mut(part).and_then(Value::as_array_mut);
        for entry in entries.into_iter().flatten() {
            remove_managed_fields(entry);
            entry.get_mut("object").into_iter().for_each(remove_managed_fields);
        }
    }
    serde_json::value::to_raw_value(&tree).ok()
}

fn remove_managed_fields(object: &mut Value) {
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
    metadata.and_then(|metadata| metadata.shift_remove("managedFields"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_user_agents_are_cut_at_a_character() {
        assert_eq!(shorten("kubectl/v1.25"), "kubectl/v1.25");
        assert_eq!(shorten(&"a".repeat(1024)), "a".repeat(1024));
        assert_eq!(shorten(&"a".repeat(1025)), format!("{}{TRUNCATED}", "a".repeat(1024)));
        assert_eq!(shorten(&"ä".repeat(600)), format!("{}{TRUNCATED}", "ä".repeat(512)));
        let odd = format!("a{}", "ä".repeat(600));
        assert_eq!(shorten(&odd), format!("a{}{TRUNCATED}", "ä".repeat(511)));
    }

    #[test]
    fn managed_fields_are_left_out_everywhere() {
        let object = |name: &str| json!({"metadata": {"managedFields": [{"manager": "m"}], "name": name}, "spec": {}});
        let bare = |name: &str| json!({"metadata": {"name": name}, "spec": {}});
        for (given, kept) in [
            (object("a"), bare("a")),
            (
                json!({"items": [object("a"), object("b")]}),
                json!({"items": [bare("a"), bare("b")]}),
            ),
            (json!({"rows": [{"object": object("a")}]}), json!({"rows": [{"object": bare("a")}]})),
            (json!([1]), json!([1])),
        ] {
            let text = given.to_string();
            let recorded = recorded_object(text.as_bytes(), true).unwrap();
            assert_eq!(recorded.get(), kept.to_string());
            assert_eq!(recorded_object(text.as_bytes(), false).unwrap().get(), text);
        }
        assert!(recorded_object(b"a: b", false).is_none());
        let lines = recorded_object(b"{\n \"a\": \"b\\n\"\r\n}\n", false).unwrap();
        assert_eq!(lines.get(), r#"{"a":"b\n"}"#);
    }

    #[test]
    fn a_status_is_selected_by_field() {
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {"resourceVersion": "1"},
            "status": "Failure", "message": "m", "reason": "NotFound", "details": {"name": "a"}, "code": 404});
        assert_eq!(
            response_status(404, Some(&status)).to_string(),
            r#"{"metadata":{},"status":"Failure","message":"m","reason":"NotFound","details":{"name":"a"},"code":404}"#
        );
        assert_eq!(response_status(200, None).to_string(), r#"{"metadata":{},"code":200}"#);
    }
}
