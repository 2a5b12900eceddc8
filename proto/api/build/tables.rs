//! Writes the descriptor tables of every group: messages, kinds and resources, for `src/schema.rs`.

use crate::schema::{Field, Message, Resource, Schema, Shape, Value};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The number of each message: its index in the table, files in name order.
type Ids = BTreeMap<(String, String), usize>;

pub fn generate(schema: &Schema) -> String {
    let mut code =
        String::from("// Generated from the tables in `schema/` by `build/tables.rs`.\n\n");
    let ids = number(schema);
    messages(&mut code, schema, &ids);
    kinds(&mut code, schema, &ids);
    resources(&mut code, ("RESOURCES", &schema.resources), schema, &ids);
    resources(&mut code, ("OPTIONAL_RESOURCES", &schema.optional_resources), schema, &ids);
    code
}

fn number(schema: &Schema) -> Ids {
    let all = schema.groups.iter().flat_map(|(stem, group)| {
        group.messages.iter().map(move |m| (stem.clone(), m.name.clone()))
    });
    all.enumerate().map(|(id, key)| (key, id)).collect()
}

fn messages(code: &mut String, schema: &Schema, ids: &Ids) {
    let _ = writeln!(code, "pub(super) static MESSAGES: [MessageDescriptor; {}] = [", ids.len());
    for group in schema.groups.values() {
        for message in &group.messages {
            let _ = writeln!(
                code,
                "    MessageDescriptor {{ group: {:?}, version: {:?}, name: {:?}, is_kind: {}, union: {}, atomic: {}, fields: &[",
                group.name,
                group.version,
                message.name,
                message.is_kind(),
                message.markers.has("union"),
                message.markers.get("structType") == Some("atomic"),
            );
            for field in &message.fields {
                let _ = writeln!(code, "        {},", field_literal(field, ids));
            }
            code.push_str("    ] },\n");
        }
    }
    code.push_str("];\n\n");
}

/// A field as a struct literal with the members that differ from `FieldDescriptor::PLAIN`.
fn field_literal(field: &Field, ids: &Ids) -> String {
    let mut out = format!("FieldDescriptor {{ json: {:?}, number: {}", field.json, field.number);
    let _ = write!(out, ", value: {}", value(&field.ty.value, ids));
    let shape = match field.ty.shape {
        Shape::Plain => None,
        Shape::Pointer => Some("Pointer"),
        Shape::List => Some("List"),
        Shape::Map => Some("Map"),
    };
    if let Some(shape) = shape {
        let _ = write!(out, ", shape: Shape::{shape}");
    }
    for (name, set) in [
        ("omit_empty", field.omit_empty),
        ("inline", field.inline),
        ("optional", field.markers.has("optional")),
    ] {
        if set {
            let _ = write!(out, ", {name}: true");
        }
    }
    topology(&mut out, field);
    patch(&mut out, field);
    if let Some(default) = field.markers.get("default") {
        let _ = write!(out, ", default: Some({:?})", default.trim_matches('"'));
    }
    if let Some(name) = field.markers.get("enum") {
        let _ = write!(out, ", enum_name: Some({name:?})");
    }
    out.push_str(", ..FieldDescriptor::PLAIN }");
    out
}

/// How server-side apply handles the field: `listType`, `listMapKey`, `mapType`, `structType`.
fn topology(out: &mut String, field: &Field) {
    let markers = &field.markers;
    let list = match markers.get("listType") {
        Some("map") => Some(format!("Topology::ListMap(&{:?})", markers.all("listMapKey"))),
        Some("set") => Some("Topology::ListSet".to_owned()),
        Some("atomic") => Some("Topology::Atomic".to_owned()),
        Some(other) => panic!("schema: listType={other}"),
        None => None,
    };
    let map = match markers.get("mapType").or(markers.get("structType")) {
        Some("atomic") => Some("Topology::Atomic".to_owned()),
        Some("granular") => Some("Topology::Granular".to_owned()),
        Some(other) => panic!("schema: mapType={other}"),
        None => None,
    };
    if let Some(topology) = list.or(map) {
        let _ = write!(out, ", topology: {topology}");
    }
}

/// How a strategic merge patch treats the field.
fn patch(out: &mut String, field: &Field) {
    for strategy in field.markers.get("patchStrategy").unwrap_or("").split(',') {
        let flag = match strategy {
            "merge" => "patch_merge",
            "retainKeys" => "patch_retain_keys",
            "replace" | "" => continue,
            other => panic!("schema: patchStrategy={other}"),
        };
        let _ = write!(out, ", {flag}: true");
    }
    if let Some(key) = field.markers.get("patchMergeKey") {
        let _ = write!(out, ", patch_merge_key: Some({key:?})");
    }
}

fn value(value: &Value, ids: &Ids) -> String {
    match value {
        Value::Scalar(name) => format!("Value::{}", scalar(name)),
        Value::Message(stem, name) => {
            let id = ids.get(&(stem.clone(), name.clone()));
            let id = id.unwrap_or_else(|| panic!("schema: no message {name} in {stem}"));
            format!("Value::Message(MessageId({id}))")
        }
    }
}

fn scalar(name: &str) -> &str {
    match name {
        "string" => "String",
        "bool" => "Bool",
        "int32" => "Int32",
        "int64" => "Int64",
        "double" => "Double",
        "bytes" => "Bytes",
        "raw" => "Raw",
        "strings" => "StringList",
        "any" => "Any",
        other => other,
    }
}

/// One row for each (group, version, kind), sorted for lookup.
fn kinds(code: &mut String, schema: &Schema, ids: &Ids) {
    let mut rows = Vec::new();
    for (stem, group) in &schema.groups {
        for message in group.messages.iter().filter(|m| m.is_kind()) {
            let id = ids[&(stem.clone(), message.name.clone())];
            rows.push((
                kind_group(stem, &group.name, message),
                group.version.clone(),
                &message.name,
                id,
            ));
        }
    }
    rows.sort();
    let _ = writeln!(code, "pub(super) static KINDS: [KindDescriptor; {}] = [", rows.len());
    for (group, version, kind, id) in rows {
        let _ = writeln!(
            code,
            "    KindDescriptor {{ group: {group:?}, version: {version:?}, kind: {kind:?}, message: MessageId({id}) }},"
        );
    }
    code.push_str("];\n\n");
}

/// Of the kinds in `meta`, only the partial views and tables are in the group of that name; the others (options, `Status`, discovery) are `v1`.
fn kind_group(stem: &str, group: &str, message: &Message) -> String {
    let own = message.name.starts_with("PartialObject") || message.name.starts_with("Table");
    if stem == "meta_v1" && !own { String::new() } else { group.to_owned() }
}

fn resources(code: &mut String, (table, all): (&str, &[Resource]), schema: &Schema, ids: &Ids) {
    let main: Vec<&Resource> = all.iter().filter(|r| !r.path.contains('/')).collect();
    let _ = writeln!(code, "pub(super) static {table}: [ResourceDescriptor; {}] = [", main.len());
    for r in main {
        let prefix = format!("{}/", r.path);
        let subs = all.iter().filter(|s| {
            s.group == r.group && s.version == r.version && s.path.starts_with(&prefix)
        });
        let _ = writeln!(
            code,
            "    ResourceDescriptor {{ group: {:?}, version: {:?}, plural: {:?}, singular: {:?}, kind: {:?}, message: {}, \
             namespaced: {}, short_names: &{:?}, categories: &{:?}, verbs: &{:?}, subresources: &[",
            r.group,
            r.version,
            r.path,
            r.singular,
            r.kind,
            message_of(schema, ids, r),
            r.namespaced,
            r.short_names,
            r.categories,
            r.verbs
        );
        for sub in subs {
            let (group, version) = kind_home(sub);
            let _ = writeln!(
                code,
                "        Subresource {{ name: {:?}, group: {group:?}, version: {version:?}, kind: {:?}, message: {}, verbs: &{:?} }},",
                &sub.path[prefix.len()..],
                sub.kind,
                message_of(schema, ids, sub),
                sub.verbs
            );
        }
        code.push_str("    ], columns: &[\n");
        for c in &schema.columns {
            if (&c.group, &c.version, &c.resource) == (&r.group, &r.version, &r.path) {
                let _ = writeln!(
                    code,
                    "        Column {{ name: {:?}, value: {:?}, format: {:?}, priority: {} }},",
                    c.name, c.ty, c.format, c.priority
                );
            }
        }
        code.push_str("    ] },\n");
    }
    code.push_str("];\n\n");
}

fn kind_home(r: &Resource) -> (String, String) {
    r.kind_group_version.clone().unwrap_or_else(|| (r.group.clone(), r.version.clone()))
}

fn message_of(schema: &Schema, ids: &Ids, r: &Resource) -> String {
    let (group, version) = kind_home(r);
    let home = schema.groups.iter().find(|(_, g)| g.name == group && g.version == version);
    let (stem, _) = home.unwrap_or_else(|| panic!("schema: no group for {}", r.path));
    let id = ids.get(&(stem.clone(), r.kind.clone()));
    format!(
        "MessageId({})",
        id.unwrap_or_else(|| panic!("schema: no kind {} for {}", r.kind, r.path))
    )
}
