//! Fields of pods that this node cannot honour. Such a pod is rejected with the name of the field; no field is ignored silently.

use proto_api::core::v1::{Container, Pod, SecurityContext};
use proto_api::names::Names;

use crate::admission::AdmissionRefusal;
use crate::sysctls;

/// What the kernel and the settings of the node allow pods to use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFeatures {
    /// Names of the naming profile.
    pub names: &'static Names,
    /// Whether the kernel enforces AppArmor profiles.
    pub apparmor: bool,
    /// `allowedUnsafeSysctls`: names, or prefixes ending in `*`.
    pub allowed_sysctls: Vec<String>,
}

/// Checks that the node supports all fields of the pod.
///
/// # Errors
/// The first field that it does not support.
pub fn check_supported(pod: &Pod, node: &NodeFeatures) -> Result<(), AdmissionRefusal> {
    operating_system(pod)?;
    if let Some(message) = sysctls::forbidden_sysctl(pod, &node.allowed_sysctls) {
        return Err(refusal("SysctlForbidden", message));
    }
    check_apparmor(pod, node)?;
    check_hooks(pod)?;
    if pod.spec.host_users == Some(false) {
        let message = "spec.hostUsers: this node's runtime has no user namespaces for pods";
        return Err(refusal(UNSUPPORTED, message));
    }
    Ok(())
}

/// Reason of a pod with an unsupported field.
const UNSUPPORTED: &str = "UnsupportedField";

fn refusal(reason: &str, message: impl Into<String>) -> AdmissionRefusal {
    AdmissionRefusal { reason: reason.to_owned(), message: message.into() }
}

fn operating_system(pod: &Pod) -> Result<(), AdmissionRefusal> {
    if pod.spec.os.as_ref().is_some_and(|os| !os.name.is_empty() && os.name != "linux") {
        let message = "Failed to admit pod as the OS field doesn't match node OS";
        return Err(refusal("PodOSNotSupported", message));
    }
    let path = if pod.spec.security_context.as_ref().is_some_and(|c| c.windows_options.is_some()) {
        Some("spec.securityContext.windowsOptions".to_owned())
    } else {
        let for_windows = |c: &SecurityContext| c.windows_options.is_some();
        let mut contexts = containers(pod);
        let found = contexts.find(|(_, c)| c.security_context.as_ref().is_some_and(for_windows));
        found.map(|(path, _)| format!("{path}.securityContext.windowsOptions"))
    };
    let refuse = |path| refusal(UNSUPPORTED, format!("{path}: this node runs Linux"));
    path.map_or(Ok(()), |path| Err(refuse(path)))
}

/// All containers with their field paths.
fn containers(pod: &Pod) -> impl Iterator<Item = (String, &Container)> {
    let of = |list: &'static str, all| {
        let numbered = std::iter::zip(0.., all);
        numbered.map(move |(n, c): (usize, &Container)| (format!("spec.{list}[{n}]"), c))
    };
    let init = of("initContainers", pod.spec.init_containers.iter());
    init.chain(of("containers", pod.spec.containers.iter()))
}

/// Rejects hooks with `tcpSocket`, which the API accepts but no kubelet runs.
fn check_hooks(pod: &Pod) -> Result<(), AdmissionRefusal> {
    for (path, container) in containers(pod) {
        let hooks = container.lifecycle.clone().unwrap_or_default();
        for (name, hook) in [("postStart", hooks.post_start), ("preStop", hooks.pre_stop)] {
            if hook.is_some_and(|hook| hook.tcp_socket.is_some()) {
                let message = format!("{path}.lifecycle.{name}.tcpSocket: no hook works over TCP");
                return Err(refusal(UNSUPPORTED, message));
            }
        }
    }
    Ok(())
}

/// Rejects AppArmor profiles on a node without AppArmor.
fn check_apparmor(pod: &Pod, node: &NodeFeatures) -> Result<(), AdmissionRefusal> {
    for (path, container) in containers(pod) {
        let annotation = node.names.apparmor_annotation(&container.name);
        let profile = pod.metadata.annotations.get(&annotation).map_or("", String::as_str);
        let known = profile == "runtime/default" || profile.starts_with("localhost/");
        match profile {
            "" | "unconfined" => {}
            _ if !known => {
                let message = format!("invalid AppArmor profile name: {profile:?} ({path})");
                return Err(refusal("AppArmor", message));
            }
            _ if !node.apparmor => {
                let why = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
                return Err(refusal("AppArmor", why));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proto_api::core::v1::{
        PodOS, PodSecurityContext, SecurityContext, Sysctl, WindowsSecurityContextOptions,
    };

    use super::*;

    fn pod() -> Pod {
        let mut pod = Pod::default();
        pod.spec.containers = vec![Container { name: "c".into(), ..Container::default() }];
        pod
    }

    fn reject(pod: &Pod, node: &NodeFeatures) -> Option<(String, String)> {
        check_supported(pod, node).err().map(|r| (r.reason, r.message))
    }

    #[test]
    fn an_ordinary_pod_is_fine() {
        let mut pod = pod();
        pod.spec.os = Some(PodOS { name: "linux".into() });
        pod.spec.host_users = Some(true);
        assert_eq!(reject(&pod, &NodeFeatures::default()), None);
    }

    #[test]
    fn pods_for_windows_are_refused() {
        let mut other = pod();
        other.spec.os = Some(PodOS { name: "windows".into() });
        let reason = reject(&other, &NodeFeatures::default()).map(|(reason, _)| reason);
        assert_eq!(reason.as_deref(), Some("PodOSNotSupported"));

        let options = Some(WindowsSecurityContextOptions::default());
        let mut of_pod = pod();
        of_pod.spec.security_context = Some(PodSecurityContext {
            windows_options: options.clone(),
            ..PodSecurityContext::default()
        });
        let (reason, message) = reject(&of_pod, &NodeFeatures::default()).expect("refused");
        assert_eq!(reason, "UnsupportedField");
        assert!(message.starts_with("spec.securityContext.windowsOptions:"), "{message}");

        let mut of_container = pod();
        of_container.spec.containers[0].security_context =
            Some(SecurityContext { windows_options: options, ..SecurityContext::default() });
        let (_, message) = reject(&of_container, &NodeFeatures::default()).expect("refused");
        assert!(message.starts_with("spec.containers[0].securityContext.windowsOptions:"));
    }

    #[test]
    fn user_namespaces_and_sysctls_are_not_left_out_in_silence() {
        let mut users = pod();
        users.spec.host_users = Some(false);
        let (_, message) = reject(&users, &NodeFeatures::default()).expect("refused");
        assert!(message.starts_with("spec.hostUsers:"), "{message}");
        let mut tuned = pod();
        tuned.spec.security_context = Some(PodSecurityContext {
            sysctls: vec![Sysctl { name: "vm.swappiness".into(), value: "0".into() }],
            ..PodSecurityContext::default()
        });
        let expect = (
            "SysctlForbidden".to_owned(),
            "forbidden sysctl: \"vm.swappiness\" not allowlisted".to_owned(),
        );
        assert_eq!(reject(&tuned, &NodeFeatures::default()), Some(expect));
    }

    #[test]
    fn apparmor_is_enforced_or_refused() {
        let cases = [
            ("runtime/default", true, true),
            ("runtime/default", false, false),
            ("localhost/web", true, true),
            ("localhost/web", false, false),
            ("unconfined", false, true),
            ("web", true, false),
        ];
        for (profile, apparmor, expect) in cases {
            let node = NodeFeatures { apparmor, ..NodeFeatures::default() };
            let mut pod = pod();
            pod.metadata.annotations.insert(node.names.apparmor_annotation("c"), profile.into());
            assert_eq!(reject(&pod, &node).is_none(), expect, "{profile} {apparmor}");
        }
    }
}
