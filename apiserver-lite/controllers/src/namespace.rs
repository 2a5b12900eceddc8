//! The namespace controller: finalizes a terminating namespace once it is empty, and reports the remaining content in its conditions until then. What it
//! asks of the server in a round is in [`content`].

pub mod content;

use std::collections::BTreeMap;
use std::time::Duration;

use proto_api::Time;
use proto_api::core::v1::{Namespace, NamespaceCondition};

/// The content of a namespace after its objects were deleted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RemainingContent {
    /// Number of remaining objects by resource.
    pub objects: BTreeMap<String, usize>,
    /// Number of remaining objects by finalizer.
    pub finalizers: BTreeMap<String, usize>,
    /// Errors of deletions and lists.
    pub failures: Vec<String>,
    /// What could not be asked for its resources, with the reasons: versions of groups, definitions, APIServices. They may have objects.
    pub undiscovered: Vec<String>,
}

/// Whether the namespace waits for its content to be deleted. A cache may show one that is gone, in whose place is another: the content is only deleted
/// after the server has shown the namespace.
pub fn is_due(namespace: &Namespace, finalizer: &str) -> bool {
    let is_ours = |other: &String| other == finalizer;
    namespace.metadata.deletion_timestamp.is_some() && namespace.spec.finalizers.iter().any(is_ours)
}

/// The next step of a terminating namespace.
#[derive(Clone, Debug, PartialEq)]
pub enum NamespaceStep {
    /// It is empty: removes the finalizer.
    Finalize(Box<Namespace>),
    /// Writes changed conditions.
    Report(Box<Namespace>),
    /// The conditions are up to date.
    Wait,
}

/// Plans the next step; `finalizer` is the one for the namespace's content. After a report of an empty one another step follows at once.
pub fn plan(
    namespace: &Namespace,
    finalizer: &str,
    remains: &RemainingContent,
    now: Time,
) -> NamespaceStep {
    let mut next = namespace.clone();
    for condition in conditions(remains) {
        set(&mut next.status.conditions, condition, now);
    }
    let is_empty = *remains == RemainingContent::default();
    // One that goes now needs no conditions, and one that waits for others is not to say that it has content.
    if next != *namespace && (!is_empty || is_held_by_others(namespace, finalizer)) {
        return NamespaceStep::Report(Box::new(next));
    }
    if !is_empty {
        return NamespaceStep::Wait;
    }
    let mut next = namespace.clone();
    next.spec.finalizers.retain(|other| other != finalizer);
    NamespaceStep::Finalize(Box::new(next))
}

/// Whether the namespace stays without our finalizer.
fn is_held_by_others(namespace: &Namespace, finalizer: &str) -> bool {
    let others = namespace.spec.finalizers.iter().chain(&namespace.metadata.finalizers);
    others.into_iter().any(|other| other != finalizer)
}

/// Bounds of the time between two rounds.
const ROUND_MIN: Duration = Duration::from_secs(1);
const ROUND_MAX: Duration = Duration::from_secs(60);

/// Time until the next round of deleting the content: a quarter of the time since the namespace was deleted, within a second and a minute. What its objects
/// wait for may never happen, and each round lists all kinds.
pub fn next_round(namespace: &Namespace, now: Time) -> Duration {
    let seconds = |time: Time| time.unix().unwrap_or_default();
    let deleted = seconds(namespace.metadata.deletion_timestamp.unwrap_or(now));
    let since = u64::try_from(seconds(now).saturating_sub(deleted)).unwrap_or_default();
    Duration::from_secs(since / 4).clamp(ROUND_MIN, ROUND_MAX)
}

/// The conditions for the remaining content.
fn conditions(remains: &RemainingContent) -> [NamespaceCondition; 5] {
    let condition = |type_: &str, held: Option<(&str, String)>, reason: &str, message: &str| {
        let (status, reason, message) = match held {
            Some((reason, message)) => ("True", reason, message),
            None => ("False", reason, message.to_owned()),
        };
        NamespaceCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message,
            ..NamespaceCondition::default()
        }
    };
    let failed = || Some(("ContentDeletionFailed", remains.failures.join("; ")));
    let instances =
        |(name, count): (&String, &usize)| format!("{name} has {count} resource instances");
    let resources: Vec<String> = remains.objects.iter().map(instances).collect();
    let left = || {
        let message = format!("Some resources are remaining: {}", resources.join(", "));
        Some(("SomeResourcesRemain", message))
    };
    let holding =
        |(name, count): (&String, &usize)| format!("{name} in {count} resource instances");
    let finalizers: Vec<String> = remains.finalizers.iter().map(holding).collect();
    let held = || {
        let list = finalizers.join(", ");
        let message = format!("Some content in the namespace has finalizers remaining: {list}");
        Some(("SomeFinalizersRemain", message))
    };
    let undiscovered = || {
        let (count, list) = (remains.undiscovered.len(), remains.undiscovered.join(", "));
        let message = format!(
            "Discovery failed for some groups, {count} failing: unable to retrieve the complete list of server APIs: {list}"
        );
        Some(("DiscoveryFailed", message))
    };
    [
        condition(
            "NamespaceDeletionDiscoveryFailure",
            if remains.undiscovered.is_empty() { None } else { undiscovered() },
            "ResourcesDiscovered",
            "All resources successfully discovered",
        ),
        condition(
            "NamespaceDeletionGroupVersionParsingFailure",
            None,
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed",
        ),
        condition(
            "NamespaceDeletionContentFailure",
            if remains.failures.is_empty() { None } else { failed() },
            "ContentDeleted",
            "All content successfully deleted, may be waiting on finalization",
        ),
        condition(
            "NamespaceContentRemaining",
            if resources.is_empty() { None } else { left() },
            "ContentRemoved",
            "All content successfully removed",
        ),
        condition(
            "NamespaceFinalizersRemaining",
            if finalizers.is_empty() { None } else { held() },
            "ContentHasNoFinalizers",
            "All content-preserving finalizers finished",
        ),
    ]
}

/// Sets a condition; its transition time changes only with its status.
fn set(all: &mut Vec<NamespaceCondition>, condition: NamespaceCondition, now: Time) {
    match all.iter_mut().find(|other| other.type_ == condition.type_) {
        Some(other) => {
            let same = other.status == condition.status;
            let last_transition_time = if same { other.last_transition_time } else { now };
            *other = NamespaceCondition { last_transition_time, ..condition };
        }
        None => all.push(NamespaceCondition { last_transition_time: now, ..condition }),
    }
}

#[cfg(test)]
mod histories;

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace() -> Namespace {
        let mut namespace = Namespace::default();
        namespace.metadata.name = "ns".into();
        namespace.metadata.deletion_timestamp = Some(Time::from_unix(5));
        namespace.spec.finalizers = vec!["kubernetes".into(), "other".into()];
        namespace.status.phase = "Terminating".into();
        namespace
    }

    fn step(namespace: &Namespace, remains: &RemainingContent, now: i64) -> NamespaceStep {
        plan(namespace, "kubernetes", remains, Time::from_unix(now))
    }

    #[test]
    fn an_empty_namespace_loses_our_finalizer_only() {
        let empty = RemainingContent::default();
        // It stays for the other finalizer: its conditions say that it has no content.
        let NamespaceStep::Report(reported) = step(&namespace(), &empty, 9) else {
            unreachable!("it stays")
        };
        assert!(reported.status.conditions.iter().all(|condition| condition.status == "False"));
        let NamespaceStep::Finalize(done) = step(&reported, &empty, 9) else {
            unreachable!("nothing is left")
        };
        assert_eq!(done.spec.finalizers, ["other"]);
        let mut only_ours = namespace();
        only_ours.spec.finalizers.pop();
        assert!(matches!(step(&only_ours, &empty, 9), NamespaceStep::Finalize(_)), "it goes");
        only_ours.metadata.finalizers.push("example.com/hold".into());
        assert!(matches!(step(&only_ours, &empty, 9), NamespaceStep::Report(_)), "it stays");
    }

    #[test]
    fn only_a_terminating_namespace_with_our_finalizer_is_due() {
        assert!(is_due(&namespace(), "kubernetes"));
        assert!(!is_due(&namespace(), "another"));
        let mut lives = namespace();
        lives.metadata.deletion_timestamp = None;
        assert!(!is_due(&lives, "kubernetes"));
    }

    #[test]
    fn remaining_content_of_a_namespace_is_reported_once() {
        let remains = RemainingContent {
            objects: BTreeMap::from([("pods".into(), 2)]),
            finalizers: BTreeMap::from([("example.com/hold".into(), 1)]),
            ..RemainingContent::default()
        };
        let NamespaceStep::Report(reported) = step(&namespace(), &remains, 9) else {
            unreachable!("news to report")
        };
        let text = |kind: &str| {
            let condition = reported.status.conditions.iter().find(|c| c.type_ == kind).unwrap();
            format!("{} {} {}", condition.status, condition.reason, condition.message)
        };
        assert_eq!(
            text("NamespaceContentRemaining"),
            "True SomeResourcesRemain Some resources are remaining: pods has 2 resource instances"
        );
        assert!(
            text("NamespaceFinalizersRemaining")
                .ends_with("example.com/hold in 1 resource instances")
        );
        assert!(text("NamespaceDeletionContentFailure").starts_with("False ContentDeleted"));
        assert_eq!(step(&reported, &remains, 10), NamespaceStep::Wait);
        let failing = RemainingContent {
            failures: vec!["secrets: no".into()],
            ..RemainingContent::default()
        };
        let NamespaceStep::Report(failed) = step(&reported, &failing, 11) else {
            unreachable!("news")
        };
        let times: Vec<_> =
            failed.status.conditions.iter().map(|c| c.last_transition_time.unix()).collect();
        assert_eq!(times, [Some(9), Some(9), Some(11), Some(11), Some(11)]);
        // Objects of a server that does not answer may be left.
        let unknown = RemainingContent {
            undiscovered: vec!["e.com/v1: away".into()],
            ..RemainingContent::default()
        };
        let NamespaceStep::Report(waits) = step(&failed, &unknown, 12) else {
            unreachable!("news")
        };
        let first = &waits.status.conditions[0];
        assert_eq!((first.status.as_str(), first.reason.as_str()), ("True", "DiscoveryFailed"));
        assert!(first.message.ends_with("server APIs: e.com/v1: away"), "{}", first.message);
    }

    #[test]
    fn rounds_of_a_namespace_that_does_not_end_come_less_and_less_often() {
        let secs = |now| next_round(&namespace(), Time::from_unix(now)).as_secs();
        // It was deleted at 5; clocks may be set.
        let table =
            [(i64::MIN, 1), (5, 1), (9, 1), (25, 5), (125, 30), (1_000, 60), (i64::MAX, 60)];
        for (now, expected) in table {
            assert_eq!(secs(now), expected, "at {now}");
        }
    }
}
