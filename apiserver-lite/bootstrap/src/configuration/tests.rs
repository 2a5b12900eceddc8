use proto_api::names::Profile;

use super::*;

fn names() -> &'static Names {
    Names::new(Profile::Kubernetes)
}

const WHOLE: &str = r#"
apiVersion: kubeadm.k8s.io/v1beta3
kind: InitConfiguration
bootstrapTokens:
- token: abcdef.0123456789abcdef
  ttl: 1h0m0s
nodeRegistration:
  name: one
  taints: []
  kubeletExtraArgs: {v: "4"}
localAPIEndpoint: {advertiseAddress: 10.0.0.1, bindPort: 7443}
skipPhases: [addon]
---
apiVersion: kubeadm.k8s.io/v1beta3
kind: ClusterConfiguration
controlPlaneEndpoint: api.example
networking: {podSubnet: 10.1.0.0/16, serviceSubnet: 10.2.0.0/16}
apiServer:
  certSANs: [api.example]
  extraArgs: {event-ttl: 2h}
"#;

#[test]
fn what_is_written_is_read_again() {
    let read = parse(WHOLE, names()).unwrap();
    let init = read.init.clone().unwrap();
    assert_eq!(init.local_api_endpoint.bind_port, 7443);
    assert_eq!(init.node_registration.taints, Some(Vec::new()));
    let cluster = read.cluster.clone().unwrap();
    assert_eq!(cluster.networking.dns_domain, "cluster.local", "a default");
    let address = [10, 0, 0, 1].into();
    assert_eq!(cluster.server(&init.local_api_endpoint, address), "https://api.example:7443");
    assert_eq!(cluster.dns_address().unwrap(), IpAddr::from([10, 2, 0, 10]));
    let text = migrate(WHOLE, names()).unwrap();
    assert_eq!(parse(&text, names()).unwrap(), read);
}

#[test]
fn the_older_version_is_migrated_and_not_read() {
    let old = WHOLE.replace("v1beta3", "v1beta2");
    let error = parse(&old, names()).unwrap_err().to_string();
    assert!(error.contains("config migrate"), "{error}");
    let text = migrate(&old, names()).unwrap();
    assert_eq!(parse(&text, names()).unwrap(), parse(WHOLE, names()).unwrap());
}

#[test]
fn what_means_nothing_here_is_refused_by_name() {
    let cluster = |line: &str| {
        format!("apiVersion: kubeadm.k8s.io/v1beta3\nkind: ClusterConfiguration\n{line}\n")
    };
    for (text, what) in [
        (cluster("etcd: {external: {endpoints: [https://e:2379]}}"), "etcd: not supported"),
        (cluster("etcd: {local: {}}"), "its own store"),
        (cluster("kubernetesVersion: v1.25.0"), "kubernetesVersion"),
        (cluster("nonsense: 1"), "nonsense"),
        (cluster("networking: {podCIDR: x}"), "podCIDR"),
        (cluster("networking: {podSubnet: x}"), "networking.podSubnet"),
        (cluster("networking: {podSubnet: 10.96.0.0/16}"), "overlap"),
        (cluster("networking: {serviceSubnet: 10.96.0.0/30}"), "serviceSubnet"),
        (cluster("networking: {dnsDomain: A_b}"), "dnsDomain"),
        (cluster("controlPlaneEndpoint: https://a"), "controlPlaneEndpoint"),
        (WHOLE.replace("one", "{}"), "nodeRegistration.name"),
        (WHOLE.replace("k8s.io", "example"), "apiVersion"),
        (WHOLE.replace("InitConf", "KubeletConf"), "KubeletConfiguration"),
        (format!("{WHOLE}---\n{}", cluster("")), "twice"),
        (String::new(), "no document"),
        ("a: [".to_owned(), "not YAML"),
    ] {
        let error = parse(&text, names()).unwrap_err().to_string();
        assert!(error.contains(what), "{what}: {error}");
    }
    let join = "apiVersion: kubeadm.k8s.io/v1beta3\nkind: JoinConfiguration\ncontrolPlane: {}\n";
    let error = parse(join, names()).unwrap_err().to_string();
    assert!(error.contains("controlPlane: not supported"), "{error}");
}

#[test]
fn an_endpoint_may_have_a_port() {
    let of = |endpoint: &str| ClusterConfiguration {
        control_plane_endpoint: endpoint.to_owned(),
        ..ClusterConfiguration::default()
    };
    let local = LocalApiEndpoint::default();
    for (endpoint, server, host) in [
        ("", "https://[fd00::1]:6443", None),
        ("a", "https://a:6443", Some("a")),
        ("a:1", "https://a:1", Some("a")),
        ("[fd00::2]:1", "https://[fd00::2]:1", Some("fd00::2")),
    ] {
        let made = of(endpoint);
        assert_eq!(made.server(&local, "fd00::1".parse().unwrap()), server);
        assert_eq!(made.endpoint_host(), host);
    }
}

#[test]
fn a_token_has_kubeadm_s_defaults() {
    let of = |ttl: &str| {
        TokenConfiguration { ttl: ttl.into(), ..TokenConfiguration::default() }.spec(names(), 1_000)
    };
    let usual = of("").unwrap();
    assert_eq!(usual.groups, ["system:bootstrappers:kubeadm:default-node-token"]);
    assert_eq!(usual.usages, ["signing", "authentication"]);
    assert_eq!(usual.expires, Some(Time::from_unix(1_000 + 24 * 3600)));
    assert_eq!(of("0").unwrap().expires, None);
    assert!(of("soon").is_err());
    assert_ne!(usual.token, of("").unwrap().token);
}

#[test]
fn a_token_lasts_for_ever_only_when_that_is_said() {
    let names = Names::new(Profile::Kubernetes);
    let expires = |ttl: &str| {
        let token = TokenConfiguration { ttl: ttl.into(), ..TokenConfiguration::default() };
        token.spec(names, 1000).unwrap().expires
    };
    assert_eq!(expires("0"), None);
    for (ttl, end) in [("1ms", 1001), ("999ms", 1001), ("1s", 1001), ("1.5s", 1002), ("1m", 1060)] {
        assert_eq!(expires(ttl), Some(Time::from_unix(end)), "{ttl}");
    }
}
