//! The desired state of a pod, reduced to what the lifecycle decides on.
//!
//! It is parsed once from the API object; no later code interprets optional strings of the spec.

use std::hash::Hasher;
use std::time::Duration;

use proto_api::core::v1::{Container, EphemeralContainer, LifecycleHandler, Pod, PodCondition};

use crate::backoff::CRASH_DELAY_MAX;
use crate::handler::Handler;
use crate::probe::Probes;
use crate::seconds::clamp_seconds;

/// A pod as its source specifies it, with settings of the node.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredPod {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
    /// Where the pod comes from.
    pub source: PodSource,
    /// Whether its source still has it, and whether it is being deleted.
    pub presence: Presence,
    /// What happens when a container exits.
    pub restart_policy: RestartPolicy,
    /// Init containers in order, including sidecars.
    pub init: Vec<DesiredContainer>,
    /// Containers in order.
    pub containers: Vec<DesiredContainer>,
    /// Ephemeral containers; they do not affect the pod's phase.
    pub ephemeral: Vec<DesiredContainer>,
    /// Time between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// `activeDeadlineSeconds`: the longest time that the pod may be active.
    pub active_deadline: Option<Duration>,
    /// Whether the pod uses the host's network.
    pub host_network: bool,
    /// Addresses of the host, primary first.
    pub host_ips: Vec<String>,
    /// `Guaranteed`, `Burstable` or `BestEffort`.
    pub qos_class: String,
    /// Condition types that must be true before the pod counts as ready.
    pub readiness_gates: Vec<String>,
    /// Conditions of the API object, used for readiness gates.
    pub conditions: Vec<PodCondition>,
    /// Set when the node ends the pod although its source still wants it.
    pub disruption: Option<Disruption>,
    /// Dead instances kept per container besides the newest. With 0, a finished pod keeps nothing in the runtime.
    pub dead_kept: u32,
    /// Longest delay between restarts of a crashing container.
    pub crash_delay_max: Duration,
}

/// The node's decision to end a pod: eviction, preemption or shutdown. The first plan that sees it makes it final.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disruption {
    /// Reason of the failed pod, such as `Evicted`.
    pub reason: String,
    /// Message for users.
    pub message: String,
    /// Grace period in place of the pod's own; `None` keeps the pod's own.
    pub grace: Option<Duration>,
}

/// A container as its pod specifies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredContainer {
    /// Name, unique among all containers of the pod.
    pub name: String,
    /// Image reference as written in the pod.
    pub image: String,
    /// When the image is pulled.
    pub pull: PullPolicy,
    /// Hash of the fields whose change replaces the instance; see [`instance_hash`].
    pub hash: String,
    /// Whether the objects that its environment refers to exist.
    pub config: ConfigState,
    /// Its role in the pod.
    pub role: ContainerRole,
    /// Startup, readiness and liveness probes.
    pub probes: Probes,
    /// `postStart` hook; the container counts as running only after it.
    pub post_start: Option<Handler>,
    /// `preStop` hook.
    pub pre_stop: Option<Handler>,
}

/// The role of a container in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerRole {
    /// Init container: has to complete before the next one starts.
    Init,
    /// Restartable init container: starts in order with the init containers, keeps running, and is stopped after the main
    /// containers.
    Sidecar,
    /// Container of `spec.containers`.
    Main,
    /// Ephemeral container, added to a running pod; never restarted.
    Ephemeral,
}

impl ContainerRole {
    /// Whether it runs alongside the main containers and counts for readiness.
    pub fn serves(self) -> bool {
        matches!(self, Self::Main | Self::Sidecar)
    }
}

/// Whether the objects that a container's environment refers to were found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigState {
    /// All were found.
    Ready,
    /// Not all have been looked up yet.
    Unknown,
    /// One is missing; the text is shown to users.
    Missing(String),
}

/// Where the spec of a pod comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodSource {
    /// API server: status and deletion are reported to it.
    Api,
    /// Static pod from a manifest of this node.
    Static,
}

/// Whether the pod's source still wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Wanted.
    Present,
    /// Marked for deletion: the agent stops it, then deletes the API object.
    Deleting {
        /// Grace period of the deletion.
        grace: Duration,
    },
    /// No longer at its source: nothing is left to report.
    Gone {
        /// The grace period in force last.
        grace: Duration,
    },
}

/// `restartPolicy`: what happens when a container exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartPolicy {
    /// Restart always.
    Always,
    /// Restart unless the exit code is 0.
    OnFailure,
    /// Never restart.
    Never,
}

impl RestartPolicy {
    /// Whether a container that exited with `code` is restarted.
    pub fn restarts(self, code: i32) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => code != 0,
            Self::Never => false,
        }
    }

    /// The policy applied to init containers: a completed one is not restarted.
    pub fn for_init_containers(self) -> Self {
        match self {
            Self::Never => Self::Never,
            Self::Always | Self::OnFailure => Self::OnFailure,
        }
    }
}

/// `imagePullPolicy`: when an image is pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullPolicy {
    /// Before each instance.
    Always,
    /// If the node does not have it.
    IfNotPresent,
    Never,
}

/// `terminationGracePeriodSeconds` if the pod sets none.
const GRACE_SECS_DEFAULT: i64 = 30;

impl DesiredPod {
    /// Reads a pod. Never fails: a value that API validation would have rejected is read as the field's default. `config` reports
    /// for each container whether the objects of its environment exist.
    pub fn from_pod(
        pod: &Pod,
        source: PodSource,
        qos_class: &str,
        host_ips: &[String],
        config: impl Fn(&Container) -> ConfigState,
    ) -> Self {
        let spec = &pod.spec;
        let meta = &pod.metadata;
        let read = |c: &Container, role: ContainerRole| {
            DesiredContainer::from_container(c, role, config(c))
        };
        let init = |c: &Container| match c.restart_policy.as_deref() {
            Some("Always") => read(c, ContainerRole::Sidecar),
            _ => read(c, ContainerRole::Init),
        };
        Self {
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            source,
            presence: presence(pod),
            restart_policy: match spec.restart_policy.as_str() {
                "Never" => RestartPolicy::Never,
                "OnFailure" => RestartPolicy::OnFailure,
                _ => RestartPolicy::Always,
            },
            init: spec.init_containers.iter().map(init).collect(),
            containers: spec.containers.iter().map(|c| read(c, ContainerRole::Main)).collect(),
            ephemeral: spec
                .ephemeral_containers
                .iter()
                .map(|c| read(&ephemeral_container(c), ContainerRole::Ephemeral))
                .collect(),
            grace: clamp_seconds(
                spec.termination_grace_period_seconds.unwrap_or(GRACE_SECS_DEFAULT),
            ),
            active_deadline: spec.active_deadline_seconds.map(clamp_seconds),
            host_network: spec.host_network,
            host_ips: host_ips.to_vec(),
            qos_class: qos_class.to_owned(),
            readiness_gates: spec
                .readiness_gates
                .iter()
                .map(|gate| gate.condition_type.clone())
                .collect(),
            conditions: pod.status.conditions.clone(),
            disruption: None,
            dead_kept: 1,
            crash_delay_max: CRASH_DELAY_MAX,
        }
    }

    /// The same pod after its source dropped it.
    pub fn into_gone(mut self) -> Self {
        let grace = match self.presence {
            Presence::Present => self.grace,
            Presence::Deleting { grace } | Presence::Gone { grace } => grace,
        };
        self.presence = Presence::Gone { grace };
        self
    }

    /// Whether the source requests the end of the pod.
    pub fn is_leaving(&self) -> bool {
        self.presence != Presence::Present
    }

    /// Restart policy for a container of this role.
    pub fn restart_policy_of(&self, role: ContainerRole) -> RestartPolicy {
        match role {
            ContainerRole::Init => self.restart_policy.for_init_containers(),
            ContainerRole::Sidecar => RestartPolicy::Always,
            ContainerRole::Main => self.restart_policy,
            ContainerRole::Ephemeral => RestartPolicy::Never,
        }
    }

    /// All containers: init containers, containers, ephemeral containers.
    pub fn all_containers(&self) -> impl Iterator<Item = &DesiredContainer> {
        self.init.iter().chain(&self.containers).chain(&self.ephemeral)
    }

    /// Finds a container by name.
    pub fn container(&self, name: &str) -> Option<&DesiredContainer> {
        self.all_containers().find(|c| c.name == name)
    }

    /// Sidecars in their start order.
    pub fn sidecars(&self) -> impl DoubleEndedIterator<Item = &DesiredContainer> {
        self.init.iter().filter(|c| c.role == ContainerRole::Sidecar)
    }

    /// Most bytes of one termination message: the limit per message, or this container's share of the limit per pod.
    pub fn message_bytes(&self) -> usize {
        let containers = self.init.len().saturating_add(self.containers.len());
        POD_MESSAGE_BYTES
            .checked_div(containers)
            .unwrap_or(POD_MESSAGE_BYTES)
            .min(crate::termination::MESSAGE_BYTES)
    }
}

/// Most bytes of all termination messages in a pod's status, as in Kubernetes.
const POD_MESSAGE_BYTES: usize = 12 << 10;

impl DesiredContainer {
    /// Reads a container of this role.
    pub fn from_container(container: &Container, role: ContainerRole, config: ConfigState) -> Self {
        let hooks = container.lifecycle.clone().unwrap_or_default();
        let hook = |handler: Option<&LifecycleHandler>| {
            handler.map(|handler| Handler::from_hook(handler, container))
        };
        Self {
            name: container.name.clone(),
            image: container.image.clone(),
            pull: pull_policy(container),
            hash: instance_hash(container),
            config,
            role,
            probes: Probes::from_container(container),
            post_start: hook(hooks.post_start.as_ref()),
            pre_stop: hook(hooks.pre_stop.as_ref()),
        }
    }
}

/// Converts an ephemeral container to an ordinary one with the same fields.
pub fn ephemeral_container(ephemeral: &EphemeralContainer) -> Container {
    let c = ephemeral.ephemeral_container_common.clone();
    Container {
        name: c.name,
        image: c.image,
        command: c.command,
        args: c.args,
        working_dir: c.working_dir,
        ports: c.ports,
        env_from: c.env_from,
        env: c.env,
        resources: c.resources,
        volume_mounts: c.volume_mounts,
        volume_devices: c.volume_devices,
        liveness_probe: c.liveness_probe,
        readiness_probe: c.readiness_probe,
        startup_probe: c.startup_probe,
        lifecycle: c.lifecycle,
        termination_message_path: c.termination_message_path,
        termination_message_policy: c.termination_message_policy,
        image_pull_policy: c.image_pull_policy,
        security_context: c.security_context,
        stdin: c.stdin,
        stdin_once: c.stdin_once,
        tty: c.tty,
        restart_policy: c.restart_policy,
    }
}

/// Finds a container by name in all three lists of a pod.
pub fn find_container(pod: &Pod, name: &str) -> Option<Container> {
    let spec = &pod.spec;
    let own = spec.init_containers.iter().chain(&spec.containers).find(|c| c.name == name);
    let ephemeral = || {
        let mut all = spec.ephemeral_containers.iter();
        all.find(|c| c.ephemeral_container_common.name == name).map(ephemeral_container)
    };
    own.cloned().or_else(ephemeral)
}

fn presence(pod: &Pod) -> Presence {
    if pod.metadata.deletion_timestamp.is_none() {
        return Presence::Present;
    }
    Presence::Deleting { grace: grace_period(pod) }
}

/// Grace period of a pod: that of its deletion, otherwise that of its spec.
pub fn grace_period(pod: &Pod) -> Duration {
    let deletion = pod.metadata.deletion_grace_period_seconds;
    let grace = deletion.or(pod.spec.termination_grace_period_seconds);
    clamp_seconds(grace.unwrap_or(GRACE_SECS_DEFAULT))
}

/// Pull policy of a container. Without one, images that have no tag or `latest` are always pulled.
fn pull_policy(container: &Container) -> PullPolicy {
    match container.image_pull_policy.as_str() {
        "Always" => PullPolicy::Always,
        "IfNotPresent" => PullPolicy::IfNotPresent,
        "Never" => PullPolicy::Never,
        _ if is_floating(&container.image) => PullPolicy::Always,
        _ => PullPolicy::IfNotPresent,
    }
}

/// Whether the reference has no digest and either no tag or `latest`.
fn is_floating(image: &str) -> bool {
    if image.contains('@') {
        return false;
    }
    let last = image.rsplit('/').next().unwrap_or(image);
    match last.split_once(':') {
        None => true,
        Some((_, tag)) => tag == "latest",
    }
}

/// Hash of name and image, the fields of a container whose change replaces the instance, as eight hexadecimal digits. FNV-1a,
/// because the value is stored with the container and must be the same in every build.
pub fn instance_hash(container: &Container) -> String {
    let mut hasher = Fnv32::default();
    hasher.write(container.name.as_bytes());
    hasher.write(&[0]);
    hasher.write(container.image.as_bytes());
    format!("{:08x}", hasher.finish())
}

/// FNV-1a with 32 bits.
pub(crate) struct Fnv32(u32);

impl Default for Fnv32 {
    fn default() -> Self {
        Self(0x811c_9dc5)
    }
}

impl Hasher for Fnv32 {
    fn finish(&self) -> u64 {
        u64::from(self.0)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_without_a_fixed_tag_is_pulled_always() {
        let cases = [
            ("busybox", PullPolicy::Always),
            ("busybox:latest", PullPolicy::Always),
            ("host:5000/busybox", PullPolicy::Always),
            ("busybox:1.36", PullPolicy::IfNotPresent),
            ("host:5000/busybox:1.36", PullPolicy::IfNotPresent),
            ("busybox@sha256:00", PullPolicy::IfNotPresent),
        ];
        for (image, expect) in cases {
            let container = Container { image: image.to_owned(), ..Container::default() };
            assert_eq!(pull_policy(&container), expect, "{image}");
        }
    }

    #[test]
    fn the_hash_covers_name_and_image_only() {
        let base = Container { name: "a".into(), image: "i:1".into(), ..Container::default() };
        let other = Container { working_dir: "/".into(), ..base.clone() };
        let newer = Container { image: "i:2".into(), ..base.clone() };
        assert_eq!(instance_hash(&base), instance_hash(&other));
        assert_ne!(instance_hash(&base), instance_hash(&newer));
        assert_eq!(instance_hash(&base).len(), 8);
    }

    #[test]
    fn restart_policies_decide_by_exit_code() {
        let cases = [
            (RestartPolicy::Always, true, true),
            (RestartPolicy::OnFailure, false, true),
            (RestartPolicy::Never, false, false),
        ];
        for (policy, after_success, after_failure) in cases {
            assert_eq!(policy.restarts(0), after_success, "{policy:?}");
            assert_eq!(policy.restarts(137), after_failure, "{policy:?}");
        }
        assert_eq!(RestartPolicy::Always.for_init_containers(), RestartPolicy::OnFailure);
    }
}
