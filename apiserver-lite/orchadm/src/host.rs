//! The host as a command needs it: names, paths, who runs the programs.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use apiserver_bootstrap::layout::Layout;
use clap::Args;
use proto_api::names::{DEFAULT_ORCH_DOMAIN, Names, Profile};
use proto_daemon::flags::Naming;

use crate::output::{Format, Output};
use crate::record::Record;

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
    output: Format,
}

/// The host of a command.
#[derive(Clone)]
pub struct Host {
    /// Its names.
    pub names: &'static Names,
    /// Its paths.
    pub layout: Layout,
    /// What was done on it before.
    pub record: Option<Record>,
    /// Where the command speaks.
    pub output: Output,
}

impl HostFlags {
    /// The host.
    ///
    /// # Errors
    /// What was done on it cannot be read, or was done with other names.
    pub fn host(&self) -> Result<Host> {
        self.with(Record::load(&self.rootfs)?)
    }

    /// The host, whatever was done on it before.
    ///
    /// # Errors
    /// None.
    pub fn without_record(&self) -> Result<Host> {
        self.with(None)
    }

    fn with(&self, record: Option<Record>) -> Result<Host> {
        let chosen = self.naming.map(|naming| match naming {
            Naming::Kubernetes => Profile::Kubernetes,
            Naming::Orch => Profile::Orch {
                domain: self.api_domain.clone().unwrap_or_else(|| DEFAULT_ORCH_DOMAIN.to_owned()),
            },
        });
        let known = record.as_ref().and_then(Record::profile);
        let profile = match (chosen, known) {
            (Some(chosen), Some(known)) if chosen != known => {
                bail!(
                    "--naming: this host belongs to a cluster with other names: leave the flag out, or `orchadm reset` first"
                )
            }
            (_, Some(known)) => known,
            (chosen, None) => chosen.unwrap_or(Profile::Kubernetes),
        };
        let names = Names::new(profile);
        let layout = Layout::new(names, &self.rootfs);
        Ok(Host { names, layout, record, output: Output { format: self.output } })
    }
}

impl Host {
    /// The directory of certificates.
    pub fn pki(&self) -> PathBuf {
        let chosen = self.record.as_ref().and_then(|record| record.certificates_dir.clone());
        chosen.unwrap_or_else(|| self.layout.pki.clone())
    }

    /// The record, which has to exist.
    ///
    /// # Errors
    /// There is none.
    pub fn known(&self) -> Result<&Record> {
        let missing = || {
            format!(
                "{} does not exist: nothing was made here by `orchadm init` or `join`",
                self.layout.programs().display()
            )
        };
        self.record.as_ref().with_context(missing)
    }
}

/// The host name, in lower case.
///
/// # Errors
/// It cannot be read.
pub fn host_name() -> Result<String> {
    let name = nix::unistd::gethostname().context("reading the host name")?;
    Ok(name.to_string_lossy().trim().to_lowercase())
}

/// The source address of the default route. Connecting a UDP socket sends no packet.
pub fn default_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // A documentation address (RFC 5737) is on no local network, so the route is the default route.
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_unspecified() && !ip.is_loopback())
}

/// Whether systemd runs this host (sd_booted(3)).
pub fn has_systemd(layout: &Layout) -> bool {
    layout.root.join("run/systemd/system").is_dir()
}

/// The directory of our programs: the one given, else that of this program.
///
/// # Errors
/// This program's own path is unknown.
pub fn bin_dir(given: Option<&Path>) -> Result<PathBuf> {
    match given {
        Some(dir) => Ok(std::path::absolute(dir)?),
        None => {
            let own = std::env::current_exe().context("finding this program")?;
            Ok(own.parent().context("this program has no directory")?.to_owned())
        }
    }
}
