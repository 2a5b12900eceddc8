//! Versions of programs, compared by their numbers.

/// Whether a version is older than another; what is not a version is not.
#[must_use]
pub fn is_older(one: &str, other: &str) -> bool {
    matches!((numbers(one), numbers(other)), (Some(one), Some(other)) if one < other)
}

fn numbers(version: &str) -> Option<Vec<u64>> {
    let plain = version.trim_start_matches('v').split(['-', '+']).next()?;
    plain.split('.').map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert!(is_older("0.9.0", "0.10.0") && is_older("v1.2.3", "1.2.4-rc.1"));
        assert!(!is_older("0.1.0", "0.1.0") && !is_older("unknown", "0.1.0"));
        assert!(!is_older("2.0.0", "1.9.9"));
    }
}
