//! The names that a definition gets, and its conditions `NamesAccepted` and `Established`, as `status` shows them.

use apiserver_custom_resources::{
    AcceptedNames, DefinitionReadError, OtherDefinition, accept_names, read_definition,
};
use apiserver_schema::{Map, Object, Value};

use super::strategy::{DefinitionCondition, set_condition};

/// Group and plural name of a definition.
#[must_use]
pub fn resource(definition: &Object) -> (&str, &str) {
    (definition.str_at(&["spec", "group"]), definition.str_at(&["spec", "names", "plural"]))
}

/// The names that a stored definition has.
#[must_use]
pub fn of_stored(definition: &Object) -> OtherDefinition<'_> {
    let empty = Map::new();
    let names = definition.status().and_then(|status| status.map("acceptedNames"));
    let names = names.unwrap_or(&empty);
    let texts = |field: &str| -> Vec<String> {
        names.list(field).iter().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let accepted = AcceptedNames {
        plural: names.str("plural").to_owned(),
        singular: names.str("singular").to_owned(),
        short_names: texts("shortNames"),
        kind: names.str("kind").to_owned(),
        list_kind: names.str("listKind").to_owned(),
        categories: texts("categories"),
    };
    OtherDefinition { group: definition.str_at(&["spec", "group"]), accepted }
}

/// Whether the definition has all names of its spec, and is established: there is nothing to accept.
#[must_use]
pub fn is_settled(definition: &Object) -> bool {
    let names = definition.spec().and_then(|spec| spec.map("names"));
    let accepted = definition.status().and_then(|status| status.map("acceptedNames"));
    let conditions = ["NamesAccepted", "Established"];
    names == accepted && conditions.iter().all(|condition| super::is_true(definition, condition))
}

/// Takes over the names of the spec that none of `others` has, and sets the conditions.
///
/// # Errors
/// A stored definition that cannot be read.
pub fn accept(
    definition: &mut Object,
    others: &[OtherDefinition<'_>],
    now: &str,
) -> Result<(), DefinitionReadError> {
    let tree = Value::Map(std::mem::take(&mut definition.fields));
    let read = read_definition(&tree);
    if let Value::Map(fields) = tree {
        definition.fields = fields;
    }
    let decision = accept_names(&read?, definition.status(), others.iter().cloned());
    let names = names_tree(&decision.accepted);
    definition.fields.map_or_insert("status").insert("acceptedNames", names);
    for condition in [decision.names_accepted, decision.established] {
        let status = if condition.status == "True" { "True" } else { "False" };
        let (kind, reason, message) = (condition.kind, condition.reason, condition.message);
        set_condition(definition, DefinitionCondition { kind, status, reason, message }, now);
    }
    Ok(())
}

/// The names as a definition has them; empty ones are left out.
fn names_tree(names: &AcceptedNames) -> Map {
    let texts = |texts: &[String]| -> Value {
        texts.iter().map(|text| Value::from(text.as_str())).collect::<Vec<Value>>().into()
    };
    let fields = [
        ("plural", Value::from(names.plural.as_str())),
        ("singular", names.singular.as_str().into()),
        ("shortNames", texts(&names.short_names)),
        ("kind", names.kind.as_str().into()),
        ("listKind", names.list_kind.as_str().into()),
        ("categories", texts(&names.categories)),
    ];
    fields.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use apiserver_schema::{Engine, Format, Strictness};
    use proto_api::names::{Names, Profile};

    use super::super::is_true;
    use super::*;

    fn definition(plural: &str, kind: &str, short: &[&str]) -> Object {
        let engine = Engine::new(Names::new(Profile::Kubernetes));
        let json = format!(
            r#"{{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{{"name":"{plural}.example.com"}},
                "spec":{{"group":"example.com","scope":"Namespaced","versions":[],
                "names":{{"plural":"{plural}","singular":"{}","kind":"{kind}","listKind":"{kind}List","shortNames":{short:?}}}}}}}"#,
            kind.to_lowercase()
        );
        engine.decode_any(Format::Json, json.as_bytes(), Strictness::Strict).unwrap().object
    }

    fn reason(object: &Object, condition: &str) -> (String, String) {
        let mut all = object.status().unwrap().maps("conditions");
        let found = all.find(|have| have.str("type") == condition).unwrap();
        (found.str("reason").to_owned(), found.str("message").to_owned())
    }

    #[test]
    fn the_first_gets_the_name_and_the_next_when_it_goes() {
        let mut first = definition("backups", "Backup", &["bk"]);
        let mut second = definition("books", "Book", &["bk", "bo"]);
        assert!(!is_settled(&first));
        accept(&mut first, &[], "1").unwrap();
        assert!(is_true(&first, "NamesAccepted") && is_true(&first, "Established"));
        assert!(is_settled(&first));
        let taken = [of_stored(&first)];
        let mut again = first.clone();
        accept(&mut again, &taken, "2").unwrap();
        assert_eq!(again, first, "its own names are no conflict");
        accept(&mut second, &taken, "2").unwrap();
        assert!(!is_true(&second, "NamesAccepted") && !is_true(&second, "Established"));
        let conflict = ("ShortNamesConflict".to_owned(), "\"bk\" is already in use".to_owned());
        assert_eq!(reason(&second, "NamesAccepted"), conflict);
        assert_eq!(reason(&second, "Established").0, "NotAccepted");
        assert!(!is_settled(&second));
        accept(&mut second, &[], "3").unwrap();
        assert!(is_true(&second, "Established") && is_settled(&second));
        assert_eq!(reason(&second, "Established").0, "InitialNamesAccepted");
    }

    #[test]
    fn an_established_definition_stays_so_when_a_new_name_is_taken() {
        let mut first = definition("backups", "Backup", &[]);
        let mut second = definition("books", "Book", &[]);
        accept(&mut first, &[], "1").unwrap();
        accept(&mut second, &[], "1").unwrap();
        let names = second.fields.map_or_insert("spec").map_or_insert("names");
        names.insert("listKind", "BackupList");
        accept(&mut second, &[of_stored(&first)], "2").unwrap();
        assert_eq!(reason(&second, "NamesAccepted").0, "ListKindConflict");
        assert!(is_true(&second, "Established"));
        let accepted = second.status().unwrap().map("acceptedNames").unwrap();
        assert_eq!(accepted.str("listKind"), "BookList");
    }
}
