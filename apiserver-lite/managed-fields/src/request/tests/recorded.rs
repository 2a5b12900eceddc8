//! What kube-apiserver 1.20.2 answered to writes of many kinds by many managers (`testdata`), and what this crate makes of the same
//! writes: the same entries, texts and objects.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use apiserver_schema::{Map, Object, PatchType, Strictness, Value};
use proto_api::Time;

use super::{Server, json, text};
use crate::conflict::Conflicts;
use crate::request::ApplyError;
use crate::structure::{BuiltInStructures, Markers};
use crate::times::set_managed_fields;
use crate::versions::ResetFields;

/// What release 1.20 splits by field, unlike release 1.25, whose markers are in the descriptors.
fn markers_of_1_20() -> Markers {
    Markers {
        granular: &[
            "ConfigMapKeySelector",
            "CrossVersionObjectReference",
            "EndpointAddress",
            "EndpointPort",
            "LocalObjectReference",
            "NodeSelector",
            "NodeSelectorTerm",
            "ObjectFieldSelector",
            "ObjectReference",
            "OwnerReference",
            "ResourceFieldSelector",
            "RoleRef",
            "ScopeSelector",
            "SecretKeySelector",
            "SecretReference",
            "Subject",
            "TopologySelectorTerm",
            "TypedLocalObjectReference",
        ],
        granular_fields: &[
            "PodSpec.nodeSelector",
            "ReplicationControllerSpec.selector",
            "Scheduling.nodeSelector",
            "ServiceSpec.selector",
        ],
    }
}

/// Defaults that the recorded server has not, by kind.
const NEWER_DEFAULTS: &[(&str, &[&str])] = &[
    ("DaemonSet", &["spec", "updateStrategy", "rollingUpdate", "maxSurge"]),
    ("Job", &["spec", "completionMode"]),
    ("Job", &["spec", "suspend"]),
    ("Namespace", &["metadata", "labels", "kubernetes.io/metadata.name"]),
    ("Service", &["spec", "internalTrafficPolicy"]),
    ("Service", &["spec", "ipFamilyPolicy"]),
];

/// Steps that this server answers otherwise, by recording and number, with the reason.
const OTHERWISE: &[(&str, usize, &str)] = &[
    ("client-entries", 3, "1.20 accepts any operation"),
    ("daemonset", 0, "1.20 shows the deprecated templateGeneration as an annotation"),
    ("daemonset", 2, "it counts in the annotation"),
    ("hpa", 0, "1.20 has a default for targetCPUUtilizationPercentage"),
    ("kubectl", 5, "1.20 takes a map without children for a map that was atomic"),
    ("namespace", 0, "1.20 sets the phase by defaults"),
    ("reset", 5, "the requester owns what it changes with a reset"),
    ("reset-empty-list", 1, "an empty list does not reset"),
    ("errors", 1, "1.20 names the type of its own value"),
    ("service", 1, "1.20 has no default for protocol"),
    ("service", 2, "1.20 has no default for protocol"),
    ("service", 5, "1.20 has no default for protocol"),
    ("webhook", 0, "1.20 has more defaults"),
];

struct Step {
    op: String,
    manager: String,
    force: bool,
    before: Option<Value>,
    body: Value,
    code: i64,
    response: Value,
}

/// A recording: apiVersion, kind and steps. A step without `before` starts from what the one before it left.
fn read(path: &Path) -> (String, String, Vec<Step>) {
    let recording = json(&fs::read_to_string(path).expect("a recording"));
    let recording = recording.as_map().expect("an object");
    let mut last: Option<Value> = None;
    let steps = recording.maps("steps").map(|step| {
        let before = match step.get("before") {
            Some(before) => Some(before.clone()).filter(|before| *before != Value::Null),
            None => last.clone(),
        };
        let response = step.get("response").cloned().expect("a response");
        let is_object = response.as_map().is_some_and(|r| r.str("kind") == recording.str("kind"));
        last = if is_object { Some(response.clone()) } else { before.clone() };
        Step {
            op: step.str("op").to_owned() + step.str("subresource").replace("status", "").as_str(),
            manager: step.str("manager").to_owned(),
            force: step.is_true("force"),
            before,
            body: step.get("body").cloned().expect("a body"),
            code: step.int("code").expect("a code"),
            response,
        }
    });
    let steps = steps.collect();
    (recording.str("apiVersion").to_owned(), recording.str("kind").to_owned(), steps)
}

/// The latest time of the entries of an object: that of the write, if it changed any.
fn latest(object: &Object) -> Time {
    let entries = object.metadata().into_iter().flat_map(|metadata| metadata.maps("managedFields"));
    let times = entries.filter_map(|entry| entry.str("time").parse::<Time>().ok());
    times.max().unwrap_or_default()
}

/// `metadata.managedFields` of an object as clients read it.
fn entries(server: &Server, object: &Object) -> String {
    let written = json(&String::from_utf8(server.engine.encode_json(object)).expect("UTF-8"));
    text(written.as_map().and_then(|map| map.at(&["metadata", "managedFields"])))
}

fn remove(fields: &mut Map, path: &[&str]) {
    match path {
        [last] => drop(fields.remove(last)),
        [first, rest @ ..] => {
            if let Some(below) = fields.map_mut(first) {
                remove(below, rest);
            }
        }
        [] => {}
    }
}

fn defaulted(server: &Server, mut object: Object) -> Object {
    server.engine.default(&mut object);
    for (kind, path) in NEWER_DEFAULTS {
        if *kind == server.kind.kind() {
            remove(&mut object.fields, path);
        }
    }
    object
}

/// The object of a write that is not an apply.
fn changed(server: &Server, step: &Step, live: &Object) -> Object {
    let patch = match step.op.as_str() {
        "merge" => PatchType::Merge,
        "strategic" => PatchType::Strategic,
        "json" => PatchType::Json,
        _ => return defaulted(server, server.decode(&step.body)),
    };
    let body = text(Some(&step.body));
    let patched = server.engine.patch(live, patch, body.as_bytes(), Strictness::Ignore);
    defaulted(server, patched.expect("a patch").expect("an object").object)
}

/// Compares one step with the recording; returns what differs.
fn differs(server: &Server, step: &Step) -> Option<String> {
    let before = step.before.as_ref().map(|before| defaulted(server, server.decode(before)));
    let live = before.clone().unwrap_or_else(|| Object::new(server.kind.clone()));
    let tree = before.as_ref().map_or(server.empty.clone(), |live| server.written(live));
    let response = (step.code < 300).then(|| server.decode(&step.response));
    let now = response.as_ref().map(latest).unwrap_or_default();
    let request = server.request(&step.manager, "", now);
    if step.op != "apply" {
        let response = response?;
        let mut new = changed(server, step, &live);
        let entries_of = request.update(tree, server.written(&new)).expect("owners");
        set_managed_fields(&mut new, entries_of);
        let (got, want) = (entries(server, &new), entries(server, &response));
        return (got != want).then(|| format!("entries\n  got  {got}\n  want {want}"));
    }
    let applied = match request.apply(tree, step.body.clone(), step.force) {
        Ok(applied) => applied,
        Err(error) => return refused_otherwise(step, &error),
    };
    let Some(response) = response else {
        let is_invalid = step.code == 422; // validation is not of this crate
        return (!is_invalid).then(|| format!("applied, want {}", text(Some(&step.response))));
    };
    let object = server.engine.object_of(&server.kind, applied.tree, Strictness::Ignore);
    let mut object = defaulted(server, object.expect("an object").object);
    set_managed_fields(&mut object, applied.managed_fields);
    let (mut got, mut want) = (entries(server, &object), entries(server, &response));
    if !applied.changed {
        // 1.20 renews the time of an applier that became an owner of what is there; the order follows.
        (got, want) = (timeless(&got), timeless(&want));
    }
    if got != want {
        return Some(format!("entries\n  got  {got}\n  want {want}"));
    }
    different_object(server, &object, &response)
}

/// Entries without times, sorted.
fn timeless(entries: &str) -> String {
    let entries = json(entries);
    let without_time = entries.as_list().unwrap_or_default().iter().map(|entry| {
        let mut entry = entry.as_map().cloned().expect("an entry");
        entry.remove("time");
        text(Some(&Value::Map(entry)))
    });
    let mut sorted: Vec<String> = without_time.collect();
    sorted.sort();
    sorted.join("\n")
}

/// Compares an applied object with the stored one, without what other parts of the server set.
fn different_object(server: &Server, object: &Object, response: &Object) -> Option<String> {
    let comparable = |object: &Object| {
        let mut object = object.clone();
        let metadata = object.metadata_mut();
        metadata.retain(|key, _| {
            matches!(key, "labels" | "annotations" | "finalizers" | "ownerReferences")
        });
        object.fields.remove("status");
        text(Some(&server.written(&object)))
    };
    let response = defaulted(server, response.clone());
    let (got, want) = (comparable(object), comparable(&response));
    (got != want).then(|| format!("objects\n  got  {got}\n  want {want}"))
}

fn refused_otherwise(step: &Step, error: &ApplyError) -> Option<String> {
    let status = step.response.as_map().expect("a Status");
    let (got, want) = match error {
        // The object is named since 1.21.
        ApplyError::Tree { error, .. } => {
            (format!("failed to create typed patch object: {error}"), status.str("message"))
        }
        error => (error.to_string(), status.str("message")),
    };
    if got != want || step.code < 300 {
        return Some(format!("message\n  got  {got}\n  want {want}"));
    }
    match error {
        ApplyError::Conflicts(conflicts) => different_causes(status, conflicts),
        _ => None,
    }
}

fn different_causes(status: &Map, conflicts: &Conflicts) -> Option<String> {
    let mut got: Vec<_> =
        conflicts.causes().into_iter().map(|cause| (cause.field, cause.message)).collect();
    let details = status.map("details").expect("details");
    let causes =
        details.maps("causes").filter(|cause| cause.str("reason") == crate::conflict::CAUSE);
    let mut want: Vec<_> = causes
        .map(|cause| (cause.str("field").to_owned(), cause.str("message").to_owned()))
        .collect();
    got.sort(); // the order of owners is random there
    want.sort();
    (got != want).then(|| format!("causes\n  got  {got:?}\n  want {want:?}"))
}

#[test]
fn writes_have_the_entries_that_a_real_server_gave_them() {
    let built_in = BuiltInStructures::with_markers(markers_of_1_20());
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/server");
    let mut wrong = BTreeMap::new();
    let mut compared = 0;
    for file in fs::read_dir(directory).expect("testdata") {
        let path = file.expect("a file").path();
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let (api_version, kind, steps) = read(&path);
        let server = Server::new(&api_version, &kind, &built_in, ResetFields::new());
        for (at, step) in steps.iter().enumerate() {
            if OTHERWISE.iter().any(|(of, number, _)| (*of, *number) == (name.as_str(), at))
                || step.op.ends_with("scale")
            {
                continue;
            }
            compared += 1;
            if let Some(difference) = differs(&server, step) {
                wrong.insert(
                    format!("{name} step {at} ({} by {})", step.op, step.manager),
                    difference,
                );
            }
        }
    }
    let report: Vec<String> = wrong.iter().map(|(step, why)| format!("{step}: {why}")).collect();
    assert!(wrong.is_empty(), "{} of {compared} steps differ\n{}", wrong.len(), report.join("\n"));
    assert!(compared > 100, "{compared} steps");
}
