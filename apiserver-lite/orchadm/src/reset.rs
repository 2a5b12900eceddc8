//! `orchadm reset`: nothing of what init or join made stays on this host: programs, pods, mounts, the pods' network, cgroups, files.

use std::fs;
use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use apiserver_bootstrap::arguments::command_line;
use apiserver_bootstrap::processes::{Identity, all_pids};
use apiserver_bootstrap::supervise::STOP_GRACE;
use clap::Args;
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::Signal;
use proto_daemon::{mountinfo, private_files};

use crate::host::{self, Host};
use crate::runtime::{DEFAULT_SOCKET, Runtime};
use crate::{links, supervisor, systemd};

/// Flags of `reset`.
#[derive(Args, Clone, Debug)]
pub struct ResetFlags {
    /// Do not ask.
    #[arg(short = 'f', long)]
    force: bool,
    /// Socket of the container runtime [default: the one of init or join]
    #[arg(long, value_name = "SOCKET")]
    cri_socket: Option<String>,
    /// Directory of the programs [default: that of this program]
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
}

/// All programs that init or join start, in the order of their end.
const PROGRAMS: [&str; 5] =
    ["orch-proxy", "orchlet", "orch-scheduler", "orch-controller-manager", "orch-apiserver"];
/// The network configuration that orchlet writes, and the bridge in it.
const NETWORK: (&str, &str) = ("10-orch.conflist", "cni0");
/// The first argument of orchlet's connection keeper.
const KEEPER: &str = "hold-connection";
/// How often what is busy for a moment is tried.
const ROUNDS_MAX: usize = 100;
/// Between two of them.
const PAUSE: Duration = Duration::from_millis(50);

/// Runs `reset`. Everything is tried; what could not be removed is told at the end.
///
/// # Errors
/// It is not confirmed, or something is left.
pub async fn run(host: &Host, flags: &ResetFlags) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("user is not running as root");
    }
    if !flags.force && !is_confirmed()? {
        bail!("aborted: nothing was removed");
    }
    let known = host.record.as_ref().map(|record| record.runtime.clone());
    let runtime = flags.cri_socket.clone().or(known).unwrap_or_else(|| DEFAULT_SOCKET.to_owned());
    let bin_dir = host::bin_dir(flags.bin_dir.as_deref())?;
    let mut left = Vec::new();
    let mut step = |what: &str, done: Result<()>| match done {
        Ok(()) => host.output.say("reset", what),
        Err(error) => {
            host.output.warn("reset", "Reset", &format!("{what}: {error:#}"));
            left.push(what.to_owned());
        }
    };
    step("stop the programs", stop_programs(host).await);
    step("remove the pods", remove_pods(&runtime).await);
    step("end the helpers of orchlet", end_keepers());
    step("remove the mounts", remove_mounts(&host.layout.node_root));
    step("remove the tables and routes of the proxy", clean_proxy(host, &bin_dir).await);
    step("remove the pods' network", remove_network(host).await);
    step("remove the cgroups", remove_cgroups(host).await);
    step("remove the files", remove_files(host));
    if !left.is_empty() {
        bail!(
            "something is left: {}; `orchadm reset` again once the reason is gone",
            left.join(", ")
        );
    }
    host.output
        .say("reset", "images stay in the runtime, and settings of the kernel stay as they are");
    Ok(())
}

fn is_confirmed() -> Result<bool> {
    if !std::io::stdin().is_terminal() {
        bail!("give --force: nobody can be asked");
    }
    print!("[reset] Are you sure that you want to remove this host from its cluster? [y/N]: ");
    std::io::stdout().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

async fn stop_programs(host: &Host) -> Result<()> {
    let layout = &host.layout;
    if let Some(supervisor) = supervisor::find_supervisor(layout) {
        supervisor.signal(Signal::SIGTERM)?;
        let patience = STOP_GRACE * PROGRAMS.len() as u32;
        if tokio::time::timeout(patience, supervisor.ended()).await.is_err() {
            supervisor.signal(Signal::SIGKILL)?;
        }
    }
    for program in PROGRAMS {
        systemd_remove(host, program).await?;
        // What a supervisor that was killed left.
        if let Some(running) = supervisor::find(layout, program) {
            running.stop(STOP_GRACE).await.with_context(|| format!("stopping {program}"))?;
        }
        let known = host.record.as_ref().and_then(|record| record.program(program));
        if let Some(running) = known.and_then(|known| supervisor::find_unrecorded(&known.argv)) {
            running.stop(STOP_GRACE).await.with_context(|| format!("stopping {program}"))?;
        }
    }
    Ok(())
}

async fn systemd_remove(host: &Host, program: &str) -> Result<()> {
    match host::has_systemd(&host.layout) {
        true => systemd::remove(&host.layout, program).await,
        false => Ok(()),
    }
}

async fn remove_pods(runtime: &str) -> Result<()> {
    let mut runtime = Runtime::connect(runtime).await?;
    runtime.remove_pods().await.map(drop)
}

/// Ends the processes that keep orchlet's calls of the runtime open. Those of another mount namespace are another host's.
fn end_keepers() -> Result<()> {
    let namespace = fs::read_link("/proc/self/ns/mnt")?;
    for pid in all_pids()? {
        let process = Path::new("/proc").join(pid.to_string());
        let line = fs::read(process.join("cmdline")).unwrap_or_default();
        let is_keeper = line.split(|byte| *byte == 0).nth(1) == Some(KEEPER.as_bytes());
        if is_keeper
            && fs::read_link(process.join("ns/mnt")).is_ok_and(|found| found == namespace)
            && let Some(handle) = Identity::of(pid).ok().and_then(|identity| identity.open())
        {
            handle.signal(Signal::SIGKILL)?;
        }
    }
    Ok(())
}

/// Unmounts everything below a directory, last mounted first.
fn remove_mounts(dir: &Path) -> Result<()> {
    for mount in mountinfo::read()?.iter().rev().filter(|mount| mount.point.starts_with(dir)) {
        umount2(&mount.point, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)
            .with_context(|| format!("unmounting {}", mount.point.display()))?;
    }
    Ok(())
}

async fn clean_proxy(host: &Host, bin_dir: &Path) -> Result<()> {
    let known = host.record.as_ref().and_then(|record| record.program("orch-proxy"));
    let recorded = known.and_then(|program| program.argv.first()).map(PathBuf::from);
    let program = recorded.unwrap_or_else(|| bin_dir.join("orch-proxy"));
    if !program.exists() {
        bail!("{} is missing: give --bin-dir", program.display());
    }
    // The tables have the profile's name.
    let line = command_line(bin_dir, "orch-proxy", host.names, &Vec::new());
    let mut command = tokio::process::Command::new(&program);
    let output = command.args(line.iter().skip(1)).args(["cleanup", "--routes"]).output().await;
    let output = output.with_context(|| program.display().to_string())?;
    if !output.status.success() {
        bail!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// The bridge is ours when the network configuration that names it is.
async fn remove_network(host: &Host) -> Result<()> {
    let (file, bridge) = NETWORK;
    let path = host.layout.cni.join(file);
    if !path.exists() {
        return Ok(());
    }
    links::remove(bridge).await?;
    let addresses = host.layout.root.join("var/lib/cni/networks/orch");
    remove_dir(&addresses)?;
    Ok(private_files::remove_private(&path)?)
}

/// Removes the empty cgroups of pods.
async fn remove_cgroups(host: &Host) -> Result<()> {
    if host::has_systemd(&host.layout) {
        systemd::end_slice("kubepods.slice").await?;
    }
    let root = cgroup_root(host);
    for hierarchy in hierarchies() {
        for name in ["kubepods", "kubepods.slice"] {
            let group = hierarchy.join(&root).join(name);
            let mut removed = remove_group(&group);
            for _ in 0..ROUNDS_MAX {
                if removed.is_ok() {
                    break;
                }
                // A group stays busy for a moment after its last process was reaped.
                tokio::time::sleep(PAUSE).await;
                removed = remove_group(&group);
            }
            removed.with_context(|| format!("removing {}", group.display()))?;
        }
    }
    Ok(())
}

/// orchlet's `--cgroup-root`, without the leading slash.
fn cgroup_root(host: &Host) -> PathBuf {
    let agent = host.record.as_ref().and_then(|record| record.program("orchlet"));
    let words = agent.map(|agent| agent.argv.as_slice()).unwrap_or_default();
    let root = words.iter().find_map(|word| word.strip_prefix("--cgroup-root="));
    PathBuf::from(root.unwrap_or_default().trim_start_matches('/'))
}

/// The cgroup hierarchies: one of version 2, or several of version 1.
fn hierarchies() -> Vec<PathBuf> {
    let root = PathBuf::from("/sys/fs/cgroup");
    let mut all: Vec<PathBuf> = match fs::read_dir(&root) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
        Err(_) => Vec::new(),
    };
    all.retain(|path| path.join("cgroup.procs").exists() && !path.is_symlink());
    all.push(root);
    all
}

fn remove_group(group: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_group(&entry.path())?;
        }
    }
    match fs::remove_dir(group) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn remove_files(host: &Host) -> Result<()> {
    let layout = &host.layout;
    let below =
        |dir: &Path| mountinfo::read().map(|all| all.iter().any(|m| m.point.starts_with(dir)));
    if below(&layout.node_root)? {
        bail!(
            "something is mounted below {}: nothing was removed there",
            layout.node_root.display()
        );
    }
    let pki = host.pki();
    let dirs = [
        &layout.config,
        &pki,
        &layout.node_root,
        &layout.store,
        &layout.logs,
        &layout.run,
        &layout.root.join("var/log/pods"),
        &layout.root.join("var/log/containers"),
        // Last: a reset that is cut off is repeated by it.
        &layout.state,
    ];
    dirs.iter().try_for_each(|dir| remove_dir(dir))
}

fn remove_dir(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("removing {}", dir.display())),
    }
}

#[cfg(test)]
mod tests {
    use apiserver_bootstrap::arguments::Program;
    use apiserver_bootstrap::layout::Layout;
    use apiserver_bootstrap::preflight::Role;
    use proto_api::names::{Names, Profile};

    use super::*;
    use crate::output::{Format, Output};
    use crate::record::Record;

    fn host(root: &Path) -> Host {
        let names = Names::new(Profile::Kubernetes);
        let mut record = Record::new(names, Role::Node, "n", "");
        let argv = vec!["/b/orchlet".to_owned(), "--cgroup-root=/a/b".to_owned()];
        record.put(&Program { name: "orchlet".into(), argv });
        Host {
            names,
            layout: Layout::new(names, root),
            record: Some(record),
            output: Output { format: Format::Text },
        }
    }

    #[test]
    fn every_file_below_the_root_goes_and_can_be_gone_already() {
        let root = tempfile::tempdir().unwrap();
        let host = host(root.path());
        let layout = &host.layout;
        for dir in [&layout.pki, &layout.node_root, &layout.store, &layout.state, &layout.logs] {
            fs::create_dir_all(dir).unwrap();
            fs::write(dir.join("f"), "x").unwrap();
        }
        remove_files(&host).unwrap();
        for dir in [&layout.config, &layout.node_root, &layout.store, &layout.state, &layout.logs] {
            assert!(!dir.exists(), "{}", dir.display());
        }
        remove_files(&host).unwrap();
    }

    #[test]
    fn the_agent_s_cgroups_are_where_it_was_told() {
        assert_eq!(cgroup_root(&host(Path::new("/"))), Path::new("a/b"));
    }
}
