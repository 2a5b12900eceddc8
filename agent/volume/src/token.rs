//! How long a token is good, read from the token itself, and when it is to be renewed.
//!
//! A restarted agent goes on with the tokens that its pods hold, instead of asking for all of them anew. Nothing is trusted
//! here that matters: the signature is the API server's to check.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::Deserialize;

/// A token older than this is renewed however long it lives.
const AGE_MAX_SECS: i64 = 24 * 3600;
/// A token is renewed after this share of its life, in percent.
const LIFE_PERCENT: i64 = 80;

/// From when to when a token is good, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Life {
    /// When it was issued.
    #[serde(rename = "iat")]
    pub issued_at: i64,
    /// When it expires.
    #[serde(rename = "exp")]
    pub expires_at: i64,
}

impl Life {
    /// Reads the claims of a token; `None` when it does not say, or is not of the usual form.
    #[must_use]
    pub fn of(token: &str) -> Option<Self> {
        let mut parts = token.trim_end().split('.');
        let (_, claims, _) = (parts.next()?, parts.next()?, parts.next()?);
        let claims = BASE64_URL_SAFE_NO_PAD.decode(claims).ok()?;
        serde_json::from_slice(&claims).ok()
    }

    /// How long the token can still be used before it is renewed. Zero for one that is old, and for one that a clock which was
    /// set since makes look as if it came from the future.
    #[must_use]
    pub fn renew_in(&self, now: i64) -> Duration {
        let life = self.expires_at.saturating_sub(self.issued_at);
        if self.issued_at > now || life <= 0 {
            return Duration::ZERO;
        }
        let age_max =
            (life / 100 * LIFE_PERCENT + life % 100 * LIFE_PERCENT / 100).min(AGE_MAX_SECS);
        let left = self.issued_at.saturating_add(age_max).saturating_sub(now);
        Duration::from_secs(u64::try_from(left).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_read() {
        let token = |claims: &str| format!("e30.{}.c2ln", BASE64_URL_SAFE_NO_PAD.encode(claims));
        let life = Life { issued_at: 100, expires_at: 3707 };
        assert_eq!(Life::of(&token(r#"{"iss":"x","iat":100,"exp":3707}"#)), Some(life));
        assert_eq!(Life::of(&token(r#"{"iat":100}"#)), None);
        for bad in ["", "a.b", "e30.%.x", "e30.e30.x"] {
            assert_eq!(Life::of(bad), None, "{bad}");
        }
    }

    #[test]
    fn renewal_is_due_after_four_fifths_or_a_day() {
        let life = |issued_at, expires_at| Life { issued_at, expires_at };
        for (life, now, secs) in [
            (life(0, 1000), 0, 800),
            (life(0, 1000), 700, 100),
            (life(0, 1000), 800, 0),
            (life(0, 1000), 5000, 0),
            (life(0, 30 * AGE_MAX_SECS), 0, 24 * 3600),
            (life(500, 1500), 499, 0),
            (life(500, 500), 500, 0),
            (life(i64::MIN, i64::MAX), 0, 0),
        ] {
            assert_eq!(life.renew_in(now).as_secs(), secs, "{life:?} at {now}");
        }
    }
}
