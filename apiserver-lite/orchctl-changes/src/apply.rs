//! `apply`: brings objects to what files describe, by the client or by the server.

mod prune;
mod set_last_applied;
pub mod view_last_applied;

use std::process::ExitCode;

use apiserver_schema::Engine;
use clap::Subcommand;
use orchctl_client::manifests::{Manifest, ReadManifests};
use orchctl_client::{CommandError, Output, Session};
use orchctl_plans::apply::{self, ApplyDocuments};
use proto_api::names::Names;
use proto_client::Patch;
use serde_json::{Value, json};

use crate::create::{Validation, validation};
use crate::delete::DeletionFlags;
use crate::file_selection::FileSelection;
use crate::poll::{self, PollIntervals};
use crate::record::RecordFlags;
use crate::requests::{self, Deletion, Place, WriteOptions};
use crate::results::{DryRun, ResultFlags};

/// How often a patch is made again when another writer was faster.
const CONFLICTS_MAX: usize = 5;

/// Flags of the command.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Part>,
    #[command(flatten)]
    flags: Flags,
}

/// Commands below `apply`.
#[derive(Subcommand, Debug)]
enum Part {
    /// Show what was applied last
    #[command(name = "view-last-applied")]
    View(view_last_applied::Args),
    /// Record what files describe as applied, without applying it
    #[command(name = "set-last-applied")]
    Set(set_last_applied::SetArgs),
    /// Edit the record of what was applied last
    #[command(name = "edit-last-applied")]
    Edit(set_last_applied::EditArgs),
}

#[derive(clap::Args, Debug)]
struct Flags {
    #[command(flatten)]
    selection: FileSelection,
    /// Have the server merge, by the fields' managers
    #[arg(long)]
    server_side: bool,
    /// Take fields of other managers (with --server-side)
    #[arg(long)]
    force_conflicts: bool,
    /// Who writes
    #[arg(long, value_name = "NAME")]
    field_manager: Option<String>,
    /// What to do about unknown fields
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_value = "strict", default_missing_value = "strict")]
    validate: Validation,
    /// Replace values that others have changed since the last apply
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true,
        default_missing_value = "true", action = clap::ArgAction::Set)]
    overwrite: bool,
    /// Delete objects that were applied before and are not in the files
    #[arg(long)]
    prune: bool,
    /// With --prune: all objects that were applied
    #[arg(long)]
    all: bool,
    /// With --prune: only these kinds, as group/version/kind (core for the core group)
    #[arg(long, alias = "prune-whitelist", value_name = "KIND")]
    prune_allowlist: Vec<String>,
    #[command(flatten)]
    deletion: DeletionFlags,
    #[command(flatten)]
    record: RecordFlags,
    #[command(flatten)]
    results: ResultFlags,
}

/// Runs the command.
///
/// # Errors
/// When an object cannot be applied; the others are applied all the same.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    match args.command {
        Some(Part::View(args)) => view_last_applied::run(session, args, output).await,
        Some(Part::Set(args)) => set_last_applied::run_set(session, args, output).await,
        Some(Part::Edit(args)) => set_last_applied::run_edit(session, args, output).await,
        None => run_apply(session, args.flags, output).await,
    }
}

fn check(flags: &Flags) -> Result<(), CommandError> {
    let wrong = |text: &str| Err(CommandError::with_text(text));
    if flags.selection.is_empty() {
        return wrong(
            "name the objects with -f: a file, a directory, a URL, or - for standard input",
        );
    }
    if flags.force_conflicts && !flags.server_side {
        return wrong("--force-conflicts only works with --server-side");
    }
    if flags.server_side && flags.results.dry_run == DryRun::Client {
        return wrong(
            "--dry-run=client doesn't work with --server-side (did you mean --dry-run=server instead?)",
        );
    }
    if flags.server_side && flags.deletion.force {
        return wrong("--force cannot be used with --server-side");
    }
    if flags.results.dry_run == DryRun::Server && flags.deletion.force {
        return wrong("--dry-run=server cannot be used with --force");
    }
    if flags.prune && !flags.all && flags.selection.selector.is_empty() {
        return wrong(
            "all resources selected for prune without explicitly passing --all. To prune all resources, pass the --all flag. If you did not mean to prune all resources, specify a label selector",
        );
    }
    Ok(())
}

async fn run_apply(
    session: &Session,
    flags: Flags,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    check(&flags)?;
    let mut applied = Vec::new();
    // Objects that are printed at the end.
    let mut objects = Vec::new();
    let names = session.names().await?;
    let engine = Engine::new(names);
    let run = Run { session, flags: &flags, names, engine };
    let ReadManifests { manifests, mut errors } =
        flags.selection.read_each(session, output).await?;
    for manifest in manifests {
        match run.apply(&manifest, output).await {
            Ok((one, object)) => {
                applied.push(one);
                objects.extend(object);
            }
            Err(error) => errors.push(error),
        }
    }
    if applied.is_empty() && errors.is_empty() {
        return Err(CommandError::with_text("no objects passed to apply"));
    }
    if errors.is_empty() && !objects.is_empty() {
        let whole = match objects.len() {
            1 => objects.remove(0),
            _ => json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": objects}),
        };
        flags.results.print(output, whole)?;
        output.out.flush()?;
    }
    if flags.prune && errors.is_empty() {
        let scope =
            prune::Scope { selector: &flags.selection.selector, kinds: &flags.prune_allowlist };
        let deletion = Deletion {
            propagation: Some(flags.deletion.cascade.policy()),
            dry_run: flags.results.dry_run == DryRun::Server,
            grace_secs: Some(flags.deletion.grace_period).filter(|seconds| *seconds >= 0),
            uid: None,
        };
        prune::run(session, &scope, &deletion, &applied, &flags.results, output).await?;
    }
    CommandError::collect(errors).map(|()| ExitCode::SUCCESS)
}

/// An object that was applied: where it is and its UID.
type Applied = (Place, String);

struct Run<'a> {
    session: &'a Session,
    flags: &'a Flags,
    names: &'static Names,
    engine: Engine,
}

impl Run<'_> {
    async fn apply(
        &self,
        manifest: &Manifest,
        output: &mut Output,
    ) -> Result<(Applied, Option<Value>), CommandError> {
        let place = Place::of_new(self.session, manifest).await?;
        if place.name.is_empty() {
            let prefix = manifest.object.pointer("/metadata/generateName").and_then(Value::as_str);
            let why = match prefix {
                Some(prefix) => format!("from {prefix}: cannot use generate name with apply"),
                None => format!(
                    "error when applying \"{}\": resource name may not be empty",
                    manifest.source
                ),
            };
            return Err(CommandError::with_text(why));
        }
        let mut object = place.object_of(manifest);
        self.flags.record.annotate(self.session, &mut object, output).await?;
        let (object, done) = if self.flags.server_side {
            (self.apply_on_server(&place, object).await?, "serverside-applied")
        } else {
            self.apply_here(&place, manifest, &object).await?
        };
        let uid = object.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
        let uid = uid.to_owned();
        if self.flags.results.prints_objects() {
            return Ok(((place, uid), Some(object)));
        }
        self.flags.results.print_result(output, &place, &object, done)?;
        output.out.flush()?;
        Ok(((place, uid), None))
    }

    fn write(&self) -> Result<WriteOptions, CommandError> {
        let usual = if self.flags.server_side { "kubectl" } else { "kubectl-client-side-apply" };
        let manager = self.flags.field_manager.as_deref().unwrap_or(usual);
        Ok(WriteOptions {
            validation: Some(validation(self.flags.validate)),
            force: self.flags.force_conflicts,
            ..self.flags.results.write(manager)?
        })
    }

    async fn apply_on_server(
        &self,
        place: &Place,
        mut object: Value,
    ) -> Result<Value, CommandError> {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        let patch = Patch::Apply(object);
        let applied = requests::patch(self.session, place.path(None), &patch, &self.write()?).await;
        applied.map_err(|error| match requests::code(&error) {
            Some(409) => CommandError::with_text(format!(
                "{}\n\
                 The fields above belong to other managers. To take them, apply again with --force-conflicts; to leave them, remove them from the\n\
                 description; to share them, describe the values that they have now.",
                requests::message(&error)
            )),
            _ => error,
        })
    }

    async fn apply_here(
        &self,
        place: &Place,
        manifest: &Manifest,
        object: &Value,
    ) -> Result<(Value, &'static str), CommandError> {
        let modified = apply::recorded(self.names, object);
        let Some(current) = requests::find(self.session, place).await? else {
            if !self.flags.results.sends() {
                return Ok((modified, "created"));
            }
            let made =
                requests::create(self.session, place.collection(), &modified, &self.write()?).await;
            let made =
                made.map_err(|error| requests::with_source(error, "creating", &manifest.source));
            return Ok((made?, "created"));
        };
        if apply::last_applied(self.names, &current).is_none() {
            let annotation = apply::last_applied_annotation(self.names);
            self.session.warn(&format!(
                "resource {} is missing the {annotation} annotation which is required by apply: only objects that were made with create --save-config or \
                 apply have it. The missing annotation will be patched automatically.",
                place.title().replacen(&place.resource.word(), &place.resource.full_name(), 1)
            ));
        }
        if !self.flags.results.sends() {
            return Ok((current, "configured"));
        }
        self.patch(place, manifest, &modified, current).await
    }

    /// Patches an object; made again for the newer one if another writer was faster.
    async fn patch(
        &self,
        place: &Place,
        manifest: &Manifest,
        modified: &Value,
        mut current: Value,
    ) -> Result<(Value, &'static str), CommandError> {
        let source = |error| requests::with_source(error, "applying patch for", &manifest.source);
        for attempt in 0..=CONFLICTS_MAX {
            let original =
                apply::last_applied(self.names, &current).map(serde_json::from_str::<Value>);
            let original = original.transpose().map_err(|error| {
                CommandError::with_text(format!(
                    "the last-applied-configuration annotation of {} is not valid JSON: {error}",
                    place.title()
                ))
            })?;
            let documents =
                ApplyDocuments { original: original.as_ref(), modified, current: &current };
            let change = apply::difference(&self.engine, &documents)
                .map_err(|error| CommandError::with_text(format!("{}: {error}", place.title())))?;
            if change.is_empty() {
                return Ok((current, "unchanged"));
            }
            if !self.flags.overwrite {
                check_overwrite(place, original.as_ref(), &current, change.body())?;
            }
            let patch = requests::as_patch(change);
            match requests::patch(self.session, place.path(None), &patch, &self.write()?).await {
                Ok(object) => return Ok((object, "configured")),
                Err(error) if requests::code(&error) == Some(409) && attempt < CONFLICTS_MAX => {
                    current = requests::get(self.session, place).await?;
                }
                Err(error) if self.flags.deletion.force && is_refusal(&error) => {
                    return Ok((self.replace(place, modified, &current).await?, "configured"));
                }
                Err(error) => return Err(source(error)),
            }
        }
        Err(CommandError::with_text(format!("{} is changed by others all the time", place.title())))
    }

    /// Deletes an object that cannot be changed this way, and makes it again; if the server refuses the new one, the old one.
    async fn replace(
        &self,
        place: &Place,
        modified: &Value,
        current: &Value,
    ) -> Result<Value, CommandError> {
        let uid = current.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
        let deletion = Deletion {
            grace_secs: Some(self.flags.deletion.grace_period.max(0)),
            propagation: Some(self.flags.deletion.cascade.policy()),
            dry_run: false,
            uid: Some(uid.to_owned()),
        };
        let limit = poll::limit("--timeout", &self.flags.deletion.timeout)?;
        requests::delete(self.session, place, &deletion).await?;
        poll::until_gone(self.session, place, uid, &mut PollIntervals::up_to(limit)).await?;
        let made = create(self, place, modified).await;
        if made.is_err() {
            create(self, place, current).await?;
        }
        made
    }
}

/// Creates an object that was on a server before.
async fn create(run: &Run<'_>, place: &Place, object: &Value) -> Result<Value, CommandError> {
    let mut object = object.clone();
    if let Some(metadata) = object.pointer_mut("/metadata").and_then(Value::as_object_mut) {
        metadata.retain(|field, _| {
            !["resourceVersion", "uid", "creationTimestamp"].contains(&&**field)
        });
    }
    requests::create(run.session, place.collection(), &object, &run.write()?).await
}

/// Whether the server will never take the change.
fn is_refusal(error: &CommandError) -> bool {
    requests::code(error) == Some(422)
}

/// Without `--overwrite`, a value that another writer has changed since the last apply is not replaced.
fn check_overwrite(
    place: &Place,
    original: Option<&Value>,
    current: &Value,
    patch: &Value,
) -> Result<(), CommandError> {
    let Some(original) = original else { return Ok(()) };
    match conflict(original, current, patch, "") {
        None => Ok(()),
        Some(field) => Err(CommandError::with_text(format!(
            "{}: {field} was changed since the last apply, and --overwrite is false",
            place.title()
        ))),
    }
}

/// The first field of the patch whose value is no longer what was applied.
fn conflict(original: &Value, current: &Value, patch: &Value, path: &str) -> Option<String> {
    let (Value::Object(original), Value::Object(current), Value::Object(patch)) =
        (original, current, patch)
    else {
        return (original != current).then(|| path.to_owned());
    };
    patch.iter().filter(|(key, _)| !key.starts_with('$')).find_map(|(key, value)| {
        let path = format!("{path}.{key}");
        conflict(original.get(key)?, current.get(key)?, value, &path)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_of_another_writer_is_a_conflict() {
        let original = json!({"spec": {"a": 1, "b": 1}});
        let patch = json!({"spec": {"a": 2, "new": 1}});
        let same = json!({"spec": {"a": 1, "b": 9}});
        assert_eq!(conflict(&original, &same, &patch, ""), None);
        let other = json!({"spec": {"a": 5}});
        assert_eq!(conflict(&original, &other, &patch, "").as_deref(), Some(".spec.a"));
    }
}
