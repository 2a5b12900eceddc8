//! The next step of a watcher. Pure.
//!
//! ```text
//!            first page          last page           events, bookmarks, ends, failures
//!   Empty ------------> Listing ----------> Watching <--+
//!     ^                   |                   |  |      |
//!     |   page expired    |                   |  +------+  (resumes)
//!     +-------------------+-------------------+
//!                                version gone or unknown
//! ```
//!
//! Every failure lengthens the wait before the next step; a page or event resets it. After a page that was too long to be read, smaller ones are requested,
//! and of the most recent state: a server may ignore the limit of a list from its cache.

use std::time::Duration;

use proto_daemon::backoff::Backoff;

/// Most objects of a page. A page that is too long halves it for the rest of the watcher's life.
pub const PAGE_LEN: u32 = 500;

/// The state of one watcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    phase: Phase,
    page_len: u32,
    failures: u32,
    retry_after: Option<Duration>,
}

impl Default for Machine {
    fn default() -> Self {
        Self { phase: Phase::default(), page_len: PAGE_LEN, failures: 0, retry_after: None }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// No page was received.
    Empty { from: Freshness, paging: Paging },
    /// Some pages were received.
    Listing { continue_: String },
    /// Everything up to this version is known.
    Watching { resource_version: String, quiet: Quiet },
}

/// Whether a list may come from the server's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Freshness {
    /// At the first start: cheap for the server, and the watch delivers later changes.
    AtHand,
    /// After a version expired: the cache may be older still.
    MostRecent,
}

/// Whether a list is requested in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Paging {
    Pages,
    /// After a continue token expired before the list was complete.
    AtOnce,
}

/// Whether this watch has delivered an event.
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

/// The request that a reflector sends next.
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

/// The page to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// `0` for the server's cache; not set for the most recent state, and for later pages.
    pub resource_version: Option<String>,
    /// Most objects.
    pub limit: Option<u32>,
    /// The token of a later page.
    pub continue_: Option<String>,
}

/// What the response to a list or watch request was, as input of the watch machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepResult {
    /// A page of the list.
    Page {
        /// The version of the list.
        resource_version: String,
        /// The token of the next page; not set on the last.
        continue_: Option<String>,
    },
    /// An event or a bookmark: all changes up to this version are known.
    Event { resource_version: String },
    /// The watch has ended without an error.
    Ended,
    /// The step has failed.
    Failed(StepFailure),
}

/// How a step failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepFailure {
    /// The version or the page has expired (410).
    Gone,
    /// The server does not have the version (yet).
    VersionUnknown,
    /// The page is longer than this client reads.
    TooLong,
    /// Any other error; the step is retried.
    Other {
        /// How long to wait (`Retry-After`).
        retry_after: Option<Duration>,
    },
}

/// Whether an outcome completed a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListProgress {
    /// It did: objects that it does not contain were deleted.
    Complete,
    /// It did not.
    No,
}

impl Machine {
    /// The next step.
    pub fn step(&self) -> Step {
        match &self.phase {
            Phase::Empty { from, paging } => Step::List(Page {
                resource_version: (*from == Freshness::AtHand).then(|| "0".to_owned()),
                limit: (*paging == Paging::Pages).then_some(self.page_len),
                continue_: None,
            }),
            Phase::Listing { continue_ } => Step::List(Page {
                resource_version: None,
                limit: Some(self.page_len),
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

    /// The wait before it. `dice` in `0.0..=1.0` as in [`Backoff::delay`].
    pub fn wait(&self, backoff: Backoff, dice: f64) -> Duration {
        backoff.delay(self.failures, dice).max(self.retry_after.unwrap_or_default())
    }

    /// Applies the outcome of a step, or an event of a watch.
    pub fn finish_step(&mut self, result: StepResult) -> ListProgress {
        match result {
            StepResult::Page { resource_version, continue_ } => {
                self.went_well();
                let (phase, listed) = match continue_ {
                    Some(continue_) => (Phase::Listing { continue_ }, ListProgress::No),
                    None => (
                        Phase::Watching { resource_version, quiet: Quiet::SoFar },
                        ListProgress::Complete,
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
        ListProgress::No
    }

    /// A watch that delivered events is resumed at once; if the server ends each watch at its beginning, they must not be repeated in a tight loop.
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
            // What was too long for a page is too long at once.
            (Phase::Listing { .. }, StepFailure::Gone) if self.page_len == PAGE_LEN => {
                Paging::AtOnce
            }
            _ => Paging::Pages,
        };
        match trouble {
            StepFailure::TooLong => {
                self.page_len = (self.page_len / 2).max(1);
                if let Phase::Empty { .. } = self.phase {
                    self.phase = Phase::Empty { from: Freshness::MostRecent, paging };
                }
            }
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
    fn each_result_leads_to_its_next_request() {
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
        assert_eq!(machine.finish_step(page("1", Some("t"))), ListProgress::No);
        assert_eq!(machine.finish_step(page("1", None)), ListProgress::Complete);
        assert_eq!(machine.finish_step(event("2")), ListProgress::No);
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

    #[test]
    fn a_page_that_is_too_long_is_followed_by_smaller_ones() {
        use StepResult::Failed;
        let too_long = || Failed(StepFailure::TooLong);
        let mut machine = Machine::default();
        let table = [
            // A cache may ignore the limit.
            (too_long(), "list rv= limit=250 continue= after 1"),
            (page("5", Some("t1")), "list rv= limit=250 continue=t1 after 0"),
            (too_long(), "list rv= limit=125 continue=t1 after 1"),
            // It would be too long at once.
            (Failed(StepFailure::Gone), "list rv= limit=125 continue= after 2"),
            (page("6", None), "watch 6 after 0"),
            (Failed(StepFailure::Gone), "list rv= limit=125 continue= after 1"),
        ];
        for (happened, expected) in table {
            machine.finish_step(happened.clone());
            assert_eq!(shown(&machine), expected, "{happened:?}");
        }
        for _ in 0..20 {
            machine.finish_step(too_long());
        }
        assert_eq!(shown(&machine), "list rv= limit=1 continue= after 21");
    }

    #[test]
    fn a_list_at_once_that_is_too_long_is_read_in_pages() {
        let mut machine = Machine::default();
        machine.finish_step(page("5", Some("t1")));
        machine.finish_step(StepResult::Failed(StepFailure::Gone));
        assert_eq!(shown(&machine), "list rv= limit= continue= after 1");
        machine.finish_step(StepResult::Failed(StepFailure::TooLong));
        assert_eq!(shown(&machine), "list rv= limit=250 continue= after 2");
    }

    fn any_step_result() -> impl Strategy<Value = StepResult> {
        prop_oneof![
            (0..9_u8, prop::option::of("[a-c]"))
                .prop_map(|(version, token)| page(&version.to_string(), token.as_deref())),
            (0..9_u8).prop_map(|version| event(&version.to_string())),
            Just(StepResult::Ended),
            Just(StepResult::Failed(StepFailure::Gone)),
            Just(StepResult::Failed(StepFailure::VersionUnknown)),
            Just(StepResult::Failed(StepFailure::TooLong)),
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
