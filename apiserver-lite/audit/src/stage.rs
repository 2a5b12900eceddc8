//! Levels and stages of auditing.

use std::str::FromStr;

/// How much is recorded of a request. A greater level records more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Nothing.
    #[default]
    None,
    /// Who did what to which object.
    Metadata,
    /// And the object that the client sent.
    Request,
    /// And the object of the response.
    RequestResponse,
}

impl Level {
    /// All levels, by increasing amount.
    pub const ALL: [Self; 4] = [Self::None, Self::Metadata, Self::Request, Self::RequestResponse];

    /// The name in policies and events.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Metadata => "Metadata",
            Self::Request => "Request",
            Self::RequestResponse => "RequestResponse",
        }
    }
}

/// When an event is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Before anything is done for the request.
    RequestReceived,
    /// The head of a stream's response is sent.
    ResponseStarted,
    ResponseComplete,
    /// The server panicked.
    Panic,
}

impl Stage {
    /// All stages, in their order.
    pub const ALL: [Self; 4] =
        [Self::RequestReceived, Self::ResponseStarted, Self::ResponseComplete, Self::Panic];

    /// The name in policies and events.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RequestReceived => "RequestReceived",
            Self::ResponseStarted => "ResponseStarted",
            Self::ResponseComplete => "ResponseComplete",
            Self::Panic => "Panic",
        }
    }
}

impl FromStr for Level {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|level| level.as_str() == text).ok_or(())
    }
}

impl FromStr for Stage {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|stage| stage.as_str() == text).ok_or(())
    }
}

/// A set of stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages([bool; 4]);

impl Stages {
    /// Whether the stage is in the set.
    #[must_use]
    pub fn contains(self, stage: Stage) -> bool {
        let Self([received, started, complete, panic]) = self;
        match stage {
            Stage::RequestReceived => received,
            Stage::ResponseStarted => started,
            Stage::ResponseComplete => complete,
            Stage::Panic => panic,
        }
    }

    /// The stages of both sets.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Stage::ALL
            .into_iter()
            .filter(|stage| self.contains(*stage) || other.contains(*stage))
            .collect()
    }
}

impl FromIterator<Stage> for Stages {
    fn from_iter<I: IntoIterator<Item = Stage>>(stages: I) -> Self {
        let mut set = [false; 4];
        for stage in stages {
            let [received, started, complete, panic] = &mut set;
            *match stage {
                Stage::RequestReceived => received,
                Stage::ResponseStarted => started,
                Stage::ResponseComplete => complete,
                Stage::Panic => panic,
            } = true;
        }
        Self(set)
    }
}
