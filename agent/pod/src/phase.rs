//! The phase of a pod.

use serde::{Deserialize, Serialize};

/// Phase of a pod, in the order in which a pod passes through them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    /// Accepted, not all containers have started.
    #[default]
    Pending,
    /// All containers have started once and not all have ended for good.
    Running,
    /// All containers exited with 0 and none is restarted.
    Succeeded,
    /// All containers ended, at least one with a failure, or the pod was rejected or stopped.
    Failed,
}

impl Phase {
    /// The API's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }

    /// Parses the API's name; an unknown name is read as `Pending`.
    pub fn parse(text: &str) -> Self {
        match text {
            "Running" => Self::Running,
            "Succeeded" => Self::Succeeded,
            "Failed" => Self::Failed,
            _ => Self::Pending,
        }
    }

    /// Whether it is `Succeeded` or `Failed`.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    /// The phase to show after `self` when `next` was computed: never an earlier one, and a terminal phase stays.
    pub fn advance(self, next: Self) -> Self {
        if self.is_terminal() { self } else { self.max(next) }
    }
}
