//! Which pods leave a node, which stay, and which prevent it.

use std::collections::BTreeMap;

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
    Leaves(Vec<&'static str>),
    Stays(Option<&'static str>),
    Blocks(Vec<&'static str>),
}

/// What happens to these pods of a node.
pub fn plan(names: &Names, pods: &[Value], allowed: Permissions) -> DrainPlan {
    let mut plan = DrainPlan::default();
    let mut warned: BTreeMap<&'static str, Vec<String>> = BTreeMap::new();
    let mut blocked: BTreeMap<&'static str, Vec<String>> = BTreeMap::new();
    for pod in pods {
        let (reasons, texts) = match decide_pod(names, pod, allowed) {
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
    let lines = |texts: BTreeMap<&'static str, Vec<String>>| -> Vec<String> {
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

fn decide_pod(names: &Names, pod: &Value, allowed: Permissions) -> Verdict {
    let annotations = pod.pointer("/metadata/annotations");
    if annotations.and_then(|map| map.get(names.label("config.mirror"))).is_some() {
        return Verdict::Stays(None);
    }
    if matches!(text_at(pod, "/status/phase"), "Succeeded" | "Failed") {
        return Verdict::Leaves(Vec::new());
    }
    let owners = items_at(pod, "/metadata/ownerReferences");
    let controller = owners.iter().find(|owner| owner.pointer("/controller") == Some(&json!(true)));
    let mut warnings = Vec::new();
    let mut blocks = Vec::new();
    match controller {
        Some(owner) if text_at(owner, "/kind") == "DaemonSet" => {
            if allowed.ignore_daemon_sets {
                return Verdict::Stays(Some(DAEMON_SET_STAYS));
            }
            blocks.push(DAEMON_SET_BLOCKS);
        }
        Some(_) => {}
        None if allowed.force => warnings.push(UNMANAGED_GOES),
        None => blocks.push(UNMANAGED_BLOCKS),
    }
    let has_local = |volume: &Value| volume.get("emptyDir").is_some_and(|source| !source.is_null());
    if items_at(pod, "/spec/volumes").iter().any(has_local) {
        if allowed.delete_empty_dir_data {
            warnings.push(STORAGE_GOES);
        } else {
            blocks.push(STORAGE_BLOCKS);
        }
    }
    if blocks.is_empty() { Verdict::Leaves(warnings) } else { Verdict::Blocks(blocks) }
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
        let all =
            Permissions { force: true, ignore_daemon_sets: true, delete_empty_dir_data: true };
        for (pod, usual, allowed) in cases {
            for (permissions, expected) in [(Permissions::default(), usual), (all, allowed)] {
                let plan = plan(names, std::slice::from_ref(&pod), permissions);
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
        let blocked = plan(names, &pods, Permissions::default()).blocked;
        assert_eq!(
            blocked,
            [format!("{DAEMON_SET_BLOCKS}: d/c"), format!("{UNMANAGED_BLOCKS}: d/a, d/b")]
        );
        let allowed =
            Permissions { force: true, ignore_daemon_sets: true, ..Permissions::default() };
        let warning = plan(names, &pods, allowed).warning;
        assert_eq!(warning, Some(format!("{UNMANAGED_GOES}: d/a, d/b; {DAEMON_SET_STAYS}: d/c")));
    }
}
