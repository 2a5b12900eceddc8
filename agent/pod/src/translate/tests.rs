use agent_node::cgroup::CpuBound;
use proto_api::core::v1::{Container, ContainerPort, Pod, VolumeMount};

use super::*;
use crate::spec::DnsConfig;

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
        huge_page_sizes: vec![2 << 20],
        ..NodeFacts::default()
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
    let sandbox = sandbox_config(&pod, &node(), "/kubepods/besteffort/podu-1", 2).expect("sandbox");
    assert_eq!(sandbox.log_directory, "/var/log/pods/shop_web_u-1");
    assert_eq!(sandbox.hostname, "web");
    assert_eq!(sandbox.attempt, 2);
    assert_eq!(sandbox.labels["io.kubernetes.pod.uid"], "u-1");
    assert_eq!(sandbox.labels["app"], "web");
    assert_eq!(sandbox.cgroup_parent, "/kubepods/besteffort/podu-1");
    assert_eq!(sandbox.namespaces, Namespaces::default());
    assert_eq!(sandbox.security.seccomp, crate::spec::Seccomp::RuntimeDefault);
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
fn the_container_config_follows_the_container_spec() {
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
        ..ContainerInputs::default()
    };
    let got = container_config(&pod, &pod.spec.containers[0], &node(), inputs).expect("container");
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
    let missing =
        container_config(&pod, &pod.spec.containers[0], &node(), ContainerInputs::default());
    assert_eq!(missing, Err(TranslateError::NoVolume("v".into())));
}

#[test]
fn granted_resources_and_devices_are_in_the_container_config() {
    let mut pod = pod();
    let limits = &mut pod.spec.containers[0].resources.limits;
    limits.insert("hugepages-2Mi".into(), "4Mi".parse().expect("quantity"));
    limits.insert("cpu".into(), "500m".parse().expect("quantity"));
    let granted = GrantedResources {
        cpus: "1".into(),
        mems: "0".into(),
        env: vec![("GPU".into(), "g0".into()), ("A".into(), "device's".into())],
        mounts: vec![Mount { container_path: "/lib/gpu".into(), ..Mount::default() }],
        devices: vec![crate::spec::DeviceNode {
            host_path: "/dev/g0".into(),
            ..Default::default()
        }],
        annotations: [("cdi".to_owned(), "g0".to_owned())].into(),
    };
    let inputs = ContainerInputs {
        env: vec![("A".into(), "pod's".into())],
        granted: granted.clone(),
        ..ContainerInputs::default()
    };
    let node = node();
    let got =
        container_config(&pod, &pod.spec.containers[0], &node, inputs.clone()).expect("container");
    assert_eq!(
        (got.resources.cpuset_cpus.as_str(), got.resources.cpuset_mems.as_str()),
        ("1", "0")
    );
    assert_eq!(got.resources.huge_page_limits, [("2MB".to_owned(), 4 << 20)]);
    assert_eq!(got.resources.cpu_quota_us, 50_000);
    assert_eq!(got.env, [("A".into(), "pod's".into()), ("GPU".to_owned(), "g0".to_owned())]);
    assert_eq!(got.devices, granted.devices);
    assert!(got.mounts.contains(&granted.mounts[0]) && got.annotations.contains_key("cdi"));
    let off = NodeFacts { cpu_bound: CpuBound::Off, ..node };
    let got = container_config(&pod, &pod.spec.containers[0], &off, inputs).expect("container");
    assert_eq!((got.resources.cpu_quota_us, got.resources.cpu_period_us), (0, 0));
}

#[test]
fn sandboxes_carry_sysctls_and_traffic_limits_as_runtimes_read_them() {
    let mut pod = pod();
    let node = node();
    pod.spec.security_context = Some(proto_api::core::v1::PodSecurityContext {
        sysctls: vec![proto_api::core::v1::Sysctl {
            name: "net/ipv4/tcp_syncookies".into(),
            value: "0".into(),
        }],
        run_as_group: Some(7),
        ..Default::default()
    });
    let egress = node.names.label("egress-bandwidth");
    pod.metadata.annotations.insert(egress.clone(), "1M".into());
    pod.metadata.annotations.insert(names::RUNTIME_BANDWIDTH[0].into(), "not ours".into());
    let got = sandbox_config(&pod, &node, "/p", 0).expect("sandbox");
    assert_eq!(got.sysctls["net.ipv4.tcp_syncookies"], "0");
    assert_eq!(got.annotations[names::RUNTIME_BANDWIDTH[1]], "1000000");
    assert_eq!(got.annotations.get(names::RUNTIME_BANDWIDTH[0]), None);
    assert_eq!(got.security.run_as_group, None, "a group alone is refused by runtimes");
    pod.metadata.annotations.insert(egress, "1".into());
    assert!(matches!(sandbox_config(&pod, &node, "/p", 0), Err(TranslateError::Bandwidth { .. })));
}

#[test]
fn arguments_come_to_no_more_than_the_bound_with_their_variables() {
    let pod = pod();
    let make = |command: &[&str], args: Vec<String>| {
        let command = command.iter().map(|text| (*text).to_owned()).collect();
        let made = Container { name: "c".into(), command, args, ..Container::default() };
        let env = vec![("A".to_owned(), "x".repeat(1000)), ("B".to_owned(), "$(A)".to_owned())];
        let inputs = ContainerInputs { env, ..ContainerInputs::default() };
        container_config(&pod, &made, &node(), inputs).map(|config| (config.command, config.args))
    };
    let (command, args) = make(&["$(B)"], vec!["$$(A) $(A)".into()]).expect("small");
    assert_eq!((command[0].as_str(), args[0].len()), ("$(A)", 1005));
    assert!(make(&[], vec!["$(A)".repeat(1000)]).is_ok());
    for args in [vec!["$(A)".repeat(2000)], vec!["$(A)".into(); 2000], vec![String::new(); 2 << 20]]
    {
        let error = make(&[], args).map(drop).expect_err("too much").to_string();
        assert_eq!(error, "args of container \"c\" is more than 1048576 bytes with its variables");
    }
}
