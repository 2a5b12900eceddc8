//! Plans the rotation of one log. Pure.

use std::collections::BTreeMap;

use proto_api::Time;

use crate::rotated_files::{Stamp, stamp_of};

/// Limits of logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Size at which a file is rotated, in bytes.
    pub size: u64,
    /// Files per log with the current one; at least 2.
    pub files: usize,
}

/// One step, by names in the log's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RotationStep {
    /// Removes a partial compressed file, or an excess file.
    Remove(String),
    /// Renames the current file to this name and asks the runtime to reopen its log.
    Rotate(String),
    /// Compresses it to `<name>.gz`. Comes last: it takes long, and the rotation does not wait.
    Compress(String),
    /// Asks the runtime to reopen its log: the agent died between the rename and the request.
    Reopen,
}

/// The forms in which a rotated file exists.
#[derive(Clone, Copy, Debug, Default)]
struct Forms {
    plain: bool,
    packed: bool,
}

/// The steps in order. `names` are the files of the directory, `size` is that of the current file
/// if it exists.
pub fn plan(
    log: &str,
    names: &[String],
    size: Option<u64>,
    limits: Limits,
    now_unix: i64,
) -> Vec<RotationStep> {
    let mut rotated: BTreeMap<Stamp, Forms> = BTreeMap::new();
    let mut steps = Vec::new();
    for name in names {
        if name
            .strip_prefix(log)
            .is_some_and(|rest| rest.starts_with('.') && rest.ends_with(".tmp"))
        {
            steps.push(RotationStep::Remove(name.clone()));
        } else if let Some(stamp) = stamp_of(log, name) {
            let forms = rotated.entry(stamp).or_default();
            if name.ends_with(".gz") { forms.packed = true } else { forms.plain = true }
        }
    }
    let Some(size) = size else {
        // Without any file the container has not logged yet.
        if !rotated.is_empty() {
            steps.push(RotationStep::Reopen);
        }
        return steps;
    };
    if size <= limits.size {
        return steps;
    }
    // The current file stays, and the rotation adds one.
    let keep = limits.files.saturating_sub(2);
    let over = rotated.len().saturating_sub(keep);
    let mut compressions = Vec::new();
    for (at, (stamp, forms)) in rotated.iter().enumerate() {
        let (plain, packed) = (format!("{log}.{stamp}"), format!("{log}.{stamp}.gz"));
        if at < over {
            steps.extend(forms.plain.then_some(RotationStep::Remove(plain)));
            steps.extend(forms.packed.then_some(RotationStep::Remove(packed)));
        } else if forms.packed && forms.plain {
            // A compressed file gets its name only when complete.
            steps.push(RotationStep::Remove(plain));
        } else if forms.plain {
            compressions.push(RotationStep::Compress(plain));
        }
    }
    let newest = rotated.last_key_value().map(|(stamp, _)| stamp.as_str());
    steps.push(RotationStep::Rotate(format!("{log}.{}", next_stamp(newest, now_unix))));
    steps.extend(compressions);
    steps
}

/// A timestamp of now, but later than the newest existing one even if the clock was set back.
fn next_stamp(newest: Option<&str>, now_unix: i64) -> Stamp {
    let now = stamp(now_unix);
    match newest {
        Some(newest) if *newest >= *now => unix(newest).map_or(now, |newest| stamp(newest + 1)),
        _ => now,
    }
}

/// `20240102-150405`.
fn stamp(unix: i64) -> Stamp {
    let time = Time::from_unix(unix).to_string();
    let (day, clock) = time.split_once('T').unwrap_or((&time, ""));
    format!("{}-{}", day.replace('-', ""), clock.trim_end_matches('Z').replace(':', ""))
}

fn unix(stamp: &str) -> Option<i64> {
    let part = |from: usize, to: usize| stamp.get(from..to);
    let (year, month, day) = (part(0, 4)?, part(4, 6)?, part(6, 8)?);
    let (hour, minute, second) = (part(9, 11)?, part(11, 13)?, part(13, 15)?);
    format!("{year}-{month}-{day}T{hour}:{minute}:{second}Z").parse::<Time>().ok()?.unix()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: i64 = 1_704_207_845; // 2024-01-02T15:04:05Z
    const LIMITS: Limits = Limits { size: 100, files: 3 };

    fn steps(names: &[&str], size: Option<u64>) -> Vec<RotationStep> {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        plan("0.log", &names, size, LIMITS, NOW)
    }

    #[test]
    fn a_log_is_rotated_compressed_and_bounded() {
        let rotate = |stamp: &str| RotationStep::Rotate(format!("0.log.{stamp}"));
        assert_eq!(steps(&["0.log"], Some(100)), []);
        assert_eq!(steps(&["0.log"], Some(101)), [rotate("20240102-150405")]);
        let one = "0.log.20240101-000000";
        assert_eq!(
            steps(&["0.log", one], Some(101)),
            [rotate("20240102-150405"), RotationStep::Compress(one.into())]
        );
        let two = "0.log.20240102-000000";
        let packed = "0.log.20240101-000000.gz";
        assert_eq!(
            steps(&["0.log", two, packed], Some(101)),
            [
                RotationStep::Remove(packed.into()),
                rotate("20240102-150405"),
                RotationStep::Compress(two.into())
            ]
        );
    }

    #[test]
    fn interrupted_rotations_are_completed() {
        let one = "0.log.20240101-000000";
        assert_eq!(steps(&[one], None), [RotationStep::Reopen]);
        assert_eq!(steps(&[], None), []);
        let cut = "0.log.20240101-000000.tmp";
        assert_eq!(steps(&["0.log", one, cut], Some(1)), [RotationStep::Remove(cut.into())]);
        let packed = "0.log.20240101-000000.gz";
        assert!(
            steps(&["0.log", one, packed], Some(101)).contains(&RotationStep::Remove(one.into()))
        );
        assert_eq!(steps(&["0.log", "1.log.tmp", "10.log.20240101-000000"], Some(1)), []);
    }

    #[test]
    fn stamps_rise_also_when_the_clock_does_not() {
        assert_eq!(next_stamp(None, NOW), "20240102-150405");
        assert_eq!(next_stamp(Some("20240102-150405"), NOW), "20240102-150406");
        assert_eq!(next_stamp(Some("20240102-235959"), NOW), "20240103-000000");
    }

    proptest! {
        #[test]
        fn never_more_files_than_allowed(files in 2_usize..7, rotations in 1_usize..30) {
            let limits = Limits { size: 1, files };
            let mut names: Vec<String> = vec!["0.log".into()];
            for _ in 0..rotations {
                for step in plan("0.log", &names, Some(2), limits, NOW) {
                    match step {
                        RotationStep::Remove(name) => names.retain(|other| *other != name),
                        RotationStep::Compress(name) => {
                            names.retain(|other| *other != name);
                            names.push(format!("{name}.gz"));
                        }
                        RotationStep::Rotate(name) => {
                            prop_assert!(!names.contains(&name));
                            names.push(name);
                        }
                        RotationStep::Reopen => prop_assert!(false, "the file is there"),
                    }
                }
                prop_assert!(names.len() <= files);
            }
            let plain = names.iter().filter(|name| !name.ends_with(".gz")).count();
            prop_assert_eq!(plain, 2, "the one that is written, and the newest rotated");
        }
    }
}
