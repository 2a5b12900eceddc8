//! Rotates the logs of running containers: `containerLogMaxSize` per file, `containerLogMaxFiles`
//! files, older ones compressed. After a rotation the runtime is asked to reopen its file.
//!
//! The next pass repairs what a crash between two steps leaves: a moved file is reopened, a partial
//! compressed file is removed, a complete one replaces its source.

mod plan;

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use agent_pod::translate::log_directory;
use agent_runtime::ContainerLogs;
use agent_runtime::runtime::RuntimeError;
use agent_telemetry::metrics::AgentMetrics;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::StreamExt as _;
use proto_api::core::v1::Pod;
use proto_daemon::exit::chain;
use proto_daemon::statusz::TaskStatus;
use tokio::task::{JoinError, spawn_blocking};

use crate::log_files::LogDirectory;
use plan::{RotationStep, plan};

pub use plan::Limits;

/// Interval between passes, as in Kubernetes' kubelet.
const PERIOD: Duration = Duration::from_secs(10);
/// Logs rotated concurrently; compression occupies a processor.
const PARALLEL_MAX: usize = 2;

/// Permission bits that a compressed log takes from its source, so that log collectors can read it.
const RIGHTS: u32 = 0o644;

/// The log of a running container.
#[derive(Debug)]
struct Log {
    /// CRI id.
    instance: String,
    path: PathBuf,
    directory: Arc<LogDirectory>,
    /// Name of the current file.
    name: String,
    /// All names in the directory.
    names: Vec<String>,
    /// Size of the current file; `None` if it does not exist.
    size: Option<u64>,
    /// Whether the current file's name belongs to something else than a regular file.
    is_foreign: bool,
    /// Bytes that all files of the directory occupy on the disk.
    taken: u64,
    /// Labels of the owner: uid, namespace and name of the pod, name of the container.
    owner: [String; 4],
}

/// The logs that are rotated, and who is told.
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
        let failed: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
        let count_rotated =
            outcomes.iter().filter(|outcome| matches!(outcome, Ok(Kept::Rotated))).count();
        count(&rotated.metrics, count_rotated, failed.len());
        match failed.first() {
            None => page.done(format!("{count_rotated} logs rotated")),
            Some(first) => page.failed(chain(*first)),
        }
        for error in failed {
            tracing::warn!(
                error = chain(error),
                "cannot rotate a container's log; retried at the next pass"
            );
        }
    }
}

fn count(metrics: &AgentMetrics, rotated: usize, failed: usize) {
    for (outcome, count) in [("rotated", rotated), ("failed", failed)] {
        metrics.log_rotations.with_label_values(&[outcome]).inc_by(count as u64);
    }
}

/// Outcome for a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// It was within its limits.
    Within,
    /// It was rotated.
    Rotated,
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
            look(directory, instance, owner)
        })
    });
    running.collect()
}

/// The log of the newest instance in a directory.
fn look(path: PathBuf, instance: &str, owner: [String; 4]) -> Option<Log> {
    let directory = LogDirectory::open(&path).ok()?;
    let entries = directory.entries().ok()?;
    let taken = entries.iter().fold(0_u64, |sum, entry| sum.saturating_add(entry.taken));
    let attempt = |name: &str| name.split_once(".log")?.0.parse::<u32>().ok();
    let newest = entries.iter().filter_map(|entry| attempt(&entry.name)).max()?;
    let name = format!("{newest}.log");
    let written = entries.iter().find(|entry| entry.name == name);
    let (size, is_foreign) =
        written.map_or((None, false), |written| (written.len, written.len.is_none()));
    let names = entries.into_iter().map(|entry| entry.name).collect();
    let (instance, directory) = (instance.to_owned(), Arc::new(directory));
    Some(Log { instance, path, directory, name, names, size, is_foreign, taken, owner })
}

async fn keep(runtime: &dyn ContainerLogs, log: Log, limits: Limits) -> Result<Kept, KeepError> {
    if log.is_foreign {
        // The runtime would open the target of a link.
        return Err(KeepError::NotRegular(log.path.join(&log.name)));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let steps = plan(&log.name, &log.names, log.size, limits, i64::try_from(now).unwrap_or(0));
    let mut kept = Kept::Within;
    for step in steps {
        let directory = log.directory.clone();
        let done = match step.clone() {
            RotationStep::Remove(name) => off_thread(move || directory.remove(&name)).await,
            RotationStep::Compress(name) => {
                // A full disk does not prevent rotation: the file stays uncompressed.
                if let Err(error) = off_thread(move || compress(&directory, &name)).await {
                    let failed = KeepError::Step { directory: log.path.clone(), step, error };
                    tracing::warn!(
                        error = chain(&failed),
                        "cannot compress a rotated log; it stays uncompressed until the next pass"
                    );
                    continue;
                }
                Ok(())
            }
            RotationStep::Rotate(name) => {
                kept = Kept::Rotated;
                rotate(runtime, &log, name).await
            }
            RotationStep::Reopen => reopen(runtime, &log.instance).await,
        };
        done.map_err(|error| KeepError::Step { directory: log.path.clone(), step, error })?;
    }
    Ok(kept)
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
    let told = reopen(runtime, &log.instance).await;
    if told.is_err() {
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
    told
}

/// Creates `<name>.gz` atomically and removes `name`.
fn compress(directory: &LogDirectory, name: &str) -> io::Result<()> {
    let (cut, whole) = (format!("{name}.tmp"), format!("{name}.gz"));
    let plain = directory.read(name)?;
    let rights = plain.metadata()?.permissions().mode() & RIGHTS;
    let made = directory.create(&cut)?;
    let packed = (|| {
        let mut packed = GzEncoder::new(io::BufWriter::new(made), Compression::default());
        io::copy(&mut io::BufReader::new(plain), &mut packed)?;
        let file = packed.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.set_permissions(std::fs::Permissions::from_mode(rights))?;
        file.sync_all()?;
        directory.replace(&cut, &whole)
    })();
    if packed.is_err() {
        // If this fails, the next pass removes it.
        let _ = directory.remove(&cut);
        return packed;
    }
    directory.remove(name)
}

#[cfg(test)]
mod tests;
