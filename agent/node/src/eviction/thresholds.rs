//! Eviction thresholds of the configuration: signal, amount, grace period and minimum reclaim.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;
use std::time::Duration;

use proto_api::{Quantity, duration};

use super::{Reading, Signal};

/// A threshold amount.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// Bytes, inodes or process ids.
    Absolute(u64),
    /// Percentage of the capacity.
    Percent(f64),
}

impl Amount {
    /// The amount for a capacity, rounded down.
    pub fn resolve(self, capacity: u64) -> u64 {
        match self {
            Self::Absolute(amount) => amount,
            Self::Percent(percent) => {
                // Thousandths of a percent: precise enough, and exact on every machine.
                let thousandths = (percent * 1000.0).clamp(0.0, 100_000.0);
                let share = u128::from(capacity).saturating_mul(round(thousandths)) / 100_000;
                u64::try_from(share).unwrap_or(u64::MAX)
            }
        }
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the caller has bounded it between 0 and 100,000"
)]
fn round(number: f64) -> u128 {
    number.round() as u128
}

/// A threshold: reached while less than `below` is available.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    pub signal: Signal,
    /// The required amount.
    pub below: Amount,
    /// Time for which it has to be reached before pods are evicted; `None` for a hard threshold, which evicts at once and without
    /// a grace period.
    pub grace: Option<Duration>,
    /// Additional amount that has to be available before the shortage ends.
    pub min_reclaim: Option<Amount>,
}

impl Threshold {
    /// Whether the threshold is reached or, with `recovering`, not yet left by the minimum reclaim.
    pub fn is_reached(&self, reading: &Reading, recovering: bool) -> bool {
        let below = self.below.resolve(reading.capacity);
        let more = match self.min_reclaim {
            Some(amount) if recovering => amount.resolve(reading.capacity),
            _ => 0,
        };
        reading.available < below.saturating_add(more)
    }
}

/// The threshold maps of the configuration.
#[derive(Clone, Copy, Debug)]
pub struct ThresholdTexts<'a> {
    /// `evictionHard`.
    pub hard: &'a BTreeMap<String, String>,
    /// `evictionSoft`.
    pub soft: &'a BTreeMap<String, String>,
    /// `evictionSoftGracePeriod`.
    pub soft_grace: &'a BTreeMap<String, String>,
    /// `evictionMinimumReclaim`.
    pub min_reclaim: &'a BTreeMap<String, String>,
}

/// An error in one entry of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThresholdError {
    /// Path of the entry in the configuration.
    pub path: String,
    /// What was expected.
    pub message: String,
}

/// Parses all thresholds. A threshold of 0 % or 100 % is disabled. A hard threshold on memory also limits the memory of all pods
/// together.
///
/// # Errors
/// All errors found.
pub fn thresholds(texts: &ThresholdTexts<'_>) -> Result<Vec<Threshold>, Vec<ThresholdError>> {
    let mut faults = Vec::new();
    let reclaim = amounts("evictionMinimumReclaim", texts.min_reclaim, &mut faults);
    let mut graces = BTreeMap::new();
    for (name, text) in texts.soft_grace {
        let path = format!("evictionSoftGracePeriod.{name}");
        match (Signal::parse(name), duration::parse(text)) {
            (None, _) => faults.push(unknown(path)),
            (_, Err(error)) => faults.push(ThresholdError { path, message: error.to_string() }),
            (Some(signal), Ok(grace)) => {
                graces.insert(signal, grace);
            }
        }
    }
    let mut all = Vec::new();
    for (signal, below) in amounts("evictionHard", texts.hard, &mut faults) {
        let min_reclaim = reclaim.get(&signal).copied();
        all.push(Threshold { signal, below, grace: None, min_reclaim });
    }
    for (signal, below) in amounts("evictionSoft", texts.soft, &mut faults) {
        match graces.get(&signal) {
            Some(grace) => {
                let (grace, min_reclaim) = (Some(*grace), reclaim.get(&signal).copied());
                all.push(Threshold { signal, below, grace, min_reclaim });
            }
            None => faults.push(ThresholdError {
                path: format!("evictionSoft.{}", signal.as_str()),
                message: "needs a grace period in evictionSoftGracePeriod".to_owned(),
            }),
        }
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    let is_off = |amount: Amount| matches!(amount, Amount::Percent(percent) if percent <= 0.0 || percent >= 100.0);
    all.retain(|threshold| !is_off(threshold.below));
    let hard_memory =
        all.iter().find(|t| t.signal == Signal::MemoryAvailable && t.grace.is_none()).copied();
    all.extend(hard_memory.map(|t| Threshold { signal: Signal::AllocatableMemoryAvailable, ..t }));
    Ok(all)
}

fn unknown(path: String) -> ThresholdError {
    ThresholdError { path, message: "unknown eviction signal".to_owned() }
}

fn amounts(
    map: &str,
    texts: &BTreeMap<String, String>,
    faults: &mut Vec<ThresholdError>,
) -> BTreeMap<Signal, Amount> {
    let mut amounts = BTreeMap::new();
    for (name, text) in texts {
        let path = format!("{map}.{name}");
        match (Signal::parse(name), amount(text)) {
            (None | Some(Signal::AllocatableMemoryAvailable), _) => faults.push(unknown(path)),
            (_, Err(error)) => faults.push(ThresholdError { path, message: error.to_string() }),
            (Some(signal), Ok(amount)) => {
                amounts.insert(signal, amount);
            }
        }
    }
    amounts
}

/// Why a text is no amount.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum AmountError {
    #[error("{0:?} is not a percentage between 0 and 100")]
    Percentage(String),
    #[error("{0:?} is not a quantity")]
    Quantity(String),
    #[error("must not be negative")]
    Negative,
}

fn amount(text: &str) -> Result<Amount, AmountError> {
    if let Some(number) = text.strip_suffix('%') {
        let percent = number.parse::<f64>().ok().filter(|p| (0.0..=100.0).contains(p));
        return percent
            .map(Amount::Percent)
            .ok_or_else(|| AmountError::Percentage(text.to_owned()));
    }
    let quantity = text.parse::<Quantity>().map_err(|_| AmountError::Quantity(text.to_owned()))?;
    if quantity.is_negative() {
        return Err(AmountError::Negative);
    }
    Ok(Amount::Absolute(quantity.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn all_kinds_are_read() {
        let hard = map(&[
            ("memory.available", "100Mi"),
            ("nodefs.available", "10%"),
            ("imagefs.available", "0%"),
            ("pid.available", "1k"),
        ]);
        let soft = map(&[("memory.available", "5.5%")]);
        let grace = map(&[("memory.available", "1m30s")]);
        let reclaim = map(&[("nodefs.available", "1Gi")]);
        let texts =
            ThresholdTexts { hard: &hard, soft: &soft, soft_grace: &grace, min_reclaim: &reclaim };
        let all = thresholds(&texts).expect("thresholds");
        let shown: Vec<String> = all
            .iter()
            .map(|t| format!("{} {:?} {:?}", t.signal.as_str(), t.below, t.grace))
            .collect();
        assert_eq!(
            shown,
            [
                "memory.available Absolute(104857600) None",
                "nodefs.available Percent(10.0) None",
                "pid.available Absolute(1000) None",
                "memory.available Percent(5.5) Some(90s)",
                "allocatableMemory.available Absolute(104857600) None",
            ]
        );
        assert_eq!(all[1].min_reclaim, Some(Amount::Absolute(1 << 30)));
        assert_eq!(all[3].below.resolve(1000), 55);
    }

    #[test]
    fn a_grace_is_any_duration_of_other_settings() {
        let soft = map(&[("memory.available", "1Gi")]);
        let none = BTreeMap::new();
        let grace_of = |text: &str| {
            let grace = map(&[("memory.available", text)]);
            let texts =
                ThresholdTexts { hard: &none, soft: &soft, soft_grace: &grace, min_reclaim: &none };
            thresholds(&texts).map(|all| all[0].grace.unwrap_or_default())
        };
        for (text, millis) in [("1.5m", 90_000), ("0", 0), ("+2s", 2000), ("1h0m0.5s", 3_600_500)] {
            assert_eq!(grace_of(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(grace_of("10us"), Ok(Duration::from_micros(10)));
        for text in ["", "-1s", "5", "9999999999h"] {
            assert!(grace_of(text).is_err(), "{text}");
        }
    }

    #[test]
    fn every_error_is_reported() {
        let hard = map(&[("memory.available", "-1"), ("disk", "1"), ("pid.available", "101%")]);
        let soft = map(&[("nodefs.available", "x")]);
        let grace = map(&[("nodefs.available", "soon")]);
        let none = BTreeMap::new();
        let texts =
            ThresholdTexts { hard: &hard, soft: &soft, soft_grace: &grace, min_reclaim: &none };
        let faults = thresholds(&texts).expect_err("faults");
        let paths: Vec<&str> = faults.iter().map(|fault| fault.path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "evictionSoftGracePeriod.nodefs.available",
                "evictionHard.disk",
                "evictionHard.memory.available",
                "evictionHard.pid.available",
                "evictionSoft.nodefs.available"
            ]
        );
    }

    #[test]
    fn a_shortage_is_over_only_with_what_must_come_back() {
        let threshold = Threshold {
            signal: Signal::NodefsAvailable,
            below: Amount::Percent(10.0),
            grace: None,
            min_reclaim: Some(Amount::Absolute(50)),
        };
        let reading = |available| Reading { available, capacity: 1000, at: Duration::ZERO };
        assert!(threshold.is_reached(&reading(99), false));
        assert!(!threshold.is_reached(&reading(100), false));
        assert!(threshold.is_reached(&reading(149), true));
        assert!(!threshold.is_reached(&reading(150), true));
    }
}
