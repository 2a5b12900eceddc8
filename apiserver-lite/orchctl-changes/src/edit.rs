//! `edit`: objects in the user's editor.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use orchctl_client::manifests::FileFlags;
use orchctl_client::{CommandError, Output, Session};
use proto_api::yaml;
use proto_daemon::private_files;
use serde_json::Value;

use crate::record::RecordFlags;
use crate::requests;
use crate::results::ResultFlags;
use crate::targets::{self, TargetFlags, TargetObject};

/// Most names of files that are tried.
const NAMES_MAX: u32 = 1000;

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// TYPE NAME or TYPE/NAME
    #[arg(value_name = "OBJECT")]
    objects: Vec<String>,
    /// Objects of files
    #[command(flatten)]
    files: FileFlags,
    /// Part of the object: status
    #[arg(long, value_name = "NAME")]
    subresource: Option<String>,
    /// What is edited: yaml or json
    #[arg(long, short, value_name = "FORM", value_parser = ["yaml", "json"], default_value = "yaml")]
    output: String,
    /// Who writes
    #[arg(long, value_name = "NAME", default_value = "kubectl-edit")]
    field_manager: String,
    /// Show which fields belong to which manager, too
    #[arg(long)]
    show_managed_fields: bool,
    #[command(flatten)]
    record: RecordFlags,
}

/// Runs the command.
///
/// # Errors
/// When the editor fails, or the server refuses what was edited and the user leaves it so: it is kept in a file then.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let flags = TargetFlags { files: args.files.clone(), ..TargetFlags::default() };
    for target in targets::read(session, &flags, &args.objects, output).await? {
        edit(session, &args, &target, output).await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// How an edited text was taken.
enum Outcome {
    /// The object was changed.
    Edited(Value),
    /// The text has no changes.
    Unchanged,
    /// The user can mend it: why it was not taken.
    Refused(String),
}

/// The user edits until the server takes the object, or the text is left as it was.
async fn edit(
    session: &Session,
    args: &Args,
    target: &TargetObject,
    output: &mut Output,
) -> Result<(), CommandError> {
    let TargetObject { place, object } = target;
    let mut shown = object.clone();
    if let (false, Some(metadata)) =
        (args.show_managed_fields, shown.get_mut("metadata").and_then(Value::as_object_mut))
    {
        metadata.remove("managedFields");
    }
    let mut text = match args.output.as_str() {
        "json" => orchctl_printers::json::pretty(&shown),
        _ => yaml::to_string(&shown),
    };
    let (mut why, mut kept) = (String::new(), None::<PathBuf>);
    loop {
        let draft = format!("{}{text}", head(&args.output, &why));
        let opened = in_editor(session, &draft, &args.output).await;
        let path = match (opened, &kept) {
            (Ok(path), _) => path,
            (Err(error), None) => return Err(error),
            (Err(error), Some(kept)) => {
                return Err(error_with_copy(&requests::message(&error), kept));
            }
        };
        let edited = without_head(&std::fs::read_to_string(&path)?);
        if let Some(kept) = kept.take() {
            std::fs::remove_file(kept)?;
            if edited == text {
                let cancelled = "Edit cancelled, no valid changes were saved.";
                return Err(error_with_copy(cancelled, &path));
            }
        }
        match submit(session, args, (target, &shown), &edited, output).await {
            Ok(Outcome::Edited(object)) => {
                std::fs::remove_file(&path)?;
                return ResultFlags::default().print_result(output, place, &object, "edited");
            }
            Ok(Outcome::Unchanged) => {
                std::fs::remove_file(&path)?;
                writeln!(output.err, "Edit cancelled, no changes made.")?;
                return Ok(());
            }
            Ok(Outcome::Refused(reason)) => {
                writeln!(output.err, "error: {reason}")?;
                (text, why, kept) = (edited, reason, Some(path));
            }
            Err(error) => return Err(error_with_copy(&requests::message(&error), &path)),
        }
    }
}

/// Sends what was edited.
async fn submit(
    session: &Session,
    args: &Args,
    (target, shown): (&TargetObject, &Value),
    edited: &str,
    output: &mut Output,
) -> Result<Outcome, CommandError> {
    let mut after: Value = match yaml::parse(edited) {
        Ok(after) => after,
        Err(error) => {
            return Ok(Outcome::Refused(format!("the edited text cannot be read: {error}")));
        }
    };
    if after == *shown || after.is_null() {
        return Ok(Outcome::Unchanged);
    }
    let place = &target.place;
    for pointer in ["/apiVersion", "/kind", "/metadata/name", "/metadata/namespace"] {
        if after.pointer(pointer) != shown.pointer(pointer) {
            let field = pointer.trim_start_matches('/').replace('/', ".");
            let title = place.title();
            return Err(CommandError::with_text(format!("{field} of {title} cannot be changed")));
        }
    }
    args.record.annotate(session, &mut after, output).await?;
    let change = requests::changed(session, shown, &after).await?;
    let write = ResultFlags::default().write(&args.field_manager)?;
    let path = place.path(args.subresource.as_deref());
    match requests::patch(session, path, &requests::as_patch(change), &write).await {
        Ok(object) => Ok(Outcome::Edited(object)),
        Err(error) if requests::code(&error) == Some(422) => {
            Ok(Outcome::Refused(requests::message(&error)))
        }
        Err(error) => Err(error),
    }
}

/// What stands above a text in YAML; JSON has no comments.
fn head(format: &str, why: &str) -> String {
    if format == "json" {
        return String::new();
    }
    let mut head = "# Lines that begin with '#' do not count. A file without changes, or without anything else, changes nothing.\n#\n".to_owned();
    if !why.is_empty() {
        head.push_str("# The last edit was not taken:\n");
        why.lines().for_each(|line| head.push_str(&format!("# {line}\n")));
        head.push_str("#\n");
    }
    head
}

/// The text below the comments that begin a file.
fn without_head(text: &str) -> String {
    let lines = text.split_inclusive('\n').skip_while(|line| line.starts_with('#'));
    lines.collect()
}

/// Has the user edit a text; returns the file with it.
///
/// # Errors
/// The file cannot be written, or the editor fails.
pub async fn in_editor(
    session: &Session,
    text: &str,
    ending: &str,
) -> Result<PathBuf, CommandError> {
    let path = write_file(text, ending)?;
    if let Err(error) = open_editor(session, &path).await {
        // It may be a Secret.
        std::fs::remove_file(&path)?;
        return Err(error);
    }
    Ok(path)
}

/// Why an edit was not taken, and where it is.
pub fn error_with_copy(why: &str, path: &std::path::Path) -> CommandError {
    CommandError::with_text(format!(
        "{why}\nA copy of your changes has been stored to {}",
        path.display()
    ))
}

/// Writes a file of its own name that only the user can read.
fn write_file(text: &str, ending: &str) -> Result<PathBuf, CommandError> {
    let directory = std::env::temp_dir();
    for at in 0..NAMES_MAX {
        let path = directory.join(format!("orchctl-edit-{}-{at}.{ending}", std::process::id()));
        match private_files::create_private(&path) {
            Ok(mut file) => {
                file.write_all(text.as_bytes())?;
                return Ok(path);
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(CommandError::with_text(format!("{} is full of files of edits", directory.display())))
}

async fn open_editor(session: &Session, path: &std::path::Path) -> Result<(), CommandError> {
    let set = |name: &str| session.variable(name).filter(|value| !value.is_empty());
    let editor = set("KUBE_EDITOR").or_else(|| set("EDITOR")).unwrap_or_else(|| "vi".to_owned());
    // The user's own words for a shell; the name of the file is no part of them.
    let status = tokio::process::Command::new("sh")
        .args(["-c", &format!("{editor} \"$1\""), "sh"])
        .arg(path)
        .status()
        .await
        .map_err(|error| {
            CommandError::with_text(format!("unable to launch the editor {editor:?}: {error}"))
        })?;
    if status.success() {
        return Ok(());
    }
    Err(CommandError::with_text(format!(
        "there was a problem with the editor {editor:?}: {status}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_says_why_and_is_no_part_of_the_text() {
        let text = "data:\n  k: |\n    # a comment of the user\n# no part of the block\n";
        for why in ["", "spec.replicas: Invalid value: -1\nsecond line"] {
            let shown = format!("{}{text}", head("yaml", why));
            assert!(why.lines().all(|line| shown.contains(&format!("# {line}\n"))), "{shown}");
            assert_eq!(without_head(&shown), text);
        }
        assert_eq!(head("json", "why"), "");
        assert_eq!(without_head("# only a head"), "");
    }
}
