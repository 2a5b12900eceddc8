//! Fields of built-in kinds that objects have only with a feature gate. They are dropped from what is written while the gate is off, unless the stored
//! object has them, as in Kubernetes. Values that are refused without a gate are a matter of validation.

use crate::field_gates::{FieldGate, FieldGates};
use crate::object::{Kind, Object};
use crate::update::Subresource;
use crate::value::{Map, Path, Value};

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// Most places of a field that are named: a pod may have the field in each of its containers.
const PLACES_MAX: usize = 4;

/// A field that was dropped from an object that is written, because its gate is off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedField {
    gate: FieldGate,
    without: WithoutGate,
    /// Where the object had it, at most [`PLACES_MAX`] of the places.
    places: Vec<String>,
    /// How many places are not listed.
    more: usize,
}

impl DroppedField {
    /// Whether a write of this part of an object stores the field when its gate is on. Other parts are ignored with or without a gate.
    #[must_use]
    pub fn is_part_of(&self, subresource: Subresource) -> bool {
        let starts_with =
            |part: &str| self.places.first().is_some_and(|place| place.starts_with(part));
        match subresource {
            Subresource::Main => !starts_with("status."),
            Subresource::Status => starts_with("status."),
            Subresource::EphemeralContainers => starts_with("spec.ephemeralContainers["),
            Subresource::Finalize | Subresource::Approval => false,
        }
    }

    /// What a client is to know: where the field was, what became of it, and its gate. Its length is bounded.
    #[must_use]
    pub fn warning(&self) -> String {
        let mut text = self.places.join(", ");
        if self.more > 0 {
            text.push_str(&format!(" and {} more", self.more));
        }
        let became = match self.without {
            WithoutGate::Removed => "dropped".to_owned(),
            WithoutGate::SetTo(free) => format!("set to {free:?}"),
        };
        format!("{text}: {became}, because the feature gate {} is off", self.gate.name())
    }

    fn note(&mut self, place: &Path<'_>) {
        if self.places.len() < PLACES_MAX {
            self.places.push(place.to_string());
        } else {
            self.more = self.more.saturating_add(1);
        }
    }
}

/// Drops the fields whose gate is off from an object that is written, and says which. `before` is the stored object of an update.
pub(crate) fn drop_disabled(
    gates: FieldGates,
    object: &mut Object,
    before: Option<&Object>,
) -> Vec<DroppedField> {
    let mut dropped = Vec::new();
    let Object { kind, fields } = object;
    if kind.custom().is_some() {
        return dropped;
    }
    let before = before.map(|before| &before.fields);
    let is_off = |field: &&GatedField| !gates.has(field.gate);
    for field in of_kind(OF_KINDS, kind).into_iter().flatten().filter(is_off) {
        drop_unless_used(field, &[], (&mut *fields, before), &mut dropped);
    }
    if let Some(spec) = of_kind(POD_SPECS, kind) {
        for field in OF_PODS.iter().filter(is_off) {
            drop_unless_used(field, spec, (&mut *fields, before), &mut dropped);
        }
    }
    dropped
}

fn of_kind<T: Copy>(table: &[(&str, &str, T)], kind: &Kind) -> Option<T> {
    table.iter().find(|(group, name, _)| kind.is(group, name)).map(|(.., row)| *row)
}

/// Drops a field, whose paths lie below `base`, unless the object `before` uses it.
fn drop_unless_used(
    field: &GatedField,
    base: FieldPath,
    (map, before): (&mut Map, Option<&Map>),
    dropped: &mut Vec<DroppedField>,
) {
    let is_used = |map: &Map| {
        let below = base.iter().try_fold(map, |map, name| map.map(name));
        below.is_some_and(|below| field.is_used(below))
    };
    if !is_used(map) || before.is_some_and(is_used) {
        return;
    }
    for path in field.paths {
        let without = field.without;
        let mut one = DroppedField { gate: field.gate, without, places: Vec::new(), more: 0 };
        drop_at(map, &[base, path].concat(), &Path::ROOT, &mut one);
        if !one.places.is_empty() {
            dropped.push(one);
        }
    }
}

impl GatedField {
    /// Whether the field has a value that needs the gate, below the base of its paths.
    fn is_used(&self, map: &Map) -> bool {
        self.paths.iter().any(|path| has_at(map, path, &|value| self.without.needs_gate(value)))
    }
}

impl WithoutGate {
    /// Whether an object has this value of the field with the gate only.
    fn needs_gate(self, value: &Value) -> bool {
        match self {
            Self::Removed => true,
            Self::SetTo(free) => value.as_str() != Some(free),
        }
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

/// Drops the field at a path of `map`, which is at `at`, and notes where it was.
fn drop_at(map: &mut Map, path: &[&str], at: &Path<'_>, dropped: &mut DroppedField) {
    match path {
        [] => {}
        [field] => {
            let without = dropped.without;
            let found = map.get_mut(field).filter(|value| without.needs_gate(value));
            let Some(value) = found else { return };
            match without {
                WithoutGate::Removed => drop(map.remove(field)),
                WithoutGate::SetTo(free) => *value = free.into(),
            }
            dropped.note(&at.field(field));
        }
        [list, EACH, rest @ ..] => {
            let list_at = at.field(list);
            for (index, entry) in map.list_mut(list).into_iter().flatten().enumerate() {
                if let Some(entry) = entry.as_map_mut() {
                    drop_at(entry, rest, &list_at.index(index), dropped);
                }
            }
        }
        [field, rest @ ..] => {
            if let Some(below) = map.map_mut(field) {
                drop_at(below, rest, &at.field(field), dropped);
            }
        }
    }
}
