//! `orchadm reset`: nothing of what init or join made stays on this host: programs, pods, mounts, the pods' network, cgroups, files.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use apiserver_bootstrap::arguments::command_line;
use apiserver_bootstrap::certificates;
use apiserver_bootstrap::links;
use apiserver_bootstrap::processes::{find_processes, find_unrecorded};
use apiserver_bootstrap::record::HostRecord;
use apiserver_bootstrap::supervise::STOP_GRACE;
use clap::Args;
use nix::sys::signal::Signal;
use proto_daemon::private_files;

use crate::host::{self, Host};
use crate::runtime::{DEFAULT_SOCKET, Runtime};
use crate::supervisor;
use apiserver_bootstrap::{dry_run, external, pod_cgroups, removal, systemd};

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
    /// Go on where the container runtime does not answer: processes of pods are killed, and what the runtime keeps of the pods stays.
    #[arg(long)]
    without_runtime: bool,
    /// Go on where no record of init or join can be read; needs --naming.
    #[arg(long)]
    pub without_record: bool,
    /// Remove the backups of the store as well.
    #[arg(long)]
    remove_backups: bool,
    /// Only say what would be ended and removed.
    #[arg(long)]
    dry_run: bool,
}

/// All programs that init or join start, in the order of their end.
const PROGRAMS: [&str; 5] =
    ["orch-proxy", "orchlet", "orch-scheduler", "orch-controller-manager", "orch-apiserver"];
/// The network configuration that orchlet writes, and the bridge in it.
const NETWORK: (&str, &str) = ("10-orch.conflist", "cni0");
/// The directory of backups, in that of the store.
const BACKUPS: &std::ffi::CStr = c"backups";
/// The first argument of orchlet's connection keeper.
const KEEPER: &str = "hold-connection";
/// Longest wait for the proxy's cleaning.
const CLEANUP_PATIENCE: Duration = Duration::from_secs(60);

/// What is still alive of a cluster once its programs were to end; files below it are in use.
const LIVE: [&str; 3] = ["stop the programs", "remove the pods", "remove the mounts"];

/// What was done, and what could not be.
struct Steps<'a> {
    host: &'a Host,
    left: Vec<String>,
}

impl Steps<'_> {
    fn take(&mut self, what: &str, done: Result<()>) {
        match done {
            Ok(()) => self.host.output.log("reset", what),
            Err(error) => {
                self.host.output.warn("reset", "Reset", &format!("{what}: {error:#}"));
                self.left.push(what.to_owned());
            }
        }
    }
}

/// Runs `reset`. Every step is tried; what could not be removed is listed at the end, and the record stays until everything is removed: the next reset
/// needs it.
///
/// # Errors
/// It is not confirmed, or something is left.
pub async fn run(host: &Host, flags: &ResetFlags) -> Result<()> {
    if flags.dry_run {
        let runtime = runtime_of(host, flags);
        let running = if host.is_running() { &PROGRAMS[..] } else { &[] };
        let runtime = (!flags.without_runtime).then_some(runtime.as_str());
        host.would("reset", dry_run::reset(&host.layout, running, runtime, flags.remove_backups));
        let kept = host.record.as_ref().and_then(HostRecord::describe_kept_in_etcd);
        host.would("reset", kept.map(|kept| format!("leave {kept}")));
        return Ok(());
    }
    if !nix::unistd::geteuid().is_root() {
        bail!("user is not running as root");
    }
    if !flags.force && !is_confirmed()? {
        bail!("aborted: nothing was removed");
    }
    let mut steps = Steps { host, left: Vec::new() };
    match host.is_running() {
        true => end_all(&mut steps, flags).await?,
        false => steps.take(LIVE[0], nothing_runs(host)),
    }
    if may_remove_files(&steps.left) {
        remove_files(&mut steps, flags.remove_backups);
    } else {
        steps.take("remove the files", Err(anyhow!("kept until everything else is removed")));
    }
    if !steps.left.is_empty() {
        bail!(
            "not everything was removed: {}; resolve the cause, then run `orchadm reset` again",
            steps.left.join(", ")
        );
    }
    removal::remove_dir(&host.layout.state)?;
    if let Some(kept) = host.record.as_ref().and_then(HostRecord::describe_kept_in_etcd) {
        host.output.warn("reset", "ExternalEtcd", &format!("left {kept}"));
    }
    host.output
        .log("reset", "images stay in the runtime, and settings of the kernel stay as they are");
    Ok(())
}

/// Records that a reset has begun. A full disk does not keep a host from its reset.
fn record_reset(host: &Host) {
    if let Some(Err(error)) = host.record.as_ref().map(|known| known.begin_reset(&host.layout)) {
        let text = format!("programs may be started again meanwhile: {error:#}");
        host.output.warn("reset", "Record", &text);
    }
}

fn may_remove_files(left: &[String]) -> bool {
    !left.iter().any(|what| LIVE.contains(&what.as_str()))
}

/// Ends what runs on this host.
async fn end_all(steps: &mut Steps<'_>, flags: &ResetFlags) -> Result<()> {
    let host = steps.host;
    let runtime = runtime_of(host, flags);
    let bin_dir = host::bin_dir(flags.bin_dir.as_deref())?;
    record_reset(host);
    steps.take(LIVE[0], stop_programs(host).await);
    let pods = match flags.without_runtime {
        true => kill_pods(host).await,
        false => remove_pods(&runtime).await,
    };
    steps.take(LIVE[1], pods);
    steps.take("end the helpers of orchlet", end_keepers(&program(host, &bin_dir, "orchlet")));
    steps.take(LIVE[2], removal::undo_mounts(&host.layout.node_root).map_err(Into::into));
    let proxy = clean_proxy(host, &program(host, &bin_dir, "orch-proxy")).await;
    steps.take("remove the tables and routes of the proxy", proxy);
    steps.take("remove the pods' network", remove_network(host).await);
    steps.take("remove the cgroups", remove_cgroups(host).await);
    Ok(())
}

/// Socket of the container runtime.
fn runtime_of(host: &Host, flags: &ResetFlags) -> String {
    let known = host.record.as_ref().map(|record| record.runtime.clone());
    flags.cri_socket.clone().or(known).unwrap_or_else(|| DEFAULT_SOCKET.to_owned())
}

/// The file of a program: the recorded one, else that of a directory.
fn program(host: &Host, bin_dir: &Path, name: &str) -> PathBuf {
    let known = host.record.as_ref().and_then(|record| record.program(name));
    let recorded = known.and_then(|program| program.argv.first()).map(PathBuf::from);
    recorded.unwrap_or_else(|| bin_dir.join(name))
}

/// Files below another root may be of programs that run all the same.
fn nothing_runs(host: &Host) -> Result<()> {
    if supervisor::find_supervisor(&host.layout).is_some() {
        bail!("`orchadm run` keeps its programs running: end it first, with SIGTERM");
    }
    match PROGRAMS.iter().find(|program| supervisor::find(&host.layout, program).is_some()) {
        Some(program) => bail!("{program} runs: end it first"),
        None => Ok(()),
    }
}

fn is_confirmed() -> Result<bool> {
    print!("[reset] Are you sure that you want to remove this host from its cluster? [y/N]: ");
    std::io::stdout().flush()?;
    let mut answer = String::new();
    if std::io::stdin().read_line(&mut answer)? == 0 {
        bail!("standard input is not a terminal: give --force to remove without confirmation");
    }
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

async fn stop_programs(host: &Host) -> Result<()> {
    let layout = &host.layout;
    if let Some(supervisor) = supervisor::find_supervisor(layout) {
        supervisor.signal(Signal::SIGTERM)?;
        let patience = STOP_GRACE * PROGRAMS.len() as u32;
        if tokio::time::timeout(patience, supervisor.ended()).await.is_err() {
            supervisor.signal(Signal::SIGKILL)?;
            let ended = tokio::time::timeout(STOP_GRACE, supervisor.ended()).await;
            ended.context("the supervisor does not end after SIGKILL")??;
        }
    }
    for program in PROGRAMS {
        systemd_remove(host, program).await?;
        // What a supervisor that was killed left.
        if let Some(running) = supervisor::find(layout, program) {
            running.stop(STOP_GRACE).await.with_context(|| format!("cannot stop {program}"))?;
        }
        let known = host.record.as_ref().and_then(|record| record.program(program));
        if let Some(running) = known.and_then(|known| find_unrecorded(&known.argv)) {
            running.stop(STOP_GRACE).await.with_context(|| format!("cannot stop {program}"))?;
        }
    }
    Ok(())
}

async fn systemd_remove(host: &Host, program: &str) -> Result<()> {
    match host::has_systemd(&host.layout) {
        true => Ok(systemd::remove(&host.layout, program).await?),
        false => Ok(()),
    }
}

async fn remove_pods(runtime: &str) -> Result<()> {
    let connected = Runtime::connect(runtime).await;
    let mut runtime = connected.context(
        "the container runtime does not answer: start it, or give --without-runtime, which kills the processes of pods and leaves what the runtime keeps of them",
    )?;
    runtime.remove_pods().await.map(drop)
}

/// Ends pods where the container runtime does not respond.
async fn kill_pods(host: &Host) -> Result<()> {
    let count = pod_cgroups::kill(&cgroup_root(host)).await?;
    let text = format!(
        "killed {count} processes of pods; the runtime still knows the pods: `crictl rmp --all --force` once it runs"
    );
    host.output.warn("reset", "Runtime", &text);
    Ok(())
}

/// Ends the processes that keep orchlet's calls of the runtime open. Those of another mount namespace or program are another host's.
fn end_keepers(agent: &Path) -> Result<()> {
    let is_keeper = |line: &[String]| line.get(1).is_some_and(|word| word == KEEPER);
    for keeper in find_processes(agent, is_keeper)? {
        keeper.signal(Signal::SIGKILL)?;
    }
    Ok(())
}

async fn clean_proxy(host: &Host, program: &Path) -> Result<()> {
    if !program.exists() {
        bail!("{} is missing: give --bin-dir", program.display());
    }
    // The tables have the profile's name.
    let line = command_line(Path::new(""), "orch-proxy", host.names, &Vec::new());
    let mut command = tokio::process::Command::new(program);
    command.args(line.iter().skip(1)).args(["cleanup", "--routes"]);
    let output = external::output(&mut command, CLEANUP_PATIENCE).await?;
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
    let plugins = host.layout.root.join("var/lib/cni");
    removal::remove_dir(&plugins.join("networks/orch"))?;
    // The plugins make these for the first pod. The directory of configurations is the runtime's, which watches it.
    for dir in ["networks", "results", "cache", ""] {
        removal::remove_if_empty(&plugins.join(dir))?;
    }
    Ok(private_files::remove_private(&path)?)
}

/// Removes the empty cgroups of pods.
async fn remove_cgroups(host: &Host) -> Result<()> {
    if host::has_systemd(&host.layout) {
        systemd::end_slice("kubepods.slice").await?;
    }
    Ok(pod_cgroups::remove(&cgroup_root(host)).await?)
}

/// orchlet's `--cgroup-root`, without the leading slash.
fn cgroup_root(host: &Host) -> PathBuf {
    host.record.as_ref().map(HostRecord::cgroup_root).unwrap_or_default()
}

/// Removes all files but the record. One directory that stays does not keep the others.
fn remove_files(steps: &mut Steps<'_>, removes_backups: bool) {
    let layout = &steps.host.layout;
    if let Some(dir) = steps.host.own_certificates_dir() {
        let what = format!("remove the certificates in {}", dir.display());
        let names = certificates::file_names(steps.host.names);
        steps.take(&what, removal::remove_files(&dir, names).map_err(Into::into));
    }
    let store = format!("remove {}", layout.store.display());
    let removed = match removes_backups {
        true => removal::remove_dir(&layout.store).map(|()| None),
        false => removal::remove_dir_but(&layout.store, BACKUPS),
    };
    if let Ok(Some(kept)) = &removed {
        let text = format!(
            "backups stay in {}: move them to a safe place, with the file of --encryption-provider-config if there is one, or give --remove-backups",
            kept.display()
        );
        steps.host.output.warn("reset", "Backups", &text);
    }
    steps.take(&store, removed.map(drop).map_err(Into::into));
    for dir in dry_run::removed_by_reset(layout) {
        let what = format!("remove {}", dir.display());
        steps.take(&what, removal::remove_dir(&dir).map_err(Into::into));
    }
}

#[cfg(test)]
mod tests {
    use apiserver_bootstrap::arguments::Program;
    use apiserver_bootstrap::layout::Layout;
    use apiserver_bootstrap::preflight::Role;
    use apiserver_bootstrap::record::Progress;
    use proto_api::names::{Names, Profile};
    use std::fs;

    use super::*;
    use crate::output::{LineOutput, OutputFormat};

    fn host(root: &Path) -> Host {
        let names = Names::new(Profile::Kubernetes);
        let mut record = HostRecord::new(names, Role::Node, "n", "");
        let argv = vec!["/b/orchlet".to_owned(), "--cgroup-root=/a/b".to_owned()];
        record.put(&Program { name: "orchlet".into(), argv });
        Host {
            names,
            layout: Layout::new(names, root),
            record: Some(record),
            output: LineOutput { format: OutputFormat::Text },
        }
    }

    fn remove(host: &Host) -> Vec<String> {
        let mut steps = Steps { host, left: Vec::new() };
        remove_files(&mut steps, false);
        steps.left
    }

    #[test]
    fn reset_removes_all_files_but_the_record_and_ignores_missing_ones() {
        let root = tempfile::tempdir().unwrap();
        let host = host(root.path());
        let layout = &host.layout;
        for dir in [&layout.pki, &layout.node_root, &layout.store, &layout.state, &layout.logs] {
            fs::create_dir_all(dir).unwrap();
            fs::write(dir.join("f"), "x").unwrap();
        }
        assert_eq!(remove(&host), [] as [String; 0]);
        for dir in [&layout.config, &layout.node_root, &layout.store, &layout.logs] {
            assert!(!dir.exists(), "{}", dir.display());
        }
        assert!(layout.state.exists());
        assert_eq!(remove(&host), [] as [String; 0]);
    }

    #[test]
    fn backups_are_kept_unless_their_removal_is_requested() {
        let root = tempfile::tempdir().unwrap();
        let host = host(root.path());
        let backup = host.layout.store.join("backups/b");
        fs::create_dir_all(backup.parent().unwrap()).unwrap();
        fs::create_dir_all(host.layout.store.join("store")).unwrap();
        fs::write(&backup, "x").unwrap();
        assert_eq!(remove(&host), [] as [String; 0]);
        assert!(backup.exists() && !host.layout.store.join("store").exists());
        let mut steps = Steps { host: &host, left: Vec::new() };
        remove_files(&mut steps, true);
        assert!(steps.left.is_empty() && !host.layout.store.exists());
    }

    #[test]
    fn the_record_says_that_a_reset_has_begun_and_a_full_disk_does_not_matter() {
        let root = tempfile::tempdir().unwrap();
        let host = host(root.path());
        record_reset(&host);
        let record = HostRecord::load(root.path()).unwrap().unwrap();
        assert!(record.progress == Progress::Resetting && record.programs.len() == 1);
        fs::remove_dir_all(&host.layout.state).unwrap();
        fs::write(&host.layout.state, "no directory").unwrap();
        record_reset(&host);
    }

    #[tokio::test]
    async fn a_dry_run_removes_nothing() {
        let root = tempfile::tempdir().unwrap();
        let host = host(root.path());
        fs::create_dir_all(&host.layout.store).unwrap();
        let flags = ResetFlags {
            force: true,
            cri_socket: None,
            bin_dir: None,
            without_runtime: false,
            without_record: false,
            remove_backups: true,
            dry_run: true,
        };
        run(&host, &flags).await.unwrap();
        assert!(host.layout.store.exists());
    }

    #[test]
    fn a_directory_that_stays_does_not_keep_the_others() {
        let root = tempfile::tempdir().unwrap();
        let host = host(root.path());
        let layout = &host.layout;
        fs::create_dir_all(layout.config.parent().unwrap()).unwrap();
        fs::write(&layout.config, "no directory").unwrap();
        fs::create_dir_all(&layout.logs).unwrap();
        assert_eq!(remove(&host), [format!("remove {}", layout.config.display())]);
        assert!(!layout.logs.exists());
    }

    #[test]
    fn a_chosen_directory_of_certificates_keeps_what_is_not_ours() {
        let root = tempfile::tempdir().unwrap();
        let mut host = host(root.path());
        let dir = root.path().join("srv/pki");
        fs::create_dir_all(&dir).unwrap();
        for name in [
            "ca.crt",
            "ca.key",
            "apiserver.crt",
            "apiserver-kubelet-client.key",
            "sa.pub",
            "theirs",
        ] {
            fs::write(dir.join(name), "x").unwrap();
        }
        host.record.as_mut().unwrap().certificates_dir = Some(dir.clone());
        assert_eq!(remove(&host), [] as [String; 0]);
        let left: Vec<_> = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["theirs"]);
    }

    #[tokio::test]
    async fn a_runtime_that_does_not_answer_has_a_way_out() {
        let error = remove_pods("unix:///missing/runtime.sock").await.unwrap_err();
        let text = format!("{error:#}");
        assert!(
            text.contains("--without-runtime") && text.contains("/missing/runtime.sock"),
            "{text}"
        );
    }

    #[test]
    fn files_stay_while_programs_pods_or_mounts_do() {
        let left = |what: &str| [what.to_owned()];
        assert!(may_remove_files(&[]) && may_remove_files(&left("remove the cgroups")));
        for what in LIVE {
            assert!(!may_remove_files(&left(what)), "{what}");
        }
    }

    #[tokio::test]
    async fn programs_of_other_roots_are_not_pulled_from_under_their_files() {
        let root = tempfile::tempdir().unwrap();
        let host = host(root.path());
        nothing_runs(&host).unwrap();
        let supervisor = supervisor::Supervisor::begin(&host.layout).unwrap();
        assert!(nothing_runs(&host).is_err());
        supervisor.stop().await.unwrap();
        nothing_runs(&host).unwrap();
    }

    #[test]
    fn the_cgroup_root_is_that_of_the_agent_s_configuration() {
        assert_eq!(cgroup_root(&host(Path::new("/"))), Path::new("a/b"));
    }
}
