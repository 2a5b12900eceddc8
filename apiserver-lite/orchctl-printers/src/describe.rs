//! Objects in words: what `describe` prints of each kind, with what belongs to it.

mod access;
mod autoscaler;
mod certificate;
mod class;
mod common;
mod container;
mod data;
mod generic;
mod limit;
mod network;
mod node;
mod pod;
mod service;
mod storage;
mod tab_columns;
mod volume;
mod workload;

use std::collections::BTreeMap;

use proto_api::names::Names;
use serde_json::Value;

use crate::objects;
use crate::terminal::visible;

/// An object was not read; the text says why, and is shown in its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unread(pub String);

/// What is behind a path of an Ingress.
#[derive(Clone, Debug, Default)]
pub struct ServiceWithEndpoints {
    /// The Service that the object names, as the API server shows it.
    pub service: Value,
    /// Where its pods are.
    pub endpoints: Value,
}

/// What belongs to an object, as far as its kind shows it.
#[derive(Clone, Debug, Default)]
pub struct Related {
    /// What happened to it; not set if events are not shown.
    pub events: Option<Vec<Value>>,
    /// A node's pods, those of a workload, or those that use a claim.
    pub pods: Vec<Value>,
    /// Replica sets of a deployment.
    pub replica_sets: Vec<Value>,
    /// Endpoints of a service.
    pub endpoints: Option<Value>,
    /// The lease of a node, or why it is not known.
    pub lease: Option<Result<Value, Unread>>,
    /// Quotas and limit ranges of a namespace.
    pub limits: Vec<Value>,
    /// Services that an ingress names, or why they are not known.
    pub backends: BTreeMap<String, Result<ServiceWithEndpoints, Unread>>,
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
    let kind = objects::text_at(object, "/kind");
    match (group, kind) {
        ("", "Pod") => pod::describe(&mut page, object, context),
        ("", "Node") => node::describe(&mut page, object, related, context),
        ("", "Service") => service::describe(&mut page, object, related, context),
        ("", "ConfigMap") => data::describe_config_map(&mut page, object, context),
        ("", "Secret") => data::describe_secret(&mut page, object, context),
        ("", "Namespace") => data::describe_namespace(&mut page, object, related, context),
        ("apps", "Deployment") => {
            workload::describe_deployment(&mut page, object, related, context)
        }
        ("apps", "ReplicaSet") | ("", "ReplicationController") => {
            workload::describe_replica_set(&mut page, object, related, context)
        }
        ("apps", "StatefulSet") => {
            workload::describe_stateful_set(&mut page, object, related, context)
        }
        ("apps", "DaemonSet") => workload::describe_daemon_set(&mut page, object, related, context),
        ("batch", "Job") => workload::describe_job(&mut page, object, context),
        ("batch", "CronJob") => workload::describe_cron_job(&mut page, object, context),
        ("autoscaling", "HorizontalPodAutoscaler") => {
            autoscaler::describe(&mut page, object, context);
        }
        ("policy", "PodDisruptionBudget") => limit::describe_budget(&mut page, object, context),
        ("", "ResourceQuota") => limit::describe_quota(&mut page, object),
        ("", "LimitRange") => limit::describe_range(&mut page, object),
        ("", "PersistentVolumeClaim") => {
            storage::describe_claim(&mut page, object, related, context);
        }
        ("", "PersistentVolume") => storage::describe_volume(&mut page, object, context),
        ("", "Endpoints") => network::describe_endpoints(&mut page, object, context),
        ("", "ServiceAccount") => access::describe_account(&mut page, object, context),
        // Groups with a domain have that of the naming profile.
        _ => describe_of_domain(&mut page, group, kind, object, (related, context)),
    }
    if let Some(events) = &related.events {
        common::events(&mut page, events, context);
    }
    tab_columns::align(&page.text)
}

/// The pods that a template makes, with tabs between names and values: kubectl does not align it in answers about revisions.
pub fn describe_template(template: &Value, names: &Names) -> String {
    let mut page = Page::default();
    workload::template(&mut page, template, "", names);
    visible(&page.text).into_owned()
}

fn describe_of_domain(
    page: &mut Page,
    group: &str,
    kind: &str,
    object: &Value,
    (related, context): (&Related, Context<'_>),
) {
    let is_of = |short: &str| context.names.group(short) == group;
    match kind {
        "Role" | "ClusterRole" if is_of("rbac") => access::describe_role(page, object, context),
        "RoleBinding" | "ClusterRoleBinding" if is_of("rbac") => {
            access::describe_binding(page, object, context);
        }
        "StorageClass" if is_of("storage") => storage::describe_class(page, object, context),
        "CSINode" if is_of("storage") => class::describe_csi_node(page, object, context),
        "PriorityClass" if is_of("scheduling") => class::describe_priority_class(page, object),
        "IngressClass" if is_of("networking") => {
            class::describe_ingress_class(page, object, context);
        }
        "Ingress" if is_of("networking") => {
            network::describe_ingress(page, object, related, context);
        }
        "NetworkPolicy" if is_of("networking") => network::describe_policy(page, object, context),
        "EndpointSlice" if is_of("discovery") => {
            network::describe_endpoint_slice(page, object, context);
        }
        "CertificateSigningRequest" if is_of("certificates") => {
            certificate::describe(page, object, context);
        }
        _ => generic::describe(page, object, context),
    }
}

#[cfg(test)]
mod tests;
