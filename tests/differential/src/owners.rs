//! pure: what differs between the owners of two objects' fields, `metadata.managedFields`, and between conflicts with them. Times are left out, and so are
//! subresources: 1.20 has none in its entries.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;

use crate::case::Cause;
use crate::markers;
use crate::open_api::OpenApi;
use crate::resource::our_version;

/// An owner without its subresource.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Owner {
    manager: String,
    operation: String,
    /// As ours names it.
    api_version: String,
}

/// The steps of a path, as `fieldsV1` has them.
type Path = Vec<String>;
/// The fields of each owner.
type Owners = BTreeMap<Owner, BTreeSet<Path>>;

/// The kind of the compared objects.
#[derive(Clone, Copy)]
pub struct Kind<'a> {
    pub api: &'a OpenApi,
    /// The definition of the kind, if there is one.
    pub definition: Option<&'a str>,
}

/// Differences that are told in words.
type Told = BTreeSet<String>;

impl Kind<'_> {
    /// What differs between entries, by field: `owned a Apply spec.containers[*].image only theirs`. Where 1.25 has one owner of a whole that 1.20 has not,
    /// `whole ObjectReference` says so if that is all that differs there; `empty owned a Apply spec only ours` is a map, message or list of which an owner
    /// owns nothing that is in it.
    pub fn differences(&self, theirs: &Json, ours: &Json) -> Vec<String> {
        let (a, b) = (owners(theirs), owners(ours));
        let mut found = Told::new();
        let none = BTreeSet::new();
        for owner in a.keys().chain(b.keys()) {
            let of = |all: &Owners| all.get(owner).unwrap_or(&none).clone();
            let Owner { manager, operation, .. } = owner;
            self.paths(&of(&a), &of(&b), &mut found, &|path, whose| {
                format!("owned {manager} {operation} {} only {whose}", shown(path))
            });
        }
        if is_sorted(theirs) != is_sorted(ours) {
            found.insert(format!("owners sorted {} {}", is_sorted(theirs), is_sorted(ours)));
        }
        found.into_iter().collect()
    }

    /// What differs between conflicts, with their owners.
    pub fn conflicts(&self, theirs: &[Cause], ours: &[Cause]) -> Vec<String> {
        let all = |causes: &[Cause]| {
            let mut all: BTreeMap<String, BTreeSet<Path>> = BTreeMap::new();
            for (field, with) in causes {
                all.entry(owner_of(with)).or_default().insert(steps(field));
            }
            all
        };
        let (a, b) = (all(theirs), all(ours));
        let mut found = Told::new();
        let none = BTreeSet::new();
        for owner in a.keys().chain(b.keys()) {
            let (a, b) = (a.get(owner).unwrap_or(&none), b.get(owner).unwrap_or(&none));
            if is_misnamed(a, b) {
                found.insert(format!("conflict misnamed {owner}"));
                continue;
            }
            self.paths(a, b, &mut found, &|path, whose| {
                format!("conflict {} {owner} only {whose}", shown(path))
            });
        }
        found.into_iter().collect()
    }

    fn paths(
        &self,
        theirs: &BTreeSet<Path>,
        ours: &BTreeSet<Path>,
        found: &mut Told,
        tell: &dyn Fn(&[String], &str) -> String,
    ) {
        let whole = |path: &Path| markers::whole(self.api, self.definition, path);
        let cut = |paths: &BTreeSet<Path>| -> BTreeSet<Path> {
            let steps = |path: &Path| whole(path).map_or(path.len(), |(steps, _)| steps);
            paths.iter().map(|path| path[..steps(path)].to_vec()).collect()
        };
        let (a, b) = (cut(theirs), cut(ours));
        found.extend(a.difference(&b).map(|path| tell(path, "theirs")));
        let is_empty = |path: &Path| {
            let has_below = |all: &BTreeSet<Path>| {
                all.iter().any(|other| other.len() > path.len() && other.starts_with(path))
            };
            let is_split = markers::is_split(self.api, self.definition, path);
            is_split && !has_below(&a) && !has_below(&b)
        };
        found.extend(b.difference(&a).map(|path| match is_empty(path) {
            true => format!("empty {}", tell(path, "ours")),
            false => tell(path, "ours"),
        }));
        let differing = theirs.symmetric_difference(ours).filter_map(whole);
        found.extend(differing.map(|(_, marker)| format!("whole {marker}")));
    }
}

/// Whether one path of theirs differs from one of ours in its last step only: their library shares one buffer between the paths of siblings.
fn is_misnamed(theirs: &BTreeSet<Path>, ours: &BTreeSet<Path>) -> bool {
    let a: Vec<&Path> = theirs.difference(ours).collect();
    let b: Vec<&Path> = ours.difference(theirs).collect();
    match (&a[..], &b[..]) {
        ([a], [b]) => a.len() == b.len() && a.len() > 1 && a[..a.len() - 1] == b[..b.len() - 1],
        _ => false,
    }
}

/// `conflict with "a" using v1 at 2021-01-01T00:00:00Z` as `"a" using v1`, without a subresource.
fn owner_of(message: &str) -> String {
    let text = message.strip_prefix("conflict with ").unwrap_or(message);
    let text = text.split_once(" at ").map_or(text, |(text, _)| text);
    let (name, version) = text.split_once(" using ").unwrap_or((text, ""));
    let name = name.split_once(" with subresource ").map_or(name, |(name, _)| name);
    if version.is_empty() {
        return name.to_owned();
    }
    format!("{name} using {}", our_version(version))
}

fn owners(entries: &Json) -> Owners {
    let mut owners = Owners::new();
    for entry in entries.as_array().into_iter().flatten() {
        let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
        let owner = Owner {
            manager: text("manager"),
            operation: text("operation"),
            api_version: our_version(&text("apiVersion")).to_owned(),
        };
        members(&entry["fieldsV1"], &mut Vec::new(), owners.entry(owner).or_default());
    }
    owners
}

fn members(node: &Json, way: &mut Path, found: &mut BTreeSet<Path>) {
    let Some(fields) = node.as_object() else { return };
    if fields.is_empty() && !way.is_empty() {
        found.insert(way.clone());
    }
    for (name, below) in fields {
        if name == "." {
            found.insert(way.clone());
            continue;
        }
        way.push(name.clone());
        members(below, way, found);
        way.pop();
    }
}

/// A path without what identifies items.
fn shown(path: &[String]) -> String {
    let mut text = String::new();
    for step in path {
        match step.strip_prefix("f:") {
            Some(name) if text.is_empty() => text.push_str(name),
            Some(name) => {
                text.push('.');
                text.push_str(name);
            }
            None => text.push_str("[*]"),
        }
    }
    text
}

/// The steps of a field in a message: `.a[name="b"].c`.
fn steps(field: &str) -> Path {
    let mut steps = Path::new();
    let mut step = String::new();
    let (mut is_inside, mut is_quoted) = (false, false);
    for letter in field.chars() {
        match letter {
            '"' if is_inside => is_quoted = !is_quoted,
            '.' | '[' if !is_inside => {
                steps.push(std::mem::take(&mut step));
                is_inside = letter == '[';
                step.push_str(if is_inside { "k:" } else { "f:" });
            }
            ']' if !is_quoted => is_inside = false,
            letter => step.push(letter),
        }
    }
    steps.push(step);
    steps.retain(|step| !step.is_empty());
    steps
}

/// Whether entries have the order of a server's: of appliers first, then by time and name.
fn is_sorted(entries: &Json) -> bool {
    let key = |entry: &Json| {
        let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
        (
            text("operation"),
            text("time"),
            text("manager"),
            our_version(&text("apiVersion")).to_owned(),
        )
    };
    entries.as_array().is_none_or(|all| all.iter().map(key).is_sorted())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(manager: &str, operation: &str, version: &str, below: &str, fields: Json) -> Json {
        json!({"manager": manager, "operation": operation, "apiVersion": version, "subresource": below, "fieldsV1": fields})
    }

    fn api() -> OpenApi {
        OpenApi::new(&json!({"definitions": {
            "v1.K": {"properties": {"l": {"type": "array", "items": {"$ref": "#/definitions/v1.ObjectReference"}}}},
            "v1.ObjectReference": {"properties": {"name": {}, "uid": {}}},
        }}))
    }

    #[test]
    fn owners_are_compared_by_field_without_subresource_and_time() {
        let api = api();
        let kind = Kind { api: &api, definition: None };
        let fields = json!({"f:spec": {".": {}, "f:l": {"k:{\"n\":\"a\"}": {".": {}, "f:v": {}}}}, "f:status": {"f:s": {}}});
        let theirs = json!([entry("a", "Apply", "policy/v1beta1", "", fields)]);
        let spec = json!({"f:spec": {".": {}, "f:l": {"k:{\"n\":\"a\"}": {".": {}, "f:v": {}}}}});
        let status = json!({"f:status": {"f:s": {}}});
        let ours = json!([
            entry("a", "Apply", "policy/v1", "", spec),
            entry("a", "Apply", "policy/v1", "status", status)
        ]);
        assert!(kind.differences(&theirs, &ours).is_empty());
        let other = json!({"f:spec": {"f:l": {"k:{\"n\":\"b\"}": {".": {}, "f:v": {}}}}, "f:status": {"f:s": {}}});
        let other = json!([entry("a", "Apply", "policy/v1", "", other)]);
        let expected = [
            "owned a Apply spec only theirs",
            "owned a Apply spec.l[*] only ours",
            "owned a Apply spec.l[*] only theirs",
            "owned a Apply spec.l[*].v only ours",
            "owned a Apply spec.l[*].v only theirs",
        ];
        assert_eq!(kind.differences(&theirs, &other), expected);
        let updated = json!([entry("a", "Update", "policy/v1", "", json!({"f:x": {}}))]);
        assert_eq!(kind.differences(&json!([]), &updated), ["owned a Update x only ours"]);
        let unsorted = json!([
            entry("b", "Apply", "v1", "", json!({})),
            entry("a", "Apply", "v1", "", json!({}))
        ]);
        assert_eq!(kind.differences(&json!(null), &unsorted), ["owners sorted true false"]);
    }

    #[test]
    fn owners_of_a_whole_differ_as_one_that_has_the_fields_of_it() {
        let api = api();
        let kind = Kind { api: &api, definition: Some("v1.K") };
        let by_field = json!({"f:l": {"k:{\"uid\":\"u\"}": {".": {}, "f:name": {}, "f:uid": {}}}});
        let whole = json!({"f:l": {"k:{\"uid\":\"u\"}": {}}});
        let all = |fields: Json| json!([entry("a", "Apply", "v1", "", fields)]);
        let said = kind.differences(&all(by_field.clone()), &all(whole));
        assert_eq!(said, ["whole ObjectReference"]);
        let said = kind.differences(&all(by_field), &json!([]));
        assert_eq!(said, ["owned a Apply l[*] only theirs", "whole ObjectReference"]);
    }

    #[test]
    fn conflicts_are_compared_by_field_and_owner() {
        let api = api();
        let kind = Kind { api: &api, definition: Some("v1.K") };
        let cause = |field: &str, with: &str| (field.to_owned(), format!("conflict with {with}"));
        let theirs = [cause(".a[k=\"]\"].b", "\"m\" using policy/v1beta1 at 2021-01-01T00:00:00Z")];
        let ours = [cause(".a[k=\"]\"].b", "\"m\" with subresource \"status\" using policy/v1")];
        assert!(kind.conflicts(&theirs, &ours).is_empty());
        let other = [cause(".a[k=\"]\"].b", "\"n\"")];
        assert_eq!(
            kind.conflicts(&theirs, &other),
            [
                "conflict a[*].b \"m\" using policy/v1 only theirs",
                "conflict a[*].b \"n\" only ours"
            ]
        );
        let (field, whole) =
            ([cause(".l[uid=\"u\"].name", "\"m\"")], [cause(".l[uid=\"u\"]", "\"m\"")]);
        assert_eq!(kind.conflicts(&field, &whole), ["whole ObjectReference"]);
    }
}
