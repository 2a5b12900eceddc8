//! The Status for a denial or failure of a webhook, with Kubernetes' messages.

use proto_api::meta::v1::Status;

/// The Status of a request that the webhook `name` denies. Its code is at least 400, whatever the webhook says.
#[must_use]
pub fn denial(name: &str, status: Option<Status>) -> Status {
    let mut status = status.unwrap_or_default();
    status.code = status.code.max(400);
    if matches!(status.status.as_str(), "" | "Success") {
        status.status = "Failure".to_owned();
    }
    let denied = format!("admission webhook {name:?} denied the request");
    status.message = match (status.message.as_str(), status.reason.as_str()) {
        ("", "") => format!("{denied} without explanation"),
        ("", why) | (why, _) => format!("{denied}: {why}"),
    };
    status
}

/// Why the webhook `name` cannot be called; a client reads it behind `Internal error occurred: `.
#[must_use]
pub fn call_failure(name: &str, reason: &str) -> String {
    format!("failed calling webhook {name:?}: {reason}")
}

/// The text of the refusal of a dry run that the webhook `name` cannot take part in.
#[must_use]
pub fn dry_run_refusal(name: &str) -> String {
    format!("admission webhook {name:?} does not support dry run")
}

/// The text of the error of a webhook that patches what has no object.
#[must_use]
pub fn changes_nothing_text(name: &str) -> String {
    format!(
        "admission webhook {name:?} attempted to modify the object, which is not supported for this operation"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denials_have_kubernetes_texts() {
        let of = |code, message: &str, reason: &str| {
            let (message, reason) = (message.to_owned(), reason.to_owned());
            Some(Status { code, message, reason, ..Status::default() })
        };
        let denied = "admission webhook \"w.x.y\" denied the request";
        for (given, code, message) in [
            (None, 400, format!("{denied} without explanation")),
            (of(0, "", ""), 400, format!("{denied} without explanation")),
            (of(200, "no", ""), 400, format!("{denied}: no")),
            (of(403, "no", "Because"), 403, format!("{denied}: no")),
            (of(403, "", "Because"), 403, format!("{denied}: Because")),
            (of(-1, "", ""), 400, format!("{denied} without explanation")),
        ] {
            let status = denial("w.x.y", given);
            assert_eq!((status.code, status.message), (code, message));
            assert_eq!(status.status, "Failure");
        }
    }

    #[test]
    fn failures_name_the_webhook() {
        assert_eq!(call_failure("w", "why"), "failed calling webhook \"w\": why");
    }
}
