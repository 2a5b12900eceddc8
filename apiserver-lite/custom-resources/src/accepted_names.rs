//! Names: which of the requested names of a definition are free, and the conditions that report it.

use std::collections::HashSet;

use apiserver_schema::{Map, Value};

use crate::definition::{Definition, Names, read_names};

/// The names that a definition has got: `status.acceptedNames`.
pub type AcceptedNames = Names;

/// Another definition with its accepted names.
#[derive(Clone, Debug)]
pub struct OtherDefinition<'a> {
    pub group: &'a str,
    /// Its `status.acceptedNames`.
    pub accepted: AcceptedNames,
}

impl<'a> OtherDefinition<'a> {
    /// Reads a stored definition.
    pub fn read(tree: &'a Value) -> Self {
        let root = tree.as_map();
        let names =
            root.and_then(|root| root.at(&["status", "acceptedNames"])).and_then(Value::as_map);
        OtherDefinition {
            group: root.map_or("", |root| root.str_at(&["spec", "group"])),
            accepted: names.map(read_names).unwrap_or_default(),
        }
    }
}

/// A condition of a definition. The time of its last transition is set by who stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Its type: `NamesAccepted`, `Established`, or that of an approval.
    pub kind: &'static str,
    /// `True` or `False`.
    pub status: String,
    pub reason: String,
    pub message: String,
}

/// The accepted names of a definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamesDecision {
    /// New `status.acceptedNames`.
    pub accepted: AcceptedNames,
    /// Whether all names are free.
    pub names_accepted: Condition,
    /// Whether its kinds are served. Once true, it stays so.
    pub established: Condition,
}

/// Decides on the names of a definition. `status` is its stored status, `others` are all definitions, itself or not.
pub fn accept_names<'a>(
    definition: &Definition,
    status: Option<&Map>,
    others: impl IntoIterator<Item = OtherDefinition<'a>>,
) -> NamesDecision {
    let mut used = Used::default();
    let same_group = others.into_iter().filter(|other| other.group == definition.group);
    same_group.for_each(|other| used.add(other.accepted));
    let had = status.and_then(|status| status.map("acceptedNames")).map(read_names);
    let had = had.unwrap_or_default();
    let wanted = &definition.names;
    let mut accepted = had.clone();
    let mut conflict: Option<(&str, String)> = None;
    let mut take = |reason, wanted: &str, had: &mut String, used: &HashSet<String>| match in_use(
        wanted, had, used,
    ) {
        Some(why) => conflict = Some((reason, why)),
        None => *had = wanted.to_owned(),
    };
    take("PluralConflict", &wanted.plural, &mut accepted.plural, &used.resources);
    take("SingularConflict", &wanted.singular, &mut accepted.singular, &used.resources);
    if wanted.short_names != had.short_names {
        let fresh = wanted.short_names.iter().filter(|name| !had.short_names.contains(name));
        let mut taken: Vec<String> =
            fresh.filter_map(|name| in_use(name, "", &used.resources)).collect();
        taken.dedup();
        match taken.as_slice() {
            [] => accepted.short_names.clone_from(&wanted.short_names),
            [one] => conflict = Some(("ShortNamesConflict", one.clone())),
            many => conflict = Some(("ShortNamesConflict", format!("[{}]", many.join(", ")))),
        }
    }
    let mut take = |reason, wanted: &str, had: &mut String| match in_use(wanted, had, &used.kinds) {
        Some(why) => conflict = Some((reason, why)),
        None => *had = wanted.to_owned(),
    };
    take("KindConflict", &wanted.kind, &mut accepted.kind);
    take("ListKindConflict", &wanted.list_kind, &mut accepted.list_kind);
    accepted.categories.clone_from(&wanted.categories);
    let names_accepted = match conflict {
        None => condition("NamesAccepted", true, "NoConflicts", "no conflicts found"),
        Some((reason, why)) => condition("NamesAccepted", false, reason, &why),
    };
    let established = established(status, names_accepted.status == "True");
    NamesDecision { accepted, names_accepted, established }
}

fn established(status: Option<&Map>, accepted: bool) -> Condition {
    let old = status.and_then(|status| {
        status.maps("conditions").find(|condition| condition.str("type") == "Established")
    });
    match old {
        Some(old) if old.str("status") == "True" || !accepted => Condition {
            kind: "Established",
            status: old.str("status").to_owned(),
            reason: old.str("reason").to_owned(),
            message: old.str("message").to_owned(),
        },
        _ if accepted => {
            let message = "the initial names have been accepted";
            condition("Established", true, "InitialNamesAccepted", message)
        }
        _ => condition("Established", false, "NotAccepted", "not all names are accepted"),
    }
}

fn condition(kind: &'static str, holds: bool, reason: &str, message: &str) -> Condition {
    Condition {
        kind,
        status: if holds { "True" } else { "False" }.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
    }
}

/// Names that the definitions of a group have.
#[derive(Default)]
struct Used {
    resources: HashSet<String>,
    kinds: HashSet<String>,
}

impl Used {
    fn add(&mut self, names: Names) {
        self.resources.extend([names.plural, names.singular]);
        self.resources.extend(names.short_names);
        self.kinds.extend([names.kind, names.list_kind]);
    }
}

fn in_use(wanted: &str, had: &str, used: &HashSet<String>) -> Option<String> {
    (wanted != had && used.contains(wanted)).then(|| format!("{wanted:?} is already in use"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{definition, value};

    fn other(plural: &str, kind: &str, short: &[&str]) -> OtherDefinition<'static> {
        let accepted = Names {
            plural: plural.to_owned(),
            singular: kind.to_lowercase(),
            short_names: short.iter().map(|&name| name.to_owned()).collect(),
            kind: kind.to_owned(),
            list_kind: format!("{kind}List"),
            categories: Vec::new(),
        };
        OtherDefinition { group: "example.com", accepted }
    }

    fn decide(status: &str, others: Vec<OtherDefinition<'_>>) -> NamesDecision {
        let definition = crate::read_definition(&definition("{}")).expect("a definition");
        let status = value(status);
        accept_names(&definition, status.as_map(), others)
    }

    #[test]
    fn free_names_are_accepted_and_the_kind_is_established() {
        let decision = decide("{}", vec![other("gadgets", "Gadget", &["ga"])]);
        assert_eq!(decision.accepted.plural, "widgets");
        assert_eq!(decision.names_accepted.reason, "NoConflicts");
        assert_eq!(decision.names_accepted.message, "no conflicts found");
        assert_eq!(decision.established.status, "True");
        assert_eq!(decision.established.reason, "InitialNamesAccepted");
    }

    #[test]
    fn names_of_others_are_refused_with_the_reason() {
        let cases = [
            (other("widgets", "Gadget", &[]), "PluralConflict", "\"widgets\" is already in use"),
            (
                other("gadgets", "Gadget", &["widget"]),
                "SingularConflict",
                "\"widget\" is already in use",
            ),
            (other("gadgets", "Gadget", &["wd"]), "ShortNamesConflict", "\"wd\" is already in use"),
        ];
        for (other, reason, message) in cases {
            let decision = decide("{}", vec![other]);
            assert_eq!(decision.names_accepted.status, "False");
            assert_eq!(decision.names_accepted.reason, reason);
            assert_eq!(decision.names_accepted.message, message);
            assert_eq!(decision.established.reason, "NotAccepted");
        }
        let mut kind = other("gadgets", "Gadget", &[]);
        kind.accepted.kind = "Widget".to_owned();
        assert_eq!(decide("{}", vec![kind.clone()]).names_accepted.reason, "KindConflict");
        kind.group = "elsewhere.com";
        assert_eq!(decide("{}", vec![kind]).names_accepted.reason, "NoConflicts");
    }

    #[test]
    fn a_definition_keeps_its_accepted_names() {
        let status = r#"{"acceptedNames":{"plural":"widgets","singular":"widget","kind":"Widget",
            "listKind":"WidgetList","shortNames":["wd"]},
            "conditions":[{"type":"Established","status":"True","reason":"R","message":"m"}]}"#;
        let decision = decide(status, vec![other("widgets", "Widget", &["wd"])]);
        assert_eq!(decision.names_accepted.status, "True");
        assert_eq!(decision.established.reason, "R");
    }
}
