//! The host as a command needs it: names, paths, who runs the programs.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use apiserver_bootstrap::host_lock::HostLock;
use apiserver_bootstrap::layout::Layout;
use apiserver_bootstrap::record::HostRecord;
use apiserver_bootstrap::removal::resolved;
use clap::Args;
use proto_api::names::{DEFAULT_ORCH_DOMAIN, Names, Profile};
use proto_daemon::flags::Naming;

use crate::failure::not_valid;
use crate::output::{LineOutput, OutputFormat};

/// Flags of all commands.
#[derive(Args, Clone, Debug)]
pub struct HostFlags {
    /// Names used in the API and on disk [default: those of this host's cluster, else kubernetes]
    #[arg(long, value_enum, global = true)]
    naming: Option<Naming>,
    /// Domain of API groups and labels under the orch naming.
    #[arg(long, value_name = "DOMAIN", global = true)]
    api_domain: Option<String>,
    /// Directory below which all files of the host lie.
    #[arg(long, value_name = "DIR", default_value = "/", global = true)]
    rootfs: PathBuf,
    /// Form of the output.
    #[arg(short = 'o', long, value_enum, default_value = "text", global = true)]
    output: OutputFormat,
    /// Verbosity of the output: from 5 on with the causes of an error, one a line.
    #[arg(short = 'v', long = "v", value_name = "LEVEL", default_value_t = 0, global = true)]
    verbosity: u8,
}

/// The host of a command.
#[derive(Clone)]
pub struct Host {
    /// Its names.
    pub names: &'static Names,
    /// Its paths.
    pub layout: Layout,
    /// What was done on it before.
    pub record: Option<HostRecord>,
    /// Where the command speaks.
    pub output: LineOutput,
}

impl HostFlags {
    /// Verbosity of the output.
    pub fn verbosity(&self) -> u8 {
        self.verbosity
    }

    /// Reads what was done on the host.
    ///
    /// # Errors
    /// It cannot be read, or was done with other names.
    pub fn read_host(&self) -> Result<Host> {
        self.describe(HostRecord::load(&self.rootfs)?)
    }

    /// Reads the same for a command that may start programs: not once a reset has begun.
    ///
    /// # Errors
    /// As [`HostFlags::read_host`]; a reset has begun.
    pub fn read_member(&self) -> Result<Host> {
        let host = self.read_host()?;
        host.record.iter().try_for_each(|record| record.check_no_reset(&host.layout))?;
        Ok(host)
    }

    /// Reads the same for a command that removes what was done. Without a record nothing says what that is: it needs `--without-record`.
    ///
    /// # Errors
    /// As [`HostFlags::read_host`]; there is no record that can be read, and `--without-record` with `--naming` was not given.
    pub fn read_host_for_reset(&self, without_record: bool) -> Result<Host> {
        let missing = match HostRecord::load(&self.rootfs) {
            Ok(Some(record)) => return self.describe(Some(record)),
            Ok(None) => anyhow::anyhow!("no record of `orchadm` below {}", self.rootfs.display()),
            Err(error) => error.into(),
        };
        match (without_record, self.naming) {
            (true, Some(_)) => self.describe(None),
            (true, None) => {
                Err(not_valid("--without-record: give --naming too, nothing else says it"))
            }
            (false, _) => Err(missing.context(
                "nothing was removed; `orchadm reset --without-record --naming ...` removes all pods of the runtime and the files of a cluster",
            )),
        }
    }

    /// The host of a record, by the names that it and the flags say.
    fn describe(&self, record: Option<HostRecord>) -> Result<Host> {
        let chosen = self.naming.map(|naming| match naming {
            Naming::Kubernetes => Profile::Kubernetes,
            Naming::Orch => Profile::Orch {
                domain: self.api_domain.clone().unwrap_or_else(|| DEFAULT_ORCH_DOMAIN.to_owned()),
            },
        });
        let profile = HostRecord::choose_profile(record.as_ref(), chosen)?;
        let names = Names::new(profile);
        let layout = Layout::new(names, &resolved(&self.rootfs)?);
        Ok(Host { names, layout, record, output: LineOutput { format: self.output } })
    }
}

impl Host {
    /// Takes the host for changes, once another command that changes it has ended.
    ///
    /// # Errors
    /// Another command goes on, or has changed the host since this one read what was done on it.
    pub async fn lock(&self) -> Result<HostLock> {
        let lock = HostLock::take(&self.layout).await?;
        let record = HostRecord::load(&self.layout.root)?;
        record.iter().try_for_each(|record| record.check_no_reset(&self.layout))?;
        if record != self.record {
            bail!("another command of orchadm has changed this host meanwhile: run this one again");
        }
        Ok(lock)
    }

    /// Whether this is the running host, and not files of one below another root: its programs, pods and cgroups are only then this host's.
    pub fn is_running(&self) -> bool {
        self.layout.root == Path::new("/")
    }

    /// Says what a dry run would do.
    pub fn would(&self, phase: &str, actions: impl IntoIterator<Item = String>) {
        let say = |action| self.output.log(phase, &format!("[dryrun] would {action}"));
        actions.into_iter().for_each(say);
    }

    /// The directory of certificates.
    pub fn pki(&self) -> PathBuf {
        self.own_certificates_dir().unwrap_or_else(|| self.layout.pki.clone())
    }

    /// The directory of certificates that a flag names.
    pub fn own_certificates_dir(&self) -> Option<PathBuf> {
        self.record.as_ref().and_then(|record| record.certificates_dir.clone())
    }

    /// The record, which has to exist.
    ///
    /// # Errors
    /// There is none.
    pub fn read_record(&self) -> Result<&HostRecord> {
        let path = self.layout.programs();
        let missing =
            || format!("no record {}: run `orchadm init` or `join` first", path.display());
        self.record.as_ref().with_context(missing)
    }
}

/// The host name, in lower case.
///
/// # Errors
/// It cannot be read.
pub fn host_name() -> Result<String> {
    let name = nix::unistd::gethostname().context("cannot read the host name")?;
    Ok(name.to_string_lossy().trim().to_lowercase())
}

/// The directory of our programs: the one given, else that of this program.
///
/// # Errors
/// This program's own path is unknown.
pub fn bin_dir(given: Option<&Path>) -> Result<PathBuf> {
    match given {
        Some(dir) => Ok(std::path::absolute(dir)?),
        None => {
            let own = std::env::current_exe().context("cannot find the path of this program")?;
            Ok(own.parent().context("cannot find the directory of this program")?.to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use apiserver_bootstrap::preflight::Role;

    use super::*;

    fn flags(root: &Path, naming: Option<Naming>) -> HostFlags {
        HostFlags {
            naming,
            api_domain: None,
            rootfs: root.to_owned(),
            output: OutputFormat::Text,
            verbosity: 0,
        }
    }

    #[test]
    fn reset_without_a_record_requires_its_flag() {
        let root = tempfile::tempdir().unwrap();
        let named = flags(root.path(), Some(Naming::Kubernetes));
        let error = format!("{:#}", named.read_host_for_reset(false).err().unwrap());
        assert!(error.contains("nothing was removed") && error.contains("--without-record"));
        assert!(flags(root.path(), None).read_host_for_reset(true).is_err());
        assert!(named.read_host_for_reset(true).unwrap().record.is_none());
        let names = Names::new(Profile::Kubernetes);
        let layout = Layout::new(names, root.path());
        HostRecord::new(names, Role::Node, "n", "").store(&layout).unwrap();
        let host = flags(root.path(), None).read_host_for_reset(true).unwrap();
        assert!(host.record.is_some() && !host.is_running());
        std::fs::write(layout.programs(), "x").unwrap();
        assert!(named.read_host_for_reset(false).is_err(), "it is damaged");
        assert!(named.read_host_for_reset(true).is_ok());
    }
}
