//! `diff`: what `apply` would change. Exits with 0 if nothing, 1 if something, 2 after an error.

mod external;

use std::process::ExitCode;

use apiserver_schema::Engine;
use orchctl_client::manifests::Manifest;
use orchctl_client::{CommandError, Output, Session};
use orchctl_plans::apply::{self, ApplyDocuments};
use orchctl_plans::text;
use proto_api::yaml;
use proto_client::Patch;
use serde_json::Value;

use crate::file_selection::FileSelection;
use crate::requests::{self, Place, WriteOptions};

/// What is printed first of a side without an object.
const NOTHING: &str = "";

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    selection: FileSelection,
    /// Have the server merge, by the fields' managers
    #[arg(long)]
    server_side: bool,
    /// Take fields of other managers (with --server-side)
    #[arg(long, requires = "server_side")]
    force_conflicts: bool,
    /// Who would write
    #[arg(long, value_name = "NAME")]
    field_manager: Option<String>,
    /// Show which fields belong to which manager, too
    #[arg(long)]
    show_managed_fields: bool,
}

/// Runs the command.
///
/// # Errors
/// Never: errors are printed, since their exit code is not that of differences.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    match compare(session, &args, output).await {
        Ok(false) => Ok(ExitCode::SUCCESS),
        Ok(true) => Ok(ExitCode::from(1)),
        Err(error) => {
            writeln!(output.err, "{error}")?;
            Ok(ExitCode::from(2))
        }
    }
}

/// Prints the differences; returns whether there are any.
async fn compare(
    session: &Session,
    args: &Args,
    output: &mut Output,
) -> Result<bool, CommandError> {
    if args.selection.is_empty() {
        return Err(CommandError::with_text(
            "name the objects with -f: a file, a directory, a URL, or - for standard input",
        ));
    }
    let engine = Engine::new(session.names().await?);
    let program = external::program(|name| session.variable(name));
    let mut differs = false;
    let mut sides = Vec::new();
    for manifest in args.selection.read(session, output).await? {
        let place = Place::from_manifest(session, &manifest).await?;
        let live = requests::find(session, &place).await?;
        let merged = merge(session, args, &engine, &place, &manifest, live.as_ref()).await?;
        let both = sides_of(args, &manifest, &place, live, merged);
        if program.is_some() {
            sides.push(both);
            continue;
        }
        let text = both.unified();
        differs |= !text.is_empty();
        write!(output.out, "{text}")?;
    }
    match program {
        Some(words) => {
            output.out.flush()?;
            external::compare(&words, &sides).await
        }
        None => Ok(differs),
    }
}

/// An object as it is and as it would be.
struct Sides {
    /// What its files are called.
    name: String,
    live: String,
    merged: String,
}

impl Sides {
    fn unified(&self) -> String {
        let (before, after) = (format!("LIVE/{}", self.name), format!("MERGED/{}", self.name));
        text::unified((&before, &self.live), (&after, &self.merged))
    }
}

/// What the server would keep.
async fn merge(
    session: &Session,
    args: &Args,
    engine: &Engine,
    place: &Place,
    manifest: &Manifest,
    live: Option<&Value>,
) -> Result<Value, CommandError> {
    let usual = if args.server_side { "kubectl" } else { "kubectl-client-side-apply" };
    let write = WriteOptions {
        dry_run: true,
        manager: args.field_manager.as_deref().unwrap_or(usual).to_owned(),
        validation: None,
        force: args.force_conflicts,
    };
    if args.server_side {
        let patch = Patch::Apply(place.object_of(manifest));
        return requests::patch(session, place.path(None), &patch, &write).await;
    }
    let names = session.names().await?;
    let Some(live) = live else {
        let made = apply::unrecorded(names, &place.object_of(manifest));
        return requests::create(session, place.collection(), &made, &write).await;
    };
    let modified = apply::as_recorded(names, &place.object_of(manifest));
    let original = apply::last_applied(names, live).map(serde_json::from_str::<Value>).transpose();
    let original = original.map_err(|error| {
        CommandError::with_text(format!(
            "the last-applied-configuration annotation of {} is not valid JSON: {error}",
            place.title()
        ))
    })?;
    let documents =
        ApplyDocuments { original: original.as_ref(), modified: &modified, current: live };
    let change = apply::difference(engine, &documents)
        .map_err(|error| CommandError::with_text(format!("{}: {error}", place.title())))?;
    if change.is_empty() {
        return Ok(live.clone());
    }
    requests::patch(session, place.path(None), &requests::as_patch(change), &write).await
}

fn sides_of(
    args: &Args,
    manifest: &Manifest,
    place: &Place,
    live: Option<Value>,
    merged: Value,
) -> Sides {
    let (mut live, mut merged) = (live.unwrap_or_default(), merged);
    if manifest.kind() == "Secret" {
        text::mask_secrets(&mut live, &mut merged);
    }
    for object in [&mut live, &mut merged] {
        if let (false, Some(metadata)) =
            (args.show_managed_fields, object.get_mut("metadata").and_then(Value::as_object_mut))
        {
            metadata.remove("managedFields");
        }
    }
    let group = manifest.api_version().replace('/', ".");
    let namespace = place.namespace.as_deref().unwrap_or_default();
    let name = format!("{group}.{}.{namespace}.{}", manifest.kind(), place.name);
    let live = if live.is_null() { NOTHING.to_owned() } else { yaml::to_string(&live) };
    Sides { name, live, merged: yaml::to_string(&merged) }
}
