//! Keeps the logs of running containers within their bounds: `containerLogMaxSize` a file, `containerLogMaxFiles` files, older ones
//! compressed. The runtime is told to open its file again after each rotation.
//!
//! Whatever happens between two steps is put right by the next pass: a file that was moved away while nobody told the runtime is
//! opened again, a half-made compressed file is removed, a whole one replaces what it was made of.

mod plan;

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use agent_pod::translate::log_directory;
use agent_runtime::Runtime;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::StreamExt as _;
use proto_api::core::v1::Pod;
use proto_daemon::exit::chain;
use proto_daemon::statusz::TaskStatus;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use tokio::task::spawn_blocking;

use crate::metrics::AgentMetrics;
use crate::pods::parts::Parts;
use plan::{Act, plan};

pub use plan::Limits;

/// Between two looks, as the ecosystem has it.
const PERIOD: Duration = Duration::from_secs(10);
/// Logs rotated side by side: compressing keeps a processor busy.
const PARALLEL_MAX: usize = 2;

/// Bytes of what the kernel counts files in.
const BLOCK: u64 = 512;

/// The log of a running container.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Log {
    /// The runtime's id.
    instance: String,
    /// Directory of its files.
    directory: PathBuf,
    /// Name of the one that is written.
    name: String,
    /// Everything in the directory.
    names: Vec<String>,
    /// Size of the one that is written; `None` when it is not there.
    size: Option<u64>,
    /// What all files in the directory take of the disk, in bytes.
    taken: u64,
    /// Whose it is: uid, namespace and name of the pod, name of the container.
    owner: [String; 4],
}

/// Looks after logs for as long as the agent runs.
pub async fn run(parts: Arc<Parts>, limits: Limits, page: TaskStatus) {
    loop {
        tokio::time::sleep(PERIOD).await;
        page.started("period");
        let pods = parts.shown_pods();
        let logs_dir = parts.facts.pod_logs_dir.clone();
        let logs = spawn_blocking(move || logs(&logs_dir, &pods)).await.unwrap_or_default();
        parts.metrics.logs_take(logs.iter().map(|log| (&log.owner, log.taken)));
        let outcomes = futures_util::stream::iter(logs)
            .map(|log| keep(&*parts.runtime, log, limits))
            .buffer_unordered(PARALLEL_MAX)
            .collect::<Vec<_>>()
            .await;
        let failed: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
        let rotated =
            outcomes.iter().filter(|outcome| matches!(outcome, Ok(Kept::Rotated))).count();
        count(&parts.metrics, rotated, failed.len());
        match failed.first() {
            None => page.done(format!("{rotated} logs rotated")),
            Some(first) => page.failed((*first).clone()),
        }
        failed.iter().for_each(|error| tracing::warn!(%error, "a log is not rotated"));
    }
}

fn count(metrics: &AgentMetrics, rotated: usize, failed: usize) {
    for (outcome, count) in [("rotated", rotated), ("failed", failed)] {
        metrics.log_rotations.with_label_values(&[outcome]).inc_by(count as u64);
    }
}

/// What became of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// It was within its bounds.
    Within,
    /// It has a new file.
    Rotated,
}

/// The logs of the containers that run.
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
fn look(directory: PathBuf, instance: &str, owner: [String; 4]) -> Option<Log> {
    let (mut names, mut taken) = (Vec::new(), 0);
    for entry in std::fs::read_dir(&directory).ok()?.flatten() {
        taken += entry.metadata().map_or(0, |metadata| metadata.blocks() * BLOCK);
        names.extend(entry.file_name().into_string());
    }
    let attempt = |name: &String| name.split_once(".log")?.0.parse::<u32>().ok();
    let newest = names.iter().filter_map(attempt).max()?;
    let name = format!("{newest}.log");
    let size = std::fs::metadata(directory.join(&name)).ok().map(|metadata| metadata.len());
    Some(Log { instance: instance.to_owned(), directory, name, names, size, taken, owner })
}

async fn keep(runtime: &dyn Runtime, log: Log, limits: Limits) -> Result<Kept, String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let acts = plan(&log.name, &log.names, log.size, limits, i64::try_from(now).unwrap_or(0));
    let mut kept = Kept::Within;
    for act in acts {
        let failed = |error: String| format!("{}: {act:?}: {error}", log.directory.display());
        match &act {
            Act::Remove(name) => {
                let path = log.directory.join(name);
                off_thread(move || std::fs::remove_file(path)).await.map_err(failed)?;
            }
            Act::Compress(name) => {
                // A full disk keeps nobody from rotating: the file stays as it is.
                let path = log.directory.join(name);
                if let Err(error) = off_thread(move || compress(&path)).await {
                    tracing::warn!(error = failed(error), "a rotated log stays uncompressed");
                }
            }
            Act::Rotate(name) => {
                let (from, to) = (log.directory.join(&log.name), log.directory.join(name));
                rotate(runtime, &log.instance, from, to).await.map_err(failed)?;
                kept = Kept::Rotated;
            }
            Act::Reopen => reopen(runtime, &log.instance).await.map_err(failed)?,
        }
    }
    Ok(kept)
}

async fn off_thread(work: impl FnOnce() -> io::Result<()> + Send + 'static) -> Result<(), String> {
    let done = spawn_blocking(work).await.map_err(|error| error.to_string())?;
    done.map_err(|error| error.to_string())
}

async fn reopen(runtime: &dyn Runtime, instance: &str) -> Result<(), String> {
    match runtime.reopen_log(instance).await {
        // It has ended meanwhile: nobody writes.
        Err(error) if error.is_not_found() => Ok(()),
        other => other.map_err(|error| chain(&error)),
    }
}

/// Moves the file away and tells the runtime; a runtime that does not listen gets its file back, so that readers find it.
async fn rotate(
    runtime: &dyn Runtime,
    instance: &str,
    from: PathBuf,
    to: PathBuf,
) -> Result<(), String> {
    let moved = (from.clone(), to.clone());
    off_thread(move || Ok(renameat_with(CWD, &moved.0, CWD, &moved.1, RenameFlags::NOREPLACE)?))
        .await?;
    let told = reopen(runtime, instance).await;
    if told.is_err() {
        // NOREPLACE: when the runtime has made a new file all the same, both stay.
        let back =
            off_thread(move || Ok(renameat_with(CWD, &to, CWD, &from, RenameFlags::NOREPLACE)?))
                .await;
        if let Err(error) = back {
            tracing::debug!(error, "a rotated log stays where it is");
        }
    }
    told
}

/// Makes `<path>.gz`, whole or not at all, and removes `path`.
fn compress(path: &Path) -> io::Result<()> {
    let named = |end: &str| PathBuf::from(format!("{}{end}", path.display()));
    let (cut, whole) = (named(".tmp"), named(".gz"));
    let packed = (|| {
        let mut content = io::BufReader::new(std::fs::File::open(path)?);
        let mut packed = GzEncoder::new(
            io::BufWriter::new(std::fs::File::create(&cut)?),
            Compression::default(),
        );
        io::copy(&mut content, &mut packed)?;
        let file = packed.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        std::fs::rename(&cut, &whole)
    })();
    if packed.is_err() {
        // The next pass removes it if this does not.
        let _ = std::fs::remove_file(&cut);
        return packed;
    }
    std::fs::remove_file(path)
}

#[cfg(test)]
mod tests;
