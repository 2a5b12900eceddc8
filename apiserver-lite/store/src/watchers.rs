//! The watches of a store by their prefixes and topics. Pure. A write looks only at those that it concerns: a large cluster has tens of thousands.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use crate::watcher::Watcher;

/// All watches.
#[derive(Default)]
pub struct Watchers {
    by_prefix: BTreeMap<String, SamePrefix>,
}

/// The watches of one prefix.
#[derive(Default)]
struct SamePrefix {
    /// Of every topic.
    whole: Vec<Arc<Watcher>>,
    by_topic: HashMap<String, Vec<Arc<Watcher>>>,
}

impl Watchers {
    pub fn add(&mut self, watcher: Arc<Watcher>) {
        let same = self.by_prefix.entry(watcher.prefix().to_owned()).or_default();
        match watcher.topic() {
            Some(topic) => same.by_topic.entry(topic.to_owned()).or_default().push(watcher),
            None => same.whole.push(watcher),
        }
    }

    pub fn remove(&mut self, watcher: &Arc<Watcher>) {
        let Some(same) = self.by_prefix.get_mut(watcher.prefix()) else { return };
        let is_other = |other: &Arc<Watcher>| !Arc::ptr_eq(other, watcher);
        match watcher.topic() {
            Some(topic) => {
                if let Some(of_topic) = same.by_topic.get_mut(topic) {
                    of_topic.retain(is_other);
                    if of_topic.is_empty() {
                        same.by_topic.remove(topic);
                    }
                }
            }
            None => same.whole.retain(is_other),
        }
        if same.whole.is_empty() && same.by_topic.is_empty() {
            self.by_prefix.remove(watcher.prefix());
        }
    }

    pub fn all(&self) -> impl Iterator<Item = &Arc<Watcher>> {
        let each = self.by_prefix.values();
        each.flat_map(|same| same.whole.iter().chain(same.by_topic.values().flatten()))
    }

    /// Calls `each` with the watches whose prefix `key` has and that follow one of `topics`, or all topics. `None` is a topic that is not known: it may be
    /// any.
    pub fn each_of<'a, 't>(
        &'a self,
        key: &str,
        topics: impl Fn() -> [Option<&'t str>; 2],
        mut each: impl FnMut(&'a Arc<Watcher>),
    ) {
        for same in self.of_key(key) {
            same.whole.iter().for_each(&mut each);
            if same.by_topic.is_empty() {
                continue;
            }
            match topics() {
                [Some(now), Some(before)] => {
                    let others = [before].into_iter().filter(|before| *before != now);
                    let of_topics = others.chain([now]).filter_map(|t| same.by_topic.get(t));
                    of_topics.flatten().for_each(&mut each);
                }
                _ => same.by_topic.values().flatten().for_each(&mut each),
            }
        }
    }

    /// The watches of each prefix that `key` has.
    fn of_key(&self, key: &str) -> Vec<&SamePrefix> {
        let mut found = Vec::new();
        // Prefixes of it are still to be found.
        let mut rest = Some(key);
        while let Some(asked) = rest {
            let upto = (Bound::Unbounded, Bound::Included(asked));
            let Some((prefix, same)) = self.by_prefix.range::<str, _>(upto).next_back() else {
                break;
            };
            rest = if asked.starts_with(prefix.as_str()) {
                found.push(same);
                // The longest; the next one is shorter.
                prefix.char_indices().next_back().and_then(|(at, _)| key.get(..at))
            } else {
                // Every prefix of `asked` that is there lies before this one, and so is a prefix of it too.
                key.get(..common_len(asked, prefix))
            };
        }
        found
    }
}

/// Length of the beginning that two texts have in common.
fn common_len(one: &str, other: &str) -> usize {
    let equal = one.chars().zip(other.chars()).take_while(|(one, other)| one == other);
    equal.map(|(char, _)| char.len_utf8()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Revision;

    fn watchers(all: &[(&str, Option<&str>)]) -> Watchers {
        let mut watchers = Watchers::default();
        for (prefix, topic) in all {
            watchers.add(Arc::new(Watcher::new(
                (*prefix).to_owned(),
                topic.map(str::to_owned),
                Revision(0),
            )));
        }
        watchers
    }

    fn found<'a>(
        all: &'a Watchers,
        key: &str,
        topics: [Option<&'a str>; 2],
    ) -> Vec<(&'a str, Option<&'a str>)> {
        let mut found = Vec::new();
        all.each_of(key, || topics, |watcher| found.push((watcher.prefix(), watcher.topic())));
        found.sort_unstable();
        found
    }

    #[test]
    fn a_key_finds_the_watches_that_a_look_at_each_would_find() {
        let prefixes = [
            "",
            "/",
            "/a/",
            "/a/",
            "/a/pods/",
            "/a/pods/ns/",
            "/a/pods/ns/p",
            "/a/pods/ns/p1",
            "/a/pods/ns0/",
            "/a/pods/nr/",
            "/a/pods/nsé",
            "/a/pods/nsè",
            "/a/podz",
            "/b/",
            "/a/pods/ns/p1/x",
        ];
        let all = watchers(&prefixes.map(|prefix| (prefix, None)));
        let keys = [
            "",
            "/",
            "/a/pods/ns/p1",
            "/a/pods/ns/p12",
            "/a/pods/ns/p",
            "/a/pods/ns/o",
            "/a/pods/ns0/p1",
            "/a/pods/nséa",
            "/a/pods/nsêa",
            "/c",
            "/b/x",
            "x",
            "/a/pods/nt",
        ];
        for key in keys {
            let expected = prefixes.into_iter().filter(|prefix| key.starts_with(prefix));
            let mut expected: Vec<_> = expected.map(|prefix| (prefix, None)).collect();
            expected.sort_unstable();
            assert_eq!(found(&all, key, [None, None]), expected, "{key:?}");
        }
        assert_eq!(all.all().count(), prefixes.len());
    }

    #[test]
    fn a_topic_finds_its_watches_and_those_of_all() {
        let (pods, n1, n2) = (("/pods/", None), ("/pods/", Some("n1")), ("/pods/", Some("n2")));
        let all = watchers(&[pods, n1, n2, n2, ("/nodes/", Some("n1"))]);
        let found = |topics| found(&all, "/pods/ns/p", topics);
        assert_eq!(found([Some("n1"), Some("n1")]), [pods, n1], "once");
        assert_eq!(found([Some("n2"), Some("")]), [pods, n2, n2]);
        assert_eq!(found([Some("n2"), Some("n1")]), [pods, n1, n2, n2], "it has left one");
        assert_eq!(found([Some("n3"), Some("n3")]), [pods]);
        assert_eq!(found([None, Some("n1")]), [pods, n1, n2, n2], "it may be any");
        assert_eq!(all.all().count(), 5);
    }

    #[test]
    fn a_watch_that_ended_is_not_found() {
        let mut all = watchers(&[("/a/", None), ("/a/", Some("t"))]);
        let (whole, of_topic) = (("/a/", None), ("/a/", Some("t")));
        let both: Vec<Arc<Watcher>> = all.all().cloned().collect();
        assert_eq!(found(&all, "/a/x", [Some("t"), Some("t")]), [whole, of_topic]);
        all.remove(&both[0]);
        all.remove(&both[0]);
        assert_eq!(found(&all, "/a/x", [Some("t"), Some("t")]), [of_topic]);
        all.remove(&both[1]);
        assert!(all.by_prefix.is_empty());
    }
}
