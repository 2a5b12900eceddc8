//! Removes a cluster: programs, containers, namespaces, links, cgroups and files, whatever of them is left.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use proto_daemon::mountinfo;

use crate::processes::{ProcessIdentity, all_pids};
use crate::progress::Progress;
use crate::spec::{Spec, tag_of};
use crate::supervisor::{Programs, end_supervisor};
use crate::{directory, namespaces, network, programs, supervisor};

/// How often the killing of what is left is repeated; forks can race with one look.
const KILL_ROUNDS_MAX: usize = 3000;

/// Removes everything of the cluster in `dir`. A directory that is empty or not there is no error; one with other files is.
pub async fn down(dir: &Path, progress: &Progress) -> Result<()> {
    directory::check_removable(dir)?;
    let tag = tag_of(dir);
    if let Some(spec) = Spec::load(dir)? {
        progress.step("stop the programs", stop_programs(&spec)).await?;
        progress.step("end the containers", end_containers(&tag)).await?;
        progress.step("empty the namespaces", end_namespaces(&spec)).await?;
    } else {
        progress.step("end the containers", end_containers(&tag)).await?;
    }
    progress.step("remove the network", network::remove_bridge(&format!("orch-{tag}"))).await?;
    progress.step("remove the cgroups", remove_cgroups(&tag)).await?;
    progress.step("remove the files", remove_files(dir)).await
}

async fn stop_programs(spec: &Spec) -> Result<()> {
    end_supervisor(spec, Programs::Stop).await?;
    // A supervisor that was killed left its programs running.
    for program in programs::programs(spec).iter().rev() {
        if let Some(process) = supervisor::find(spec, &program.name) {
            process.stop(Duration::from_secs(10)).await?;
        }
    }
    Ok(())
}

/// Kills every process in the cluster's cgroups: also containers, which are children of other processes.
async fn end_containers(tag: &str) -> Result<()> {
    for _ in 0..KILL_ROUNDS_MAX {
        let mut pids = Vec::new();
        for root in cgroup_roots(tag)? {
            collect_pids(&root, &mut pids)?;
        }
        if pids.is_empty() {
            return Ok(());
        }
        kill(&pids)?;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    bail!("processes in the cluster's cgroups do not exit after SIGKILL")
}

/// Kills what still runs in a node's mount namespace (shims, then the holder), with which its mounts and links go.
async fn end_namespaces(spec: &Spec) -> Result<()> {
    for node in spec.node_list() {
        let Some(holder) = namespaces::find(spec, &node.name) else { continue };
        let namespace = fs::read_link(format!("/proc/{}/ns/mnt", holder.identity.pid))?;
        for _ in 0..KILL_ROUNDS_MAX {
            let pids = pids_in(&namespace)?;
            if pids.is_empty() {
                break;
            }
            kill(&pids)?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    Ok(())
}

fn pids_in(namespace: &Path) -> Result<Vec<i32>> {
    let is_in = |pid: &i32| {
        fs::read_link(format!("/proc/{pid}/ns/mnt")).is_ok_and(|found| found == namespace)
    };
    Ok(all_pids()?.into_iter().filter(is_in).collect())
}

fn kill(pids: &[i32]) -> Result<()> {
    for pid in pids {
        if let Some(process) =
            ProcessIdentity::from_pid(*pid).ok().and_then(|identity| identity.open())
        {
            process.signal(Signal::SIGKILL)?;
        }
    }
    Ok(())
}

/// The cluster's directory in each cgroup hierarchy that has one.
fn cgroup_roots(tag: &str) -> Result<Vec<PathBuf>> {
    let name = format!("orch-{tag}");
    let mut roots = vec![Path::new("/sys/fs/cgroup").join(&name)];
    if let Ok(hierarchies) = fs::read_dir("/sys/fs/cgroup") {
        roots.extend(hierarchies.flatten().map(|entry| entry.path().join(&name)));
    }
    roots.retain(|root| root.is_dir());
    Ok(roots)
}

fn collect_pids(group: &Path, pids: &mut Vec<i32>) -> Result<()> {
    let procs = match fs::read_to_string(group.join("cgroup.procs")) {
        Ok(procs) => procs,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e).with_context(|| format!("cannot read {}", group.display())),
    };
    pids.extend(procs.lines().filter_map(|line| line.parse::<i32>().ok()));
    for child in child_dirs(group) {
        collect_pids(&child, pids)?;
    }
    Ok(())
}

fn child_dirs(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let is_dir = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    entries.flatten().filter(is_dir).map(|entry| entry.path()).collect()
}

async fn remove_cgroups(tag: &str) -> Result<()> {
    for root in cgroup_roots(tag)? {
        let mut last = Ok(());
        for _ in 0..KILL_ROUNDS_MAX {
            last = remove_groups(&root);
            if last.is_ok() {
                break;
            }
            // A group stays busy for a moment after its last process was reaped.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        last.with_context(|| format!("cannot remove {}", root.display()))?;
    }
    Ok(())
}

fn remove_groups(group: &Path) -> io::Result<()> {
    for child in child_dirs(group) {
        remove_groups(&child)?;
    }
    match fs::remove_dir(group) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

async fn remove_files(dir: &Path) -> Result<()> {
    namespaces::remove_mount_points(dir);
    if let Some(mounted) = mounts_below(dir)?.first() {
        let (mounted, dir) = (mounted.display(), dir.display());
        bail!("{mounted} is still mounted below {dir}; nothing was removed there");
    }
    directory::remove(dir)
}

fn mounts_below(dir: &Path) -> Result<Vec<PathBuf>> {
    let mounts = mountinfo::read().context("cannot read the mount table")?;
    Ok(mounts.into_iter().map(|mount| mount.point).filter(|point| point.starts_with(dir)).collect())
}
