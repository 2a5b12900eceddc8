//! How long a token is good, and when it is to be renewed.
//!
//! The API server counts a token's life by its own clock; the node has two, one that runs since boot and that nobody sets, and one that
//! people read and set. A token is renewed when either says so. What the first says is written down beside the pod's volumes, so that a
//! restarted agent goes on with the tokens that its pods hold instead of asking for all of them anew, and goes on by the same clock.
//! Where nothing is written down the token itself tells its life. Nothing is trusted here that matters: the signature is the API server's
//! to check.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

/// A token older than this is renewed however long it lives.
const AGE_MAX_SECS: i64 = 24 * 3600;
/// A token is renewed after this share of its life, in percent.
const LIFE_PERCENT: i64 = 80;
/// A renewal that failed is tried again after this.
pub const RETRY: Duration = Duration::from_secs(10);
/// Tokens are renewed earlier by up to this share of their wait, in percent: those that were asked for together are not renewed
/// together.
const SPREAD_PERCENT: u64 = 5;

/// A moment by both clocks of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Since boot.
    pub boot: Duration,
    /// Seconds since 1970, as the node believes.
    pub unix: i64,
}

/// When a token is renewed, by each clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewal {
    /// Since boot.
    pub boot: Duration,
    /// Seconds since 1970.
    pub unix: i64,
}

impl Renewal {
    /// For a token with a life of `life` that was asked for at `asked`, which was before it began. `spread` is any number that differs
    /// between tokens.
    #[must_use]
    pub fn of(life: Duration, asked: Moment, spread: u64) -> Self {
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

    /// For a token that was found, of which nothing is written down: by the clock that people set, as there is no other.
    #[must_use]
    pub fn of_found(life: Life, now: Moment) -> Self {
        let wait = life.renew_in(now.unix);
        let secs = i64::try_from(wait.as_secs()).unwrap_or(i64::MAX);
        Self { boot: now.boot.saturating_add(wait), unix: now.unix.saturating_add(secs) }
    }

    /// Whether it is time, by one clock or the other. A clock that was set back does not put it off.
    #[must_use]
    pub fn is_due(&self, now: Moment) -> bool {
        now.boot >= self.boot || now.unix >= self.unix
    }
}

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
