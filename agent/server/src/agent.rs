//! The agent as seen by the endpoint: pods from their tasks, everything else read from the runtime
//! and the machine on request.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_interfaces::VolumeUsage;
use agent_logs::log_files::LogDirectory;
use agent_pod::desired::find_container;
use agent_pod::observed::{InstanceState, ObservedContainer};
use agent_pod::translate::log_directory;
use agent_runtime::runtime::{ExecOutput, OUTPUT_LEN_MAX, PodOnNode, StreamRequest, Streams};
use agent_runtime::{Runtime, RuntimeError};
use agent_telemetry::timeline::Timeline;
use futures_util::future::{BoxFuture, join_all};
use proto_api::Time;
use proto_api::core::v1::{Container, ContainerStatus, Pod};
use proto_daemon::exit::chain;
use proto_daemon::panics;
use serde_json::Value;

use super::measure::Measure;
use super::routes::{ContainerName, PodName};
use super::stats::{NodeStats, VolumeStats};
use super::view::{LogFile, LogRun, NodeView, Session, ViewError};

/// Timelines of pods by namespace and name, with their uids.
type TimelinesOf = dyn Fn(&str, &str) -> Vec<(String, Timeline)> + Send + Sync;

/// The agent's parts that the endpoint reads.
pub struct AgentView {
    /// The container runtime.
    pub runtime: Arc<dyn Runtime>,
    /// The node's pods with their known status.
    pub pods: Box<dyn Fn() -> Vec<Pod> + Send + Sync>,
    /// Directory of the logs of pods.
    pub pod_logs_dir: PathBuf,
    /// Directory for checkpoints.
    pub checkpoints_dir: PathBuf,
    /// The effective KubeletConfiguration, served at `/configz`.
    pub configuration: Value,
    /// Measures usage.
    pub measure: Arc<Measure>,
    /// Volumes whose drivers report usage.
    pub volumes: Option<Arc<dyn VolumeUsage>>,
    /// The machine's description for `/spec/`.
    pub machine: Value,
    /// Timelines of pods, by namespace and name.
    pub timeline: Box<TimelinesOf>,
}

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
        run: LogRun,
    ) -> BoxFuture<'a, Result<LogFile, ViewError>> {
        Box::pin(async move {
            let pod = self.find(&container.pod)?;
            find_container(&pod, &container.container)
                .ok_or_else(|| unknown_container(container))?;
            let directory = log_directory(&self.pod_logs_dir.to_string_lossy(), &pod);
            let directory = PathBuf::from(directory).join(&container.container);
            let runs = self.runs(&pod, &container.container, &directory).await?;
            let mut newest_first = runs.into_iter().rev();
            let last = last_instance(&pod, &container.container);
            let of_status = newest_first.clone().find(|(_, id)| Some(id.as_str()) == last);
            let (attempt, instance) = match run {
                LogRun::Last => newest_first.next().ok_or_else(|| without_run(&pod, container)),
                LogRun::Previous => {
                    of_status.or_else(|| newest_first.nth(1)).ok_or_else(|| no_previous(container))
                }
            }?;
            Ok(LogFile { path: directory.join(format!("{attempt}.log")), instance })
        })
    }

    fn is_running<'a>(&'a self, log: &'a LogFile) -> BoxFuture<'a, bool> {
        Box::pin(async {
            if log.instance.is_empty() {
                return false;
            }
            match self.runtime.container(&log.instance).await {
                Ok(Some(seen)) => is_running(&seen),
                Ok(None) => false,
                // The container may still be writing if the runtime does not answer.
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
                Session::Attach { container, streams } => {
                    let pod = self.find(&container.pod)?;
                    let spec = find_container(&pod, &container.container);
                    let tty = spec.ok_or_else(|| unknown_container(container))?.tty;
                    StreamRequest::Attach {
                        container: self.running_instance_of(&pod, container).await?,
                        // As in the kubelet: the process has a terminal since its start or never.
                        // The runtime rejects standard error together with a terminal, and the client reads the
                        // log.
                        streams: Streams { tty, ..*streams },
                    }
                }
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
            self.runtime.exec(&id, command, timeout, OUTPUT_LEN_MAX).await.map_err(failed)
        })
    }

    fn checkpoint<'a>(
        &'a self,
        container: &'a ContainerName,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<PathBuf, ViewError>> {
        Box::pin(async move {
            let id = self.running_instance(container).await?;
            let ContainerName { pod, container } = container;
            let now = Time::from_unix(agent_clock::now().unix_seconds);
            let name = format!("checkpoint-{}_{}-{container}-{now}.tar", pod.name, pod.namespace);
            let archive = self.checkpoints_dir.join(name);
            private_directory(&self.checkpoints_dir)
                .map_err(|error| ViewError::Failed(error.to_string()))?;
            self.runtime
                .checkpoint(&id, &archive.to_string_lossy(), timeout)
                .await
                .map_err(failed)?;
            Ok(archive)
        })
    }

    fn stats(&self) -> BoxFuture<'_, Result<NodeStats, ViewError>> {
        Box::pin(async {
            let pods = (self.pods)();
            let mut stats = self.measure.node(&*self.runtime, &*self.runtime, pods.clone()).await?;
            let Some(volumes) = &self.volumes else { return Ok(stats) };
            // Concurrently: a hanging driver delays only its own volumes' figures.
            let filled = stats.pods.iter_mut().filter_map(|shown| {
                let pod = pods.iter().find(|pod| pod.metadata.uid == shown.uid)?;
                Some(async move {
                    let filled = volumes.fill(pod).await;
                    shown.volumes.extend(filled.into_iter().map(VolumeStats::from));
                })
            });
            join_all(filled).await;
            Ok(stats)
        })
    }

    fn machine(&self) -> Value {
        self.machine.clone()
    }

    fn timeline(&self, namespace: &str, name: &str) -> Vec<(String, Timeline)> {
        (self.timeline)(namespace, name)
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

    /// The instances of a container in the runtime, oldest first.
    async fn instances(
        &self,
        pod: &Pod,
        container: &str,
    ) -> Result<Vec<ObservedContainer>, ViewError> {
        let found = self.on_node(pod).await?;
        let mut instances = found.containers;
        instances.retain(|seen| seen.name == container);
        instances.sort_by_key(|seen| seen.attempt);
        Ok(instances)
    }

    /// The instances of a container whose log may be read, oldest first: those in the runtime with
    /// their ids, and earlier ones of which only the log is left. A log of a later attempt than the
    /// newest was not written by the runtime.
    async fn runs(
        &self,
        pod: &Pod,
        container: &str,
        directory: &Path,
    ) -> Result<Vec<(u32, String)>, ViewError> {
        let directory = directory.to_owned();
        let logged = panics::spawn_blocking(move || logged_attempts(&directory)).await;
        let logged = logged.map_err(|error| ViewError::Failed(error.to_string()))?;
        let mut runs: BTreeMap<u32, String> =
            logged.into_iter().map(|attempt| (attempt, String::new())).collect();
        let instances = self.instances(pod, container).await?;
        if let Some(last) = instances.iter().map(|seen| seen.attempt).max() {
            runs.retain(|attempt, _| *attempt <= last);
        }
        for seen in instances {
            match seen.state {
                // It has written nothing.
                InstanceState::Created => runs.remove(&seen.attempt),
                _ => runs.insert(seen.attempt, seen.id),
            };
        }
        Ok(runs.into_iter().collect())
    }

    async fn on_node(&self, pod: &Pod) -> Result<PodOnNode, ViewError> {
        match self.runtime.pod(&pod.metadata.uid).await {
            Ok(found) => Ok(found),
            Err(error) if error.is_not_found() => Ok(PodOnNode::default()),
            Err(error) => Err(failed(error)),
        }
    }

    async fn running_instance(&self, container: &ContainerName) -> Result<String, ViewError> {
        self.running_instance_of(&self.find(&container.pod)?, container).await
    }

    async fn running_instance_of(
        &self,
        pod: &Pod,
        container: &ContainerName,
    ) -> Result<String, ViewError> {
        let instances = self.instances(pod, &container.container).await?;
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
}

/// Checkpoints contain the memory of containers, so only root may read them.
fn private_directory(path: &Path) -> std::io::Result<()> {
    proto_daemon::private_files::create_private_dir(path)
}

/// Attempts whose logs exist as regular files; none if the directory cannot be read.
fn logged_attempts(directory: &Path) -> BTreeSet<u32> {
    let entries = LogDirectory::open(directory).and_then(|opened| opened.entries());
    let files = entries.unwrap_or_default().into_iter().filter(|entry| entry.len.is_some());
    files.filter_map(|file| file.name.strip_suffix(".log")?.parse().ok()).collect()
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

fn is_running(seen: &ObservedContainer) -> bool {
    matches!(seen.state, InstanceState::Running { .. } | InstanceState::Unknown)
}

/// The error for a container that the pod's spec does not have.
fn unknown_container(container: &ContainerName) -> ViewError {
    let (name, pod) = (&container.container, &container.pod.name);
    ViewError::NotFound(format!("container {name:?} not found in pod {pod:?}"))
}

/// The status of a container, in any of the pod's lists.
fn status_of<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerStatus> {
    let status = &pod.status;
    let all = status.container_statuses.iter().chain(&status.init_container_statuses);
    let mut all = all.chain(&status.ephemeral_container_statuses);
    all.find(|status| status.name == container)
}

/// The error for a container without a run, as the kubelet words it.
fn without_run(pod: &Pod, container: &ContainerName) -> ViewError {
    let status = status_of(pod, &container.container);
    let what = match status.map(|status| &status.state) {
        None => "is not available".to_owned(),
        Some(state) if state.terminated.is_some() => "is terminated".to_owned(),
        Some(state) => match state.waiting.as_ref().map(|waiting| &*waiting.reason) {
            None | Some("") => "is waiting to start - no logs yet".to_owned(),
            Some("ErrImagePull") => "is waiting to start: image can't be pulled".to_owned(),
            Some("ImagePullBackOff") => {
                "is waiting to start: trying and failing to pull image".to_owned()
            }
            Some(reason) => format!("is waiting to start: {reason}"),
        },
    };
    let (name, pod) = (&container.container, &container.pod.name);
    ViewError::NotNow(format!("container {name:?} in pod {pod:?} {what}"))
}

/// The instance of `lastState`: of a container that waits for its next one, the last that ran.
fn last_instance<'a>(pod: &'a Pod, container: &str) -> Option<&'a str> {
    let last = status_of(pod, container)?.last_state.terminated.as_ref()?;
    last.container_id.split_once("://").map(|(_, id)| id)
}

fn no_previous(container: &ContainerName) -> ViewError {
    let (name, pod) = (&container.container, &container.pod.name);
    ViewError::NotNow(format!("previous terminated container {name:?} in pod {pod:?} not found"))
}

fn failed(error: RuntimeError) -> ViewError {
    ViewError::Failed(chain(&error))
}

#[cfg(test)]
mod tests;
