//! `replace`: puts objects of files in the place of those that the server has.

use std::process::ExitCode;

use orchctl_client::manifests::{self, FileFlags, Manifest, ReadManifests};
use orchctl_client::{CommandError, Output, Session};
use orchctl_plans::apply;
use proto_client::{WriteParams, request};
use serde_json::{Value, json};

use crate::create::{Validation, validation};
use crate::delete::DeletionFlags;
use crate::poll::{self, PollIntervals};
use crate::raw::{self, Body};
use crate::record::RecordFlags;
use crate::requests::{self, Deletion, Place, WriteOptions};
use crate::results::{DryRun, ResultFlags};

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Objects of files
    #[command(flatten)]
    files: FileFlags,
    /// Put the file to this path of the server, and print the answer as it is
    #[arg(long, value_name = "PATH")]
    raw: Option<String>,
    #[command(flatten)]
    deletion: DeletionFlags,
    /// Part of the object: status, scale
    #[arg(long, value_name = "NAME")]
    subresource: Option<String>,
    /// Record the object for later applies
    #[arg(long)]
    save_config: bool,
    /// What to do about unknown fields
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_value = "strict", default_missing_value = "strict")]
    validate: Validation,
    /// Who writes
    #[arg(long, value_name = "NAME", default_value = "kubectl-replace")]
    field_manager: String,
    #[command(flatten)]
    record: RecordFlags,
    #[command(flatten)]
    results: ResultFlags,
}

/// Runs the command.
///
/// # Errors
/// When an object cannot be replaced; the others are replaced all the same.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    if let Some(path) = &args.raw {
        raw::check_results(&args.results)?;
        let body = raw::read_body(path, &args.files, Body::Required, output)?;
        let params = WriteParams::default();
        let request = request::update(path.clone(), &params, request::JSON, body);
        return raw::send(session, request, output).await;
    }
    if args.files.filename.is_empty() {
        return Err(CommandError::with_text(
            "name the objects with -f: a file, a directory, a URL, or - for standard input",
        ));
    }
    if args.deletion.grace_period >= 0 && !args.deletion.force {
        return Err(CommandError::with_text("--grace-period must have --force specified"));
    }
    if args.deletion.force && args.results.dry_run != DryRun::None {
        return Err(CommandError::with_text("--dry-run cannot be set when --force is used"));
    }
    let write = WriteOptions {
        validation: Some(validation(args.validate)),
        ..args.results.write(&args.field_manager)?
    };
    let ReadManifests { manifests, mut errors } =
        manifests::read_each(session, &args.files, output).await?;
    for manifest in manifests {
        let replaced = replace(session, &args, &write, &manifest, output).await;
        if let Err(error) = replaced {
            errors.push(requests::with_source(error, "replacing", &manifest.source));
        }
    }
    CommandError::collect(errors).map(|()| ExitCode::SUCCESS)
}

async fn replace(
    session: &Session,
    args: &Args,
    write: &WriteOptions,
    manifest: &Manifest,
    output: &mut Output,
) -> Result<(), CommandError> {
    let place = Place::from_manifest(session, manifest).await?;
    let names = session.names().await?;
    let mut object = place.object_of(manifest);
    if args.save_config || apply::last_applied(names, &object).is_some() {
        object = apply::recorded(names, &object);
    }
    args.record.annotate(session, &mut object, output).await?;
    if args.deletion.force {
        if remove(session, args, &place).await? && args.results.print.text().is_none() {
            writeln!(output.out, "{} \"{}\" deleted", place.resource.word(), place.name)?;
        }
        if let Some(metadata) = object.pointer_mut("/metadata").and_then(Value::as_object_mut) {
            metadata.remove("resourceVersion");
            metadata.remove("uid");
        }
        let made = requests::create(session, place.collection(), &object, write).await?;
        return args.results.print_result(output, &place, &made, "replaced");
    }
    if !args.results.sends() {
        return args.results.print_result(output, &place, &object, "replaced");
    }
    let path = place.path(args.subresource.as_deref());
    if object.pointer("/metadata/resourceVersion").is_none_or(|version| version == "") {
        // Whatever it is now is replaced; custom resources are not replaced without a version.
        let now = session.call_json(request::get(place.path(None))).await?;
        object["metadata"]["resourceVersion"] = now["metadata"]["resourceVersion"].clone();
    }
    let replaced = requests::update(session, path, &object, write).await?;
    args.results.print_result(output, &place, &replaced, "replaced")
}

/// Deletes what is there, and waits until it has gone; returns whether there was something.
async fn remove(session: &Session, args: &Args, place: &Place) -> Result<bool, CommandError> {
    let deletion = Deletion {
        grace_secs: Some(args.deletion.grace_period.max(0)),
        propagation: Some(args.deletion.cascade.policy()),
        ..Deletion::default()
    };
    let limit = poll::limit("--timeout", &args.deletion.timeout)?;
    match requests::delete(session, place, &deletion).await {
        Ok(answer) => {
            let none = json!("");
            let uid = answer.pointer("/metadata/uid").or(answer.pointer("/details/uid"));
            let uid = uid.unwrap_or(&none).as_str().unwrap_or_default();
            poll::until_gone(session, place, uid, &mut PollIntervals::up_to(limit)).await?;
            Ok(true)
        }
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}
