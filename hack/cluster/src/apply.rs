//! Puts manifests into the API: creates what is missing, merges into what is there.

use anyhow::Result;
use proto_client::Client;

/// Applies every document of a YAML text, in order.
pub async fn apply(client: &Client, manifests: &str) -> Result<()> {
    Ok(apiserver_bootstrap::apply::apply(client, manifests).await?)
}
