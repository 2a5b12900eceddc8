//! What a bootstrap token is tried for: who has it becomes a node, and is nothing else.

use anyhow::Result;
use serde_json::{Value, json};

use super::certificates::request_for_masters;
use super::target::Target;
use super::{Attempt, core, in_group, is_review_of_oneself, within};

/// `token` is the whole token.
pub fn attempts(t: &Target, token: &str) -> Result<Vec<Attempt<'static>>> {
    let none = || Value::Null;
    let system = t.names.system_namespace();
    let id = token.split('.').next().unwrap_or_default();
    let config = format!("configmaps/{}-config", t.names.component("adm"));
    let core = |rest: &str| core(&t.named(rest));
    let requests = |rest: &str| {
        in_group(t.names, "certificates", &format!("certificatesigningrequests{rest}"))
    };
    Ok(vec![
        // Whether its name is free, and how the cluster is configured.
        ("GET", core("nodes/OTHER"), none(), 200),
        ("GET", within(system, &config), none(), 200),
        ("GET", core("nodes"), none(), 403),
        ("PATCH", core("nodes/OTHER"), json!({}), 403),
        ("DELETE", core("nodes/OTHER"), none(), 403),
        ("POST", core("nodes"), json!({"metadata": {"name": "mine"}}), 403),
        ("GET", within(system, "configmaps"), none(), 403),
        ("PATCH", within(system, &config), json!({}), 403),
        ("GET", within(system, "secrets"), none(), 403),
        ("GET", within(system, &format!("secrets/bootstrap-token-{id}")), none(), 403),
        ("PATCH", within(t.names.public_namespace(), "configmaps/cluster-info"), json!({}), 403),
        ("GET", within(&t.ns, "secrets/ours"), none(), 403),
        ("POST", within(&t.ns, "serviceaccounts/default/token"), json!({}), 403),
        ("POST", requests(""), request_for_masters(t.names)?, 403),
        ("PUT", requests("/masters/approval"), json!({}), 403),
        ("DELETE", requests(""), none(), 403),
    ])
}

/// What a token has, by resource and verb, of objects that are not there.
pub fn has(resource: &str, verb: &str) -> bool {
    match resource {
        "certificates/certificatesigningrequests" => {
            matches!(verb, "create" | "get" | "list" | "watch")
        }
        "nodes" => verb == "get",
        other => is_review_of_oneself(other),
    }
}
