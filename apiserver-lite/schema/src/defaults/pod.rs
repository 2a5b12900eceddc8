//! Defaults of pods, and of the pod templates in workloads.

use super::{set_default, storage};
use crate::value::{Map, Value};

/// Default mode of files in ConfigMap, Secret, downward API and projected volumes: 0644.
const FILE_MODE: i64 = 0o644;

const CONTAINER_LISTS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];

pub(super) fn default_pod(fields: &mut Map) {
    let spec = fields.map_or_insert("spec");
    default_spec(spec);
    set_default(spec, "enableServiceLinks", true);
    for list in ["containers", "initContainers"] {
        spec.maps_mut(list).for_each(requests_from_limits);
    }
    if let Some(status) = fields.map_mut("status") {
        mirror_pod_ip(status);
    }
}

/// A template gets the defaults of its spec only.
pub(super) fn default_template(template: &mut Map) {
    default_spec(template.map_or_insert("spec"));
}

fn default_spec(spec: &mut Map) {
    set_default(spec, "dnsPolicy", "ClusterFirst");
    set_default(spec, "restartPolicy", "Always");
    set_default(spec, "schedulerName", "default-scheduler");
    set_default(spec, "terminationGracePeriodSeconds", 30);
    set_default(spec, "securityContext", Map::new());
    mirror_service_account(spec);
    spec.maps_mut("volumes").for_each(default_volume);
    let host_network = spec.is_true("hostNetwork");
    for list in CONTAINER_LISTS {
        for container in spec.maps_mut(list) {
            default_container(container);
            if host_network && list != "ephemeralContainers" {
                container.maps_mut("ports").for_each(host_port_from_container_port);
            }
        }
    }
}

/// Keeps the deprecated `serviceAccount` equal to `serviceAccountName`.
fn mirror_service_account(spec: &mut Map) {
    let (new, old) = (spec.str("serviceAccountName"), spec.str("serviceAccount"));
    let name = if new.is_empty() { old } else { new }.to_owned();
    if !name.is_empty() {
        spec.insert("serviceAccountName", name.as_str());
        spec.insert("serviceAccount", name);
    }
}

/// Keeps `podIP` equal to the first of `podIPs`; if they differ, `podIP` wins, because old kubelets write only that.
fn mirror_pod_ip(status: &mut Map) {
    let single = status.str("podIP").to_owned();
    let first = status.maps("podIPs").next().map(|ip| ip.str("ip").to_owned());
    match first {
        Some(first) if single.is_empty() => drop(status.insert("podIP", first)),
        Some(first) if first == single => {}
        None if single.is_empty() => {}
        _ => drop(status.insert("podIPs", vec![Value::Map(Map::from_iter([("ip", single)]))])),
    }
}

fn host_port_from_container_port(port: &mut Map) {
    if let Some(number) = port.int("containerPort") {
        set_default(port, "hostPort", number);
    }
}

/// Requests default to limits.
fn requests_from_limits(container: &mut Map) {
    let Some(resources) = container.map_mut("resources") else { return };
    let Some(limits) = resources.map("limits").filter(|limits| !limits.is_empty()).cloned() else {
        return;
    };
    let requests = resources.map_or_insert("requests");
    for (name, amount) in limits {
        set_default(requests, name, amount);
    }
}

fn default_container(container: &mut Map) {
    set_default(container, "terminationMessagePath", "/dev/termination-log");
    set_default(container, "terminationMessagePolicy", "File");
    let policy = pull_policy(container.str("image"));
    set_default(container, "imagePullPolicy", policy);
    for port in container.maps_mut("ports") {
        set_default(port, "protocol", "TCP");
    }
    for var in container.maps_mut("env") {
        if let Some(source) = var.map_mut("valueFrom") {
            default_field_ref(source);
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.map_mut(probe) {
            default_probe(probe);
        }
    }
    if let Some(lifecycle) = container.map_mut("lifecycle") {
        for hook in ["postStart", "preStop"] {
            if let Some(http) = lifecycle.map_mut(hook).and_then(|hook| hook.map_mut("httpGet")) {
                default_http_get(http);
            }
        }
    }
}

/// The default pull policy: `Always` without tag and digest or with the tag `latest`, else `IfNotPresent`.
fn pull_policy(image: &str) -> &'static str {
    let (name, digest) = match image.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (image, None),
    };
    let last = name.rsplit('/').next().unwrap_or_default();
    match (last.split_once(':'), digest) {
        (Some((_, "latest")), _) | (None, None) => "Always",
        _ => "IfNotPresent",
    }
}

fn default_probe(probe: &mut Map) {
    for (field, value) in [
        ("timeoutSeconds", 1),
        ("periodSeconds", 10),
        ("successThreshold", 1),
        ("failureThreshold", 3),
    ] {
        set_default(probe, field, value);
    }
    if let Some(http) = probe.map_mut("httpGet") {
        default_http_get(http);
    }
    if let Some(grpc) = probe.map_mut("grpc") {
        set_default(grpc, "service", "");
    }
}

fn default_http_get(http: &mut Map) {
    set_default(http, "path", "/");
    set_default(http, "scheme", "HTTP");
}

fn default_field_ref(source: &mut Map) {
    if let Some(field) = source.map_mut("fieldRef") {
        set_default(field, "apiVersion", "v1");
    }
}

fn default_volume(volume: &mut Map) {
    if volume.iter().all(|(key, _)| key == "name") {
        volume.insert("emptyDir", Map::new());
    }
    for source in ["configMap", "secret", "downwardAPI", "projected"] {
        if let Some(source) = volume.map_mut(source) {
            set_default(source, "defaultMode", FILE_MODE);
        }
    }
    if let Some(source) = volume.map_mut("downwardAPI") {
        source.maps_mut("items").for_each(default_field_ref);
    }
    if let Some(source) = volume.map_mut("projected") {
        for projection in source.maps_mut("sources") {
            if let Some(token) = projection.map_mut("serviceAccountToken") {
                set_default(token, "expirationSeconds", 3600);
            }
            if let Some(downward) = projection.map_mut("downwardAPI") {
                downward.maps_mut("items").for_each(default_field_ref);
            }
        }
    }
    if let Some(ephemeral) = volume.map_mut("ephemeral")
        && let Some(template) = ephemeral.map_mut("volumeClaimTemplate")
    {
        set_default(template.map_or_insert("spec"), "volumeMode", "Filesystem");
    }
    storage::default_source(volume);
}
