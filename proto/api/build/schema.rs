//! Reads the tables under `schema/` into memory. See `schema/README.md` for their columns.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The API schema as read from its tables.
pub struct Schema {
    /// By file stem, for example `core_v1`.
    pub groups: BTreeMap<String, Group>,
    pub resources: Vec<Resource>,
    /// Those that are served on request only.
    pub optional_resources: Vec<Resource>,
    pub columns: Vec<Column>,
}

/// One group version.
pub struct Group {
    /// Without the API domain: empty for core, `rbac.authorization` for rbac.
    pub name: String,
    pub version: String,
    pub messages: Vec<Message>,
}

/// A message of a `.proto` file with the markers of its comment.
pub struct Message {
    pub name: String,
    pub markers: Markers,
    pub fields: Vec<Field>,
}

/// One of its fields, as JSON and Protobuf name it.
pub struct Field {
    /// The name in JSON; for an inlined message, the name of its type.
    pub json: String,
    pub number: u32,
    pub ty: Type,
    pub omit_empty: bool,
    pub inline: bool,
    pub markers: Markers,
}

/// A type as written in the table: `*T`, `[]T`, `map[string]T` or `T`.
#[derive(Clone)]
pub struct Type {
    pub shape: Shape,
    /// A scalar's name, or a message as (file stem, message).
    pub value: Value,
}

/// How often the value of a field occurs.
#[derive(Clone, Copy, PartialEq)]
pub enum Shape {
    Plain,
    Pointer,
    List,
    Map,
}

/// What a field holds: a scalar by its Protobuf type, or a message by package and name.
#[derive(Clone, PartialEq)]
pub enum Value {
    Scalar(String),
    Message(String, String),
}

/// One row of `resources.tsv` or `optional-resources.tsv`.
pub struct Resource {
    pub group: String,
    pub version: String,
    /// `pods`, or `pods/status` for a subresource.
    pub path: String,
    pub kind: String,
    /// The group version of the kind, if it is not that of the resource.
    pub kind_group_version: Option<(String, String)>,
    pub singular: String,
    pub namespaced: bool,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub verbs: Vec<String>,
}

/// One row of `table-columns.tsv`.
pub struct Column {
    pub group: String,
    pub version: String,
    pub resource: String,
    pub name: String,
    pub ty: String,
    pub format: String,
    pub priority: i32,
}

/// The last column of a row: words, or `key=value`.
#[derive(Default)]
pub struct Markers(Vec<(String, String)>);

impl Markers {
    fn parse(text: &str) -> Markers {
        let pair = |word: &str| match word.split_once('=') {
            Some((key, value)) => (key.to_owned(), value.to_owned()),
            None => (word.to_owned(), String::new()),
        };
        Markers(text.split_whitespace().map(pair).collect())
    }

    pub fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(k, _)| k == key)
    }

    pub fn all(&self, key: &str) -> Vec<&str> {
        self.0.iter().filter(|(k, _)| k == key).map(|(_, v)| v.as_str()).collect()
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.all(key).first().copied()
    }
}

impl Schema {
    pub fn read(dir: &Path) -> Schema {
        let mut groups = BTreeMap::new();
        let mut stems: Vec<String> = fs::read_dir(dir)
            .expect("schema directory")
            .map(|entry| entry.expect("schema entry").file_name().to_string_lossy().into_owned())
            .filter_map(|name| name.strip_suffix(".tsv").map(str::to_owned))
            .filter(|stem| stem.contains("_v"))
            .collect();
        stems.sort();
        for stem in stems {
            let group = Group::read(&stem, &rows(&dir.join(format!("{stem}.tsv"))));
            groups.insert(stem, group);
        }
        let resources = |file: &str| {
            rows(&dir.join(file)).iter().map(|r| Resource::parse(r)).collect::<Vec<_>>()
        };
        Schema {
            groups,
            resources: resources("resources.tsv"),
            optional_resources: resources("optional-resources.tsv"),
            columns: rows(&dir.join("table-columns.tsv"))
                .iter()
                .map(|r| Column::parse(r))
                .collect(),
        }
    }
}

impl Group {
    fn read(stem: &str, rows: &[Vec<String>]) -> Group {
        let (short, version) = stem.split_once('_').expect("stem is group_version");
        let mut group = Group {
            name: full_group(short).to_owned(),
            version: version.to_owned(),
            messages: Vec::new(),
        };
        for row in rows {
            let [message, json, number, ty, flags, markers] = &row[..] else {
                panic!("schema: {stem}: want 6 columns: {row:?}")
            };
            let markers = Markers::parse(markers);
            if json == "{}" {
                group.messages.push(Message { name: message.clone(), markers, fields: vec![] });
                continue;
            }
            let inline = flags == "inline";
            let name = json.trim_start_matches('(').trim_end_matches(')');
            let field = Field {
                json: name.to_owned(),
                number: number.parse().expect("field number"),
                ty: Type::parse(stem, ty),
                omit_empty: flags == "omitempty",
                inline,
                markers,
            };
            let owner = group.messages.last_mut().filter(|m| m.name == *message);
            owner.expect("a field follows its message").fields.push(field);
        }
        group
    }
}

impl Message {
    pub fn is_kind(&self) -> bool {
        self.markers.has("kind")
    }

    /// The message of the items when this is the list of a kind.
    pub fn list_item(&self) -> Option<&Value> {
        let [metadata, items] = &self.fields[..] else { return None };
        let is_list = self.is_kind() && metadata.json == "metadata" && items.json == "items";
        let is_message = matches!(items.ty.value, Value::Message(..));
        (is_list && is_message).then_some(&items.ty.value)
    }
}

impl Type {
    fn parse(stem: &str, text: &str) -> Type {
        let (shape, rest) = if let Some(rest) = text.strip_prefix('*') {
            (Shape::Pointer, rest)
        } else if let Some(rest) = text.strip_prefix("[]") {
            (Shape::List, rest)
        } else if let Some(rest) = text.strip_prefix("map[string]") {
            (Shape::Map, rest)
        } else {
            (Shape::Plain, text)
        };
        let value = match rest {
            "string" | "bool" | "int32" | "int64" | "double" | "bytes" | "Time" | "MicroTime"
            | "Duration" | "Quantity" | "IntOrString" | "raw" | "strings" | "any" => {
                Value::Scalar(rest.into())
            }
            _ => match rest.rsplit_once('.') {
                Some((home, name)) => Value::Message(home.replace('.', "_"), name.to_owned()),
                None => Value::Message(stem.to_owned(), rest.to_owned()),
            },
        };
        Type { shape, value }
    }
}

impl Resource {
    fn parse(row: &[String]) -> Resource {
        let [gv, path, kind, kind_gv, singular, scope, short, categories, verbs] = row else {
            panic!("a table of resources: want 9 columns: {row:?}")
        };
        let (group, version) = split_group_version(gv);
        Resource {
            group,
            version,
            path: path.clone(),
            kind: kind.clone(),
            kind_group_version: (!kind_gv.is_empty()).then(|| split_group_version(kind_gv)),
            singular: singular.clone(),
            namespaced: scope == "namespaced",
            short_names: words(short),
            categories: words(categories),
            verbs: words(verbs),
        }
    }
}

impl Column {
    fn parse(row: &[String]) -> Column {
        let [gv, resource, name, ty, format, priority] = row else {
            panic!("table-columns.tsv: want 6 columns: {row:?}")
        };
        let (group, version) = split_group_version(gv);
        Column {
            group,
            version,
            resource: resource.clone(),
            name: name.clone(),
            ty: ty.clone(),
            format: format.clone(),
            priority: priority.parse().expect("priority"),
        }
    }
}

/// `apps/v1` or, for core, `v1`.
fn split_group_version(text: &str) -> (String, String) {
    let (group, version) = text.split_once('/').unwrap_or(("", text));
    (group.to_owned(), version.to_owned())
}

fn words(text: &str) -> Vec<String> {
    text.split(',').filter(|w| !w.is_empty()).map(str::to_owned).collect()
}

/// The group's name without the API domain, from the short name in the file name.
fn full_group(short: &str) -> &str {
    match short {
        "core" => "",
        "rbac" => "rbac.authorization",
        "flowcontrol" => "flowcontrol.apiserver",
        other => other,
    }
}

/// The rows of a table, without its header.
fn rows(path: &Path) -> Vec<Vec<String>> {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.lines().skip(1).map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}
