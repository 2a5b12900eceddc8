//! pure: cases that are the same for all kinds: who owns what after applies of several managers, other writes and subresources.

use serde_json::{Value as Json, json};

use super::chance::Chance;
use super::parts::{
    Part, Place, Whole, another, at, changed, identity, only, overlay, places, with, without,
};
use super::script::{BASE, JSON_PATCH, MERGE, STRATEGIC, Script};
use super::{Named, Subject};

/// Values and lists of one resource that have cases of their own: those of chance, always the same with one seed.
const VALUES_MAX: usize = 6;
const LISTS_MAX: usize = 6;
/// Of pods and deployments, which have most of the types.
const MANY_MAX: usize = 16;

const APPLY: &str = "apply";

/// The configuration of a manager that names nothing but other metadata.
fn metadata(object: &Json, name: &str, value: &str) -> Json {
    let mut config = identity(object);
    overlay(
        &mut config,
        json!({"metadata": {"labels": {name: value}, "annotations": {name: value}}}),
    );
    config
}

/// Cases of whole objects.
pub fn whole(subject: &Subject<'_>) -> Vec<Named> {
    vec![create(subject), dry_run(subject), managers(subject), metadata_lists(subject)]
        .into_iter()
        .chain(after_writes(subject))
        .collect()
}

/// An object that an apply makes, and applies that change nothing.
fn create(subject: &Subject<'_>) -> Named {
    let mut script = Script::new(subject.resource, "apply-create");
    let object = script.object();
    script.apply("a", &object);
    script.apply("a", &object);
    script.apply("a", &object);
    script.apply("b", &object);
    script.apply("b", &identity(&object));
    script.apply("b", &identity(&object));
    script.get("");
    script.case(APPLY, "(create)", "by two managers")
}

/// Nothing of it is stored.
fn dry_run(subject: &Subject<'_>) -> Named {
    let mut script = Script::new(subject.resource, "apply-dry-run");
    let object = script.object();
    let dry = |manager: &str| format!("?fieldManager={manager}&dryRun=All");
    script.apply_below("", &dry("a"), &object);
    script.get("");
    script.apply("a", &object);
    script.apply_below("", &dry("b"), &metadata(&object, "a", "other"));
    script.apply_below("", &format!("{}&force=true", dry("b")), &metadata(&object, "a", "other"));
    script.apply_below("", &dry("b"), &metadata(&object, "b", "own"));
    script.apply_below("", "?fieldManager=b&dryRun=Some", &metadata(&object, "b", "own"));
    script.get("");
    script.case(APPLY, "(dry run)", "")
}

/// Fields of two managers: apart, shared, in conflict, taken, given up.
fn managers(subject: &Subject<'_>) -> Named {
    let mut script = Script::new(subject.resource, "apply-managers");
    let object = script.object();
    let (same, other) = (metadata(&object, "a", "b"), metadata(&object, "a", "other"));
    script.apply("a", &object);
    script.apply("b", &metadata(&object, "own", "b"));
    script.apply("b", &same);
    script.apply("c", &same);
    script.apply("b", &other);
    script.apply("c", &identity(&object));
    script.apply("b", &other);
    script.force("b", &other);
    script.apply("a", &object);
    script.force("a", &object);
    script.apply("a", &metadata(&object, "a", "b"));
    script.apply("a", &identity(&object));
    script.apply("b", &identity(&object));
    script.force("d", &object);
    script.get("");
    script.case(APPLY, "(managers)", "metadata of three managers")
}

/// Lists of the metadata: sets and lists of objects.
fn metadata_lists(subject: &Subject<'_>) -> Named {
    let mut script = Script::new(subject.resource, "apply-metadata");
    let object = script.object();
    let owner = |name: &str, uid: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid});
    let config = |finalizers: Json, owners: Json| {
        let mut config = identity(&object);
        overlay(
            &mut config,
            json!({"metadata": {"finalizers": finalizers, "ownerReferences": owners}}),
        );
        config
    };
    script.apply("z", &object);
    script
        .apply("a", &config(json!(["example.com/a", "example.com/b"]), json!([owner("a", "u1")])));
    script.apply(
        "b",
        &config(
            json!(["example.com/c", "example.com/b"]),
            json!([owner("b", "u2"), owner("a", "u1")]),
        ),
    );
    script.apply(
        "b",
        &config(json!(["example.com/b", "example.com/c"]), json!([owner("other", "u1")])),
    );
    script.force(
        "b",
        &config(json!(["example.com/b", "example.com/c"]), json!([owner("other", "u1")])),
    );
    script.apply("a", &config(json!(["example.com/a"]), json!([])));
    script.apply("b", &config(json!([]), json!([])));
    script.apply("b", &config(json!(["example.com/a", "example.com/a"]), json!([])));
    script.apply("b", &config(json!([]), json!([owner("a", "u1"), owner("b", "u1")])));
    script.apply("b", &config(json!([]), json!([{"name": "a"}])));
    script.apply("a", &identity(&object));
    script.get("");
    script.case(APPLY, "(metadata lists)", "")
}

/// Applies of what other writes have made.
fn after_writes(subject: &Subject<'_>) -> Vec<Named> {
    let resource = subject.resource;
    let mut cases = Vec::new();
    let mut script = Script::new(resource, "apply-after-update");
    let object = script.object();
    script.create("u", &object);
    script.apply("a", &metadata(&object, "a", "other"));
    script.edit("v", "", json!({"metadata": {"labels": {"a": "v", "v": "v"}}}));
    script.edit("v", "", json!({"metadata": {"labels": {"a": "v", "v": "v"}}}));
    script.apply("a", &metadata(&object, "a", "other"));
    script.force("a", &metadata(&object, "a", "other"));
    script.edit("a", "", json!({"metadata": {"labels": {"a": "again"}}}));
    script.apply("a", &metadata(&object, "a", "b"));
    script.edit(
        "w",
        "",
        json!({"metadata": {"labels": {"a": null, "v": null}, "annotations": {"a": "w"}}}),
    );
    script.force("a", &object);
    script.get("");
    cases.push(script.case(APPLY, "(after update)", ""));

    let mut script = Script::new(resource, "apply-after-patch");
    let object = script.object();
    script.create("u", &object);
    let own = |manager: &str| json!({"metadata": {"labels": {"a": manager, manager: "x"}}});
    script.patch(MERGE, "m", "", own("m"));
    script.patch(MERGE, "m", "", own("m"));
    script.patch(
        JSON_PATCH,
        "j",
        "",
        json!([{"op": "add", "path": "/metadata/labels/j", "value": "x"}]),
    );
    script.patch(STRATEGIC, "s", "", own("s"));
    script.apply("a", &metadata(&object, "a", "b"));
    script.force("a", &metadata(&object, "a", "b"));
    script.patch(MERGE, "m", "", json!({"metadata": {"labels": {"a": null, "m": null}}}));
    script.apply("a", &metadata(&object, "j", "x"));
    script.get("");
    cases.push(script.case(APPLY, "(after patch)", ""));

    let mut script = Script::new(resource, "apply-first");
    let object = script.object();
    let forget = json!({"metadata": {"managedFields": [{}]}});
    script.create("u", &object);
    script.patch(MERGE, "u", "", forget.clone());
    script.patch(MERGE, "m", "", json!({"metadata": {"labels": {"m": "x"}}}));
    script.apply("a", &metadata(&object, "a", "other"));
    script.force("a", &metadata(&object, "a", "other"));
    script.patch(MERGE, "m", "", forget);
    script.apply("a", &metadata(&object, "m", "x"));
    script.apply("a", &object);
    script.get("");
    cases.push(script.case(APPLY, "(first apply)", "owners forgotten before"));

    let mut script = Script::new(resource, "apply-reset");
    let object = script.object();
    script.apply("a", &object);
    let change = json!({"metadata": {"managedFields": [{}], "labels": {"m": "y"}}});
    script.patch(MERGE, "m", "", change);
    script.patch(MERGE, "m", "", json!({"metadata": {"managedFields": []}}));
    cases.push(script.case(APPLY, "(reset)", "with a change"));
    cases
}

/// A value of two managers: shared, handed over, in conflict, taken, given up.
pub fn values(subject: &Subject<'_>) -> Vec<Named> {
    let found = found(subject, |place| matches!(place.whole, Whole::Value | Whole::Atomic));
    let found = Chance::new(subject.seed, &subject.resource.full_name())
        .some(found, most(subject, VALUES_MAX));
    let cases = found.into_iter().enumerate().map(|(number, place)| {
        let mut script = Script::new(subject.resource, &format!("apply-value-{number}"));
        let object = script.object();
        let value = at(&object, &place).cloned().unwrap_or_default();
        let same = only(&object, &place);
        let other = only(&with(&object, &place, changed(&value)), &place);
        let rest = without(&object, &place);
        script.apply("a", &object);
        script.apply("b", &same);
        script.apply("a", &rest);
        script.apply("a", &object);
        script.apply("b", &other);
        script.force("b", &other);
        script.apply("a", &object);
        script.apply("a", &rest);
        script.apply("b", &identity(&object));
        script.get("");
        script.case(APPLY, &place.to_string(), &other.to_string())
    });
    cases.collect()
}

fn found(subject: &Subject<'_>, is_wanted: impl Fn(&Place) -> bool) -> Vec<Place> {
    let object = Script::new(subject.resource, "apply").object();
    let mut found = places(subject.api, subject.schema, &object);
    let base = Part::Field(BASE.to_owned());
    found.retain(|place| is_wanted(place) && place.steps.last() != Some(&base));
    found
}

fn most(subject: &Subject<'_>, most: usize) -> usize {
    let is_large =
        ["pods", "deployments", super::custom::PLURAL].contains(&subject.resource.plural.as_str());
    if is_large { MANY_MAX } else { most }
}

/// A list of two managers: items of one, of both, in another order, none, twice, and what is no item.
pub fn lists(subject: &Subject<'_>) -> Vec<Named> {
    let found = found(subject, |place| place.whole != Whole::Value);
    let found =
        Chance::new(subject.seed, &subject.resource.plural).some(found, most(subject, LISTS_MAX));
    let cases = found.into_iter().enumerate().map(|(number, place)| {
        let mut script = Script::new(subject.resource, &format!("apply-list-{number}"));
        let object = script.object();
        let items = at(&object, &place).and_then(Json::as_array).cloned().unwrap_or_default();
        let first = items.first().cloned().unwrap_or_else(|| json!("a"));
        let own = another(&first, &place.whole);
        let config = |value: Json| only(&with(&object, &place, value), &place);
        let rest: Vec<Json> = items.iter().skip(1).cloned().collect();
        script.apply("a", &object);
        script.apply("b", &config(json!([own])));
        script.force("b", &config(json!([own, first])));
        script.apply("b", &config(json!([first, own])));
        script.apply("a", &with(&object, &place, json!(rest)));
        script.force("c", &config(json!([own, another(&own, &place.whole)])));
        script.apply("b", &config(json!([])));
        script.apply("b", &identity(&object));
        script.apply("c", &config(json!([])));
        script.force("d", &config(json!([first, first])));
        script.force("d", &config(json!([null])));
        script.force("d", &config(json!([{}])));
        script.force("d", &config(json!(null)));
        script.force("d", &config(json!("a")));
        script.apply("c", &identity(&object));
        script.get("");
        script.case(APPLY, &place.to_string(), &format!("{:?}", place.whole))
    });
    cases.collect()
}

/// Applies through the status and the scale.
pub fn subresources(subject: &Subject<'_>) -> Vec<Named> {
    let has = |name: &str| subject.resource.subresources.iter().any(|one| one == name);
    let mut cases = Vec::new();
    if has("status") && subject.resource.status.is_object() {
        cases.push(status(subject));
    }
    if has("scale") {
        cases.push(scale(subject));
    }
    cases
}

fn status(subject: &Subject<'_>) -> Named {
    let mut script = Script::new(subject.resource, "apply-status");
    let object = script.object();
    let config = |status: Json| {
        let mut config = identity(&object);
        config["status"] = status;
        config
    };
    let right = subject.resource.status.clone();
    let mut both = object.clone();
    overlay(&mut both, json!({"metadata": {"labels": {"s": "x"}}, "status": right}));
    let to = |manager: &str, more: &str| format!("?fieldManager={manager}{more}");
    script.apply_below("/status", &to("s", ""), &config(right.clone()));
    script.apply("a", &object);
    script.apply_below("/status", &to("s", ""), &config(right.clone()));
    script.apply_below("/status", &to("s", ""), &config(right.clone()));
    script.apply_below("/status", &to("t", ""), &config(right.clone()));
    script.apply_below("/status", &to("t", ""), &config(changed(&right)));
    script.apply_below("/status", &to("t", "&force=true"), &config(changed(&right)));
    script.apply_below("/status", &to("s", ""), &config(right.clone()));
    script.patch(MERGE, "p", "/status", json!({"status": right}));
    script.apply_below("/status", &to("s", ""), &config(json!({})));
    script.apply_below("/status", &to("t", ""), &identity(&object));
    script.apply_below("/status", "", &config(right.clone()));
    script.get("");
    script.apply_below("/status", &to("w", "&force=true"), &both);
    script.apply_below("/status", &to("w", ""), &identity(&object));
    script.get("");
    script.apply("m", &config(right.clone()));
    script.force("m", &config(right));
    script.case("apply status", "(status)", "")
}

fn scale(subject: &Subject<'_>) -> Named {
    let mut script = Script::new(subject.resource, "apply-scale");
    let mut object = script.object();
    object["spec"]["replicas"] = json!(1);
    let name = object["metadata"]["name"].clone();
    let config = |replicas: Json| json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": name}, "spec": {"replicas": replicas}});
    let to = |manager: &str, more: &str| format!("?fieldManager={manager}{more}");
    script.apply_below("/scale", &to("b", ""), &config(json!(2)));
    script.apply("a", &object);
    script.apply_below("/scale", &to("b", ""), &config(json!(1)));
    script.apply_below("/scale", &to("b", ""), &config(json!(2)));
    script.get("");
    script.apply_below("/scale", &to("b", "&force=true"), &config(json!(2)));
    script.get("");
    script.apply("a", &object);
    script.get("/scale");
    script.edit("e", "/scale", json!({"spec": {"replicas": 3}}));
    script.get("");
    script.apply("a", &object);
    script.force("a", &object);
    script.patch(MERGE, "p", "/scale", json!({"spec": {"replicas": 4}}));
    script.get("");
    script.apply_below("/scale", &to("b", "&force=true"), &config(json!(-1)));
    script.apply_below("/scale", &to("b", "&force=true"), &config(json!("a")));
    script.apply_below(
        "/scale",
        &to("b", "&force=true"),
        &json!({"apiVersion": "v1", "kind": "Scale"}),
    );
    script.apply_below("/scale", "", &config(json!(2)));
    script.case("apply scale", "(scale)", "")
}
