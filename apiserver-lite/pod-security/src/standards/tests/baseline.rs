//! Tables of the level baseline: specs, and all that they violate.

use super::*;

/// Each spec violates exactly this, at the oldest and the newest version.
fn check_table(rows: &[(Value, &str)]) {
    for (spec, expected) in rows {
        for policy in ["baseline:v1.0", "baseline:v1.25", "baseline:latest"] {
            assert_eq!(describe(policy, spec.clone()), *expected, "{policy}: {spec}");
        }
    }
}

/// A container, an init container and an ephemeral container with one security context.
fn three_containers(context: &Value) -> Value {
    json!({
        "containers": [container("a", context.clone()), {"name": "plain"}],
        "initContainers": [container("i", context.clone())],
        "ephemeralContainers": [container("e", context.clone())],
    })
}

#[test]
fn host_namespaces() {
    check_table(&[
        (json!({"hostNetwork": false, "hostPID": false, "hostIPC": false}), ""),
        (json!({"hostNetwork": true}), "host namespaces (hostNetwork=true)"),
        (json!({"hostPID": true}), "host namespaces (hostPID=true)"),
        (json!({"hostIPC": true}), "host namespaces (hostIPC=true)"),
        (
            json!({"hostIPC": true, "hostPID": true, "hostNetwork": true}),
            "host namespaces (hostNetwork=true, hostPID=true, hostIPC=true)",
        ),
        (json!({"shareProcessNamespace": true, "hostUsers": true}), ""),
    ]);
}

#[test]
fn privileged() {
    check_table(&[
        (three_containers(&json!({"privileged": false})), ""),
        (
            json!({"containers": [container("a", json!({"privileged": true}))]}),
            "privileged (container \"a\" must not set securityContext.privileged=true)",
        ),
        (
            json!({"ephemeralContainers": [container("e", json!({"privileged": true}))]}),
            "privileged (container \"e\" must not set securityContext.privileged=true)",
        ),
        (
            three_containers(&json!({"privileged": true})),
            "privileged (containers \"i\", \"a\", \"e\" must not set securityContext.privileged=true)",
        ),
        (
            json!({"containers": [container("", json!({"privileged": true}))]}),
            "privileged (container \"\" must not set securityContext.privileged=true)",
        ),
    ]);
}

#[test]
fn capabilities() {
    let add = |name: &str, add: &[&str]| container(name, json!({"capabilities": {"add": add}}));
    let default = [
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    ];
    check_table(&[
        (json!({"containers": [add("a", &default)]}), ""),
        (json!({"containers": [add("a", &[])]}), ""),
        (json!({"containers": [container("a", json!({"capabilities": {"drop": ["FOO"]}}))]}), ""),
        (
            json!({"containers": [add("a", &["CHOWN", "NET_RAW"])]}),
            "non-default capabilities (container \"a\" must not include \"NET_RAW\" in securityContext.capabilities.add)",
        ),
        (
            json!({"containers": [
                add("a", &["FOO", "BAR"]),
                add("b", &["BAR", "BAZ"]),
                add("c", &["NET_BIND_SERVICE", "CHOWN"]),
            ]}),
            "non-default capabilities (containers \"a\", \"b\" must not include \"BAR\", \"BAZ\", \"FOO\" in securityContext.capabilities.add)",
        ),
        (
            json!({"initContainers": [add("i", &["ALL"])], "ephemeralContainers": [add("e", &["", "chown"])]}),
            "non-default capabilities (containers \"i\", \"e\" must not include \"\", \"ALL\", \"chown\" in securityContext.capabilities.add)",
        ),
    ]);
}

#[test]
fn host_path_volumes() {
    check_table(&[
        (
            json!({"volumes": [{"name": "a"}, {"name": "b", "emptyDir": {}}, {"name": "c", "nfs": {}}]}),
            "",
        ),
        (json!({"volumes": [{"name": "a", "hostPath": {}}]}), "hostPath volumes (volume \"a\")"),
        (
            json!({"volumes": [
                {"name": "b", "hostPath": {"path": "/"}},
                {"name": "x", "secret": {}},
                {"name": "a", "hostPath": {}, "configMap": {}},
            ]}),
            "hostPath volumes (volumes \"b\", \"a\")",
        ),
    ]);
}

#[test]
fn host_ports() {
    let ports = |name: &str, ports: &[i32]| {
        let ports: Vec<Value> = ports.iter().map(|port| json!({"hostPort": port})).collect();
        json!({"name": name, "ports": ports})
    };
    check_table(&[
        (json!({"containers": [ports("a", &[]), ports("b", &[0, 0])]}), ""),
        (json!({"containers": [{"name": "a", "ports": [{"containerPort": 80}]}]}), ""),
        (json!({"containers": [ports("a", &[80])]}), "hostPort (container \"a\" uses hostPort 80)"),
        (
            json!({"containers": [ports("a", &[80, 1000, 80, 0])]}),
            "hostPort (container \"a\" uses hostPorts 1000, 80)",
        ),
        (
            json!({"containers": [ports("a", &[80]), ports("b", &[80])]}),
            "hostPort (containers \"a\", \"b\" use hostPort 80)",
        ),
        (
            json!({
                "containers": [ports("a", &[i32::MAX])],
                "initContainers": [ports("i", &[-1])],
                "ephemeralContainers": [ports("e", &[i32::MIN])],
            }),
            "hostPort (containers \"i\", \"a\", \"e\" use hostPorts -1, -2147483648, 2147483647)",
        ),
    ]);
}

#[test]
fn app_armor_annotations() {
    let key = |container: &str| names().apparmor_annotation(container);
    let (a, b, none) = (key("a"), key("b"), key(""));
    let other = "apparmor.security.beta.kubernetes.io/a";
    for (annotations, expected) in [
        (json!({}), ""),
        (json!({&a: "runtime/default", &b: "localhost/x", &none: ""}), ""),
        (json!({&a: "localhost/", other: "unconfined", "a": "unconfined"}), ""),
        (
            json!({&a: "unconfined"}),
            "forbidden AppArmor profile (container.apparmor.security.beta.kubernetes.io/a=\"unconfined\")",
        ),
        (
            json!({&b: "localhost", &a: "x\"\n", &none: "docker/default"}),
            "forbidden AppArmor profiles (container.apparmor.security.beta.kubernetes.io/=\"docker/default\", container.apparmor.security.beta.kubernetes.io/a=\"x\\\"\\n\", container.apparmor.security.beta.kubernetes.io/b=\"localhost\")",
        ),
    ] {
        for policy in ["baseline:v1.0", "baseline:latest"] {
            let found = find(policy, json!({"metadata": {"annotations": annotations}}));
            assert_eq!(describe_violations(&found), expected, "{policy}: {annotations}");
        }
    }
}

#[test]
fn annotations_have_the_names_of_the_profile() {
    let own = Names::new(Profile::Orch { domain: "example.test".to_owned() });
    let annotated = |names: &Names| {
        let (armor, seccomp) = (names.apparmor_annotation("a"), names.pod_seccomp_annotation());
        pod(json!({"metadata": {"annotations": {armor: "x", seccomp: "x"}}}))
    };
    let find = |pod: &Pod| {
        let found = find_violations(level_version("baseline:v1.0"), &pod.metadata, &pod.spec, own);
        describe_violations(&found)
    };
    assert_eq!(find(&annotated(names())), "");
    assert_eq!(
        find(&annotated(own)),
        "forbidden AppArmor profile (container.apparmor.security.beta.example.test/a=\"x\"), seccompProfile (forbidden annotation seccomp.security.alpha.example.test/pod=\"x\")"
    );
}

#[test]
fn selinux_options() {
    let set = |options: Value| json!({"seLinuxOptions": options});
    let typed = |name: &str, type_: &str| container(name, set(json!({"type": type_})));
    let allowed = [
        typed("a", ""),
        typed("b", "container_t"),
        typed("c", "container_init_t"),
        typed("d", "container_kvm_t"),
        container("l", set(json!({"level": "s0:c1,c2"}))),
    ];
    let bad = [
        typed("e", "bar"),
        container("f", set(json!({"user": "bar"}))),
        container("g", set(json!({"role": "baz"}))),
    ];
    let bad_pod = set(json!({"type": "foo", "user": "bar", "role": "baz"}));
    check_table(&[
        (json!({"containers": &allowed}), ""),
        (
            json!({"securityContext": &bad_pod, "containers": &allowed}),
            "seLinuxOptions (pod set forbidden securityContext.seLinuxOptions: type \"foo\"; user may not be set; role may not be set)",
        ),
        (
            json!({"containers": &bad}),
            "seLinuxOptions (containers \"e\", \"f\", \"g\" set forbidden securityContext.seLinuxOptions: type \"bar\"; user may not be set; role may not be set)",
        ),
        (
            json!({"securityContext": &bad_pod, "initContainers": &allowed, "ephemeralContainers": &bad}),
            "seLinuxOptions (pod and containers \"e\", \"f\", \"g\" set forbidden securityContext.seLinuxOptions: types \"bar\", \"foo\"; user may not be set; role may not be set)",
        ),
        (
            json!({"securityContext": set(json!({"user": "x", "type": "container_t"}))}),
            "seLinuxOptions (pod set forbidden securityContext.seLinuxOptions: user may not be set)",
        ),
        (
            json!({"initContainers": [container("i", set(json!({"role": "x"})))]}),
            "seLinuxOptions (container \"i\" set forbidden securityContext.seLinuxOptions: role may not be set)",
        ),
    ]);
}

#[test]
fn proc_mounts() {
    let mount = |name: &str, mount: &str| container(name, json!({"procMount": mount}));
    check_table(&[
        (json!({"containers": [mount("a", "Default"), {"name": "b"}]}), ""),
        (
            json!({"containers": [mount("a", "Unmasked"), mount("b", "Default")]}),
            "procMount (container \"a\" must not set securityContext.procMount to \"Unmasked\")",
        ),
        (
            json!({
                "containers": [mount("a", "Unmasked"), mount("b", "other")],
                "initContainers": [mount("i", "")],
                "ephemeralContainers": [mount("e", "default")],
            }),
            "procMount (containers \"i\", \"a\", \"b\", \"e\" must not set securityContext.procMount to \"\", \"Unmasked\", \"default\", \"other\")",
        ),
    ]);
}

#[test]
fn sysctls() {
    let set = |names: &[&str]| {
        let sysctls: Vec<Value> = names.iter().map(|n| json!({"name": n, "value": "1"})).collect();
        json!({"securityContext": {"sysctls": sysctls}})
    };
    let safe = [
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.ping_group_range",
        "net.ipv4.ip_unprivileged_port_start",
    ];
    check_table(&[
        (set(&safe), ""),
        (set(&[]), ""),
        (set(&["b", safe[0], "a", "b"]), "forbidden sysctls (b, a, b)"),
        (set(&[""]), "forbidden sysctls"),
        (set(&["kernel/shm_rmid_forced"]), "forbidden sysctls (kernel/shm_rmid_forced)"),
        // Allowed since 1.27.
        (
            set(&["net.ipv4.ip_local_reserved_ports"]),
            "forbidden sysctls (net.ipv4.ip_local_reserved_ports)",
        ),
    ]);
}

#[test]
fn host_processes() {
    let set = |host: bool| json!({"windowsOptions": {"hostProcess": host}});
    check_table(&[
        (three_containers(&set(false)), ""),
        (json!({"securityContext": set(false)}), ""),
        (
            json!({"securityContext": set(true), "containers": [container("a", set(false))]}),
            "hostProcess (pod must not set securityContext.windowsOptions.hostProcess=true)",
        ),
        (
            json!({"securityContext": set(true), "os": {"name": "windows"}, "containers": [container("a", set(true))]}),
            "hostProcess (pod and container \"a\" must not set securityContext.windowsOptions.hostProcess=true)",
        ),
        (
            three_containers(&set(true)),
            "hostProcess (containers \"i\", \"a\", \"e\" must not set securityContext.windowsOptions.hostProcess=true)",
        ),
    ]);
}

#[test]
fn seccomp_profiles() {
    let set = |name: &str| json!({"seccompProfile": {"type": name}});
    for (spec, expected) in [
        (three_containers(&set("RuntimeDefault")), ""),
        (json!({"securityContext": set("Localhost"), "containers": [{"name": "a"}]}), ""),
        (json!({"containers": [{"name": "a"}]}), ""),
        (
            json!({"securityContext": set("Unconfined"), "containers": [container("a", set("Localhost"))]}),
            "seccompProfile (pod must not set securityContext.seccompProfile.type to \"Unconfined\")",
        ),
        (
            json!({"containers": [container("a", set("")), container("b", set("RuntimeDefault"))]}),
            "seccompProfile (container \"a\" must not set securityContext.seccompProfile.type to \"\")",
        ),
        (
            json!({
                "securityContext": set("z"),
                "containers": [container("a", set("Unconfined"))],
                "initContainers": [container("i", set("runtime/default"))],
                "ephemeralContainers": [container("e", set("z"))],
            }),
            "seccompProfile (pod and containers \"i\", \"a\", \"e\" must not set securityContext.seccompProfile.type to \"Unconfined\", \"runtime/default\", \"z\")",
        ),
    ] {
        for policy in ["baseline:v1.19", "baseline:v1.25", "baseline:latest"] {
            assert_eq!(describe(policy, spec.clone()), expected, "{policy}: {spec}");
        }
        assert_eq!(describe("baseline:v1.18", spec.clone()), "", "{spec}");
    }
}

#[test]
fn seccomp_annotations() {
    let of_pod = "seccomp.security.alpha.kubernetes.io/pod";
    let of_a = "container.seccomp.security.alpha.kubernetes.io/a";
    let of_e = "container.seccomp.security.alpha.kubernetes.io/e";
    let of_absent = "container.seccomp.security.alpha.kubernetes.io/absent";
    for (annotations, expected) in [
        (json!({}), ""),
        (json!({of_pod: "runtime/default", of_a: "docker/default", of_e: "localhost/x"}), ""),
        (json!({of_absent: "unconfined", "seccomp.security.alpha.kubernetes.io/": "x"}), ""),
        (
            json!({of_pod: "unconfined"}),
            "seccompProfile (forbidden annotation seccomp.security.alpha.kubernetes.io/pod=\"unconfined\")",
        ),
        (
            json!({of_pod: "", of_e: "localhost", of_a: "\t"}),
            "seccompProfile (forbidden annotations container.seccomp.security.alpha.kubernetes.io/a=\"\\t\", container.seccomp.security.alpha.kubernetes.io/e=\"localhost\", seccomp.security.alpha.kubernetes.io/pod=\"\")",
        ),
    ] {
        let pod = json!({
            "metadata": {"annotations": annotations},
            "spec": {"containers": [{"name": "a"}, {"name": "a"}], "ephemeralContainers": [{"name": "e"}]},
        });
        for policy in ["baseline:v1.0", "baseline:v1.18"] {
            assert_eq!(describe_violations(&find(policy, pod.clone())), expected, "{annotations}");
        }
        for policy in ["baseline:v1.19", "baseline:latest"] {
            assert_eq!(find(policy, pod.clone()), [], "{policy}: {annotations}");
        }
    }
}

#[test]
fn many_containers_are_all_named() {
    let count = 5000;
    let containers: Vec<Value> = (0..count)
        .map(|i| json!({"name": format!("c{i}"), "ports": [{"hostPort": 1}], "securityContext": {"privileged": true}}))
        .collect();
    let found = find("baseline:latest", json!({"spec": {"containers": containers}}));
    assert_eq!(list_reasons(&found), "hostPort, privileged");
    for violation in found {
        assert!(violation.detail.starts_with("containers \"c0\", \"c1\", "));
        assert_eq!(violation.detail.matches('"').count(), 2 * count);
    }
}
