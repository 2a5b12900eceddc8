//! pure: the bindings of a cluster beside those that every API server has: who reaches nodes, and who joins as a node, as in a cluster that kubeadm has made.

use proto_api::names::Names;

use crate::certificates::NODE_CLIENT;

/// The group of the tokens with which nodes join.
pub fn join_group(names: &Names) -> String {
    format!("system:bootstrappers:{}:default-node-token", names.component("adm"))
}

/// The manifests.
pub fn bindings(names: &Names) -> String {
    let (adm, kubelet) = (names.component("adm"), names.component("let"));
    let requests = format!("system:{}:certificatesigningrequests", names.group("certificates"));
    let join = format!("{{kind: Group, name: {:?}}}", join_group(names));
    let server = format!("{{kind: User, name: {:?}}}", names.user(NODE_CLIENT));
    let nodes = r#"{kind: Group, name: "system:nodes"}"#.to_owned();
    // The name of a binding, its role, and who has it.
    let all = [
        // Logs, commands and ports of pods: nodes ask the API server who may.
        (NODE_CLIENT.to_owned(), format!("system:{kubelet}-api-admin"), server),
        // A machine that joins requests its first certificate, which is approved without a person ...
        (format!("{adm}:{kubelet}-bootstrap"), "system:node-bootstrapper".to_owned(), join.clone()),
        (format!("{adm}:node-autoapprove-bootstrap"), format!("{requests}:nodeclient"), join),
        // ... and later renews it.
        (
            format!("{adm}:node-autoapprove-certificate-rotation"),
            format!("{requests}:selfnodeclient"),
            nodes,
        ),
    ];
    let group = names.group("rbac.authorization");
    let manifest = |(name, role, subject): &(String, String, String)| {
        let subject = subject.replacen('{', &format!("{{apiGroup: {group}, "), 1);
        format!(
            "apiVersion: {group}/v1\nkind: ClusterRoleBinding\nmetadata: {{name: {name:?}}}\nroleRef: {{apiGroup: {group}, kind: ClusterRole, name: {role:?}}}\nsubjects: [{subject}]\n"
        )
    };
    all.iter().map(manifest).collect::<Vec<_>>().join("---\n")
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;

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
}
