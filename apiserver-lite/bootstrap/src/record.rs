//! What orchadm has done on this host: its programs and how they were made. `run`, `upgrade`, `certs` and `reset` go by it.

use std::path::{Path, PathBuf};

use proto_api::names::{Names, Profile};
use proto_daemon::private_files;
use serde::{Deserialize, Serialize};

use crate::arguments::{Program, value_of};
use crate::error::BootstrapError;
use crate::layout::Layout;
use crate::preflight::Role;

/// Where the record lies, below any root: it says the naming, on which other paths depend.
const STATE: &str = "var/lib/orchadm/programs.json";

/// How far the command came that made the host a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Progress {
    /// It was interrupted, or runs.
    #[default]
    Begun,
    /// It ended well.
    Done,
    /// A reset has begun: nothing starts the programs again.
    Resetting,
}

/// What `orchadm` did on this host, kept in a file: later commands and `reset` read it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostRecord {
    /// `kubernetes` or `orch`.
    pub naming: String,
    /// Domain of the names of the project.
    pub domain: String,
    /// The role of this host.
    pub role: Role,
    /// How far it came.
    pub progress: Progress,
    /// Name of the Node.
    pub node: String,
    /// The runtime's socket.
    pub runtime: String,
    /// The directory of certificates, if it is not the usual one.
    #[serde(default)]
    pub certificates_dir: Option<PathBuf>,
    /// The programs, each after those that it needs.
    pub programs: Vec<Program>,
}

impl HostRecord {
    /// The record below a root; none if there is none.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn load(root: &Path) -> Result<Option<Self>, BootstrapError> {
        let path = root.join(STATE);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(BootstrapError::file(&path)(error)),
        };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            let text = format!("is damaged ({error}): `orchadm reset --without-record` removes it");
            BootstrapError::unusable(&path, text)
        })
    }

    /// Writes the record.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn store(&self, layout: &Layout) -> Result<(), BootstrapError> {
        let path = layout.programs();
        let text = serde_json::to_vec_pretty(self)
            .map_err(|error| BootstrapError::unusable(&path, error.to_string()))?;
        private_files::create_private_dir(&layout.state)
            .and_then(|()| private_files::write_private_atomically(&path, &text))
            .map_err(BootstrapError::file(&path))
    }

    /// Records that a reset has begun, so that whatever keeps `orchadm run` running does not bring the programs back meanwhile.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn begin_reset(&self, layout: &Layout) -> Result<(), BootstrapError> {
        Self { progress: Progress::Resetting, ..self.clone() }.store(layout)
    }

    /// Reads the record again for a reset, which has waited: what another command has done until then counts.
    ///
    /// # Errors
    /// It cannot be read, or is gone: without it a reset would go by its flags, and could remove the pods of another runtime than the host's.
    pub fn reload_for_reset(layout: &Layout) -> Result<Self, BootstrapError> {
        Self::load(&layout.root)?.ok_or(BootstrapError::AlreadyReset)
    }

    /// Refuses commands that start programs while a reset runs, or was interrupted: what it has stopped would come back and use what it removes.
    ///
    /// # Errors
    /// A reset has begun.
    pub fn check_no_reset(&self, layout: &Layout) -> Result<(), BootstrapError> {
        match self.progress {
            Progress::Resetting => Err(BootstrapError::unusable(
                &layout.programs(),
                "a reset of this host has begun: run `orchadm reset` until it succeeds",
            )),
            Progress::Begun | Progress::Done => Ok(()),
        }
    }

    /// The record of a host that nothing was done on.
    pub fn new(names: &Names, role: Role, node: &str, runtime: &str) -> Self {
        let (naming, domain) = match names.profile() {
            Profile::Kubernetes => ("kubernetes", String::new()),
            Profile::Orch { domain } => ("orch", domain.clone()),
        };
        Self {
            naming: naming.to_owned(),
            domain,
            role,
            node: node.to_owned(),
            runtime: runtime.to_owned(),
            ..Self::default()
        }
    }

    /// The profile of a host's names: the recorded one, else what was chosen, else Kubernetes'.
    ///
    /// # Errors
    /// What was chosen is not what is recorded.
    pub fn choose_profile(
        record: Option<&Self>,
        chosen: Option<Profile>,
    ) -> Result<Profile, BootstrapError> {
        let known = record.and_then(Self::profile);
        match (chosen, known) {
            (Some(chosen), Some(known)) if chosen != known => Err(BootstrapError::Invalid(
                "--naming: this host belongs to a cluster with other names: leave the flag out, or `orchadm reset` first"
                    .to_owned(),
            )),
            (_, Some(known)) => Ok(known),
            (chosen, None) => Ok(chosen.unwrap_or(Profile::Kubernetes)),
        }
    }

    /// Its naming profile.
    pub fn profile(&self) -> Option<Profile> {
        let domain = Some(self.domain.as_str()).filter(|domain| !domain.is_empty());
        Profile::parse(&self.naming, domain)
    }

    /// A program by its name.
    pub fn program(&self, name: &str) -> Option<&Program> {
        self.programs.iter().find(|program| program.name == name)
    }

    /// orchlet's `--cgroup-root`, without the leading slash.
    pub fn cgroup_root(&self) -> PathBuf {
        let agent = self.program("orchlet").map(|agent| agent.argv.as_slice());
        let root = value_of(agent.unwrap_or_default(), "cgroup-root");
        PathBuf::from(root.unwrap_or_default().trim_start_matches('/'))
    }

    /// Where objects stay that no reset of a host removes: the members of etcd, and the prefix of the keys.
    pub fn kept_in_etcd(&self) -> Option<(String, String)> {
        let server = &self.program("orch-apiserver")?.argv;
        let prefix = value_of(server, "etcd-prefix").unwrap_or("/registry");
        Some((value_of(server, "etcd-servers")?.to_owned(), prefix.to_owned()))
    }

    /// The objects that stay in etcd, and the command that removes them.
    pub fn describe_kept_in_etcd(&self) -> Option<String> {
        let (members, prefix) = self.kept_in_etcd()?;
        let prefix = prefix.trim_end_matches('/');
        Some(format!(
            "the objects in the external etcd at {members}: `etcdctl del --prefix {prefix}/` removes them once no control plane uses them"
        ))
    }

    /// Adds a program at the end, or changes it where it stands; says whether it is new or changed.
    pub fn put(&mut self, program: &Program) -> bool {
        match self.programs.iter_mut().find(|known| known.name == program.name) {
            Some(known) if known == program => false,
            Some(known) => {
                *known = program.clone();
                true
            }
            None => {
                self.programs.push(program.clone());
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cgroup_root_and_the_etcd_are_those_of_the_programs() {
        let names = Names::new(Profile::Kubernetes);
        let mut record = HostRecord::new(names, Role::ControlPlane, "n", "");
        assert_eq!((record.cgroup_root(), record.kept_in_etcd()), (PathBuf::new(), None));
        let mut put = |name: &str, flags: &[&str]| {
            let argv = [&["/b/p"], flags].concat().into_iter().map(str::to_owned).collect();
            record.put(&Program { name: name.into(), argv });
        };
        put("orchlet", &["--cgroup-root=/a/b"]);
        put("orch-apiserver", &["--etcd-servers=http://e:1", "--etcd-prefix=/own"]);
        assert_eq!(record.cgroup_root(), Path::new("a/b"));
        let kept = record.kept_in_etcd().unwrap();
        assert_eq!(kept, ("http://e:1".to_owned(), "/own".to_owned()));
    }

    #[test]
    fn names_are_those_of_the_record() {
        let orch = || Profile::Orch { domain: "a.b".to_owned() };
        let record = HostRecord::new(Names::new(orch()), Role::Node, "n", "");
        let choose = |record, chosen| HostRecord::choose_profile(record, chosen).ok();
        assert_eq!(choose(None, None), Some(Profile::Kubernetes));
        assert_eq!(choose(None, Some(orch())), Some(orch()));
        assert_eq!(choose(Some(&record), None), Some(orch()));
        assert_eq!(choose(Some(&record), Some(orch())), Some(orch()));
        assert_eq!(choose(Some(&record), Some(Profile::Kubernetes)), None);
    }

    #[test]
    fn nothing_starts_once_a_reset_has_begun() {
        let root = tempfile::tempdir().unwrap();
        let names = Names::new(Profile::Kubernetes);
        let layout = Layout::new(names, root.path());
        let mut record = HostRecord::new(names, Role::Node, "n", "");
        for (progress, may_start) in
            [(Progress::Begun, true), (Progress::Done, true), (Progress::Resetting, false)]
        {
            record.progress = progress;
            record.store(&layout).unwrap();
            let stored = HostRecord::load(root.path()).unwrap().unwrap();
            assert_eq!(stored.check_no_reset(&layout).is_ok(), may_start, "{progress:?}");
        }
    }

    #[test]
    fn a_record_that_was_removed_meanwhile_is_that_of_a_host_that_is_reset() {
        let root = tempfile::tempdir().unwrap();
        let names = Names::new(Profile::Kubernetes);
        let layout = Layout::new(names, root.path());
        let known = HostRecord::new(names, Role::Node, "n", "unix:///r");
        let gone = HostRecord::reload_for_reset(&layout).unwrap_err();
        assert!(matches!(gone, BootstrapError::AlreadyReset), "{gone}");
        let now = HostRecord { progress: Progress::Done, ..known.clone() };
        now.store(&layout).unwrap();
        assert_eq!(HostRecord::reload_for_reset(&layout).unwrap(), now);
        std::fs::write(layout.programs(), "x").unwrap();
        assert!(matches!(
            HostRecord::reload_for_reset(&layout),
            Err(BootstrapError::Unusable { .. })
        ));
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let root = tempfile::tempdir().unwrap();
        let names = Names::new(Profile::Kubernetes);
        assert_eq!(HostRecord::load(root.path()).unwrap(), None);
        let mut record = HostRecord::new(names, Role::Node, "n", "unix:///r");
        let program = |argv: &str| Program { name: "p".into(), argv: vec![argv.into()] };
        assert!(record.put(&program("a")));
        assert!(!record.put(&program("a")));
        assert!(record.put(&program("b")));
        assert_eq!(record.programs, [program("b")]);
        record.store(&Layout::new(names, root.path())).unwrap();
        assert_eq!(HostRecord::load(root.path()).unwrap(), Some(record.clone()));
        assert_eq!(record.profile(), Some(Profile::Kubernetes));
        std::fs::write(root.path().join(STATE), "x").unwrap();
        assert!(HostRecord::load(root.path()).unwrap_err().to_string().contains("reset"));
    }
}
