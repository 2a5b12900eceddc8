//! The phases `upload-config` and `bootstrap-token`: what machines need that join.

use anyhow::Result;
use apiserver_bootstrap::access;
use apiserver_bootstrap::apply::apply_one;
use apiserver_bootstrap::cluster_info;
use apiserver_bootstrap::configuration::CONFIGURATION_KEY;
use proto_api::yaml;
use serde_json::{Value, json};

use super::InitContext;
use super::control_plane::authority;

/// Stores the cluster's configuration where machines that join find it.
///
/// # Errors
/// The API server refuses.
pub async fn configuration(context: &InitContext) -> Result<()> {
    let client = context.client()?;
    apply_one(&client, &configuration_object(context)).await?;
    let name = access::configuration_name(context.host.names);
    let text = format!("the ConfigMap {name} has the cluster's configuration");
    context.host.output.log("upload-config", &text);
    Ok(())
}

/// The ConfigMap with the cluster's configuration.
pub fn configuration_object(context: &InitContext) -> Value {
    let names = context.host.names;
    let mut cluster = context.settings.cluster.clone();
    if cluster.control_plane_endpoint.is_empty() {
        cluster.control_plane_endpoint =
            context.settings.server().trim_start_matches("https://").to_owned();
    }
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": access::configuration_name(names),
            "namespace": names.system_namespace(),
        },
        "data": {CONFIGURATION_KEY: yaml::to_string(&cluster.object(names))},
    })
}

/// Makes the tokens, and what they are good for: `cluster-info` and the access of machines that join.
///
/// # Errors
/// The API server refuses.
pub async fn bootstrap_token(context: &InitContext) -> Result<()> {
    let (names, client) = (context.host.names, context.client()?);
    let settings = &context.settings;
    let pem = std::fs::read_to_string(authority(settings))?;
    let (tokens, server) = (&settings.tokens, settings.server());
    for object in access::for_hosts_that_join(names, tokens, &server, &pem)? {
        apply_one(&client, &object).await?;
    }
    for token in tokens {
        context.host.output.log("bootstrap-token", &format!("made the token {}", token.token.id));
    }
    let text = format!("the ConfigMap {} says where the cluster is", cluster_info::NAME);
    context.host.output.log("bootstrap-token", &text);
    Ok(())
}
