//! The configuration kinds of orchadm: those of kubeadm, versions v1beta3 and v1beta4, as far as they mean something here. What is unknown is refused by its
//! name, what has no effect is warned of. Values only.

mod defaults;
mod fields;
mod read;

use std::collections::BTreeMap;
use std::net::IpAddr;

use proto_api::dns_names;
use proto_api::names::Names;
use proto_api::{Cidr, Time};
use proto_daemon::go_duration;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use defaults::{init_defaults, join_defaults};
pub use fields::version_warning;
pub use read::{Documents, migrate, parse};

use crate::access::join_group;
use crate::bootstrap_token::{BootstrapToken, TTL, TokenSpec, USAGES};
use crate::error::BootstrapError;
use crate::external_etcd::ExternalEtcd;

/// Version that is written.
pub const VERSION: &str = "v1beta3";
/// Newer version that is read too.
pub const NEW_VERSION: &str = "v1beta4";
/// Older version that can be migrated.
pub const OLD_VERSION: &str = "v1beta2";
/// Key of the cluster's configuration in its ConfigMap, as kubeadm's.
pub const CONFIGURATION_KEY: &str = "ClusterConfiguration";
/// Port of the API server unless it is said.
pub const API_PORT: u16 = 6443;

/// Fewest bits of the addresses of Services: the name servers have the tenth.
const SERVICE_BITS_MIN: u8 = 4;
/// The place of the name servers' address in the network of Services.
const DNS_NUMBER: u8 = 10;

/// `InitConfiguration`: what differs between machines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct InitConfiguration {
    /// Tokens that are made.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bootstrap_tokens: Vec<TokenConfiguration>,
    /// The machine as a node.
    pub node_registration: NodeRegistration,
    /// The API server of this machine.
    #[serde(rename = "localAPIEndpoint")]
    pub local_api_endpoint: LocalApiEndpoint,
    /// Phases that are left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skip_phases: Vec<String>,
}

/// `ClusterConfiguration`: what all machines have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClusterConfiguration {
    /// Name of the cluster in client configurations.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cluster_name: String,
    /// Address of the API server that is handed out: host, or host:port.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub control_plane_endpoint: String,
    /// Directory of certificates.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub certificates_dir: String,
    /// Where the objects are kept, if not in the API server's own store.
    #[serde(skip_serializing_if = "EtcdConfiguration::is_empty")]
    pub etcd: EtcdConfiguration,
    pub networking: Networking,
    pub api_server: ApiServerConfiguration,
    pub controller_manager: ComponentConfiguration,
    pub scheduler: ComponentConfiguration,
}

/// The section `etcd` of a cluster configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct EtcdConfiguration {
    /// An etcd that others run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external: Option<ExternalEtcd>,
}

impl EtcdConfiguration {
    fn is_empty(&self) -> bool {
        self.external.is_none()
    }
}

/// Networks of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Networking {
    /// Domain of the names of Services.
    pub dns_domain: String,
    /// Addresses of pods.
    pub pod_subnet: String,
    /// Addresses of Services.
    pub service_subnet: String,
}

impl Default for Networking {
    fn default() -> Self {
        Self {
            dns_domain: "cluster.local".to_owned(),
            pod_subnet: "10.244.0.0/16".to_owned(),
            service_subnet: "10.96.0.0/12".to_owned(),
        }
    }
}

/// The section `apiServer` of a cluster configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ApiServerConfiguration {
    /// More names and addresses of the serving certificate.
    #[serde(rename = "certSANs", skip_serializing_if = "Vec::is_empty")]
    pub cert_sans: Vec<String>,
    /// More flags, or others for ours.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra_args: BTreeMap<String, String>,
    /// How long the control plane is waited for.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub timeout_for_control_plane: String,
}

/// `controllerManager` and `scheduler`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ComponentConfiguration {
    /// More flags, or others for ours.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra_args: BTreeMap<String, String>,
}

/// One of `bootstrapTokens`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TokenConfiguration {
    /// The token; a new one when it is empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub token: String,
    /// A text for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// How long it lasts; `0s` for ever.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ttl: String,
    /// `signing`, `authentication`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub usages: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
}

/// The section `nodeRegistration`: how this machine becomes a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NodeRegistration {
    /// Name of the Node; the host name when it is empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The runtime's socket.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cri_socket: String,
    /// Taints; those of a control plane when not set there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taints: Option<Vec<Taint>>,
    /// More flags of orchlet, or others for ours.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub kubelet_extra_args: BTreeMap<String, String>,
    /// Checks that may fail.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignore_preflight_errors: Vec<String>,
}

/// A taint of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Taint {
    pub key: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// NoSchedule, PreferNoSchedule or NoExecute.
    pub effect: String,
}

/// `localAPIEndpoint`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LocalApiEndpoint {
    /// Address of the API server; that of the default route when it is not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advertise_address: Option<IpAddr>,
    pub bind_port: u16,
}

impl Default for LocalApiEndpoint {
    fn default() -> Self {
        Self { advertise_address: None, bind_port: API_PORT }
    }
}

/// A file of kind `JoinConfiguration`, for `orchadm join --config`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct JoinConfiguration {
    /// How the cluster is found.
    pub discovery: Discovery,
    /// The machine as a node.
    pub node_registration: NodeRegistration,
    /// Where the cluster's authority is written.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ca_cert_path: String,
    /// The machine as one more control plane, if it becomes one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_plane: Option<JoinControlPlane>,
    /// Phases that are left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skip_phases: Vec<String>,
}

/// `controlPlane` of a JoinConfiguration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct JoinControlPlane {
    /// The API server of this machine.
    #[serde(rename = "localAPIEndpoint")]
    pub local_api_endpoint: LocalApiEndpoint,
}

/// `discovery` of a JoinConfiguration: how the cluster is found and verified.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Discovery {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bootstrap_token: Option<TokenDiscovery>,
    /// By a file that was brought here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<FileDiscovery>,
    /// The token for the certificate; that of the discovery when it is empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tls_bootstrap_token: String,
    /// How long the cluster is looked for.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub timeout: String,
}

/// `discovery.bootstrapToken`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TokenDiscovery {
    pub token: String,
    /// host:port.
    pub api_server_endpoint: String,
    /// Pins of the authority.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ca_cert_hashes: Vec<String>,
    /// Whether the authority is believed without a pin.
    #[serde(rename = "unsafeSkipCAVerification", skip_serializing_if = "std::ops::Not::not")]
    pub unsafe_skip_ca_verification: bool,
}

/// `discovery.file`: a kubeconfig file or URL with the server and its authority.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct FileDiscovery {
    /// A client configuration.
    pub kube_config_path: String,
}

impl ClusterConfiguration {
    /// The cluster's name in files.
    pub fn name<'a>(&'a self, names: &'a Names) -> &'a str {
        if self.cluster_name.is_empty() { names.api_service_name() } else { &self.cluster_name }
    }

    /// Checks networks and names.
    ///
    /// # Errors
    /// The first field that cannot be.
    pub fn validate(&self) -> Result<(), BootstrapError> {
        let networks = &self.networking;
        let services = cidr("networking.serviceSubnet", &networks.service_subnet)?;
        if services.host_bits() < SERVICE_BITS_MIN {
            return Err(BootstrapError::Invalid(format!(
                "networking.serviceSubnet {services}: must have at least {SERVICE_BITS_MIN} bits for addresses"
            )));
        }
        if !networks.pod_subnet.is_empty() {
            let pods = cidr("networking.podSubnet", &networks.pod_subnet)?;
            if pods.contains(services.first()) || services.contains(pods.first()) {
                return Err(BootstrapError::Invalid(format!(
                    "networking: podSubnet {} and serviceSubnet {} overlap",
                    networks.pod_subnet, networks.service_subnet
                )));
            }
        }
        if !dns_names::is_name(&networks.dns_domain) {
            return Err(BootstrapError::Invalid(format!(
                "networking.dnsDomain {:?}: must be a DNS name",
                networks.dns_domain
            )));
        }
        if self.control_plane_endpoint.contains("://") {
            return Err(BootstrapError::Invalid(format!(
                "controlPlaneEndpoint {:?}: must be a host, or host:port",
                self.control_plane_endpoint
            )));
        }
        self.etcd.external.as_ref().map_or(Ok(()), ExternalEtcd::validate)
    }

    /// The address of the cluster's name servers: the tenth of the Services' network, as kubeadm's.
    ///
    /// # Errors
    /// The network is none.
    pub fn dns_address(&self) -> Result<IpAddr, BootstrapError> {
        self.service_address(DNS_NUMBER)
    }

    /// The address of the API server's own Service.
    ///
    /// # Errors
    /// The network is none.
    pub fn api_service_address(&self) -> Result<IpAddr, BootstrapError> {
        self.service_address(1)
    }

    fn service_address(&self, number: u8) -> Result<IpAddr, BootstrapError> {
        let first = cidr("networking.serviceSubnet", &self.networking.service_subnet)?.first();
        Ok(match first {
            IpAddr::V4(first) => IpAddr::from((u32::from(first) + u32::from(number)).to_be_bytes()),
            IpAddr::V6(first) => {
                IpAddr::from((u128::from(first) + u128::from(number)).to_be_bytes())
            }
        })
    }

    /// `https://host:port` of the API server as it is handed out.
    pub fn server(&self, local: &LocalApiEndpoint, address: IpAddr) -> String {
        let port = local.bind_port;
        match self.control_plane_endpoint.as_str() {
            "" => format!("https://{}", std::net::SocketAddr::new(address, port)),
            host if has_port(host) => format!("https://{host}"),
            host => format!("https://{host}:{port}"),
        }
    }

    /// The host of `controlPlaneEndpoint`, for the serving certificate.
    pub fn endpoint_host(&self) -> Option<&str> {
        let endpoint = self.control_plane_endpoint.as_str();
        let host = if has_port(endpoint) { endpoint.rsplit_once(':')?.0 } else { endpoint };
        Some(host.trim_matches(['[', ']'])).filter(|host| !host.is_empty())
    }

    /// As an object with its kind.
    pub fn object(&self, names: &Names) -> Value {
        with_kind(names, "ClusterConfiguration", json!(self))
    }
}

impl TokenConfiguration {
    /// The token, with kubeadm's defaults for what is not said. `now` is in seconds since 1970.
    ///
    /// # Errors
    /// Something of it is not valid.
    pub fn spec(&self, names: &Names, now: i64) -> Result<TokenSpec, BootstrapError> {
        let token = match self.token.as_str() {
            "" => BootstrapToken::generate(),
            text => BootstrapToken::parse(text)?,
        };
        let invalid = |error| {
            BootstrapError::Invalid(format!("the lifetime of the token {:?}: {error}", self.ttl))
        };
        let ttl = match self.ttl.as_str() {
            "" => TTL,
            text => go_duration::parse(text).map_err(invalid)?,
        };
        // Expirations are in whole seconds: a part of one must not become none, which is for ever.
        let seconds = ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0));
        let expires = i64::try_from(seconds).ok().filter(|seconds| *seconds > 0);
        let or = |given: &[String], usual: Vec<String>| match given {
            [] => usual,
            given => given.to_vec(),
        };
        let spec = TokenSpec {
            token,
            description: self.description.clone(),
            expires: expires.map(|seconds| Time::from_unix(now.saturating_add(seconds))),
            usages: or(&self.usages, USAGES.map(str::to_owned).to_vec()),
            groups: or(&self.groups, vec![join_group(names)]),
        };
        spec.validate()?;
        Ok(spec)
    }
}

impl InitConfiguration {
    /// As an object with its kind.
    pub fn object(&self, names: &Names) -> Value {
        with_kind(names, "InitConfiguration", json!(self))
    }
}

impl JoinConfiguration {
    /// As an object with its kind.
    pub fn object(&self, names: &Names) -> Value {
        with_kind(names, "JoinConfiguration", json!(self))
    }
}

/// The `apiVersion` of the kinds.
pub fn api_version(names: &Names, version: &str) -> String {
    format!("{}/{version}", names.group(&names.component("adm")))
}

fn with_kind(names: &Names, kind: &str, value: Value) -> Value {
    let mut object = json!({"apiVersion": api_version(names, VERSION), "kind": kind});
    if let (Some(object), Value::Object(fields)) = (object.as_object_mut(), value) {
        object.extend(fields);
    }
    object
}

fn has_port(host: &str) -> bool {
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    let is_address = host.parse::<IpAddr>().is_ok();
    !is_address && host.rsplit_once(':').is_some_and(|(_, port)| is_port(port))
}

fn cidr(field: &str, text: &str) -> Result<Cidr, BootstrapError> {
    text.parse().map_err(|error| BootstrapError::Invalid(format!("{field}: {error}")))
}

#[cfg(test)]
mod tests;
