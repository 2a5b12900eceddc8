//! What a node's credentials are tried for: what belongs to others, and more rights.

use anyhow::Result;
use serde_json::{Value, json};

use super::{
    Attempt, DISK, SECRETS, core, in_group, is_review_of_oneself, labels, own_review,
    request_for_masters, within,
};
use crate::context::Context;

/// `uid` is that of the node, `there` that of the other node's pod.
pub fn attempts(
    c: &Context,
    ns: &str,
    (uid, there): (&str, &str),
) -> Result<Vec<Attempt<'static>>> {
    let mut all = objects_of_others(c, ns);
    all.extend(references_of_others(ns));
    all.extend(tokens(ns, there));
    all.extend(leases_and_csi_nodes(c));
    all.extend(steering_of_pods(c, ns));
    all.extend(mirrors_of_static_pods(c, ns, uid));
    all.extend(more_rights(c, ns)?);
    all.extend(ways_into_pods_and_nodes(ns));
    all.extend(control_of_the_cluster(c, ns));
    Ok(all)
}

/// What the role of nodes has, by resource and verb, of objects that are not there. For the rest of the role the authorizer has rules of its own: Secrets,
/// ConfigMaps, claims, volumes, tokens, Leases.
pub fn has(resource: &str, verb: &str) -> bool {
    let (reads, writes) = (["get", "list", "watch"], ["create", "update", "patch"]);
    match resource {
        "nodes" => reads.contains(&verb) || writes.contains(&verb),
        "pods" => reads.contains(&verb) || matches!(verb, "create" | "delete"),
        "services" | "storage/csidrivers" | "node/runtimeclasses" => reads.contains(&verb),
        "certificates/certificatesigningrequests" => reads.contains(&verb) || verb == "create",
        "events" => writes.contains(&verb),
        "nodes/status" | "pods/status" => matches!(verb, "update" | "patch"),
        "endpoints" => verb == "get",
        "pods/eviction"
        | "storage/csinodes"
        | "authentication/tokenreviews"
        | "authorization/subjectaccessreviews"
        | "authorization/localsubjectaccessreviews" => verb == "create",
        other => is_review_of_oneself(other),
    }
}

/// What a node needs, and what belongs to others.
fn objects_of_others(c: &Context, ns: &str) -> Vec<Attempt<'static>> {
    let none = || Value::Null;
    let here = |rest: &str| within(ns, rest);
    let image = json!({"spec": {"containers": [{"name": "main", "image": "other"}]}});
    let another = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "another"}});
    let event = json!({
        "metadata": {"generateName": "own"}, "reason": "Tried",
        "involvedObject": {"kind": "Pod", "namespace": ns, "name": "here"},
    });
    vec![
        ("GET", here("secrets/ours"), none(), 200),
        ("GET", core("nodes/node-1"), none(), 200),
        ("GET", core("pods?fieldSelector=spec.nodeName%3Dnode-1"), none(), 200),
        // As in Kubernetes a node may write any Event: it reads and removes none.
        ("POST", here("events"), event, 201),
        ("GET", here("events"), none(), 403),
        ("DELETE", here("events"), none(), 403),
        ("GET", within(c.names.system_namespace(), "configmaps"), none(), 403),
        ("PATCH", core("nodes/elsewhere/status"), json!({"status": {"phase": "x"}}), 403),
        ("PATCH", core("nodes/elsewhere"), labels("a"), 403),
        ("DELETE", core("nodes/elsewhere"), none(), 403),
        ("DELETE", core("nodes"), none(), 403),
        ("POST", core("nodes"), json!({"metadata": {"name": "another"}}), 403),
        ("APPLY", core("nodes/another?fieldManager=n"), another, 403),
        ("PATCH", here("pods/there/status"), json!({"status": {"message": "x"}}), 403),
        ("PATCH", here("pods/there"), image.clone(), 403),
        ("PATCH", here("pods/here"), image, 403),
        ("DELETE", here("pods/there"), none(), 403),
        ("DELETE", here("pods"), none(), 403),
        ("POST", here("pods/there/eviction"), json!({"metadata": {"name": "there"}}), 403),
    ]
}

/// What the other node's pod refers to, in every way that there is.
fn references_of_others(ns: &str) -> Vec<Attempt<'static>> {
    let none = || Value::Null;
    let here = |rest: &str| within(ns, rest);
    let capacity = json!({"status": {"capacity": {"storage": "9Gi"}}});
    let reads = |what: &str| {
        [
            ("GET", here(what), none(), 403),
            ("GET", here(&selected(what)), none(), 403),
            ("GET", here(&format!("{}&watch=1", selected(what))), none(), 403),
        ]
    };
    let mut all: Vec<Attempt<'static>> =
        SECRETS.iter().flat_map(|name| reads(&format!("secrets/{name}"))).collect();
    all.extend(reads("configmaps/theirs"));
    all.extend(reads("persistentvolumeclaims/data"));
    all.extend([
        ("GET", here("secrets"), none(), 403),
        ("GET", core("secrets"), none(), 403),
        ("GET", here("secrets?watch=1"), none(), 403),
        ("GET", here("secrets?fieldSelector=metadata.name!%3Dours"), none(), 403),
        ("PATCH", here("secrets/ours"), labels("a"), 403),
        ("DELETE", here("secrets/ours"), none(), 403),
        ("POST", here("secrets"), json!({"metadata": {"name": "mine"}}), 403),
        ("PATCH", here("persistentvolumeclaims/data/status"), capacity, 403),
        ("GET", core(&format!("persistentvolumes/{DISK}")), none(), 403),
        ("GET", core("persistentvolumes"), none(), 403),
    ]);
    all
}

/// The list that has one object, `secrets/a` for example.
fn selected(what: &str) -> String {
    let (resource, name) = what.split_once('/').unwrap_or((what, ""));
    format!("{resource}?fieldSelector=metadata.name%3D{name}")
}

fn tokens(ns: &str, there: &str) -> Vec<Attempt<'static>> {
    let of = |account: &str| within(ns, &format!("serviceaccounts/{account}/token"));
    let to = |kind: &str, name: &str, uid: &str| {
        let bound = json!({"kind": kind, "apiVersion": "v1", "name": name, "uid": uid});
        json!({"spec": {"boundObjectRef": bound}})
    };
    vec![
        ("POST", of("default"), json!({}), 403),
        ("POST", of("default"), to("Pod", "there", ""), 403),
        ("POST", of("default"), to("Pod", "there", there), 403),
        // Another pod's uid with the name of its own, and the other way round.
        ("POST", of("default"), to("Pod", "here", there), 409),
        ("POST", of("default"), to("Pod", "absent", there), 404),
        ("POST", of("default"), to("Node", "elsewhere", ""), 403),
        ("POST", of("default"), to("Node", "node-1", ""), 403),
        ("POST", of("default"), to("Secret", "theirs", "x"), 403),
        ("POST", of("other"), to("Pod", "here", there), 403),
        ("GET", within(ns, "serviceaccounts/default"), Value::Null, 403),
    ]
}

fn leases_and_csi_nodes(c: &Context) -> Vec<Attempt<'static>> {
    let none = || Value::Null;
    let of_nodes = c.names.node_lease_namespace();
    let leases = |namespace: &str, rest: &str| {
        in_group(c, "coordination", &format!("namespaces/{namespace}/leases{rest}"))
    };
    let csi = |rest: &str| in_group(c, "storage", &format!("csinodes{rest}"));
    let named = |name: &str| json!({"metadata": {"name": name}, "spec": {}});
    let csi_node = json!({"metadata": {"name": "elsewhere"}, "spec": {"drivers": []}});
    let held = json!({"spec": {"holderIdentity": "x"}});
    vec![
        ("GET", leases(of_nodes, "/node-1"), none(), 200),
        ("GET", leases(of_nodes, "/elsewhere"), none(), 403),
        ("GET", leases(of_nodes, ""), none(), 403),
        ("POST", leases(of_nodes, ""), named("elsewhere"), 403),
        ("PUT", leases(of_nodes, "/elsewhere"), named("elsewhere"), 403),
        ("APPLY", leases(of_nodes, "/elsewhere?fieldManager=n"), named("elsewhere"), 403),
        ("PATCH", leases(of_nodes, "/elsewhere"), held.clone(), 403),
        ("DELETE", leases(of_nodes, "/elsewhere"), none(), 403),
        ("DELETE", leases(of_nodes, ""), none(), 403),
        // Those by which controllers elect a leader.
        ("POST", leases(c.names.system_namespace(), ""), named("node-1"), 403),
        ("GET", leases(c.names.system_namespace(), ""), none(), 403),
        (
            "PATCH",
            leases(c.names.system_namespace(), &format!("/{}", c.names.component("scheduler"))),
            held,
            403,
        ),
        ("GET", csi("/elsewhere"), none(), 403),
        ("GET", csi(""), none(), 403),
        ("POST", csi(""), csi_node.clone(), 403),
        ("PUT", csi("/elsewhere"), csi_node.clone(), 403),
        ("APPLY", csi("/elsewhere?fieldManager=n"), csi_node.clone(), 403),
        ("PATCH", csi("/elsewhere"), csi_node, 403),
        ("DELETE", csi("/elsewhere"), none(), 403),
        ("DELETE", csi(""), none(), 403),
        ("GET", in_group(c, "storage", "volumeattachments"), none(), 403),
    ]
}

/// Labels, taints and owners decide which pods a node gets.
fn steering_of_pods(c: &Context, ns: &str) -> Vec<Attempt<'static>> {
    let here = |rest: &str| within(ns, rest);
    let taint = json!({"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}});
    let none_left = json!({"spec": {"taints": null}, "metadata": {"labels": null}});
    let absent = json!({"apiVersion": "v1", "kind": "Namespace", "name": "gone", "uid": "1"});
    let owner = json!({"metadata": {"ownerReferences": [absent]}});
    let restricted = c.names.sub_label("node-restriction", "secure");
    let role = c.names.sub_label("node-role", "control-plane");
    let target = json!({"metadata": {"name": "here"}, "target": {"name": "node-1"}});
    vec![
        ("PATCH", core("nodes/node-1"), labels(restricted.clone()), 403),
        ("PATCH", core("nodes/node-1/status"), labels(restricted), 403),
        ("PATCH", core("nodes/node-1"), labels(role), 403),
        ("PATCH", core("nodes/node-1"), taint, 403),
        ("PATCH", core("nodes/elsewhere"), none_left, 403),
        ("PATCH", core("nodes/node-1"), owner, 403),
        ("DELETE", core("nodes/node-1"), Value::Null, 403),
        ("PATCH", here("pods/here/status"), labels("app"), 403),
        ("PATCH", here("pods/here"), labels("app"), 403),
        ("POST", here("pods/here/binding"), target.clone(), 403),
        ("POST", here("bindings"), target, 403),
        ("PATCH", here("pods/here/ephemeralcontainers"), json!({"spec": {}}), 403),
        ("PATCH", here("pods/there/ephemeralcontainers"), json!({"spec": {}}), 403),
    ]
}

/// Pods of its own making: mirrors of static pods, and what is not one.
fn mirrors_of_static_pods(c: &Context, ns: &str, uid: &str) -> Vec<Attempt<'static>> {
    let owner = json!({
        "apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": uid, "controller": true,
    });
    let but = |field: &str, value: &str| {
        let mut owner = owner.clone();
        owner[field] = value.into();
        json!([owner])
    };
    let pod = |node: &str, mirror: bool, owners: Value, volumes: Value| {
        let annotations =
            if mirror { json!({c.names.label("config.mirror"): "x"}) } else { json!({}) };
        let container = json!({"name": "c", "image": "i"});
        json!({
            "metadata": {"name": "made", "annotations": annotations, "ownerReferences": owners},
            "spec": {
                "nodeName": node, "containers": [container], "volumes": volumes,
                "automountServiceAccountToken": false, "enableServiceLinks": false,
            },
        })
    };
    let own = || json!([owner]);
    let with = |field: &str, value: Value| {
        let mut pod = pod("node-1", true, own(), json!([]));
        pod["spec"][field] = value;
        pod
    };
    let volume = |source: Value| {
        let mut volume = source;
        volume["name"] = "s".into();
        pod("node-1", true, own(), json!([volume]))
    };
    let projected = json!({"projected": {"sources": [{"secret": {"name": "projected"}}]}});
    let variable =
        json!([{"name": "c", "image": "i", "envFrom": [{"secretRef": {"name": "variable"}}]}]);
    [
        pod("node-1", false, own(), json!([])),
        pod("elsewhere", true, own(), json!([])),
        // A mirror that its Node does not own would be counted by a controller.
        pod("node-1", true, json!([]), json!([])),
        pod("node-1", true, but("kind", "ReplicaSet"), json!([])),
        pod("node-1", true, but("name", "elsewhere"), json!([])),
        pod("node-1", true, but("uid", "x"), json!([])),
        volume(json!({"secret": {"secretName": "theirs"}})),
        volume(json!({"configMap": {"name": "theirs"}})),
        volume(json!({"persistentVolumeClaim": {"claimName": "data"}})),
        volume(projected),
        with("containers", variable.clone()),
        with("initContainers", variable),
        with("imagePullSecrets", json!([{"name": "pulled"}])),
        with("serviceAccountName", "other".into()),
    ]
    .into_iter()
    .map(|pod| ("POST", within(ns, "pods"), pod, 403))
    .collect()
}

/// Roles, accounts, certificates.
fn more_rights(c: &Context, ns: &str) -> Result<Vec<Attempt<'static>>> {
    let none = || Value::Null;
    let here = |rest: &str| within(ns, rest);
    let rbac = c.names.group("rbac.authorization");
    let role = json!({"kind": "ClusterRole", "name": "cluster-admin", "apiGroup": rbac});
    let subject = json!({"kind": "Group", "name": "system:nodes", "apiGroup": rbac});
    let binding = json!({"metadata": {"name": "more"}, "roleRef": role, "subjects": [subject]});
    let all = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
    let roles = |rest: &str| in_group(c, "rbac.authorization", rest);
    let requests =
        |rest: &str| in_group(c, "certificates", &format!("certificatesigningrequests{rest}"));
    let (review, attributes) = own_review(c);
    Ok(vec![
        ("POST", roles("clusterrolebindings"), binding.clone(), 403),
        ("POST", roles(&format!("namespaces/{ns}/rolebindings")), binding, 403),
        ("PATCH", roles("clusterroles/system:node"), json!({"rules": all}), 403),
        ("GET", roles("clusterroles"), none(), 403),
        ("POST", here("serviceaccounts"), json!({"metadata": {"name": "mine"}}), 403),
        // Nobody may ask to be an administrator.
        ("POST", requests(""), request_for_masters(c)?, 403),
        ("PUT", requests("/masters/approval"), json!({}), 403),
        ("PUT", requests("/masters/status"), json!({}), 403),
        ("DELETE", requests("/masters"), none(), 403),
        ("DELETE", requests(""), none(), 403),
        ("POST", review, attributes, 201),
    ])
}

fn ways_into_pods_and_nodes(ns: &str) -> Vec<Attempt<'static>> {
    let mut all = Vec::new();
    for node in ["node-1", "elsewhere"] {
        for way in ["", "/pods", "/metrics", "/logs/", "/exec/a/b/c?command=id"] {
            all.push(("GET", core(&format!("nodes/{node}/proxy{way}")), Value::Null, 403));
        }
        all.push(("POST", core(&format!("nodes/{node}/proxy/run/a/b/c")), Value::Null, 403));
    }
    for pod in ["here", "there"] {
        for (method, way) in [
            ("GET", "log"),
            ("POST", "exec?command=id"),
            ("GET", "exec?command=id"),
            ("POST", "attach"),
            ("POST", "portforward"),
            ("GET", "proxy/"),
            ("POST", "proxy/"),
        ] {
            all.push((method, within(ns, &format!("pods/{pod}/{way}")), Value::Null, 403));
        }
    }
    all.push(("GET", within(ns, "services/a/proxy/"), Value::Null, 403));
    all.push(("GET", "/metrics".to_owned(), Value::Null, 403));
    all
}

/// Objects by which others, or the server itself, do what a node wants.
fn control_of_the_cluster(c: &Context, ns: &str) -> Vec<Attempt<'static>> {
    let named = || json!({"metadata": {"name": "mine"}});
    let within_group =
        |group: &str, rest: &str| in_group(c, group, &format!("namespaces/{ns}/{rest}"));
    [
        core("namespaces"),
        core("persistentvolumes"),
        within(ns, "services"),
        within(ns, "endpoints"),
        within(ns, "configmaps"),
        within_group("discovery", "endpointslices"),
        within_group("apps", "daemonsets"),
        within_group("apps", "deployments"),
        within_group("batch", "jobs"),
        in_group(c, "admissionregistration", "mutatingwebhookconfigurations"),
        in_group(c, "apiregistration", "apiservices"),
        in_group(c, "apiextensions", "customresourcedefinitions"),
        in_group(c, "scheduling", "priorityclasses"),
        in_group(c, "storage", "volumeattachments"),
        in_group(c, "storage", "storageclasses"),
    ]
    .into_iter()
    .flat_map(|path| {
        let one = format!("{path}/mine");
        [
            ("POST", path.clone(), named(), 403),
            ("PATCH", one.clone(), labels("a"), 403),
            ("DELETE", one, Value::Null, 403),
            ("DELETE", path, Value::Null, 403),
        ]
    })
    .chain([
        ("PATCH", core(&format!("namespaces/{ns}")), labels("a"), 403),
        ("PATCH", core(&format!("namespaces/{ns}/status")), labels("a"), 403),
        ("DELETE", core(&format!("namespaces/{ns}")), Value::Null, 403),
    ])
    .collect()
}
