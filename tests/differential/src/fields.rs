//! pure: one case a change of a field: creates, updates, patches of three kinds, and the same of statuses. All of them are dry runs.

use http::Method;
use serde_json::{Value as Json, json};

use crate::case::{Case, Pair};
use crate::change::{Change, other_changes, wrong_changes};
use crate::open_api::{FieldAt, FieldPath, OpenApi, Step};
use crate::resource::{BOTH, Resource};

/// The name of objects that are created as dry runs.
const NEW: &str = "new";
/// The resources whose pod template is walked as deep as pods are; others share their code.
const WHOLE_TEMPLATES: [&str; 2] = ["pods", "deployments"];
/// Metadata that a server sets; what a client sends there is tried with one resource.
const SERVERS_OWN: [&str; 2] = ["managedFields", "clusterName"];

/// Whether a field's own fields are tried as well.
fn is_walked(resource: &Resource, path: &FieldPath, status: bool) -> bool {
    let names: Vec<&str> = path.names().collect();
    let Some(first) = names.first() else { return true };
    if ["apiVersion", "kind"].contains(first) || (*first == "status") != status {
        return false;
    }
    // They are alpha in 1.20, and dropped there.
    let ephemeral = names.iter().position(|name| *name == "ephemeralContainers");
    if ephemeral.is_some_and(|at| at + 1 < names.len()) {
        return false;
    }
    let metadata = names.iter().position(|name| *name == "metadata");
    if let Some(at) = metadata {
        let is_first = resource.plural == "configmaps" && at == 0;
        return is_first && !names.iter().any(|name| SERVERS_OWN.contains(name));
    }
    let template = names.windows(2).position(|two| two == ["template", "spec"]);
    let at = template.filter(|_| !WHOLE_TEMPLATES.contains(&resource.plural.as_str()));
    // The template's own fields, but not what is below them.
    at.is_none_or(|at| names.len() <= at + 3)
}

fn walk(api: &OpenApi, resource: &Resource, object: &Json, status: bool) -> Vec<FieldAt> {
    api.fields(&resource.definition, object, &|path| is_walked(resource, path, status))
}

fn case(
    resource: &Resource,
    operation: &'static str,
    field: &FieldAt,
    change: &Change,
    pair: Pair,
) -> Case {
    Case {
        resource: resource.plural.clone(),
        operation,
        field: field.path.to_string(),
        value: change.label(),
        definition: Some(resource.definition.clone()),
        steps: vec![pair],
    }
}

/// Creates with a wrong value in each field in turn.
pub fn creates(api: &OpenApi, resource: &Resource) -> Vec<Case> {
    let objects = BOTH.map(|whose| resource.object(whose, NEW));
    let mut cases = Vec::new();
    for field in walk(api, resource, &objects[0], false) {
        let mut objects = objects.clone();
        objects.iter_mut().for_each(|object| make_room(resource, object, &field.path));
        for change in wrong_changes(&field) {
            let mut changed = objects.clone();
            if !changed.iter_mut().all(|object| change.apply(object, &field.path)) {
                continue;
            }
            let pair =
                Pair::new(Method::POST, |whose| format!("{}?dryRun=All", resource.path(whose)));
            cases.push(case(resource, "create", &field, &change, pair.json(&changed)));
        }
    }
    cases
}

/// Updates and patches of an object that exists, given as each server has it.
pub fn updates(api: &OpenApi, resource: &Resource, live: &[Json; 2]) -> Vec<Case> {
    let name = resource.name(crate::LIVE);
    let at = |below: &'static str| {
        move |whose| format!("{}{below}?dryRun=All", resource.path_of(whose, name))
    };
    let mut cases = Vec::new();
    for field in walk(api, resource, &live[0], false) {
        for change in other_changes(&field) {
            cases.extend(put(resource, "update", &field, &change, live, &at("")));
        }
        cases.extend(patches(resource, &field, live, &at("")));
    }
    if resource.subresources.iter().any(|name| name == "status") {
        for field in walk(api, resource, &live[0], true) {
            for change in wrong_changes(&field) {
                cases.extend(put(resource, "status", &field, &change, live, &at("/status")));
            }
        }
    }
    cases
}

/// Fields of a PersistentVolume that are no sources, and the source that it has.
const NO_OTHER_SOURCES: [&str; 9] = [
    "accessModes",
    "capacity",
    "claimRef",
    "hostPath",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeMode",
];

/// Removes the source that a volume has, if another one is changed: a volume has one of them.
fn make_room(resource: &Resource, object: &mut Json, path: &FieldPath) {
    let names: Vec<&str> = path.names().collect();
    if resource.plural == "persistentvolumes" {
        if let ["spec", source, ..] = names.as_slice()
            && !NO_OTHER_SOURCES.contains(source)
            && let Some(spec) = object["spec"].as_object_mut()
        {
            spec.shift_remove("hostPath");
        }
        return;
    }
    let Some(at) = path.0.iter().position(|step| *step == Step::Field("volumes".to_owned())) else {
        return;
    };
    let is_other =
        |step: &Step| !matches!(step, Step::Field(name) if name == "name" || name == "emptyDir");
    if path.0.get(at + 2).is_some_and(is_other) {
        let volume = FieldPath([&path.0[..at + 2], &[Step::Field("emptyDir".to_owned())]].concat());
        Change::Remove.apply(object, &volume);
    }
}

fn put(
    resource: &Resource,
    operation: &'static str,
    field: &FieldAt,
    change: &Change,
    live: &[Json; 2],
    path: &dyn Fn(crate::resource::Whose) -> String,
) -> Option<Case> {
    let mut changed = live.clone();
    for object in &mut changed {
        if !change.apply(object, &field.path) {
            return None;
        }
    }
    let pair = Pair::new(Method::PUT, path).json(&changed);
    Some(case(resource, operation, field, change, pair))
}

/// A JSON patch, a merge patch and a strategic merge patch of one field.
fn patches(
    resource: &Resource,
    field: &FieldAt,
    live: &[Json; 2],
    path: &dyn Fn(crate::resource::Whose) -> String,
) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |operation, content_type, change: &Change, body: Json| {
        let pair = Pair::new(Method::PATCH, path).json(&[body.clone(), body]).of(content_type);
        cases.push(case(resource, operation, field, change, pair));
    };
    let pointer: String = field
        .path
        .0
        .iter()
        .map(|step| match step {
            Step::Field(name) => format!("/{}", name.replace('~', "~0").replace('/', "~1")),
            Step::Item => "/0".to_owned(),
        })
        .collect();
    let first = other_changes(field).into_iter().next();
    let above = pointer.rsplit_once('/').map_or("", |(above, _)| above);
    let has_place = live.iter().all(|object| object.pointer(above).is_some());
    let removal = field.is_set.then_some(Change::Remove);
    for change in first.iter().chain(&removal) {
        let value = match change {
            Change::Set(value) => value.clone(),
            _ => Json::Null,
        };
        if has_place {
            let operation = match (change, field.is_set) {
                (Change::Remove, _) => json!([{"op": "remove", "path": pointer}]),
                (_, true) => json!([{"op": "replace", "path": pointer, "value": value}]),
                (_, false) => json!([{"op": "add", "path": pointer, "value": value}]),
            };
            add("json patch", "application/json-patch+json", change, operation);
        }
        let mut body = json!({});
        if Change::Set(value).apply(&mut body, &field.path) {
            add("merge patch", "application/merge-patch+json", change, body.clone());
            add("strategic patch", "application/strategic-merge-patch+json", change, body);
        }
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::tests::resource;

    #[test]
    fn another_source_of_a_volume_takes_the_place_of_the_one_that_it_has() {
        let field = |name: &str| Step::Field(name.to_owned());
        let volume = resource("v1", "persistentvolumes");
        let mut object = volume.object(BOTH[0], "a");
        make_room(&volume, &mut object, &FieldPath(vec![field("spec"), field("capacity")]));
        assert!(object["spec"].get("hostPath").is_some());
        make_room(&volume, &mut object, &FieldPath(vec![field("spec"), field("nfs")]));
        assert!(object["spec"].get("hostPath").is_none());

        let pod = resource("v1", "pods");
        let mut object = pod.object(BOTH[0], "a");
        let path = vec![field("spec"), field("volumes"), Step::Item, field("nfs"), field("path")];
        make_room(&pod, &mut object, &FieldPath(path));
        assert_eq!(object["spec"]["volumes"][0], json!({"name": "v"}));
    }
}
