//! Errors of the translation from a pod to runtime configuration.

/// Why a pod cannot be translated. The texts are shown to users and are Kubernetes' own where it has one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TranslateError {
    /// A `Localhost` seccomp profile without a name; no default is assumed.
    #[error("localhostProfile must be set if seccompProfile type is Localhost")]
    NoSeccompProfile,
    /// An unknown seccomp profile type.
    #[error("unknown seccompProfile type {0:?}")]
    UnknownSeccomp(String),
    /// A `subPath` that cannot be expanded or leads upwards.
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
    /// `runAsNonRoot` is set and `runAsUser` is 0.
    #[error("container's runAsUser breaks non-root policy (pod: {pod:?}, container: {container})")]
    RootByContext {
        /// Name, namespace and uid of the pod.
        pod: String,
        /// Name of the container.
        container: String,
    },
    /// `runAsNonRoot` is set and the image runs as root.
    #[error(
        "container has runAsNonRoot and image will run as root (pod: {pod:?}, container: {container})"
    )]
    RootByImage {
        /// Name, namespace and uid of the pod.
        pod: String,
        /// Name of the container.
        container: String,
    },
    /// `runAsNonRoot` is set and the image names its user, so the uid is unknown.
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is \
         non-root (pod: {pod:?}, container: {container})"
    )]
    UnknownUser {
        /// User name in the image.
        user: String,
        /// Name, namespace and uid of the pod.
        pod: String,
        /// Name of the container.
        container: String,
    },
    /// The fully qualified host name is longer than the kernel allows.
    #[error(
        "failed to construct FQDN from pod hostname and cluster domain, FQDN {0} is too long (64 \
         characters is the max, {len} characters requested)",
        len = .0.len()
    )]
    LongName(String),
    /// A bandwidth annotation that is not a quantity or is out of range.
    #[error("annotation {name}: {fault}")]
    Bandwidth {
        /// The annotation.
        name: String,
        /// The problem with its value.
        fault: BandwidthFault,
    },
    /// A mount of a volume that the pod does not have or that is not set up.
    #[error(
        "a volumeMount or volumeDevice refers to volume {0:?}, which the pod does not have or which \
         is not set up"
    )]
    NoVolume(String),
    /// Command or arguments exceed the limit after expansion.
    #[error("{field} of container {container:?} is more than {limit} bytes with its variables")]
    TooLarge {
        /// `command` or `args`.
        field: &'static str,
        /// Name of the container.
        container: String,
        /// The limit in bytes.
        limit: usize,
    },
}

/// What is wrong with a bandwidth annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BandwidthFault {
    /// It is no number of bits.
    #[error("is not a quantity")]
    NotAQuantity,
    /// The network plugin could not keep to it.
    #[error("resource is unreasonably small (< 1kbit)")]
    TooSmall,
    /// No network is as fast.
    #[error("resource is unreasonably large (> 1Pbit)")]
    TooLarge,
}
