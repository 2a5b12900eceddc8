//! The command line, with kubeadm's commands and flags.

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::certs::CertsCommand;
use crate::host::HostFlags;
use crate::{certs, config, init, join, reset, supervisor, token, upgrade};

/// Makes clusters of real hosts, as kubeadm does: `init` on the first, `join` on the others.
#[derive(Debug, Parser)]
#[command(name = "orchadm", version)]
pub struct OrchadmCommand {
    #[command(flatten)]
    host: HostFlags,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make this host the control plane of a new cluster.
    Init(Box<init::InitCommand>),
    /// Make this host a node of a cluster.
    Join(Box<join::JoinCommand>),
    /// Keep this host's programs running, where systemd does not.
    Run,
    /// Undo what init or join did on this host.
    Reset(reset::ResetFlags),
    /// Bootstrap tokens, with which hosts join.
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Certificates and the key of service accounts.
    #[command(subcommand)]
    Certs(CertsCommand),
    /// Configuration files.
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Newer programs.
    #[command(subcommand)]
    Upgrade(upgrade::UpgradeCommand),
    /// Print the version.
    Version,
}

impl OrchadmCommand {
    /// Verbosity of the output (`--v`).
    pub fn verbosity(&self) -> u8 {
        self.host.verbosity()
    }

    /// Runs the command to its end.
    ///
    /// # Errors
    /// It failed; [`crate::failure`] has the exit codes.
    pub async fn run(self) -> Result<()> {
        let host = match &self.verb {
            Verb::Reset(flags) => self.host.read_host_for_reset(flags.without_record)?,
            Verb::Init(_) | Verb::Join(_) | Verb::Run | Verb::Upgrade(_) => {
                self.host.read_member()?
            }
            Verb::Certs(CertsCommand::Renew(_) | CertsCommand::RotateSa(_)) => {
                self.host.read_member()?
            }
            _ => self.host.read_host()?,
        };
        match self.verb {
            Verb::Init(command) => init::run(host, &command).await,
            Verb::Join(command) => join::run(host, &command).await,
            Verb::Run => supervisor::run(&host).await,
            Verb::Reset(flags) => reset::run(host, &flags).await,
            Verb::Token(command) => token::run(&host, &command).await,
            Verb::Certs(command) => certs::run(&host, &command).await,
            Verb::Config(command) => config::run(&host, &command),
            Verb::Upgrade(command) => upgrade::run(host, &command).await,
            Verb::Version => {
                let version = env!("CARGO_PKG_VERSION");
                let value = serde_json::json!({"version": version});
                host.output.result(&format!("orchadm {version}"), &value);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_flags_agree_with_each_other() {
        OrchadmCommand::command().debug_assert();
    }

    #[test]
    fn kubeadm_s_spellings() {
        for line in [
            "init --pod-network-cidr 10.1.0.0/16 --service-cidr 10.2.0.0/16 --token abcdef.0123456789abcdef --token-ttl 0",
            "init --apiserver-advertise-address 10.0.0.1 --apiserver-bind-port 1 --apiserver-cert-extra-sans a,b",
            "init --ignore-preflight-errors=Swap,NumCPU --skip-phases addon --cri-socket unix:///a",
            "init --config f",
            "init phase certs apiserver --config f",
            "init phase kubeconfig all",
            "join 10.0.0.1:6443 --token abcdef.0123456789abcdef --discovery-token-ca-cert-hash sha256:0 --node-name n",
            "token create abcdef.0123456789abcdef --ttl 1h --groups g --usages signing --print-join-command",
            "token list -o json",
            "token delete abcdef ghijkl",
            "token generate",
            "certs renew all",
            "certs check-expiration -o json",
            "config print init-defaults",
            "config migrate --old-config a --new-config b",
            "config validate --config f",
            "upgrade plan --bin-dir /b",
            "upgrade apply --certificate-renewal=false",
            "upgrade node",
            "reset -f",
            "reset --force --without-runtime",
            "init --dry-run --v=5 --kubernetes-version v1.25.3",
            "init phase certs all --dry-run",
            "join phase kubelet-start 10.0.0.1:6443 --token abcdef.0123456789abcdef --discovery-token-unsafe-skip-ca-verification",
            "join 10.0.0.1:6443 --dry-run --skip-phases addon -v 5",
            "version",
        ] {
            let parsed =
                OrchadmCommand::try_parse_from(["orchadm"].into_iter().chain(line.split(' ')));
            assert!(
                parsed.is_ok(),
                "{line}: {}",
                parsed.err().map_or_else(String::new, |e| e.to_string())
            );
        }
        for line in
            ["init --nonsense", "join", "init --config f --token t", "certs renew", "join phase"]
        {
            let parsed =
                OrchadmCommand::try_parse_from(["orchadm"].into_iter().chain(line.split(' ')));
            assert!(parsed.is_err(), "{line}");
        }
    }
}
