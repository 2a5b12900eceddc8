//! Changes of the configuration's files.

use std::path::PathBuf;

use orchctl_client::{CommandError, Kubeconfig, Output, Overrides, Session};
use orchctl_printers::objects;
use serde_json::{Map, Value, json};

use super::exec::{ExecFlags, MODES};
use super::view;

/// The files, for edits.
fn files(session: &Session) -> Result<Kubeconfig, CommandError> {
    Kubeconfig::read_to_edit(session.flags().kubeconfig.as_deref(), |name| session.variable(name))
}

fn destination(files: &Kubeconfig) -> Result<PathBuf, CommandError> {
    let none = || {
        CommandError::with_text(
            "there is no file for the configuration: set HOME, or use --kubeconfig",
        )
    };
    files.destination().map(PathBuf::from).ok_or_else(none)
}

/// The part of an entry of a list.
fn part_of(list: &str) -> &str {
    list.trim_end_matches('s')
}

fn entries<'a>(tree: &'a mut Value, list: &str) -> Result<&'a mut Vec<Value>, CommandError> {
    let place = &mut tree[list];
    if place.is_null() {
        *place = json!([]);
    }
    place.as_array_mut().ok_or_else(|| {
        CommandError::with_text(format!("{list} of the configuration is not a list"))
    })
}

fn is_named(entry: &Value, name: &str) -> bool {
    objects::text_at(entry, "/name") == name
}

/// Sets fields of an entry, which is created if it does not exist; says whether it existed.
fn put(
    session: &Session,
    list: &str,
    name: &str,
    change: impl FnOnce(&mut Map<String, Value>) -> Result<(), CommandError>,
) -> Result<bool, CommandError> {
    let mut files = files(session)?;
    let existing = files.file_of(list, name).map(PathBuf::from);
    let existed = existing.is_some();
    let path = match existing {
        Some(path) => path,
        None => destination(&files)?,
    };
    files.edit(&path, |tree| {
        let entries = entries(tree, list)?;
        if !entries.iter().any(|entry| is_named(entry, name)) {
            entries.push(json!({"name": name, part_of(list): {}}));
        }
        let entry = entries.iter_mut().find(|entry| is_named(entry, name));
        let fields = entry.map(|entry| &mut entry[part_of(list)]);
        match fields {
            Some(Value::Object(fields)) => change(fields),
            Some(fields) => {
                *fields = json!({});
                fields.as_object_mut().map_or(Ok(()), change)
            }
            None => Ok(()),
        }
    })?;
    Ok(existed)
}

/// Sets fields to values; empty texts remove fields.
fn set_fields(fields: &mut Map<String, Value>, values: Map<String, Value>) {
    for (field, value) in values {
        // What is set now counts, not what an earlier field of another form says.
        if let Some(plain) = field.strip_suffix("-data") {
            fields.shift_remove(plain);
        }
        fields.shift_remove(&format!("{field}-data"));
        if value == "" {
            fields.shift_remove(&field);
        } else {
            fields.insert(field, value);
        }
    }
}

pub(super) fn use_context(
    session: &Session,
    name: &str,
    output: &mut Output,
) -> Result<(), CommandError> {
    let mut files = files(session)?;
    if files.file_of("contexts", name).is_none() {
        return Err(CommandError::with_text(format!(
            "no context exists with the name: \"{name}\""
        )));
    }
    let path = destination(&files)?;
    files.edit(&path, |tree| {
        tree["current-context"] = json!(name);
        Ok(())
    })?;
    Ok(writeln!(output.out, "Switched to context \"{name}\".")?)
}

pub(super) fn set_context(
    session: &Session,
    name: Option<&str>,
    current: bool,
    output: &mut Output,
) -> Result<(), CommandError> {
    let merged = files(session)?.merged();
    let name = match (name, current) {
        (Some(name), false) => name,
        (None, true) => match objects::text_at(&merged, "/current-context") {
            "" => return Err(CommandError::with_text("no current context is set")),
            name => name,
        },
        _ => return Err(CommandError::with_text("either a context is named, or --current is set")),
    };
    let flags = session.flags();
    let mut values = Map::new();
    for (field, value) in [
        ("cluster", &flags.server.cluster),
        ("user", &flags.identity.user),
        ("namespace", &flags.namespace),
    ] {
        values.extend(value.as_ref().map(|value| (field.to_owned(), json!(value))));
    }
    let existed = put(session, "contexts", name, |fields| {
        set_fields(fields, values);
        for field in ["cluster", "user"] {
            fields.entry(field).or_insert_with(|| json!(""));
        }
        Ok(())
    })?;
    let what = if existed { "modified" } else { "created" };
    Ok(writeln!(output.out, "Context \"{name}\" {what}.")?)
}

pub(super) fn set_cluster(
    session: &Session,
    name: &str,
    proxy_url: Option<&str>,
    embed: bool,
    output: &mut Output,
) -> Result<(), CommandError> {
    let mut values = embedded(Overrides::from_flags(session.flags()).cluster_fields, embed)?;
    values.extend(proxy_url.map(|url| ("proxy-url".to_owned(), json!(url))));
    put(session, "clusters", name, |fields| {
        if values.keys().any(|field| field.starts_with("certificate-authority")) {
            fields.shift_remove("insecure-skip-tls-verify");
        }
        set_fields(fields, values);
        match fields.get("insecure-skip-tls-verify") {
            // No authority is asked then.
            Some(Value::Bool(true)) => {
                fields.retain(|field, _| !field.starts_with("certificate-authority"));
            }
            _ => drop(fields.shift_remove("insecure-skip-tls-verify")),
        }
        fields.entry("server").or_insert_with(|| json!(""));
        Ok(())
    })?;
    Ok(writeln!(output.out, "Cluster \"{name}\" set.")?)
}

pub(super) fn set_credentials(
    session: &Session,
    name: &str,
    embed: bool,
    exec: &ExecFlags,
    output: &mut Output,
) -> Result<(), CommandError> {
    let values = embedded(Overrides::from_flags(session.flags()).user_fields, embed)?;
    let given = |field: &str| values.get(field).is_some_and(|value| value != "");
    if given("token") && (given("username") || given("password")) {
        return Err(CommandError::with_text(
            "you cannot specify more than one authentication method at the same time: --token or --username/--password",
        ));
    }
    put(session, "users", name, |fields| {
        let is_set = |field: &str| values.get(field).is_some_and(|value| value != "");
        // One kind of credentials counts.
        match (is_set("token"), is_set("username") || is_set("password")) {
            (true, false) => {
                fields
                    .retain(|field, _| !["tokenFile", "username", "password"].contains(&&**field));
            }
            (false, true) => fields.retain(|field, _| !["token", "tokenFile"].contains(&&**field)),
            _ => {}
        }
        set_fields(fields, values);
        exec.apply(fields)
    })?;
    Ok(writeln!(output.out, "User \"{name}\" set.")?)
}

fn embedded(values: Map<String, Value>, embed: bool) -> Result<Map<String, Value>, CommandError> {
    let mut values = Value::Object(values);
    if embed {
        view::embed_files(&mut values)?;
    }
    match values {
        Value::Object(values) => Ok(values),
        _ => Ok(Map::new()),
    }
}

pub(super) fn delete(
    session: &Session,
    list: &str,
    name: &str,
    output: &mut Output,
) -> Result<(), CommandError> {
    let mut files = files(session)?;
    let part = part_of(list);
    let Some(path) = files.file_of(list, name).map(PathBuf::from) else {
        let shown = destination(&files)?;
        let text = format!("cannot delete {part} {name}, not in {}", shown.display());
        return Err(CommandError::with_text(text));
    };
    files.edit(&path, |tree| {
        entries(tree, list)?.retain(|entry| !is_named(entry, name));
        Ok(())
    })?;
    if list == "contexts" && objects::text_at(&files.merged(), "/current-context") == name {
        writeln!(
            output.err,
            "warning: this removed your active context, use \"orchctl config use-context\" to select a different one"
        )?;
    }
    Ok(writeln!(output.out, "deleted {part} {name} from {}", path.display())?)
}

pub(super) fn rename_context(
    session: &Session,
    name: &str,
    new_name: &str,
    output: &mut Output,
) -> Result<(), CommandError> {
    let mut files = files(session)?;
    let Some(path) = files.file_of("contexts", name).map(PathBuf::from) else {
        let shown = destination(&files)?;
        let text = format!("cannot rename the context \"{name}\", it's not in {}", shown.display());
        return Err(CommandError::with_text(text));
    };
    if files.file_of("contexts", new_name).is_some() {
        return Err(CommandError::with_text(format!(
            "cannot rename the context \"{name}\", the context \"{new_name}\" already exists in {}",
            path.display()
        )));
    }
    files.edit(&path, |tree| {
        for entry in entries(tree, "contexts")?.iter_mut().filter(|entry| is_named(entry, name)) {
            entry["name"] = json!(new_name);
        }
        Ok(())
    })?;
    if objects::text_at(&files.merged(), "/current-context") == name {
        let path = destination(&files)?;
        files.edit(&path, |tree| {
            tree["current-context"] = json!(new_name);
            Ok(())
        })?;
    }
    Ok(writeln!(output.out, "Context \"{name}\" renamed to \"{new_name}\".")?)
}

/// A field of the configuration: `current-context`, or `clusters.NAME.server`.
#[derive(Debug, PartialEq)]
enum Property {
    Current,
    /// A whole list.
    List(String),
    /// An entry of a list.
    Entry(String, String),
    /// A field of an entry.
    Field(String, String, String),
}

impl Property {
    fn parse(text: &str, known: &Value) -> Result<Self, CommandError> {
        let unknown =
            || CommandError::with_text(format!("\"{text}\" is no field of the configuration"));
        if text == "current-context" {
            return Ok(Self::Current);
        }
        let (list, rest) = text.split_once('.').unwrap_or((text, ""));
        if !["clusters", "contexts", "users"].contains(&list) {
            return Err(unknown());
        }
        if rest.is_empty() {
            return Ok(Self::List(list.to_owned()));
        }
        // Names may have dots: of those that exist the longest that fits, else all up to the last dot.
        let names = objects::list_at(known, &format!("/{list}")).iter();
        let names = names.map(|entry| objects::text_at(entry, "/name"));
        let fits = |name: &&str| {
            rest == *name || rest.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'))
        };
        let name = match names.filter(fits).max_by_key(|name| name.len()) {
            Some(name) => name,
            None => rest.rsplit_once('.').map_or(rest, |(name, _)| name),
        };
        let field = rest.get(name.len()..).unwrap_or_default().trim_start_matches('.');
        Ok(match field {
            "" => Self::Entry(list.to_owned(), name.to_owned()),
            field => Self::Field(list.to_owned(), name.to_owned(), field.to_owned()),
        })
    }
}

/// Fields of entries that have one value.
fn is_field(list: &str, field: &str) -> bool {
    let known: &[&str] = match list {
        "clusters" => &[
            "server",
            "tls-server-name",
            "insecure-skip-tls-verify",
            "certificate-authority",
            "certificate-authority-data",
            "proxy-url",
            "disable-compression",
        ],
        "contexts" => &["cluster", "user", "namespace"],
        _ => &[
            "client-certificate",
            "client-certificate-data",
            "client-key",
            "client-key-data",
            "token",
            "tokenFile",
            "username",
            "password",
            "as",
            "as-uid",
            "exec.command",
            "exec.apiVersion",
            "exec.interactiveMode",
            "exec.provideClusterInfo",
        ],
    };
    known.contains(&field)
}

/// The value that the file holds. Data are base64 there: given as such, or encoded here if `raw` says that they are not.
fn property_value(
    property: &str,
    list: &str,
    field: &str,
    value: &str,
    raw: bool,
) -> Result<Value, CommandError> {
    let refuse = |why: &str| CommandError::with_text(format!("{property} {why}"));
    if !is_field(list, field) {
        return Err(refuse("is no field of the configuration that has one value"));
    }
    match field {
        "insecure-skip-tls-verify" | "disable-compression" | "exec.provideClusterInfo" => {
            let value = value.parse::<bool>().map_err(|_| refuse("is true or false"))?;
            Ok(json!(value))
        }
        "exec.interactiveMode" if !MODES.contains(&value) => {
            Err(refuse(&format!("is one of {}", MODES.join(", "))))
        }
        field if field.ends_with("-data") && raw => {
            Ok(json!(proto_client::config::file::encoded(value.as_bytes())))
        }
        field
            if field.ends_with("-data") && proto_client::config::file::decoded(value).is_none() =>
        {
            Err(refuse("is base64 unless --set-raw-bytes says that it is to be encoded"))
        }
        _ => Ok(json!(value)),
    }
}

pub(super) fn set(
    session: &Session,
    property: &str,
    value: &str,
    raw: bool,
    output: &mut Output,
) -> Result<(), CommandError> {
    let mut files = files(session)?;
    match Property::parse(property, &files.merged())? {
        Property::Current => {
            let path = match files.file_of_current_context().filter(|_| value.is_empty()) {
                Some(path) => path.to_owned(),
                None => destination(&files)?,
            };
            files.edit(&path, |tree| {
                tree["current-context"] = json!(value);
                Ok(())
            })?;
        }
        Property::Field(list, name, field) => {
            let value = property_value(property, &list, &field, value, raw)?;
            put(session, &list, &name, |fields| {
                match field.split_once('.') {
                    // Not a map that has this key alone: a program has a command first.
                    Some((outer, inner)) => match fields.get_mut(outer) {
                        Some(Value::Object(map)) => drop(map.insert(inner.to_owned(), value)),
                        _ if inner == "command" => {
                            fields.insert(outer.to_owned(), json!({inner: value}));
                        }
                        _ => {
                            return Err(CommandError::with_text(format!(
                                "{property}: there is no {outer}"
                            )));
                        }
                    },
                    None => drop(fields.insert(field, value)),
                }
                Ok(())
            })?;
        }
        Property::List(_) | Property::Entry(..) => {
            return Err(CommandError::with_text(format!(
                "{property} is no single field: name one below it"
            )));
        }
    }
    Ok(writeln!(output.out, "Property \"{property}\" set.")?)
}

pub(super) fn unset(
    session: &Session,
    property: &str,
    output: &mut Output,
) -> Result<(), CommandError> {
    let mut files = files(session)?;
    let parsed = Property::parse(property, &files.merged())?;
    let path = match &parsed {
        Property::Current => files.file_of_current_context().map(PathBuf::from),
        Property::List(_) => None,
        Property::Entry(list, name) | Property::Field(list, name, _) => {
            files.file_of(list, name).map(PathBuf::from)
        }
    };
    let path = match path {
        Some(path) => path,
        None => destination(&files)?,
    };
    files.edit(&path, |tree| {
        match &parsed {
            Property::Current => tree["current-context"] = json!(""),
            Property::List(list) => tree[list.as_str()] = json!([]),
            Property::Entry(list, name) => {
                entries(tree, list)?.retain(|entry| !is_named(entry, name));
            }
            Property::Field(list, name, field) => {
                let mut found =
                    entries(tree, list)?.iter_mut().filter(|entry| is_named(entry, name));
                let fields = found.find_map(|entry| entry[part_of(list)].as_object_mut());
                match (fields, field.split_once('.')) {
                    (Some(fields), Some((outer, inner))) => {
                        let map = fields.get_mut(outer).and_then(Value::as_object_mut);
                        map.and_then(|map| map.shift_remove(inner));
                    }
                    (Some(fields), None) => drop(fields.shift_remove(field)),
                    (None, _) => {}
                }
            }
        }
        Ok(())
    })?;
    Ok(writeln!(output.out, "Property \"{property}\" unset.")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_properties_may_have_dots() {
        let known = json!({"clusters": [{"name": "a.b"}, {"name": "a"}]});
        let read = |text: &str| Property::parse(text, &known).ok();
        let field = |name: &str, field: &str| {
            Some(Property::Field("clusters".into(), name.into(), field.into()))
        };
        assert_eq!(read("clusters.a.b.server"), field("a.b", "server"));
        assert_eq!(read("clusters.a.server"), field("a", "server"));
        assert_eq!(read("clusters.x.y.server"), field("x.y", "server"));
        assert_eq!(read("clusters.a.b"), Some(Property::Entry("clusters".into(), "a.b".into())));
        assert_eq!(read("clusters"), Some(Property::List("clusters".into())));
        assert_eq!(read("current-context"), Some(Property::Current));
        assert_eq!(read("foo.bar"), None);
    }

    #[test]
    fn data_are_base64_unless_they_are_raw() {
        let data = |value, raw| {
            property_value("p", "clusters", "certificate-authority-data", value, raw).ok()
        };
        assert_eq!(data("YQ==", false), Some(json!("YQ==")));
        assert_eq!(data("a", true), Some(json!("YQ==")));
        assert_eq!(data("no base64!", false), None);
        assert!(property_value("p", "contexts", "foo", "x", false).is_err());
        let mode = |value| property_value("p", "users", "exec.interactiveMode", value, false).ok();
        assert_eq!((mode("Never"), mode("Sometimes")), (Some(json!("Never")), None));
        assert!(
            property_value("p", "clusters", "insecure-skip-tls-verify", "maybe", false).is_err()
        );
    }
}
