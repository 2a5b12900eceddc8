//! A Namespace: why it does not go.

use super::{Case, Finding, Verdict, deletion, reason_of, texts, true_condition};
use crate::objects;

/// Why a namespace is still there that was deleted.
pub(super) fn explain(case: &Case, now: i64) -> Verdict {
    let namespace = &case.object;
    let (name, deleted) =
        (objects::name(namespace), objects::text_at(namespace, "/metadata/deletionTimestamp"));
    if deleted.is_empty() {
        let phase = objects::text_at(namespace, "/status/phase");
        return Verdict::Well(format!("it is {phase} and was not deleted"));
    }
    let mut findings = Vec::new();
    let mut add = |kind: &str, what: &str, next: String| {
        if let Some(condition) = true_condition(namespace, kind) {
            findings.push(Finding::stuck(what, reason_of(condition), next));
        }
    };
    add(
        "NamespaceDeletionDiscoveryFailure",
        "not all kinds of objects are known, so that none may be left unseen",
        "see which server of an API is not available: orchctl get apiservices; bring it back, or delete its APIService".to_owned(),
    );
    add(
        "NamespaceDeletionContentFailure",
        "some of its objects cannot be deleted",
        "see to what the server says".to_owned(),
    );
    add(
        "NamespaceFinalizersRemaining",
        "objects in it have finalizers",
        format!(
            "see to the controllers that have to take these finalizers off; take one off by hand only if its controller is gone for good: orchctl edit -n {name} TYPE/NAME"
        ),
    );
    let is_held = !findings.is_empty();
    if let Some(condition) = true_condition(namespace, "NamespaceContentRemaining")
        && !is_held
    {
        findings.push(Finding::waiting(
            "objects in it are being deleted",
            reason_of(condition),
            format!("wait, or see why they stay: orchctl get -n {name} TYPE, orchctl why -n {name} TYPE/NAME"),
        ));
    }
    // Its own finalizers have their turn when it is empty; those of the metadata last.
    let others: Vec<&str> = texts(namespace, "/spec/finalizers")
        .into_iter()
        .filter(|one| !matches!(*one, "kubernetes" | "orch"))
        .collect();
    if findings.is_empty() && !others.is_empty() {
        findings.push(Finding::stuck(
            "it is being deleted and finalizers of its spec hold it",
            format!("{} since {deleted}", others.join(", ")),
            "see to the controllers that have to take these finalizers off",
        ));
    }
    if findings.is_empty() && texts(namespace, "/spec/finalizers").is_empty() {
        findings.extend(deletion(namespace, now));
    }
    if findings.is_empty() {
        findings.push(Finding::waiting(
            "it is being deleted",
            format!("since {deleted}; its conditions name nothing that is left"),
            "wait, or look whether the controller manager runs",
        ));
    }
    Verdict::Wrong(findings)
}
