//! How the state of an object is meant: a word of the column STATUS, and its colour on a terminal.

/// How a state is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// As it should be.
    Well,
    /// Not yet, or not any more.
    Attention,
    /// Something is wrong.
    Alarm,
}

/// States of objects that are as they should be.
const WELL: &[&str] =
    &["Running", "Completed", "Ready", "Succeeded", "Active", "Bound", "Available", "Complete"];
/// States that pass.
const ATTENTION: &[&str] = &[
    "Pending",
    "ContainerCreating",
    "PodInitializing",
    "Terminating",
    "Released",
    "Suspended",
    "SchedulingGated",
];
/// What the names of failures have.
const ALARM: &[&str] = &[
    "Err",
    "Fail",
    "BackOff",
    "Invalid",
    "Cannot",
    "Killed",
    "Evicted",
    "Lost",
    "Unknown",
    "NotReady",
    "Exceeded",
    "Signal:",
    "ExitCode:",
];

impl Tone {
    /// Of a status in the server's tables; `None` for words that say nothing to us.
    pub fn of_status(status: &str) -> Option<Self> {
        let (word, more) = match status.split_once(',') {
            Some((word, _)) => (word, true),
            None => (status, false),
        };
        if ALARM.iter().any(|part| status.contains(part)) {
            Some(Self::Alarm)
        } else if word.starts_with("Init:") || ATTENTION.contains(&word) {
            Some(Self::Attention)
        } else if WELL.contains(&word) {
            Some(if more { Self::Attention } else { Self::Well })
        } else {
            None
        }
    }

    /// The sequence that begins its colour: green, yellow or red.
    pub fn colour(self) -> &'static str {
        match self {
            Self::Well => "\u{1b}[32m",
            Self::Attention => "\u{1b}[33m",
            Self::Alarm => "\u{1b}[31m",
        }
    }
}

/// The sequence that ends a colour.
pub const PLAIN: &str = "\u{1b}[0m";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_statuses_have_tones() {
        for (tone, words) in [
            (Some(Tone::Well), &["Running", "Ready", "Completed", "Bound", "Active"][..]),
            (
                Some(Tone::Attention),
                &[
                    "Pending",
                    "ContainerCreating",
                    "Init:0/2",
                    "Terminating",
                    "Ready,SchedulingDisabled",
                ],
            ),
            (
                Some(Tone::Alarm),
                &[
                    "CrashLoopBackOff",
                    "ErrImagePull",
                    "Init:Error",
                    "Error",
                    "OOMKilled",
                    "Evicted",
                    "Unknown",
                    "NotReady,Unknown",
                    "Failed",
                    "CreateContainerConfigError",
                    "ExitCode:3",
                ],
            ),
            (None, &["", "42", "Blue", "Approved,Issued"]),
        ] {
            for word in words {
                assert_eq!(Tone::of_status(word), tone, "{word}");
            }
        }
    }
}
