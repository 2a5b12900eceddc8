//! pure: what differs between two answers.

use serde_json::Value as Json;

use crate::case::{Answer, Cause};
use crate::open_api::OpenApi;
use crate::owners;

/// Metadata that each server makes for itself.
const OWN: [&str; 5] = ["uid", "resourceVersion", "creationTimestamp", "selfLink", "continue"];
/// Differences of one object that are told; more of them say no more.
const DIFFERENCES_MAX: usize = 40;

/// Says what differs, each in the words that the table's patterns match. `with_owners` says whether the owners of fields are compared by field, and
/// whether a write has stored anything.
pub fn differences(
    api: &OpenApi,
    definition: Option<&str>,
    with_owners: bool,
    theirs: &Answer,
    ours: &Answer,
) -> Vec<String> {
    if theirs.code == 0 || ours.code == 0 {
        return vec![format!("no answer {} {}", theirs.code, ours.code)];
    }
    if theirs.code != ours.code {
        let causes = if theirs.code == 422 { &theirs.causes } else { &ours.causes };
        let causes = fields(causes.iter());
        return vec![format!("code {} {} {causes}", theirs.code, ours.code).trim_end().to_owned()];
    }
    if theirs.reason != ours.reason {
        return vec![format!("reason {} {}", theirs.reason, ours.reason)];
    }
    if theirs.code == 422 {
        let only = |a: &[Cause], b: &[Cause]| {
            fields(a.iter().filter(|cause| !b.contains(cause)).collect::<Vec<_>>())
        };
        let (theirs, ours) =
            (only(&theirs.causes, &ours.causes), only(&ours.causes, &theirs.causes));
        if theirs.is_empty() && ours.is_empty() {
            return Vec::new();
        }
        if with_owners && theirs == ours {
            return vec![format!("causes at other positions {ours}")];
        }
        return vec![format!("causes theirs={theirs} ours={ours}")];
    }
    let kind = owners::Kind { api, definition };
    let mut found = kind.conflicts(&theirs.conflicts, &ours.conflicts);
    if let (Some(a), Some(b)) = (&theirs.object, &ours.object) {
        Comparison { api, with_owners, found: &mut found }.values(definition, a, b, "");
        if with_owners && theirs.is_rewritten != ours.is_rewritten {
            let whose = if theirs.is_rewritten { "theirs" } else { "ours" };
            found.push(format!("rewritten only {whose}"));
        }
        if with_owners {
            let entries = |object: &Json| object["metadata"]["managedFields"].clone();
            found.extend(kind.differences(&entries(a), &entries(b)));
        }
    }
    found
}

/// Causes without the positions of list items and without long names.
fn fields<'a>(causes: impl IntoIterator<Item = &'a Cause>) -> String {
    let mut all: Vec<String> = causes
        .into_iter()
        .map(|(field, reason)| {
            format!("{}:{}", without_positions(field), reason.trim_start_matches("FieldValue"))
        })
        .collect();
    all.sort();
    all.dedup();
    all.join(",")
}

/// `a[0].b` as `a[*].b`; keys that are no names of fields as `[*]` too.
fn without_positions(field: &str) -> String {
    let mut text = String::new();
    let mut is_inside = false;
    for letter in field.chars() {
        match letter {
            '[' => {
                is_inside = true;
                text.push_str("[*]");
            }
            ']' => is_inside = false,
            letter if !is_inside => text.push(letter),
            _ => {}
        }
    }
    text
}

struct Comparison<'a> {
    api: &'a OpenApi,
    with_owners: bool,
    found: &'a mut Vec<String>,
}

impl Comparison<'_> {
    fn tell(&mut self, what: String) {
        if self.found.len() < DIFFERENCES_MAX && !self.found.contains(&what) {
            self.found.push(what);
        }
    }

    fn values(&mut self, definition: Option<&str>, theirs: &Json, ours: &Json, path: &str) {
        match (theirs, ours) {
            (Json::Object(a), Json::Object(b)) => {
                // Lists and events of watches hold objects of the kind.
                let holds =
                    path.is_empty() && (a.contains_key("items") || a.contains_key("object"));
                let more = b.keys().filter(|name| !a.contains_key(*name));
                for name in a.keys().chain(more) {
                    let is_metadata = path == "metadata" || path.ends_with(".metadata");
                    let own = is_metadata && OWN.contains(&name.as_str())
                        || path == "details" && name == "uid";
                    // Which maps and lists have one owner as a whole differs between versions.
                    let owned = path.ends_with("managedFields[*]")
                        && ["time", "fieldsV1"].contains(&name.as_str());
                    let by_field =
                        self.with_owners && path == "metadata" && name == "managedFields";
                    if own || owned || by_field || (path.is_empty() && name == "apiVersion") {
                        continue;
                    }
                    let inner = match definition.filter(|name| !name.is_empty()) {
                        Some(_) if holds => {
                            definition.filter(|_| name == "items" || name == "object")
                        }
                        // A field that is newer than their version.
                        Some(above) => match self.api.field(above, name) {
                            None if !a.contains_key(name) => continue,
                            inner => inner,
                        },
                        None => None,
                    };
                    let here =
                        if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    let of = |object: &serde_json::Map<String, Json>| {
                        object.get(name).cloned().unwrap_or_default()
                    };
                    self.values(inner, &of(a), &of(b), &here);
                }
            }
            (Json::Array(a), Json::Array(b)) => {
                if a.len() != b.len() {
                    return self.tell(format!("stored {path} has {} {} items", a.len(), b.len()));
                }
                if self.with_owners && a != b && sorted(a) == sorted(b) {
                    return self.tell(format!("stored {path} in another order"));
                }
                for (a, b) in a.iter().zip(b) {
                    self.values(definition, a, b, &format!("{path}[*]"));
                }
            }
            // An empty list that is left out says the same.
            (Json::Array(items), Json::Null) | (Json::Null, Json::Array(items))
                if items.is_empty() => {}
            (a, b) if a == b || (is_time(a) && is_time(b)) => {}
            (_, Json::Null) => self.tell(format!("stored {path} only theirs")),
            (Json::Null, _) => self.tell(format!("stored {path} only ours")),
            _ => self.tell(format!("stored {path} differs")),
        }
    }
}

/// The items as texts, sorted.
fn sorted(items: &[Json]) -> Vec<String> {
    let mut texts: Vec<String> = items.iter().map(Json::to_string).collect();
    texts.sort();
    texts
}

/// Whether a value looks like a time of now.
fn is_time(value: &Json) -> bool {
    let text = value.as_str().unwrap_or_default();
    text.len() >= 20 && text.starts_with("20") && text.ends_with('Z') && text.contains('T')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stored(object: Json) -> Answer {
        Answer { code: 201, object: Some(object), ..Answer::default() }
    }

    fn refused(causes: &[(&str, &str)]) -> Answer {
        let causes = causes.iter().map(|(field, reason)| ((*field).into(), (*reason).into()));
        let reason = "Invalid".to_owned();
        Answer { code: 422, reason, causes: causes.collect(), ..Answer::default() }
    }

    #[test]
    fn codes_causes_and_stored_values_are_compared_and_newer_fields_are_not() {
        let api = OpenApi::new(&json!({"definitions": {"a": {"properties": {
            "metadata": {}, "b": {"type": "integer"}, "c": {"type": "string"},
        }}}}));
        let all = |a: &Answer, b: &Answer| differences(&api, Some("a"), false, a, b);
        let a = stored(json!({"metadata": {"uid": "1"}, "b": 1, "t": "2026-01-01T00:00:00Z"}));
        let b = stored(
            json!({"metadata": {"uid": "2"}, "b": 1, "t": "2026-01-02T00:00:00Z", "new": 3}),
        );
        assert!(all(&a, &b).is_empty());
        let b = stored(
            json!({"metadata": {"uid": "2"}, "b": 2, "c": "x", "t": "2026-01-01T00:00:00Z"}),
        );
        assert_eq!(all(&a, &b), ["stored b differs", "stored c only ours"]);
        let refusal = refused(&[("b[3].x", "FieldValueInvalid")]);
        assert_eq!(all(&a, &refusal), ["code 201 422 b[*].x:Invalid"]);
        assert!(all(&refusal, &refusal).is_empty());
        let other = refused(&[("b[3].x", "FieldValueRequired")]);
        assert_eq!(all(&refusal, &other), ["causes theirs=b[*].x:Invalid ours=b[*].x:Required"]);
    }
}
