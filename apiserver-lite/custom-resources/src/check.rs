//! Writes of definitions: defaults, and every rule of apiextensions v1.

use apiserver_schema::validate::names;
use apiserver_schema::{FieldError, Map, Value};

use crate::errors::{ErrorList, Path};
use crate::pattern::{PatternError, Patterns};
use crate::read::{DefinitionReadError, Reader};

mod columns;
mod conversion;
mod defaults;
mod schema;
mod selectable_fields;
mod structure;
#[cfg(test)]
mod tests;
mod versions;

/// Fills in what a definition may leave out: the singular name, the kind of lists, the conversion.
pub fn default_definition(tree: &mut Value) {
    let Some(spec) = tree.as_map_mut().and_then(|root| root.map_mut("spec")) else { return };
    if let Some(names) = spec.map_mut("names") {
        let kind = names.str("kind").to_owned();
        if names.str("singular").is_empty() && !kind.is_empty() {
            names.insert("singular", kind.to_lowercase());
        }
        if names.str("listKind").is_empty() && !kind.is_empty() {
            names.insert("listKind", format!("{kind}List"));
        }
    }
    // A conversion without a strategy is refused, as a definition without a scope is.
    if !spec.contains("conversion") {
        spec.map_or_insert("conversion").insert("strategy", "None");
    }
    let conversion = spec.map_or_insert("conversion");
    let webhook = conversion.map_mut("webhook").and_then(|webhook| webhook.map_mut("clientConfig"));
    let service = webhook.and_then(|client| client.map_mut("service"));
    if let Some(service) = service.filter(|service| !service.contains("port")) {
        service.insert("port", 443_i64);
    }
}

/// Validates a definition with its defaults; `old` is the stored one of an update. `metadata` is checked elsewhere, except for the name.
pub fn validate_definition(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = ErrorList::default();
    let empty = Map::new();
    let root = new.as_map().unwrap_or(&empty);
    let spec = root.map("spec").unwrap_or(&empty);
    if old.is_none() {
        check_name(root, spec, &mut errors);
    }
    check_spec(spec, &mut errors);
    if let Some(old) = old.and_then(Value::as_map) {
        check_update(spec, old, &mut errors);
    }
    let old_preserves = old
        .and_then(Value::as_map)
        .and_then(|old| old.map("spec"))
        .is_some_and(|spec| spec.is_true("preserveUnknownFields"));
    if spec.is_true("preserveUnknownFields") && !old_preserves {
        let detail = "cannot set to true, set x-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.invalid(&Path::ROOT.field("spec.preserveUnknownFields"), &Value::Bool(true), detail);
    }
    if let Some(status) = root.map("status") {
        let path = Path::ROOT.field("status.acceptedNames");
        check_names(status.map("acceptedNames").unwrap_or(&empty), path, &mut errors);
        if old.is_some() {
            check_stored_versions(status, spec, &mut errors);
        }
    }
    errors.0
}

fn check_name(root: &Map, spec: &Map, errors: &mut ErrorList) {
    let name = root.str_at(&["metadata", "name"]);
    let required = format!("{}.{}", spec.str_at(&["names", "plural"]), spec.str("group"));
    if name != required {
        let path = Path::ROOT.field("metadata.name");
        errors.invalid_text(&path, name, "must be spec.names.plural+\".\"+spec.group");
    }
}

fn check_spec(spec: &Map, errors: &mut ErrorList) {
    let group = spec.str("group");
    let path = Path::ROOT.field("spec.group");
    if group.is_empty() {
        errors.required(&path, "");
    } else {
        errors.complain(&path, group, &names::dns_subdomain(group));
        if names::dns_subdomain(group).is_empty() && !group.contains('.') {
            errors.invalid_text(&path, group, "should be a domain with at least one dot");
        }
    }
    let path = Path::ROOT.field("spec.scope");
    one_of(spec.str("scope"), &["Cluster", "Namespaced"], &path, errors);
    versions::check(spec, errors);
    let empty = Map::new();
    let names = spec.map("names").unwrap_or(&empty);
    let path = Path::ROOT.field("spec.names");
    for field in ["plural", "singular", "kind", "listKind"] {
        if names.str(field).is_empty() {
            errors.required(&path.field(field), "");
        }
    }
    check_names(names, path, errors);
    conversion::check(spec, errors);
}

fn one_of(value: &str, supported: &[&str], path: &Path<'_>, errors: &mut ErrorList) {
    if value.is_empty() {
        errors.required(path, "");
    } else if !supported.contains(&value) {
        let supported: Vec<String> = supported.iter().map(|&name| name.to_owned()).collect();
        errors.not_supported(path, &Value::from(value), &supported);
    }
}

fn check_names(names: &Map, path: Path<'_>, errors: &mut ErrorList) {
    let label = names::dns_1035_label;
    for field in ["plural", "singular"] {
        let name = names.str(field);
        if !name.is_empty() {
            errors.complain(&path.field(field), name, &label(name));
        }
    }
    for field in ["kind", "listKind"] {
        let name = names.str(field);
        let complaints = label(&name.to_lowercase());
        if !name.is_empty() && !complaints.is_empty() {
            let complaints = complaints.join(",");
            let detail = format!("may have mixed case, but should otherwise match: {complaints}");
            errors.invalid_text(&path.field(field), name, &detail);
        }
    }
    let kind = names.str("kind");
    if !kind.is_empty() && kind == names.str("listKind") {
        let detail = "kind and listKind may not be the same";
        errors.invalid_text(&path.field("listKind"), kind, detail);
    }
    for field in ["shortNames", "categories"] {
        for (at, name) in names.list(field).iter().enumerate() {
            let name = name.as_str().unwrap_or_default();
            errors.complain(&path.field(field).index(at), name, &label(name));
        }
    }
}

/// What may not change. `old` is the stored definition.
fn check_update(spec: &Map, old: &Map, errors: &mut ErrorList) {
    let empty = Map::new();
    let established = old.map("status").is_some_and(|status| {
        let mut conditions = status.maps("conditions");
        conditions.any(|one| one.str("type") == "Established" && one.str("status") == "True")
    });
    let old = old.map("spec").unwrap_or(&empty);
    let mut same = |path: &[&str]| {
        let (new, old) = (spec.str_at(path), old.str_at(path));
        if new != old {
            let path = path.join(".");
            errors.invalid_text(&Path::ROOT.field("spec").field(&path), new, "field is immutable");
        }
    };
    if established {
        same(&["scope"]);
        same(&["names", "kind"]);
    }
    same(&["group"]);
    same(&["names", "plural"]);
}

fn check_stored_versions(status: &Map, spec: &Map, errors: &mut ErrorList) {
    let stored = status.list("storedVersions");
    let path = Path::ROOT.field("status.storedVersions");
    if stored.is_empty() {
        let none = Value::List(Vec::new());
        return errors.invalid(&path, &none, "must have at least one stored version");
    }
    let has = |name: &str| stored.iter().any(|version| version.as_str() == Some(name));
    for version in spec.maps("versions").filter(|version| version.is_true("storage")) {
        let name = version.str("name");
        if !has(name) {
            errors.invalid_text(&path, name, &format!("must have the storage version {name}"));
        }
    }
    for (at, version) in stored.iter().enumerate() {
        let name = version.as_str().unwrap_or_default();
        if !spec.maps("versions").any(|version| version.str("name") == name) {
            errors.invalid_text(&path.index(at), name, "must appear in spec.versions");
        }
    }
}

/// Checks one schema in full.
fn check_schema(
    schema: &Map,
    has_status: bool,
    path: Path<'_>,
    patterns: &mut Patterns,
    errors: &mut ErrorList,
) {
    let before = errors.len();
    let root = match Reader::new(patterns).read(schema) {
        Ok(mut root) => {
            root.embedded = true;
            crate::rules::compile(&mut root, patterns); // what is wrong with the rules is reported below
            Some(root)
        }
        // Reported with its path below.
        Err(DefinitionReadError::Pattern(PatternError::Syntax { .. } | PatternError::TooLong)) => {
            None
        }
        Err(error) => return errors.forbidden(&path, &error.to_string()),
    };
    schema::check_root(schema, has_status, path, errors);
    schema::check(schema, path, errors);
    let found = errors.len();
    structure::check(schema, path, patterns, errors);
    let Some(root) = root else { return };
    if errors.len() == found {
        defaults::check(&root, path, errors);
    }
    if errors.len() == before {
        crate::rules::schema::check(&root, schema, path, patterns, errors);
    }
}
