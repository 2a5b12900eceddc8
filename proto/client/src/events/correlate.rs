//! Whether an event is created, counted in an earlier one, or dropped. Pure; times are since 1970.
//!
//! - The same message about the same object is one event with a count.
//! - More than ten different messages of one reason about one object in ten minutes are one event with a count.
//! - One object gets 25 events at once and then one in five minutes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use proto_api::event_report::{EventKind, EventReport};

/// An event is counted in an earlier one for this long after that was last seen.
const REMEMBERED: Duration = Duration::from_secs(600);
/// Different messages of one reason about one object before they are aggregated.
const DIFFERENT_MAX: usize = 10;
/// Prefix of the message of aggregated events.
const COMBINED: &str = "(combined from similar events): ";
/// Events about one object at once ...
const BURST: f64 = 25.0;
/// ... and then one in this time.
const ONE_EVERY: Duration = Duration::from_secs(300);
/// Objects and messages that are kept; the least recently seen are removed first.
const ENTRIES_MAX: usize = 4096;

/// The decision about an event.
#[derive(Clone, Debug, PartialEq)]
pub enum EventDecision {
    /// A new event of this name.
    Create {
        /// The event.
        said: EventReport,
        /// Name of the event.
        name: String,
    },
    /// The event of this name happened again.
    Count {
        /// The event, with its new message.
        said: EventReport,
        /// Name of the event.
        name: String,
        /// Number of occurrences in all.
        count: i32,
    },
    /// It is dropped.
    Silence,
}

/// Aggregates and rate-limits events, as client-go does.
#[derive(Debug, Default)]
pub struct Correlator {
    objects: BTreeMap<ObjectKey, Budget>,
    similar: BTreeMap<SimilarKey, Similar>,
    events: BTreeMap<EventKey, Written>,
}

type ObjectKey = (String, String, String, String);
type SimilarKey = (ObjectKey, EventKind, Cow<'static, str>);
/// The similarity key, the field path of the object's part, the message.
type EventKey = (SimilarKey, String, String);

#[derive(Debug)]
struct Budget {
    left: f64,
    seen: Duration,
}

#[derive(Debug)]
struct Similar {
    messages: Vec<String>,
    seen: Duration,
}

#[derive(Debug)]
struct Written {
    name: String,
    count: i32,
    seen: Duration,
}

impl Correlator {
    /// Decides on one event, said at `now`.
    pub fn take(&mut self, said: EventReport, now: Duration) -> EventDecision {
        let about = &said.about;
        let object =
            (about.uid.clone(), about.kind.clone(), about.namespace.clone(), about.name.clone());
        if !self.spend(&object, now) {
            return EventDecision::Silence;
        }
        let similar = (object, said.kind, said.reason.clone());
        let (words, said) = if self.is_flood(&similar, &said.message, now) {
            (String::new(), EventReport { message: format!("{COMBINED}{}", said.message), ..said })
        } else {
            (said.message.clone(), said)
        };
        make_room(&mut self.events, |written| written.seen);
        // Containers of a pod differ in the field path only.
        let key = (similar, said.about.field_path.clone(), words);
        let known = self.events.get_mut(&key);
        if let Some(written) = known.filter(|written| now < written.seen + REMEMBERED) {
            written.count = written.count.saturating_add(1);
            written.seen = now;
            return EventDecision::Count { said, name: written.name.clone(), count: written.count };
        }
        let name = format!("{}.{:x}", said.about.name, now.as_nanos());
        let written = Written { name: name.clone(), count: 1, seen: now };
        self.events.insert(key, written);
        EventDecision::Create { said, name }
    }

    /// Takes one event from the object's budget, if any is left.
    fn spend(&mut self, object: &ObjectKey, now: Duration) -> bool {
        make_room(&mut self.objects, |budget| budget.seen);
        let full = Budget { left: BURST, seen: now };
        let budget = self.objects.entry(object.clone()).or_insert(full);
        let earned = now.saturating_sub(budget.seen).as_secs_f64() / ONE_EVERY.as_secs_f64();
        budget.left = (budget.left + earned).min(BURST);
        budget.seen = now;
        if budget.left < 1.0 {
            return false;
        }
        budget.left -= 1.0;
        true
    }

    /// Whether there are too many different messages of this reason about this object.
    fn is_flood(&mut self, key: &SimilarKey, message: &str, now: Duration) -> bool {
        make_room(&mut self.similar, |similar| similar.seen);
        let none = Similar { messages: Vec::new(), seen: now };
        let similar = self.similar.entry(key.clone()).or_insert(none);
        if now >= similar.seen + REMEMBERED {
            similar.messages.clear();
        }
        similar.seen = now;
        if similar.messages.iter().any(|known| known == message) {
            return false;
        }
        if similar.messages.len() >= DIFFERENT_MAX {
            return true;
        }
        similar.messages.push(message.to_owned());
        false
    }
}

/// Removes the least recently seen half of a full map, so that the cost of finding it is spread over many insertions.
fn make_room<K: Ord, V>(map: &mut BTreeMap<K, V>, seen: impl Fn(&V) -> Duration) {
    if map.len() < ENTRIES_MAX {
        return;
    }
    let mut times: Vec<Duration> = map.values().map(&seen).collect();
    times.sort_unstable();
    let middle = times.get(times.len() / 2).copied().unwrap_or_default();
    let mut surplus = ENTRIES_MAX / 2;
    map.retain(|_, value| {
        let goes = surplus > 0 && seen(value) <= middle;
        surplus -= usize::from(goes);
        !goes
    });
}

#[cfg(test)]
mod tests {
    use proto_api::core::v1::ObjectReference;

    use super::*;

    fn said(object: &str, message: &str) -> EventReport {
        let about = ObjectReference {
            name: object.into(),
            uid: object.into(),
            ..ObjectReference::default()
        };
        EventReport {
            about,
            kind: EventKind::Normal,
            reason: "Pulled".into(),
            message: message.into(),
        }
    }

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn the_same_words_about_two_containers_are_two_events() {
        let mut correlator = Correlator::default();
        for container in ["one", "two"] {
            let mut said = said("p", "image is present");
            said.about.field_path = format!("spec.containers{{{container}}}");
            assert!(matches!(correlator.take(said, secs(1)), EventDecision::Create { .. }));
        }
    }

    #[test]
    fn the_same_words_are_counted_for_ten_minutes() {
        let mut correlator = Correlator::default();
        let EventDecision::Create { name, .. } = correlator.take(said("p", "a"), secs(1)) else {
            panic!("new")
        };
        assert_eq!(name, format!("p.{:x}", 1_000_000_000));
        let again = correlator.take(said("p", "a"), secs(600));
        assert_eq!(again, EventDecision::Count { said: said("p", "a"), name, count: 2 });
        assert!(matches!(correlator.take(said("p", "b"), secs(601)), EventDecision::Create { .. }));
        assert!(matches!(correlator.take(said("q", "a"), secs(601)), EventDecision::Create { .. }));
        assert!(matches!(
            correlator.take(said("p", "a"), secs(1300)),
            EventDecision::Create { .. }
        ));
    }

    #[test]
    fn many_different_messages_become_one_event() {
        let mut correlator = Correlator::default();
        for n in 0..10 {
            assert!(matches!(
                correlator.take(said("p", &n.to_string()), secs(n)),
                EventDecision::Create { .. }
            ));
        }
        let EventDecision::Create { said: first, .. } = correlator.take(said("p", "10"), secs(10))
        else {
            panic!("new")
        };
        assert_eq!(first.message, "(combined from similar events): 10");
        let EventDecision::Count { said: second, count, .. } =
            correlator.take(said("p", "11"), secs(11))
        else {
            panic!("count")
        };
        assert_eq!((second.message.as_str(), count), ("(combined from similar events): 11", 2));
        assert!(matches!(
            correlator.take(said("p", "3"), secs(12)),
            EventDecision::Count { count: 2, .. }
        ));
    }

    #[test]
    fn an_object_has_a_budget() {
        let mut correlator = Correlator::default();
        let mut written = |object: &str, at: u64| {
            correlator.take(said(object, "x"), secs(at)) != EventDecision::Silence
        };
        assert_eq!((0..40).filter(|_| written("p", 0)).count(), 25);
        assert!(written("q", 0));
        assert!(!written("p", 299));
        assert!(written("p", 301));
        assert!(!written("p", 302));
    }

    #[test]
    fn the_event_correlator_is_bounded() {
        let mut correlator = Correlator::default();
        for n in 0..3 * ENTRIES_MAX {
            correlator.take(said(&n.to_string(), "x"), secs(7));
        }
        assert!(correlator.objects.len() <= ENTRIES_MAX);
        assert!(correlator.events.len() <= ENTRIES_MAX && correlator.similar.len() <= ENTRIES_MAX);
    }
}
