//! Properties of all pods: none panics, and a stricter level forbids no less.

use std::collections::BTreeMap;

use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;
use proto_api::core::v1::{
    Capabilities, ConfigMapVolumeSource, Container, ContainerPort, EmptyDirVolumeSource,
    EphemeralContainer, EphemeralContainerCommon, HostPathVolumeSource, NFSVolumeSource, PodOS,
    PodSecurityContext, SELinuxOptions, SeccompProfile, SecurityContext, Sysctl, Volume,
    VolumeSource, WindowsSecurityContextOptions,
};

use super::*;

/// Texts that checks know, and others.
fn word() -> impl Strategy<Value = String> {
    let known = [
        "",
        "a",
        "ALL",
        "CHOWN",
        "Default",
        "Localhost",
        "NET_BIND_SERVICE",
        "RuntimeDefault",
        "SYS_ADMIN",
        "Unconfined",
        "container_t",
        "kernel.shm_rmid_forced",
        "localhost/x",
        "runtime/default",
        "unconfined",
    ];
    prop_oneof![5 => select(known.to_vec()).prop_map(str::to_owned), 1 => any::<String>()]
}

fn words() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(word(), 0..3)
}

fn selinux() -> impl Strategy<Value = SELinuxOptions> {
    (word(), word(), word(), word()).prop_map(|(user, role, type_, level)| SELinuxOptions {
        user,
        role,
        type_,
        level,
    })
}

fn seccomp() -> impl Strategy<Value = SeccompProfile> {
    word().prop_map(|type_| SeccompProfile { type_, ..SeccompProfile::default() })
}

fn windows_options() -> impl Strategy<Value = WindowsSecurityContextOptions> {
    of(any::<bool>()).prop_map(|host_process| WindowsSecurityContextOptions {
        host_process,
        ..WindowsSecurityContextOptions::default()
    })
}

fn user() -> impl Strategy<Value = i64> {
    prop_oneof![Just(0), any::<i64>()]
}

fn context() -> impl Strategy<Value = SecurityContext> {
    let capabilities = (words(), words()).prop_map(|(add, drop)| Capabilities { add, drop });
    let flags = (of(any::<bool>()), of(any::<bool>()), of(any::<bool>()));
    let options = (of(selinux()), of(windows_options()), of(seccomp()));
    (of(capabilities), flags, options, of(user()), of(word())).prop_map(
        |(capabilities, flags, options, run_as_user, proc_mount)| SecurityContext {
            capabilities,
            privileged: flags.0,
            allow_privilege_escalation: flags.1,
            run_as_non_root: flags.2,
            se_linux_options: options.0,
            windows_options: options.1,
            seccomp_profile: options.2,
            run_as_user,
            proc_mount,
            ..SecurityContext::default()
        },
    )
}

fn pod_context() -> impl Strategy<Value = PodSecurityContext> {
    let sysctl = word().prop_map(|name| Sysctl { name, ..Sysctl::default() });
    let sysctls = prop::collection::vec(sysctl, 0..3);
    (of(selinux()), of(windows_options()), of(seccomp()), of(user()), of(any::<bool>()), sysctls)
        .prop_map(|(selinux, windows, seccomp, user, non_root, sysctls)| PodSecurityContext {
            se_linux_options: selinux,
            windows_options: windows,
            seccomp_profile: seccomp,
            run_as_user: user,
            run_as_non_root: non_root,
            sysctls,
            ..PodSecurityContext::default()
        })
}

fn containers() -> impl Strategy<Value = Vec<Container>> {
    let host_port = prop_oneof![Just(0), any::<i32>()];
    let port =
        host_port.prop_map(|host_port| ContainerPort { host_port, ..ContainerPort::default() });
    let ports = prop::collection::vec(port, 0..3);
    let container = (word(), ports, of(context())).prop_map(|(name, ports, security_context)| {
        Container { name, ports, security_context, ..Container::default() }
    });
    prop::collection::vec(container, 0..3)
}

/// Volumes with one source at most, as validation asks for.
fn volumes() -> impl Strategy<Value = Vec<Volume>> {
    let source = (0..5_u8).prop_map(|kind| {
        let mut source = VolumeSource::default();
        match kind {
            0 => source.host_path = Some(HostPathVolumeSource::default()),
            1 => source.nfs = Some(Box::<NFSVolumeSource>::default()),
            2 => source.empty_dir = Some(EmptyDirVolumeSource::default()),
            3 => source.config_map = Some(ConfigMapVolumeSource::default()),
            _ => {}
        }
        source
    });
    let volume = (word(), source).prop_map(|(name, volume_source)| Volume { name, volume_source });
    prop::collection::vec(volume, 0..3)
}

fn annotations() -> impl Strategy<Value = BTreeMap<String, String>> {
    let key = (0..4_u8, word()).prop_map(|(kind, name)| match kind {
        0 => names().apparmor_annotation(&name),
        1 => names().container_seccomp_annotation(&name),
        2 => names().pod_seccomp_annotation(),
        _ => name,
    });
    prop::collection::btree_map(key, word(), 0..4)
}

fn ephemeral(container: Container) -> EphemeralContainer {
    let Container { name, ports, security_context, .. } = container;
    let common = EphemeralContainerCommon {
        name,
        ports,
        security_context,
        ..EphemeralContainerCommon::default()
    };
    EphemeralContainer { ephemeral_container_common: common, ..EphemeralContainer::default() }
}

fn pods() -> impl Strategy<Value = Pod> {
    let os = of(select(vec!["linux", "windows", ""]).prop_map(str::to_owned));
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    let lists = (containers(), containers(), containers());
    (annotations(), os, flags, of(pod_context()), lists, volumes()).prop_map(
        |(annotations, os, flags, security_context, lists, volumes)| {
            let mut pod = Pod::default();
            pod.metadata.annotations = annotations;
            pod.spec.os = os.map(|name| PodOS { name });
            (pod.spec.host_network, pod.spec.host_pid, pod.spec.host_ipc) = flags;
            pod.spec.security_context = security_context;
            pod.spec.containers = lists.0;
            pod.spec.init_containers = lists.1;
            pod.spec.ephemeral_containers = lists.2.into_iter().map(ephemeral).collect();
            pod.spec.volumes = volumes;
            pod
        },
    )
}

fn versions() -> impl Strategy<Value = PodSecurityVersion> {
    prop_oneof![
        4 => (0..30_u64).prop_map(PodSecurityVersion::V1),
        1 => any::<u64>().prop_map(PodSecurityVersion::V1),
        1 => Just(PodSecurityVersion::Latest),
    ]
}

fn find_at(level: PodSecurityLevel, version: PodSecurityVersion, pod: &Pod) -> Vec<Violation> {
    find_violations(LevelVersion { level, version }, &pod.metadata, &pod.spec, names())
}

/// Checks of the level baseline that a pod for Windows escapes at the level restricted. Validation refuses such pods.
fn is_of_linux(check: &str) -> bool {
    matches!(check, "capabilities_baseline" | "seccompProfile_baseline")
}

/// Whether a violation of the level baseline is one of the level restricted too, perhaps by the check that replaces it.
fn is_kept(violation: &Violation, restricted: &[Violation]) -> bool {
    let replaces = |id: &str| {
        RESTRICTED.iter().any(|check| check.id == id && check.overrides == Some(violation.check))
    };
    restricted.iter().any(|other| other == violation || replaces(other.check))
}

proptest! {
    #[test]
    fn every_violation_has_a_reason_and_a_detail(pod in pods(), version in versions()) {
        prop_assert_eq!(find_at(PodSecurityLevel::Privileged, version, &pod), []);
        for level in [PodSecurityLevel::Baseline, PodSecurityLevel::Restricted] {
            let found = find_at(level, version, &pod);
            for violation in &found {
                // A sysctl may have no name.
                let has_detail = !violation.detail.is_empty() || violation.check == "sysctls";
                prop_assert!(!violation.reason.is_empty() && has_detail);
            }
            let checks: Vec<&str> = found.iter().map(|violation| violation.check).collect();
            let order = BASELINE.iter().chain(&RESTRICTED).map(|check| check.id);
            let ordered: Vec<&str> = order.filter(|id| checks.contains(id)).collect();
            prop_assert_eq!(checks, ordered);
        }
    }

    #[test]
    fn restricted_forbids_what_baseline_forbids(pod in pods(), version in versions()) {
        let restricted = find_at(PodSecurityLevel::Restricted, version, &pod);
        let is_windows = pod.spec.os.as_ref().is_some_and(|os| os.name == "windows");
        for violation in find_at(PodSecurityLevel::Baseline, version, &pod) {
            let is_exempt = is_windows && version.minor() >= 25 && is_of_linux(violation.check);
            prop_assert!(is_exempt || is_kept(&violation, &restricted), "{}", violation);
        }
    }

    #[test]
    fn a_pod_without_settings_violates_restricted_only(list in prop::collection::vec(word(), 1..4)) {
        let mut pod = Pod::default();
        pod.spec.containers =
            list.into_iter().map(|name| Container { name, ..Container::default() }).collect();
        prop_assert_eq!(find_at(PodSecurityLevel::Baseline, PodSecurityVersion::Latest, &pod), []);
        prop_assert_eq!(find_at(PodSecurityLevel::Restricted, PodSecurityVersion::Latest, &pod).len(), 4);
    }
}
