//! Descriptions of types and fields, one sentence each: from `descriptions.tsv`, or derived from the name.

use std::collections::HashMap;

use crate::actors;
use crate::object::Kind;
use crate::shape::{Field, Shape, Shapes, Type};

/// Columns: message, field (empty for the message itself), sentence. `group/Message` takes precedence over `Message`; fields of `*`
/// apply to all messages.
const TABLE: &str = include_str!("descriptions.tsv");
/// Messages that share the field descriptions of another message.
const ALIKE: &[(&str, &str)] = &[
    ("EphemeralContainer", "Container"),
    ("LifecycleHandler", "Probe"),
    ("PersistentVolumeClaimTemplate", "PersistentVolumeClaim"),
];

/// The parsed table.
pub(super) struct Descriptions(HashMap<(&'static str, &'static str), &'static str>);

impl Descriptions {
    pub(super) fn new() -> Self {
        let row = |line: &'static str| {
            let mut columns = line.split('\t');
            Some(((columns.next()?, columns.next()?), columns.next()?))
        };
        Self(TABLE.lines().skip(1).filter_map(row).collect())
    }

    /// Description of a message; for a kind that no component acts on with a remark.
    pub(super) fn message(&self, shape: &Shape, kind: Option<&Kind>) -> Option<String> {
        let text = self
            .lookup(shape, "")
            .map(str::to_owned)
            .or_else(|| self.derived_from_name(shape.name));
        match (text, kind.and_then(actors::stored_only_warning)) {
            (Some(text), Some(warning)) => Some(format!("{text} {warning}.")),
            (text, warning) => text.or(warning),
        }
    }

    /// Description of a field; a field without one gets that of its message.
    pub(super) fn field(&self, shapes: &Shapes, shape: &Shape, field: &Field) -> Option<String> {
        let alike = ALIKE.iter().find(|(name, _)| *name == shape.name);
        let own = self.lookup(shape, &field.name);
        let own = own.or_else(|| self.get(alike?.1, &field.name));
        match (own, &field.ty) {
            (Some(text), _) => Some(text.to_owned()),
            (None, Type::Message(id)) => self.message(shapes.get(*id), None),
            (None, Type::String) if field.name == "status" && shape.name.ends_with("Condition") => {
                Some("Whether it holds: True, False or Unknown.".to_owned())
            }
            (None, _) => self.get("*", &field.name).map(str::to_owned),
        }
    }

    fn lookup(&self, shape: &Shape, field: &str) -> Option<&'static str> {
        let group = format!("{}/{}", shape.group, shape.name);
        self.get(&group, field).or_else(|| self.get(shape.name, field))
    }

    fn get(&self, message: &str, field: &str) -> Option<&'static str> {
        self.0.get(&(message, field)).copied()
    }

    /// A sentence derived from the message's name: `DeploymentList`, `DeploymentStatus`.
    fn derived_from_name(&self, name: &str) -> Option<String> {
        let of = |ending: &str, text: &str| {
            let owner = name.strip_suffix(ending).filter(|owner| !owner.is_empty())?;
            self.get(owner, "").map(|_| text.replace("{}", owner))
        };
        of("List", "A list of {} objects.")
            .or_else(|| of("Spec", "Desired state of the {}."))
            .or_else(|| {
                of("Status", "Observed state of the {}, as reported by its controller or kubelet.")
            })
            .or_else(|| of("Condition", "A condition of the {}, with a type and a status."))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proto_api::names::{Names, Profile};

    use super::*;
    use crate::Engine;

    #[test]
    fn rows_are_sorted_sentences_about_what_there_is() {
        let rows: Vec<Vec<&str>> =
            TABLE.lines().skip(1).map(|line| line.split('\t').collect()).collect();
        let mut before = ["", ""];
        let messages = proto_api::schema::messages();
        for row in &rows {
            let [message, field, text] = row[..] else { panic!("{row:?}") };
            assert!(before < [message, field], "{row:?} is not in order");
            before = [message, field];
            assert!(text.ends_with('.') && text.starts_with(char::is_uppercase), "{row:?}");
            assert!(text.trim() == text && !text.contains(". "), "one sentence: {row:?}");
            let (group, name) = message.split_once('/').unwrap_or(("", message));
            let mut meant = messages.iter().filter(|m| {
                (group.is_empty() || m.group == group) && (name == "*" || m.name == name)
            });
            let there = |m: &proto_api::schema::MessageDescriptor| {
                field.is_empty()
                    || m.field(field).is_some()
                    || (m.is_kind && ["kind", "apiVersion"].contains(&field))
            };
            assert!(meant.any(there), "{row:?} is about nothing");
        }
    }

    #[test]
    fn every_served_kind_and_what_people_write_has_a_sentence() {
        let engine = Engine::new(Names::new(Profile::Kubernetes));
        let descriptions = Descriptions::new();
        for kind in engine.kinds().iter().filter(|kind| kind.resource.is_some()) {
            let text = descriptions.message(kind.shapes.get(kind.root), Some(kind));
            let text = text.unwrap_or_else(|| panic!("{} has no description", kind.qualified()));
            let warning = actors::stored_only_warning(kind);
            assert!(
                warning.is_none_or(|warning| text.ends_with(&format!(" {warning}."))),
                "{text}"
            );
        }
        // The most used messages have a description for themselves and all their fields.
        let whole = [
            "ObjectMeta",
            "PodSpec",
            "Container",
            "Probe",
            "ServiceSpec",
            "ServicePort",
            "DeploymentSpec",
            "VolumeMount",
            "EnvVar",
            "PodStatus",
            "ConfigMap",
            "Secret",
            "ResourceRequirements",
            "StatefulSetSpec",
            "DaemonSetSpec",
            "JobSpec",
            "JobStatus",
            "CronJobSpec",
            "HorizontalPodAutoscalerSpec",
            "PodDisruptionBudgetSpec",
        ];
        let mut missing = BTreeSet::new();
        for kind in engine.kinds().iter().filter(|kind| kind.resource.is_some()) {
            let mut queue = vec![kind.root];
            let mut seen = BTreeSet::new();
            while let Some(id) = queue.pop() {
                let shape = kind.shapes.get(id);
                if !seen.insert(id) {
                    continue;
                }
                for field in &shape.fields {
                    if whole.contains(&shape.name)
                        && descriptions.field(&kind.shapes, shape, field).is_none()
                    {
                        missing.insert(format!("{}.{}", shape.name, field.name));
                    }
                    let mut ty = &field.ty;
                    while let Type::List(item) | Type::Map(item) = ty {
                        ty = item;
                    }
                    if let Type::Message(id) = ty {
                        queue.push(*id);
                    }
                }
            }
        }
        assert!(missing.is_empty(), "{missing:?}");
    }
}
