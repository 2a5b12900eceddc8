//! Options of log requests.

use crate::request::Query;
use crate::status::{ApiError, FieldProblem, StatusTarget};

/// Validates the query parameters of a log request for the pod `name`.
///
/// # Errors
/// 400 for values that are not numbers, 422 (of `PodLogOptions`, as in Kubernetes) for those out of range and for two starts.
pub fn check(query: &Query, name: &str) -> Result<(), ApiError> {
    let mut problems = Vec::new();
    let mut at_least = |field: &str, least: i64, detail: &str| -> Result<(), ApiError> {
        let Some(text) = query.text(field) else { return Ok(()) };
        let number: i64 = text
            .parse()
            .map_err(|_| ApiError::bad_request(format!("invalid value {text:?} for {field}")))?;
        if number < least {
            problems.push(FieldProblem::invalid(field, number, detail));
        }
        Ok(())
    };
    at_least("tailLines", 0, "must be greater than or equal to 0")?;
    at_least("limitBytes", 1, "must be greater than 0")?;
    at_least("sinceSeconds", 1, "must be greater than 0")?;
    if query.text("sinceSeconds").is_some() && query.text("sinceTime").is_some() {
        let detail = "at most one of `sinceTime` or `sinceSeconds` may be specified";
        problems.push(FieldProblem::forbidden("", detail));
    }
    if problems.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid(StatusTarget { group: "", kind: "PodLogOptions", name }, &problems))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_numbers_in_range_with_one_start() {
        let code = |query: &str| check(&Query::parse(query), "p").map_err(|error| error.code());
        for good in ["", "tailLines=0", "sinceSeconds=9223372036854775807", "limitBytes=1"] {
            assert_eq!(code(good), Ok(()), "{good}");
        }
        for bad in ["tailLines=-1", "limitBytes=0", "sinceSeconds=0", "sinceSeconds=-9"] {
            assert_eq!(code(bad), Err(422), "{bad}");
        }
        assert_eq!(code("sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z"), Err(422));
        for bad in ["tailLines=x", "limitBytes=9223372036854775808"] {
            assert_eq!(code(bad), Err(400), "{bad}");
        }
    }
}
