//! The names of a pod as its containers see them: host name, domain, and the `/etc/hosts` that the node manages for it.

use proto_api::core::v1::{HostAlias, Pod};

use crate::node_facts::NodeFacts;
use crate::translate_error::TranslateError;

/// Longest host name without its domain: one DNS label.
const LABEL_CHARS_MAX: usize = 63;
/// Longest host name in the kernel (`HOST_NAME_MAX`).
const KERNEL_CHARS_MAX: usize = 64;
/// Path of the file in containers.
pub const PATH: &str = "/etc/hosts";

/// A pod in messages: `name_namespace(uid)`.
pub fn pod_name(pod: &Pod) -> String {
    let meta = &pod.metadata;
    format!("{}_{}({})", meta.name, meta.namespace, meta.uid)
}

/// Host name of a pod without its domain: at most 63 characters.
pub fn host_label(pod: &Pod) -> String {
    let name = if pod.spec.hostname.is_empty() { &pod.metadata.name } else { &pod.spec.hostname };
    let short: String = name.chars().take(LABEL_CHARS_MAX).collect();
    short.trim_end_matches(['-', '.']).to_owned()
}

/// The domain of a pod with a subdomain.
pub fn domain(pod: &Pod, node: &NodeFacts) -> Option<String> {
    let subdomain = &pod.spec.subdomain;
    let service = || format!("{subdomain}.{}.svc", pod.metadata.namespace);
    match (subdomain.is_empty(), node.cluster_domain.as_str()) {
        (true, _) => None,
        (false, "") => Some(service()),
        (false, cluster) => Some(format!("{}.{cluster}", service())),
    }
}

/// Host name set in the sandbox: the label, or the fully qualified name with `setHostnameAsFQDN`.
///
/// # Errors
/// The fully qualified name is longer than the kernel allows.
pub fn host_name(pod: &Pod, node: &NodeFacts) -> Result<String, TranslateError> {
    let label = host_label(pod);
    let whole = match domain(pod, node) {
        Some(domain) if pod.spec.set_hostname_as_fqdn == Some(true) => format!("{label}.{domain}"),
        _ => return Ok(label),
    };
    if whole.len() > KERNEL_CHARS_MAX {
        return Err(TranslateError::LongName(whole));
    }
    Ok(whole)
}

/// Content of the pod's `/etc/hosts`; `of_node` is the node's own file, used by pods on the host network.
pub fn hosts_file(pod: &Pod, node: &NodeFacts, ips: &[String], of_node: &str) -> String {
    let mut text = node.names.hosts_file_header();
    if pod.spec.host_network {
        text.push_str(" (host network).\n");
        text.push_str(of_node);
        if !of_node.is_empty() && !of_node.ends_with('\n') {
            text.push('\n');
        }
    } else {
        text.push_str(".\n");
        text.push_str(LOCAL);
        let (label, domain) = (host_label(pod), domain(pod, node));
        for ip in ips {
            match &domain {
                Some(domain) => text.push_str(&format!("{ip}\t{label}.{domain}\t{label}\n")),
                None => text.push_str(&format!("{ip}\t{label}\n")),
            }
        }
    }
    text.push_str(&aliases(&pod.spec.host_aliases));
    text
}

/// Entries of every machine.
const LOCAL: &str = "127.0.0.1\tlocalhost\n\
                     ::1\tlocalhost ip6-localhost ip6-loopback\n\
                     fe00::0\tip6-localnet\n\
                     fe00::0\tip6-mcastprefix\n\
                     fe00::1\tip6-allnodes\n\
                     fe00::2\tip6-allrouters\n";

fn aliases(aliases: &[HostAlias]) -> String {
    if aliases.is_empty() {
        return String::new();
    }
    let line = |alias: &HostAlias| format!("{}\t{}\n", alias.ip, alias.hostnames.join("\t"));
    let lines: String = aliases.iter().map(line).collect();
    format!("\n# Entries added by HostAliases.\n{lines}")
}

#[cfg(test)]
mod tests {
    use proto_api::names::{Names, Profile};

    use super::*;

    fn node() -> NodeFacts {
        NodeFacts {
            cluster_domain: "cluster.local".into(),
            names: Names::new(Profile::Kubernetes),
            ..NodeFacts::default()
        }
    }

    fn pod(hostname: &str, subdomain: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = "web-0".into();
        pod.metadata.namespace = "shop".into();
        pod.spec.hostname = hostname.into();
        pod.spec.subdomain = subdomain.into();
        pod
    }

    #[test]
    fn names_fit_the_kernel() {
        let mut long = pod("", "");
        long.metadata.name = format!("{}-{}", "a".repeat(62), "b".repeat(10));
        assert_eq!(host_label(&long), "a".repeat(62));
        assert_eq!(host_label(&pod("given", "")), "given");
    }

    #[test]
    fn set_hostname_as_fqdn_uses_the_fqdn() {
        let name = |hostname: &str, subdomain: &str, whole| {
            let mut pod = pod(hostname, subdomain);
            pod.spec.set_hostname_as_fqdn = whole;
            host_name(&pod, &node())
        };
        assert_eq!(name("a", "s", None), Ok("a".into()));
        assert_eq!(name("a", "s", Some(true)), Ok("a.s.shop.svc.cluster.local".into()));
        assert_eq!(name("a", "", Some(true)), Ok("a".into()));
        let long = name(&"a".repeat(60), "s", Some(true)).expect_err("too long");
        assert_eq!(
            long.to_string(),
            format!(
                "failed to construct FQDN from pod hostname and cluster domain, FQDN \
                 {}.s.shop.svc.cluster.local is too long (64 characters is the max, 85 characters \
                 requested)",
                "a".repeat(60)
            )
        );
    }

    #[test]
    fn a_file_of_the_pods_own_network() {
        let mut pod = pod("h", "s");
        pod.spec.host_aliases =
            vec![HostAlias { ip: "192.0.2.7".into(), hostnames: vec!["x".into(), "y.z".into()] }];
        let ips = ["10.0.0.7".to_owned(), "fd00::7".into()];
        let text = hosts_file(&pod, &node(), &ips, "ignored\n");
        assert!(text.starts_with("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n"));
        assert!(text.contains("10.0.0.7\th.s.shop.svc.cluster.local\th\n"));
        assert!(text.contains("fd00::7\th.s.shop.svc.cluster.local\th\n"));
        assert!(text.ends_with("\n# Entries added by HostAliases.\n192.0.2.7\tx\ty.z\n"));
        assert!(!text.contains("ignored"));
    }

    #[test]
    fn a_file_on_the_nodes_network_is_the_nodes_own() {
        let mut pod = pod("h", "");
        pod.spec.host_network = true;
        let text = hosts_file(&pod, &node(), &["10.0.0.7".into()], "127.0.0.1 localhost");
        assert_eq!(text, "# Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n");
    }
}
