//! Writes the Rust structs of one group version, with their field-by-field codecs.

use crate::schema::{Field, Group, Message, Resource, Schema, Shape, Type, Value};
use std::fmt::Write;

/// Boxed fields: volume sources that no program handles in code would otherwise multiply the size of every volume and pod.
const BOXED: &[&str] = &[
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "gitRepo",
    "nfs",
    "iscsi",
    "glusterfs",
    "rbd",
    "flexVolume",
    "cinder",
    "cephfs",
    "flocker",
    "fc",
    "azureFile",
    "vsphereVolume",
    "quobyte",
    "azureDisk",
    "photonPersistentDisk",
    "portworxVolume",
    "scaleIO",
    "storageos",
    "ephemeral",
];

/// Secret fields: `Debug` prints them as hidden.
const HIDDEN: &[(&str, &str)] = &[
    ("Secret", "data"),
    ("Secret", "stringData"),
    ("TokenRequestStatus", "token"),
    ("TokenReviewSpec", "token"),
];

/// Messages without a Protobuf form, which only the generic engine handles.
const UNTYPED: &[&str] = &["Table", "TableColumnDefinition", "TableRow", "TableRowCondition"];

pub fn generate(schema: &Schema, stem: &str) -> String {
    let group = &schema.groups[stem];
    let mut code = String::from("// Generated from the tables in `schema/` by `build/typed.rs`.\n");
    for message in &group.messages {
        if UNTYPED.contains(&message.name.as_str()) {
            continue;
        }
        if let Some(Value::Message(home, item)) = message.list_item() {
            let doc = format!("A list of [`{item}`] objects.");
            let item = path(stem, home, item);
            let _ = writeln!(
                code,
                "#[doc = \"{doc}\"]\npub type {} = crate::List<{item}>;\n",
                message.name
            );
            continue;
        }
        message_struct(&mut code, stem, message);
        codec(&mut code, message);
        if message.is_kind() {
            kind(&mut code, schema, stem, group, message);
        }
    }
    code
}

/// A list of all typed kinds, for tests.
pub fn generate_index(schema: &Schema, stems: &[&str]) -> String {
    let mut code = String::from("[\n");
    for stem in stems {
        for message in &schema.groups[*stem].messages {
            let is_typed = !UNTYPED.contains(&message.name.as_str());
            if message.is_kind() && is_typed && message.list_item().is_none() {
                let _ = writeln!(
                    code,
                    "    TypedKind::for_type::<{}>(),",
                    path("", stem, &message.name)
                );
            }
        }
    }
    code.push_str("]\n");
    code
}

fn message_struct(code: &mut String, stem: &str, message: &Message) {
    let name = &message.name;
    let what = if message.is_kind() { "Kind" } else { "Message" };
    let hides = message.fields.iter().any(|field| is_hidden(message, field));
    let debug = if hides { "" } else { "Debug, " };
    let _ = writeln!(code, "/// {what} `{name}`.");
    let _ = writeln!(code, "#[derive(Clone, {debug}Default, PartialEq)]\npub struct {name} {{");
    for field in &message.fields {
        let _ = writeln!(code, "    /// {}", field_doc(field));
        let _ =
            writeln!(code, "    pub {}: {},", rust_name(field), rust_type(stem, message, field));
    }
    let _ = writeln!(code, "}}\n");
    if hides {
        debug_without_hidden(code, message);
    }
}

fn is_hidden(message: &Message, field: &Field) -> bool {
    HIDDEN.contains(&(message.name.as_str(), field.json.as_str()))
}

fn debug_without_hidden(code: &mut String, message: &Message) {
    let name = &message.name;
    let mut fields = String::new();
    for field in &message.fields {
        let rust = rust_name(field);
        let shown = match is_hidden(message, field) {
            true => "&format_args!(\"<hidden>\")".to_owned(),
            false => format!("&self.{rust}"),
        };
        let _ = writeln!(fields, "            .field({rust:?}, {shown})");
    }
    let _ = writeln!(
        code,
        "/// Shows all but what a log must not show.
impl std::fmt::Debug for {name} {{
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {{
        f.debug_struct({name:?})
{fields}            .finish()
    }}
}}
"
    );
}

/// The doc comment of a field: its name on the wire, its number, and the meaning of absence.
fn field_doc(field: &Field) -> String {
    if field.inline {
        return format!("Inlined in JSON; field {} in Protobuf.", field.number);
    }
    let mut doc = format!("`{}`, field {}", field.json, field.number);
    match field.ty.shape {
        Shape::Pointer => doc.push_str("; absent and empty differ"),
        _ if field.markers.has("optional") => doc.push_str("; optional"),
        _ => {}
    }
    if let Some(name) = field.markers.get("enum") {
        let _ = write!(doc, "; one of the `{name}` values");
    }
    if let Some(key) = field.markers.get("patchMergeKey") {
        let _ = write!(doc, "; entries are identified by `{key}`");
    }
    doc.push('.');
    doc
}

/// The codecs of JSON and Protobuf, one call a field; `crate::codec` has the rules.
fn codec(code: &mut String, message: &Message) {
    let name = &message.name;
    let mut write_json = String::new();
    let mut read_json = String::new();
    // A key that is not a field of the message may be one of its inlined message.
    let mut rest = "Ok(false)".to_owned();
    for field in &message.fields {
        let (rust, json) = (rust_name(field), &field.json);
        if field.inline {
            let _ = writeln!(write_json, "        self.{rust}.write_fields(map)?;");
            assert!(rest == "Ok(false)", "schema: {name} has two inlined messages");
            rest = format!("self.{rust}.read_field(key, map)");
            continue;
        }
        let call = if field.omit_empty { "write_non_empty" } else { "write_always" };
        let _ = writeln!(write_json, "        json::{call}(map, {json:?}, &self.{rust})?;");
        let _ = writeln!(
            read_json,
            "            {json:?} => self.{rust} = json::read(map, {json:?})?,"
        );
    }
    let mut numbered: Vec<&Field> = message.fields.iter().collect();
    numbered.sort_by_key(|f| f.number);
    let mut encode = String::new();
    let mut lens = Vec::new();
    let mut merge = String::new();
    for field in numbered {
        let (rust, n) = (rust_name(field), field.number);
        let _ = writeln!(encode, "        self.{rust}.encode_field({n}, buf);");
        lens.push(format!("self.{rust}.field_len({n})"));
        let _ = writeln!(
            merge,
            "            {n} => protobuf::merge(&mut self.{rust}, wire, buf, ctx, {name:?}, {rust:?}),"
        );
    }
    let len = if lens.is_empty() { "0".to_owned() } else { lens.join("\n            + ") };
    let _ = writeln!(
        code,
        "impl Object for {name} {{
    const NAME: &'static str = {name:?};

    #[allow(unused_variables, reason = \"messages without fields use no argument\")]
    fn write_fields<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {{
{write_json}        Ok(())
    }}

    #[allow(unused_variables, reason = \"messages without fields use no argument\")]
    fn read_field<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {{
        match key {{
{read_json}            _ => return {rest},
        }}
        #[allow(unreachable_code, reason = \"messages without fields return before\")]
        Ok(true)
    }}
}}

impl prost::Message for {name} {{
    #[allow(unused_variables, reason = \"messages without fields use no argument\")]
    fn encode_raw(&self, buf: &mut impl BufMut) {{
{encode}    }}

    fn merge_field(&mut self, tag: u32, wire: WireType, buf: &mut impl Buf, ctx: DecodeContext) -> Result<(), DecodeError> {{
        match tag {{
{merge}            _ => prost::encoding::skip_field(wire, tag, buf, ctx),
        }}
    }}

    fn encoded_len(&self) -> usize {{
        {len}
    }}

    fn clear(&mut self) {{
        *self = Self::default();
    }}
}}

crate::codec::serde_by_object!({name});
"
    );
}

fn kind(code: &mut String, schema: &Schema, stem: &str, group: &Group, message: &Message) {
    let name = &message.name;
    // The option and status kinds of `meta` belong to every group; without one they are `v1`.
    let partial = name.starts_with("PartialObject");
    let group_name = if stem == "meta_v1" && !partial { "" } else { &group.name };
    let version = &group.version;
    let _ = writeln!(
        code,
        "impl crate::Kind for {name} {{
    const GROUP: &'static str = {group_name:?};
    const VERSION: &'static str = {version:?};
    const KIND: &'static str = {name:?};

    crate::object::codec_of_kind!();
}}
"
    );
    let main = |r: &&Resource| {
        r.group == group.name && r.version == *version && r.kind == *name && !r.path.contains('/')
    };
    let Some(resource) = schema.resources.iter().find(main) else { return };
    let is_object = |v: &Value| *v == Value::Message("meta_v1".into(), "ObjectMeta".into());
    if !message.fields.iter().any(|f| f.json == "metadata" && is_object(&f.ty.value)) {
        return;
    }
    let _ = writeln!(
        code,
        "impl crate::Resource for {name} {{
    const PLURAL: &'static str = {:?};
    const NAMESPACED: bool = {};

    fn metadata(&self) -> &crate::meta::v1::ObjectMeta {{
        &self.metadata
    }}

    fn metadata_mut(&mut self) -> &mut crate::meta::v1::ObjectMeta {{
        &mut self.metadata
    }}
}}
",
        resource.path, resource.namespaced
    );
}

fn rust_type(stem: &str, message: &Message, field: &Field) -> String {
    let Type { shape, value } = &field.ty;
    let value = match value {
        Value::Scalar(name) => scalar(name).to_owned(),
        Value::Message(home, name) => path(stem, home, name),
    };
    match shape {
        Shape::Plain => value,
        Shape::Pointer if message.name.ends_with("VolumeSource") && boxed(field) => {
            format!("Option<Box<{value}>>")
        }
        Shape::Pointer => format!("Option<{value}>"),
        Shape::List => format!("Vec<{value}>"),
        Shape::Map => format!("BTreeMap<String, {value}>"),
    }
}

fn boxed(field: &Field) -> bool {
    BOXED.contains(&field.json.as_str())
}

fn scalar(name: &str) -> &str {
    match name {
        "string" => "String",
        "bool" => "bool",
        "int32" => "i32",
        "int64" => "i64",
        "bytes" => "Vec<u8>",
        "Time" => "crate::Time",
        "MicroTime" => "crate::MicroTime",
        "Quantity" => "crate::Quantity",
        "IntOrString" => "crate::IntOrString",
        "raw" => "crate::RawJson",
        "strings" => "crate::StringList",
        other => panic!("schema: {other} has no typed form"),
    }
}

/// A message's path from the module of `stem`.
fn path(stem: &str, home: &str, name: &str) -> String {
    if stem == home {
        return name.to_owned();
    }
    let (group, version) = home.split_once('_').expect("stem is group_version");
    format!("crate::{group}::{version}::{name}")
}

fn rust_name(field: &Field) -> String {
    let name = snake_case(&field.json);
    match name.as_str() {
        "type" | "continue" | "ref" | "static" | "match" | "use" | "in" | "enum" | "default" => {
            name + "_"
        }
        _ => name,
    }
}

/// `podIP` is `pod_ip`, `podIPs` is `pod_ips`, `nonResourceURLs` is `non_resource_urls`.
fn snake_case(name: &str) -> String {
    let chars: Vec<char> = name.chars().collect();
    let upper = |i: usize| chars.get(i).is_some_and(char::is_ascii_uppercase);
    let lower = |i: usize| chars.get(i).is_some_and(|c| c.is_ascii_lowercase());
    let mut out = String::new();
    for (i, c) in chars.iter().enumerate() {
        // A plural `s` ends an acronym instead of starting a word.
        let plural = chars.get(i + 1) == Some(&'s') && !lower(i + 2);
        let opens_word = i > 0 && upper(i) && (!upper(i - 1) || (lower(i + 1) && !plural));
        if opens_word {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}
