//! Users, capabilities and security profiles of containers: the container's security context, then the pod's, and rejection where
//! they cannot be honoured for certain. Nothing falls back to weaker protection than specified.

use proto_api::core::v1::{
    Container, Pod, PodSecurityContext, SELinuxOptions, SeccompProfile, SecurityContext,
};

use crate::hosts::pod_name;
use crate::node_facts::NodeFacts;
use crate::spec::{ContainerSecurity, Namespaces, SandboxSecurity, SeLinux, Seccomp};
use crate::translate_error::TranslateError;

/// Prefix of annotation values that name a profile on the node.
const LOCALHOST: &str = "localhost/";

/// The user in an image's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageUser {
    /// Numeric uid.
    pub uid: Option<i64>,
    /// User name, if the image has no numeric uid.
    pub name: String,
}

/// Whether [`container`] needs the user of the container's image.
pub fn needs_image_user(pod: &Pod, container: &Container) -> bool {
    let user = UserFields::from_pod(pod, container);
    user.uid.is_none() && (user.non_root || user.gid.is_some())
}

/// Security of a pod's sandbox. Its process is part of the runtime and always runs under the runtime's default seccomp profile.
pub(crate) fn sandbox_security(pod: &Pod) -> SandboxSecurity {
    let context = pod.spec.security_context.clone().unwrap_or_default();
    SandboxSecurity {
        run_as_user: context.run_as_user,
        // Runtimes accept a group only together with a user; the sandbox has no file for which the group matters.
        run_as_group: context.run_as_group.filter(|_| context.run_as_user.is_some()),
        supplemental_groups: supplemental_groups(&context),
        privileged: pod.spec.init_containers.iter().chain(&pod.spec.containers).any(is_privileged),
        seccomp: Seccomp::RuntimeDefault,
        selinux: context.se_linux_options.as_ref().map(selinux),
    }
}

/// Security of a container.
///
/// # Errors
/// `runAsNonRoot` is set and the container would or could run as root, or a profile is invalid.
pub(crate) fn container_security(
    pod: &Pod,
    container: &Container,
    node: &NodeFacts,
    image_user: &ImageUser,
    namespaces: Namespaces,
) -> Result<ContainerSecurity, TranslateError> {
    let of_pod = pod.spec.security_context.clone().unwrap_or_default();
    let own = container.security_context.clone().unwrap_or_default();
    let user = UserFields::from_pod(pod, container);
    user.check(pod, container, image_user)?;
    let privileged = own.privileged == Some(true);
    let seccomp = seccomp(pod, container, node)?;
    let selinux_options = own.se_linux_options.as_ref().or(of_pod.se_linux_options.as_ref());
    let unmasked = privileged || own.proc_mount.as_deref() == Some("Unmasked");
    let capabilities = own.capabilities.clone().unwrap_or_default();
    // Runtimes accept a group only together with a user: the image's user.
    let from_image = user.uid.is_none() && user.gid.is_some();
    let image_uid = || image_user.uid.or_else(|| image_user.name.is_empty().then_some(0));
    Ok(ContainerSecurity {
        privileged,
        add_capabilities: capabilities.add,
        drop_capabilities: capabilities.drop,
        run_as_user: if from_image { image_uid() } else { user.uid },
        run_as_username: match (from_image, image_uid()) {
            (true, None) => image_user.name.clone(),
            _ => String::new(),
        },
        run_as_group: user.gid,
        supplemental_groups: supplemental_groups(&of_pod),
        read_only_root: own.read_only_root_filesystem == Some(true),
        no_new_privileges: no_new_privileges(&own),
        seccomp: if privileged { Seccomp::Unconfined } else { seccomp },
        apparmor: apparmor(pod, &container.name, node).to_owned(),
        selinux: selinux_options.map(selinux),
        masked_paths: unmasked.then(Vec::new),
        readonly_paths: unmasked.then(Vec::new),
        namespaces,
        pid_of: None,
    })
}

/// The effective user settings of a container and its pod.
struct UserFields {
    uid: Option<i64>,
    gid: Option<i64>,
    non_root: bool,
}

impl UserFields {
    fn from_pod(pod: &Pod, container: &Container) -> Self {
        let of_pod = pod.spec.security_context.clone().unwrap_or_default();
        let own = container.security_context.clone().unwrap_or_default();
        Self {
            uid: own.run_as_user.or(of_pod.run_as_user),
            gid: own.run_as_group.or(of_pod.run_as_group),
            non_root: own.run_as_non_root.or(of_pod.run_as_non_root) == Some(true),
        }
    }

    /// Rejects root, and users whose uid is unknown, if `runAsNonRoot` is set.
    fn check(
        &self,
        pod: &Pod,
        container: &Container,
        image: &ImageUser,
    ) -> Result<(), TranslateError> {
        if !self.non_root {
            return Ok(());
        }
        let (pod, container) = (pod_name(pod), container.name.clone());
        match (self.uid, image.uid) {
            (Some(0), _) => Err(TranslateError::RootByContext { pod, container }),
            (Some(_), _) => Ok(()),
            (None, Some(0)) => Err(TranslateError::RootByImage { pod, container }),
            (None, Some(_)) => Ok(()),
            (None, None) if image.name.is_empty() => {
                Err(TranslateError::RootByImage { pod, container })
            }
            (None, None) => {
                Err(TranslateError::UnknownUser { user: image.name.clone(), pod, container })
            }
        }
    }
}

/// Set only if `allowPrivilegeEscalation` is explicitly false; a privileged container can escalate in any case.
fn no_new_privileges(context: &SecurityContext) -> bool {
    context.allow_privilege_escalation == Some(false)
}

fn is_privileged(container: &Container) -> bool {
    container.security_context.as_ref().is_some_and(|c| c.privileged == Some(true))
}

fn supplemental_groups(context: &PodSecurityContext) -> Vec<i64> {
    context.fs_group.iter().chain(&context.supplemental_groups).copied().collect()
}

/// Seccomp profile of a container: its field, its annotation, the pod's field, the pod's annotation, the node's default.
fn seccomp(pod: &Pod, container: &Container, node: &NodeFacts) -> Result<Seccomp, TranslateError> {
    let own = container.security_context.as_ref().and_then(|c| c.seccomp_profile.as_ref());
    let of_pod = pod.spec.security_context.as_ref().and_then(|c| c.seccomp_profile.as_ref());
    let annotation = |name: String| pod.metadata.annotations.get(&name).map(String::as_str);
    let named = node.names.container_seccomp_annotation(&container.name);
    if let Some(profile) = own {
        return by_field(profile, node);
    }
    if let Some(profile) = annotation(named) {
        return by_annotation(profile, node);
    }
    if let Some(profile) = of_pod {
        return by_field(profile, node);
    }
    if let Some(profile) = annotation(node.names.pod_seccomp_annotation()) {
        return by_annotation(profile, node);
    }
    Ok(if node.seccomp_default { Seccomp::RuntimeDefault } else { Seccomp::Unconfined })
}

fn by_field(profile: &SeccompProfile, node: &NodeFacts) -> Result<Seccomp, TranslateError> {
    match profile.type_.as_str() {
        "Unconfined" => Ok(Seccomp::Unconfined),
        "RuntimeDefault" => Ok(Seccomp::RuntimeDefault),
        "Localhost" => localhost(profile.localhost_profile.as_deref().unwrap_or_default(), node),
        other => Err(TranslateError::UnknownSeccomp(other.to_owned())),
    }
}

fn by_annotation(profile: &str, node: &NodeFacts) -> Result<Seccomp, TranslateError> {
    match profile {
        "unconfined" => Ok(Seccomp::Unconfined),
        "runtime/default" | "docker/default" => Ok(Seccomp::RuntimeDefault),
        other => match other.strip_prefix(LOCALHOST) {
            Some(name) => localhost(name, node),
            None => Err(TranslateError::UnknownSeccomp(other.to_owned())),
        },
    }
}

/// A profile on the node, which has to be inside the node's directory of profiles.
fn localhost(name: &str, node: &NodeFacts) -> Result<Seccomp, TranslateError> {
    if name.is_empty() {
        return Err(TranslateError::NoSeccompProfile);
    }
    if name.starts_with('/') || name.split('/').any(|part| part == "..") {
        return Err(TranslateError::SeccompOutside(name.to_owned()));
    }
    Ok(Seccomp::Localhost(format!("{}/{name}", node.seccomp_dir)))
}

/// AppArmor profile from the pod's annotation for a container; empty if there is none.
pub fn apparmor<'a>(pod: &'a Pod, container: &str, node: &NodeFacts) -> &'a str {
    let annotation = node.names.apparmor_annotation(container);
    pod.metadata.annotations.get(&annotation).map_or("", String::as_str)
}

fn selinux(options: &SELinuxOptions) -> SeLinux {
    SeLinux {
        user: options.user.clone(),
        role: options.role.clone(),
        type_: options.type_.clone(),
        level: options.level.clone(),
    }
}

#[cfg(test)]
mod tests;
