//! How orchlet is told what to be: flags in the ecosystem's spelling, a configuration file with the ecosystem's field names, and
//! the settings that both make. Flags win.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use agent_node::cgroup::Driver;
use clap::{Parser, ValueEnum};
use proto_api::Quantity;
use proto_api::core::v1::Taint;
use proto_api::names::Names;
use proto_daemon::config::{self, ConfigError, Configuration, FieldError, FileType};
use proto_daemon::flags::CommonFlags;
use serde::{Deserialize, Serialize};

use crate::server::open::AccessFlags;

/// Node agent: runs the pods that are assigned to this node.
#[derive(Clone, Debug, Parser)]
#[command(name = "orchlet", version)]
pub struct Flags {
    /// What every program takes.
    #[command(flatten)]
    pub common: CommonFlags,
    /// Client configuration for the API server; without it only static pods run.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
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
    /// Directory of static pod manifests.
    #[arg(long, value_name = "DIR")]
    pub pod_manifest_path: Option<PathBuf>,
    /// Socket of the container runtime.
    #[arg(long, value_name = "URL")]
    pub container_runtime_endpoint: Option<String>,
    /// Sandbox image; imported by orchlet itself under this name when the runtime does not have it.
    #[arg(long, value_name = "IMAGE", default_value = agent_runtime::pause::IMAGE)]
    pub pod_infra_container_image: String,
    /// Directory for the network configuration, written once the node's pod network is known.
    #[arg(long, value_name = "DIR")]
    pub cni_conf_dir: Option<PathBuf>,
    /// Who manages cgroups.
    #[arg(long, value_enum)]
    pub cgroup_driver: Option<CgroupDriver>,
    /// Cgroup below which the pods' tree is made.
    #[arg(long, value_name = "PATH")]
    pub cgroup_root: Option<String>,
    /// Cluster name servers.
    #[arg(long, value_name = "IP", value_delimiter = ',')]
    pub cluster_dns: Vec<IpAddr>,
    /// DNS domain of the cluster.
    #[arg(long, value_name = "DOMAIN")]
    pub cluster_domain: Option<String>,
    /// Address of the HTTPS endpoint.
    #[arg(long, value_name = "IP")]
    pub address: Option<IpAddr>,
    /// Port of the HTTPS endpoint.
    #[arg(long)]
    pub port: Option<u16>,
    /// Authorities of clients of the HTTPS endpoint.
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
    /// Who may use the HTTPS endpoint.
    #[command(flatten)]
    pub access: AccessFlags,
    /// Certificate of the HTTPS endpoint.
    #[arg(long, value_name = "FILE")]
    pub tls_cert_file: Option<PathBuf>,
    /// Its private key.
    #[arg(long, value_name = "FILE")]
    pub tls_private_key_file: Option<PathBuf>,
    /// Whether to make the Node object.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub register_node: Option<bool>,
    /// Labels of the node, `key=value`.
    #[arg(long, value_delimiter = ',', value_parser = parse_label)]
    pub node_labels: Vec<(String, String)>,
    /// Taints of the node at registration, `key=value:effect`.
    #[arg(long, value_delimiter = ',', value_parser = parse_taint)]
    pub register_with_taints: Vec<Taint>,
    /// Largest number of pods.
    #[arg(long)]
    pub max_pods: Option<u32>,
    /// Pod network of a node that has no API server to assign one.
    #[arg(long, value_name = "CIDR")]
    pub pod_cidr: Option<String>,
    /// Whether active swap is refused.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub fail_swap_on: Option<bool>,
    /// Resolver configuration that pods without cluster DNS inherit.
    #[arg(long, value_name = "FILE")]
    pub resolv_conf: Option<PathBuf>,
}

/// Who manages cgroups (`--cgroup-driver`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CgroupDriver {
    /// Plain directories.
    #[default]
    Cgroupfs,
    /// systemd.
    Systemd,
}

impl From<CgroupDriver> for Driver {
    fn from(driver: CgroupDriver) -> Self {
        match driver {
            CgroupDriver::Cgroupfs => Self::Cgroupfs,
            CgroupDriver::Systemd => Self::Systemd,
        }
    }
}

/// The configuration file, kind `OrchletConfiguration`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs, reason = "the names are the ecosystem's own and documented there")]
pub struct FileConfig {
    pub static_pod_path: Option<PathBuf>,
    #[serde(with = "proto_daemon::go_duration::text")]
    pub file_check_frequency: Duration,
    pub address: Option<IpAddr>,
    pub port: u16,
    pub tls_cert_file: Option<PathBuf>,
    pub tls_private_key_file: Option<PathBuf>,
    pub authentication: Authentication,
    pub container_runtime_endpoint: String,
    pub cgroup_driver: CgroupDriver,
    pub cgroup_root: String,
    #[serde(rename = "clusterDNS")]
    pub cluster_dns: Vec<IpAddr>,
    pub cluster_domain: String,
    pub register_node: bool,
    pub register_with_taints: Vec<Taint>,
    pub max_pods: u32,
    #[serde(rename = "podCIDR")]
    pub pod_cidr: String,
    pub pod_pids_limit: i64,
    pub fail_swap_on: bool,
    pub resolv_conf: PathBuf,
    pub system_reserved: BTreeMap<String, Quantity>,
    pub kube_reserved: BTreeMap<String, Quantity>,
    #[serde(with = "proto_daemon::go_duration::text")]
    pub node_status_update_frequency: Duration,
    #[serde(with = "proto_daemon::go_duration::text")]
    pub node_status_report_frequency: Duration,
}

/// Who may use the HTTPS endpoint.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs, reason = "the names are the ecosystem's own and documented there")]
pub struct Authentication {
    pub x509: X509,
}

/// Clients with certificates.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs, reason = "the names are the ecosystem's own and documented there")]
pub struct X509 {
    #[serde(rename = "clientCAFile")]
    pub client_ca_file: Option<PathBuf>,
}

impl Default for FileConfig {
    fn default() -> Self {
        Self {
            static_pod_path: None,
            file_check_frequency: Duration::from_secs(20),
            address: None,
            port: 10250,
            tls_cert_file: None,
            tls_private_key_file: None,
            authentication: Authentication::default(),
            container_runtime_endpoint: "unix:///run/containerd/containerd.sock".to_owned(),
            cgroup_driver: CgroupDriver::default(),
            cgroup_root: "/".to_owned(),
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".to_owned(),
            register_node: true,
            register_with_taints: Vec::new(),
            max_pods: 110,
            pod_cidr: String::new(),
            pod_pids_limit: -1,
            fail_swap_on: false,
            resolv_conf: "/etc/resolv.conf".into(),
            system_reserved: BTreeMap::new(),
            kube_reserved: BTreeMap::new(),
            node_status_update_frequency: Duration::from_secs(10),
            node_status_report_frequency: Duration::from_secs(300),
        }
    }
}

impl Configuration for FileConfig {
    fn validate(&self) -> Vec<FieldError> {
        let mut faults = Vec::new();
        let mut check = |holds: bool, path: &str, message: &str| {
            if !holds {
                faults.push(FieldError::new(path, message));
            }
        };
        let positive = "must be greater than 0";
        check(self.max_pods > 0, "maxPods", positive);
        check(self.port > 0, "port", positive);
        check(!self.file_check_frequency.is_zero(), "fileCheckFrequency", positive);
        check(!self.node_status_update_frequency.is_zero(), "nodeStatusUpdateFrequency", positive);
        check(
            self.tls_cert_file.is_some() == self.tls_private_key_file.is_some(),
            "tlsPrivateKeyFile",
            "must be set together with tlsCertFile",
        );
        check(self.cgroup_root.starts_with('/'), "cgroupRoot", "must be an absolute path");
        for (path, reserved) in
            [("systemReserved", &self.system_reserved), ("kubeReserved", &self.kube_reserved)]
        {
            for (name, amount) in reserved {
                let path = format!("{path}.{name}");
                check(!amount.is_negative(), &path, "must not be negative");
            }
        }
        faults
    }
}

/// What orchlet runs with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Names of the naming profile.
    pub names: &'static Names,
    /// What flags alone decide.
    pub flags: Flags,
    /// What the file decides where flags do not.
    pub file: FileConfig,
}

impl Settings {
    /// Reads the configuration file that the flags name, lays the flags over it and checks the whole.
    ///
    /// # Errors
    /// Every fault that can be found; nothing has been done yet.
    pub fn load(flags: Flags) -> Result<Self, ConfigError> {
        let names = flags.common.names();
        let mut file = match &flags.common.config {
            Some(path) => config::load(path, &file_types(names))?,
            None => FileConfig::default(),
        };
        overlay(&mut file, &flags);
        let faults = file.validate();
        if !faults.is_empty() {
            return Err(ConfigError::Invalid { path: "(flags)".into(), faults });
        }
        Ok(Self { names, flags, file })
    }
}

/// The types of file that are accepted: orchlet's own, and under the ecosystem's names its own.
fn file_types(names: &Names) -> Vec<FileType> {
    let file_type = |component: &str, domain: &str, kind: &str| FileType {
        api_version: format!("{component}.config.{domain}/v1beta1"),
        kind: kind.to_owned(),
    };
    vec![
        file_type("orchlet", names.group_domain(), "OrchletConfiguration"),
        file_type("kubelet", "k8s.io", "KubeletConfiguration"),
    ]
}

fn overlay(file: &mut FileConfig, flags: &Flags) {
    fn set<T: Clone>(value: &mut T, flag: Option<&T>) {
        if let Some(flag) = flag {
            value.clone_from(flag);
        }
    }
    fn set_some<T: Clone>(value: &mut Option<T>, flag: Option<&T>) {
        if flag.is_some() {
            *value = flag.cloned();
        }
    }
    set_some(&mut file.static_pod_path, flags.pod_manifest_path.as_ref());
    set(&mut file.container_runtime_endpoint, flags.container_runtime_endpoint.as_ref());
    set(&mut file.cgroup_driver, flags.cgroup_driver.as_ref());
    set(&mut file.cgroup_root, flags.cgroup_root.as_ref());
    set(&mut file.cluster_dns, Some(&flags.cluster_dns).filter(|list| !list.is_empty()));
    set(&mut file.cluster_domain, flags.cluster_domain.as_ref());
    set_some(&mut file.address, flags.address.as_ref());
    set(&mut file.port, flags.port.as_ref());
    set_some(&mut file.authentication.x509.client_ca_file, flags.client_ca_file.as_ref());
    set_some(&mut file.tls_cert_file, flags.tls_cert_file.as_ref());
    set_some(&mut file.tls_private_key_file, flags.tls_private_key_file.as_ref());
    set(&mut file.register_node, flags.register_node.as_ref());
    let taints = Some(&flags.register_with_taints).filter(|list| !list.is_empty());
    set(&mut file.register_with_taints, taints);
    set(&mut file.max_pods, flags.max_pods.as_ref());
    set(&mut file.pod_cidr, flags.pod_cidr.as_ref());
    set(&mut file.fail_swap_on, flags.fail_swap_on.as_ref());
    set(&mut file.resolv_conf, flags.resolv_conf.as_ref());
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("must be key=value")?;
    if key.is_empty() {
        return Err("must be key=value".to_owned());
    }
    Ok((key.to_owned(), value.to_owned()))
}

fn parse_taint(text: &str) -> Result<Taint, String> {
    let (rest, effect) = text.rsplit_once(':').ok_or("must be key=value:effect")?;
    if !matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
        return Err(format!("unknown effect {effect:?}"));
    }
    let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
    Ok(Taint {
        key: key.to_owned(),
        value: value.to_owned(),
        effect: effect.to_owned(),
        ..Taint::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(args: &[&str]) -> Result<Settings, ConfigError> {
        let flags = Flags::try_parse_from([&["orchlet"], args].concat()).expect("flags");
        Settings::load(flags)
    }

    #[test]
    fn flags_win_over_the_file() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("config.yaml");
        let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
                    maxPods: 50\nport: 10255\nclusterDNS: [10.0.0.10]\nsystemReserved: {cpu: 100m}\n";
        std::fs::write(&path, text).expect("write");
        let path = path.to_str().expect("text");
        let settings = settings(&["--config", path, "--max-pods", "7"]).expect("valid");
        assert_eq!(settings.file.max_pods, 7);
        assert_eq!(settings.file.port, 10255);
        assert_eq!(settings.file.cluster_dns, ["10.0.0.10".parse::<IpAddr>().expect("ip")]);
        assert_eq!(settings.file.system_reserved["cpu"].as_milli(), 100);
    }

    #[test]
    fn every_fault_is_listed() {
        let error = settings(&["--max-pods", "0", "--tls-cert-file", "x"]).expect_err("invalid");
        let text = error.to_string();
        assert!(text.contains("maxPods") && text.contains("tlsPrivateKeyFile"), "{text}");
    }

    #[test]
    fn taints_and_labels() {
        let taint = parse_taint("a.b/c=d:NoSchedule").expect("taint");
        assert_eq!((taint.key.as_str(), taint.value.as_str()), ("a.b/c", "d"));
        assert!(parse_taint("a:Never").is_err());
        assert_eq!(parse_label("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(parse_label("=b").is_err());
    }
}
