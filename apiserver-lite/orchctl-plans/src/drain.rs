//! Which pods leave a node, which stay, and which prevent it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proto_api::Time;
use proto_api::names::Names;
use serde_json::{Value, json};

use crate::keep::{items_at, text_at};

/// What the user allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permissions {
    /// Pods without a controller are deleted, though nothing makes them again.
    pub force: bool,
    /// Pods of DaemonSets stay.
    pub ignore_daemon_sets: bool,
    /// Pods with an `emptyDir` are deleted, with their data.
    pub delete_empty_dir_data: bool,
    /// Pods whose deletion was due longer ago than this are not waited for; zero for none.
    pub skip_deleted_after: Duration,
}

/// What is known beside the pods.
#[derive(Clone, Debug, Default)]
pub struct DrainFacts {
    /// Paths ([`path`]) of the DaemonSets that own some of the pods and do not exist.
    pub missing_daemon_sets: BTreeSet<String>,
    /// Seconds since 1970.
    pub now: i64,
}

/// What happens to the pods of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DrainPlan {
    /// Pods that are evicted.
    pub leaving: Vec<Value>,
    /// What the user should know, one text.
    pub warning: Option<String>,
    /// What prevents the drain; nothing is evicted if there is any.
    pub blocked: Vec<String>,
}

const DAEMON_SET_BLOCKS: &str =
    "cannot delete DaemonSet-managed Pods (use --ignore-daemonsets to ignore)";
const STORAGE_BLOCKS: &str =
    "cannot delete Pods with local storage (use --delete-emptydir-data to override)";
const UNMANAGED_BLOCKS: &str =
    "cannot delete Pods that declare no controller (use --force to override)";
const DAEMON_SET_STAYS: &str = "ignoring DaemonSet-managed Pods";
const STORAGE_GOES: &str = "deleting Pods with local storage";
const UNMANAGED_GOES: &str = "deleting Pods that declare no controller";

enum Verdict {
    Leaves(Vec<String>),
    Stays(Option<String>),
    Blocks(Vec<String>),
}

/// Paths of the DaemonSets that control some of the pods.
pub fn daemon_sets(pods: &[Value]) -> BTreeSet<String> {
    pods.iter().filter(|pod| !has_ended(pod)).filter_map(daemon_set).collect()
}

/// What happens to these pods of a node.
pub fn plan(names: &Names, pods: &[Value], allowed: Permissions, facts: &DrainFacts) -> DrainPlan {
    let mut plan = DrainPlan::default();
    let mut warned: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut blocked: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for pod in pods {
        let (reasons, texts) = match decide_pod(names, pod, allowed, facts) {
            Verdict::Leaves(reasons) => {
                plan.leaving.push(pod.clone());
                (reasons, &mut warned)
            }
            Verdict::Stays(reason) => (Vec::from_iter(reason), &mut warned),
            Verdict::Blocks(reasons) => (reasons, &mut blocked),
        };
        for reason in reasons {
            texts.entry(reason).or_default().push(path(pod));
        }
    }
    let lines = |texts: BTreeMap<String, Vec<String>>| -> Vec<String> {
        texts.into_iter().map(|(reason, pods)| format!("{reason}: {}", pods.join(", "))).collect()
    };
    plan.blocked = lines(blocked);
    plan.warning = Some(lines(warned).join("; ")).filter(|text| !text.is_empty());
    plan
}

/// Namespace and name of a pod.
pub fn path(pod: &Value) -> String {
    format!("{}/{}", text_at(pod, "/metadata/namespace"), text_at(pod, "/metadata/name"))
}

fn decide_pod(names: &Names, pod: &Value, allowed: Permissions, facts: &DrainFacts) -> Verdict {
    let annotations = pod.pointer("/metadata/annotations");
    if annotations.and_then(|map| map.get(names.label("config.mirror"))).is_some()
        || is_overdue(pod, allowed.skip_deleted_after, facts.now)
    {
        return Verdict::Stays(None);
    }
    if has_ended(pod) {
        return Verdict::Leaves(Vec::new());
    }
    let mut warnings = Vec::new();
    let mut blocks = Vec::new();
    match (controller(pod), daemon_set(pod)) {
        (_, Some(set)) if facts.missing_daemon_sets.contains(&set) => {
            let texts = if allowed.force { &mut warnings } else { &mut blocks };
            let name = set.split_once('/').map_or(&*set, |(_, name)| name);
            texts.push(format!("daemonsets.apps {name:?} not found"));
        }
        (_, Some(_)) if allowed.ignore_daemon_sets => {
            return Verdict::Stays(Some(DAEMON_SET_STAYS.to_owned()));
        }
        (_, Some(_)) => blocks.push(DAEMON_SET_BLOCKS.to_owned()),
        (Some(_), None) => {}
        (None, None) if allowed.force => warnings.push(UNMANAGED_GOES.to_owned()),
        (None, None) => blocks.push(UNMANAGED_BLOCKS.to_owned()),
    }
    let has_local = |volume: &Value| volume.get("emptyDir").is_some_and(|source| !source.is_null());
    if items_at(pod, "/spec/volumes").iter().any(has_local) {
        if allowed.delete_empty_dir_data {
            warnings.push(STORAGE_GOES.to_owned());
        } else {
            blocks.push(STORAGE_BLOCKS.to_owned());
        }
    }
    if blocks.is_empty() { Verdict::Leaves(warnings) } else { Verdict::Blocks(blocks) }
}

fn has_ended(pod: &Value) -> bool {
    matches!(text_at(pod, "/status/phase"), "Succeeded" | "Failed")
}

/// Whether the pod had to be gone longer ago than `after`.
fn is_overdue(pod: &Value, after: Duration, now: i64) -> bool {
    let deleted = text_at(pod, "/metadata/deletionTimestamp").parse::<Time>().ok();
    let due = deleted.and_then(|at| at.unix());
    let late = due.and_then(|due| u64::try_from(now.saturating_sub(due)).ok());
    !after.is_zero() && late.is_some_and(|late| late > after.as_secs())
}

fn controller(pod: &Value) -> Option<&Value> {
    let owners = items_at(pod, "/metadata/ownerReferences");
    owners.iter().find(|owner| owner.pointer("/controller") == Some(&json!(true)))
}

/// The path of the DaemonSet that controls the pod.
fn daemon_set(pod: &Value) -> Option<String> {
    let owner = controller(pod).filter(|owner| text_at(owner, "/kind") == "DaemonSet")?;
    Some(format!("{}/{}", text_at(pod, "/metadata/namespace"), text_at(owner, "/name")))
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;

    fn pod(name: &str, owner: Option<&str>, more: Value) -> Value {
        let mut pod = json!({"metadata": {"namespace": "d", "name": name}, "spec": {}, "status": {"phase": "Running"}});
        if let Some(kind) = owner {
            pod["metadata"]["ownerReferences"] = json!([{"kind": kind, "controller": true}]);
        }
        for (pointer, value) in more.as_object().into_iter().flatten() {
            let mut at = &mut pod;
            for key in pointer.trim_matches('/').split('/') {
                at = &mut at[key];
            }
            *at = value.clone();
        }
        pod
    }

    #[test]
    fn pods_leave_stay_or_block() {
        let names = Names::new(Profile::Kubernetes);
        let local = || json!({"/spec/volumes": [{"name": "v", "emptyDir": {}}]});
        let cases = [
            (pod("owned", Some("ReplicaSet"), json!({})), "leaves", "leaves"),
            (pod("daemon", Some("DaemonSet"), json!({})), "blocks", "stays"),
            (pod("daemon-local", Some("DaemonSet"), local()), "blocks", "stays"),
            (pod("alone", None, json!({})), "blocks", "leaves"),
            (pod("local", Some("ReplicaSet"), local()), "blocks", "leaves"),
            (pod("finished", None, json!({"/status/phase": "Succeeded"})), "leaves", "leaves"),
            (
                pod(
                    "mirror",
                    None,
                    json!({"/metadata/annotations": {names.label("config.mirror"): "x"}}),
                ),
                "stays",
                "stays",
            ),
        ];
        let all = Permissions {
            force: true,
            ignore_daemon_sets: true,
            delete_empty_dir_data: true,
            ..Permissions::default()
        };
        for (pod, usual, allowed) in cases {
            for (permissions, expected) in [(Permissions::default(), usual), (all, allowed)] {
                let plan =
                    plan(names, std::slice::from_ref(&pod), permissions, &DrainFacts::default());
                let found = match (plan.leaving.is_empty(), plan.blocked.is_empty()) {
                    (false, true) => "leaves",
                    (true, false) => "blocks",
                    _ => "stays",
                };
                assert_eq!(found, expected, "{} {permissions:?}", path(&pod));
            }
        }
    }

    #[test]
    fn texts_name_the_pods() {
        let names = Names::new(Profile::Kubernetes);
        let pods = [
            pod("a", None, json!({})),
            pod("b", None, json!({})),
            pod("c", Some("DaemonSet"), json!({})),
        ];
        let facts = DrainFacts::default();
        let blocked = plan(names, &pods, Permissions::default(), &facts).blocked;
        assert_eq!(
            blocked,
            [format!("{DAEMON_SET_BLOCKS}: d/c"), format!("{UNMANAGED_BLOCKS}: d/a, d/b")]
        );
        let allowed =
            Permissions { force: true, ignore_daemon_sets: true, ..Permissions::default() };
        let warning = plan(names, &pods, allowed, &facts).warning;
        assert_eq!(warning, Some(format!("{UNMANAGED_GOES}: d/a, d/b; {DAEMON_SET_STAYS}: d/c")));
    }

    #[test]
    fn pods_of_a_daemon_set_that_is_gone_leave_by_force() {
        let names = Names::new(Profile::Kubernetes);
        let owner = json!([{"kind": "DaemonSet", "name": "s", "controller": true}]);
        let pods = [pod("a", None, json!({"/metadata/ownerReferences": owner}))];
        assert_eq!(daemon_sets(&pods), BTreeSet::from(["d/s".to_owned()]));
        let facts = DrainFacts { missing_daemon_sets: daemon_sets(&pods), now: 0 };
        let ignoring = Permissions { ignore_daemon_sets: true, ..Permissions::default() };
        let text = "daemonsets.apps \"s\" not found: d/a".to_owned();
        assert_eq!(plan(names, &pods, ignoring, &facts).blocked, std::slice::from_ref(&text));
        let forced = plan(names, &pods, Permissions { force: true, ..ignoring }, &facts);
        assert_eq!((forced.leaving.len(), forced.warning), (1, Some(text)));
    }

    #[test]
    fn pods_that_had_to_be_gone_long_ago_are_left() {
        let names = Names::new(Profile::Kubernetes);
        let deleted = json!({"/metadata/deletionTimestamp": "1970-01-01T00:01:40Z"});
        let pods = [pod("a", Some("ReplicaSet"), deleted)];
        for (after, now, leaves) in [(0, 900, true), (10, 110, true), (10, 111, false)] {
            let skip_deleted_after = Duration::from_secs(after);
            let allowed = Permissions { skip_deleted_after, ..Permissions::default() };
            let facts = DrainFacts { now, ..DrainFacts::default() };
            let plan = plan(names, &pods, allowed, &facts);
            assert_eq!((plan.leaving.len() == 1, plan.blocked.len()), (leaves, 0), "{after} {now}");
        }
    }
}
