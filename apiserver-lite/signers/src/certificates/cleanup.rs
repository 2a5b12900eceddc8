//! The csrcleaner's policy: when a certificate request is deleted. Pure.

use std::time::Duration;

use proto_api::Time;
use proto_api::certificates::v1::CertificateSigningRequest;

/// Seconds for which a finished request is kept.
const SETTLED_SECS: i64 = 60 * 60;
/// Seconds for which a request without approval or, once approved, without a certificate is kept.
const PENDING_SECS: i64 = 24 * 60 * 60;

/// The time until the request is deleted; zero if it is due.
pub fn time_left(request: &CertificateSigningRequest, now: Time) -> Duration {
    let now = now.unix().unwrap_or(0);
    let left = ends(request).saturating_sub(now);
    Duration::from_secs(u64::try_from(left).unwrap_or(0))
}

/// The time at which it is deleted, in seconds since 1970.
fn ends(request: &CertificateSigningRequest) -> i64 {
    let created = request.metadata.creation_timestamp.unix().unwrap_or(0);
    let status = &request.status;
    // Clients write condition times: they are bounded to the request's creation and to now.
    let latest = created.saturating_add(PENDING_SECS);
    let condition_time = |kind: &str| {
        let condition = status.conditions.iter().find(|condition| condition.type_ == kind)?;
        Some(condition.last_update_time.unix().unwrap_or(created).clamp(created, latest))
    };
    let finished = ["Denied", "Failed"].into_iter().find_map(condition_time);
    let finished =
        finished.or_else(|| condition_time("Approved").filter(|_| !status.certificate.is_empty()));
    match finished {
        Some(when) => when.saturating_add(SETTLED_SECS),
        None => latest,
    }
}

#[cfg(test)]
mod tests {
    use proto_api::certificates::v1::CertificateSigningRequestCondition;

    use super::*;

    const MADE: i64 = 1_000_000;

    fn request(conditions: &[(&str, i64)], issued: bool) -> CertificateSigningRequest {
        let mut request = CertificateSigningRequest::default();
        request.metadata.creation_timestamp = Time::from_unix(MADE);
        let condition = |(kind, when): &(&str, i64)| CertificateSigningRequestCondition {
            type_: (*kind).to_owned(),
            last_update_time: Time::from_unix(*when),
            ..CertificateSigningRequestCondition::default()
        };
        request.status.conditions = conditions.iter().map(condition).collect();
        request.status.certificate = if issued { b"certificate".to_vec() } else { Vec::new() };
        request
    }

    #[test]
    fn requests_stay_an_hour_after_an_answer_and_a_day_without() {
        let check = |conditions: &[(&str, i64)], issued: bool, secs: i64| {
            let request = request(conditions, issued);
            let left = |at: i64| time_left(&request, Time::from_unix(at)).as_secs();
            assert_eq!(left(MADE + secs), 0, "{conditions:?}");
            assert_eq!(left(MADE + secs - 1), 1, "{conditions:?}");
        };
        check(&[], false, PENDING_SECS);
        check(&[("Denied", MADE + 10)], false, SETTLED_SECS + 10);
        check(&[("Approved", MADE), ("Failed", MADE + 10)], false, SETTLED_SECS + 10);
        check(&[("Approved", MADE + 10)], false, PENDING_SECS);
        check(&[("Approved", MADE + 10)], true, SETTLED_SECS + 10);
        // A time written by a client does not keep a request for ever.
        for when in [i64::MAX, i64::MIN, 0, MADE - 1] {
            let request = request(&[("Denied", when)], false);
            let left = time_left(&request, Time::from_unix(MADE)).as_secs();
            assert!(left <= u64::try_from(PENDING_SECS + SETTLED_SECS).unwrap(), "{when}");
        }
    }
}
