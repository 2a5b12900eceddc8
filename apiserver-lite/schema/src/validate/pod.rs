//! Validation of pods and pod templates.

use std::collections::BTreeSet;

use super::numbers::{self, SECONDS_MAX};
use super::volume::{VolumeNames, check_ephemeral_names, check_volumes};
use super::{FieldErrors, affinity, metadata, names, probes, references, resources, security};
use crate::enums;
use crate::field_gates::FieldGates;
use crate::object::Object;
use crate::value::{Map, Path, Value};

/// What init containers do not have: they end.
const PROBED: [&str; 4] = ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"];
/// What no container has that is added to a running pod: nothing may rely on it, and nothing was reserved for it.
const NOT_EPHEMERAL: [&str; 6] =
    ["lifecycle", "livenessProbe", "ports", "readinessProbe", "resources", "startupProbe"];

pub(super) fn check_pod(object: &Object, gates: FieldGates, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let here = path.field("spec");
    check_spec(object.spec(), &[], gates, &here, errors);
    if let Some(spec) = object.spec() {
        check_ephemeral_names(object.name(), spec, &here, errors);
    }
}

/// Validates a pod template: labels and spec. Its pods also have a volume for each of `claims`.
pub(super) fn check_template(
    template: Option<&Map>,
    claims: &[&str],
    gates: FieldGates,
    path: &Path<'_>,
    errors: &mut FieldErrors,
) {
    let metadata = template.and_then(|template| template.map("metadata"));
    if let Some(labels) = metadata.and_then(|metadata| metadata.map("labels")) {
        let here = path.field("metadata");
        metadata::check_labels(labels, &here.field("labels"), errors);
    }
    let spec = template.and_then(|template| template.map("spec"));
    check_spec(spec, claims, gates, &path.field("spec"), errors);
    refuse_ephemeral(
        spec,
        &path.field("spec"),
        "ephemeral containers not allowed in pod template",
        errors,
    );
}

/// Checks what only a new pod may not have: containers that are added to running pods.
pub(super) fn check_new_pod(object: &Object, errors: &mut FieldErrors) {
    refuse_ephemeral(object.spec(), &Path::ROOT.field("spec"), "cannot be set on create", errors);
}

fn refuse_ephemeral(spec: Option<&Map>, path: &Path<'_>, detail: &str, errors: &mut FieldErrors) {
    const FIELD: &str = "ephemeralContainers";
    if spec.is_some_and(|spec| !spec.list(FIELD).is_empty()) {
        errors.forbidden(&path.field(FIELD), detail);
    }
}

fn check_spec(
    spec: Option<&Map>,
    claims: &[&str],
    gates: FieldGates,
    path: &Path<'_>,
    errors: &mut FieldErrors,
) {
    let empty = Map::new();
    let spec = spec.unwrap_or(&empty);
    let mut volumes = check_volumes(spec, gates, path, errors);
    volumes.add_claims(claims);
    let mut seen = BTreeSet::new();
    check_containers(spec, "initContainers", &volumes, &mut seen, path, errors);
    if spec.list("containers").is_empty() {
        errors.required(&path.field("containers"), "");
    }
    check_containers(spec, "containers", &volumes, &mut seen, path, errors);
    check_containers(spec, "ephemeralContainers", &volumes, &mut seen, path, errors);
    check_targets(spec, path, errors);
    check_host_ports(spec, path, errors);
    errors.one_of(&path.field("restartPolicy"), spec.str("restartPolicy"), enums::RESTART_POLICIES);
    errors.one_of(&path.field("dnsPolicy"), spec.str("dnsPolicy"), enums::DNS_POLICIES);
    numbers::between(spec, "activeDeadlineSeconds", (1, SECONDS_MAX), path, errors);
    // Kubernetes has no bound and treats a negative period as one second; larger values overflow timestamps.
    let field = "terminationGracePeriodSeconds";
    if let Some(seconds) = spec.int(field).filter(|&seconds| seconds > SECONDS_MAX) {
        let detail = format!("must be less than or equal to {SECONDS_MAX}");
        errors.invalid(&path.field(field), seconds, &detail);
    }
    for (field, rule) in [
        ("serviceAccountName", names::dns_subdomain as fn(&str) -> Vec<String>),
        ("nodeName", names::dns_subdomain),
        ("hostname", names::dns_label),
        ("subdomain", names::dns_label),
        ("priorityClassName", names::dns_subdomain),
        ("runtimeClassName", names::dns_subdomain),
    ] {
        let value = spec.str(field);
        if !value.is_empty() || (field == "runtimeClassName" && spec.contains(field)) {
            errors.complaints(&path.field(field), value, rule(value));
        }
    }
    if spec.contains("preemptionPolicy") {
        let (policy, here) = (spec.str("preemptionPolicy"), path.field("preemptionPolicy"));
        errors.one_of(&here, policy, enums::PREEMPTION_POLICIES);
    }
    if let Some(selector) = spec.map("nodeSelector") {
        metadata::check_labels(selector, &path.field("nodeSelector"), errors);
    }
    check_dns(spec, path, errors);
    check_tolerations(spec, path, errors);
    security::check_pod(spec, path, errors);
    security::check_operating_system(spec, path, errors);
    affinity::check(spec, path, errors);
    affinity::check_spread(spec, path, errors);
    check_lists(spec, path, errors);
}

/// Validates readiness gates, host aliases and overhead.
fn check_lists(spec: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let list = path.field("readinessGates");
    for (at, gate) in spec.maps("readinessGates").enumerate() {
        let (kind, here) = (gate.str("conditionType"), list.index(at));
        errors.complaints(&here.field("conditionType"), kind, names::qualified_name(kind));
    }
    let list = path.field("hostAliases");
    for (at, alias) in spec.maps("hostAliases").enumerate() {
        let here = list.index(at);
        errors.complaints(&here.field("ip"), alias.str("ip"), names::ip_address(alias.str("ip")));
        let names_path = here.field("hostnames");
        for (at, name) in alias.list("hostnames").iter().filter_map(Value::as_str).enumerate() {
            errors.complaints(&names_path.index(at), name, names::dns_subdomain(name));
        }
    }
    if let Some(overhead) = spec.map("overhead") {
        let limits: Map = [("limits", Value::Map(overhead.clone()))].into_iter().collect();
        resources::check_requirements(&limits, &path.field("overhead"), errors);
    }
}

fn check_containers<'a>(
    spec: &'a Map,
    field: &str,
    volumes: &VolumeNames<'_>,
    seen: &mut BTreeSet<&'a str>,
    path: &Path<'_>,
    errors: &mut FieldErrors,
) {
    let list = path.field(field);
    for (at, container) in spec.maps(field).enumerate() {
        let here = list.index(at);
        let name = container.str("name");
        if name.is_empty() {
            errors.required(&here.field("name"), "");
        } else {
            errors.complaints(&here.field("name"), name, names::dns_label(name));
        }
        if !name.is_empty() && !seen.insert(name) {
            errors.duplicate(&here.field("name"), name);
        }
        check_container(container, field, volumes, &here, errors);
    }
}

/// Checks that the containers exist whose processes those see that are added to a running pod.
fn check_targets(spec: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    if spec.list("ephemeralContainers").is_empty() {
        return;
    }
    let others = ["initContainers", "containers"].iter().flat_map(|list| spec.maps(list));
    let others: BTreeSet<&str> = others.map(|container| container.str("name")).collect();
    let list = path.field("ephemeralContainers");
    for (at, container) in spec.maps("ephemeralContainers").enumerate() {
        let target = container.str("targetContainerName");
        if !target.is_empty() && !others.contains(target) {
            errors.not_found(&list.index(at).field("targetContainerName"), target);
        }
    }
}

fn check_container(
    container: &Map,
    field: &str,
    volumes: &VolumeNames<'_>,
    path: &Path<'_>,
    errors: &mut FieldErrors,
) {
    let image = container.str("image");
    if image.trim().is_empty() {
        errors.required(&path.field("image"), "");
    } else if image.trim() != image {
        errors.invalid(&path.field("image"), image, "must not have leading or trailing whitespace");
    }
    errors.one_of(
        &path.field("imagePullPolicy"),
        container.str("imagePullPolicy"),
        enums::PULL_POLICIES,
    );
    let policy = container.str("terminationMessagePolicy");
    let here = path.field("terminationMessagePolicy");
    match policy {
        "" => errors.required(&here, "must be 'File' or 'FallbackToLogsOnError'"),
        known if enums::TERMINATION_MESSAGE_POLICIES.contains(&known) => {}
        other => errors.invalid(&here, other, "must be 'File' or 'FallbackToLogsOnError'"),
    }
    check_ports(container, path, errors);
    references::check_env(container, path, errors);
    volumes.check_mounts(container, field, path, errors);
    if let Some(map) = container.map("resources") {
        resources::check_requirements(map, &path.field("resources"), errors);
    }
    security::check_container(container, path, errors);
    let policy = container.str("restartPolicy");
    // An init container with restart policy Always is a sidecar and may have probes.
    let sidecar = field == "initContainers" && policy == "Always";
    if !policy.is_empty() && field != "initContainers" {
        errors.forbidden(&path.field("restartPolicy"), "may not be set for non-init containers");
    } else if !policy.is_empty() && !sidecar {
        errors.one_of(&path.field("restartPolicy"), policy, &["Always"]);
    }
    let (forbidden, detail): (&[&str], _) = match field {
        "initContainers" if !sidecar => (&PROBED, "cannot be set for an init container"),
        "ephemeralContainers" => (&NOT_EPHEMERAL, "cannot be set for an Ephemeral Container"),
        _ => (&[], ""),
    };
    for name in forbidden {
        // A hook or probe without anything is set all the same; requirements without anything are none.
        let is_set = match container.get(name) {
            Some(Value::Map(map)) => *name != "resources" || !map.is_empty(),
            found => found.is_some_and(|value| !value.is_empty()),
        };
        if is_set {
            errors.forbidden(&path.field(name), detail);
        }
    }
    probes::check(container, path, errors);
}

fn check_ports(container: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let list = path.field("ports");
    let mut seen = BTreeSet::new();
    for (at, port) in container.maps("ports").enumerate() {
        let here = list.index(at);
        let name = port.str("name");
        if !name.is_empty() {
            errors.complaints(&here.field("name"), name, names::port_name(name));
            if !seen.insert(name) {
                errors.duplicate(&here.field("name"), name);
            }
        }
        match port.int("containerPort").unwrap_or(0) {
            0 => errors.required(&here.field("containerPort"), ""),
            number => check_port_number(number, &here.field("containerPort"), errors),
        }
        if let Some(number) = port.int("hostPort").filter(|&number| number != 0) {
            check_port_number(number, &here.field("hostPort"), errors);
        }
        errors.one_of(&here.field("protocol"), port.str("protocol"), enums::PROTOCOLS);
    }
}

pub(super) fn check_port_number(number: i64, path: &Path<'_>, errors: &mut FieldErrors) {
    names::port_number(number).iter().for_each(|detail| errors.invalid(path, number, detail));
}

/// Checks that host ports are unique; with host networking every port is a host port.
fn check_host_ports(spec: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let host_network = spec.is_true("hostNetwork");
    let mut taken = BTreeSet::new();
    let list = path.field("containers");
    for (at, container) in spec.maps("containers").enumerate() {
        let container_path = list.index(at);
        let ports = container_path.field("ports");
        for (at, port) in container.maps("ports").enumerate() {
            let here = ports.index(at);
            let number = port.int("hostPort").unwrap_or(0);
            if host_network && Some(number) != port.int("containerPort") {
                let detail = "must match `hostPort` when `hostNetwork` is true";
                errors.invalid(
                    &here.field("containerPort"),
                    port.int("containerPort").unwrap_or(0),
                    detail,
                );
            }
            let key = (port.str("protocol"), port.str("hostIP"), number);
            if number != 0 && !taken.insert(key) {
                let value = format!("{}/{}/{number}", key.0, key.1);
                errors.duplicate(&here.field("hostPort"), value);
            }
        }
    }
}

fn check_dns(spec: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let config = path.field("dnsConfig");
    let servers = spec.map("dnsConfig").map_or(&[][..], |config| config.list("nameservers"));
    if spec.str("dnsPolicy") == "None" && servers.is_empty() {
        let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
        errors.required(&config.field("nameservers"), detail);
    }
    for (at, server) in servers.iter().filter_map(Value::as_str).enumerate() {
        let list = config.field("nameservers");
        errors.complaints(&list.index(at), server, names::ip_address(server));
    }
    let Some(dns) = spec.map("dnsConfig") else { return };
    let list = config.field("searches");
    for (at, search) in dns.list("searches").iter().filter_map(Value::as_str).enumerate() {
        let domain = search.strip_suffix('.').unwrap_or(search);
        errors.complaints(&list.index(at), search, names::dns_subdomain(domain));
    }
    let list = config.field("options");
    for (at, option) in dns.maps("options").enumerate() {
        if option.str("name").is_empty() {
            errors.required(&list.index(at), "must not be empty");
        }
    }
}

pub(super) fn check_tolerations(spec: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let list = path.field("tolerations");
    for (at, toleration) in spec.maps("tolerations").enumerate() {
        let here = list.index(at);
        let (key, operator) = (toleration.str("key"), toleration.str("operator"));
        if !key.is_empty() {
            errors.complaints(&here.field("key"), key, names::qualified_name(key));
        } else if operator != "Exists" {
            let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.invalid(&here.field("operator"), operator, detail);
        }
        if toleration.contains("tolerationSeconds") && toleration.str("effect") != "NoExecute" {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.invalid(&here.field("effect"), toleration.str("effect"), detail);
        }
        match operator {
            "" | "Equal" => {
                let value = toleration.str("value");
                errors.complaints(&here.field("value"), value, names::label_value(value));
            }
            "Exists" if !toleration.str("value").is_empty() => {
                let detail = "value must be empty when `operator` is 'Exists'";
                errors.invalid(&here.field("operator"), toleration.str("value"), detail);
            }
            "Exists" => {}
            other => {
                errors.not_supported(&here.field("operator"), other, enums::TOLERATION_OPERATORS)
            }
        }
        let effect = toleration.str("effect");
        if !effect.is_empty() {
            errors.one_of(&here.field("effect"), effect, enums::TAINT_EFFECTS);
        }
    }
}
