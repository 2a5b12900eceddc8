//! What the configuration has: whole, or names.

use std::path::Path;

use orchctl_client::{CommandError, Kubeconfig, Output, Session};
use orchctl_printers::columns::ColumnWidths;
use orchctl_printers::{PrintFormat, objects};
use proto_client::config::file;
use serde_json::{Value, json};

use crate::print_flags::PrintFlags;

/// Flags of `config view`.
#[derive(clap::Args, Debug)]
pub(super) struct ViewArgs {
    /// What the current context uses, and nothing else
    #[arg(long)]
    minify: bool,
    /// The content of files in the place of their names
    #[arg(long)]
    flatten: bool,
    /// With secrets
    #[arg(long)]
    raw: bool,
    /// Output format; YAML by default
    #[command(flatten)]
    print: PrintFlags,
}

/// Flags of `config get-contexts`.
#[derive(clap::Args, Debug)]
pub(super) struct ContextsArgs {
    /// Only these
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Leave out the names of columns
    #[arg(long)]
    no_headers: bool,
    /// Form of the output
    #[arg(long, short, value_parser = ["name"])]
    output: Option<String>,
}

/// Fields that hold secrets, or long ones, with what is shown in their place.
const HIDDEN: [(&str, &str); 5] = [
    ("certificate-authority-data", "DATA+OMITTED"),
    ("client-certificate-data", "DATA+OMITTED"),
    ("client-key-data", "DATA+OMITTED"),
    ("token", "REDACTED"),
    ("password", "REDACTED"),
];
/// Fields that name files, with those that hold their content.
const FILES: [&str; 3] = ["certificate-authority", "client-certificate", "client-key"];

pub(super) fn view(
    session: &Session,
    args: &ViewArgs,
    output: &mut Output,
) -> Result<(), CommandError> {
    let files = session.kubeconfig()?;
    let mut whole = files.merged();
    if args.minify {
        let flag = session.flags().context.as_deref();
        minify(&mut whole, flag)?;
    }
    for (list, part) in [("clusters", "cluster"), ("users", "user")] {
        let entries = whole.get_mut(list).and_then(Value::as_array_mut);
        for fields in entries.into_iter().flatten().filter_map(|entry| entry.get_mut(part)) {
            if args.flatten {
                embed_files(fields)?;
            } else if !args.raw {
                hide_secrets(fields);
            }
        }
    }
    for list in ["clusters", "contexts", "users"] {
        if objects::list_at(&whole, &format!("/{list}")).is_empty() {
            whole[list] = Value::Null;
        }
    }
    let form = match args.print.form()? {
        PrintFormat::Table => PrintFormat::Yaml,
        PrintFormat::Wide | PrintFormat::Name => {
            return Err(CommandError::with_text(
                "a configuration is shown as yaml, json or by jsonpath",
            ));
        }
        form => form,
    };
    args.print.print(&form, whole, true, output)
}

/// Leaves what one context uses.
fn minify(whole: &mut Value, flag: Option<&str>) -> Result<(), CommandError> {
    let current = flag.unwrap_or(objects::text_at(whole, "/current-context")).to_owned();
    if current.is_empty() {
        return Err(CommandError::with_text("current-context must exist in order to minify"));
    }
    let is = |entry: &Value, name: &str| objects::text_at(entry, "/name") == name;
    let contexts = objects::list_at(whole, "/contexts");
    let context = contexts
        .iter()
        .find(|entry| is(entry, &current))
        .cloned()
        .ok_or_else(|| CommandError::with_text(format!("cannot locate context {current}")))?;
    whole["current-context"] = json!(current);
    for (list, name) in [
        ("contexts", current.as_str()),
        ("clusters", objects::text_at(&context, "/context/cluster")),
        ("users", objects::text_at(&context, "/context/user")),
    ] {
        if let Some(entries) = whole.get_mut(list).and_then(Value::as_array_mut) {
            entries.retain(|entry| is(entry, name));
        }
    }
    Ok(())
}

fn hide_secrets(fields: &mut Value) {
    for (field, shown) in HIDDEN {
        if let Some(value) = fields.get_mut(field).filter(|value| **value != "") {
            *value = json!(shown);
        }
    }
}

/// Puts the content of files in the place of their names.
pub(super) fn embed_files(fields: &mut Value) -> Result<(), CommandError> {
    let Some(fields) = fields.as_object_mut() else { return Ok(()) };
    for field in FILES {
        let data = format!("{field}-data");
        let Some(Value::String(path)) = fields.get(field).filter(|path| **path != "") else {
            continue;
        };
        if fields.get(&data).is_none_or(|value| value == "") {
            let content = std::fs::read(Path::new(path)).map_err(|error| {
                CommandError::with_text(format!("could not read {field} data from {path}: {error}"))
            })?;
            fields.insert(data, json!(file::encoded(&content)));
        }
        fields.shift_remove(field);
    }
    Ok(())
}

pub(super) fn current_context(session: &Session, output: &mut Output) -> Result<(), CommandError> {
    let whole = session.kubeconfig()?.merged();
    match objects::text_at(&whole, "/current-context") {
        "" => Err(CommandError::with_text("current-context is not set")),
        name => Ok(writeln!(output.out, "{name}")?),
    }
}

pub(super) fn names(
    session: &Session,
    list: &str,
    output: &mut Output,
) -> Result<(), CommandError> {
    writeln!(output.out, "NAME")?;
    for entry in entries(&session.kubeconfig()?, list) {
        writeln!(output.out, "{}", objects::text_at(&entry, "/name"))?;
    }
    Ok(())
}

fn entries(files: &Kubeconfig, list: &str) -> Vec<Value> {
    objects::list_at(&files.merged(), &format!("/{list}")).to_vec()
}

pub(super) fn contexts(
    session: &Session,
    args: &ContextsArgs,
    output: &mut Output,
) -> Result<(), CommandError> {
    let files = session.kubeconfig()?;
    let merged = files.merged();
    let current = objects::text_at(&merged, "/current-context");
    let all = entries(&files, "contexts");
    let name_of = |entry: &Value| objects::text_at(entry, "/name").to_owned();
    let mut errors = Vec::new();
    for name in &args.names {
        if !all.iter().any(|entry| name_of(entry) == *name) {
            errors.push(CommandError::with_text(format!("context {name} not found")));
        }
    }
    let shown =
        all.iter().filter(|entry| args.names.is_empty() || args.names.contains(&name_of(entry)));
    if args.output.is_some() {
        for entry in shown {
            writeln!(output.out, "{}", name_of(entry))?;
        }
        return CommandError::collect(errors);
    }
    let mut rows = Vec::new();
    if !args.no_headers {
        let heads = ["CURRENT", "NAME", "CLUSTER", "AUTHINFO", "NAMESPACE"];
        rows.push(heads.map(str::to_owned).to_vec());
    }
    rows.extend(shown.map(|entry| {
        let name = name_of(entry);
        let mark = if name == current { "*" } else { "" };
        let field = |field: &str| objects::text_at(entry, &format!("/context/{field}")).to_owned();
        vec![mark.to_owned(), name, field("cluster"), field("user"), field("namespace")]
    }));
    output.out.write_all(ColumnWidths::default().render(&rows).as_bytes())?;
    CommandError::collect(errors)
}
