//! Validation of CertificateSigningRequests.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::error::X509Error;
use x509_parser::prelude::FromDer as _;

use super::{FieldErrors, names};
use crate::enums;
use crate::object::Object;
use crate::scalar;
use crate::update::Subresource;
use crate::value::{Map, Path, Value};

/// Shortest requested lifetime in seconds.
const LIFE_SECONDS_MIN: i64 = 600;
/// Longest parsed request in bytes.
const REQUEST_LEN_MAX: usize = 64 * 1024;
/// Longest signer name: domain, slash, path of segments.
const SIGNER_LEN_MAX: usize = 571;
const LABEL: &str = "CERTIFICATE REQUEST";

pub(super) fn check(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("spec");
    let empty = Map::new();
    let spec = object.spec().unwrap_or(&empty);
    let request = spec.get("request").cloned().unwrap_or_default();
    if let Err(why) = check_request(&scalar::bytes_of(&request)) {
        errors.invalid(&path.field("request"), request, &why.0);
    }
    check_usages(spec, &path, errors);
    check_signer(spec.str("signerName"), &path.field("signerName"), errors);
    let field = "expirationSeconds";
    if let Some(seconds) = spec.int(field).filter(|seconds| *seconds < LIFE_SECONDS_MIN) {
        let detail = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.invalid(&path.field(field), seconds, detail);
    }
    check_conditions(object, errors);
}

/// The organizations in the subject of a request, which is the base64 of a PEM block; `None` if it is none.
pub fn organizations(request: &str) -> Option<Vec<String>> {
    let pem = scalar::bytes_of(&Value::from(request));
    let der = only_block(std::str::from_utf8(&pem).ok()?).ok()?;
    let (_, request) = X509CertificationRequest::from_der(&der).ok()?;
    let subject = &request.certification_request_info.subject;
    let texts = subject.iter_organization().filter_map(|one| one.as_str().ok());
    Some(texts.map(str::to_owned).collect())
}

/// What is wrong with a request, as the detail of its field's error.
struct InvalidRequest(String);

fn wrong_type() -> InvalidRequest {
    InvalidRequest(format!("PEM block type must be {LABEL}"))
}

/// Checks that the request is exactly one PEM block, so that all parsers read the same request, and that it is signed by its own
/// key.
fn check_request(pem: &[u8]) -> Result<(), InvalidRequest> {
    if pem.len() > REQUEST_LEN_MAX {
        return Err(InvalidRequest(format!("must have at most {REQUEST_LEN_MAX} bytes")));
    }
    let text = std::str::from_utf8(pem).map_err(|_| wrong_type())?;
    let der = only_block(text)?;
    let (rest, request) = X509CertificationRequest::from_der(&der)
        .map_err(|error| InvalidRequest(format!("not a certificate request: {error}")))?;
    if !rest.is_empty() {
        return Err(InvalidRequest("data follows the certificate request".to_owned()));
    }
    match request.verify_signature() {
        // Kubernetes supports more algorithms than this parser: the signer decides.
        Ok(()) | Err(X509Error::SignatureUnsupportedAlgorithm) => Ok(()),
        Err(error) => Err(InvalidRequest(format!("signature of the request: {error}"))),
    }
}

/// The content of the single PEM block.
fn only_block(text: &str) -> Result<Vec<u8>, InvalidRequest> {
    let (begin, end) = (format!("-----BEGIN {LABEL}-----"), format!("-----END {LABEL}-----"));
    let body = text.trim().strip_prefix(begin.as_str()).ok_or_else(wrong_type)?;
    let body = body.strip_suffix(end.as_str()).ok_or_else(wrong_type)?;
    let whole_lines = body.starts_with(['\n', '\r']) && body.ends_with(['\n', '\r']);
    if !whole_lines || body.contains('-') {
        let why = format!("must be exactly one PEM block of type {LABEL}");
        return Err(InvalidRequest(why));
    }
    let digits: String = body.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    let malformed = |error| InvalidRequest(format!("base64 of the PEM block: {error}"));
    STANDARD.decode(digits).map_err(malformed)
}

fn check_usages(spec: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let list = path.field("usages");
    if spec.list("usages").is_empty() {
        errors.required(&list, "");
    }
    let mut seen = BTreeSet::new();
    for (at, usage) in super::addresses::texts(spec, "usages") {
        if !enums::KEY_USAGES.contains(&usage) {
            errors.not_supported(&list.index(at), usage, enums::KEY_USAGES);
        }
        if !seen.insert(usage) {
            errors.duplicate(&list.index(at), usage);
        }
    }
}

/// Checks a signer name: a domain of at least two labels, a slash, and a path of labels.
fn check_signer(name: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    if name.is_empty() {
        errors.required(path, "");
        return;
    }
    let parts: Vec<&str> = name.split('/').collect();
    let [domain, signer] = parts.as_slice() else {
        let detail =
            "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        errors.invalid(path, name, detail);
        return;
    };
    for label in domain.split('.') {
        for wrong in names::dns_label(label) {
            errors.invalid(path, *domain, &format!("validating label {label:?}: {wrong}"));
        }
    }
    if !domain.contains('.') {
        let detail = "should be a domain with at least two segments separated by dots";
        errors.invalid(path, *domain, detail);
    }
    for label in signer.split('.') {
        for wrong in names::dns_label(label) {
            errors.invalid(path, *signer, &format!("validating label {label:?}: {wrong}"));
        }
    }
    if name.len() > SIGNER_LEN_MAX {
        errors.too_long(path, SIGNER_LEN_MAX);
    }
}

/// Checks the conditions: their status is true, and approved and denied exclude each other.
fn check_conditions(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let status = path.field("status");
    let list = status.field("conditions");
    let empty = Map::new();
    let mut seen = BTreeSet::new();
    for (at, condition) in object.status().unwrap_or(&empty).maps("conditions").enumerate() {
        let here = list.index(at);
        let (kind, state) = (condition.str("type"), condition.str("status"));
        if kind.is_empty() {
            errors.required(&here.field("type"), "");
        }
        let states: &[&str] = match kind {
            "Approved" | "Denied" | "Failed" => &["True"],
            _ => &["False", "True", "Unknown"],
        };
        errors.one_of(&here.field("status"), state, states);
        let other = match kind {
            "Approved" => "Denied",
            "Denied" => "Approved",
            _ => "",
        };
        if !other.is_empty() && seen.contains(other) {
            let detail = "Approved and Denied conditions are mutually exclusive";
            errors.invalid(&here.field("type"), kind, detail);
        }
        if !seen.insert(kind) {
            errors.duplicate(&here.field("type"), kind);
        }
    }
}

/// Checks an update: decisions are final, the approval subresource does not sign, the status subresource does not approve.
pub(super) fn check_update(
    old: &Object,
    new: &Object,
    subresource: Subresource,
    errors: &mut FieldErrors,
) {
    let path = Path::ROOT;
    let status = path.field("status");
    let conditions = status.field("conditions");
    let approves = subresource == Subresource::Approval;
    for kind in ["Approved", "Denied", "Failed"] {
        let free = approves || kind == "Failed";
        let what = match (condition(old, kind), condition(new, kind)) {
            (Some(_), None) => "remove",
            (None, Some(_)) if !free => "add",
            (Some(before), Some(after)) if !free && before != after => "modify",
            _ => continue,
        };
        let detail = format!("updates may not {what} a condition of type {kind:?}");
        errors.forbidden(&conditions, &detail);
    }
    let certificate = |object: &Object| object.fields.at(&["status", "certificate"]).cloned();
    let (before, after) = (certificate(old), certificate(new));
    let was_set = before.as_ref().is_some_and(|value| !value.is_empty());
    if before != after && (was_set || subresource != Subresource::Status) {
        let what = if was_set { "modify existing" } else { "set" };
        let detail = format!("updates may not {what} certificate content");
        errors.forbidden(&status.field("certificate"), &detail);
    } else if before != after
        && let Some(value) = after
    {
        check_certificate(&value, &status.field("certificate"), errors);
    }
}

fn condition(object: &Object, kind: &str) -> Option<Map> {
    let mut conditions = object.status()?.maps("conditions");
    conditions.find(|condition| condition.str("type") == kind).cloned()
}

/// Checks that `status.certificate` is a chain of certificates without keys.
fn check_certificate(value: &Value, path: &Path<'_>, errors: &mut FieldErrors) {
    let pem = scalar::bytes_of(value);
    let mut blocks: usize = 0;
    for block in x509_parser::pem::Pem::iter_from_buffer(&pem) {
        match block {
            Ok(block) if block.label == "CERTIFICATE" && block.parse_x509().is_ok() => {
                blocks = blocks.saturating_add(1);
            }
            Ok(block) if block.label != "CERTIFICATE" => {
                let detail = "only CERTIFICATE PEM blocks are allowed, found ";
                errors.invalid(path, "<certificate data>", &format!("{detail}{:?}", block.label));
                return;
            }
            Ok(_) | Err(_) => {
                errors.invalid(path, "<certificate data>", "must contain valid certificates");
                return;
            }
        }
    }
    if blocks == 0 {
        let detail = "must contain at least one CERTIFICATE PEM block";
        errors.invalid(path, "<certificate data>", detail);
    }
}
