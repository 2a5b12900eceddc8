use proto_api::core::v1::{
    Capabilities, Container, ContainerPort, Pod, PodDNSConfig, PodDNSConfigOption,
    PodSecurityContext, SeccompProfile, SecurityContext, VolumeMount,
};

use super::*;

fn node() -> NodeFacts {
    NodeFacts {
        pod_logs_dir: "/var/log/pods".into(),
        seccomp_dir: "/root/seccomp".into(),
        cluster_dns: vec!["10.96.0.10".into()],
        cluster_domain: "cluster.local".into(),
        resolver: DnsConfig {
            servers: vec!["192.0.2.1".into()],
            searches: vec!["example.org".into()],
            options: vec!["timeout:1".into()],
        },
        memory_bytes: 1 << 33,
    }
}

fn pod() -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = "web".into();
    pod.metadata.namespace = "shop".into();
    pod.metadata.uid = "u-1".into();
    pod.spec.containers = vec![Container { name: "c".into(), ..Container::default() }];
    pod
}

#[test]
fn a_sandbox_carries_the_pods_names() {
    let mut pod = pod();
    pod.metadata.labels.insert("app".into(), "web".into());
    let sandbox = sandbox(&pod, &node(), "/kubepods/besteffort/podu-1", 2).expect("sandbox");
    assert_eq!(sandbox.log_directory, "/var/log/pods/shop_web_u-1");
    assert_eq!(sandbox.hostname, "web");
    assert_eq!(sandbox.attempt, 2);
    assert_eq!(sandbox.labels["io.kubernetes.pod.uid"], "u-1");
    assert_eq!(sandbox.labels["app"], "web");
    assert_eq!(sandbox.cgroup_parent, "/kubepods/besteffort/podu-1");
    assert_eq!(sandbox.namespaces, Namespaces::default());
    assert_eq!(sandbox.security.seccomp, Seccomp::RuntimeDefault);
}

#[test]
fn host_names_fit_the_kernel() {
    let mut pod = pod();
    pod.metadata.name = format!("{}-{}", "a".repeat(62), "b".repeat(10));
    assert_eq!(hostname(&pod), "a".repeat(62));
    pod.spec.hostname = "given".into();
    assert_eq!(hostname(&pod), "given");
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
        let mut pod = pod();
        pod.spec.dns_policy = policy.into();
        pod.spec.host_network = host_network;
        let got = dns(&pod, &node()).expect("always set");
        assert_eq!(got.servers, servers, "{policy} {host_network}");
    }
    let got = dns(&pod(), &node()).expect("always set");
    assert_eq!(
        got.searches,
        ["shop.svc.cluster.local", "svc.cluster.local", "cluster.local", "example.org"]
    );
    assert_eq!(got.options, ["ndots:5"]);
}

#[test]
fn a_pods_own_resolver_settings_are_merged() {
    let mut pod = pod();
    let option = |name: &str, value: Option<&str>| PodDNSConfigOption {
        name: name.into(),
        value: value.map(str::to_owned),
    };
    pod.spec.dns_config = Some(PodDNSConfig {
        nameservers: vec!["192.0.2.9".into(), "10.96.0.10".into()],
        searches: vec!["my.dns".into()],
        options: vec![option("ndots", Some("2")), option("edns0", None)],
    });
    let got = dns(&pod, &node()).expect("always set");
    assert_eq!(got.servers, ["10.96.0.10", "192.0.2.9"]);
    assert_eq!(got.searches.last().map(String::as_str), Some("my.dns"));
    assert_eq!(got.options, ["ndots:2", "edns0"]);
}

#[test]
fn host_ports_only() {
    let mut pod = pod();
    let port = |container_port, host_port, protocol: &str| ContainerPort {
        container_port,
        host_port,
        protocol: protocol.into(),
        ..ContainerPort::default()
    };
    pod.spec.containers[0].ports =
        vec![port(80, 8080, "TCP"), port(81, 0, "TCP"), port(53, 53, "UDP")];
    let got: Vec<_> = port_mappings(&pod).into_iter().map(|m| (m.protocol, m.host_port)).collect();
    assert_eq!(got, [(Protocol::Tcp, 8080), (Protocol::Udp, 53)]);
    pod.spec.host_network = true;
    assert!(port_mappings(&pod).is_empty());
}

#[test]
fn a_container_is_what_its_spec_says() {
    let mut pod = pod();
    pod.spec.containers[0] = Container {
        name: "c".into(),
        image: "i:1".into(),
        command: vec!["run".into(), "$(A)".into()],
        args: vec!["$(NONE)".into()],
        volume_mounts: vec![VolumeMount {
            name: "v".into(),
            mount_path: "/data".into(),
            read_only: true,
            ..VolumeMount::default()
        }],
        ..Container::default()
    };
    let inputs = ContainerInputs {
        attempt: 3,
        image_id: "sha256:1".into(),
        env: vec![("A".into(), "1".into())],
        volumes: [(
            "v".to_owned(),
            VolumeOnHost { path: "/host/v".to_owned(), ..VolumeOnHost::default() },
        )]
        .into(),
        sub_paths: BTreeMap::new(),
        extra_mounts: Vec::new(),
    };
    let got = container(&pod, &pod.spec.containers[0], &node(), inputs).expect("container");
    assert_eq!(got.command, ["run", "1"]);
    assert_eq!(got.args, ["$(NONE)"]);
    assert_eq!(got.log_path, "c/3.log");
    assert_eq!(got.image, "sha256:1");
    assert_eq!(got.annotations["io.kubernetes.container.restartCount"], "3");
    assert_eq!(got.labels["io.kubernetes.container.name"], "c");
    let mount = Mount {
        container_path: "/data".into(),
        host_path: "/host/v".into(),
        read_only: true,
        ..Mount::default()
    };
    assert_eq!(got.mounts, [mount]);
    assert_eq!(got.resources.oom_score_adj, 1000);
    assert_eq!(got.resources.cpu_shares, 2);
    let missing = container(&pod, &pod.spec.containers[0], &node(), ContainerInputs::default());
    assert_eq!(missing, Err(TranslateError::NoVolume("v".into())));
}

#[test]
fn a_container_says_more_than_its_pod() {
    let mut pod = pod();
    pod.spec.security_context = Some(PodSecurityContext {
        run_as_user: Some(1000),
        run_as_group: Some(1000),
        fs_group: Some(2000),
        supplemental_groups: vec![3000],
        ..PodSecurityContext::default()
    });
    pod.spec.containers[0].security_context = Some(SecurityContext {
        run_as_user: Some(0),
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities {
            add: vec!["NET_ADMIN".into()],
            drop: vec!["ALL".into()],
        }),
        ..SecurityContext::default()
    });
    let got = security(&pod, &pod.spec.containers[0], &node()).expect("security");
    assert_eq!((got.run_as_user, got.run_as_group), (Some(0), Some(1000)));
    assert_eq!(got.supplemental_groups, [2000, 3000]);
    assert!(got.no_new_privileges);
    assert_eq!(got.drop_capabilities, ["ALL"]);
    assert_eq!(got.masked_paths, None);
    assert_eq!(got.seccomp, Seccomp::Unconfined);
}

#[test]
fn a_local_seccomp_profile_needs_its_name() {
    let profile = |type_: &str, name: Option<&str>| SeccompProfile {
        type_: type_.into(),
        localhost_profile: name.map(str::to_owned),
    };
    let cases = [
        (profile("RuntimeDefault", None), Ok(Seccomp::RuntimeDefault)),
        (
            profile("Localhost", Some("p.json")),
            Ok(Seccomp::Localhost("/root/seccomp/p.json".into())),
        ),
        (profile("Localhost", Some("")), Err(TranslateError::NoSeccompProfile)),
        (profile("Localhost", None), Err(TranslateError::NoSeccompProfile)),
        (profile("", None), Err(TranslateError::UnknownSeccomp(String::new()))),
    ];
    for (profile, expect) in cases {
        assert_eq!(seccomp(Some(&profile), &node()), expect.map(Some), "{profile:?}");
    }
}
