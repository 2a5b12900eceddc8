//! The steps of a reset: what init or join has started and made on a host is ended and removed, each step for itself, so that one that fails keeps no other.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use proto_api::names::Names;
use proto_daemon::private_files;

use crate::arguments::command_line;
use crate::error::BootstrapError;
use crate::layout::Layout;
use crate::processes::{ProcessHandle, find_processes, find_unrecorded};
use crate::record::HostRecord;
use crate::supervise::STOP_GRACE;
use crate::{certificates, dry_run, external, links, pod_cgroups, removal, supervisor, systemd};

type Result<T> = std::result::Result<T, BootstrapError>;

/// All programs that init or join start, in the order of their end.
pub const PROGRAMS: [&str; 5] =
    ["orch-proxy", "orchlet", "orch-scheduler", "orch-controller-manager", "orch-apiserver"];
/// The network configuration that orchlet writes, and the bridge in it.
const NETWORK: (&str, &str) = ("10-orch.conflist", "cni0");
/// The directory of backups, in that of the store.
const BACKUPS: &std::ffi::CStr = c"backups";
/// The first argument of orchlet's connection keeper.
const KEEPER: &str = "hold-connection";
/// Longest wait for the proxy's cleaning.
const CLEANUP_PATIENCE: Duration = Duration::from_secs(60);

/// Steps about what is still alive of a cluster once its programs were to end; files below it are in use.
pub const STOP_PROGRAMS: &str = "stop the programs";
/// See [`STOP_PROGRAMS`].
pub const REMOVE_PODS: &str = "remove the pods";
/// See [`STOP_PROGRAMS`].
pub const REMOVE_MOUNTS: &str = "remove the mounts";

/// Whether files may go when these steps have failed: not while something may use them.
pub fn may_remove_files(failed: &[String]) -> bool {
    let alive = [STOP_PROGRAMS, REMOVE_PODS, REMOVE_MOUNTS];
    !failed.iter().any(|what| alive.contains(&what.as_str()))
}

/// A step that was tried.
pub struct ResetStep {
    /// What it does.
    pub what: String,
    /// Whether it did.
    pub done: Result<()>,
}

/// A host that is reset, by the record of what was done on it; without one by its usual paths.
pub struct ResetHost<'a> {
    /// The naming profile of its programs.
    pub names: &'a Names,
    /// Its paths.
    pub layout: &'a Layout,
    /// What was done on it.
    pub record: Option<&'a HostRecord>,
}

impl ResetHost<'_> {
    /// Checks that nothing runs of the files of another root: they may be of programs that run all the same.
    ///
    /// # Errors
    /// A program or a supervisor runs.
    pub fn check_nothing_runs(&self) -> Result<()> {
        if supervisor::find_supervisor(self.layout).is_some() {
            let text =
                "`orchadm run` keeps its programs running: end it first, with SIGTERM".to_owned();
            return Err(BootstrapError::Program(text));
        }
        match PROGRAMS.iter().find(|program| supervisor::find(self.layout, program).is_some()) {
            Some(program) => Err(BootstrapError::Program(format!("{program} runs: end it first"))),
            None => Ok(()),
        }
    }

    /// The file of a program: the recorded one, else that of a directory.
    pub fn program_file(&self, bin_dir: &Path, name: &str) -> PathBuf {
        let known = self.record.and_then(|record| record.program(name));
        let recorded = known.and_then(|program| program.argv.first()).map(PathBuf::from);
        recorded.unwrap_or_else(|| bin_dir.join(name))
    }

    /// Ends what keeps the programs running without systemd: `orchadm run`, or an `init` or `join` that stays.
    ///
    /// # Errors
    /// It does not end.
    pub async fn stop_supervisor(&self) -> Result<()> {
        let Some(supervisor) = supervisor::find_supervisor(self.layout) else { return Ok(()) };
        let failed = || BootstrapError::system("cannot stop the supervisor");
        supervisor.signal(Signal::SIGTERM).map_err(failed())?;
        let patience = STOP_GRACE * PROGRAMS.len() as u32;
        if tokio::time::timeout(patience, supervisor.ended()).await.is_err() {
            supervisor.signal(Signal::SIGKILL).map_err(failed())?;
            let ended = tokio::time::timeout(STOP_GRACE, supervisor.ended()).await;
            let late =
                |_| BootstrapError::Program("the supervisor does not end after SIGKILL".to_owned());
            ended.map_err(late)?.map_err(failed())?;
        }
        Ok(())
    }

    /// Ends the programs, and removes their units.
    ///
    /// # Errors
    /// One does not end; the ones behind it run on.
    pub async fn stop_programs(&self) -> Result<()> {
        self.stop_supervisor().await?;
        for program in PROGRAMS {
            if systemd::runs_host(self.layout) {
                systemd::remove(self.layout, program).await?;
            }
            // What a supervisor that was killed left.
            if let Some(running) = supervisor::find(self.layout, program) {
                stop_process(program, &running).await?;
            }
            let known = self.record.and_then(|record| record.program(program));
            if let Some(running) = known.and_then(|known| find_unrecorded(&known.argv)) {
                stop_process(program, &running).await?;
            }
        }
        Ok(())
    }

    /// Ends the processes that keep orchlet's calls of the runtime open. Those of another mount namespace or program are another host's.
    ///
    /// # Errors
    /// Processes cannot be listed or signalled.
    pub fn end_keepers(&self, bin_dir: &Path) -> Result<()> {
        let agent = self.program_file(bin_dir, "orchlet");
        let is_keeper = |line: &[String]| line.get(1).is_some_and(|word| word == KEEPER);
        let ended = find_processes(&agent, is_keeper).and_then(|keepers| {
            keepers.iter().try_for_each(|keeper| keeper.signal(Signal::SIGKILL))
        });
        ended.map_err(BootstrapError::system("cannot end the helpers of orchlet"))
    }

    /// Kills the processes of pods where the container runtime does not respond; the number of them.
    ///
    /// # Errors
    /// They do not end.
    pub async fn kill_pods(&self) -> Result<usize> {
        pod_cgroups::kill(&self.cgroup_root()).await
    }

    /// Has the proxy remove its tables and routes.
    ///
    /// # Errors
    /// The program is missing or fails.
    pub async fn clean_proxy(&self, bin_dir: &Path) -> Result<()> {
        let program = self.program_file(bin_dir, "orch-proxy");
        if !program.exists() {
            let text = format!("{} is missing: give --bin-dir", program.display());
            return Err(BootstrapError::Program(text));
        }
        // The tables have the profile's name.
        let line = command_line(Path::new(""), "orch-proxy", self.names, &Vec::new());
        let mut command = tokio::process::Command::new(program);
        command.args(line.iter().skip(1)).args(["cleanup", "--routes"]);
        let output = external::output(&mut command, CLEANUP_PATIENCE).await?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(BootstrapError::Program(format!("{}: {}", output.status, said.trim())));
        }
        Ok(())
    }

    /// Removes the pods' network. The bridge is ours when the network configuration that names it is.
    ///
    /// # Errors
    /// Links or files cannot be removed.
    pub async fn remove_network(&self) -> Result<()> {
        let (file, bridge) = NETWORK;
        let path = self.layout.cni.join(file);
        if !path.exists() {
            return Ok(());
        }
        links::remove(bridge)
            .await
            .map_err(|error| BootstrapError::Program(proto_daemon::exit::chain(&error)))?;
        let plugins = self.layout.root.join("var/lib/cni");
        removal::remove_dir(&plugins.join("networks/orch"))?;
        // The plugins make these for the first pod. The directory of configurations is the runtime's, which watches it.
        for dir in ["networks", "results", "cache", ""] {
            removal::remove_if_empty(&plugins.join(dir))?;
        }
        private_files::remove_private(&path).map_err(BootstrapError::file(&path))
    }

    /// Removes the empty cgroups of pods.
    ///
    /// # Errors
    /// One has processes.
    pub async fn remove_cgroups(&self) -> Result<()> {
        if systemd::runs_host(self.layout) {
            systemd::end_slice("kubepods.slice").await?;
        }
        pod_cgroups::remove(&self.cgroup_root()).await
    }

    /// orchlet's `--cgroup-root`, without the leading slash.
    fn cgroup_root(&self) -> PathBuf {
        self.record.map(HostRecord::cgroup_root).unwrap_or_default()
    }

    /// Removes all files but the record, and says where backups of the store stay. One directory that stays does not keep the others.
    pub fn remove_files(&self, removes_backups: bool) -> (Vec<ResetStep>, Option<PathBuf>) {
        let layout = self.layout;
        let step = |what: String, done| ResetStep { what, done };
        let mut steps = Vec::new();
        if let Some(dir) = self.record.and_then(|record| record.certificates_dir.as_deref()) {
            let what = format!("remove the certificates in {}", dir.display());
            let names = certificates::file_names(self.names);
            steps.push(step(what, removal::remove_files(dir, names)));
        }
        let removed = match removes_backups {
            true => removal::remove_dir(&layout.store).map(|()| None),
            false => removal::remove_dir_but(&layout.store, BACKUPS),
        };
        let (done, kept) = match removed {
            Ok(kept) => (Ok(()), kept),
            Err(error) => (Err(error), None),
        };
        steps.push(step(format!("remove {}", layout.store.display()), done));
        steps.extend(
            dry_run::removed_by_reset(layout)
                .map(|dir| step(format!("remove {}", dir.display()), removal::remove_dir(&dir))),
        );
        (steps, kept)
    }
}

async fn stop_process(program: &str, running: &ProcessHandle) -> Result<()> {
    let what = format!("cannot stop {program}");
    running.stop(STOP_GRACE).await.map_err(BootstrapError::system(what))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proto_api::names::Profile;

    use super::*;
    use crate::arguments::Program;
    use crate::preflight::Role;

    /// A host below a directory.
    struct Below {
        names: &'static Names,
        layout: Layout,
        record: HostRecord,
    }

    impl Below {
        fn new(root: &Path) -> Self {
            let names = Names::new(Profile::Kubernetes);
            let mut record = HostRecord::new(names, Role::Node, "n", "");
            let argv = vec!["/b/orchlet".to_owned(), "--cgroup-root=/a/b".to_owned()];
            record.put(&Program { name: "orchlet".into(), argv });
            Self { names, layout: Layout::new(names, root), record }
        }

        fn host(&self) -> ResetHost<'_> {
            ResetHost { names: self.names, layout: &self.layout, record: Some(&self.record) }
        }

        /// Removes all files; the steps that failed.
        fn remove(&self, removes_backups: bool) -> Vec<String> {
            let (steps, _) = self.host().remove_files(removes_backups);
            let failed = steps.into_iter().filter(|step| step.done.is_err());
            failed.map(|step| step.what).collect()
        }
    }

    #[test]
    fn all_files_but_the_record_are_removed_and_missing_ones_are_fine() {
        let root = tempfile::tempdir().unwrap();
        let below = Below::new(root.path());
        let layout = &below.layout;
        for dir in [&layout.pki, &layout.node_root, &layout.store, &layout.state, &layout.logs] {
            fs::create_dir_all(dir).unwrap();
            fs::write(dir.join("f"), "x").unwrap();
        }
        assert_eq!(below.remove(false), [] as [String; 0]);
        for dir in [&layout.config, &layout.node_root, &layout.store, &layout.logs] {
            assert!(!dir.exists(), "{}", dir.display());
        }
        assert!(layout.state.exists());
        assert_eq!(below.remove(false), [] as [String; 0]);
    }

    #[test]
    fn backups_are_kept_unless_their_removal_is_requested() {
        let root = tempfile::tempdir().unwrap();
        let below = Below::new(root.path());
        let store = &below.layout.store;
        let backup = store.join("backups/b");
        fs::create_dir_all(backup.parent().unwrap()).unwrap();
        fs::create_dir_all(store.join("store")).unwrap();
        fs::write(&backup, "x").unwrap();
        let (steps, kept) = below.host().remove_files(false);
        assert!(steps.iter().all(|step| step.done.is_ok()));
        assert_eq!(kept, Some(fs::canonicalize(store).unwrap().join("backups")));
        assert!(backup.exists() && !store.join("store").exists());
        assert!(below.remove(true).is_empty() && !store.exists());
    }

    #[test]
    fn a_directory_that_stays_does_not_keep_the_others() {
        let root = tempfile::tempdir().unwrap();
        let below = Below::new(root.path());
        let layout = &below.layout;
        fs::create_dir_all(layout.config.parent().unwrap()).unwrap();
        fs::write(&layout.config, "no directory").unwrap();
        fs::create_dir_all(&layout.logs).unwrap();
        assert_eq!(below.remove(false), [format!("remove {}", layout.config.display())]);
        assert!(!layout.logs.exists());
    }

    #[test]
    fn a_chosen_directory_of_certificates_keeps_what_is_not_ours() {
        let root = tempfile::tempdir().unwrap();
        let mut below = Below::new(root.path());
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
        below.record.certificates_dir = Some(dir.clone());
        assert_eq!(below.remove(false), [] as [String; 0]);
        let left: Vec<_> = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["theirs"]);
    }

    #[test]
    fn files_stay_while_programs_pods_or_mounts_do() {
        let left = |what: &str| [what.to_owned()];
        assert!(may_remove_files(&[]) && may_remove_files(&left("remove the cgroups")));
        for what in [STOP_PROGRAMS, REMOVE_PODS, REMOVE_MOUNTS] {
            assert!(!may_remove_files(&left(what)), "{what}");
        }
    }

    #[tokio::test]
    async fn programs_of_other_roots_are_not_pulled_from_under_their_files() {
        let root = tempfile::tempdir().unwrap();
        let below = Below::new(root.path());
        below.host().check_nothing_runs().unwrap();
        let supervisor = supervisor::Supervisor::begin(&below.layout).unwrap();
        assert!(below.host().check_nothing_runs().is_err());
        supervisor.stop().await.unwrap();
        below.host().check_nothing_runs().unwrap();
    }

    #[test]
    fn the_cgroup_root_is_that_of_the_agent_s_configuration() {
        assert_eq!(Below::new(Path::new("/")).host().cgroup_root(), Path::new("a/b"));
    }
}
