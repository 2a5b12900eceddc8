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

/// One request in the words of each server.
pub struct Pair {
    method: Method,
    paths: [String; 2],
    bodies: [Bytes; 2],
    content_type: String,
    accept: String,
}

/// Content types.
pub const JSON: &str = "application/json";

impl Pair {
    /// A request without a body.
    pub fn new(method: Method, paths: impl Fn(Whose) -> String) -> Self {
        Self {
            method,
            paths: [paths(Whose::Theirs), paths(Whose::Ours)],
            bodies: [Bytes::new(), Bytes::new()],
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
        format!("{} {}", self.method, self.paths[0])
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
    /// Of a success.
    pub object: Option<Json>,
}

/// Sends all steps of a case to one server.
pub async fn send(client: &Client, whose: Whose, case: &Case) -> Vec<Answer> {
    let mut answers: Vec<Answer> = Vec::with_capacity(case.steps.len());
    for step in &case.steps {
        let token = answers.last().and_then(|last| last.object.as_ref());
        let token = token.and_then(|list| list["metadata"]["continue"].as_str()).unwrap_or("");
        let at = usize::from(whose == Whose::Ours);
        let path = step.paths[at].replace("{continue}", token);
        let request = Request::builder()
            .method(step.method.clone())
            .uri(path)
            .header(header::CONTENT_TYPE, &step.content_type)
            .header(header::ACCEPT, &step.accept)
            .body(step.bodies[at].clone());
        let answer = match request {
            Ok(request) => read(client.call(request).await),
            Err(error) => Answer { message: error.to_string(), ..Answer::default() },
        };
        answers.push(answer);
    }
    answers
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
            Answer {
                code: u16::try_from(status.code).unwrap_or_default(),
                reason: status.reason.clone(),
                message: status.message.clone(),
                causes,
                object: None,
            }
        }
        Err(error) => Answer { message: error.to_string(), ..Answer::default() },
    }
}
