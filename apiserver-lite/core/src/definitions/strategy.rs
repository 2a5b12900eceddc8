//! What only CustomResourceDefinitions have when they are written: the versions in which objects are stored, and the finalizer that keeps a deleted
//! definition until its objects are gone.

use apiserver_custom_resources::{
    approval_condition, default_definition, validate_approval, validate_definition,
};
use apiserver_schema::{FieldErrors, Map, Object, Value};
use proto_api::names::Names;

/// Whether the object is a definition.
#[must_use]
pub fn is_definition(object: &Object) -> bool {
    object.kind.is(super::GROUP, "CustomResourceDefinition")
}

/// The finalizer of a deleted definition whose objects are not deleted yet.
#[must_use]
pub fn cleanup_finalizer(definition: &Object) -> String {
    format!("customresourcecleanup.{}", definition.kind.group)
}

/// Sets the names that follow from others, and how objects are converted.
pub fn default(definition: &mut Object) {
    let mut tree = Value::Map(std::mem::take(&mut definition.fields));
    default_definition(&mut tree);
    if let Value::Map(fields) = tree {
        definition.fields = fields;
    }
}

/// Checks a definition; `old` is the stored version of an update.
///
/// # Errors
/// What is wrong.
pub fn validate(new: &Object, old: Option<&Object>, names: &Names) -> Result<(), FieldErrors> {
    let tree = |object: &Object| Value::Map(object.fields.clone());
    let mut errors = validate_definition(&tree(new), old.map(tree).as_ref());
    errors.extend(validate_approval(&new.fields, old.map(|old| &old.fields), names));
    if errors.is_empty() { Ok(()) } else { Err(FieldErrors(errors)) }
}

/// Sets the condition that says whether a definition of a protected group is approved.
pub fn note_approval(definition: &mut Object, names: &Names, now: &str) {
    let Some(found) = approval_condition(&definition.fields, names) else { return };
    let status = if found.status == "True" { "True" } else { "False" };
    let (kind, reason, message) = (found.kind, found.reason, found.message);
    set_condition(definition, DefinitionCondition { kind, status, reason, message }, now);
}

/// Adds the storage version to `status.storedVersions`: from now on objects are stored in it.
pub fn note_stored_version(definition: &mut Object) {
    let storage = {
        let mut versions = definition.spec().into_iter().flat_map(|spec| spec.maps("versions"));
        versions
            .find(|version| version.is_true("storage"))
            .map(|version| version.str("name").to_owned())
    };
    let Some(storage) = storage else { return };
    let status = definition.fields.map_or_insert("status");
    let mut stored = status.list("storedVersions").to_vec();
    if !stored.iter().any(|version| version.as_str() == Some(&storage)) {
        stored.push(Value::from(storage));
        status.insert("storedVersions", stored);
    }
}

/// Adds the finalizer to a definition that is being deleted.
pub fn keep_until_empty(definition: &mut Object) {
    let finalizer = cleanup_finalizer(definition);
    if definition.finalizers().any(|have| have == finalizer) {
        return;
    }
    let metadata = definition.metadata_mut();
    let mut finalizers = metadata.list("finalizers").to_vec();
    finalizers.push(Value::from(finalizer));
    metadata.insert("finalizers", finalizers);
}

/// Sets the condition that shows a deletion; the time is that of the deletion.
pub fn mark_deleted(definition: &mut Object) {
    let at = definition.deletion_timestamp().unwrap_or_default().to_owned();
    let condition = DefinitionCondition {
        kind: "Terminating",
        status: "True",
        reason: "InstanceDeletionPending".to_owned(),
        message:
            "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon"
                .to_owned(),
    };
    set_condition(definition, condition, &at);
}

/// One of `status.conditions` of a CustomResourceDefinition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefinitionCondition {
    /// `type`.
    pub kind: &'static str,
    /// `True` or `False`.
    pub status: &'static str,
    /// Why, in one word.
    pub reason: String,
    /// Why.
    pub message: String,
}

/// Sets a condition. Its time is that of the last change of `status`.
pub fn set_condition(definition: &mut Object, condition: DefinitionCondition, now: &str) {
    let status = definition.fields.map_or_insert("status");
    let mut conditions = status.list("conditions").to_vec();
    let mut have = conditions.iter_mut().filter_map(Value::as_map_mut);
    let wanted: Map = [
        ("type", condition.kind),
        ("status", condition.status),
        ("lastTransitionTime", now),
        ("reason", condition.reason.as_str()),
        ("message", condition.message.as_str()),
    ]
    .into_iter()
    .collect();
    match have.find(|have| have.str("type") == condition.kind) {
        Some(have) => {
            let since = have.str("lastTransitionTime").to_owned();
            let same = have.str("status") == condition.status;
            *have = wanted;
            if same {
                have.insert("lastTransitionTime", since);
            }
        }
        None => conditions.push(Value::Map(wanted)),
    }
    status.insert("conditions", conditions);
}

#[cfg(test)]
mod tests {
    use proto_api::names::{Names, Profile};

    use super::*;

    fn definition() -> Object {
        let engine = apiserver_schema::Engine::new(Names::new(Profile::Kubernetes));
        let kind = engine.kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition").unwrap();
        Object::new(kind.clone())
    }

    #[test]
    fn a_condition_keeps_its_time_until_its_status_changes() {
        let mut object = definition();
        let with = |status, reason: &str| DefinitionCondition {
            kind: "Established",
            status,
            reason: reason.to_owned(),
            message: String::new(),
        };
        let shown = |object: &Object| {
            let condition = object.status().unwrap().maps("conditions").next().unwrap().clone();
            ["status", "reason", "lastTransitionTime"].map(|field| condition.str(field).to_owned())
        };
        set_condition(&mut object, with("False", "a"), "1");
        set_condition(&mut object, with("False", "b"), "2");
        assert_eq!(shown(&object), ["False", "b", "1"]);
        set_condition(&mut object, with("True", "c"), "3");
        assert_eq!(shown(&object), ["True", "c", "3"]);
        assert_eq!(object.status().unwrap().list("conditions").len(), 1);
    }

    #[test]
    fn stored_versions_grow_by_the_storage_version() {
        let mut object = definition();
        let version = |name: &str, storage: bool| -> Value {
            let fields = [("name", Value::from(name)), ("storage", Value::from(storage))];
            Value::Map(fields.into_iter().collect())
        };
        let set = |object: &mut Object, first: bool| {
            let versions = vec![version("v1", first), version("v2", !first)];
            object.fields.map_or_insert("spec").insert("versions", versions);
            note_stored_version(object);
        };
        let stored = |object: &Object| object.status().unwrap().list("storedVersions").to_vec();
        set(&mut object, true);
        set(&mut object, true);
        assert_eq!(stored(&object), [Value::from("v1")]);
        set(&mut object, false);
        assert_eq!(stored(&object), [Value::from("v1"), Value::from("v2")]);
        keep_until_empty(&mut object);
        keep_until_empty(&mut object);
        let finalizers: Vec<&str> = object.finalizers().collect();
        assert_eq!(finalizers, ["customresourcecleanup.apiextensions.k8s.io"]);
    }
}
