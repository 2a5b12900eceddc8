//! Brings a built-in object up to date: the spec of a mandatory one is always that of this version; that of a suggested one unless its annotation, or a
//! change of its spec, says that it is an administrator's.

use apiserver_schema::Object;

/// Whether an annotation says that the spec follows the version of the server; `None` if it says nothing that can be read.
fn read_auto_update(object: &Object, annotation: &str) -> Option<bool> {
    match object.annotations().get(annotation)?.as_str() {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Whether the spec of a suggested object follows the version of the server.
#[must_use]
pub fn is_auto_updated(object: &Object, annotation: &str) -> bool {
    read_auto_update(object, annotation).unwrap_or_else(|| object.generation() == 1)
}

/// Whether an object that is not built in was that in an earlier version, and no user has taken it over.
#[must_use]
pub fn is_obsolete(object: &Object, annotation: &str) -> bool {
    read_auto_update(object, annotation) == Some(true)
}

/// The `stored` object as it should be, given the `wanted` one; `None` if it is so.
#[must_use]
pub fn reconcile(
    stored: &Object,
    wanted: &Object,
    is_mandatory: bool,
    annotation: &str,
) -> Option<Object> {
    let follows = is_mandatory || is_auto_updated(stored, annotation);
    let mut next = stored.clone();
    if read_auto_update(stored, annotation) != Some(follows) {
        let annotations = next.metadata_mut().map_or_insert("annotations");
        annotations.insert(annotation.to_owned(), if follows { "true" } else { "false" });
    }
    if follows && let Some(spec) = wanted.spec() {
        next.fields.insert("spec", spec.clone());
    }
    (next != *stored).then_some(next)
}

#[cfg(test)]
mod tests {
    use apiserver_schema::{Engine, Format, Strictness};
    use proto_api::names::{Names, Profile};
    use serde_json::json;

    use super::*;

    const ANNOTATION: &str = "apf.kubernetes.io/autoupdate-spec";

    fn level(shares: i64, said: Option<&str>, generation: i64) -> Object {
        let engine = Engine::new(Names::new(Profile::Kubernetes));
        let kind =
            engine.kind("flowcontrol.apiserver.k8s.io", "v1beta2", "PriorityLevelConfiguration");
        let annotations = said.map(|said| json!({ANNOTATION: said}));
        let spec = json!({"type": "Limited", "limited": {"assuredConcurrencyShares": shares}});
        let metadata = json!({"name": "a", "generation": generation, "annotations": annotations});
        let text = json!({"metadata": metadata, "spec": spec}).to_string();
        let decoded =
            engine.decode(kind.expect("a kind"), Format::Json, text.as_bytes(), Strictness::Ignore);
        decoded.expect("valid").object
    }

    #[test]
    fn a_spec_is_replaced_unless_it_is_an_administrators() {
        let wanted = level(30, Some("true"), 0);
        // shares, annotation and generation of the stored object; mandatory; what is written: shares and annotation
        let cases = [
            ((30, Some("true"), 1), false, None),
            ((30, Some("true"), 1), true, None),
            ((99, Some("true"), 2), false, Some((30, "true"))),
            ((99, Some("false"), 2), false, None),
            ((99, Some("false"), 2), true, Some((30, "true"))),
            ((30, Some("false"), 1), true, Some((30, "true"))),
            ((99, None, 1), false, Some((30, "true"))),
            ((99, None, 2), false, Some((99, "false"))),
            ((99, Some("maybe"), 2), false, Some((99, "false"))),
            ((30, None, 1), false, Some((30, "true"))),
            ((30, Some("1"), 5), false, None),
        ];
        for (stored, is_mandatory, expected) in cases {
            let (shares, said, generation) = stored;
            let next =
                reconcile(&level(shares, said, generation), &wanted, is_mandatory, ANNOTATION);
            let next = next.map(|next| {
                let shares = next
                    .spec()
                    .and_then(|spec| spec.map("limited")?.int("assuredConcurrencyShares"));
                (shares.expect("shares"), next.annotations()[ANNOTATION].clone())
            });
            let expected = expected.map(|(shares, said)| (shares, said.to_owned()));
            assert_eq!(next, expected, "{stored:?} mandatory: {is_mandatory}");
        }
    }

    #[test]
    fn former_built_in_objects_are_obsolete_only_if_annotated_for_auto_update() {
        for (said, expected) in
            [(Some("true"), true), (Some("false"), false), (None, false), (Some("x"), false)]
        {
            assert_eq!(is_obsolete(&level(1, said, 1), ANNOTATION), expected, "{said:?}");
        }
    }
}
