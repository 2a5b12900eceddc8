//! `patch`: changes a part of objects.

use std::path::PathBuf;
use std::process::ExitCode;

use apiserver_schema::PatchType;
use clap::ValueEnum;
use orchctl_client::manifests::FileFlags;
use orchctl_client::{CommandError, Output, Session};
use proto_api::yaml;
use proto_client::Patch;
use serde_json::{Value, json};

use crate::local::{self, LocalFlag};
use crate::record::RecordFlags;
use crate::requests;
use crate::results::ResultFlags;
use crate::targets::{TargetFlags, TargetObject};

/// Formats of patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Type {
    Json,
    Merge,
    Strategic,
}

impl From<Type> for PatchType {
    fn from(kind: Type) -> Self {
        match kind {
            Type::Json => Self::Json,
            Type::Merge => Self::Merge,
            Type::Strategic => Self::Strategic,
        }
    }
}

/// What is printed of an object that is as the patch wants it.
const UNCHANGED: &str = "patched (no change)";

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// TYPE NAME or TYPE/NAME
    #[arg(value_name = "OBJECT")]
    objects: Vec<String>,
    /// Objects of files
    #[command(flatten)]
    files: FileFlags,
    #[command(flatten)]
    local: LocalFlag,
    /// The patch, as JSON or YAML
    #[arg(
        long,
        short,
        value_name = "PATCH",
        conflicts_with = "patch_file",
        required_unless_present = "patch_file"
    )]
    patch: Option<String>,
    /// File with the patch
    #[arg(long, value_name = "FILE")]
    patch_file: Option<PathBuf>,
    /// Format of the patch
    #[arg(long = "type", value_enum, default_value = "strategic", value_name = "FORMAT")]
    kind: Type,
    /// Part of the object: status, scale
    #[arg(long, value_name = "NAME")]
    subresource: Option<String>,
    /// Who writes
    #[arg(long, value_name = "NAME", default_value = "kubectl-patch")]
    field_manager: String,
    #[command(flatten)]
    record: RecordFlags,
    #[command(flatten)]
    results: ResultFlags,
}

/// Runs the command.
///
/// # Errors
/// When the patch is malformed or an object cannot be changed; the others are changed all the same.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let text = match (&args.patch, &args.patch_file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => std::fs::read_to_string(path).map_err(|error| {
            CommandError::with_text(format!(
                "unable to read patch file {}: {error}",
                path.display()
            ))
        })?,
        (None, None) => {
            return Err(CommandError::with_text("must specify --patch or --patch-file"));
        }
    };
    let body: Value = yaml::parse(&text)
        .map_err(|error| CommandError::with_text(format!("unable to parse {text:?}: {error}")))?;
    let flags = TargetFlags { files: args.files.clone(), ..TargetFlags::default() };
    let (targets, mut errors) =
        args.local.read_each(session, &flags, &args.objects, output).await?;
    for target in targets {
        let patched = match args.local.local {
            true => patch_locally(&args, &body, &target, output),
            false => patch(session, &args, &body, &target, output).await,
        };
        if let Err(error) = patched {
            errors.push(error);
        }
    }
    CommandError::collect(errors).map(|()| ExitCode::SUCCESS)
}

fn patch_locally(
    args: &Args,
    body: &Value,
    target: &TargetObject,
    output: &mut Output,
) -> Result<(), CommandError> {
    let changed = local::patched(&target.object, args.kind.into(), body)?;
    let done = if changed == target.object { UNCHANGED } else { "patched" };
    args.results.print_result(output, &target.place, &changed, done)
}

async fn patch(
    session: &Session,
    args: &Args,
    body: &Value,
    target: &TargetObject,
    output: &mut Output,
) -> Result<(), CommandError> {
    let patch = match args.kind {
        Type::Json => Patch::Json(body.clone()),
        Type::Merge => Patch::Merge(body.clone()),
        Type::Strategic => Patch::Strategic(body.clone()),
    };
    let write = requests::WriteOptions {
        // What is not sent is checked by the server all the same: a patch has to be applied.
        dry_run: args.results.dry_run != crate::results::DryRun::None,
        ..args.results.write(&args.field_manager)?
    };
    let path = target.place.path(args.subresource.as_deref());
    let mut object = requests::patch(session, path, &patch, &write).await?;
    let version = |object: &Value| object.pointer("/metadata/resourceVersion").cloned();
    let same = object.get("spec") == target.object.get("spec")
        && version(&object) == version(&target.object);
    let done = if same { UNCHANGED } else { "patched" };
    let mut cause = json!({});
    if args.record.annotate(session, &mut cause, output).await? && !write.dry_run {
        let path = target.place.path(None);
        match requests::patch(session, path, &Patch::Merge(cause), &write).await {
            Ok(recorded) => object = recorded,
            // The object is patched all the same: as with kubectl, that is no failure.
            Err(error) => session.warn(&format!(
                "{} is patched, but its cause of change was not recorded: {error}",
                target.place.title()
            )),
        }
    }
    args.results.print_result(output, &target.place, &object, done)
}
