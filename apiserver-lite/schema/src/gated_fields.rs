//! Fields of built-in kinds that objects have only with a feature gate. They are dropped from what is written while the gate is off, unless the stored
//! object has them, as in Kubernetes. Values that are refused without a gate are a matter of validation.

use crate::field_gates::{FieldGate, FieldGates};
use crate::object::{Kind, Object};
use crate::value::{Map, Value};

#[cfg(test)]
mod tests;

/// The names of nested fields; [`EACH`] stands for each entry of the list before it.
type FieldPath = &'static [&'static str];

const EACH: &str = "[]";

/// A field that needs a gate.
struct GatedField {
    gate: FieldGate,
    /// Where it is: in use in one place, it is kept in all.
    paths: &'static [FieldPath],
    /// What becomes of it while the gate is off.
    without: WithoutGate,
}

#[derive(Clone, Copy)]
enum WithoutGate {
    /// It goes.
    Removed,
    /// Where it is set it has this value, which needs no gate.
    SetTo(&'static str),
}

const fn removed(gate: FieldGate, paths: &'static [FieldPath]) -> GatedField {
    GatedField { gate, paths, without: WithoutGate::Removed }
}

const SPREAD: &str = "topologySpreadConstraints";

/// The fields of pods, below the pod's spec.
const OF_PODS: &[GatedField] = &[
    removed(FieldGate::MinDomainsInPodTopologySpread, &[&[SPREAD, EACH, "minDomains"]]),
    removed(FieldGate::MatchLabelKeysInPodTopologySpread, &[&[SPREAD, EACH, "matchLabelKeys"]]),
    removed(
        FieldGate::NodeInclusionPolicyInPodTopologySpread,
        &[&[SPREAD, EACH, "nodeAffinityPolicy"]],
    ),
    removed(
        FieldGate::NodeInclusionPolicyInPodTopologySpread,
        &[&[SPREAD, EACH, "nodeTaintsPolicy"]],
    ),
    removed(FieldGate::UserNamespacesStatelessPodsSupport, &[&["hostUsers"]]),
    GatedField {
        gate: FieldGate::ProcMountType,
        paths: &[
            &["containers", EACH, "securityContext", "procMount"],
            &["initContainers", EACH, "securityContext", "procMount"],
            &["ephemeralContainers", EACH, "securityContext", "procMount"],
        ],
        without: WithoutGate::SetTo("Default"),
    },
];

/// Where kinds have the spec of a pod, by group and kind.
const POD_SPECS: &[(&str, &str, FieldPath)] = &[
    ("", "Pod", &["spec"]),
    ("", "PodTemplate", &["template", "spec"]),
    ("", "ReplicationController", &["spec", "template", "spec"]),
    ("apps", "DaemonSet", &["spec", "template", "spec"]),
    ("apps", "Deployment", &["spec", "template", "spec"]),
    ("apps", "ReplicaSet", &["spec", "template", "spec"]),
    ("apps", "StatefulSet", &["spec", "template", "spec"]),
    ("batch", "CronJob", &["spec", "jobTemplate", "spec", "template", "spec"]),
    ("batch", "Job", &["spec", "template", "spec"]),
];

/// The other fields, by group and kind.
const OF_KINDS: &[(&str, &str, &[GatedField])] = &[
    (
        "",
        "PersistentVolume",
        &[removed(FieldGate::CsiNodeExpandSecret, &[&["spec", "csi", "nodeExpandSecretRef"]])],
    ),
    (
        "",
        "PersistentVolumeClaim",
        &[
            removed(FieldGate::RecoverVolumeExpansionFailure, &[&["status", "allocatedResources"]]),
            removed(FieldGate::RecoverVolumeExpansionFailure, &[&["status", "resizeStatus"]]),
        ],
    ),
    (
        "apps",
        "StatefulSet",
        &[
            removed(
                FieldGate::StatefulSetAutoDeletePvc,
                &[&["spec", "persistentVolumeClaimRetentionPolicy"]],
            ),
            removed(
                FieldGate::MaxUnavailableStatefulSet,
                &[&["spec", "updateStrategy", "rollingUpdate", "maxUnavailable"]],
            ),
        ],
    ),
    (
        "autoscaling",
        "HorizontalPodAutoscaler",
        &[removed(
            FieldGate::HpaContainerMetrics,
            &[&["spec", "metrics", EACH, "containerResource"]],
        )],
    ),
    (
        "batch",
        "CronJob",
        &[removed(
            FieldGate::JobPodFailurePolicy,
            &[&["spec", "jobTemplate", "spec", "podFailurePolicy"]],
        )],
    ),
    ("batch", "Job", &[removed(FieldGate::JobPodFailurePolicy, &[&["spec", "podFailurePolicy"]])]),
    (
        "storage",
        "CSIDriver",
        &[removed(FieldGate::SeLinuxMountReadWriteOncePod, &[&["spec", "seLinuxMount"]])],
    ),
];

/// Drops the fields whose gate is off from an object that is written. `before` is the stored object of an update.
pub(crate) fn drop_disabled(gates: FieldGates, object: &mut Object, before: Option<&Object>) {
    let Object { kind, fields } = object;
    if kind.custom().is_some() {
        return;
    }
    let before = before.map(|before| &before.fields);
    if let Some(own) = of_kind(OF_KINDS, kind) {
        drop_all(own, gates, fields, before);
    }
    if let Some(path) = of_kind(POD_SPECS, kind) {
        let before = before.and_then(|before| before.at(path)?.as_map());
        let spec = path.iter().try_fold(fields, |map, field| map.map_mut(field));
        if let Some(spec) = spec {
            drop_all(OF_PODS, gates, spec, before);
        }
    }
}

fn of_kind<T: Copy>(table: &[(&str, &str, T)], kind: &Kind) -> Option<T> {
    table.iter().find(|(group, name, _)| kind.is(group, name)).map(|(.., row)| *row)
}

fn drop_all(fields: &[GatedField], gates: FieldGates, map: &mut Map, before: Option<&Map>) {
    for field in fields.iter().filter(|field| !gates.has(field.gate)) {
        if field.is_used(map) && !before.is_some_and(|before| field.is_used(before)) {
            field.paths.iter().for_each(|path| drop_at(map, path, field.without));
        }
    }
}

impl GatedField {
    /// Whether the field has a value that needs the gate.
    fn is_used(&self, map: &Map) -> bool {
        let needs_gate = |value: &Value| match self.without {
            WithoutGate::Removed => true,
            WithoutGate::SetTo(free) => value.as_str() != Some(free),
        };
        self.paths.iter().any(|path| has_at(map, path, &needs_gate))
    }
}

fn has_at(map: &Map, path: &[&str], wanted: &impl Fn(&Value) -> bool) -> bool {
    match path {
        [] => false,
        [field] => map.get(field).is_some_and(wanted),
        [list, EACH, rest @ ..] => map.maps(list).any(|entry| has_at(entry, rest, wanted)),
        [field, rest @ ..] => map.map(field).is_some_and(|below| has_at(below, rest, wanted)),
    }
}

fn drop_at(map: &mut Map, path: &[&str], without: WithoutGate) {
    match (path, without) {
        ([], _) => {}
        ([field], WithoutGate::Removed) => drop(map.remove(field)),
        ([field], WithoutGate::SetTo(free)) => {
            if let Some(value) = map.get_mut(field) {
                *value = free.into();
            }
        }
        ([list, EACH, rest @ ..], _) => {
            map.maps_mut(list).for_each(|entry| drop_at(entry, rest, without));
        }
        ([field, rest @ ..], _) => {
            if let Some(below) = map.map_mut(field) {
                drop_at(below, rest, without);
            }
        }
    }
}
