//! Versions of a definition.
//!
//! Schemas, subresources and columns that are the same in all versions are checked once, and errors name them as fields of `spec`, as
//! kube-apiserver does.

use apiserver_schema::validate::names;
use apiserver_schema::{Map, Value};

use super::{check_schema, columns, selectable_fields};
use crate::errors::{ErrorList, Path};
use crate::pattern::Patterns;

/// Most versions of a definition.
const VERSIONS_MAX: usize = 100;

pub(super) fn check(spec: &Map, errors: &mut ErrorList) {
    let versions: Vec<&Map> = spec.maps("versions").collect();
    let path = Path::ROOT.field("spec.versions");
    if versions.len() > VERSIONS_MAX {
        let detail = format!("must have at most {VERSIONS_MAX} versions");
        return errors.forbidden(&path, &detail);
    }
    for (at, version) in versions.iter().enumerate() {
        let path = path.index(at);
        let schema = version.map("schema").and_then(|schema| schema.map("openAPIV3Schema"));
        if schema.is_none() {
            errors.required(&path.field("schema.openAPIV3Schema"), "schemas are required");
        }
        let name = version.str("name");
        errors.complain(&path.field("name"), name, &names::dns_1035_label(name));
        check_warning(version, path, errors);
    }
    // Of all versions together.
    let mut patterns = Patterns::default();
    check_once(&versions, "schema", "spec.validation", errors, |version, path, errors| {
        let schema = version.map("schema").and_then(|schema| schema.map("openAPIV3Schema"));
        if let Some(schema) = schema {
            check_schema(
                schema,
                has_status(&versions, version),
                path.field("openAPIV3Schema"),
                &mut patterns,
                errors,
            );
        }
    });
    check_once(&versions, "subresources", "spec.subresources", errors, |version, path, errors| {
        if let Some(subresources) = version.map("subresources") {
            columns::check_subresources(subresources, path, errors);
        }
    });
    let columns = "additionalPrinterColumns";
    check_once(
        &versions,
        columns,
        "spec.additionalPrinterColumns",
        errors,
        |version, path, errors| {
            for (at, column) in version.maps(columns).enumerate() {
                columns::check_column(column, path.index(at), errors);
            }
        },
    );
    check_selectable_fields(&versions, &mut patterns, errors);
    check_set(&versions, &path, errors);
}

/// Selectable fields are looked up in the schema of their version.
fn check_selectable_fields(versions: &[&Map], patterns: &mut Patterns, errors: &mut ErrorList) {
    const FIELD: &str = "selectableFields";
    if is_same(versions, FIELD) && is_same(versions, "schema") {
        if let Some(version) = versions.first() {
            let path = Path::ROOT.field("spec");
            selectable_fields::check(version, path.field(FIELD), patterns, errors);
        }
        return;
    }
    for (at, version) in versions.iter().enumerate() {
        let path = Path::ROOT.field("spec.versions");
        let path = path.index(at);
        selectable_fields::check(version, path.field(FIELD), patterns, errors);
    }
}

/// Whether `status` is a subresource of the version, or of any if all have the same schema.
fn has_status(versions: &[&Map], version: &Map) -> bool {
    let status = |version: &Map| {
        version.map("subresources").is_some_and(|subresources| subresources.contains("status"))
    };
    if is_same(versions, "schema") {
        versions.iter().any(|version| status(version))
    } else {
        status(version)
    }
}

fn is_same(versions: &[&Map], field: &str) -> bool {
    let first = versions.first().and_then(|version| version.get(field));
    versions.iter().all(|version| version.get(field) == first)
}

/// Checks a field of all versions: once, as a field of `spec`, if it is the same in all.
fn check_once(
    versions: &[&Map],
    field: &str,
    common: &str,
    errors: &mut ErrorList,
    mut check: impl FnMut(&Map, Path<'_>, &mut ErrorList),
) {
    if is_same(versions, field) {
        if let Some(version) = versions.first() {
            check(version, Path::ROOT.field(common), errors);
        }
        return;
    }
    for (at, version) in versions.iter().enumerate() {
        let path = format!("spec.versions[{at}].{field}");
        check(version, Path::ROOT.field(&path), errors);
    }
}

/// What all versions together must be.
fn check_set(versions: &[&Map], path: &Path<'_>, errors: &mut ErrorList) {
    let names: Vec<Value> =
        versions.iter().map(|version| Value::from(version.str("name"))).collect();
    let unique =
        names.iter().enumerate().all(|(at, name)| !names.iter().take(at).any(|one| one == name));
    let names = Value::List(names);
    if !unique {
        errors.invalid(path, &names, "must contain unique version names");
    }
    if versions.iter().filter(|version| version.is_true("storage")).count() != 1 {
        let detail = "must have exactly one version marked as storage version";
        errors.invalid(path, &names, detail);
    }
}

fn check_warning(version: &Map, path: Path<'_>, errors: &mut ErrorList) {
    let Some(warning) = version.get("deprecationWarning").and_then(Value::as_str) else { return };
    let path = path.field("deprecationWarning");
    if !version.is_true("deprecated") {
        return errors.invalid_text(&path, warning, "can only be set for deprecated versions");
    }
    if warning.len() > 256 {
        errors.invalid_text(&path, warning, "must be <= 256 characters long");
    }
    if warning.is_empty() {
        errors.invalid_text(&path, warning, "must not be an empty string");
    }
    if let Some((at, _)) = warning.char_indices().find(|(_, c)| c.is_control() || *c == '\u{a0}') {
        let detail = format!(
            "must only contain printable UTF-8 characters; non-printable character found at index {at}"
        );
        errors.invalid_text(&path, warning, &detail);
    }
}
