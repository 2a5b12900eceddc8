//! Which checks each version has.

use super::*;

/// A pod that every check refuses, at each version that has it.
fn worst() -> Value {
    let context = json!({
        "privileged": true,
        "procMount": "Unmasked",
        "capabilities": {"add": ["SYS_ADMIN"]},
        "windowsOptions": {"hostProcess": true},
        "runAsUser": 0,
    });
    json!({
        "metadata": {"annotations": {
            "container.apparmor.security.beta.kubernetes.io/a": "unconfined",
            "seccomp.security.alpha.kubernetes.io/pod": "unconfined",
        }},
        "spec": {
            "hostNetwork": true,
            "securityContext": {
                "seLinuxOptions": {"user": "u"},
                "seccompProfile": {"type": "Unconfined"},
                "sysctls": [{"name": "x"}],
            },
            "containers": [
                {"name": "a", "ports": [{"hostPort": 1}], "securityContext": context},
            ],
            "volumes": [{"name": "v", "hostPath": {}}],
        },
    })
}

fn checks(policy: &str) -> Vec<&'static str> {
    find(policy, worst()).iter().map(|violation| violation.check).collect()
}

#[test]
fn baseline_has_eleven_checks_at_all_versions() {
    let all: Vec<&str> = BASELINE.iter().map(|check| check.id).collect();
    assert_eq!(
        all,
        [
            "appArmorProfile",
            "capabilities_baseline",
            "hostNamespaces",
            "hostPathVolumes",
            "hostPorts",
            "privileged",
            "procMount",
            "seLinuxOptions",
            "seccompProfile_baseline",
            "sysctls",
            "windowsHostProcess",
        ]
    );
    for version in (0..30)
        .map(PodSecurityVersion::V1)
        .chain([PodSecurityVersion::V1(1 << 62), PodSecurityVersion::Latest])
    {
        assert_eq!(checks(&format!("baseline:{version}")), all, "{version}");
    }
}

#[test]
fn restricted_checks_come_with_their_versions() {
    let kept = |without: &[&str]| -> Vec<&'static str> {
        BASELINE.iter().map(|check| check.id).filter(|id| !without.contains(id)).collect()
    };
    let with = |without: &[&str], added: &[&'static str]| [kept(without), added.to_vec()].concat();
    let volumes = ["hostPathVolumes"];
    let seccomp = ["hostPathVolumes", "seccompProfile_baseline"];
    let all = ["hostPathVolumes", "seccompProfile_baseline", "capabilities_baseline"];
    for (minors, expected) in [
        (0..8, with(&volumes, &["restrictedVolumes", "runAsNonRoot"])),
        (8..19, with(&volumes, &["allowPrivilegeEscalation", "restrictedVolumes", "runAsNonRoot"])),
        (
            19..22,
            with(
                &seccomp,
                &[
                    "allowPrivilegeEscalation",
                    "restrictedVolumes",
                    "runAsNonRoot",
                    "seccompProfile_restricted",
                ],
            ),
        ),
        (
            22..23,
            with(
                &all,
                &[
                    "allowPrivilegeEscalation",
                    "capabilities_restricted",
                    "restrictedVolumes",
                    "runAsNonRoot",
                    "seccompProfile_restricted",
                ],
            ),
        ),
        (
            23..40,
            with(
                &all,
                &[
                    "allowPrivilegeEscalation",
                    "capabilities_restricted",
                    "restrictedVolumes",
                    "runAsNonRoot",
                    "runAsUser",
                    "seccompProfile_restricted",
                ],
            ),
        ),
    ] {
        for minor in minors {
            assert_eq!(checks(&format!("restricted:v1.{minor}")), expected, "v1.{minor}");
        }
    }
    assert_eq!(checks("restricted:latest"), checks("restricted:v1.25"));
}
