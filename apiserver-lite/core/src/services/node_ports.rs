//! The range of node ports.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::str::FromStr;

/// A port range, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    /// First port.
    pub first: u16,
    /// Last port.
    pub last: u16,
}

/// The text is not a port range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a port range such as 30000-32767")]
pub struct PortRangeError(String);

impl Default for PortRange {
    fn default() -> Self {
        Self { first: 30_000, last: 32_767 }
    }
}

impl PortRange {
    /// Whether the range contains `port`.
    #[must_use]
    pub fn contains(&self, port: i64) -> bool {
        (i64::from(self.first)..=i64::from(self.last)).contains(&port)
    }

    /// Number of ports.
    #[must_use]
    pub fn count(&self) -> u32 {
        u32::from(self.last.saturating_sub(self.first)).saturating_add(1)
    }
}

impl FromStr for PortRange {
    type Err = PortRangeError;

    /// `first-last`, or `first+count`.
    fn from_str(text: &str) -> Result<Self, PortRangeError> {
        let fail = || PortRangeError(text.to_owned());
        let number = |part: &str| part.trim().parse::<u16>().map_err(|_| fail());
        let range = match (text.split_once('-'), text.split_once('+')) {
            (Some((first, last)), _) => Self { first: number(first)?, last: number(last)? },
            (None, Some((first, count))) => {
                let first = number(first)?;
                Self { first, last: first.checked_add(number(count)?).ok_or_else(fail)? }
            }
            (None, None) => return Err(fail()),
        };
        if range.first == 0 || range.first > range.last { Err(fail()) } else { Ok(range) }
    }
}

impl std::fmt::Display for PortRange {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}-{}", self.first, self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings() {
        assert_eq!("30000-32767".parse(), Ok(PortRange::default()));
        assert_eq!("30000+100".parse(), Ok(PortRange { first: 30_000, last: 30_100 }));
        for text in ["", "30000", "5-4", "0-10", "65535+1", "a-b"] {
            assert!(text.parse::<PortRange>().is_err(), "{text}");
        }
    }
}
