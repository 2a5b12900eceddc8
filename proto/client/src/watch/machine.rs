//! What a watcher does next. Pure.
//!
//! ```text
//!            first page          last page           events, bookmarks, ends, failures
//!   Empty ------------> Listing ----------> Watching <--+
//!     ^                   |                   |  |      |
//!     |   page expired    |                   |  +------+  (goes on where it was)
//!     +-------------------+-------------------+
//!                                version gone or unknown
//! ```
//!
//! Every failure makes the next step wait longer; every page or event makes it wait no longer at
//! all.

use std::time::Duration;

use proto_daemon::backoff::Backoff;

/// Objects a page.
pub const PAGE_LEN: u32 = 500;

/// The state of one watcher.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    phase: Phase,
    failures: u32,
    retry_after: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing is known.
    Empty { from: Freshness, paging: Paging },
    /// Pages have come, more are to come.
    Listing { continue_: String },
    /// Everything up to this version is known.
    Watching { resource_version: String, quiet: Quiet },
}

/// Whether a list may be what the server has at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Freshness {
    /// At the first start: cheap for the server, and the watch brings the rest.
    AtHand,
    /// After a version was gone: what is at hand may be older still.
    MostRecent,
}

/// Whether a list is asked for in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Paging {
    Pages,
    /// After a page has expired: this list cannot be read as fast as it ages.
    AtOnce,
}

/// Whether this watch has brought anything yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quiet {
    SoFar,
    NoMore,
}

impl Default for Phase {
    fn default() -> Self {
        Self::Empty { from: Freshness::AtHand, paging: Paging::Pages }
    }
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read a page.
    List(Page),
    /// Watch from this version on.
    Watch {
        /// The last version that is known.
        resource_version: String,
    },
}

/// Which page to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// `0` for what is at hand; not set for the most recent, and for later pages.
    pub resource_version: Option<String>,
    /// Objects at most.
    pub limit: Option<u32>,
    /// The token of a later page.
    pub continue_: Option<String>,
}

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepResult {
    /// A page of the list.
    Page {
        /// The version of the list.
        resource_version: String,
        /// The token of the next page; not set on the last.
        continue_: Option<String>,
    },
    /// An event or a bookmark: everything up to this version is known.
    Event {
        /// That version.
        resource_version: String,
    },
    /// The watch has ended without an error.
    Ended,
    /// The step has failed.
    Failed(StepFailure),
}

/// How a step failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepFailure {
    /// The version or the page is not kept any more (410).
    Gone,
    /// The server does not know the version (yet).
    VersionUnknown,
    /// Anything else: it may go better next time.
    Other {
        /// How long the server asks to wait.
        retry_after: Option<Duration>,
    },
}

/// Whether what happened made a list complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    /// It did: what did not come in it is gone.
    Complete,
    /// It did not.
    No,
}

impl Machine {
    /// What to do next.
    pub fn step(&self) -> Step {
        match &self.phase {
            Phase::Empty { from, paging } => Step::List(Page {
                resource_version: (*from == Freshness::AtHand).then(|| "0".to_owned()),
                limit: (*paging == Paging::Pages).then_some(PAGE_LEN),
                continue_: None,
            }),
            Phase::Listing { continue_ } => Step::List(Page {
                resource_version: None,
                limit: Some(PAGE_LEN),
                continue_: Some(continue_.clone()),
            }),
            Phase::Watching { resource_version, .. } => {
                Step::Watch { resource_version: resource_version.clone() }
            }
        }
    }

    /// Failures in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// How long to wait before it. `dice` in `0.0..1.0`.
    pub fn wait(&self, backoff: Backoff, dice: f64) -> Duration {
        backoff.delay(self.failures, dice).max(self.retry_after.unwrap_or_default())
    }

    /// Takes in what came of a step, or an event in the middle of a watch.
    pub fn finish_step(&mut self, result: StepResult) -> Listed {
        match result {
            StepResult::Page { resource_version, continue_ } => {
                self.went_well();
                let (phase, listed) = match continue_ {
                    Some(continue_) => (Phase::Listing { continue_ }, Listed::No),
                    None => (
                        Phase::Watching { resource_version, quiet: Quiet::SoFar },
                        Listed::Complete,
                    ),
                };
                self.phase = phase;
                return listed;
            }
            StepResult::Event { resource_version } => {
                self.went_well();
                if !resource_version.is_empty() {
                    self.phase = Phase::Watching { resource_version, quiet: Quiet::NoMore };
                }
            }
            StepResult::Ended => self.ended(),
            StepResult::Failed(trouble) => self.failed(trouble),
        }
        Listed::No
    }

    /// A watch that brought something may be begun again at once; a server that ends each at its
    /// beginning must not be asked in a tight loop.
    fn ended(&mut self) {
        if let Phase::Watching { quiet, .. } = &mut self.phase {
            match quiet {
                Quiet::SoFar => self.failures = self.failures.saturating_add(1),
                Quiet::NoMore => *quiet = Quiet::SoFar,
            }
        }
    }

    fn failed(&mut self, trouble: StepFailure) {
        self.failures = self.failures.saturating_add(1);
        self.retry_after = None;
        let paging = match (&self.phase, &trouble) {
            (Phase::Listing { .. }, StepFailure::Gone) => Paging::AtOnce,
            _ => Paging::Pages,
        };
        match trouble {
            StepFailure::Gone | StepFailure::VersionUnknown => {
                self.phase = Phase::Empty { from: Freshness::MostRecent, paging };
            }
            StepFailure::Other { retry_after } => self.retry_after = retry_after,
        }
    }

    fn went_well(&mut self) {
        self.failures = 0;
        self.retry_after = None;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn page(version: &str, token: Option<&str>) -> StepResult {
        StepResult::Page { resource_version: version.into(), continue_: token.map(str::to_owned) }
    }

    fn event(version: &str) -> StepResult {
        StepResult::Event { resource_version: version.into() }
    }

    fn shown(machine: &Machine) -> String {
        let step = match machine.step() {
            Step::Watch { resource_version } => format!("watch {resource_version}"),
            Step::List(Page { resource_version, limit, continue_ }) => format!(
                "list rv={} limit={} continue={}",
                resource_version.unwrap_or_default(),
                limit.map_or_else(String::new, |limit| limit.to_string()),
                continue_.unwrap_or_default()
            ),
        };
        format!("{step} after {}", machine.failures)
    }

    #[test]
    fn steps_follow_what_happens() {
        use StepResult::{Ended, Failed};
        let other = || Failed(StepFailure::Other { retry_after: None });
        let mut machine = Machine::default();
        assert_eq!(shown(&machine), "list rv=0 limit=500 continue= after 0");
        let table = [
            (other(), "list rv=0 limit=500 continue= after 1"),
            (page("5", Some("t1")), "list rv= limit=500 continue=t1 after 0"),
            (other(), "list rv= limit=500 continue=t1 after 1"),
            (Failed(StepFailure::Gone), "list rv= limit= continue= after 2"),
            (page("6", None), "watch 6 after 0"),
            (event("7"), "watch 7 after 0"),
            (Ended, "watch 7 after 0"),
            (Ended, "watch 7 after 1"),
            (Ended, "watch 7 after 2"),
            (event("8"), "watch 8 after 0"),
            (other(), "watch 8 after 1"),
            (Failed(StepFailure::Gone), "list rv= limit=500 continue= after 2"),
            (page("9", None), "watch 9 after 0"),
            (Failed(StepFailure::VersionUnknown), "list rv= limit=500 continue= after 1"),
        ];
        for (happened, expected) in table {
            machine.finish_step(happened.clone());
            assert_eq!(shown(&machine), expected, "{happened:?}");
        }
    }

    #[test]
    fn a_list_is_complete_with_its_last_page() {
        let mut machine = Machine::default();
        assert_eq!(machine.finish_step(page("1", Some("t"))), Listed::No);
        assert_eq!(machine.finish_step(page("1", None)), Listed::Complete);
        assert_eq!(machine.finish_step(event("2")), Listed::No);
    }

    #[test]
    fn the_server_s_wish_to_wait_is_kept() {
        let mut machine = Machine::default();
        let retry_after = Some(Duration::from_secs(7));
        machine.finish_step(StepResult::Failed(StepFailure::Other { retry_after }));
        assert_eq!(machine.wait(Backoff::LOOP, 0.5), Duration::from_secs(7));
        machine.finish_step(page("1", None));
        assert_eq!(machine.wait(Backoff::LOOP, 0.5), Duration::ZERO);
    }

    fn any_step_result() -> impl Strategy<Value = StepResult> {
        prop_oneof![
            (0..9_u8, prop::option::of("[a-c]"))
                .prop_map(|(version, token)| page(&version.to_string(), token.as_deref())),
            (0..9_u8).prop_map(|version| event(&version.to_string())),
            Just(StepResult::Ended),
            Just(StepResult::Failed(StepFailure::Gone)),
            Just(StepResult::Failed(StepFailure::VersionUnknown)),
            Just(StepResult::Failed(StepFailure::Other { retry_after: None })),
        ]
    }

    proptest! {
        /// A watch begins only at a version that a complete list or an event gave, and trouble
        /// never makes the next step come sooner.
        #[test]
        fn a_watch_begins_where_something_ended(history in prop::collection::vec(any_step_result(), 0..40)) {
            let mut machine = Machine::default();
            let mut known = None;
            for happened in history {
                let before = machine.failures;
                match &happened {
                    StepResult::Page { resource_version, continue_: None } | StepResult::Event { resource_version } => {
                        known = Some(resource_version.clone());
                    }
                    StepResult::Page { .. } | StepResult::Failed(StepFailure::Gone | StepFailure::VersionUnknown) => known = None,
                    _ => {}
                }
                let failed = matches!(happened, StepResult::Failed(_));
                machine.finish_step(happened);
                if failed {
                    prop_assert!(machine.failures > before);
                }
                if let Step::Watch { resource_version } = machine.step() {
                    prop_assert_eq!(Some(resource_version), known.clone());
                } else {
                    prop_assert_eq!(&known, &None);
                }
            }
        }
    }
}
