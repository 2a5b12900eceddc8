//! Labels that a node may set on itself: in the `kubernetes.io` and `k8s.io` domains only those that describe the machine. Others
//! could attract pods to the node. orchlet refuses them as flags, the API server in its admission.

use std::collections::BTreeMap;

use crate::names::Names;

/// Names in the label domain itself.
const OWN: [&str; 3] = ["hostname", "os", "arch"];
/// Subdomain and name.
const KNOWN: [(&str, &str); 8] = [
    ("topology", "zone"),
    ("topology", "region"),
    ("failure-domain.beta", "zone"),
    ("failure-domain.beta", "region"),
    ("beta", "instance-type"),
    ("beta", "os"),
    ("beta", "arch"),
    ("node", "instance-type"),
];
/// Subdomains in which every name is allowed, including below them.
const OPEN: [&str; 2] = ["kubelet", "node"];

/// Labels in Kubernetes' domains that a node may not set on itself.
pub fn forbidden_labels<'a>(names: &Names, labels: &'a BTreeMap<String, String>) -> Vec<&'a str> {
    let is_allowed = |key: &str| {
        let Some((domain, _)) = key.split_once('/') else { return true };
        let of = |whole: &str| domain == whole || domain.ends_with(&format!(".{whole}"));
        if !of(names.label_domain()) && !of(names.group_domain()) {
            return true;
        }
        OWN.iter().any(|name| key == names.label(name))
            || KNOWN.iter().any(|(sub, name)| key == names.sub_label(sub, name))
            || OPEN.iter().any(|sub| of(&format!("{sub}.{}", names.label_domain())))
    };
    labels.keys().map(String::as_str).filter(|key| !is_allowed(key)).collect()
}

#[cfg(test)]
mod tests {
    use crate::names::Profile;

    use super::*;

    #[test]
    fn a_node_may_set_labels_that_describe_it_and_not_those_that_attract_pods() {
        for profile in [Profile::Kubernetes, Profile::default()] {
            let names = Names::new(profile);
            let allowed = [
                "plain".to_owned(),
                "example.com/role".to_owned(),
                names.label("hostname"),
                names.sub_label("topology", "zone"),
                names.sub_label("node", "anything"),
                names.sub_label("sub.node", "anything"),
                names.sub_label("kubelet", "x"),
            ];
            let forbidden_keys = [
                names.label("role"),
                names.sub_label("node-role", "control-plane"),
                names.sub_label("node-restriction", "secure"),
                format!("x.{}/y", names.group_domain()),
            ];
            let all = allowed.iter().chain(&forbidden_keys);
            let labels = all.map(|key| (key.clone(), String::new())).collect();
            let mut expect: Vec<&str> = forbidden_keys.iter().map(String::as_str).collect();
            expect.sort_unstable();
            assert_eq!(forbidden_labels(names, &labels), expect);
        }
    }
}
