//! Pods of `debug`.

use serde_json::{Map, Value, json};

use super::{object, parse_pairs};
use crate::ArgumentError;

/// Name of a debugging container that is alone in its pod.
pub const DEBUGGER: &str = "debugger";

/// What a debugging container may do, as kubectl names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DebugProfile {
    /// What the pod allows; of a node all that it shares.
    #[default]
    Legacy,
    /// It may trace processes.
    General,
    /// What the baseline of pod security allows.
    Baseline,
    /// What pod security allows to restricted pods.
    Restricted,
    /// It may change the network.
    NetAdmin,
    /// It may do everything.
    SysAdmin,
}

impl DebugProfile {
    /// Reads the name of one.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn parse(name: &str) -> Result<Self, ArgumentError> {
        Ok(match name {
            "legacy" => Self::Legacy,
            "general" => Self::General,
            "baseline" => Self::Baseline,
            "restricted" => Self::Restricted,
            "netadmin" => Self::NetAdmin,
            "sysadmin" => Self::SysAdmin,
            other => return Err(ArgumentError::new(format!("unknown profile: {other}"))),
        })
    }

    /// Sets the security context of a container of a pod.
    pub fn restrict(self, container: &mut Map<String, Value>) {
        match self {
            Self::Legacy => {}
            Self::General => add_capabilities(container, &["SYS_PTRACE"]),
            Self::Baseline => {
                container.remove("securityContext");
            }
            Self::Restricted => {
                let context = json!({
                    "runAsNonRoot": true,
                    "capabilities": {"drop": ["ALL"]},
                    "allowPrivilegeEscalation": false,
                    "seccompProfile": {"type": "RuntimeDefault"},
                });
                container.insert("securityContext".into(), context);
            }
            Self::NetAdmin => add_capabilities(container, &["NET_ADMIN", "NET_RAW"]),
            Self::SysAdmin => {
                if let Some(context) = map_of(container, "securityContext") {
                    context.insert("privileged".into(), json!(true));
                }
            }
        }
    }

    /// Whether the pod of a node is in its namespaces.
    fn shares_host(self) -> bool {
        !matches!(self, Self::Baseline | Self::Restricted)
    }

    /// Whether the pod of a node sees its files.
    fn mounts_host(self) -> bool {
        matches!(self, Self::Legacy | Self::General | Self::SysAdmin)
    }

    /// Whether a copy is no longer probed: what its container does may take long.
    fn removes_probes(self) -> bool {
        matches!(self, Self::General | Self::Baseline)
    }
}

/// The map of a field, which is made if it is missing.
fn map_of<'a>(
    parent: &'a mut Map<String, Value>,
    field: &str,
) -> Option<&'a mut Map<String, Value>> {
    parent.entry(field).or_insert_with(|| json!({})).as_object_mut()
}

fn add_capabilities(container: &mut Map<String, Value>, names: &[&str]) {
    let context = map_of(container, "securityContext");
    let Some(capabilities) = context.and_then(|context| map_of(context, "capabilities")) else {
        return;
    };
    let mut all = capabilities.get("add").and_then(Value::as_array).cloned().unwrap_or_default();
    all.extend(names.iter().map(|name| json!(name)));
    capabilities.insert("add".into(), Value::Array(all));
}

/// A pod of a node that sees all of it that the profile allows: its processes, its network, and its files below /host. The server ends its name.
pub fn node_pod(node: &str, mut container: Map<String, Value>, profile: DebugProfile) -> Value {
    container.insert("terminationMessagePolicy".into(), json!("File"));
    if profile != DebugProfile::General {
        // The host's namespaces are enough.
        profile.restrict(&mut container);
    }
    let mut spec = json!({
        "nodeName": node,
        "restartPolicy": "Never",
        "tolerations": [{"operator": "Exists"}],
    });
    if profile.shares_host() {
        for field in ["hostIPC", "hostNetwork", "hostPID"] {
            spec[field] = json!(true);
        }
    }
    if profile.mounts_host() {
        let mounts = json!([{"name": "host-root", "mountPath": "/host"}]);
        container.insert("volumeMounts".into(), mounts);
        spec["volumes"] = json!([{"name": "host-root", "hostPath": {"path": "/"}}]);
    }
    spec["containers"] = json!([container]);
    let mut pod = object("Pod", "v1", "");
    pod.insert("metadata".into(), json!({"generateName": format!("node-debugger-{node}-")}));
    pod.insert("spec".into(), spec);
    Value::Object(pod)
}

/// How a copy of a pod differs from it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CopyChanges {
    /// Name of the copy.
    pub name: String,
    /// Whether it runs on the node of the pod.
    pub same_node: bool,
    /// Whether its containers see each other's processes; as in the pod if not set.
    pub share_processes: Option<bool>,
    /// Images by the name of their container, none of them an init container; `*` is of those that are not named.
    pub images: Map<String, Value>,
    /// What is set in a container: in the one of this name, or in a new one.
    pub container: Option<Map<String, Value>>,
    /// What that container may do.
    pub profile: DebugProfile,
}

impl CopyChanges {
    /// Reads `CONTAINER=IMAGE,*=IMAGE`.
    ///
    /// # Errors
    /// When a part is not a pair, or has no image.
    pub fn parse_images(text: &str) -> Result<Map<String, Value>, ArgumentError> {
        let images = parse_pairs(text)?;
        match images.iter().find(|(_, image)| image.as_str() == Some("")) {
            Some((name, _)) => Err(ArgumentError::new(format!("no image for container {name}"))),
            None => Ok(images),
        }
    }

    /// The copy of `pod`: without its labels, so that no Service or workload counts it, and without containers for debugging.
    #[must_use]
    pub fn copy(&self, pod: &Value) -> Value {
        let mut spec = pod["spec"].as_object().cloned().unwrap_or_default();
        spec.remove("ephemeralContainers");
        if !self.same_node {
            spec.remove("nodeName");
        }
        if let Some(shared) = self.share_processes {
            spec.insert("shareProcessNamespace".into(), json!(shared));
        }
        let containers = spec.get_mut("containers").and_then(Value::as_array_mut);
        for one in containers.into_iter().flatten() {
            let named = one["name"].as_str().and_then(|name| self.images.get(name));
            if let Some(image) = named.or_else(|| self.images.get("*")) {
                one["image"] = image.clone();
            }
        }
        if let Some(changes) = &self.container {
            change_container(&mut spec, changes, self.profile);
            if self.profile != DebugProfile::Legacy {
                spec.entry("shareProcessNamespace").or_insert(json!(true));
            }
            if self.profile.removes_probes() {
                remove_probes(&mut spec);
            }
        }
        let mut copy = object("Pod", "v1", &self.name);
        if let Some(annotations) = pod.pointer("/metadata/annotations") {
            copy["metadata"]["annotations"] = annotations.clone();
        }
        copy.insert("spec".into(), Value::Object(spec));
        Value::Object(copy)
    }
}

/// The lists of a pod's spec with containers that a copy has.
const LISTS: [&str; 2] = ["containers", "initContainers"];

/// Whether a pod has a container, or an init container, of this name.
#[must_use]
pub fn has_container(pod: &Value, name: &str) -> bool {
    let all = LISTS.iter().filter_map(|list| pod["spec"][list].as_array()).flatten();
    all.into_iter().any(|one| one["name"] == name)
}

fn remove_probes(spec: &mut Map<String, Value>) {
    let containers = spec.get_mut("containers").and_then(Value::as_array_mut);
    for container in containers.into_iter().flatten().filter_map(Value::as_object_mut) {
        for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
            container.remove(probe);
        }
    }
}

/// Sets the fields of `changes` in the container of its name, or adds one; either may do what the profile says.
fn change_container(
    spec: &mut Map<String, Value>,
    changes: &Map<String, Value>,
    profile: DebugProfile,
) {
    let same = |one: &Value| one.get("name") == changes.get("name");
    let has_it = |list: &&str| {
        spec.get(*list).and_then(Value::as_array).is_some_and(|all| all.iter().any(same))
    };
    let list = LISTS.iter().copied().find(has_it);
    let containers = spec.get_mut(list.unwrap_or("containers")).and_then(Value::as_array_mut);
    let Some(containers) = containers else { return };
    let container = containers.iter_mut().find(|one| same(one)).and_then(Value::as_object_mut);
    let Some(container) = container else {
        let mut added = changes.clone();
        profile.restrict(&mut added);
        containers.push(Value::Object(added));
        return;
    };
    if changes.contains_key("command") {
        container.remove("args");
    }
    for (field, value) in changes {
        if field != "resources" {
            container.insert(field.clone(), value.clone());
        }
    }
    profile.restrict(container);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(value: Value) -> Map<String, Value> {
        serde_json::from_value(value).expect("a map")
    }

    fn pod() -> Value {
        json!({"kind": "Pod", "metadata": {"name": "p", "uid": "u", "labels": {"app": "web"}, "annotations": {"a": "b"},
                "ownerReferences": [{"uid": "o"}]},
            "spec": {"nodeName": "n1", "ephemeralContainers": [{"name": "debugger-1"}],
                "containers": [{"name": "app", "image": "i:1", "command": ["serve"], "args": ["-x"], "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                    "resources": {"requests": {"cpu": "1"}}}, {"name": "side", "image": "s:1"}]},
            "status": {"phase": "Running"}})
    }

    #[test]
    fn a_copy_is_no_pod_of_the_workload() {
        let copy = CopyChanges { name: "c".into(), ..CopyChanges::default() }.copy(&pod());
        assert_eq!(
            copy["metadata"],
            json!({"name": "c", "creationTimestamp": null, "annotations": {"a": "b"}})
        );
        let spec = copy["spec"].as_object().expect("a spec");
        assert_eq!(spec.keys().collect::<Vec<_>>(), ["containers"]);
        assert_eq!(copy.get("status"), None);
        let stays =
            CopyChanges { same_node: true, share_processes: Some(true), ..CopyChanges::default() };
        let spec = &stays.copy(&pod())["spec"];
        assert_eq!(
            (&spec["nodeName"], &spec["shareProcessNamespace"]),
            (&json!("n1"), &json!(true))
        );
    }

    #[test]
    fn images_are_of_named_containers_and_of_the_others() {
        let images = CopyChanges::parse_images("app=i:2,*=other").expect("pairs");
        let copy = CopyChanges { images, ..CopyChanges::default() }.copy(&pod());
        let images: Vec<_> = copy["spec"]["containers"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|one| one["image"].clone())
            .collect();
        assert_eq!(images, ["i:2", "other"]);
        for bad in ["app", "app="] {
            assert!(CopyChanges::parse_images(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_container_is_changed_or_added() {
        let copy = |container: Value| {
            CopyChanges { container: Some(map(container)), ..CopyChanges::default() }.copy(&pod())["spec"]["containers"].clone()
        };
        let changed = copy(
            json!({"name": "app", "command": ["sh"], "tty": true, "resources": {}, "env": [{"name": "A", "value": "3"}]}),
        );
        assert_eq!(
            changed[0],
            json!({"name": "app", "image": "i:1", "command": ["sh"], "tty": true, "resources": {"requests": {"cpu": "1"}},
                "env": [{"name": "A", "value": "3"}]}),
            "variables are replaced, as in kubectl"
        );
        let arguments = copy(json!({"name": "app", "args": ["-y"]}));
        assert_eq!(
            (&arguments[0]["command"], &arguments[0]["args"]),
            (&json!(["serve"]), &json!(["-y"]))
        );
        let first = json!({"name": "first", "image": "f:1"});
        let mut with_init = pod();
        with_init["spec"]["initContainers"] = json!([first]);
        assert!(has_container(&with_init, "first") && !has_container(&pod(), "first"));
        let container = Some(map(json!({"name": "first", "command": ["sh"]})));
        let images = CopyChanges::parse_images("*=other").expect("a pair");
        let spec =
            CopyChanges { container, images, ..CopyChanges::default() }.copy(&with_init)["spec"]
                .clone();
        assert_eq!(
            spec["initContainers"],
            json!([{"name": "first", "image": "f:1", "command": ["sh"]}])
        );
        assert_eq!(spec["containers"].as_array().map(Vec::len), Some(2));
        let added = copy(json!({"name": "debugger-1", "image": "d"}));
        assert_eq!((added.as_array().map(Vec::len), &added[2]["image"]), (Some(3), &json!("d")));
    }

    #[test]
    fn a_pod_of_a_node_sees_all_of_it() {
        let container = json!({"name": "debugger", "image": "i", "stdin": true});
        let pod = node_pod("n1", map(container), DebugProfile::Legacy);
        assert_eq!(pod["metadata"], json!({"generateName": "node-debugger-n1-"}));
        assert_eq!((&pod["kind"], &pod["apiVersion"]), (&json!("Pod"), &json!("v1")));
        let spec = &pod["spec"];
        for share in ["hostIPC", "hostNetwork", "hostPID"] {
            assert_eq!(spec[share], true, "{share}");
        }
        assert_eq!((&spec["nodeName"], &spec["restartPolicy"]), (&json!("n1"), &json!("Never")));
        assert_eq!(spec["volumes"], json!([{"name": "host-root", "hostPath": {"path": "/"}}]));
        let mounts = &spec["containers"][0]["volumeMounts"];
        assert_eq!(*mounts, json!([{"name": "host-root", "mountPath": "/host"}]));
        assert_eq!(spec["containers"][0]["stdin"], true);
        assert_eq!(spec["tolerations"], json!([{"operator": "Exists"}]));
    }

    #[test]
    fn a_profile_says_what_a_container_may_do() {
        let before = json!({"capabilities": {"add": ["X"]}});
        let restricted = json!({"runAsNonRoot": true, "capabilities": {"drop": ["ALL"]}, "allowPrivilegeEscalation": false,
            "seccompProfile": {"type": "RuntimeDefault"}});
        // The context of a container; of a node's pod whether it is in the node's namespaces and mounts its files; of a copy whether processes are
        // shared and probes stay.
        for (name, context, host, copy) in [
            ("legacy", Some(before.clone()), (true, true), (false, true)),
            (
                "general",
                Some(json!({"capabilities": {"add": ["X", "SYS_PTRACE"]}})),
                (true, true),
                (true, false),
            ),
            ("baseline", None, (false, false), (true, false)),
            ("restricted", Some(restricted), (false, false), (true, true)),
            (
                "netadmin",
                Some(json!({"capabilities": {"add": ["X", "NET_ADMIN", "NET_RAW"]}})),
                (true, false),
                (true, true),
            ),
            (
                "sysadmin",
                Some(json!({"capabilities": {"add": ["X"]}, "privileged": true})),
                (true, true),
                (true, true),
            ),
        ] {
            let profile = DebugProfile::parse(name).expect("a profile");
            let mut container = map(json!({"name": "c", "securityContext": before}));
            profile.restrict(&mut container);
            assert_eq!(container.get("securityContext"), context.as_ref(), "{name}");
            let spec = node_pod("n", map(json!({"name": "c"})), profile)["spec"].clone();
            let is_set = |field: &str| spec.get(field).is_some();
            assert_eq!((is_set("hostPID"), is_set("volumes")), host, "{name}");
            assert_eq!(is_set("hostNetwork"), is_set("hostIPC"), "{name}");
            assert_eq!(spec["containers"][0].get("volumeMounts").is_some(), host.1, "{name}");
            let mut probed = pod();
            probed["spec"]["containers"][1]["livenessProbe"] = json!({});
            let container = Some(map(json!({"name": "app"})));
            let changes = CopyChanges { container, profile, ..CopyChanges::default() };
            let spec = changes.copy(&probed)["spec"].clone();
            let probe = spec["containers"][1].get("livenessProbe").is_some();
            assert_eq!((spec["shareProcessNamespace"] == true, probe), copy, "{name}");
            let kept = CopyChanges { share_processes: Some(false), ..changes };
            assert_eq!(kept.copy(&probed)["spec"]["shareProcessNamespace"], false, "{name}");
        }
        assert!(DebugProfile::parse("x").is_err());
        let general = node_pod("n", map(json!({"name": "c"})), DebugProfile::General);
        assert_eq!(general["spec"]["containers"][0].get("securityContext"), None);
    }
}
