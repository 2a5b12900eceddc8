//! `orchadm reset`: nothing of what init or join made stays on this host: programs, pods, mounts, the pods' network, cgroups, files.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow, bail};
use apiserver_bootstrap::error::BootstrapError;
use apiserver_bootstrap::host_lock::HostLock;
use apiserver_bootstrap::record::HostRecord;
use apiserver_bootstrap::reset::{
    PROGRAMS, REMOVE_MOUNTS, REMOVE_PODS, ResetHost, STOP_PROGRAMS, may_remove_files,
};
use apiserver_bootstrap::{dry_run, removal, supervisor};
use clap::Args;

use crate::host::{self, Host};
use crate::runtime::{DEFAULT_SOCKET, Runtime};

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

/// What was done, and what could not be.
struct Steps<'a> {
    host: &'a Host,
    left: Vec<String>,
}

impl Steps<'_> {
    fn take(&mut self, what: &str, done: Result<(), impl Into<anyhow::Error>>) {
        match done.map_err(Into::into) {
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
/// It is not confirmed, another command changes the host, or something is left.
pub async fn run(host: Host, flags: &ResetFlags) -> Result<()> {
    run_as(host, flags, nix::unistd::geteuid().is_root()).await
}

/// Runs it as root, or as another user, who may only ask what it would do.
async fn run_as(mut host: Host, flags: &ResetFlags, is_root: bool) -> Result<()> {
    if flags.dry_run {
        print_plan(&host, flags);
        return Ok(());
    }
    if !is_root {
        bail!("user is not running as root");
    }
    if !flags.force && !is_confirmed()? {
        bail!("aborted: nothing was removed");
    }
    let lock = lock_for_reset(&mut host).await?;
    let kept = kept_in_etcd(&host);
    let mut steps = Steps { host: &host, left: Vec::new() };
    match host.is_running() {
        true => end_all(&mut steps, flags).await?,
        false => steps.take(STOP_PROGRAMS, host.as_reset_host().check_nothing_runs()),
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
    lock.map_or(Ok(()), HostLock::remove)?;
    if let Some(kept) = kept {
        host.output.warn("reset", "ExternalEtcd", &format!("left {kept}"));
    }
    host.output
        .log("reset", "images stay in the runtime, and settings of the kernel stay as they are");
    Ok(())
}

/// Says what would be done.
fn print_plan(host: &Host, flags: &ResetFlags) {
    let runtime = runtime_of(host, flags);
    let running = if host.is_running() { &PROGRAMS[..] } else { &[] };
    let runtime = (!flags.without_runtime).then_some(runtime.as_str());
    host.would("reset", dry_run::reset(&host.layout, running, runtime, flags.remove_backups));
    host.would("reset", kept_in_etcd(host).map(|kept| format!("leave {kept}")));
}

/// What stays of the cluster outside of this host.
fn kept_in_etcd(host: &Host) -> Option<String> {
    host.record.as_ref().and_then(HostRecord::describe_kept_in_etcd)
}

/// Takes the host. An `init` or `join` that keeps programs running is ended before: it may be in the middle of its phases, and what it has recorded until
/// then counts.
async fn lock_for_reset(host: &mut Host) -> Result<Option<HostLock>> {
    if host.is_running() && supervisor::find_supervisor(&host.layout).is_some() {
        end_supervisor(host).await?;
    }
    let lock = go_on_without_place(host, HostLock::take(&host.layout).await)?;
    match reload(host) {
        Ok(()) => Ok(lock),
        Err(error) => {
            // Of a host that is reset nothing stays, this file neither.
            lock.map_or(Ok(()), HostLock::remove)?;
            Err(error.into())
        }
    }
}

/// Ends the command that keeps the programs running.
async fn end_supervisor(host: &mut Host) -> Result<()> {
    // It was read before the user was asked.
    reload(host)?;
    record_reset(host);
    Ok(host.as_reset_host().stop_supervisor().await?)
}

/// Reads the record again, which others have changed while this command waited. Without one that can be read it goes by its flags.
fn reload(host: &mut Host) -> Result<(), BootstrapError> {
    if host.record.is_some() {
        host.record = Some(HostRecord::reload_for_reset(&host.layout)?);
    }
    Ok(())
}

/// The lock, or none where its disk is full: that does not keep a host from its reset, which makes room.
fn go_on_without_place(
    host: &Host,
    taken: Result<HostLock, BootstrapError>,
) -> Result<Option<HostLock>> {
    match taken {
        Ok(lock) => Ok(Some(lock)),
        Err(error) if error.is_full_disk() => {
            let error = anyhow::Error::from(error);
            let text = format!("another command may change this host meanwhile: {error:#}");
            host.output.warn("reset", "Lock", &text);
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Records that a reset has begun. A full disk does not keep a host from its reset.
fn record_reset(host: &Host) {
    if let Some(Err(error)) = host.record.as_ref().map(|known| known.begin_reset(&host.layout)) {
        let text = format!("programs may be started again meanwhile: {error:#}");
        host.output.warn("reset", "Record", &text);
    }
}

/// Ends what runs on this host.
async fn end_all(steps: &mut Steps<'_>, flags: &ResetFlags) -> Result<()> {
    let host = steps.host;
    let runtime = runtime_of(host, flags);
    let bin_dir = host::bin_dir(flags.bin_dir.as_deref())?;
    record_reset(host);
    let known = host.as_reset_host();
    steps.take(STOP_PROGRAMS, known.stop_programs().await);
    let pods = match flags.without_runtime {
        true => kill_pods(host).await,
        false => remove_pods(&runtime).await,
    };
    steps.take(REMOVE_PODS, pods);
    steps.take("end the helpers of orchlet", known.end_keepers(&bin_dir));
    steps.take(REMOVE_MOUNTS, removal::undo_mounts(&host.layout.node_root));
    let proxy = known.clean_proxy(&bin_dir).await;
    steps.take("remove the tables and routes of the proxy", proxy);
    steps.take("remove the pods' network", known.remove_network().await);
    steps.take("remove the cgroups", known.remove_cgroups().await);
    Ok(())
}

/// Socket of the container runtime.
fn runtime_of(host: &Host, flags: &ResetFlags) -> String {
    let known = host.record.as_ref().map(|record| record.runtime.clone());
    flags.cri_socket.clone().or(known).unwrap_or_else(|| DEFAULT_SOCKET.to_owned())
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

async fn remove_pods(runtime: &str) -> Result<()> {
    let connected = Runtime::connect(runtime).await;
    let mut runtime = connected.context(
        "the container runtime does not answer: start it, or give --without-runtime, which kills the processes of pods and leaves what the runtime keeps of them",
    )?;
    runtime.remove_pods().await.map(drop)
}

/// Ends pods where the container runtime does not respond.
async fn kill_pods(host: &Host) -> Result<()> {
    let count = host.as_reset_host().kill_pods().await?;
    let text = format!(
        "killed {count} processes of pods; the runtime still knows the pods: `crictl rmp --all --force` once it runs"
    );
    host.output.warn("reset", "Runtime", &text);
    Ok(())
}

fn remove_files(steps: &mut Steps<'_>, removes_backups: bool) {
    let (removed, kept) = steps.host.as_reset_host().remove_files(removes_backups);
    if let Some(kept) = kept {
        let text = format!(
            "backups stay in {}: move them to a safe place, with the file of --encryption-provider-config if there is one, or give --remove-backups",
            kept.display()
        );
        steps.host.output.warn("reset", "Backups", &text);
    }
    for step in removed {
        steps.take(&step.what, step.done);
    }
}

impl Host {
    /// This host as one that is reset.
    fn as_reset_host(&self) -> ResetHost<'_> {
        ResetHost { names: self.names, layout: &self.layout, record: self.record.as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::ErrorKind;
    use std::path::Path;

    use apiserver_bootstrap::arguments::Program;
    use apiserver_bootstrap::layout::Layout;
    use apiserver_bootstrap::preflight::Role;
    use apiserver_bootstrap::record::Progress;
    use proto_api::names::{Names, Profile};

    use super::*;
    use crate::output::{LineOutput, OutputFormat};

    fn host(root: &Path) -> Host {
        let names = Names::new(Profile::Kubernetes);
        let mut record = HostRecord::new(names, Role::Node, "n", "");
        record.put(&Program { name: "orchlet".into(), argv: vec!["/b/orchlet".to_owned()] });
        Host {
            names,
            layout: Layout::new(names, root),
            record: Some(record),
            output: LineOutput { format: OutputFormat::Text },
        }
    }

    fn flags(dry_run: bool) -> ResetFlags {
        ResetFlags {
            force: true,
            cri_socket: None,
            bin_dir: None,
            without_runtime: false,
            without_record: false,
            remove_backups: true,
            dry_run,
        }
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
        let store = host.layout.store.clone();
        fs::create_dir_all(&store).unwrap();
        run(host, &flags(true)).await.unwrap();
        assert!(store.exists());
    }

    #[tokio::test]
    async fn a_host_below_another_root_is_emptied_when_no_other_command_changes_it() {
        let root = tempfile::tempdir().unwrap();
        let host = host(root.path());
        let layout = host.layout.clone();
        host.record.as_ref().unwrap().store(&layout).unwrap();
        fs::create_dir_all(&layout.pki).unwrap();
        let other = host.lock().await.unwrap();
        let error = run_as(host.clone(), &flags(false), true).await.unwrap_err();
        assert!(format!("{error:#}").contains("changes this host"), "{error:#}");
        drop(other);
        let error = run_as(host.clone(), &flags(false), false).await.unwrap_err();
        assert!(format!("{error:#}").contains("not running as root"), "{error:#}");
        assert!(layout.pki.exists() && layout.programs().exists());
        run_as(host, &flags(false), true).await.unwrap();
        for path in [&layout.config, &layout.state, &layout.lock()] {
            assert!(!path.exists(), "{}", path.display());
        }
    }

    #[tokio::test]
    async fn a_host_that_another_reset_has_emptied_meanwhile_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let host = host(root.path());
        let layout = host.layout.clone();
        host.record.as_ref().unwrap().store(&layout).unwrap();
        let other = host.lock().await.unwrap();
        let empty = async {
            removal::remove_dir(&layout.state).unwrap();
            other.remove().unwrap();
            // What another command has made since.
            fs::create_dir_all(&layout.pki).unwrap();
        };
        let flags = flags(false);
        let (done, ()) = tokio::join!(run_as(host.clone(), &flags, true), empty);
        let error = format!("{:#}", done.unwrap_err());
        assert!(error.contains("reset already"), "{error}");
        assert!(layout.pki.exists() && !layout.lock().exists() && !layout.state.exists());
        // One that never had a record goes by its flags.
        run_as(Host { record: None, ..host }, &flags, true).await.unwrap();
        assert!(!layout.pki.exists());
    }

    #[tokio::test]
    async fn what_the_command_that_is_ended_has_recorded_stays() {
        let root = tempfile::tempdir().unwrap();
        let mut host = host(root.path());
        let mut now = host.record.clone().unwrap();
        now.put(&Program { name: "orch-proxy".into(), argv: vec!["/b/orch-proxy".to_owned()] });
        now.store(&host.layout).unwrap();
        end_supervisor(&mut host).await.unwrap();
        let stored = HostRecord::load(root.path()).unwrap().unwrap();
        assert_eq!(stored, HostRecord { progress: Progress::Resetting, ..now });
    }

    #[tokio::test]
    async fn a_full_disk_of_the_lock_does_not_matter() {
        let root = tempfile::tempdir().unwrap();
        let host = host(root.path());
        let of = |kind: ErrorKind| BootstrapError::File { path: "/l".into(), cause: kind.into() };
        assert!(go_on_without_place(&host, Err(of(ErrorKind::StorageFull))).unwrap().is_none());
        assert!(go_on_without_place(&host, Err(of(ErrorKind::PermissionDenied))).is_err());
        let taken = HostLock::take(&host.layout).await;
        assert!(go_on_without_place(&host, taken).unwrap().is_some());
    }

    #[tokio::test]
    async fn what_another_command_has_done_meanwhile_is_not_overwritten() {
        let root = tempfile::tempdir().unwrap();
        let host = host(root.path());
        assert!(host.lock().await.is_err(), "it has removed the record");
        host.record.as_ref().unwrap().store(&host.layout).unwrap();
        drop(host.lock().await.unwrap());
        host.record.as_ref().unwrap().begin_reset(&host.layout).unwrap();
        let error = host.lock().await.err().unwrap();
        assert!(format!("{error:#}").contains("a reset of this host"), "{error:#}");
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
}
