//! How a machine that joins finds the cluster and makes sure that it is the right one: by a token with pins, or by a file that was brought here. Then what it
//! reads there with its token.

use std::path::Path;
use std::time::Duration;

use apiserver_signers::bootstrap::tokens::signature_key;
use proto_api::core::v1::{ConfigMap, Node};
use proto_api::names::Names;
use proto_client::Client;
use proto_client::config::{ClientConfig, Credential, Pem, Verification};
use proto_daemon::exit;

use crate::access;
use crate::bootstrap_token::BootstrapToken;
use crate::cluster_info::{self, FoundCluster};
use crate::configuration::{CONFIGURATION_KEY, ClusterConfiguration, Discovery, parse};
use crate::error::BootstrapError;
use crate::poll_until::{NotYet, until};

/// Between two looks.
const POLL: Duration = Duration::from_millis(250);
/// Longest wait for one answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// Most bytes of an answer: the first one is of a server that nothing is known of. Objects in etcd have 1.5 MiB at most.
const ANSWER_LEN_MAX: usize = 2 << 20;

/// What is known of the cluster before.
pub enum Source {
    /// Its address, a token, and pins of its authority; without pins the token alone is believed.
    Token {
        /// host:port.
        endpoint: String,
        token: BootstrapToken,
        /// Pins; empty where the user wants none.
        pins: Vec<String>,
    },
    /// Its description.
    File(std::path::PathBuf),
}

impl Source {
    /// What a configuration of `join` says of the cluster, with the token that asks for the certificate.
    ///
    /// # Errors
    /// It gives none or several ways, or one of them is not valid.
    pub fn from_discovery(discovery: &Discovery) -> Result<(Self, BootstrapToken), BootstrapError> {
        match (&discovery.bootstrap_token, &discovery.file) {
            (Some(by_token), None) => {
                let token = BootstrapToken::parse(&by_token.token)?;
                let for_certificate = match discovery.tls_bootstrap_token.as_str() {
                    "" => token.clone(),
                    text => BootstrapToken::parse(text)?,
                };
                let renounced = by_token.unsafe_skip_ca_verification;
                let pins = check_pins_given(&by_token.ca_cert_hashes, renounced)?;
                let endpoint = by_token.api_server_endpoint.trim_start_matches("https://");
                if endpoint.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
                    return Err(BootstrapError::Invalid(format!(
                        "{endpoint:?}: missing port in address, want host:port"
                    )));
                }
                Ok((Self::Token { endpoint: endpoint.to_owned(), token, pins }, for_certificate))
            }
            (None, Some(file)) => {
                let for_certificate = BootstrapToken::parse(&discovery.tls_bootstrap_token)?;
                Ok((Self::File(file.kube_config_path.clone().into()), for_certificate))
            }
            _ => Err(BootstrapError::Invalid(
                "discovery: give either the API server with a token, or a file".to_owned(),
            )),
        }
    }
}

/// Why a look is the last one.
enum Look {
    Again(NotYet),
    Never(BootstrapError),
}

/// Finds the cluster.
///
/// # Errors
/// It does not answer in time, or is not the right one.
pub async fn find(
    source: &Source,
    names: &'static Names,
    patience: Duration,
) -> Result<FoundCluster, BootstrapError> {
    match source {
        Source::File(path) => of_file(path),
        Source::Token { endpoint, token, pins } => {
            let what = format!("the cluster at {endpoint} is found");
            let found = until(&what, patience, POLL, async || {
                match fetch_cluster_info(endpoint, token, pins, names).await {
                    Ok(found) => Ok(Ok(found)),
                    Err(Look::Never(error)) => Ok(Err(error)),
                    Err(Look::Again(state)) => Err(state),
                }
            });
            let invalid = |error: &(dyn std::error::Error + 'static)| {
                BootstrapError::Invalid(exit::chain(error))
            };
            let found = found.await.map_err(|error| invalid(&error))?;
            found.map_err(|error| {
                BootstrapError::Invalid(format!(
                    "the cluster at {endpoint}: {}",
                    exit::chain(&error)
                ))
            })
        }
    }
}

fn of_file(path: &Path) -> Result<FoundCluster, BootstrapError> {
    let text = std::fs::read_to_string(path).map_err(BootstrapError::file(path))?;
    let found = cluster_info::cluster_of(&text);
    found.map_err(|error| BootstrapError::unusable(path, exit::chain(&error)))
}

/// One attempt: the ConfigMap of the server that responds is accepted when the token has signed it and the pins fit; then it is read again from a server that
/// the authority in it vouches for.
async fn fetch_cluster_info(
    endpoint: &str,
    token: &BootstrapToken,
    pins: &[String],
    names: &'static Names,
) -> Result<FoundCluster, Look> {
    let mut config = anonymous(endpoint).map_err(Look::Never)?;
    config.tls.verification = Verification::Skipped;
    let first = read(&config, names).await?;
    let found = cluster_info::verified(&first, token).map_err(|error| {
        // The signature of a new token takes a moment.
        let is_signed = first.data.contains_key(&signature_key(&token.id));
        if is_signed { Look::Never(error) } else { Look::Again(NotYet(error.to_string())) }
    })?;
    if !pins.is_empty() {
        cluster_info::check_pins(&found, pins).map_err(Look::Never)?;
    }
    config.tls.verification = Verification::Full;
    config.tls.authority = Some(Pem::Data(found.authority.clone().into_bytes()));
    let second = read(&config, names).await?;
    let again = cluster_info::verified(&second, token);
    match again.map_err(|error| Look::Again(NotYet(error.to_string())))? == found {
        true => Ok(found),
        false => Err(Look::Never(BootstrapError::Invalid(
            "the TLS certificate authority of the server differs from the one in cluster-info: another server responded"
                .to_owned(),
        ))),
    }
}

fn anonymous(endpoint: &str) -> Result<ClientConfig, BootstrapError> {
    config_of(&format!("https://{endpoint}"))
}

fn config_of(server: &str) -> Result<ClientConfig, BootstrapError> {
    let invalid = |_| {
        BootstrapError::Invalid(format!("the API server {server:?}: must be https://host:port"))
    };
    Ok(ClientConfig::direct(server.parse().map_err(invalid)?))
}

fn client_of(config: &ClientConfig, names: &'static Names) -> Result<Client, BootstrapError> {
    let agent = concat!("orchadm/", env!("CARGO_PKG_VERSION"));
    let client = Client::new(config, names, agent);
    let client = client.map_err(|error| BootstrapError::Invalid(exit::chain(&error)))?;
    Ok(client.with_deadline(ANSWER_PATIENCE).with_body_len_max(ANSWER_LEN_MAX))
}

async fn read(config: &ClientConfig, names: &'static Names) -> Result<ConfigMap, Look> {
    let client = client_of(config, names).map_err(Look::Never)?;
    let api = client.within::<ConfigMap>(names.public_namespace());
    let found = api.get(cluster_info::NAME).await;
    found.map_err(|error| Look::Again(NotYet(exit::chain(&error))))
}

/// A client of the found cluster that shows a token, without a file.
///
/// # Errors
/// The server's URL or the authority cannot be used.
pub fn client_by_token(
    found: &FoundCluster,
    token: &BootstrapToken,
    names: &'static Names,
) -> Result<Client, BootstrapError> {
    let mut config = config_of(&found.server)?;
    config.tls.authority = Some(Pem::Data(found.authority.clone().into_bytes()));
    config.credential = Credential::Token(token.text());
    client_of(&config, names)
}

/// As kubeadm: a node of this name that is Ready is another machine.
///
/// # Errors
/// There is one, or the API server does not say.
pub async fn check_name_is_free(client: &Client, name: &str) -> Result<(), BootstrapError> {
    let found = client.all::<Node>().find(name).await;
    let found = found.map_err(BootstrapError::api(format!("cannot get the node {name}")))?;
    let is_ready = found.is_some_and(|node| {
        node.status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
    });
    match is_ready {
        false => Ok(()),
        true => Err(BootstrapError::Invalid(format!(
            "a node {name:?} that is Ready is in the cluster: remove it with `kubectl delete node {name}` on the control plane, or give --node-name"
        ))),
    }
}

/// The configuration of the cluster, as its first control plane has stored it.
///
/// # Errors
/// It cannot be read, or is not valid.
pub async fn read_configuration(
    client: &Client,
    names: &Names,
) -> Result<ClusterConfiguration, BootstrapError> {
    let name = access::configuration_name(names);
    let api = client.within::<ConfigMap>(names.system_namespace());
    let map = api.get(&name).await;
    let map = map.map_err(BootstrapError::api(format!("cannot read the ConfigMap {name}")))?;
    let text = map.data.get(CONFIGURATION_KEY).map(String::as_str).unwrap_or_default();
    let invalid = |what: String| BootstrapError::Invalid(format!("the ConfigMap {name} {what}"));
    let read = parse(text, names).map_err(|error| invalid(format!("is not valid: {error}")))?;
    read.cluster.ok_or_else(|| invalid(format!("has no {CONFIGURATION_KEY}")))
}

/// Checks what is given for a discovery by token.
///
/// # Errors
/// Pins are missing and not renounced.
pub fn check_pins_given(pins: &[String], renounced: bool) -> Result<Vec<String>, BootstrapError> {
    let invalid = |text: &str| Err(BootstrapError::Invalid(text.to_owned()));
    match (pins.is_empty(), renounced) {
        (true, false) => invalid(
            "give --discovery-token-ca-cert-hash, or --discovery-token-unsafe-skip-ca-verification to skip the verification of the certificate authority",
        ),
        (false, true) => invalid(
            "--discovery-token-ca-cert-hash and --discovery-token-unsafe-skip-ca-verification exclude each other",
        ),
        _ => pins.iter().map(|pin| cluster_info::parse_pin(pin)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::{FileDiscovery, TokenDiscovery};

    #[test]
    fn a_cluster_is_found_in_one_way() {
        let by_token = TokenDiscovery {
            token: "abcdef.0123456789abcdef".into(),
            api_server_endpoint: "https://a:1".into(),
            unsafe_skip_ca_verification: true,
            ..TokenDiscovery::default()
        };
        let file = FileDiscovery { kube_config_path: "/f".into() };
        let of = |token: Option<&TokenDiscovery>, file: Option<&FileDiscovery>, tls: &str| {
            Source::from_discovery(&Discovery {
                bootstrap_token: token.cloned(),
                file: file.cloned(),
                tls_bootstrap_token: tls.into(),
                timeout: String::new(),
            })
        };
        let (found, tls) = of(Some(&by_token), None, "").unwrap();
        assert!(matches!(found, Source::Token { endpoint, .. } if endpoint == "a:1"));
        assert_eq!(tls.id, "abcdef");
        let (_, tls) = of(None, Some(&file), "ghijkl.0123456789abcdef").unwrap();
        assert_eq!(tls.id, "ghijkl");
        assert!(of(None, Some(&file), "").is_err(), "a file has no token");
        assert!(of(Some(&by_token), Some(&file), "").is_err());
        assert!(of(None, None, "").is_err());
        let without_port = TokenDiscovery { api_server_endpoint: "a".into(), ..by_token };
        assert!(of(Some(&without_port), None, "").is_err());
    }

    #[test]
    fn a_pin_is_given_or_renounced() {
        let pin = [format!("sha256:{}", "0".repeat(64))];
        assert!(check_pins_given(&[], false).is_err());
        assert!(check_pins_given(&pin, true).is_err());
        assert_eq!(check_pins_given(&pin, false).unwrap(), pin);
        assert_eq!(check_pins_given(&[], true).unwrap(), Vec::<String>::new());
        assert!(check_pins_given(&["sha256:0".to_owned()], false).is_err());
    }
}
