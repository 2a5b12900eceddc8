//! Objects in words: what `describe` prints of each kind, with what belongs to it.

mod access;
mod common;
mod container;
mod data;
mod generic;
mod node;
mod pod;
mod service;
mod tab_columns;
mod volume;
mod workload;

use proto_api::names::Names;
use serde_json::Value;

use crate::objects;

/// An object was not read; the text says why, and is shown in its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unread(pub String);

/// What belongs to an object, as far as its kind shows it.
#[derive(Clone, Debug, Default)]
pub struct Related {
    /// What happened to it; not set if events are not shown.
    pub events: Option<Vec<Value>>,
    /// A node's pods, or those of a workload.
    pub pods: Vec<Value>,
    /// Replica sets of a deployment.
    pub replica_sets: Vec<Value>,
    /// Endpoints of a service.
    pub endpoints: Option<Value>,
    /// The lease of a node, or why it is not known.
    pub lease: Option<Result<Value, Unread>>,
    /// Quotas and limit ranges of a namespace.
    pub limits: Vec<Value>,
}

/// What is the same for all objects of a run.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The server's naming profile.
    pub names: &'a Names,
    /// Seconds since 1970.
    pub now: i64,
}

/// Lines with tabs, aligned at the end.
#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    /// A line, indented by this many levels.
    fn line(&mut self, level: usize, text: impl AsRef<str>) {
        self.text.extend(std::iter::repeat_n("  ", level));
        self.text.push_str(text.as_ref());
        self.text.push('\n');
    }

    /// `Name:` and a value.
    fn field(&mut self, level: usize, name: &str, value: impl AsRef<str>) {
        self.line(level, format!("{name}:\t{}", value.as_ref()));
    }
}

/// The description of an object.
pub fn describe(object: &Value, related: &Related, context: Context<'_>) -> String {
    let mut page = Page::default();
    let group =
        objects::text_at(object, "/apiVersion").split_once('/').map_or("", |(group, _)| group);
    match (group, objects::text_at(object, "/kind")) {
        ("", "Pod") => pod::describe(&mut page, object, context),
        ("", "Node") => node::describe(&mut page, object, related, context),
        ("", "Service") => service::describe(&mut page, object, related, context),
        ("", "ConfigMap") => data::describe_config_map(&mut page, object, context),
        ("", "Secret") => data::describe_secret(&mut page, object, context),
        ("", "Namespace") => data::describe_namespace(&mut page, object, related, context),
        ("apps", "Deployment") => {
            workload::describe_deployment(&mut page, object, related, context)
        }
        ("apps", "ReplicaSet") => {
            workload::describe_replica_set(&mut page, object, related, context)
        }
        ("apps", "StatefulSet") => {
            workload::describe_stateful_set(&mut page, object, related, context)
        }
        ("apps", "DaemonSet") => workload::describe_daemon_set(&mut page, object, related, context),
        ("batch", "Job") => workload::describe_job(&mut page, object, context),
        ("", "ServiceAccount") => access::describe_account(&mut page, object, context),
        (group, "Role" | "ClusterRole") if group.starts_with("rbac.") => {
            access::describe_role(&mut page, object, context);
        }
        (group, "RoleBinding" | "ClusterRoleBinding") if group.starts_with("rbac.") => {
            access::describe_binding(&mut page, object, context);
        }
        _ => generic::describe(&mut page, object, context),
    }
    if let Some(events) = &related.events {
        common::events(&mut page, events, context);
    }
    tab_columns::align(&page.text)
}

#[cfg(test)]
mod tests;
