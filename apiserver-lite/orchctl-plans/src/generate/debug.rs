//! Pods of `debug`.

use serde_json::{Map, Value, json};

use super::{object, parse_pairs};
use crate::ArgumentError;

/// Name of a debugging container that is alone in its pod.
pub const DEBUGGER: &str = "debugger";

/// A pod that sees all of a node: its processes, its network, and its files below /host. The server ends its name.
pub fn node_pod(node: &str, mut container: Map<String, Value>) -> Value {
    container.insert("terminationMessagePolicy".into(), json!("File"));
    container.insert("volumeMounts".into(), json!([{"name": "host-root", "mountPath": "/host"}]));
    let mut pod = object("Pod", "v1", "");
    pod.insert("metadata".into(), json!({"generateName": format!("node-debugger-{node}-")}));
    let spec = json!({
        "nodeName": node,
        "hostIPC": true,
        "hostNetwork": true,
        "hostPID": true,
        "restartPolicy": "Never",
        "tolerations": [{"operator": "Exists"}],
        "volumes": [{"name": "host-root", "hostPath": {"path": "/"}}],
        "containers": [container],
    });
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
            change_container(&mut spec, changes);
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

/// Sets the fields of `changes` in the container of its name, or adds one.
fn change_container(spec: &mut Map<String, Value>, changes: &Map<String, Value>) {
    let same = |one: &Value| one.get("name") == changes.get("name");
    let has_it = |list: &&str| {
        spec.get(*list).and_then(Value::as_array).is_some_and(|all| all.iter().any(same))
    };
    let list = LISTS.iter().copied().find(has_it);
    let containers = spec.get_mut(list.unwrap_or("containers")).and_then(Value::as_array_mut);
    let Some(containers) = containers else { return };
    let container = containers.iter_mut().find(|one| same(one)).and_then(Value::as_object_mut);
    let Some(container) = container else {
        containers.push(Value::Object(changes.clone()));
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
        let pod = node_pod("n1", serde_json::from_value(container).expect("a map"));
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
}
