//! Tables of the level restricted: specs, and what one check says of them.

use super::*;

fn check_table(policy: &str, check: &str, rows: &[(Value, &str)]) {
    for (spec, expected) in rows {
        assert_eq!(describe_check(policy, check, spec.clone()), *expected, "{policy}: {spec}");
    }
}

/// A spec with what the level asks for.
fn hardened() -> Value {
    let context = json!({
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
    });
    json!({
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container("a", context.clone())],
        "initContainers": [container("i", context.clone())],
        "ephemeralContainers": [container("e", context)],
        "volumes": [{"name": "v", "emptyDir": {}}],
    })
}

#[test]
fn a_hardened_pod_is_allowed() {
    for version in ["v1.0", "v1.8", "v1.19", "v1.22", "v1.24", "v1.25", "latest"] {
        assert_eq!(describe(&format!("restricted:{version}"), hardened()), "", "{version}");
    }
}

#[test]
fn the_restricted_level_includes_the_baseline_checks() {
    let mut spec = hardened();
    spec["hostPID"] = json!(true);
    spec["containers"][0]["ports"] = json!([{"hostPort": 1}]);
    assert_eq!(
        describe("restricted:latest", spec),
        "host namespaces (hostPID=true), hostPort (container \"a\" uses hostPort 1)"
    );
}

#[test]
fn privilege_escalation() {
    let set =
        |name: &str, value: Value| container(name, json!({"allowPrivilegeEscalation": value}));
    let rows = [
        (json!({"containers": [set("a", json!(false))]}), ""),
        (
            json!({"containers": [set("a", json!(true))]}),
            "allowPrivilegeEscalation != false (container \"a\" must set securityContext.allowPrivilegeEscalation=false)",
        ),
        (
            json!({
                "securityContext": {},
                "containers": [set("a", json!(false)), set("b", Value::Null), {"name": "c"}],
                "initContainers": [set("i", json!(true))],
                "ephemeralContainers": [{"name": "e"}],
            }),
            "allowPrivilegeEscalation != false (containers \"i\", \"b\", \"c\", \"e\" must set securityContext.allowPrivilegeEscalation=false)",
        ),
    ];
    for policy in ["restricted:v1.8", "restricted:v1.24", "restricted:latest"] {
        check_table(policy, "allowPrivilegeEscalation", &rows);
    }
    for (spec, _) in rows {
        assert_eq!(describe_check("restricted:v1.7", "allowPrivilegeEscalation", spec), "");
    }
}

#[test]
fn capabilities() {
    let set = |name: &str, add: &[&str], drop: &[&str]| {
        container(name, json!({"capabilities": {"add": add, "drop": drop}}))
    };
    let rows = [
        (
            json!({"containers": [set("a", &[], &["ALL"]), set("b", &["NET_BIND_SERVICE"], &["X", "ALL"])]}),
            "",
        ),
        (
            json!({"containers": [set("a", &[], &["all"])]}),
            "unrestricted capabilities (container \"a\" must set securityContext.capabilities.drop=[\"ALL\"])",
        ),
        (
            json!({"containers": [set("a", &["CHOWN"], &["ALL"])]}),
            "unrestricted capabilities (container \"a\" must not include \"CHOWN\" in securityContext.capabilities.add)",
        ),
        (
            json!({"containers": [
                set("a", &["FOO", "BAR"], &[]),
                set("b", &["BAR", "BAZ"], &["CHOWN"]),
                set("c", &["NET_BIND_SERVICE", "CHOWN"], &["ALL", "FOO"]),
            ]}),
            "unrestricted capabilities (containers \"a\", \"b\" must set securityContext.capabilities.drop=[\"ALL\"]; containers \"a\", \"b\", \"c\" must not include \"BAR\", \"BAZ\", \"CHOWN\", \"FOO\" in securityContext.capabilities.add)",
        ),
        (
            json!({
                "containers": [{"name": "a"}],
                "initContainers": [container("i", json!({"privileged": false}))],
                "ephemeralContainers": [container("e", json!({"capabilities": {}}))],
            }),
            "unrestricted capabilities (containers \"i\", \"a\", \"e\" must set securityContext.capabilities.drop=[\"ALL\"])",
        ),
    ];
    for policy in ["restricted:v1.22", "restricted:v1.24", "restricted:latest"] {
        check_table(policy, "capabilities_restricted", &rows);
        // The check of the level baseline is replaced.
        for (spec, _) in &rows {
            assert_eq!(describe_check(policy, "capabilities_baseline", spec.clone()), "");
        }
    }
    for (spec, _) in rows {
        assert_eq!(describe_check("restricted:v1.21", "capabilities_restricted", spec), "");
    }
    check_table(
        "restricted:v1.21",
        "capabilities_baseline",
        &[(
            json!({"containers": [set("a", &["FOO", "CHOWN"], &[])]}),
            "non-default capabilities (container \"a\" must not include \"FOO\" in securityContext.capabilities.add)",
        )],
    );
}

#[test]
fn volume_types() {
    let allowed = [
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    ];
    let restricted = [
        "awsElasticBlockStore",
        "azureDisk",
        "azureFile",
        "cephfs",
        "cinder",
        "fc",
        "flexVolume",
        "flocker",
        "gcePersistentDisk",
        "gitRepo",
        "glusterfs",
        "hostPath",
        "iscsi",
        "nfs",
        "photonPersistentDisk",
        "portworxVolume",
        "quobyte",
        "rbd",
        "scaleIO",
        "storageos",
        "vsphereVolume",
    ];
    let volume = |type_: &&str| json!({"name": format!("v-{type_}"), *type_: {}});
    let volumes = |types: &[&str]| json!({"volumes": types.iter().map(volume).collect::<Vec<_>>()});
    let quoted: Vec<String> = restricted.iter().map(|type_| format!("\"{type_}\"")).collect();
    let named: Vec<String> = restricted.iter().map(|type_| format!("\"v-{type_}\"")).collect();
    for policy in ["restricted:v1.0", "restricted:latest"] {
        assert_eq!(describe_check(policy, "restrictedVolumes", volumes(&allowed)), "");
        for type_ in restricted {
            assert_eq!(
                describe_check(policy, "restrictedVolumes", volumes(&[type_])),
                format!(
                    "restricted volume types (volume \"v-{type_}\" uses restricted volume type \"{type_}\")"
                )
            );
        }
        assert_eq!(
            describe_check(policy, "restrictedVolumes", volumes(&restricted)),
            format!(
                "restricted volume types (volumes {} use restricted volume types {})",
                named.join(", "),
                quoted.join(", ")
            )
        );
    }
}

#[test]
fn volumes_without_or_with_several_types() {
    for policy in ["restricted:v1.0", "restricted:latest"] {
        // The check of the level baseline is replaced.
        assert_eq!(
            describe_check(
                policy,
                "hostPathVolumes",
                json!({"volumes": [{"name": "a", "hostPath": {}}]})
            ),
            ""
        );
        check_table(
            policy,
            "restrictedVolumes",
            &[
                (
                    json!({"volumes": [{"name": "b", "hostPath": {}}, {"name": "a", "hostPath": {}}]}),
                    "restricted volume types (volumes \"b\", \"a\" use restricted volume type \"hostPath\")",
                ),
                (
                    json!({"volumes": [{"name": ""}]}),
                    "restricted volume types (volume \"\" uses restricted volume type \"unknown\")",
                ),
                (
                    json!({"volumes": [{"name": "a", "nfs": {}, "hostPath": {}}]}),
                    "restricted volume types (volume \"a\" uses restricted volume type \"hostPath\")",
                ),
            ],
        );
    }
}

#[test]
fn non_root_users() {
    let set = |value: bool| json!({"runAsNonRoot": value});
    let rows = [
        (json!({"securityContext": set(true), "containers": [{"name": "a"}]}), ""),
        (json!({"containers": [container("a", set(true))]}), ""),
        (
            json!({"containers": [{"name": "a"}, container("b", set(true)), container("c", json!({}))]}),
            "runAsNonRoot != true (pod or containers \"a\", \"c\" must set securityContext.runAsNonRoot=true)",
        ),
        (
            json!({"securityContext": {}, "ephemeralContainers": [{"name": "e"}]}),
            "runAsNonRoot != true (pod or container \"e\" must set securityContext.runAsNonRoot=true)",
        ),
        (
            json!({"securityContext": set(false), "containers": [container("a", set(true))]}),
            "runAsNonRoot != true (pod must not set securityContext.runAsNonRoot=false)",
        ),
        (
            json!({"securityContext": set(true), "initContainers": [container("i", set(false))]}),
            "runAsNonRoot != true (container \"i\" must not set securityContext.runAsNonRoot=false)",
        ),
        (
            json!({
                "securityContext": set(false),
                "containers": [container("a", set(false)), {"name": "b"}, container("c", set(false))],
            }),
            "runAsNonRoot != true (pod and containers \"a\", \"c\" must not set securityContext.runAsNonRoot=false)",
        ),
    ];
    for policy in ["restricted:v1.0", "restricted:latest"] {
        check_table(policy, "runAsNonRoot", &rows);
    }
}

#[test]
fn user_zero() {
    let set = |user: i64| json!({"runAsUser": user});
    let rows = [
        (json!({"securityContext": set(1), "containers": [container("a", set(i64::MAX))]}), ""),
        (json!({"securityContext": set(-1), "containers": [container("a", set(i64::MIN))]}), ""),
        (json!({"securityContext": {}, "containers": [{"name": "a"}]}), ""),
        (
            json!({"securityContext": set(0), "containers": [container("a", set(1))]}),
            "runAsUser=0 (pod must not set runAsUser=0)",
        ),
        (
            json!({"ephemeralContainers": [container("e", set(0))]}),
            "runAsUser=0 (container \"e\" must not set runAsUser=0)",
        ),
        (
            json!({
                "securityContext": set(0),
                "containers": [container("a", set(0)), {"name": "b"}],
                "initContainers": [container("i", set(0))],
            }),
            "runAsUser=0 (pod and containers \"i\", \"a\" must not set runAsUser=0)",
        ),
    ];
    for policy in ["restricted:v1.23", "restricted:latest"] {
        check_table(policy, "runAsUser", &rows);
    }
    for (spec, _) in rows {
        assert_eq!(describe_check("restricted:v1.22", "runAsUser", spec), "");
    }
}

#[test]
fn seccomp_profiles() {
    let set = |name: &str| json!({"seccompProfile": {"type": name}});
    let rows = [
        (json!({"securityContext": set("Localhost"), "containers": [{"name": "a"}]}), ""),
        (json!({"containers": [container("a", set("RuntimeDefault"))]}), ""),
        (
            json!({"containers": [{"name": "a"}, container("b", set("Localhost")), container("c", json!({}))]}),
            "seccompProfile (pod or containers \"a\", \"c\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")",
        ),
        (
            json!({"securityContext": {}, "initContainers": [{"name": "i"}]}),
            "seccompProfile (pod or container \"i\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")",
        ),
        (
            json!({"securityContext": set("Unconfined"), "containers": [{"name": "a"}]}),
            "seccompProfile (pod must not set securityContext.seccompProfile.type to \"Unconfined\")",
        ),
        (
            json!({"securityContext": set("x"), "ephemeralContainers": [container("e", set("y")), container("f", set("x"))]}),
            "seccompProfile (pod and containers \"e\", \"f\" must not set securityContext.seccompProfile.type to \"x\", \"y\")",
        ),
        (
            json!({"securityContext": set("Localhost"), "containers": [container("a", set(""))]}),
            "seccompProfile (container \"a\" must not set securityContext.seccompProfile.type to \"\")",
        ),
    ];
    for policy in ["restricted:v1.19", "restricted:v1.24", "restricted:latest"] {
        check_table(policy, "seccompProfile_restricted", &rows);
        // The check of the level baseline is replaced.
        for (spec, _) in &rows {
            assert_eq!(describe_check(policy, "seccompProfile_baseline", spec.clone()), "");
        }
    }
    for (spec, _) in rows {
        assert_eq!(describe_check("restricted:v1.18", "seccompProfile_restricted", spec), "");
    }
}

#[test]
fn old_versions_check_annotations_of_seccomp() {
    let pod = json!({"metadata": {"annotations": {"seccomp.security.alpha.kubernetes.io/pod": "unconfined"}}});
    assert_eq!(list_reasons(&find("restricted:v1.18", pod.clone())), "seccompProfile");
    assert_eq!(find("restricted:v1.19", pod), []);
}

#[test]
fn pods_for_windows_need_nothing_of_linux_since_1_25() {
    let spec = |os: Value| json!({"os": os, "containers": [{"name": "a"}]});
    let all = "allowPrivilegeEscalation != false, unrestricted capabilities, runAsNonRoot != true, seccompProfile";
    let reasons = |policy: &str, os: Value| list_reasons(&find(policy, json!({"spec": spec(os)})));
    for policy in ["restricted:v1.25", "restricted:v1.26", "restricted:latest"] {
        assert_eq!(reasons(policy, json!({"name": "windows"})), "runAsNonRoot != true", "{policy}");
        for os in [json!({"name": "linux"}), json!({"name": "Windows"}), json!({}), Value::Null] {
            assert_eq!(reasons(policy, os), all, "{policy}");
        }
    }
    assert_eq!(reasons("restricted:v1.24", json!({"name": "windows"})), all);
}
