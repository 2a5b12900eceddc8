//! `auth reconcile`: roles and bindings of files, merged with those of the server.

use std::process::ExitCode;

use orchctl_client::manifests::{self, FileFlags, Manifest};
use orchctl_client::{CommandError, Output, Session};
use orchctl_plans::reconcile_access::{self, ReconcileOperation, Reconciliation};
use proto_api::names::Names;
use serde_json::{Value, json};

use crate::requests::{self, Deletion, Place};
use crate::results::{DryRun, ResultFlags};

/// How often an object is compared when others change it meanwhile.
const ATTEMPTS_MAX: u32 = 3;
/// Who writes, as kubectl says.
const MANAGER: &str = "kubectl";

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Files with roles and bindings; other objects in them are left out
    #[command(flatten)]
    files: FileFlags,
    /// Remove what roles allow besides
    #[arg(long)]
    remove_extra_permissions: bool,
    /// Remove subjects that bindings have besides
    #[arg(long)]
    remove_extra_subjects: bool,
    #[command(flatten)]
    results: ResultFlags,
}

/// Runs the command.
///
/// # Errors
/// When an object cannot be read or written.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    if args.files.filename.is_empty() {
        return Err(CommandError::with_text(
            "name the objects with -f: a file, a directory, a URL, or - for standard input",
        ));
    }
    if args.results.dry_run == DryRun::Server {
        return Err(CommandError::with_text(
            "--dry-run=server for command reconcile is not supported yet",
        ));
    }
    // What could not be printed is not written.
    args.results.write(MANAGER)?;
    let names = session.names().await?;
    let mut errors = Vec::new();
    for manifest in manifests::read(session, &args.files, output).await? {
        let Some((group, version)) = manifest.api_version().split_once('/') else { continue };
        if names.short_group(group) != Some("rbac.authorization") {
            continue;
        }
        if version != "v1" {
            let (kind, v1) = (manifest.kind(), names.api_version("rbac", "v1"));
            let why = format!("only {v1} is supported: not {kind} of {version}");
            errors.push(CommandError::with_text(why));
        } else if let Err(error) = reconcile(session, &args, names, &manifest, output).await {
            errors.push(error);
        }
    }
    CommandError::collect(errors).map(|()| ExitCode::SUCCESS)
}

async fn reconcile(
    session: &Session,
    args: &Args,
    names: &'static Names,
    manifest: &Manifest,
    output: &mut Output,
) -> Result<(), CommandError> {
    let place = Place::from_manifest(session, manifest).await?;
    let wanted = place.object_of(manifest);
    let is_role = matches!(manifest.kind(), "Role" | "ClusterRole");
    let remove_extra =
        if is_role { args.remove_extra_permissions } else { args.remove_extra_subjects };
    let plan = if is_role { reconcile_access::role } else { reconcile_access::binding };
    for _ in 0..ATTEMPTS_MAX {
        let stored = requests::find(session, &place).await?;
        let mut planned = plan(names, stored.as_ref(), &wanted, remove_extra);
        if !planned.is_protected && args.results.dry_run == DryRun::None {
            match write(session, &place, stored.as_ref(), &planned).await {
                Ok(written) => planned.object = written,
                Err(error) if has_changed(&error, planned.operation) => continue,
                Err(error) => return Err(error),
            }
        }
        args.results.print_result(output, &place, &planned.object, "reconciled")?;
        output.out.flush()?;
        for line in planned.lines(names, remove_extra) {
            writeln!(output.err, "{line}")?;
        }
        return Ok(());
    }
    let title = place.title();
    Err(CommandError::with_text(format!("{title} is changed by others all the time")))
}

/// Whether another writer came between the comparison and the write.
fn has_changed(error: &CommandError, operation: ReconcileOperation) -> bool {
    match requests::code(error) {
        Some(409) => true,
        Some(404) => operation == ReconcileOperation::Update,
        _ => false,
    }
}

/// Does what is planned; returns what the server has then.
async fn write(
    session: &Session,
    place: &Place,
    stored: Option<&Value>,
    planned: &Reconciliation,
) -> Result<Value, CommandError> {
    let write =
        requests::WriteOptions { manager: MANAGER.to_owned(), ..requests::WriteOptions::default() };
    let object = &planned.object;
    match planned.operation {
        ReconcileOperation::Nothing => return Ok(object.clone()),
        ReconcileOperation::Update => {
            return requests::update(session, place.path(None), object, &write).await;
        }
        ReconcileOperation::Recreate => {
            check_create(session, place, object, &write).await?;
            let uid = stored.and_then(|stored| stored.pointer("/metadata/uid"));
            let uid = uid.and_then(Value::as_str).map(str::to_owned);
            match requests::delete(session, place, &Deletion { uid, ..Deletion::default() }).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
        ReconcileOperation::Create => ensure_namespace(session, place).await?,
    }
    requests::create(session, place.collection(), object, &write).await
}

/// Fails if the server would refuse to create an object that is still there: then it must not be deleted. Who may grant, and what is valid, is
/// checked before the name.
async fn check_create(
    session: &Session,
    place: &Place,
    object: &Value,
    write: &requests::WriteOptions,
) -> Result<(), CommandError> {
    let checks = requests::WriteOptions { dry_run: true, ..write.clone() };
    match requests::create(session, place.collection(), object, &checks).await {
        Err(error) if requests::code(&error) != Some(409) => Err(error),
        _ => Ok(()),
    }
}

/// Creates the namespace of an object if it is missing and the user may.
async fn ensure_namespace(session: &Session, place: &Place) -> Result<(), CommandError> {
    let Some(name) = &place.namespace else { return Ok(()) };
    let namespaces = session.discovery().await?.served_kind("v1", "Namespace")?.clone();
    let place = Place { resource: namespaces, namespace: None, name: name.clone() };
    match requests::get(session, &place).await {
        Ok(_) => return Ok(()),
        Err(error) if matches!(requests::code(&error), Some(403 | 404)) => {}
        Err(error) => return Err(error),
    }
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    let write =
        requests::WriteOptions { manager: MANAGER.to_owned(), ..requests::WriteOptions::default() };
    match requests::create(session, place.collection(), &object, &write).await {
        Err(error) if !matches!(requests::code(&error), Some(403 | 409)) => Err(error),
        _ => Ok(()),
    }
}
