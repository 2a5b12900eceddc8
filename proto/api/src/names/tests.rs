//! Each row of names in each profile.

use super::*;

fn profiles() -> [&'static Names; 3] {
    [
        Names::new(Profile::default()),
        Names::new(Profile::Orch { domain: "example.org".to_owned() }),
        Names::new(Profile::Kubernetes),
    ]
}

fn check(name: impl Fn(&Names) -> String, want: [&str; 3]) {
    assert_eq!(profiles().map(name), want);
}

#[test]
fn groups_and_versions() {
    let coordination = |names: &Names| names.group("coordination");
    check(
        coordination,
        ["coordination.orch.io", "coordination.example.org", "coordination.k8s.io"],
    );
    let rbac = ["orch.io", "example.org", "k8s.io"].map(|d| format!("rbac.authorization.{d}"));
    check(|names| names.group("rbac"), rbac.each_ref().map(String::as_str));
    check(|names| names.group("rbac.authorization"), rbac.each_ref().map(String::as_str));
    check(|names| names.group("apps"), ["apps"; 3]);
    check(|names| names.group(""), [""; 3]);
    check(|names| names.api_version("", "v1"), ["v1"; 3]);
    check(|names| names.api_version("batch", "v1"), ["batch/v1"; 3]);
    check(
        |names| names.api_version("storage", "v1"),
        ["storage.orch.io/v1", "storage.example.org/v1", "storage.k8s.io/v1"],
    );
}

#[test]
fn a_full_group_has_its_short_name() {
    let known = crate::schema::messages().iter().map(|m| m.group);
    for short in known {
        for names in profiles() {
            let full = names.group(short);
            assert_eq!(names.short_group(&full), Some(short));
        }
    }
    for names in profiles() {
        assert_eq!(names.short_group("stable.example.com"), None);
        assert_eq!(names.short_group("orch.io"), None);
        let domain = names.group_domain();
        assert_eq!(names.short_group(&format!("autoscaling.{domain}")), None, "a custom group");
    }
}

#[test]
fn labels() {
    check(
        |names| names.label("hostname"),
        ["orch.io/hostname", "example.org/hostname", "kubernetes.io/hostname"],
    );
    check(
        |names| names.sub_label("node", "not-ready"),
        ["node.orch.io/not-ready", "node.example.org/not-ready", "node.kubernetes.io/not-ready"],
    );
}

#[test]
fn namespaces_and_media_types_follow_the_profile() {
    let orch = |orch, kubernetes| [orch, orch, kubernetes];
    let media_type = orch("application/vnd.orch.protobuf", "application/vnd.kubernetes.protobuf");
    check(|names| names.protobuf_media_type().to_owned(), media_type);
    check(|names| names.system_namespace().to_owned(), orch("orch-system", "kube-system"));
    check(|names| names.public_namespace().to_owned(), orch("orch-public", "kube-public"));
    let lease = orch("orch-node-lease", "kube-node-lease");
    check(|names| names.node_lease_namespace().to_owned(), lease);
    check(|names| names.api_service_name().to_owned(), orch("orch", "kubernetes"));
    check(|names| names.api_service_env_prefix().to_owned(), orch("ORCH", "KUBERNETES"));
    let root_ca = orch("orch-root-ca.crt", "kube-root-ca.crt");
    check(|names| names.root_ca_config_map().to_owned(), root_ca);
    let token = orch("orch-api-access-", "kube-api-access-");
    check(|names| names.token_volume_prefix().to_owned(), token);
    check(
        |names| names.service_account_dir().to_owned(),
        [
            "/var/run/secrets/orch.io/serviceaccount",
            "/var/run/secrets/example.org/serviceaccount",
            "/var/run/secrets/kubernetes.io/serviceaccount",
        ],
    );
    let scheduler = orch("system:orch-scheduler", "system:kube-scheduler");
    check(|names| names.user("scheduler"), scheduler);
    check(|names| names.client_config_path(), orch(".orch/config", ".kube/config"));
    check(|names| names.client_config_env().to_owned(), orch("ORCHCONFIG", "KUBECONFIG"));
}

#[test]
fn components_and_their_metrics() {
    let orch = |orch, kubernetes| [orch, orch, kubernetes];
    check(|names| names.component("proxy"), orch("orch-proxy", "kube-proxy"));
    check(|names| names.component("let"), orch("orchlet", "kubelet"));
    check(|names| names.component("ctl"), orch("orchctl", "kubectl"));
    check(|names| names.component("adm"), orch("orchadm", "kubeadm"));
    check(|names| names.metric_prefix("proxy"), orch("orchproxy", "kubeproxy"));
    check(|names| names.metric_prefix("let"), orch("orchlet", "kubelet"));
}

#[test]
fn profiles_are_chosen_by_name() {
    assert_eq!(Profile::parse("orch", None), Some(Profile::default()));
    let domain = Some(Profile::Orch { domain: "example.org".to_owned() });
    assert_eq!(Profile::parse("orch", Some("example.org")), domain);
    assert_eq!(Profile::parse("kubernetes", None), Some(Profile::Kubernetes));
    assert_eq!(Profile::parse("other", None), None);
}
