//! Lifetime and renewal of service account tokens.
//!
//! The API server counts a token's lifetime by its own clock; the node has a monotonic clock since boot and a wall clock that can
//! be set. A token is renewed when either clock says so. The renewal time since boot is stored next to the pod's volumes, so that
//! a restarted agent keeps the tokens of its pods and the same renewal times. Without such a record the token's claims are used.
//! Nothing security-relevant depends on them: the API server verifies the signature.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

/// Age in seconds after which a token is renewed, whatever its lifetime.
const AGE_MAX_SECS: i64 = 24 * 3600;
/// Share of the lifetime in percent after which a token is renewed.
const LIFE_PERCENT: i64 = 80;
/// Delay after a failed renewal.
pub const RETRY: Duration = Duration::from_secs(10);
/// Largest reduction of the renewal time in percent, so that tokens requested together are not renewed together.
const SPREAD_PERCENT: u64 = 5;

/// A point in time by both clocks of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Since boot.
    pub boot: Duration,
    /// Wall clock in seconds since 1970.
    pub unix: i64,
}

/// Renewal time by each clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRenewal {
    /// Since boot.
    pub boot: Duration,
    /// Wall clock in seconds since 1970.
    pub unix: i64,
}

impl TokenRenewal {
    /// Renewal of a token with the lifetime `life` requested at `asked`, which is before its issue. `spread` is any number that
    /// differs between tokens.
    #[must_use]
    pub fn for_lifetime(life: Duration, asked: Moment, spread: u64) -> Self {
        let age_max = Duration::from_secs(AGE_MAX_SECS.unsigned_abs());
        let wait = life
            .checked_div(100)
            .unwrap_or_default()
            .saturating_mul(u32::try_from(LIFE_PERCENT).unwrap_or(0))
            .min(age_max);
        let share = u32::try_from(spread % (SPREAD_PERCENT * 10)).unwrap_or(0);
        let wait =
            wait.saturating_sub(wait.checked_div(1000).unwrap_or_default().saturating_mul(share));
        let secs = i64::try_from(wait.as_secs()).unwrap_or(i64::MAX);
        Self { boot: asked.boot.saturating_add(wait), unix: asked.unix.saturating_add(secs) }
    }

    /// Renewal of a token without a record, by the wall clock.
    #[must_use]
    pub fn for_found_token(life: TokenLifetime, now: Moment) -> Self {
        let wait = life.renew_in(now.unix);
        let secs = i64::try_from(wait.as_secs()).unwrap_or(i64::MAX);
        Self { boot: now.boot.saturating_add(wait), unix: now.unix.saturating_add(secs) }
    }

    /// Whether the time has come by one of the clocks. Setting the wall clock back does not delay it.
    #[must_use]
    pub fn is_due(&self, now: Moment) -> bool {
        now.boot >= self.boot || now.unix >= self.unix
    }
}

/// Validity of a token in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct TokenLifetime {
    /// Time of issue.
    #[serde(rename = "iat")]
    pub issued_at: i64,
    /// Time of expiry.
    #[serde(rename = "exp")]
    pub expires_at: i64,
}

impl TokenLifetime {
    /// Reads the claims of a token; `None` if they are missing or the token is not a JWT.
    #[must_use]
    pub fn from_token(token: &str) -> Option<Self> {
        let mut parts = token.trim_end().split('.');
        let (_, claims, _) = (parts.next()?, parts.next()?, parts.next()?);
        let claims = BASE64_URL_SAFE_NO_PAD.decode(claims).ok()?;
        serde_json::from_slice(&claims).ok()
    }

    /// The lifetime in seconds that was granted: the shorter of the token's own and that of the answer to the request. An API server may let a token live
    /// on for programs that read it only once; it is renewed as if it did not.
    #[must_use]
    pub fn granted_secs(own: Option<Self>, answered: Option<i64>) -> Option<i64> {
        let own = own.map(|life| life.expires_at.saturating_sub(life.issued_at));
        [own, answered].into_iter().flatten().filter(|secs| *secs > 0).min()
    }

    /// Time until the token has to be renewed. Zero for an old token, and for one that appears to be issued in the future because
    /// the clock was set.
    #[must_use]
    pub fn renew_in(&self, now: i64) -> Duration {
        let life = self.expires_at.saturating_sub(self.issued_at);
        if self.issued_at > now || life <= 0 {
            return Duration::ZERO;
        }
        let age_max = (life / 100)
            .saturating_mul(LIFE_PERCENT)
            .saturating_add((life % 100).saturating_mul(LIFE_PERCENT) / 100)
            .min(AGE_MAX_SECS);
        let left = self.issued_at.saturating_add(age_max).saturating_sub(now);
        Duration::from_secs(u64::try_from(left).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests;
