//! Conversion by webhooks: the review that is sent, and what is accepted of the answer.

use apiserver_schema::{Map, Value};

/// Why the answer of a webhook is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConversionReviewError {
    /// The answer is of another kind or version.
    #[error("expected webhook response of {want}, got {got}")]
    Kind {
        /// What was sent.
        want: String,
        /// What came.
        got: String,
    },
    /// It answers another request.
    #[error("expected response.uid={want:?}, got {got:?}")]
    Uid {
        /// What was sent.
        want: String,
        /// What came.
        got: String,
    },
    /// The webhook says that it failed.
    #[error("{0}")]
    Failed(String),
    /// Some objects are missing, or there are more.
    #[error("{got} objects, expected {want}")]
    Count {
        /// What was sent.
        want: usize,
        /// What came.
        got: usize,
    },
    /// An object is not the one that was sent, in the wanted version.
    #[error("invalid converted object at index {at}: {why}")]
    Object {
        /// Its index.
        at: usize,
        why: String,
    },
}

/// The review to send: converts `objects` to `api_version`. `review_api_version` is the group and version of ConversionReview.
pub fn conversion_review(
    review_api_version: &str,
    uid: &str,
    api_version: &str,
    objects: Vec<Value>,
) -> Value {
    let request = Map::from_iter([
        ("uid", Value::from(uid)),
        ("desiredAPIVersion", Value::from(api_version)),
        ("objects", Value::List(objects)),
    ]);
    Value::Map(Map::from_iter([
        ("kind", Value::from("ConversionReview")),
        ("apiVersion", Value::from(review_api_version)),
        ("request", Value::Map(request)),
    ]))
}

/// The converted objects of an answer. Of their metadata only labels and annotations come from the webhook.
pub fn check_review(sent: &Value, mut answer: Value) -> Result<Vec<Value>, ConversionReviewError> {
    let empty = Map::new();
    let mut taken = Map::new();
    let sent = sent.as_map().unwrap_or(&empty);
    let answer = answer.as_map_mut().unwrap_or(&mut taken);
    let kind_of = |map: &Map| format!("{}, Kind={}", map.str("apiVersion"), map.str("kind"));
    if kind_of(sent) != kind_of(answer) {
        return Err(ConversionReviewError::Kind { want: kind_of(sent), got: kind_of(answer) });
    }
    let request = sent.map("request").unwrap_or(&empty);
    let response = answer.map_or_insert("response");
    if request.str("uid") != response.str("uid") {
        let (want, got) = (request.str("uid").to_owned(), response.str("uid").to_owned());
        return Err(ConversionReviewError::Uid { want, got });
    }
    let result = response.map("result").unwrap_or(&empty);
    if result.str("status") != "Success" {
        return Err(ConversionReviewError::Failed(failure(result)));
    }
    let objects = request.list("objects");
    let converted = response.list_mut("convertedObjects").map(std::mem::take).unwrap_or_default();
    if objects.len() != converted.len() {
        return Err(ConversionReviewError::Count { want: objects.len(), got: converted.len() });
    }
    let wanted = request.str("desiredAPIVersion");
    let pairs = objects.iter().zip(converted).enumerate();
    pairs
        .map(|(at, (object, converted))| {
            restore(object, converted, wanted).map_err(|fault| fault.at(at))
        })
        .collect()
}

fn failure(result: &Map) -> String {
    match result.str("message") {
        "" => format!("response.result.status was '{}', not 'Success'", result.str("status")),
        message => message.to_owned(),
    }
}

/// What is wrong with one converted object.
struct ObjectFault(String);

impl ObjectFault {
    fn at(self, at: usize) -> ConversionReviewError {
        ConversionReviewError::Object { at, why: self.0 }
    }
}

/// The converted object with the metadata of the original.
fn restore(original: &Value, converted: Value, api_version: &str) -> Result<Value, ObjectFault> {
    let empty = Map::new();
    let original = original.as_map().unwrap_or(&empty);
    let shape = converted.shape();
    let Value::Map(mut converted) = converted else {
        return Err(ObjectFault(format!("expected an object, received {shape}")));
    };
    let got = converted.str("apiVersion");
    if got != api_version {
        let why = format!("invalid groupVersion (expected {api_version}, received {got})");
        return Err(ObjectFault(why));
    }
    let same = |what: &str, want: &str, got: &str| {
        if want == got {
            Ok(())
        } else {
            Err(ObjectFault(format!("must have the same {what}: {want} != {got}")))
        }
    };
    same("kind", original.str("kind"), converted.str("kind"))?;
    let metadata = original.map("metadata").unwrap_or(&empty);
    let answered = match converted.get("metadata") {
        Some(Value::Map(metadata)) => metadata,
        Some(other) => {
            return Err(ObjectFault(format!("invalid metadata of type {}", other.shape())));
        }
        None => return Err(ObjectFault("missing metadata in converted object".to_owned())),
    };
    for (what, field) in [("name", "name"), ("namespace", "namespace"), ("UID", "uid")] {
        same(what, metadata.str(field), answered.str(field))?;
    }
    let mut restored = metadata.clone();
    for field in ["labels", "annotations"] {
        match answered.get(field) {
            None | Some(Value::Null) => drop(restored.remove(field)),
            Some(Value::Map(entries)) => {
                if let Some((key, _)) = entries.iter().find(|(_, value)| value.as_str().is_none()) {
                    return Err(ObjectFault(format!("metadata.{field}[{key}] must be a string")));
                }
                restored.insert(field, entries.clone());
            }
            Some(other) => {
                return Err(ObjectFault(format!(
                    "invalid metadata.{field} of type {}",
                    other.shape()
                )));
            }
        }
    }
    converted.insert("metadata", restored);
    Ok(Value::Map(converted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::value;

    const VERSION: &str = "apiextensions.example/v1";

    fn sent() -> Value {
        let object = value(
            r#"{"apiVersion":"e.com/v1","kind":"W","metadata":{"name":"a","uid":"u","labels":{"x":"1"}},"old":1}"#,
        );
        conversion_review(VERSION, "id", "e.com/v2", vec![object])
    }

    fn answer(object: &str) -> Value {
        value(&format!(
            r#"{{"apiVersion":"{VERSION}","kind":"ConversionReview","response":{{"uid":"id",
            "result":{{"status":"Success"}},"convertedObjects":[{object}]}}}}"#
        ))
    }

    #[test]
    fn labels_come_from_the_webhook_and_other_metadata_stays() {
        let object = r#"{"apiVersion":"e.com/v2","kind":"W","new":1,
            "metadata":{"name":"a","uid":"u","generation":7,"labels":{"y":"2"}}}"#;
        let converted = check_review(&sent(), answer(object)).expect("accepted");
        let expect = value(
            r#"{"apiVersion":"e.com/v2","kind":"W","metadata":{"name":"a","uid":"u","labels":{"y":"2"}},"new":1}"#,
        );
        assert_eq!(converted, [expect]);
    }

    #[test]
    fn other_answers_are_refused() {
        let cases = [
            (
                r#"{"apiVersion":"e.com/v1","kind":"W","metadata":{"name":"a","uid":"u"}}"#,
                "expected e.com/v2",
            ),
            (
                r#"{"apiVersion":"e.com/v2","kind":"V","metadata":{"name":"a","uid":"u"}}"#,
                "the same kind",
            ),
            (
                r#"{"apiVersion":"e.com/v2","kind":"W","metadata":{"name":"b","uid":"u"}}"#,
                "the same name",
            ),
            (
                r#"{"apiVersion":"e.com/v2","kind":"W","metadata":{"name":"a","uid":"v"}}"#,
                "the same UID",
            ),
            (r#"{"apiVersion":"e.com/v2","kind":"W"}"#, "missing metadata"),
            (
                r#"{"apiVersion":"e.com/v2","kind":"W","metadata":{"name":"a","uid":"u","labels":{"x":1}}}"#,
                "metadata.labels[x] must be a string",
            ),
            ("1", "expected an object"),
            (r#"{}, {}"#, "2 objects, expected 1"),
        ];
        for (object, expect) in cases {
            let error = check_review(&sent(), answer(object)).expect_err(object).to_string();
            assert!(error.contains(expect), "{error}");
        }
    }

    #[test]
    fn answers_to_other_requests_and_failures_are_refused() {
        let answers = [
            (r#"{}"#.to_owned(), "expected webhook response"),
            (
                format!(r#"{{"apiVersion":"{VERSION}","kind":"ConversionReview"}}"#),
                "expected response.uid=\"id\"",
            ),
            (
                format!(
                    r#"{{"apiVersion":"{VERSION}","kind":"ConversionReview",
                    "response":{{"uid":"id","result":{{"status":"Failure","message":"no"}}}}}}"#
                ),
                "no",
            ),
        ];
        for (text, expect) in answers {
            let error = check_review(&sent(), value(&text)).expect_err(expect).to_string();
            assert!(error.contains(expect), "{error}");
        }
    }
}
