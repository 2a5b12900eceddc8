//! The phases about this machine as a node: `kubelet-start`, `mark-control-plane`, `kubelet-finalize`.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use apiserver_bootstrap::client_config::{self, AuthInfo, AuthorityAt, ClusterEntry};
use apiserver_bootstrap::configuration::Taint;
use apiserver_bootstrap::host_programs::Member;
use apiserver_bootstrap::poll_until::NotYet;
use apiserver_bootstrap::preflight::RuntimeFacts;
use proto_api::core::v1::Node;
use proto_client::{Patch, WriteParams};
use serde_json::{Value, json};

use super::control_plane::authority;
use super::{InitContext, InitSettings};
use crate::host::Host;

/// How long the node agent is waited for.
pub const NODE_PATIENCE: Duration = Duration::from_secs(240);

/// This machine as a member of its cluster.
pub fn member<'a>(
    host: &'a Host,
    settings: &'a InitSettings,
    facts: &'a RuntimeFacts,
    authority: &'a Path,
) -> Member<'a> {
    Member {
        names: host.names,
        layout: &host.layout,
        node: &settings.node,
        runtime: &settings.runtime,
        facts,
        bin_dir: &settings.bin_dir,
        authority,
        cluster: &settings.cluster,
        registration: &settings.init.node_registration,
    }
}

/// Starts the node agent.
///
/// # Errors
/// It cannot be started.
pub async fn start(context: &mut InitContext) -> Result<()> {
    let authority = authority(&context.settings);
    let member = member(&context.host, &context.settings, &context.runtime, &authority);
    let program = member.agent(false)?;
    context.services.ensure(&context.host.layout, &mut context.record, &program).await?;
    context.host.output.log("kubelet-start", "orchlet is set up");
    Ok(())
}

/// The taints that the node gets: those of the configuration, or the usual one.
fn taints(context: &InitContext) -> Vec<Taint> {
    let key = context.host.names.sub_label("node-role", "control-plane");
    let usual = || vec![Taint { key, value: String::new(), effect: "NoSchedule".into() }];
    context.settings.init.node_registration.taints.clone().unwrap_or_else(usual)
}

/// How pods come to run on a host that stays alone; nothing where they do already.
pub fn how_to_run_pods_here(context: &InitContext) -> String {
    let removals: Vec<String> =
        taints(context).iter().map(|taint| format!("{}:{}-", taint.key, taint.effect)).collect();
    match removals.is_empty() {
        true => String::new(),
        false => format!(
            "\nPods run on the hosts that join; on this one too after:\n\n  orchctl taint nodes {} {}\n",
            context.settings.node,
            removals.join(" ")
        ),
    }
}

/// Labels and taints the node as one of the control plane.
///
/// # Errors
/// The node does not appear, or the API server refuses.
pub async fn mark_control_plane(context: &InitContext) -> Result<()> {
    let (names, client) = (context.host.names, context.client()?);
    let api = client.all::<Node>();
    let name = &context.settings.node;
    let what = format!("the node {name} is registered");
    let program = (&context.host.layout, "orchlet");
    let look = async || api.get(name).await.map_err(crate::cluster::chain);
    let node = context.services.until(program, &what, NODE_PATIENCE, look).await?;
    let role = names.sub_label("node-role", "control-plane");
    let wanted = taints(context);
    let own = node
        .spec
        .taints
        .iter()
        .map(|taint| json!({"key": taint.key, "value": taint.value, "effect": taint.effect}));
    let is_new = |taint: &&Taint| {
        !node.spec.taints.iter().any(|own| own.key == taint.key && own.effect == taint.effect)
    };
    let added = wanted.iter().filter(is_new).map(|taint| json!(taint));
    let taints: Vec<Value> = own.chain(added).collect();
    let excluded = names.sub_label("node", "exclude-from-external-load-balancers");
    let patch = json!({
        "metadata": {"labels": {role.clone(): "", excluded: ""}},
        "spec": {"taints": taints},
    });
    api.patch(name, &Patch::Merge(patch), &WriteParams::default()).await?;
    let shown: Vec<String> = wanted.iter().map(|t| format!("{}:{}", t.key, t.effect)).collect();
    let text = format!("the node {name} has the label {role} and the taints [{}]", shown.join(" "));
    context.host.output.log("mark-control-plane", &text);
    Ok(())
}

/// Has the node agent's client configuration name the certificate that orchlet renews.
///
/// # Errors
/// The file cannot be written.
pub async fn finalize(context: &InitContext) -> Result<()> {
    let (names, layout, settings) = (context.host.names, &context.host.layout, &context.settings);
    let pair = &layout.node_pair;
    let look = async || if pair.exists() { Ok(()) } else { Err(NotYet("it is not".to_owned())) };
    let what = format!("{} is there", pair.display());
    context.services.until((layout, "orchlet"), &what, NODE_PATIENCE, look).await?;
    let pem = std::fs::read_to_string(authority(settings))?;
    let cluster = ClusterEntry {
        name: settings.cluster.name(names),
        server: &settings.server(),
        authority: AuthorityAt::Embedded(&pem),
    };
    let user = format!("system:node:{}", settings.node);
    let identity = AuthInfo::Files { certificate: pair.clone(), key: pair.clone() };
    client_config::write(&layout.node, &client_config::text(&cluster, &user, &identity))?;
    let text = format!("{} names {}", layout.node.display(), pair.display());
    context.host.output.log("kubelet-finalize", &text);
    Ok(())
}
