//! Requests to both servers: their pairs, how they are sent, and what comes back.

use bytes::Bytes;
use http::{Method, Request, header};
use proto_client::{Client, ClientError};
use serde_json::Value as Json;

use crate::resource::Whose;

/// Requests that are sent one after the other to each server; their answers are compared one by one.
pub struct Case {
    /// The plural of the resource.
    pub resource: String,
    /// What is done.
    pub operation: &'static str,
    /// The field that is changed, or what else is tried.
    pub field: String,
    /// What stands there.
    pub value: String,
    /// The definition of the object that is answered, if there is one.
    pub definition: Option<String>,
    /// The requests.
    pub steps: Vec<Pair>,
}

impl Case {
    /// Whether the owners of fields are compared.
    pub fn compares_owners(&self) -> bool {
        self.operation.starts_with("apply")
    }
}

/// One request in the words of each server.
pub struct Pair {
    method: Method,
    paths: [String; 2],
    bodies: [Bytes; 2],
    /// What is merged into the object that was answered last, which is the body then.
    edit: Option<Json>,
    content_type: String,
    accept: String,
}

/// In a body, the version of the object that was answered last.
pub const VERSION: &str = "{resourceVersion}";
/// In a body, its uid.
pub const UID: &str = "{uid}";

/// Content types.
pub const JSON: &str = "application/json";

impl Pair {
    /// A request without a body.
    pub fn new(method: Method, paths: impl Fn(Whose) -> String) -> Self {
        Self {
            method,
            paths: [paths(Whose::Theirs), paths(Whose::Ours)],
            bodies: [Bytes::new(), Bytes::new()],
            edit: None,
            content_type: JSON.to_owned(),
            accept: JSON.to_owned(),
        }
    }

    /// With JSON as its body.
    pub fn json(self, bodies: &[Json; 2]) -> Self {
        let text = |body: &Json| Bytes::from(body.to_string());
        Self { bodies: [text(&bodies[0]), text(&bodies[1])], ..self }
    }

    /// With the same bytes to both.
    pub fn raw(self, body: &'static [u8]) -> Self {
        Self { bodies: [Bytes::from_static(body), Bytes::from_static(body)], ..self }
    }

    /// With these texts as its body.
    pub fn texts(self, bodies: [String; 2]) -> Self {
        Self { bodies: bodies.map(Bytes::from), ..self }
    }

    /// With the object that was answered last and `changes` in it as its body: fields of both are merged, lists replaced, and null removes.
    pub fn editing(self, changes: Json) -> Self {
        Self { edit: Some(changes), ..self }
    }

    /// With another content type.
    pub fn of(self, content_type: &str) -> Self {
        Self { content_type: content_type.to_owned(), ..self }
    }

    /// For another form of the answer.
    pub fn accepting(self, accept: &str) -> Self {
        Self { accept: accept.to_owned(), ..self }
    }

    /// As shown in reports.
    pub fn label(&self) -> String {
        let body = match &self.edit {
            Some(changes) => format!(" edit {changes}"),
            None if self.content_type.contains("apply") => {
                format!(" {}", String::from_utf8_lossy(&self.bodies[0]).replace('\n', "\\n"))
            }
            None => String::new(),
        };
        format!("{} {}{body}", self.method, self.paths[0])
    }

    /// The body for a server that answered `last` before.
    fn body(&self, whose: Whose, last: Option<&Json>) -> Bytes {
        if let Some(changes) = &self.edit {
            let mut object = last.cloned().unwrap_or_default();
            merge(&mut object, changes);
            return Bytes::from(object.to_string());
        }
        let body = &self.bodies[usize::from(whose == Whose::Ours)];
        let (Some(last), Ok(text)) = (last, std::str::from_utf8(body)) else { return body.clone() };
        if !text.contains(VERSION) && !text.contains(UID) {
            return body.clone();
        }
        let meta = |field: &str| last["metadata"][field].as_str().unwrap_or_default().to_owned();
        Bytes::from(text.replace(VERSION, &meta("resourceVersion")).replace(UID, &meta("uid")))
    }
}

/// Merges as RFC 7386 does.
fn merge(object: &mut Json, changes: &Json) {
    let Json::Object(changes) = changes else {
        *object = changes.clone();
        return;
    };
    if !object.is_object() {
        *object = Json::Object(serde_json::Map::new());
    }
    for (name, value) in changes {
        let Some(fields) = object.as_object_mut() else { return };
        match value {
            Json::Null => drop(fields.shift_remove(name)),
            value => merge(fields.entry(name.clone()).or_insert(Json::Null), value),
        }
    }
}

/// A cause of a refusal: field and reason.
pub type Cause = (String, String);

/// What a server answered.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// The code; 0 if there was no answer.
    pub code: u16,
    /// Of a refusal.
    pub reason: String,
    /// Of a refusal, or what went wrong instead of an answer.
    pub message: String,
    /// Of a refusal, sorted.
    pub causes: Vec<Cause>,
    /// Of a refusal because of conflicts: fields and with whom they are in conflict, sorted.
    pub conflicts: Vec<Cause>,
    /// Of a success.
    pub object: Option<Json>,
    /// Whether the object has another version than it was answered with before in this case.
    pub is_rewritten: bool,
}

impl Answer {
    /// Whether the server did what was asked for.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.code)
    }
}

/// Sends all steps of a case to one server.
pub async fn send(client: &Client, whose: Whose, case: &Case) -> Vec<Answer> {
    let mut answers: Vec<Answer> = Vec::with_capacity(case.steps.len());
    for step in &case.steps {
        // Not all answers are the object.
        let mut objects = answers.iter().rev().filter_map(|answer| answer.object.as_ref());
        let last = objects.find(|object| object["metadata"]["uid"].is_string()).cloned();
        let token = answers.last().and_then(|last| last.object.as_ref());
        let token = token.and_then(|list| list["metadata"]["continue"].as_str()).unwrap_or("");
        let at = usize::from(whose == Whose::Ours);
        let path = step.paths[at].replace("{continue}", token);
        let request = Request::builder()
            .method(step.method.clone())
            .uri(path)
            .header(header::CONTENT_TYPE, &step.content_type)
            .header(header::ACCEPT, &step.accept)
            .body(step.body(whose, last.as_ref()));
        let mut answer = match request {
            Ok(request) => read(client.call(request).await),
            Err(error) => Answer { message: error.to_string(), ..Answer::default() },
        };
        answer.is_rewritten = match (&last, &answer.object) {
            (Some(before), Some(object)) => is_rewritten(before, object),
            _ => false,
        };
        answers.push(answer);
    }
    answers
}

/// Whether an object has another version, and has changed. Once a second has passed, a repeated apply may give an entry of the owners another time, and with it
/// another place.
fn is_rewritten(before: &Json, after: &Json) -> bool {
    let version = |object: &Json| object["metadata"]["resourceVersion"].clone();
    version(before) != version(after) && without_times(before) != without_times(after)
}

/// An object without its version and the times and the order of its owners.
fn without_times(object: &Json) -> Json {
    let mut object = object.clone();
    let Some(metadata) = object["metadata"].as_object_mut() else { return object };
    metadata.remove("resourceVersion");
    if let Some(entries) = metadata.get_mut("managedFields").and_then(Json::as_array_mut) {
        for entry in entries.iter_mut().filter_map(Json::as_object_mut) {
            entry.remove("time");
        }
        entries.sort_by_key(Json::to_string);
    }
    object
}

fn read(answer: Result<proto_client::Answer, ClientError>) -> Answer {
    match answer {
        Ok(answer) => Answer {
            code: answer.status,
            object: serde_json::from_slice(&answer.body).ok(),
            ..Answer::default()
        },
        Err(ClientError::Api { status, .. }) => {
            let causes = status.details.iter().flat_map(|details| &details.causes);
            let mut causes: Vec<Cause> =
                causes.map(|cause| (cause.field.clone(), cause.reason.clone())).collect();
            causes.sort();
            let conflicts = status.details.iter().flat_map(|details| &details.causes);
            let conflicts = conflicts.filter(|cause| cause.reason == "FieldManagerConflict");
            let mut conflicts: Vec<Cause> =
                conflicts.map(|cause| (cause.field.clone(), cause.message.clone())).collect();
            conflicts.sort();
            Answer {
                code: u16::try_from(status.code).unwrap_or_default(),
                reason: status.reason.clone(),
                message: status.message.clone(),
                causes,
                conflicts,
                ..Answer::default()
            }
        }
        Err(error) => Answer { message: error.to_string(), ..Answer::default() },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn times_and_order_of_owners_are_no_change() {
        let object = |version: &str, times: [&str; 2], swapped: bool, value: u8| {
            let mut entries = vec![
                json!({"manager": "a", "time": times[0]}),
                json!({"manager": "b", "time": times[1]}),
            ];
            if swapped {
                entries.swap(0, 1);
            }
            json!({"metadata": {"resourceVersion": version, "managedFields": entries}, "data": value})
        };
        let before = object("1", ["1", "1"], false, 0);
        assert!(!is_rewritten(&before, &object("2", ["2", "1"], true, 0)));
        assert!(is_rewritten(&before, &object("2", ["1", "1"], false, 1)));
        assert!(!is_rewritten(&before, &object("1", ["1", "1"], false, 1)), "not written");
    }
}
