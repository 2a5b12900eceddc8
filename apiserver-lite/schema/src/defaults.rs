//! Defaults: the values that Kubernetes sets in unset fields, by kind.
//!
//! Also keeps duplicate fields in sync (`serviceAccount`, `podIP`, `podCIDR`) and converts write-only input (`stringData`). Applying
//! the defaults twice changes nothing.

use proto_api::names::Names;

use crate::object::Object;
use crate::value::{Key, Map, Value};

mod cluster;
mod flow_control;
mod gated;
mod pod;
mod service;
mod storage;
#[cfg(test)]
mod tests;
mod webhooks;
mod workload;

pub(crate) use gated::apply_gated;

/// Sets the defaults of `object`.
pub(crate) fn apply(names: &'static Names, object: &mut Object) {
    let kind = object.kind.kind();
    let fields = &mut object.fields;
    match (object.kind.short_group, kind) {
        ("", "Pod") => pod::default_pod(fields),
        ("", "PodTemplate") => pod::default_template(fields.map_or_insert("template")),
        ("", "ReplicationController") => workload::default_replication_controller(fields),
        ("", "Service") => service::default_service(fields.map_or_insert("spec")),
        ("", "Endpoints") => service::default_endpoints(fields),
        ("", "Secret") => cluster::default_secret(fields),
        ("", "Node") => cluster::default_node(fields),
        ("", "Namespace") => cluster::default_namespace(names, fields),
        ("", "LimitRange") => cluster::default_limit_range(fields),
        ("", "PersistentVolume") => storage::default_volume(fields),
        ("", "PersistentVolumeClaim") => storage::default_claim(fields),
        ("admissionregistration", _) => {
            let mutating = kind == "MutatingWebhookConfiguration";
            webhooks::default_configuration(fields, mutating);
        }
        ("apiregistration", "APIService") => {
            if let Some(service) = fields.map_mut("spec").and_then(|spec| spec.map_mut("service")) {
                set_default(service, "port", 443);
            }
        }
        ("apps", "Deployment") => workload::default_deployment(fields.map_or_insert("spec")),
        ("apps", "ReplicaSet") => workload::default_replica_set(fields.map_or_insert("spec")),
        ("apps", "DaemonSet") => workload::default_daemon_set(fields.map_or_insert("spec")),
        ("apps", "StatefulSet") => workload::default_stateful_set(fields.map_or_insert("spec")),
        ("autoscaling", "HorizontalPodAutoscaler") => {
            workload::default_autoscaler(fields.map_or_insert("spec"), object.kind.version());
        }
        ("batch", "Job") => workload::default_job(fields),
        ("batch", "CronJob") => workload::default_cron_job(fields.map_or_insert("spec")),
        ("discovery", "EndpointSlice") => service::default_slice(fields),
        ("flowcontrol.apiserver", "FlowSchema") => {
            flow_control::default_flow_schema(fields.map_or_insert("spec"));
        }
        ("flowcontrol.apiserver", "PriorityLevelConfiguration") => {
            flow_control::default_priority_level(fields.map_or_insert("spec"));
        }
        ("networking", "NetworkPolicy") => {
            service::default_network_policy(fields.map_or_insert("spec"));
        }
        ("networking", "IngressClass") => service::default_ingress_class(fields),
        ("rbac.authorization", "RoleBinding" | "ClusterRoleBinding") => {
            cluster::default_role_binding(names, fields);
        }
        ("scheduling", "PriorityClass") => {
            set_default(fields, "preemptionPolicy", "PreemptLowerPriority");
        }
        ("storage", "StorageClass") => {
            set_default(fields, "reclaimPolicy", "Delete");
            set_default(fields, "volumeBindingMode", "Immediate");
        }
        ("storage", "CSIDriver") => storage::default_csi_driver(fields.map_or_insert("spec")),
        ("authentication", "TokenRequest") => {
            set_default(fields.map_or_insert("spec"), "expirationSeconds", 3600);
        }
        _ => {}
    }
    // An empty message inserted while setting defaults is removed, because it equals an absent one.
    if fields.map("spec").is_some_and(Map::is_empty) {
        fields.remove("spec");
    }
}

/// Sets `key` if it is unset.
fn set_default(map: &mut Map, key: impl Into<Key>, value: impl Into<Value>) {
    let key = key.into();
    if !map.contains(&key) {
        map.insert(key, value);
    }
}
