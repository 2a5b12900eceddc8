//! Pods of `debug`.

use serde_json::{Map, Value, json};

use super::object;

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

#[cfg(test)]
mod tests {
    use super::*;

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
