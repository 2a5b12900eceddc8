//! Resolver configuration of a pod: its DNS policy, its own `dnsConfig`, and the limits of resolvers.

use std::collections::HashSet;

use proto_api::core::v1::Pod;

use crate::hosts;
use crate::node_facts::NodeFacts;
use crate::spec::DnsConfig;

/// Most name servers that a resolver uses (resolv.conf(5), `MAXNS`).
const SERVERS_MAX: usize = 3;
/// Most search domains, as in Kubernetes; current resolvers have no limit.
const SEARCHES_MAX: usize = 32;
/// Most characters of the search line.
const SEARCH_CHARS_MAX: usize = 2048;
/// Option of cluster resolvers: names with fewer than five dots are tried with the search domains first.
const CLUSTER_OPTION: &str = "ndots:5";

/// Resolver configuration of a pod, with warnings for its users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolver {
    /// Content of `/etc/resolv.conf`.
    pub config: DnsConfig,
    /// Reason and message of warning events.
    pub warnings: Vec<(&'static str, String)>,
}

/// Builds the resolver configuration of a pod.
pub fn resolver(pod: &Pod, node: &NodeFacts) -> Resolver {
    let mut resolver = Resolver { config: by_policy(pod, node), warnings: Vec::new() };
    if wants_cluster(pod) && node.cluster_dns.is_empty() {
        resolver.warnings.push(("MissingClusterDNS", missing_cluster_dns(pod)));
    }
    add_own(&mut resolver.config, pod);
    fit(&mut resolver);
    resolver
}

fn by_policy(pod: &Pod, node: &NodeFacts) -> DnsConfig {
    if pod.spec.dns_policy == "None" {
        return DnsConfig::default();
    }
    if !wants_cluster(pod) || node.cluster_dns.is_empty() {
        return node.resolver.clone();
    }
    let domain = &node.cluster_domain;
    let own = if domain.is_empty() {
        Vec::new()
    } else {
        let namespace = &pod.metadata.namespace;
        vec![format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.clone()]
    };
    let mut searches = Vec::new();
    append(&mut searches, &own);
    append(&mut searches, &node.resolver.searches);
    DnsConfig {
        servers: node.cluster_dns.clone(),
        searches,
        options: vec![CLUSTER_OPTION.to_owned()],
    }
}

fn wants_cluster(pod: &Pod) -> bool {
    match pod.spec.dns_policy.as_str() {
        "None" | "Default" => false,
        "ClusterFirstWithHostNet" => true,
        _ => !pod.spec.host_network,
    }
}

fn missing_cluster_dns(pod: &Pod) -> String {
    let policy = match pod.spec.dns_policy.as_str() {
        "" => "ClusterFirst",
        policy => policy,
    };
    format!(
        "pod: {:?}. kubelet does not have ClusterDNS IP configured and cannot create Pod using \
         {policy:?} policy. Falling back to \"Default\" policy.",
        hosts::pod_name(pod)
    )
}

/// Appends the items that the list does not have yet.
fn append(list: &mut Vec<String>, more: &[String]) {
    proto_api::count_steps!(list.len().saturating_add(more.len()));
    let mut known: HashSet<&str> = HashSet::new();
    let known_before = std::mem::take(list);
    let new = known_before.iter().chain(more).filter(|item| known.insert(item.as_str()));
    *list = new.cloned().collect();
}

fn add_own(dns: &mut DnsConfig, pod: &Pod) {
    let Some(own) = &pod.spec.dns_config else { return };
    append(&mut dns.servers, &own.nameservers);
    append(&mut dns.searches, &own.searches);
    dns.options.extend(own.options.iter().map(|option| match &option.value {
        Some(value) if !value.is_empty() => format!("{}:{value}", option.name),
        _ => option.name.clone(),
    }));
    keep_last(&mut dns.options);
}

/// Keeps only the last option of each name.
fn keep_last(options: &mut Vec<String>) {
    proto_api::count_steps!(options.len());
    let all = std::mem::take(options);
    let mut known: HashSet<&str> = HashSet::new();
    let last = all
        .iter()
        .rev()
        .filter(|option| known.insert(option.split(':').next().unwrap_or_default()));
    *options = last.cloned().collect();
    options.reverse();
}

/// Drops what exceeds the limits of resolvers and adds a warning.
fn fit(resolver: &mut Resolver) {
    let DnsConfig { servers, searches, .. } = &mut resolver.config;
    if servers.len() > SERVERS_MAX {
        servers.truncate(SERVERS_MAX);
        let message = format!(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied \
             nameserver line is: {}",
            servers.join(" ")
        );
        resolver.warnings.push(("DNSConfigForming", message));
    }
    let before = searches.len();
    searches.truncate(SEARCHES_MAX);
    while searches.join(" ").chars().count() > SEARCH_CHARS_MAX {
        searches.pop();
    }
    if searches.len() < before {
        let message = format!(
            "Search Line limits were exceeded, some search paths have been omitted, the applied \
             search line is: {}",
            searches.join(" ")
        );
        resolver.warnings.push(("DNSConfigForming", message));
    }
}

#[cfg(test)]
mod tests {
    use proto_api::core::v1::{PodDNSConfig, PodDNSConfigOption};

    use super::*;

    fn node() -> NodeFacts {
        NodeFacts {
            cluster_dns: vec!["10.96.0.10".into()],
            cluster_domain: "cluster.local".into(),
            resolver: DnsConfig {
                servers: vec!["192.0.2.1".into()],
                searches: vec!["example.org".into()],
                options: vec!["timeout:1".into()],
            },
            ..NodeFacts::default()
        }
    }

    fn pod(policy: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = "web".into();
        pod.metadata.namespace = "shop".into();
        pod.metadata.uid = "u-1".into();
        pod.spec.dns_policy = policy.into();
        pod
    }

    #[test]
    fn resolvers_by_policy() {
        let cluster = ["10.96.0.10"].as_slice();
        let own = ["192.0.2.1"].as_slice();
        let cases = [
            ("ClusterFirst", false, cluster),
            ("", false, cluster),
            ("ClusterFirst", true, own),
            ("ClusterFirstWithHostNet", true, cluster),
            ("Default", false, own),
            ("None", false, &[]),
        ];
        for (policy, host_network, servers) in cases {
            let mut pod = pod(policy);
            pod.spec.host_network = host_network;
            let got = resolver(&pod, &node());
            assert_eq!(got.config.servers, servers, "{policy} {host_network}");
            assert_eq!(got.warnings, []);
        }
        let got = resolver(&pod(""), &node()).config;
        assert_eq!(
            got.searches,
            ["shop.svc.cluster.local", "svc.cluster.local", "cluster.local", "example.org"]
        );
        assert_eq!(got.options, ["ndots:5"]);
    }

    #[test]
    fn a_pods_own_settings_are_merged() {
        let mut pod = pod("");
        let option = |name: &str, value: Option<&str>| PodDNSConfigOption {
            name: name.into(),
            value: value.map(str::to_owned),
        };
        pod.spec.dns_config = Some(PodDNSConfig {
            nameservers: vec!["192.0.2.9".into(), "10.96.0.10".into()],
            searches: vec!["my.dns".into(), "svc.cluster.local".into()],
            options: vec![option("ndots", Some("2")), option("edns0", None)],
        });
        let got = resolver(&pod, &node()).config;
        assert_eq!(got.servers, ["10.96.0.10", "192.0.2.9"]);
        assert_eq!(got.searches.len(), 5);
        assert_eq!(got.searches.last().map(String::as_str), Some("my.dns"));
        assert_eq!(got.options, ["ndots:2", "edns0"]);
    }

    #[test]
    fn without_cluster_servers_the_nodes_own_are_used_and_it_is_said() {
        let node = NodeFacts { cluster_dns: Vec::new(), ..node() };
        let got = resolver(&pod(""), &node);
        assert_eq!(got.config, node.resolver);
        assert_eq!(got.warnings.first().map(|w| w.0), Some("MissingClusterDNS"));
        assert_eq!(resolver(&pod("Default"), &node).warnings, []);
    }

    #[test]
    fn limits_cut_and_warn() {
        let mut pod = pod("");
        let many = |prefix: &str, n: usize| (0..n).map(|i| format!("{prefix}{i}")).collect();
        pod.spec.dns_config = Some(PodDNSConfig {
            nameservers: many("192.0.2.", 5),
            searches: many("a-search-domain-", 40),
            options: Vec::new(),
        });
        let got = resolver(&pod, &node());
        assert_eq!(got.config.servers.len(), 3);
        assert_eq!(got.config.searches.len(), 32);
        assert_eq!(got.warnings.len(), 2);
        assert!(got.warnings[0].1.ends_with("is: 10.96.0.10 192.0.2.0 192.0.2.1"));
        pod.spec.dns_config =
            Some(PodDNSConfig { searches: many(&"x".repeat(200), 20), ..PodDNSConfig::default() });
        let got = resolver(&pod, &node());
        assert!(got.config.searches.join(" ").len() <= SEARCH_CHARS_MAX);
        assert_eq!(got.warnings.len(), 1);
    }

    #[test]
    fn many_settings_cost_what_they_are() {
        let mut pod = pod("Default");
        let number = 30_000;
        let options = (0..number)
            .map(|n| PodDNSConfigOption { name: format!("option-{n}"), value: Some("1".into()) });
        let texts = || (0..number).map(|n| format!("192.0.2.{n}")).collect::<Vec<String>>();
        pod.spec.dns_config = Some(PodDNSConfig {
            nameservers: texts(),
            searches: texts(),
            options: options.collect(),
        });
        // A step is a setting that is looked at.
        let mut got = DnsConfig::default();
        let steps = proto_api::steps::count_during(|| got = resolver(&pod, &node()).config);
        assert!((90_000..=100_000).contains(&steps), "{steps}");
        assert_eq!((got.servers.len(), got.options.len()), (3, number + 1));
    }

    #[test]
    fn the_last_of_an_option_counts() {
        let mut pod = pod("");
        let option = |name: &str, value: &str| PodDNSConfigOption {
            name: name.into(),
            value: Some(value.into()),
        };
        let options = vec![option("ndots", "2"), option("timeout", "3"), option("ndots", "4")];
        pod.spec.dns_config = Some(PodDNSConfig { options, ..PodDNSConfig::default() });
        assert_eq!(resolver(&pod, &node()).config.options, ["timeout:3", "ndots:4"]);
    }
}
