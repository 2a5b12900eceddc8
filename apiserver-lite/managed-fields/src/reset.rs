//! Fields that the endpoints of kinds reset.

use apiserver_schema::update::status_keeps_metadata;

use crate::element::FieldPath;
use crate::set::FieldSet;

/// What the endpoint of a kind's object, or of a subresource of it, resets to the stored values. The group is without its domain;
/// `has_status` says whether the kind has a status subresource.
pub fn reset_fields(
    short_group: &str,
    kind: &str,
    has_status: bool,
    subresource: &str,
) -> FieldSet {
    let mut paths: Vec<&[&str]> = Vec::new();
    match subresource {
        "" if (short_group, kind) == ("certificates", "CertificateSigningRequest") => {
            paths.extend([&["spec"][..], &["status"]]);
        }
        "" if has_status => paths.push(&["status"]),
        "finalize" => paths.push(&["status"]),
        "approval" => paths.extend([&["spec"][..], &["status", "certificate"]]),
        "status" => {
            paths.push(&["spec"]);
            match (short_group, kind) {
                ("", "Pod") => {
                    paths.push(&["metadata", "deletionTimestamp"]);
                    paths.push(&["metadata", "ownerReferences"]);
                }
                ("apps", "Deployment") => paths.push(&["metadata", "labels"]),
                ("certificates", "CertificateSigningRequest") => {
                    paths.push(&["status", "conditions"]);
                }
                _ if status_keeps_metadata(short_group, kind) => paths.push(&["metadata"]),
                _ => {}
            }
        }
        _ => {}
    }
    paths.into_iter().map(FieldPath::fields).collect()
}
