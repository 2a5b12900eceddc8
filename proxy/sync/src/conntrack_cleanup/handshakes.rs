//! TCP connections to removed endpoints whose handshake has no answer.
//!
//! ```text
//!  endpoint removed     first walk: those without      second walk: those without an
//!        |              an answer are noted            answer since the first are deleted
//!        |----------------------|---------------------------------|
//! ```
//!
//! An entry is deleted only if two walks found it without an answer: an endpoint that is there again, or still serves
//! others, answers sooner than that. Endpoints of TCP are removed all the time: one walk is for all of them, and walks
//! take a tenth of the thread's time at most. One that fails is repeated, a few times.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use proxy_kernel::{QueryError, Session, Socket};
use proxy_netfilter::ct::{Flow, Tuple};
use proxy_rules::stale::{StaleFlows, StaleSet};

/// Removed endpoints of frontends that are looked for at a time; connections to others end by conntrack timeouts.
pub(super) const HANDSHAKES_MAX: usize = 1 << 16;

/// Between two walks are this many times what the last one took.
const PAUSE_FACTOR: u32 = 9;

/// Most entries that a walk notes; others end by conntrack timeouts.
const FOUND_MAX: usize = 1 << 18;

/// After so many walks in turn that failed, what they looked for ends by conntrack timeouts.
const FAILURES_MAX: u32 = 3;

/// Original tuple and id of an entry.
type FlowId = (Tuple, Option<u32>);

/// The connections that are looked for.
#[derive(Debug, Default)]
pub(super) struct Handshakes {
    /// When the next walk is due.
    due: Option<Instant>,
    /// Those that came since the last walk.
    new: BTreeSet<StaleFlows>,
    /// Those that came before it.
    old: BTreeSet<StaleFlows>,
    /// The entries that the last walk found.
    found_before: BTreeSet<FlowId>,
    /// Those that the present one has found.
    found: BTreeSet<FlowId>,
    /// Walks in turn that failed.
    failures: u32,
    /// Before this no walk begins.
    rests_until: Option<Instant>,
}

impl Handshakes {
    /// When the next walk is due, if there is one.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Adds connections to removed endpoints. The surplus is left out, with a warning.
    pub(super) fn add(&mut self, flows: BTreeSet<StaleFlows>, now: Instant) {
        if flows.is_empty() {
            return;
        }
        let room = HANDSHAKES_MAX.saturating_sub(self.new.len());
        let surplus = flows.len().saturating_sub(room);
        if surplus > 0 {
            tracing::warn!(
                surplus,
                "too many endpoints were removed; unanswered TCP connections to the surplus end by conntrack timeouts"
            );
        }
        self.new.extend(flows.into_iter().take(room));
        self.due.get_or_insert(self.rests_until.map_or(now, |until| until.max(now)));
    }

    /// Walks conntrack, and deletes what the last walk found too; the next one is due after `rest` at least. Gives
    /// how many entries were deleted. A walk that fails counts for nothing.
    pub(super) fn walk(
        &mut self,
        session: &mut Session<Socket>,
        rest: Duration,
    ) -> Result<u64, QueryError> {
        let (begun, wanted, mut stale) = (Instant::now(), self.wanted(), Vec::new());
        let walked = wanted.walks().into_iter().try_for_each(|StaleFlows { family, filter }| {
            session.flows(family, &filter, |flow| {
                if wanted.contains(&flow) && self.was_found(&flow) {
                    stale.push(flow);
                }
            })
        });
        let deleted = walked.and_then(|()| session.delete_flows(&stale));
        let next = rest.max(begun.elapsed().saturating_mul(PAUSE_FACTOR));
        self.end_walk(deleted.is_ok(), Instant::now().checked_add(next));
        deleted
    }

    fn wanted(&self) -> StaleSet {
        StaleSet::from_flows(self.old.iter().chain(&self.new))
    }

    /// Notes an entry; whether the last walk found it too.
    fn was_found(&mut self, flow: &Flow) -> bool {
        let id = (flow.orig, flow.id);
        let was_found = self.found_before.contains(&id);
        if !was_found && self.found.len() < FOUND_MAX {
            self.found.insert(id);
        }
        was_found
    }

    /// Ends a walk; no other begins before `next`.
    pub(super) fn end_walk(&mut self, done: bool, next: Option<Instant>) {
        let found = std::mem::take(&mut self.found);
        self.failures = if done { 0 } else { self.failures.saturating_add(1) };
        if done {
            self.found_before = found;
            self.old = std::mem::take(&mut self.new);
        } else if self.failures >= FAILURES_MAX {
            self.failures = 0;
            // Those that came later have their tries too.
            let given_up = if self.old.is_empty() { &mut self.new } else { &mut self.old };
            given_up.clear();
        }
        self.rests_until = next;
        self.due = next.filter(|_| !self.old.is_empty() || !self.new.is_empty());
        if self.due.is_none() {
            self.found_before.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;
    use proxy_netfilter::ct::{STATUS_DNAT, STATUS_SEEN_REPLY};
    use proxy_rules::model::Protocol;
    use proxy_rules::stale::connections;

    use super::*;

    fn ip(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    /// Connections without an answer to an endpoint of a Service.
    fn unanswered(endpoint: IpAddr) -> StaleFlows {
        let mut flows = connections((Some(ip(1)), 80), Protocol::Tcp, (endpoint, 8080));
        flows.filter.status = Some((STATUS_DNAT, STATUS_DNAT | STATUS_SEEN_REPLY));
        flows
    }

    fn to(endpoint: u8) -> StaleFlows {
        unanswered(ip(endpoint))
    }

    fn flow(client_port: u16, endpoint: u8, status: u32, id: u32) -> Flow {
        let tuple = |src, dst, src_port, dst_port| Tuple { src, dst, proto: 6, src_port, dst_port };
        Flow {
            orig: tuple(ip(99), ip(1), client_port, 80),
            reply: tuple(ip(endpoint), ip(99), 8080, client_port),
            status,
            mark: 0,
            timeout_secs: None,
            id: Some(id),
        }
    }

    /// What a walk over these entries deletes, by client port.
    fn walk(handshakes: &mut Handshakes, entries: &[Flow], now: Instant) -> Vec<u16> {
        let wanted = handshakes.wanted();
        let is_dumped = |flow: &&Flow| wanted.walks().iter().any(|walk| walk.filter.matches(flow));
        let seen = entries.iter().filter(is_dumped).filter(|flow| wanted.contains(flow));
        let stale = seen.filter(|flow| handshakes.was_found(flow)).map(|f| f.orig.src_port);
        let stale = stale.collect();
        handshakes.end_walk(true, Some(now + Duration::from_secs(1)));
        stale
    }

    #[test]
    fn what_two_walks_find_without_an_answer_is_deleted() {
        let begin = Instant::now();
        let at = |secs| begin + Duration::from_secs(secs);
        let mut handshakes = Handshakes::default();
        handshakes.add([to(7)].into(), at(0));
        assert_eq!(handshakes.due(), Some(at(0)));
        let waits = flow(1, 7, STATUS_DNAT, 1);
        let answered = flow(2, 7, STATUS_DNAT | STATUS_SEEN_REPLY, 2);
        let elsewhere = flow(3, 8, STATUS_DNAT, 3);
        let slow = flow(4, 7, STATUS_DNAT, 4);
        let entries = [waits, answered, elsewhere, slow];
        assert_eq!(walk(&mut handshakes, &entries, at(0)), [0; 0]);
        assert_eq!(handshakes.due(), Some(at(1)));
        // Meanwhile one was answered, another connection has come from a port, and one more endpoint is removed.
        handshakes.add([to(8)].into(), at(0));
        let late = Flow { status: STATUS_DNAT | STATUS_SEEN_REPLY, ..slow };
        let entries = [waits, answered, elsewhere, late, flow(5, 7, STATUS_DNAT, 5)];
        assert_eq!(walk(&mut handshakes, &entries, at(1)), [1]);
        assert_eq!(handshakes.due(), Some(at(2)));
        let entries = [answered, elsewhere, late, flow(1, 7, STATUS_DNAT, 6)];
        assert_eq!(walk(&mut handshakes, &entries, at(2)), [3]);
        assert_eq!(handshakes.due(), None);
    }

    #[test]
    fn a_walk_that_fails_counts_for_nothing() {
        let begin = Instant::now();
        let at = |secs| begin + Duration::from_secs(secs);
        let mut handshakes = Handshakes::default();
        handshakes.add([to(7)].into(), at(0));
        let entries = [flow(1, 7, STATUS_DNAT, 1)];
        for failures in [1, 2] {
            assert!(!handshakes.was_found(&entries[0]), "seen by {failures}");
            handshakes.end_walk(false, Some(at(1)));
            assert_eq!(handshakes.due(), Some(at(1)));
        }
        assert_eq!(walk(&mut handshakes, &entries, at(1)), [0; 0]);
        handshakes.end_walk(false, Some(at(3)));
        handshakes.end_walk(false, Some(at(3)));
        assert_eq!(walk(&mut handshakes, &entries, at(3)), [1]);
        assert_eq!(handshakes.due(), None);
        // It may never succeed. Those that came meanwhile are tried as often.
        handshakes.add([to(7)].into(), at(1));
        assert_eq!(handshakes.due(), Some(at(4)), "the rest after the last walk");
        walk(&mut handshakes, &entries, at(4));
        handshakes.add([to(8)].into(), at(4));
        let fail = |handshakes: &mut Handshakes| {
            (0..FAILURES_MAX).for_each(|_| handshakes.end_walk(false, Some(at(6))));
        };
        fail(&mut handshakes);
        assert_eq!(
            (handshakes.due(), handshakes.wanted()),
            (Some(at(6)), StaleSet::from_flows(&[to(8)]))
        );
        fail(&mut handshakes);
        assert_eq!(handshakes.due(), None);
    }

    #[test]
    fn removed_endpoints_have_a_bound() {
        let mut handshakes = Handshakes::default();
        let many = (0..70_000u32).map(|n| {
            let [_, a, b, c] = n.to_be_bytes();
            unanswered([10, a, b, c].into())
        });
        handshakes.add(many.collect(), Instant::now());
        assert_eq!(handshakes.new.len(), HANDSHAKES_MAX);
    }

    proptest! {
        /// Connections come, are answered, end and come again from the same port while endpoints are removed: none that was answered, or that no earlier walk
        /// found, is deleted, and each that waits from the removal of its endpoint on is, by the second walk after it that does not fail.
        #[test]
        fn only_what_waits_is_deleted(
            steps in proptest::collection::vec((0u8..6, 0u16..6, 7u8..9), 1..60),
        ) {
            let mut handshakes = Handshakes::default();
            let (now, mut ids) = (Instant::now(), 0);
            let mut entries: Vec<Flow> = Vec::new();
            // The entries at the last walk.
            let mut walked_over: BTreeSet<Option<u32>> = BTreeSet::new();
            // By id: the walks since the removal of its endpoint that it has waited for.
            let mut waited: std::collections::BTreeMap<u32, u32> = std::collections::BTreeMap::new();
            for (step, port, endpoint) in steps {
                match step {
                    0 if entries.iter().all(|f| f.orig.src_port != port) => {
                        ids += 1;
                        entries.push(flow(port, endpoint, STATUS_DNAT, ids));
                    }
                    1 => {
                        for entry in entries.iter_mut().filter(|f| f.orig.src_port == port) {
                            entry.status |= STATUS_SEEN_REPLY;
                            waited.remove(&entry.id.unwrap());
                        }
                    }
                    2 => entries.retain(|f| f.orig.src_port != port),
                    3 => {
                        handshakes.add([to(endpoint)].into(), now);
                        for f in entries.iter().filter(|f| {
                            f.reply.src == ip(endpoint) && f.status & STATUS_SEEN_REPLY == 0
                        }) {
                            waited.entry(f.id.unwrap()).or_insert(0);
                        }
                    }
                    5 if handshakes.due().is_some() => {
                        for entry in entries.iter().filter(|f| f.orig.src_port <= port) {
                            handshakes.was_found(entry);
                        }
                        handshakes.end_walk(false, Some(now));
                        // What is given up waits no longer.
                        let wanted = handshakes.wanted();
                        let kept = entries.iter().filter(|f| wanted.contains(f));
                        let kept: BTreeSet<u32> = kept.filter_map(|f| f.id).collect();
                        waited.retain(|id, _| kept.contains(id));
                    }
                    4 if handshakes.due().is_some() => {
                        let deleted = walk(&mut handshakes, &entries, now);
                        for port in &deleted {
                            let one = entries.iter().find(|f| f.orig.src_port == *port).unwrap();
                            prop_assert_eq!(one.status & STATUS_SEEN_REPLY, 0);
                            prop_assert!(walked_over.contains(&one.id), "{one:?} is new");
                        }
                        entries.retain(|f| !deleted.contains(&f.orig.src_port));
                        walked_over = entries.iter().map(|f| f.id).collect();
                        for f in &entries {
                            if let Some(walks) = waited.get_mut(&f.id.unwrap()) {
                                *walks += 1;
                                prop_assert!(*walks < 2, "{f:?} waits");
                            }
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}
