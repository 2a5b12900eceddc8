//! The endpoint's view of this agent: pods as the agent knows them, everything else from the
//! runtime and the machine when asked.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use agent_host::machine;
use agent_pod::seen::{ContainerSeen, InstanceState};
use agent_pod::translate::log_directory;
use agent_runtime::runtime::{ContainerUsage, ExecOutput, PodOnNode, StreamRequest};
use agent_runtime::{Runtime, RuntimeError};
use futures_util::future::BoxFuture;
use proto_api::core::v1::{Container, Pod};
use proto_daemon::exit::chain;
use serde_json::Value;

use super::routes::{ContainerName, PodName};
use super::stats::{ContainerStats, FsUsage, NodeStats, PodStats, Usage};
use super::view::{LogFile, NodeView, Run, Session, ViewError};

/// What the view is made of.
pub struct AgentView {
    /// The container runtime.
    pub runtime: Arc<dyn Runtime>,
    /// The pods of the node, with their status as far as it is known.
    pub pods: Box<dyn Fn() -> Vec<Pod> + Send + Sync>,
    /// Name of the node.
    pub node: String,
    /// Directory with the logs of all pods.
    pub pod_logs_dir: PathBuf,
    /// Directory below which the agent keeps pods; its file system is the node's in the statistics.
    pub root_dir: PathBuf,
    /// The configuration in force.
    pub configuration: Value,
    /// CPU time of each container when it was last asked for, for rates.
    pub last: CpuTimes,
}

/// CPU time in nanoseconds by container id, with the moment of measuring.
#[derive(Debug, Default)]
pub struct CpuTimes(Mutex<BTreeMap<String, (i64, u64)>>);

impl NodeView for AgentView {
    fn pods(&self) -> Vec<Pod> {
        (self.pods)()
    }

    fn running_pods(&self) -> BoxFuture<'_, Result<Vec<Pod>, ViewError>> {
        Box::pin(async {
            let found = self.runtime.list().await.map_err(failed)?;
            Ok(found
                .iter()
                .filter(|pod| pod.sandboxes.iter().any(|s| s.ready))
                .map(running)
                .collect())
        })
    }

    fn log_file<'a>(
        &'a self,
        container: &'a ContainerName,
        run: Run,
    ) -> BoxFuture<'a, Result<LogFile, ViewError>> {
        Box::pin(async move {
            let pod = self.find(&container.pod)?;
            known_in(&pod, container)?;
            let instances = self.instances(&pod, &container.container).await?;
            let mut newest_first = instances.into_iter().rev();
            let instance = match run {
                Run::Last => newest_first.next().ok_or_else(|| waiting(&pod, container)),
                Run::Previous => newest_first.nth(1).ok_or_else(|| no_previous(container)),
            }?;
            let directory = log_directory(&self.pod_logs_dir.to_string_lossy(), &pod);
            let path = format!("{directory}/{}/{}.log", container.container, instance.attempt);
            Ok(LogFile { path: path.into(), instance: instance.id })
        })
    }

    fn is_running<'a>(&'a self, log: &'a LogFile) -> BoxFuture<'a, bool> {
        Box::pin(async {
            match self.runtime.container(&log.instance).await {
                Ok(Some(seen)) => is_running(&seen),
                Ok(None) => false,
                // A runtime that does not answer now may go on writing.
                Err(_) => true,
            }
        })
    }

    fn session<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<String, ViewError>> {
        Box::pin(async move {
            let request = match session {
                Session::Exec { container, command, streams } => StreamRequest::Exec {
                    container: self.running_instance(container).await?,
                    command: command.clone(),
                    streams: *streams,
                },
                Session::Attach { container, streams } => StreamRequest::Attach {
                    container: self.running_instance(container).await?,
                    streams: *streams,
                },
                Session::PortForward { pod, ports } => StreamRequest::PortForward {
                    sandbox: self.ready_sandbox(pod).await?,
                    ports: ports.clone(),
                },
            };
            self.runtime.stream(&request).await.map_err(failed)
        })
    }

    fn run<'a>(
        &'a self,
        container: &'a ContainerName,
        command: &'a [String],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<ExecOutput, ViewError>> {
        Box::pin(async move {
            let id = self.running_instance(container).await?;
            self.runtime.exec(&id, command, timeout).await.map_err(failed)
        })
    }

    fn stats(&self) -> BoxFuture<'_, Result<NodeStats, ViewError>> {
        Box::pin(async {
            let found = self.runtime.list().await.map_err(failed)?;
            let usages = self.runtime.usage().await.map_err(failed)?;
            let machine = machine::usage().map_err(|error| ViewError::Failed(chain(&error)))?;
            let now = nanos_since_1970();
            let usage = Usage {
                at_nanos: now,
                cpu_nanos: machine.cpu_nanos,
                cpu_nanos_per_sec: self.last.rate("", now, machine.cpu_nanos),
                memory_bytes: machine
                    .memory_total_bytes
                    .saturating_sub(machine.memory_available_bytes),
                working_set_bytes: machine
                    .memory_total_bytes
                    .saturating_sub(machine.memory_available_bytes),
                rss_bytes: 0,
                available_bytes: Some(machine.memory_available_bytes),
            };
            let pods = pod_stats(&found, &usages, &self.last);
            self.last.forget_but(&usages);
            Ok(NodeStats {
                name: self.node.clone(),
                booted: boot_time(),
                usage,
                fs: self.disk(),
                pods,
            })
        })
    }

    fn configuration(&self) -> Value {
        self.configuration.clone()
    }
}

impl AgentView {
    fn find(&self, name: &PodName) -> Result<Pod, ViewError> {
        let is_it = |pod: &Pod| {
            let metadata = &pod.metadata;
            metadata.namespace == name.namespace
                && metadata.name == name.name
                && name.uid.as_ref().is_none_or(|uid| *uid == metadata.uid)
        };
        let pods = (self.pods)();
        pods.into_iter().find(is_it).ok_or_else(|| {
            ViewError::NotFound(format!("pod {}_{} does not exist", name.name, name.namespace))
        })
    }

    /// The runs of a container that the runtime still knows, oldest first.
    async fn instances(&self, pod: &Pod, container: &str) -> Result<Vec<ContainerSeen>, ViewError> {
        let found = self.on_node(pod).await?;
        let mut instances = found.containers;
        instances.retain(|seen| seen.name == container);
        instances.sort_by_key(|seen| seen.attempt);
        Ok(instances)
    }

    async fn on_node(&self, pod: &Pod) -> Result<PodOnNode, ViewError> {
        match self.runtime.pod(&pod.metadata.uid).await {
            Ok(found) => Ok(found),
            Err(error) if error.is_not_found() => Ok(PodOnNode::default()),
            Err(error) => Err(failed(error)),
        }
    }

    async fn running_instance(&self, container: &ContainerName) -> Result<String, ViewError> {
        let pod = self.find(&container.pod)?;
        let instances = self.instances(&pod, &container.container).await?;
        let running = instances.into_iter().rev().find(is_running);
        running.map(|seen| seen.id).ok_or_else(|| {
            ViewError::NotFound(format!("container not found ({:?})", container.container))
        })
    }

    async fn ready_sandbox(&self, name: &PodName) -> Result<String, ViewError> {
        let pod = self.find(name)?;
        let found = self.on_node(&pod).await?;
        let ready = found.sandboxes.into_iter().find(|sandbox| sandbox.ready);
        ready
            .map(|sandbox| sandbox.id)
            .ok_or_else(|| ViewError::NotFound(format!("pod not found ({:?})", name.name)))
    }

    fn disk(&self) -> Option<FsUsage> {
        let disk = machine::disk(&self.root_dir).ok()?;
        Some(FsUsage {
            capacity_bytes: disk.total_bytes,
            available_bytes: disk.available_bytes,
            used_bytes: disk.total_bytes.saturating_sub(disk.available_bytes),
            inodes: disk.inodes,
            inodes_free: disk.inodes_free,
            inodes_used: disk.inodes.saturating_sub(disk.inodes_free),
        })
    }
}

impl CpuTimes {
    /// CPU time a second since the last call for `id`.
    fn rate(&self, id: &str, at: i64, cpu_nanos: u64) -> Option<u64> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (then, before) = last.insert(id.to_owned(), (at, cpu_nanos))?;
        let passed = u128::try_from(at.checked_sub(then)?).ok().filter(|passed| *passed > 0)?;
        let spent = u128::from(cpu_nanos.checked_sub(before)?);
        u64::try_from(spent * 1_000_000_000 / passed).ok()
    }

    /// Keeps the containers that exist, and the machine, whose id is empty.
    fn forget_but(&self, usages: &[ContainerUsage]) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.retain(|id, _| id.is_empty() || usages.iter().any(|usage| usage.id == *id));
    }
}

fn pod_stats(found: &[PodOnNode], usages: &[ContainerUsage], last: &CpuTimes) -> Vec<PodStats> {
    found
        .iter()
        .filter_map(|pod| {
            let containers: Vec<_> = usages
                .iter()
                .filter(|usage| usage.pod_uid == pod.uid)
                .map(|usage| container_stats(pod, usage, last))
                .collect();
            let started = containers.iter().map(|container| container.started).min()?;
            Some(PodStats {
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
                uid: pod.uid.clone(),
                started,
                usage: Some(sum(&containers)),
                containers,
            })
        })
        .collect()
}

fn container_stats(pod: &PodOnNode, usage: &ContainerUsage, last: &CpuTimes) -> ContainerStats {
    let seen = pod.containers.iter().find(|seen| seen.id == usage.id);
    let started = match seen.map(|seen| &seen.state) {
        Some(InstanceState::Running { started_at }) => started_at.div_euclid(1_000_000_000),
        _ => 0,
    };
    ContainerStats {
        name: usage.name.clone(),
        started,
        usage: Usage {
            at_nanos: usage.measured_at,
            cpu_nanos: usage.cpu_nanos,
            cpu_nanos_per_sec: last.rate(&usage.id, usage.measured_at, usage.cpu_nanos),
            memory_bytes: usage.usage_bytes,
            working_set_bytes: usage.working_set_bytes,
            rss_bytes: usage.rss_bytes,
            available_bytes: None,
        },
        rootfs: Some(FsUsage {
            used_bytes: usage.writable_bytes,
            inodes_used: usage.writable_inodes,
            ..FsUsage::default()
        }),
    }
}

/// A pod uses what its containers use; the sandbox's own process is not counted.
fn sum(containers: &[ContainerStats]) -> Usage {
    let mut whole = Usage::default();
    for Usage {
        at_nanos,
        cpu_nanos,
        cpu_nanos_per_sec,
        memory_bytes,
        working_set_bytes,
        rss_bytes,
        ..
    } in containers.iter().map(|container| &container.usage)
    {
        whole.at_nanos = whole.at_nanos.max(*at_nanos);
        whole.cpu_nanos += cpu_nanos;
        if let Some(rate) = cpu_nanos_per_sec {
            *whole.cpu_nanos_per_sec.get_or_insert(0) += rate;
        }
        whole.memory_bytes += memory_bytes;
        whole.working_set_bytes += working_set_bytes;
        whole.rss_bytes += rss_bytes;
    }
    whole
}

fn running(found: &PodOnNode) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name.clone_from(&found.name);
    pod.metadata.namespace.clone_from(&found.namespace);
    pod.metadata.uid.clone_from(&found.uid);
    let running = found.containers.iter().filter(|seen| is_running(seen));
    pod.spec.containers = running
        .map(|seen| Container {
            name: seen.name.clone(),
            image: seen.image.clone(),
            ..Container::default()
        })
        .collect();
    pod
}

fn is_running(seen: &ContainerSeen) -> bool {
    matches!(seen.state, InstanceState::Running { .. } | InstanceState::Unknown)
}

/// Whether the pod has such a container at all.
fn known_in(pod: &Pod, container: &ContainerName) -> Result<(), ViewError> {
    let spec = &pod.spec;
    let ephemeral = spec.ephemeral_containers.iter().map(|c| &c.ephemeral_container_common.name);
    let mut names =
        spec.containers.iter().chain(&spec.init_containers).map(|c| &c.name).chain(ephemeral);
    if names.any(|name| *name == container.container) {
        return Ok(());
    }
    let (name, pod) = (&container.container, &container.pod.name);
    Err(ViewError::NotFound(format!("container {name:?} not found in pod {pod:?}")))
}

/// The container has not run yet, and why.
fn waiting(pod: &Pod, container: &ContainerName) -> ViewError {
    let statuses = pod.status.container_statuses.iter().chain(&pod.status.init_container_statuses);
    let mut reasons = statuses
        .filter(|status| status.name == container.container)
        .filter_map(|status| status.state.waiting.as_ref())
        .map(|waiting| waiting.reason.as_str());
    let reason = reasons.next().filter(|reason| !reason.is_empty()).unwrap_or("ContainerCreating");
    let (name, pod) = (&container.container, &container.pod.name);
    ViewError::NotNow(format!("container {name:?} in pod {pod:?} is waiting to start: {reason}"))
}

fn no_previous(container: &ContainerName) -> ViewError {
    let (name, pod) = (&container.container, &container.pod.name);
    ViewError::NotNow(format!("previous terminated container {name:?} in pod {pod:?} not found"))
}

fn failed(error: RuntimeError) -> ViewError {
    ViewError::Failed(chain(&error))
}

fn nanos_since_1970() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// Seconds since 1970 at which the machine was started; 0 when the kernel does not say.
fn boot_time() -> i64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "));
    line.and_then(|secs| secs.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests;
