//! What a webhook answers, checked.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proto_api::meta::v1::Status;
use proto_api::names::Names;
use proto_api::object::from_json_value;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::configuration::{AdmissionReviewVersion, Phase};

/// Longest answer: the largest patch in base64, and room for the rest.
pub const ANSWER_LEN_MAX: usize = 5 << 20;
/// Longest patch: as long as an object may be.
const PATCH_LEN_MAX: usize = 3 << 20;
/// Most warnings of one answer; a response has no more.
const WARNINGS_MAX: usize = 16;
/// Longest warning, in characters.
const WARNING_LEN_MAX: usize = 256;
/// Most audit annotations of one answer.
const ANNOTATIONS_MAX: usize = 64;
/// Longest key and value of an audit annotation together, in bytes.
const ANNOTATION_LEN_MAX: usize = 16 << 10;

/// What a webhook says about a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Whether it may go on.
    pub allowed: bool,
    /// Why not.
    pub status: Option<Status>,
    /// A JSON patch with at least one operation.
    pub patch: Option<Vec<u8>>,
    /// Texts for the client.
    pub warnings: Vec<String>,
    /// For the audit log; keys are without the name of the webhook.
    pub annotations: BTreeMap<String, String>,
}

/// What a response must match.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedReview<'a> {
    /// The uid of the review.
    pub uid: &'a str,
    pub version: AdmissionReviewVersion,
    /// When the webhook was called.
    pub phase: Phase,
}

/// An answer is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// It is not an AdmissionReview in JSON.
    #[error("couldn't get version/kind; json parse error: {0}")]
    Json(String),
    /// Its status is not a Status.
    #[error("cannot decode response.status: {0}")]
    Status(String),
    #[error("webhook response was absent")]
    NoResponse,
    /// It answers another question.
    #[error("expected response.uid={expected:?}, got {found:?}")]
    Uid {
        /// The uid of the review.
        expected: String,
        /// That of the answer.
        found: String,
    },
    /// It is of another kind or version.
    #[error("expected webhook response of {expected}, got {found}")]
    Kind {
        /// As `group/version, Kind=kind`.
        expected: String,
        /// The same of the answer.
        found: String,
    },
    #[error("webhook returned response.patch but not response.patchType")]
    NoPatchType,
    /// It has a type of no patch.
    #[error("webhook returned response.patchType but not response.patch")]
    NoPatch,
    #[error("webhook returned invalid response.patchType of \"\"")]
    EmptyPatchType,
    /// The type of its patch is not known.
    #[error("unsupported patch type {0:?}")]
    PatchType(String),
    /// A validating webhook wants to change the object.
    #[error("validating webhook may not return response.patch")]
    ForbiddenPatch,
    /// A validating webhook says how it wants to change the object.
    #[error("validating webhook may not return response.patchType")]
    ForbiddenPatchType,
    /// Its patch is longer than any object.
    #[error("response.patch is longer than {PATCH_LEN_MAX} bytes")]
    LongPatch,
    /// Its patch is not base64.
    #[error("response.patch is not base64: {0}")]
    Base64(String),
}

impl AnswerError {
    /// The error for the client: an answer that is no AdmissionReview has another text than one with wrong content.
    #[must_use]
    pub fn reason(&self) -> String {
        match self {
            Self::Json(_) | Self::Status(_) | Self::Base64(_) => {
                format!("failed to call webhook: {self}")
            }
            Self::PatchType(_) => self.to_string(),
            _ => format!("received invalid webhook response: {self}"),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Envelope {
    #[serde(deserialize_with = "null_is_empty")]
    api_version: String,
    #[serde(deserialize_with = "null_is_empty")]
    kind: String,
    response: Option<Response>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Response {
    #[serde(deserialize_with = "null_is_empty")]
    uid: String,
    #[serde(deserialize_with = "null_is_empty")]
    allowed: bool,
    status: Option<Value>,
    #[serde(deserialize_with = "null_is_empty")]
    patch: String,
    patch_type: Option<String>,
    #[serde(deserialize_with = "null_is_empty")]
    warnings: Vec<String>,
    #[serde(deserialize_with = "null_is_empty")]
    audit_annotations: BTreeMap<String, String>,
}

/// As in Go.
fn null_is_empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Reads the answer in `body`. Warnings and annotations beyond their bounds are left out or cut.
///
/// # Errors
/// The response does not match the request. Of v1beta1, uid and kind are not compared, as in Kubernetes.
pub fn read_answer(
    body: &[u8],
    asked: ExpectedReview<'_>,
    names: &Names,
) -> Result<Answer, AnswerError> {
    let envelope: Envelope =
        serde_json::from_slice(body).map_err(|error| AnswerError::Json(error.to_string()))?;
    let response = envelope.response.ok_or(AnswerError::NoResponse)?;
    if asked.version == AdmissionReviewVersion::V1 {
        if response.uid != asked.uid {
            let (expected, found) = (asked.uid.to_owned(), response.uid);
            return Err(AnswerError::Uid { expected, found });
        }
        check_kind(&envelope.api_version, &envelope.kind, names)?;
    }
    let patch = read_patch(&response, asked)?;
    let status = response.status.map(|status| read_status(status, names)).transpose()?;
    let warnings = response.warnings.into_iter().take(WARNINGS_MAX);
    let annotations = response.audit_annotations.into_iter();
    let short = annotations
        .filter(|(key, value)| key.len().saturating_add(value.len()) <= ANNOTATION_LEN_MAX);
    Ok(Answer {
        allowed: response.allowed,
        status,
        patch,
        warnings: warnings.map(|text| text.chars().take(WARNING_LEN_MAX).collect()).collect(),
        annotations: short.take(ANNOTATIONS_MAX).collect(),
    })
}

fn check_kind(api_version: &str, kind: &str, names: &Names) -> Result<(), AnswerError> {
    let wanted = names.api_version("admission", AdmissionReviewVersion::V1.name());
    if api_version == wanted && kind == "AdmissionReview" {
        return Ok(());
    }
    // As Go prints a kind: the core group has an empty name, and still its slash where there is no version.
    let full = if api_version.is_empty() { "/" } else { api_version };
    Err(AnswerError::Kind {
        expected: format!("{wanted}, Kind=AdmissionReview"),
        found: format!("{full}, Kind={kind}"),
    })
}

/// The patch of a mutating webhook; `None` for one without operations.
fn read_patch(
    response: &Response,
    asked: ExpectedReview<'_>,
) -> Result<Option<Vec<u8>>, AnswerError> {
    let (patch, kind) = (&response.patch, response.patch_type.as_deref());
    match (asked.phase, asked.version) {
        (Phase::Validating, AdmissionReviewVersion::V1) => {
            if !patch.is_empty() {
                return Err(AnswerError::ForbiddenPatch);
            }
            return if kind.is_some() { Err(AnswerError::ForbiddenPatchType) } else { Ok(None) };
        }
        (Phase::Validating, AdmissionReviewVersion::V1Beta1) => return Ok(None),
        (Phase::Mutating(_), AdmissionReviewVersion::V1) => match (patch.is_empty(), kind) {
            (false, None) => return Err(AnswerError::NoPatchType),
            (true, Some(_)) => return Err(AnswerError::NoPatch),
            (false, Some("")) => return Err(AnswerError::EmptyPatchType),
            (false, Some(kind)) if kind != "JSONPatch" => {
                return Err(AnswerError::PatchType(kind.to_owned()));
            }
            _ => {}
        },
        // The only type is JSONPatch.
        (Phase::Mutating(_), AdmissionReviewVersion::V1Beta1) => {}
    }
    if (patch.len() / 4).saturating_mul(3) > PATCH_LEN_MAX {
        return Err(AnswerError::LongPatch);
    }
    let bytes = STANDARD.decode(patch).map_err(|error| AnswerError::Base64(error.to_string()))?;
    let text = bytes.trim_ascii();
    let without_operations = text.is_empty()
        || text == b"null"
        || text.strip_prefix(b"[").is_some_and(|rest| rest.trim_ascii() == b"]");
    Ok((!without_operations).then_some(bytes))
}

fn read_status(mut status: Value, names: &Names) -> Result<Status, AnswerError> {
    if let Some(fields) = status.as_object_mut() {
        // It is a part of another kind: what it calls itself does not matter.
        fields.remove("kind");
        fields.remove("apiVersion");
    }
    from_json_value(status, names).map_err(|error| AnswerError::Status(error.to_string()))
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;
    use serde_json::json;

    use super::*;
    use crate::configuration::ReinvocationPolicy;

    const MUTATING: Phase = Phase::Mutating(ReinvocationPolicy::Never);

    fn read(
        version: AdmissionReviewVersion,
        phase: Phase,
        answer: &Value,
    ) -> Result<Answer, String> {
        let names = Names::new(Profile::Kubernetes);
        let asked = ExpectedReview { uid: "u", version, phase };
        read_answer(answer.to_string().as_bytes(), asked, names).map_err(|error| error.reason())
    }

    fn v1(phase: Phase, response: Value) -> Result<Answer, String> {
        let mut response = response;
        response["uid"] = "u".into();
        let answer = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
        read(AdmissionReviewVersion::V1, phase, &answer)
    }

    #[test]
    fn answers_of_v1_are_checked_as_in_kubernetes() {
        let whole =
            |answer: Value| read(AdmissionReviewVersion::V1, MUTATING, &answer).unwrap_err();
        let invalid = "received invalid webhook response: ";
        assert_eq!(whole(json!({})), format!("{invalid}webhook response was absent"));
        assert_eq!(
            whole(json!({"response": {"uid": "v"}})),
            format!("{invalid}expected response.uid=\"u\", got \"v\"")
        );
        let kind = "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got";
        assert_eq!(whole(json!({"response": {"uid": "u"}})), format!("{invalid}{kind} /, Kind="));
        let other = json!({"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "response": {"uid": "u"}});
        let found = "admission.k8s.io/v1beta1, Kind=AdmissionReview";
        assert_eq!(whole(other), format!("{invalid}{kind} {found}"));
        assert!(
            whole(json!("no"))
                .starts_with("failed to call webhook: couldn't get version/kind; json parse error")
        );
        assert!(whole(json!({"response": {"uid": 1}})).starts_with("failed to call webhook: "));
    }

    #[test]
    fn patches_of_v1_need_their_type_and_a_mutating_webhook() {
        let patch = STANDARD.encode(r#"[{"op":"remove","path":"/a"}]"#);
        let invalid = |text: &str| Err(format!("received invalid webhook response: {text}"));
        for (phase, response, expected) in [
            (
                MUTATING,
                json!({"patch": patch}),
                invalid("webhook returned response.patch but not response.patchType"),
            ),
            (
                MUTATING,
                json!({"patchType": "JSONPatch"}),
                invalid("webhook returned response.patchType but not response.patch"),
            ),
            (
                MUTATING,
                json!({"patch": patch, "patchType": ""}),
                invalid("webhook returned invalid response.patchType of \"\""),
            ),
            (
                MUTATING,
                json!({"patch": patch, "patchType": "Merge"}),
                Err("unsupported patch type \"Merge\"".to_owned()),
            ),
            (
                Phase::Validating,
                json!({"patch": patch}),
                invalid("validating webhook may not return response.patch"),
            ),
            (
                Phase::Validating,
                json!({"patchType": "JSONPatch"}),
                invalid("validating webhook may not return response.patchType"),
            ),
        ] {
            assert_eq!(v1(phase, response.clone()), expected, "{response}");
        }
        let good = v1(MUTATING, json!({"patch": patch, "patchType": "JSONPatch"})).unwrap();
        assert!(good.patch.is_some_and(|patch| patch.starts_with(b"[{")));
        let bad = v1(MUTATING, json!({"patch": "%", "patchType": "JSONPatch"})).unwrap_err();
        assert!(bad.starts_with("failed to call webhook: response.patch is not base64"), "{bad}");
    }

    #[test]
    fn a_patch_without_operations_is_none() {
        for text in ["[]", " [ ] ", "null"] {
            let response = json!({"patch": STANDARD.encode(text), "patchType": "JSONPatch"});
            assert_eq!(v1(MUTATING, response).unwrap().patch, None, "{text}");
        }
    }

    #[test]
    fn answers_of_v1beta1_are_not_compared() {
        let patch = STANDARD.encode("[1]");
        let answer = json!({"response": {"allowed": true, "patch": patch}});
        let read = |phase| read(AdmissionReviewVersion::V1Beta1, phase, &answer).unwrap();
        assert_eq!(read(MUTATING).patch, Some(b"[1]".to_vec()));
        assert_eq!(read(Phase::Validating).patch, None);
    }

    #[test]
    fn warnings_and_audit_annotations_of_webhooks_are_bounded() {
        let warnings: Vec<String> = (0..100).map(|_| "ü".repeat(1000)).collect();
        let mut annotations: BTreeMap<String, String> =
            (0..100).map(|n| (format!("k{n}"), "v".to_owned())).collect();
        annotations.insert("a".to_owned(), "v".repeat(ANNOTATION_LEN_MAX));
        let answer = v1(
            Phase::Validating,
            json!({"allowed": true, "warnings": warnings, "auditAnnotations": annotations}),
        )
        .unwrap();
        assert_eq!(answer.warnings.len(), WARNINGS_MAX);
        assert_eq!(answer.warnings[0].chars().count(), WARNING_LEN_MAX);
        assert_eq!(answer.annotations.len(), ANNOTATIONS_MAX);
        assert!(!answer.annotations.contains_key("a"), "too long");
        let long = STANDARD.encode(vec![b' '; PATCH_LEN_MAX + 3]);
        let refused = v1(MUTATING, json!({"patch": long, "patchType": "JSONPatch"})).unwrap_err();
        assert!(refused.ends_with("response.patch is longer than 3145728 bytes"), "{refused}");
    }

    #[test]
    fn nulls_are_empty_and_a_status_is_read() {
        let nothing = json!({"allowed": null, "warnings": null, "auditAnnotations": null, "status": null, "patch": null});
        assert_eq!(v1(MUTATING, nothing), Ok(Answer::default()));
        let status = json!({"code": 418, "message": "no", "reason": "Teapot"});
        let denied = v1(Phase::Validating, json!({"status": status})).unwrap();
        let status = denied.status.unwrap();
        assert_eq!(
            (status.code, status.message.as_str(), status.reason.as_str()),
            (418, "no", "Teapot")
        );
        let wrong = v1(Phase::Validating, json!({"status": {"code": "x"}})).unwrap_err();
        assert!(
            wrong.starts_with("failed to call webhook: cannot decode response.status"),
            "{wrong}"
        );
    }
}
