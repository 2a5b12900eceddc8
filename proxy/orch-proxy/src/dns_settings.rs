//! Configuration of the DNS server: flags and the `dns` section of the file.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{ArgAction, Args};
use proto_daemon::config::FieldError;
use proxy_dns::Zone;
use serde::{Deserialize, Serialize};

/// Default port. Not 53, which the host's resolver may use.
const PORT: u16 = 10_053;

/// Flags of the DNS server. Each overrides the configuration file.
#[derive(Args, Clone, Debug, Default)]
pub struct DnsFlags {
    /// Serve DNS to this node's pods at the cluster IP of the cluster's DNS Service: cluster names locally, other names
    /// from upstream servers.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub dns: Option<bool>,
    /// Cluster domain.
    #[arg(long, value_name = "DOMAIN")]
    pub cluster_domain: Option<String>,
    /// Addresses to bind, at most one per family; the node's own addresses by default.
    #[arg(long, value_name = "IP", value_delimiter = ',')]
    pub dns_bind_address: Option<Vec<IpAddr>>,
    /// Port to bind.
    #[arg(long, value_name = "PORT")]
    pub dns_port: Option<u16>,
    /// Upstream servers, as IP or IP:port; those of --resolv-conf by default.
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub dns_upstream: Option<Vec<String>>,
    /// File with the upstream servers; read again when it changes.
    #[arg(long, value_name = "FILE")]
    pub resolv_conf: Option<PathBuf>,
}

/// The `dns` section of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DnsFile {
    enabled: bool,
    cluster_domain: String,
    bind_addresses: Vec<IpAddr>,
    port: u16,
    upstreams: Vec<String>,
    resolv_conf: PathBuf,
}

impl Default for DnsFile {
    fn default() -> Self {
        Self {
            enabled: false,
            cluster_domain: "cluster.local".into(),
            bind_addresses: Vec::new(),
            port: PORT,
            upstreams: Vec::new(),
            resolv_conf: "/etc/resolv.conf".into(),
        }
    }
}

/// The validated configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsSettings {
    /// Cluster domain.
    pub domain: String,
    /// Addresses to bind; empty for the node's own addresses.
    pub bind_addresses: Vec<IpAddr>,
    /// Port to bind.
    pub port: u16,
    /// Upstream servers; empty for those of resolv.conf.
    pub upstreams: Vec<SocketAddr>,
    /// Path of resolv.conf.
    pub resolv_conf: PathBuf,
}

impl DnsFile {
    /// The section with the flags applied.
    pub fn overridden(mut self, flags: &DnsFlags) -> Self {
        fn over<T: Clone>(field: &mut T, flag: Option<&T>) {
            if let Some(flag) = flag {
                field.clone_from(flag);
            }
        }
        over(&mut self.enabled, flags.dns.as_ref());
        over(&mut self.cluster_domain, flags.cluster_domain.as_ref());
        over(&mut self.bind_addresses, flags.dns_bind_address.as_ref());
        over(&mut self.port, flags.dns_port.as_ref());
        over(&mut self.upstreams, flags.dns_upstream.as_ref());
        over(&mut self.resolv_conf, flags.resolv_conf.as_ref());
        self
    }

    /// Validation errors.
    pub fn validate(&self) -> Vec<FieldError> {
        let mut faults = Vec::new();
        let mut fault = |field: &str, message: String| {
            faults.push(FieldError::new(format!("dns.{field}"), message));
        };
        if let Err(error) = Zone::new(&self.cluster_domain, ("", "")) {
            fault("clusterDomain", error.to_string());
        }
        let of_family = |v4: bool| self.bind_addresses.iter().filter(|a| a.is_ipv4() == v4).count();
        if of_family(true) > 1 || of_family(false) > 1 {
            fault("bindAddresses", "at most one of each family".into());
        }
        if self.bind_addresses.iter().any(IpAddr::is_unspecified) {
            fault("bindAddresses", "packets are sent there, so it has to be one address".into());
        }
        if self.port == 0 {
            fault("port", "must not be 0".into());
        }
        for upstream in self.upstreams.iter().filter(|text| server(text).is_none()) {
            fault("upstreams", format!("{upstream:?} is not IP or IP:port"));
        }
        faults
    }

    /// The resolver as it should be; none where there should be none.
    pub fn settings(self) -> Option<DnsSettings> {
        self.enabled.then(|| DnsSettings {
            upstreams: self.upstreams.iter().filter_map(|text| server(text)).collect(),
            domain: self.cluster_domain,
            bind_addresses: self.bind_addresses,
            port: self.port,
            resolv_conf: self.resolv_conf,
        })
    }
}

fn server(text: &str) -> Option<SocketAddr> {
    let with_port = text.parse::<SocketAddr>();
    with_port.ok().or_else(|| text.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, 53)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_override_the_file_and_faults_name_the_field() {
        let file: DnsFile =
            serde_json::from_str(r#"{"enabled": true, "upstreams": ["10.0.0.2"]}"#).unwrap();
        let flags = DnsFlags {
            cluster_domain: Some("example.org".into()),
            dns_upstream: Some(vec!["10.0.0.3:5353".into(), "fd00::2".into()]),
            ..DnsFlags::default()
        };
        assert_eq!(file.clone().settings().unwrap().upstreams, ["10.0.0.2:53".parse().unwrap()]);
        let over = file.overridden(&flags);
        assert!(over.validate().is_empty());
        let settings = over.clone().settings().unwrap();
        assert_eq!((settings.domain.as_str(), settings.port), ("example.org", PORT));
        assert_eq!(
            settings.upstreams,
            ["10.0.0.3:5353".parse().unwrap(), "[fd00::2]:53".parse().unwrap()]
        );
        let off = over.overridden(&DnsFlags { dns: Some(false), ..DnsFlags::default() });
        assert_eq!(off.settings(), None);
        let wrong = DnsFile {
            cluster_domain: "a..b".into(),
            bind_addresses: vec!["0.0.0.0".parse().unwrap(), "10.0.0.1".parse().unwrap()],
            port: 0,
            upstreams: vec!["x".into()],
            ..DnsFile::default()
        };
        let fields: Vec<String> = wrong.validate().into_iter().map(|fault| fault.path).collect();
        let expected = ["clusterDomain", "bindAddresses", "bindAddresses", "port", "upstreams"];
        assert_eq!(fields, expected.map(|field| format!("dns.{field}")));
    }
}
