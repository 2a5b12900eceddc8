//! Rotates the logs of running containers: `containerLogMaxSize` per file, `containerLogMaxFiles`
//! files, older ones compressed. After a rotation the runtime is asked to reopen its file.
//!
//! The next pass repairs what a crash between two steps leaves: a moved file is reopened, a partial
//! compressed file is removed, a complete one replaces its source.
//!
//! All logs are rotated before the first file is compressed, and compression has a length and a
//! time: a pod may leave a sparse file of terabytes next to its log.

mod compression;
mod plan;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use agent_pod::translate::log_directory;
use agent_runtime::ContainerLogs;
use agent_runtime::runtime::RuntimeError;
use agent_telemetry::metrics::AgentMetrics;
use futures_util::StreamExt as _;
use proto_api::core::v1::Pod;
use proto_daemon::exit::chain;
use proto_daemon::panics::spawn_blocking;
use proto_daemon::statusz::TaskStatus;
use tokio::task::JoinError;

use crate::log_files::{Entry, LogDirectory};
use compression::{RotatedFile, compress_all};
use plan::{RotationStep, plan};

pub use plan::Limits;

/// Interval between passes, as in Kubernetes' kubelet.
const PERIOD: Duration = Duration::from_secs(10);
/// Logs rotated concurrently.
const PARALLEL_MAX: usize = 2;
/// Time for the compressions of a pass, in which no log is rotated.
const COMPRESSION_TIME: Duration = Duration::from_secs(20);

/// The log of a running container.
#[derive(Debug)]
struct Log {
    /// CRI id.
    instance: String,
    path: PathBuf,
    directory: Arc<LogDirectory>,
    /// Name of the current file.
    name: String,
    /// All files in the directory.
    entries: Vec<Entry>,
    /// Size of the current file; `None` if it does not exist.
    size: Option<u64>,
    /// Whether the current file's name belongs to something else than a regular file.
    is_foreign: bool,
    /// Bytes that all files of the directory occupy on the disk.
    taken: u64,
    /// Labels of the owner: uid, namespace and name of the pod, name of the container.
    owner: [String; 4],
}

/// The logs that are rotated, and what is notified of a rotation.
pub struct LogRotation {
    /// Returns the node's pods with their status.
    pub pods: Box<dyn Fn() -> Vec<Pod> + Send + Sync>,
    /// Directory of the pods' logs.
    pub pod_logs_dir: String,
    /// Reopens a log after its file was renamed.
    pub runtime: Arc<dyn ContainerLogs>,
    /// Sizes, and rotations by outcome.
    pub metrics: AgentMetrics,
}

/// Runs passes for as long as the agent runs.
pub async fn run(rotated: LogRotation, limits: Limits, page: TaskStatus) {
    loop {
        tokio::time::sleep(PERIOD).await;
        page.started("period");
        let pods = (rotated.pods)();
        let logs_dir = rotated.pod_logs_dir.clone();
        let logs = spawn_blocking(move || logs(&logs_dir, &pods)).await.unwrap_or_default();
        rotated.metrics.set_log_sizes(logs.iter().map(|log| (&log.owner, log.taken)));
        let outcomes = futures_util::stream::iter(logs)
            .map(|log| keep(&*rotated.runtime, log, limits))
            .buffer_unordered(PARALLEL_MAX)
            .collect::<Vec<_>>()
            .await;
        let (mut kept, mut failed) = (Vec::new(), Vec::new());
        for outcome in outcomes {
            match outcome {
                Ok(outcome) => kept.push(outcome),
                Err(error) => failed.push(error),
            }
        }
        let count_rotated = kept.iter().filter(|kept| matches!(kept, Kept::Rotated(_))).count();
        count(&rotated.metrics, count_rotated, failed.len());
        match failed.first() {
            None => page.done(format!("{count_rotated} logs rotated")),
            Some(first) => page.failed(chain(first)),
        }
        for error in failed {
            tracing::warn!(
                error = chain(&error),
                "cannot rotate a container's log; retried at the next pass"
            );
        }
        let files = kept.into_iter().flat_map(Kept::uncompressed).collect();
        compress_all(files, limits, Instant::now() + COMPRESSION_TIME).await;
    }
}

fn count(metrics: &AgentMetrics, rotated: usize, failed: usize) {
    for (outcome, count) in [("rotated", rotated), ("failed", failed)] {
        metrics.log_rotations.with_label_values(&[outcome]).inc_by(count as u64);
    }
}

/// Outcome for a log.
#[derive(Debug)]
enum Kept {
    /// It was within its limits.
    Within,
    /// It was rotated. These files of it are to be compressed.
    Rotated(Vec<RotatedFile>),
}

impl Kept {
    fn uncompressed(self) -> Vec<RotatedFile> {
        match self {
            Self::Within => Vec::new(),
            Self::Rotated(files) => files,
        }
    }
}

/// Why a log was not kept within its limits; the next pass tries again.
#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error("{} is not a regular file", .0.display())]
    NotRegular(PathBuf),
    #[error("{}: {step:?}", directory.display())]
    Step {
        directory: PathBuf,
        step: RotationStep,
        #[source]
        error: StepError,
    },
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error(transparent)]
    Files(#[from] io::Error),
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    #[error(transparent)]
    Thread(#[from] JoinError),
}

/// The logs of running containers.
fn logs(logs_dir: &str, pods: &[Pod]) -> Vec<Log> {
    let running = pods.iter().flat_map(|pod| {
        let status = &pod.status;
        let statuses = status.init_container_statuses.iter().chain(&status.container_statuses);
        let statuses = statuses.chain(&status.ephemeral_container_statuses);
        statuses.filter(|status| status.state.running.is_some()).filter_map(move |status| {
            let (_, instance) = status.container_id.split_once("://")?;
            let directory = Path::new(&log_directory(logs_dir, pod)).join(&status.name);
            let meta = &pod.metadata;
            let owner = [&meta.uid, &meta.namespace, &meta.name, &status.name].map(Clone::clone);
            find_newest_log(directory, instance, owner)
        })
    });
    running.collect()
}

/// The log of the newest instance in a directory.
fn find_newest_log(path: PathBuf, instance: &str, owner: [String; 4]) -> Option<Log> {
    let directory = LogDirectory::open(&path).ok()?;
    let entries = directory.entries().ok()?;
    let taken = entries.iter().fold(0_u64, |sum, entry| sum.saturating_add(entry.taken));
    let attempt = |name: &str| name.split_once(".log")?.0.parse::<u32>().ok();
    let newest = entries.iter().filter_map(|entry| attempt(&entry.name)).max()?;
    let name = format!("{newest}.log");
    let written = entries.iter().find(|entry| entry.name == name);
    let (size, is_foreign) =
        written.map_or((None, false), |written| (written.len, written.len.is_none()));
    let (instance, directory) = (instance.to_owned(), Arc::new(directory));
    Some(Log { instance, path, directory, name, entries, size, is_foreign, taken, owner })
}

async fn keep(runtime: &dyn ContainerLogs, log: Log, limits: Limits) -> Result<Kept, KeepError> {
    if log.is_foreign {
        // The runtime would open the target of a link.
        return Err(KeepError::NotRegular(log.path.join(&log.name)));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let names: Vec<_> = log.entries.iter().map(|entry| entry.name.clone()).collect();
    let steps = plan(&log.name, &names, log.size, limits, i64::try_from(now).unwrap_or(0));
    let (mut is_rotated, mut uncompressed) = (false, Vec::new());
    for step in steps {
        let directory = log.directory.clone();
        let done = match step.clone() {
            RotationStep::Remove(name) => off_thread(move || directory.remove(&name)).await,
            RotationStep::Compress(name) => {
                uncompressed.push(RotatedFile::new(&log, name));
                Ok(())
            }
            RotationStep::Rotate(name) => {
                is_rotated = true;
                rotate(runtime, &log, name).await
            }
            RotationStep::Reopen => reopen(runtime, &log.instance).await,
        };
        done.map_err(|error| KeepError::Step { directory: log.path.clone(), step, error })?;
    }
    Ok(if is_rotated { Kept::Rotated(uncompressed) } else { Kept::Within })
}

async fn off_thread(
    work: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> Result<(), StepError> {
    Ok(spawn_blocking(work).await??)
}

async fn reopen(runtime: &dyn ContainerLogs, instance: &str) -> Result<(), StepError> {
    match runtime.reopen_log(instance).await {
        // The container has ended, so nothing writes to the file.
        Err(error) if error.is_not_found() => Ok(()),
        other => Ok(other?),
    }
}

/// Renames the file and asks the runtime to reopen its log. If that fails, the rename is undone, so
/// that readers find the file.
async fn rotate(runtime: &dyn ContainerLogs, log: &Log, to: String) -> Result<(), StepError> {
    let moving = (log.directory.clone(), log.name.clone(), to.clone());
    off_thread(move || moving.0.rename(&moving.1, &moving.2)).await?;
    let reopened = reopen(runtime, &log.instance).await;
    if reopened.is_err() {
        // To a free name only: if the runtime has created a new file nevertheless, both stay.
        let moving = (log.directory.clone(), to, log.name.clone());
        let back = off_thread(move || moving.0.rename(&moving.1, &moving.2)).await;
        if let Err(error) = back {
            tracing::debug!(
                error = chain(&error),
                "cannot move a rotated log back; it keeps its rotated name"
            );
        }
    }
    reopened
}

#[cfg(test)]
mod tests;
