//! Why a pod is refused by translation.

/// Why a pod cannot be translated. The texts are shown to users as they are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TranslateError {
    /// A `Localhost` seccomp profile without a name; nothing is assumed in its place.
    #[error("localhostProfile must be set if seccompProfile type is Localhost")]
    NoSeccompProfile,
    /// A seccomp type that is none.
    #[error("unknown seccompProfile type {0:?}")]
    UnknownSeccomp(String),
    /// A part of a volume whose path cannot be made, or leads upwards.
    #[error("failed to expand subPath for volumeMount {mount:?} of container {container:?}")]
    SubPath {
        /// Name of the volume.
        mount: String,
        /// Name of the container.
        container: String,
    },
    /// A `Localhost` seccomp profile outside the node's directory of profiles.
    #[error("seccomp profile {0:?} must be a relative path without \"..\"")]
    SeccompOutside(String),
    /// Root is forbidden, and the pod itself asks for it.
    #[error("container's runAsUser breaks non-root policy (pod: {pod:?}, container: {container})")]
    RootByContext {
        /// Name, namespace and uid of the pod.
        pod: String,
        /// Name of the container.
        container: String,
    },
    /// Root is forbidden, and the image runs as root.
    #[error(
        "container has runAsNonRoot and image will run as root (pod: {pod:?}, container: {container})"
    )]
    RootByImage {
        /// Name, namespace and uid of the pod.
        pod: String,
        /// Name of the container.
        container: String,
    },
    /// Root is forbidden, and the image names its user in letters.
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is \
         non-root (pod: {pod:?}, container: {container})"
    )]
    UnknownUser {
        /// The user.
        user: String,
        /// Name, namespace and uid of the pod.
        pod: String,
        /// Name of the container.
        container: String,
    },
    /// The whole host name does not fit the kernel.
    #[error(
        "failed to construct FQDN from pod hostname and cluster domain, FQDN {0} is too long (64 \
         characters is the max, {len} characters requested)",
        len = .0.len()
    )]
    LongName(String),
    /// A traffic limit that is none, or that no shaper can hold.
    #[error("annotation {name}: {fault}")]
    Bandwidth {
        /// The annotation.
        name: String,
        /// What is wrong with its value.
        fault: &'static str,
    },
    /// A mount of a volume that the pod does not have, or that is not set up.
    #[error("no volume {0:?} to mount")]
    NoVolume(String),
    /// References to variables come to more than a container may have.
    #[error("{field} of container {container:?} is more than {limit} bytes with its variables")]
    TooLarge {
        /// `command` or `args`.
        field: &'static str,
        /// Name of the container.
        container: String,
        /// Most bytes.
        limit: usize,
    },
}
