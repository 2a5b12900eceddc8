//! How a machine that joins finds the cluster and makes sure that it is the right one: by a token with pins, or by a file that was brought here.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use apiserver_bootstrap::bootstrap_token::BootstrapToken;
use apiserver_bootstrap::cluster_info::{self, FoundCluster};
use apiserver_bootstrap::waiting::NotYet;
use proto_api::core::v1::ConfigMap;
use proto_api::names::Names;
use proto_client::config::{ClientConfig, Pem, Verification};

use crate::cluster::{self, until};

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

/// Why a look is the last one.
enum Look {
    Again(NotYet),
    Never(anyhow::Error),
}

/// Finds the cluster.
///
/// # Errors
/// It does not answer in time, or is not the right one.
pub async fn find(
    source: &Source,
    names: &'static Names,
    patience: Duration,
) -> Result<FoundCluster> {
    match source {
        Source::File(path) => of_file(path),
        Source::Token { endpoint, token, pins } => {
            let what = format!("the cluster at {endpoint} is found");
            let found = until(&what, patience, async || {
                match fetch_cluster_info(endpoint, token, pins, names).await {
                    Ok(found) => Ok(Ok(found)),
                    Err(Look::Never(error)) => Ok(Err(error)),
                    Err(Look::Again(state)) => Err(state),
                }
            })
            .await?;
            found.with_context(|| format!("the cluster at {endpoint}"))
        }
    }
}

fn of_file(path: &Path) -> Result<FoundCluster> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    cluster_info::cluster_of(&text).with_context(|| path.display().to_string())
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
        let is_signed = first.data.keys().any(|key| key.ends_with(&token.id));
        if is_signed { Look::Never(error.into()) } else { Look::Again(NotYet(error.to_string())) }
    })?;
    if !pins.is_empty() {
        cluster_info::check_pins(&found, pins).map_err(|error| Look::Never(error.into()))?;
    }
    config.tls.verification = Verification::Full;
    config.tls.authority = Some(Pem::Data(found.authority.clone().into_bytes()));
    let second = read(&config, names).await?;
    let again = cluster_info::verified(&second, token);
    match again.map_err(|error| Look::Again(NotYet(error.to_string())))? == found {
        true => Ok(found),
        false => Err(Look::Never(anyhow::anyhow!(
            "the TLS certificate authority of the server differs from the one in cluster-info: another server responded"
        ))),
    }
}

fn anonymous(endpoint: &str) -> Result<ClientConfig> {
    let server = format!("https://{endpoint}").parse();
    let server =
        server.with_context(|| format!("the API server {endpoint:?}: must be host:port"))?;
    Ok(ClientConfig::direct(server))
}

async fn read(config: &ClientConfig, names: &'static Names) -> Result<ConfigMap, Look> {
    let client = cluster::of(config, names).map_err(Look::Never)?;
    let api = client.within::<ConfigMap>(names.public_namespace());
    api.get(cluster_info::NAME).await.map_err(|error| Look::Again(cluster::chain(error)))
}

/// Checks what is given for a discovery by token.
///
/// # Errors
/// Pins are missing and not renounced.
pub fn check_pins_given(pins: &[String], renounced: bool) -> Result<Vec<String>> {
    match (pins.is_empty(), renounced) {
        (true, false) => bail!(
            "give --discovery-token-ca-cert-hash, or --discovery-token-unsafe-skip-ca-verification to skip the verification of the certificate authority"
        ),
        (false, true) => bail!(
            "--discovery-token-ca-cert-hash and --discovery-token-unsafe-skip-ca-verification exclude each other"
        ),
        _ => {}
    }
    pins.iter().map(|pin| Ok(cluster_info::parse_pin(pin)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
