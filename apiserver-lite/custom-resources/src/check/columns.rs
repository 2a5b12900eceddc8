//! Columns of tables and subresources: their paths.

use apiserver_schema::Map;

use super::one_of;
use crate::errors::{ErrorList, Path};

const TYPES: &str = "boolean,date,integer,number,string";
const FORMATS: &str = "byte,date,date-time,double,float,int32,int64,password";

pub(super) fn check_column(column: &Map, path: Path<'_>, errors: &mut ErrorList) {
    if column.str("name").is_empty() {
        errors.required(&path.field("name"), "");
    }
    let one_of = |list: &str| format!("must be one of {list}");
    match column.str("type") {
        "" => errors.required(&path.field("type"), &one_of(TYPES)),
        known if TYPES.split(',').any(|name| name == known) => {}
        other => errors.invalid_text(&path.field("type"), other, &one_of(TYPES)),
    }
    let format = column.str("format");
    if !format.is_empty() && !FORMATS.split(',').any(|name| name == format) {
        errors.invalid_text(&path.field("format"), format, &one_of(FORMATS));
    }
    match column.str("jsonPath") {
        "" => errors.required(&path.field("JSONPath"), ""),
        json_path => drop(check_path(json_path, &path.field("JSONPath"), errors)),
    }
}

/// Whether a path starts with a dot, with an error if not.
fn check_path(json_path: &str, path: &Path<'_>, errors: &mut ErrorList) -> bool {
    let fits = json_path.starts_with('.');
    if !fits {
        errors.invalid_text(path, json_path, "must be a simple json path starting with .");
    }
    fits
}

pub(super) fn check_subresources(subresources: &Map, path: Path<'_>, errors: &mut ErrorList) {
    let Some(scale) = subresources.map("scale") else { return };
    let rules: [(&str, &[&str], &str); 3] = [
        ("specReplicasPath", &[".spec."], "should be a json path under .spec"),
        ("statusReplicasPath", &[".status."], "should be a json path under .status"),
        (
            "labelSelectorPath",
            &[".spec.", ".status."],
            "should be a json path under either .spec or .status",
        ),
    ];
    for (field, prefixes, detail) in rules {
        let json_path = scale.str(field);
        let field_path = format!("scale.{field}");
        let path = path.field(&field_path);
        if json_path.is_empty() {
            if field != "labelSelectorPath" {
                errors.required(&path, "");
            }
            continue;
        }
        if !check_path(json_path, &path, errors) {
            continue;
        }
        let empty_field = json_path.split('.').skip(1).any(str::is_empty);
        if empty_field || !prefixes.iter().any(|prefix| json_path.starts_with(prefix)) {
            errors.invalid_text(&path, json_path, detail);
        }
    }
}

/// Checks the names of strategies and types that must be set.
pub(super) fn check_choice(value: &str, choices: &[&str], path: &Path<'_>, errors: &mut ErrorList) {
    one_of(value, choices, path, errors);
}
