//! The access of a cluster besides what every API server grants: who reaches nodes, and who joins as a node, as in a cluster that kubeadm has made. Values
//! only.

use std::net::IpAddr;

use proto_api::core::v1::Service;
use proto_api::names::Names;
use proto_client::Client;
use serde_json::Value;

use crate::apply::apply;
use crate::bootstrap_token::TokenSpec;
use crate::certificates::NODE_CLIENT;
use crate::cluster_info;
use crate::error::BootstrapError;

/// The group of all nodes.
const NODES: &str = "system:nodes";

/// The group of the tokens with which nodes join.
pub fn join_group(names: &Names) -> String {
    format!("system:bootstrappers:{}:default-node-token", names.component("adm"))
}

/// The bindings of every cluster, as manifests.
pub fn bindings(names: &Names) -> String {
    let (adm, kubelet) = (names.component("adm"), names.component("let"));
    let requests = format!("system:{}:certificatesigningrequests", names.group("certificates"));
    let join = Subject::Group(join_group(names));
    let nodes = Subject::Group(NODES.to_owned());
    [
        // Logs, commands and ports of pods: nodes authorize them by a SubjectAccessReview.
        cluster_binding(
            names,
            NODE_CLIENT,
            &format!("system:{kubelet}-api-admin"),
            &Subject::User(names.user(NODE_CLIENT)),
        ),
        // A machine that joins requests its first certificate, which is approved without a person ...
        cluster_binding(
            names,
            &format!("{adm}:{kubelet}-bootstrap"),
            "system:node-bootstrapper",
            &join,
        ),
        cluster_binding(
            names,
            &format!("{adm}:node-autoapprove-bootstrap"),
            &format!("{requests}:nodeclient"),
            &join,
        ),
        // ... and later renews it.
        cluster_binding(
            names,
            &format!("{adm}:node-autoapprove-certificate-rotation"),
            &format!("{requests}:selfnodeclient"),
            &nodes,
        ),
    ]
    .join("---\n")
}

/// The access of a cluster whose machines have no disk in common, as manifests: who is unknown reads `cluster-info`; who joins reads the cluster's
/// configuration; the proxy of a node shows the node's certificate.
pub fn host_access(names: &Names) -> String {
    let adm = names.component("adm");
    let (public, system) = (names.public_namespace(), names.system_namespace());
    let join = Subject::Group(join_group(names));
    let nodes = Subject::Group(NODES.to_owned());
    let info = format!("{adm}:bootstrap-signer-clusterinfo");
    let config = format!("{adm}:nodes-{}", configuration_name(names));
    [
        reader(names, public, &info, cluster_info::NAME),
        binding(names, public, &info, &[Subject::User("system:anonymous".to_owned())]),
        reader(names, system, &config, &configuration_name(names)),
        binding(names, system, &config, &[join.clone(), nodes.clone()]),
        // A machine that joins looks whether its name is taken.
        format!(
            "apiVersion: {group}/v1\nkind: ClusterRole\nmetadata: {{name: {adm:?}}}\nrules:\n- {{apiGroups: [\"\"], resources: [nodes], verbs: [get]}}\n",
            group = names.group("rbac"),
            adm = format!("{adm}:get-nodes"),
        ),
        cluster_binding(
            names,
            &format!("{adm}:get-nodes"),
            &format!("{adm}:get-nodes"),
            &join,
        ),
        cluster_binding(names, &format!("{adm}:node-proxier"), "system:node-proxier", &nodes),
    ]
    .join("---\n")
}

/// The ConfigMap with the cluster's configuration, in the system's namespace.
pub fn configuration_name(names: &Names) -> String {
    format!("{}-config", names.component("adm"))
}

/// The Service of the cluster DNS. It has no endpoints of its own: on each node orch-proxy answers.
pub fn dns_service(names: &Names, address: IpAddr) -> String {
    let (namespace, name) = (names.system_namespace(), names.component("dns"));
    format!(
        r"apiVersion: v1
kind: Service
metadata:
  name: {name}
  namespace: {namespace}
  labels:
    k8s-app: {name}
spec:
  clusterIP: {address}
  ports:
  - {{name: dns, port: 53, protocol: UDP}}
  - {{name: dns-tcp, port: 53, protocol: TCP}}
"
    )
}

/// Makes the Service of the resolvers if there is none. One that is there stays as it is: lists of ports merge by number,
/// and it has two ports of one number.
///
/// # Errors
/// The API server refuses it.
pub async fn ensure_dns_service(
    client: &Client,
    names: &Names,
    address: IpAddr,
) -> Result<(), BootstrapError> {
    let services = client.within::<Service>(names.system_namespace());
    let found = services.find(&names.component("dns")).await;
    match found.map_err(BootstrapError::api("cannot get the Service of the cluster DNS"))? {
        Some(_) => Ok(()),
        None => apply(client, &dns_service(names, address)).await,
    }
}

#[derive(Clone)]
enum Subject {
    User(String),
    Group(String),
}

impl Subject {
    fn text(&self, group: &str) -> String {
        let (kind, name) = match self {
            Self::User(name) => ("User", name),
            Self::Group(name) => ("Group", name),
        };
        format!("{{apiGroup: {group}, kind: {kind}, name: {name:?}}}")
    }
}

fn cluster_binding(names: &Names, name: &str, role: &str, subject: &Subject) -> String {
    let group = names.group("rbac");
    format!(
        "apiVersion: {group}/v1\nkind: ClusterRoleBinding\nmetadata: {{name: {name:?}}}\nroleRef: {{apiGroup: {group}, kind: ClusterRole, name: {role:?}}}\nsubjects: [{}]\n",
        subject.text(&group)
    )
}

/// A role that reads one ConfigMap.
fn reader(names: &Names, namespace: &str, name: &str, config_map: &str) -> String {
    let group = names.group("rbac");
    format!(
        "apiVersion: {group}/v1\nkind: Role\nmetadata: {{name: {name:?}, namespace: {namespace}}}\nrules:\n- {{apiGroups: [\"\"], resources: [configmaps], resourceNames: [{config_map}], verbs: [get]}}\n"
    )
}

/// A binding of a role of the same name.
fn binding(names: &Names, namespace: &str, name: &str, subjects: &[Subject]) -> String {
    let group = names.group("rbac");
    let subjects: Vec<String> = subjects.iter().map(|subject| subject.text(&group)).collect();
    format!(
        "apiVersion: {group}/v1\nkind: RoleBinding\nmetadata: {{name: {name:?}, namespace: {namespace}}}\nroleRef: {{apiGroup: {group}, kind: Role, name: {name:?}}}\nsubjects: [{}]\n",
        subjects.join(", ")
    )
}

/// What hosts need that join, in the order in which it is made: who finds the cluster joins at once, so what a token may do comes before it, and
/// `cluster-info` is the last.
///
/// # Errors
/// The manifests are no YAML.
pub fn for_hosts_that_join(
    names: &Names,
    tokens: &[TokenSpec],
    server: &str,
    authority: &str,
) -> Result<Vec<Value>, BootstrapError> {
    let mut objects = Vec::new();
    for manifests in [bindings(names), host_access(names)] {
        let all = proto_api::yaml::parse_all(&manifests)
            .map_err(|error| BootstrapError::Invalid(format!("the manifests: {error}")))?;
        objects.extend(all.into_iter().filter(|object| !object.is_null()));
    }
    objects.extend(tokens.iter().map(|token| token.secret(names)));
    objects.push(cluster_info::config_map(names, server, authority));
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;
    use crate::bootstrap_token::BootstrapToken;

    #[test]
    fn bindings_have_kubeadm_s_names_and_bind_existing_roles() {
        let text = bindings(Names::new(Profile::Kubernetes));
        let all = proto_api::yaml::parse_all(&text).expect("YAML");
        let named = |pointer: &str| -> Vec<String> {
            let text =
                |object: &serde_json::Value| object.pointer(pointer)?.as_str().map(str::to_owned);
            all.iter().filter_map(text).collect()
        };
        assert_eq!(
            named("/metadata/name"),
            [
                "apiserver-node-client",
                "kubeadm:kubelet-bootstrap",
                "kubeadm:node-autoapprove-bootstrap",
                "kubeadm:node-autoapprove-certificate-rotation"
            ]
        );
        assert_eq!(
            named("/roleRef/name"),
            [
                "system:kubelet-api-admin",
                "system:node-bootstrapper",
                "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
                "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient"
            ]
        );
        assert_eq!(
            named("/subjects/0/name"),
            [
                "system:kube-apiserver-node-client",
                "system:bootstrappers:kubeadm:default-node-token",
                "system:bootstrappers:kubeadm:default-node-token",
                "system:nodes"
            ]
        );
    }
    #[test]
    fn the_access_of_a_bootstrap_token_is_created_before_cluster_info() {
        let names = Names::new(Profile::Kubernetes);
        let token = TokenSpec {
            token: BootstrapToken::generate(),
            description: String::new(),
            expires: None,
            usages: vec!["signing".to_owned()],
            groups: vec![join_group(names)],
        };
        let all = for_hosts_that_join(names, &[token], "https://x:6443", "").unwrap();
        let place = |kind: &str| all.iter().rposition(|object| object["kind"] == kind).unwrap();
        let (secret, info) = (place("Secret"), place("ConfigMap"));
        assert_eq!(info, all.len() - 1);
        for kind in ["Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"] {
            assert!(place(kind) < secret && secret < info, "{kind}");
        }
    }

    #[test]
    fn joining_hosts_may_read_only_what_they_need() {
        let names = Names::new(Profile::Kubernetes);
        let all = proto_api::yaml::parse_all(&host_access(names)).expect("YAML");
        let of = |kind: &str| -> Vec<String> {
            let is_one = |object: &&serde_json::Value| object["kind"] == kind;
            all.iter().filter(is_one).map(|object| object["metadata"]["name"].to_string()).collect()
        };
        let readers =
            [r#""kubeadm:bootstrap-signer-clusterinfo""#, r#""kubeadm:nodes-kubeadm-config""#];
        assert_eq!(of("Role"), readers);
        assert_eq!(of("RoleBinding"), readers);
        assert_eq!(
            of("ClusterRoleBinding"),
            [r#""kubeadm:get-nodes""#, r#""kubeadm:node-proxier""#]
        );
        for role in all.iter().filter(|object| object["rules"].is_array()) {
            assert_eq!(role["rules"][0]["verbs"], serde_json::json!(["get"]), "{role}");
        }
        let service = dns_service(names, [10, 96, 0, 10].into());
        let service = proto_api::yaml::parse(&service).expect("YAML");
        assert_eq!(service["spec"]["clusterIP"], "10.96.0.10");
    }
}
