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
fn a_migrated_configuration_is_read_again() {
    let read = parse(WHOLE, names()).unwrap();
    let init = read.init.clone().unwrap();
    assert_eq!(init.local_api_endpoint.bind_port, 7443);
    assert_eq!(init.node_registration.taints, Some(Vec::new()));
    let cluster = read.cluster.clone().unwrap();
    assert_eq!(cluster.networking.dns_domain, "cluster.local", "a default");
    let address = [10, 0, 0, 1].into();
    assert_eq!(cluster.server(&init.local_api_endpoint, address), "https://api.example:7443");
    assert_eq!(cluster.dns_address().unwrap(), IpAddr::from([10, 2, 0, 10]));
    let (text, ignored) = migrate(WHOLE, names()).unwrap();
    assert_eq!(ignored, [] as [&str; 0]);
    assert_eq!(parse(&text, names()).unwrap(), read);
}

#[test]
fn the_older_version_is_migrated_and_not_read() {
    let old = WHOLE.replace("v1beta3", "v1beta2");
    let error = parse(&old, names()).unwrap_err().to_string();
    assert!(error.contains("config migrate"), "{error}");
    let (text, _) = migrate(&old, names()).unwrap();
    assert_eq!(parse(&text, names()).unwrap(), parse(WHOLE, names()).unwrap());
}

#[test]
fn unsupported_kubeadm_fields_are_refused_by_name() {
    let cluster = |line: &str| {
        format!("apiVersion: kubeadm.k8s.io/v1beta3\nkind: ClusterConfiguration\n{line}\n")
    };
    for (text, what) in [
        (
            cluster("etcd: {external: {endpoints: [https://e:2379]}}"),
            "etcd.external.caFile: must be given for https",
        ),
        (cluster("etcd: {external: {caFile: /f}}"), "etcd.external.endpoints"),
        (cluster("etcd: {external: {endpoint: x}}"), "etcd.external.endpoint"),
        (cluster("apiServer: {extraEnvs: [{name: A, value: b}]}"), "extraArgs"),
        (cluster("dns: {disabled: true}"), "addon/dns"),
        (cluster("proxy: {disabled: true}"), "addon/kube-proxy"),
        (cluster("certificateValidityPeriod: 1h"), "must be 8760h"),
        (
            cluster("scheduler: {extraVolumes: [{name: v}]}"),
            "scheduler.extraVolumes: not supported",
        ),
        (cluster("nonsense: 1"), "nonsense"),
        (cluster("networking: {podCIDR: x}"), "podCIDR"),
        (cluster("networking: {podSubnet: x}"), "networking.podSubnet"),
        (cluster("networking: {podSubnet: 10.96.0.0/16}"), "overlap"),
        (cluster("networking: {serviceSubnet: 10.96.0.0/30}"), "serviceSubnet"),
        (cluster("networking: {dnsDomain: A_b}"), "dnsDomain"),
        (cluster("controlPlaneEndpoint: https://a"), "controlPlaneEndpoint"),
        (WHOLE.replace("one", "{}"), "nodeRegistration.name"),
        (WHOLE.replace("k8s.io", "example"), "apiVersion"),
        (WHOLE.replace("InitConf", "KubeletConf"), "kubeletExtraArgs: config"),
        (WHOLE.replace("InitConf", "KubeProxyConf"), "leave the document out"),
        (WHOLE.replace("InitConf", "UpgradeConf"), "flags of `orchadm upgrade`"),
        (WHOLE.replace("InitConf", "Nonsense"), "must be InitConfiguration"),
        (format!("{WHOLE}---\n{}", cluster("")), "twice"),
        (String::new(), "no document"),
        ("a: [".to_owned(), "not valid YAML"),
    ] {
        let error = parse(&text, names()).unwrap_err().to_string();
        assert!(error.contains(what), "{what}: {error}");
    }
    let join = "apiVersion: kubeadm.k8s.io/v1beta3\nkind: JoinConfiguration\ncontrolPlane: {certificateKey: x}\n";
    let error = parse(join, names()).unwrap_err().to_string();
    assert!(error.contains("controlPlane.certificateKey: not supported"), "{error}");
}

#[test]
fn an_external_etcd_and_another_control_plane_are_read_and_written() {
    let text = "apiVersion: kubeadm.k8s.io/v1beta3\nkind: ClusterConfiguration\netcd:\n  local: {dataDir: /var/lib/etcd}\n  external: {endpoints: ['https://10.0.0.5:2379'], caFile: /e/ca.crt, certFile: /e/c.crt, keyFile: /e/c.key}\n---\napiVersion: kubeadm.k8s.io/v1beta3\nkind: JoinConfiguration\ncontrolPlane: {localAPIEndpoint: {advertiseAddress: 10.0.0.7}}\n";
    let read = parse(text, names()).unwrap();
    assert!(read.warnings.len() == 1 && read.warnings[0].contains("etcd.local"), "{read:?}");
    let etcd = read.cluster.clone().unwrap().etcd.external.unwrap();
    assert_eq!((etcd.endpoints.len(), etcd.key_file.as_str()), (1, "/e/c.key"));
    let endpoint = read.join.clone().unwrap().control_plane.unwrap().local_api_endpoint;
    assert_eq!(endpoint.advertise_address, Some([10, 0, 0, 7].into()));
    assert_eq!(endpoint.bind_port, API_PORT);
    let (written, _) = migrate(text, names()).unwrap();
    let again = parse(&written, names()).unwrap();
    assert_eq!((again.cluster, again.join), (read.cluster, read.join));
    // Its being there says that the machine becomes one.
    let empty = "apiVersion: kubeadm.k8s.io/v1beta3\nkind: JoinConfiguration\ncontrolPlane: {}\n";
    let join = parse(empty, names()).unwrap().join.unwrap();
    assert_eq!(join.control_plane, Some(JoinControlPlane::default()));
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

#[test]
fn all_configuration_errors_are_reported_together_with_their_paths() {
    let text = r#"
apiVersion: kubeadm.k8s.io/v1beta3
kind: InitConfiguration
nonsense: 1
bootstrapTokens:
- token: abcdef.0123456789abcdef
  ttL: 1h
nodeRegistration: {nam: one, name: {}}
patches: {directory: /p}
---
apiVersion: kubeadm.k8s.io/v1beta3
kind: ClusterConfiguration
networking: {podCIDR: x, serviceSubnet: 10.96.0.0/30}
---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
"#;
    let error = parse(text, names()).unwrap_err().to_string();
    for what in [
        "InitConfiguration: nonsense: unknown field",
        "InitConfiguration: bootstrapTokens.0.ttL: unknown field",
        "InitConfiguration: nodeRegistration.nam: unknown field",
        "InitConfiguration: nodeRegistration.name: invalid type",
        "InitConfiguration: patches: not supported",
        "ClusterConfiguration: networking.podCIDR: unknown field",
        "KubeProxyConfiguration",
        "7 faults",
    ] {
        assert!(error.contains(what), "{what}: {error}");
    }
}

/// What `kubeadm config print init-defaults` prints.
const INIT_DEFAULTS: &str = r#"
apiVersion: kubeadm.k8s.io/v1beta3
bootstrapTokens:
- groups:
  - system:bootstrappers:kubeadm:default-node-token
  token: abcdef.0123456789abcdef
  ttl: 24h0m0s
  usages:
  - signing
  - authentication
kind: InitConfiguration
localAPIEndpoint:
  advertiseAddress: 1.2.3.4
  bindPort: 6443
nodeRegistration:
  criSocket: unix:///var/run/containerd/containerd.sock
  imagePullPolicy: IfNotPresent
  name: node
  taints: null
---
apiServer:
  timeoutForControlPlane: 4m0s
apiVersion: kubeadm.k8s.io/v1beta3
certificatesDir: /etc/kubernetes/pki
clusterName: kubernetes
controllerManager: {}
dns: {}
etcd:
  local:
    dataDir: /var/lib/etcd
imageRepository: registry.k8s.io
kind: ClusterConfiguration
kubernetesVersion: 1.25.0
networking:
  dnsDomain: cluster.local
  serviceSubnet: 10.96.0.0/12
scheduler: {}
"#;

#[test]
fn kubeadm_s_defaults_are_read_as_they_are() {
    let read = parse(INIT_DEFAULTS, names()).unwrap();
    let (init, cluster) = (read.init.unwrap(), read.cluster.unwrap());
    assert_eq!(init.local_api_endpoint.advertise_address, Some([1, 2, 3, 4].into()));
    assert_eq!(
        (init.node_registration.name.as_str(), init.node_registration.taints),
        ("node", None)
    );
    assert_eq!(cluster.api_server.timeout_for_control_plane, "4m0s");
    assert_eq!(cluster.certificates_dir, "/etc/kubernetes/pki");
    let ignored = |field: &str| read.warnings.iter().filter(|text| text.contains(field)).count();
    for field in ["nodeRegistration.imagePullPolicy", ": etcd.local:", "imageRepository"] {
        assert_eq!(ignored(field), 1, "{field}: {:?}", read.warnings);
    }
    assert_eq!(read.warnings.len(), 3, "{:?}", read.warnings);
}

#[test]
fn the_newer_version_is_read_with_what_it_says_otherwise() {
    let text = INIT_DEFAULTS
        .replace("v1beta3", "v1beta4")
        .replace("  timeoutForControlPlane: 4m0s\n", "  extraArgs: [{name: event-ttl, value: 2h}]\n")
        .replace("certificatesDir:", "caCertificateValidityPeriod: 87600h0m0s\ncertificateValidityPeriod: 8760h0m0s\nencryptionAlgorithm: RSA-2048\nproxy: {}\ncertificatesDir:")
        .replace("  taints: null\n", "  imagePullSerial: true\n  kubeletExtraArgs: [{name: v, value: \"4\"}]\ntimeouts: {controlPlaneComponentHealthCheck: 7m0s, etcdAPICall: 2m0s}\n");
    let read = parse(&text, names()).unwrap();
    let (init, cluster) = (read.init.clone().unwrap(), read.cluster.clone().unwrap());
    assert_eq!(init.node_registration.kubelet_extra_args["v"], "4");
    assert_eq!(cluster.api_server.extra_args["event-ttl"], "2h");
    assert_eq!(cluster.api_server.timeout_for_control_plane, "7m0s");
    let has = |what: &str| read.warnings.iter().any(|text| text.contains(what));
    assert!(has("timeouts: ignored") && has("encryptionAlgorithm") && has("imagePullSerial"));
    let (text, ignored) = migrate(&text, names()).unwrap();
    assert_eq!(ignored, read.warnings);
    let again = parse(&text, names()).unwrap();
    assert_eq!((again.init, again.cluster), (read.init, read.cluster));
    assert_eq!(again.warnings, [] as [&str; 0]);

    let join = |end: &str| {
        let text = format!(
            "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\ndiscovery: {{tlsBootstrapToken: t}}\n{end}\n"
        );
        parse(&text, names())
    };
    let read = join("timeouts: {discovery: 9m0s}").unwrap();
    assert_eq!(read.join.unwrap().discovery.timeout, "9m0s");
    let twice = "nodeRegistration: {kubeletExtraArgs: [{name: a, value: b}, {name: a, value: c}]}";
    let error = join(twice).unwrap_err().to_string();
    assert!(error.contains("kubeletExtraArgs: a is given twice"), "{error}");
}

#[test]
fn a_version_that_is_not_served_is_warned_of() {
    for served in ["1.25.0", "v1.25", "v1.25.16-rc.1"] {
        assert_eq!(version_warning("f", served).unwrap(), None, "{served}");
    }
    for other in ["v1.31.0", "1.2.3", "stable-1", "latest", "ci/latest-1.26"] {
        let warning = version_warning("f", other).unwrap().unwrap();
        assert!(warning.starts_with(&format!("f {other}: ignored")), "{warning}");
    }
    for bad in ["", "1", "one.two", "v1.x"] {
        assert!(version_warning("f", bad).is_err(), "{bad}");
    }
}

#[test]
fn printed_defaults_are_read_again() {
    let runtime = "unix:///r";
    let [init, cluster] = init_defaults(names(), runtime);
    let join = join_defaults(names(), runtime);
    let text = format!("{init}\n---\n{cluster}\n---\n{join}\n");
    let read = parse(&text, names()).unwrap();
    assert_eq!(read.warnings, [] as [&str; 0]);
    assert_eq!(read.cluster, Some(ClusterConfiguration::default()));
    assert_eq!(read.init.unwrap().node_registration.cri_socket, runtime);
    assert!(read.join.unwrap().discovery.bootstrap_token.is_some());
}
