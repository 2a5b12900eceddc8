//! What somebody can do who has come by a credential of a cluster: of a node, of a pod, a token with which hosts join, or none. What is tried, and what each
//! attempt has to answer, are tables for every cluster: of `hack/up` here, of orchadm in its own case.

mod certificates;
mod endpoint;
mod join_token;
mod node;
mod others;
mod resources;
mod target;

use anyhow::{Result, ensure};
use proto_api::names::Names;
use proto_client::Client;
use proto_client::config::file;
use serde_json::{Value, json};

use crate::context::Context;
pub use target::Target;

/// One attempt: method, path, body, and the answer's status.
type Attempt<'a> = (&'a str, String, Value, u16);

/// The answer's status for each attempt is the expected one; all others are reported together.
async fn check(who: &str, client: &Client, attempts: Vec<Attempt<'_>>) -> Result<()> {
    let mut wrong = Vec::new();
    for (method, path, body, expected) in attempts {
        let got = Context::status(client, method, &path, &body).await?;
        if got != expected {
            wrong.push(format!("{method} {path}: {got}, expected {expected}"));
        }
    }
    ensure!(wrong.is_empty(), "as {who}:\n{}", wrong.join("\n"));
    Ok(())
}

pub async fn each_opens_only_what_it_is_for(c: &Context) -> Result<()> {
    let target = Target {
        names: c.names,
        admin: c.client.clone(),
        config: file::load(&c.spec.client_config("orchlet-node-1"), None)?,
        own: "node-1".to_owned(),
        other: "elsewhere".to_owned(),
        endpoint_of: "node-1".to_owned(),
        ns: "stolen".to_owned(),
        join_token: None,
    };
    // The second node is in the API only.
    c.apply("apiVersion: v1\nkind: Node\nmetadata: {name: elsewhere}\n").await?;
    let done = try_all(&target).await;
    let elsewhere = core("nodes/elsewhere");
    let deleted = Context::status(&c.client, "DELETE", &elsewhere, &Value::Null).await;
    // What was tried counts more than what was left.
    done.and(deleted.map(drop))
}

/// Tries all credentials of a cluster.
pub async fn try_all(target: &Target) -> Result<()> {
    let done = match target.fill().await {
        Ok(()) => try_each(target).await,
        Err(error) => Err(error),
    };
    let emptied = target.empty().await;
    done.and(emptied)
}

async fn try_each(t: &Target) -> Result<()> {
    let all = resources::served(&t.admin).await?;
    let node = t.node()?;
    check("a node", &node, node::attempts(t, &t.uids().await?)?).await?;
    certificates::those_of_another_node_wait(t, &node).await?;
    let has = |resource: &str, verb: &str| node::has(t, resource, verb);
    check("a node, of all resources", &node, resources::attempts(&t.ns, &all, has)).await?;

    let token = t.pod_token().await?;
    let pod = t.by_token(Some(&token))?;
    check("a pod", &pod, others::of_pod(t)).await?;
    let own = |resource: &str, _: &str| is_review_of_oneself(resource);
    check("a pod, of all resources", &pod, resources::attempts(&t.ns, &all, own)).await?;

    if let Some(token) = &t.join_token {
        let host = t.by_token(Some(token))?;
        check("a host that joins", &host, join_token::attempts(t, token)?).await?;
        let of_token = resources::attempts(&t.ns, &all, join_token::has);
        check("a host that joins, of all resources", &host, of_token).await?;
    }

    let without = t.by_token(None)?;
    check("nobody", &without, others::of_nobody(t)).await?;
    let of_all = resources::attempts(&t.ns, &all, |_, _| false);
    check("nobody, of all resources", &without, of_all).await?;
    check("nobody, of all paths", &without, resources::paths(&t.admin).await?).await?;

    let [by_node, by_pod, by_nobody] = t.endpoint_clients(&token).await?;
    check("a node, at a node", &by_node, endpoint::attempts(&t.ns, 403)).await?;
    check("a pod, at a node", &by_pod, endpoint::attempts(&t.ns, 403)).await?;
    check("nobody, at a node", &by_nobody, endpoint::attempts(&t.ns, 401)).await
}

fn core(rest: &str) -> String {
    format!("/api/v1/{rest}")
}

fn within(ns: &str, rest: &str) -> String {
    format!("/api/v1/namespaces/{ns}/{rest}")
}

fn in_group(names: &Names, group: &str, rest: &str) -> String {
    format!("/apis/{}/v1/{rest}", names.group(group))
}

fn labels(key: impl Into<String>) -> Value {
    json!({"metadata": {"labels": {key.into(): "x"}}})
}

/// Reviews of one's own rights are for everybody who is known.
fn is_review_of_oneself(resource: &str) -> bool {
    resource.starts_with("authorization/selfsubject")
        || resource.starts_with("authentication/selfsubject")
}

fn own_review(names: &Names) -> (String, Value) {
    let attributes = json!({"verb": "get", "resource": "pods"});
    let path = in_group(names, "authorization", "selfsubjectaccessreviews");
    (path, json!({"spec": {"resourceAttributes": attributes}}))
}
