//! What a node's credentials are tried for: what belongs to others, and more rights.

use anyhow::Result;
use serde_json::{Value, json};

use super::certificates::request_for_masters;
use super::target::{DISK, SECRETS, Target};
use super::{Attempt, core, in_group, is_review_of_oneself, labels, own_review, within};

/// `uid` is that of the node, `there` that of the other node's pod.
pub fn attempts(t: &Target, (uid, there): &(String, String)) -> Result<Vec<Attempt<'static>>> {
    let mut all = objects_of_others(t);
    all.extend(references_of_others(&t.ns));
    all.extend(tokens(t, there));
    all.extend(leases_and_csi_nodes(t));
    all.extend(steering_of_pods(t));
    all.extend(mirrors_of_static_pods(t, uid));
    all.extend(more_rights(t)?);
    all.extend(ways_into_pods_and_nodes(t));
    all.extend(control_of_the_cluster(t));
    all.extend(what_others_join_by(t));
    Ok(all)
}

/// What the role of nodes has, by resource and verb, of objects that are not there. For the rest of the role the authorizer has rules of its own: Secrets,
/// ConfigMaps, claims, volumes, tokens, Leases. Where hosts join, orch-proxy shows the node's certificate.
pub fn has(t: &Target, resource: &str, verb: &str) -> bool {
    let (reads, writes) = (["get", "list", "watch"], ["create", "update", "patch"]);
    let is_proxy = t.join_token.is_some();
    match resource {
        "endpoints" | "discovery/endpointslices"
            if is_proxy && matches!(verb, "list" | "watch") =>
        {
            true
        }
        "events/events" => is_proxy && writes.contains(&verb),
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
fn objects_of_others(t: &Target) -> Vec<Attempt<'static>> {
    let none = || Value::Null;
    let core = |rest: &str| core(&t.named(rest));
    let here = |rest: &str| within(&t.ns, rest);
    let image = json!({"spec": {"containers": [{"name": "main", "image": "other"}]}});
    let another = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "another"}});
    let event = json!({
        "metadata": {"generateName": "own"}, "reason": "Tried",
        "involvedObject": {"kind": "Pod", "namespace": t.ns, "name": "here"},
    });
    vec![
        ("GET", here("secrets/ours"), none(), 200),
        ("GET", core("nodes/OWN"), none(), 200),
        ("GET", core("pods?fieldSelector=spec.nodeName%3DOWN"), none(), 200),
        // As in Kubernetes a node may write any Event: it reads and removes none.
        ("POST", here("events"), event, 201),
        ("GET", here("events"), none(), 403),
        ("DELETE", here("events"), none(), 403),
        ("GET", within(t.names.system_namespace(), "configmaps"), none(), 403),
        ("PATCH", core("nodes/OTHER/status"), json!({"status": {"phase": "x"}}), 403),
        ("PATCH", core("nodes/OTHER"), labels("a"), 403),
        ("DELETE", core("nodes/OTHER"), none(), 403),
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

fn tokens(t: &Target, there: &str) -> Vec<Attempt<'static>> {
    let of = |account: &str| within(&t.ns, &format!("serviceaccounts/{account}/token"));
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
        ("POST", of("default"), to("Node", &t.other, ""), 403),
        ("POST", of("default"), to("Node", &t.own, ""), 403),
        ("POST", of("default"), to("Secret", "theirs", "x"), 403),
        ("POST", of("other"), to("Pod", "here", there), 403),
        ("GET", within(&t.ns, "serviceaccounts/default"), Value::Null, 403),
    ]
}

fn leases_and_csi_nodes(t: &Target) -> Vec<Attempt<'static>> {
    let none = || Value::Null;
    let of_nodes = t.names.node_lease_namespace();
    let leases = |namespace: &str, rest: &str| {
        in_group(t.names, "coordination", &t.named(&format!("namespaces/{namespace}/leases{rest}")))
    };
    let csi = |rest: &str| in_group(t.names, "storage", &t.named(&format!("csinodes{rest}")));
    let named = |name: &str| json!({"metadata": {"name": name}, "spec": {}});
    let csi_node = json!({"metadata": {"name": t.other}, "spec": {"drivers": []}});
    let held = json!({"spec": {"holderIdentity": "x"}});
    vec![
        ("GET", leases(of_nodes, "/OWN"), none(), 200),
        ("GET", leases(of_nodes, "/OTHER"), none(), 403),
        ("GET", leases(of_nodes, ""), none(), 403),
        ("POST", leases(of_nodes, ""), named(&t.other), 403),
        ("PUT", leases(of_nodes, "/OTHER"), named(&t.other), 403),
        ("APPLY", leases(of_nodes, "/OTHER?fieldManager=n"), named(&t.other), 403),
        ("PATCH", leases(of_nodes, "/OTHER"), held.clone(), 403),
        ("DELETE", leases(of_nodes, "/OTHER"), none(), 403),
        ("DELETE", leases(of_nodes, ""), none(), 403),
        // Those by which controllers elect a leader.
        ("POST", leases(t.names.system_namespace(), ""), named(&t.own), 403),
        ("GET", leases(t.names.system_namespace(), ""), none(), 403),
        (
            "PATCH",
            leases(t.names.system_namespace(), &format!("/{}", t.names.component("scheduler"))),
            held,
            403,
        ),
        ("GET", csi("/OTHER"), none(), 403),
        ("GET", csi(""), none(), 403),
        ("POST", csi(""), csi_node.clone(), 403),
        ("PUT", csi("/OTHER"), csi_node.clone(), 403),
        ("APPLY", csi("/OTHER?fieldManager=n"), csi_node.clone(), 403),
        ("PATCH", csi("/OTHER"), csi_node, 403),
        ("DELETE", csi("/OTHER"), none(), 403),
        ("DELETE", csi(""), none(), 403),
        ("GET", in_group(t.names, "storage", "volumeattachments"), none(), 403),
    ]
}

/// Labels, taints and owners decide which pods a node gets.
fn steering_of_pods(t: &Target) -> Vec<Attempt<'static>> {
    let core = |rest: &str| core(&t.named(rest));
    let here = |rest: &str| within(&t.ns, rest);
    let taint = json!({"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}});
    let none_left = json!({"spec": {"taints": null}, "metadata": {"labels": null}});
    let absent = json!({"apiVersion": "v1", "kind": "Namespace", "name": "gone", "uid": "1"});
    let owner = json!({"metadata": {"ownerReferences": [absent]}});
    let restricted = t.names.sub_label("node-restriction", "secure");
    let role = t.names.sub_label("node-role", "control-plane");
    let target = json!({"metadata": {"name": "here"}, "target": {"name": t.own}});
    vec![
        ("PATCH", core("nodes/OWN"), labels(restricted.clone()), 403),
        ("PATCH", core("nodes/OWN/status"), labels(restricted), 403),
        ("PATCH", core("nodes/OWN"), labels(role), 403),
        ("PATCH", core("nodes/OWN"), taint, 403),
        ("PATCH", core("nodes/OTHER"), none_left, 403),
        ("PATCH", core("nodes/OWN"), owner, 403),
        ("DELETE", core("nodes/OWN"), Value::Null, 403),
        ("PATCH", here("pods/here/status"), labels("app"), 403),
        ("PATCH", here("pods/here"), labels("app"), 403),
        ("POST", here("pods/here/binding"), target.clone(), 403),
        ("POST", here("bindings"), target, 403),
        ("PATCH", here("pods/here/ephemeralcontainers"), json!({"spec": {}}), 403),
        ("PATCH", here("pods/there/ephemeralcontainers"), json!({"spec": {}}), 403),
    ]
}

/// Pods of its own making: mirrors of static pods, and what is not one.
fn mirrors_of_static_pods(t: &Target, uid: &str) -> Vec<Attempt<'static>> {
    let owner = json!({
        "apiVersion": "v1", "kind": "Node", "name": t.own, "uid": uid, "controller": true,
    });
    let but = |field: &str, value: &str| {
        let mut owner = owner.clone();
        owner[field] = value.into();
        json!([owner])
    };
    let pod = |node: &str, mirror: bool, owners: Value, volumes: Value| {
        let annotations =
            if mirror { json!({t.names.label("config.mirror"): "x"}) } else { json!({}) };
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
        let mut pod = pod(&t.own, true, own(), json!([]));
        pod["spec"][field] = value;
        pod
    };
    let volume = |source: Value| {
        let mut volume = source;
        volume["name"] = "s".into();
        pod(&t.own, true, own(), json!([volume]))
    };
    let projected = json!({"projected": {"sources": [{"secret": {"name": "projected"}}]}});
    let variable =
        json!([{"name": "c", "image": "i", "envFrom": [{"secretRef": {"name": "variable"}}]}]);
    [
        pod(&t.own, false, own(), json!([])),
        pod(&t.other, true, own(), json!([])),
        // A mirror that its Node does not own would be counted by a controller.
        pod(&t.own, true, json!([]), json!([])),
        pod(&t.own, true, but("kind", "ReplicaSet"), json!([])),
        pod(&t.own, true, but("name", &t.other), json!([])),
        pod(&t.own, true, but("uid", "x"), json!([])),
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
    .map(|pod| ("POST", within(&t.ns, "pods"), pod, 403))
    .collect()
}

/// Roles, accounts, certificates.
fn more_rights(t: &Target) -> Result<Vec<Attempt<'static>>> {
    let none = || Value::Null;
    let here = |rest: &str| within(&t.ns, rest);
    let rbac = t.names.group("rbac.authorization");
    let role = json!({"kind": "ClusterRole", "name": "cluster-admin", "apiGroup": rbac});
    let subject = json!({"kind": "Group", "name": "system:nodes", "apiGroup": rbac});
    let binding = json!({"metadata": {"name": "more"}, "roleRef": role, "subjects": [subject]});
    let all = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
    let roles = |rest: &str| in_group(t.names, "rbac.authorization", rest);
    let requests = |rest: &str| {
        in_group(t.names, "certificates", &format!("certificatesigningrequests{rest}"))
    };
    let (review, attributes) = own_review(t.names);
    Ok(vec![
        ("POST", roles("clusterrolebindings"), binding.clone(), 403),
        ("POST", roles(&format!("namespaces/{}/rolebindings", t.ns)), binding, 403),
        ("PATCH", roles("clusterroles/system:node"), json!({"rules": all}), 403),
        ("GET", roles("clusterroles"), none(), 403),
        ("POST", here("serviceaccounts"), json!({"metadata": {"name": "mine"}}), 403),
        // Nobody may ask to be an administrator.
        ("POST", requests(""), request_for_masters(t.names)?, 403),
        ("PUT", requests("/masters/approval"), json!({}), 403),
        ("PUT", requests("/masters/status"), json!({}), 403),
        ("DELETE", requests("/masters"), none(), 403),
        ("DELETE", requests(""), none(), 403),
        ("POST", review, attributes, 201),
    ])
}

fn ways_into_pods_and_nodes(t: &Target) -> Vec<Attempt<'static>> {
    let mut all = Vec::new();
    for node in [&t.own, &t.other] {
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
            all.push((method, within(&t.ns, &format!("pods/{pod}/{way}")), Value::Null, 403));
        }
    }
    all.push(("GET", within(&t.ns, "services/a/proxy/"), Value::Null, 403));
    all.push(("GET", "/metrics".to_owned(), Value::Null, 403));
    all
}

/// Objects by which others, or the server itself, do what a node wants.
fn control_of_the_cluster(t: &Target) -> Vec<Attempt<'static>> {
    let ns = t.ns.as_str();
    let named = || json!({"metadata": {"name": "mine"}});
    let within_group =
        |group: &str, rest: &str| in_group(t.names, group, &format!("namespaces/{ns}/{rest}"));
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
        in_group(t.names, "admissionregistration", "mutatingwebhookconfigurations"),
        in_group(t.names, "apiregistration", "apiservices"),
        in_group(t.names, "apiextensions", "customresourcedefinitions"),
        in_group(t.names, "scheduling", "priorityclasses"),
        in_group(t.names, "storage", "volumeattachments"),
        in_group(t.names, "storage", "storageclasses"),
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

/// What hosts find the cluster and its authority by, and what the API server trusts others by.
fn what_others_join_by(t: &Target) -> Vec<Attempt<'static>> {
    let none = || Value::Null;
    let (system, public) = (t.names.system_namespace(), t.names.public_namespace());
    let map = |name: &str| within(system, &format!("configmaps/{name}"));
    let info = || within(public, "configmaps/cluster-info");
    let config = format!("{}-config", t.names.component("adm"));
    let authority = json!({"data": {"kubeconfig": "{}"}});
    let mut all = vec![
        ("PATCH", info(), authority.clone(), 403),
        ("DELETE", info(), none(), 403),
        ("GET", within(system, "secrets"), none(), 403),
        (
            "POST",
            within(system, "secrets"),
            json!({"metadata": {"name": "bootstrap-token-mine00"}}),
            403,
        ),
        ("GET", map("extension-apiserver-authentication"), none(), 403),
        ("PATCH", map("extension-apiserver-authentication"), authority.clone(), 403),
        ("PATCH", map(&config), authority, 403),
    ];
    if let Some((id, _)) = t.join_token.as_deref().and_then(|token| token.split_once('.')) {
        let secret = within(system, &format!("secrets/bootstrap-token-{id}"));
        all.push(("GET", secret.clone(), none(), 403));
        all.push(("DELETE", secret, none(), 403));
        // A node reads how its cluster is configured, nothing secret.
        all.push(("GET", map(&config), none(), 200));
    }
    all
}
