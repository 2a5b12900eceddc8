//! The kubelet's flags. Flags without a field in the configuration file are fields here; the others
//! are rows of [`table`].

mod overrides;
mod table;
mod texts;

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Parser;
use proto_daemon::flags::CommonFlags;

pub use overrides::Overrides;
pub(crate) use table::OVERRIDES;
use texts::label;

/// Node agent: runs the pods that are assigned to this node.
#[derive(Clone, Debug, Parser)]
#[command(name = "orchlet", version)]
pub struct Flags {
    /// Flags shared by all programs.
    #[command(flatten)]
    pub common: CommonFlags,
    /// Client configuration for the API server; without it only static pods run.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Client configuration to ask for a certificate with, when --kubeconfig does not exist yet; that file is then written.
    #[arg(long, value_name = "FILE")]
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// Directory of certificates that the agent asked for; `pki` below the root directory by default.
    #[arg(long, value_name = "DIR")]
    pub cert_dir: Option<PathBuf>,
    /// Name of the Node object; the host name by default.
    #[arg(long, value_name = "NAME")]
    pub hostname_override: Option<String>,
    /// Address of the node; that of the default route by default. Two, separated by a comma, for both families.
    #[arg(long, value_name = "IP", value_delimiter = ',')]
    pub node_ip: Vec<IpAddr>,
    /// Directory for pods, volumes and the journal.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/orchlet")]
    pub root_dir: PathBuf,
    /// Directory of the logs of pods.
    #[arg(long, value_name = "DIR", default_value = "/var/log/pods")]
    pub pod_logs_dir: PathBuf,
    /// Directory shown at /logs/ of the HTTPS endpoint.
    #[arg(long, value_name = "DIR", default_value = "/var/log")]
    pub system_logs_dir: PathBuf,
    /// Sandbox image; imported by orchlet itself under this name when the runtime does not have it.
    #[arg(long, value_name = "IMAGE", default_value = agent_runtime::pause::IMAGE)]
    pub pod_infra_container_image: String,
    /// Directory for the network configuration, written once the node's pod network is known.
    #[arg(long, value_name = "DIR")]
    pub cni_conf_dir: Option<PathBuf>,
    /// Labels of the Node when it is registered, `key=value`.
    #[arg(long, value_delimiter = ',', value_parser = label)]
    pub node_labels: Vec<(String, String)>,
    /// Flags of the node.
    #[command(flatten)]
    pub node: super::node::NodeFlags,
    /// Flags that override the configuration file.
    #[command(flatten)]
    pub overrides: Overrides,
}

#[cfg(test)]
mod tests {
    use super::table::OVERRIDES;
    use super::*;

    #[test]
    fn every_row_names_a_field_and_no_flag_stands_twice() {
        let tree = serde_json::to_value(crate::FileConfig::default()).expect("JSON");
        let mut seen = std::collections::BTreeSet::new();
        for (flag, path, ..) in OVERRIDES {
            let pointer = format!("/{}", path.replace('.', "/"));
            assert!(tree.pointer(&pointer).is_some(), "--{flag}: no field {path}");
            assert!(seen.insert(flag), "--{flag} twice");
        }
        <Flags as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn a_switch_may_stand_alone() {
        let flags = |args: &[&str]| {
            Flags::try_parse_from([&["orchlet"], args].concat()).expect("flags").overrides
        };
        assert_eq!(flags(&["--fail-swap-on"]), flags(&["--fail-swap-on=true"]));
        assert_ne!(flags(&["--fail-swap-on"]), flags(&["--fail-swap-on=false"]));
        assert_eq!(
            flags(&["--cluster-dns=10.0.0.1", "--cluster-dns=10.0.0.2"]),
            flags(&["--cluster-dns", "10.0.0.1,10.0.0.2"])
        );
        assert!(Flags::try_parse_from(["orchlet", "--max-pods=many"]).is_err());
    }
}
