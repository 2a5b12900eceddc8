//! CPU time per second, from two measurements.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// CPU time in nanoseconds by container id, with the time of the previous measurement.
#[derive(Debug, Default)]
pub struct CpuTimes(Mutex<BTreeMap<String, (i64, u64)>>);

impl CpuTimes {
    /// CPU time per second since the previous call for `id`.
    pub(super) fn rate(&self, id: &str, at: i64, cpu_nanos: u64) -> Option<u64> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (then, before) = last.insert(id.to_owned(), (at, cpu_nanos))?;
        let passed = u128::try_from(at.checked_sub(then)?).ok().filter(|passed| *passed > 0)?;
        let spent = u128::from(cpu_nanos.checked_sub(before)?);
        u64::try_from(spent.checked_mul(1_000_000_000)?.checked_div(passed)?).ok()
    }

    /// Forgets the others.
    pub(super) fn retain(&self, lives: impl Fn(&str) -> bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|id, _| lives(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_need_two_measurements_in_order() {
        let last = CpuTimes::default();
        let second = 1_000_000_000;
        assert_eq!(last.rate("c", 10 * second, 5), None);
        assert_eq!(last.rate("c", 12 * second, 1_000_000_005), Some(500_000_000));
        assert_eq!(last.rate("c", 12 * second, 1_000_000_005), None, "no time has passed");
        assert_eq!(last.rate("c", 13 * second, 7), None, "a restart counts from 0");
    }
}
