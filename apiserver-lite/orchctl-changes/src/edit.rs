//! `edit`: objects in the user's editor.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use orchctl_client::manifests::FileFlags;
use orchctl_client::{CommandError, Output, Session};
use orchctl_plans::apply;
use orchctl_printers::terminal::visible;
use proto_api::yaml;
use proto_daemon::private_files;
use serde_json::Value;

use crate::record::RecordFlags;
use crate::requests::{self, Place};
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
    /// Record the edited object for later applies
    #[arg(long)]
    save_config: bool,
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
enum EditOutcome {
    /// The object was changed.
    Edited(Value),
    /// The text has no changes: what the user reads.
    Cancelled(&'static str),
    /// The user can mend it.
    Refused(Refusal),
}

/// Why an edited text was not taken.
struct Refusal {
    /// In a line.
    summary: String,
    /// Line by line, for the head of the text.
    lines: Vec<String>,
}

impl Refusal {
    fn of_text(summary: String) -> Self {
        Self { lines: vec![summary.clone()], summary }
    }

    /// That of a server, with the fields it names.
    fn of_object(place: &Place, error: &CommandError) -> Self {
        let title = format!("{} {:?}", place.resource.full_name(), place.name);
        let causes = requests::causes(error);
        if causes.is_empty() {
            return Self::of_text(requests::message(error));
        }
        let causes = causes.iter().map(|(field, message)| format!("* {field}: {message}"));
        let lines = std::iter::once(format!("{title} was not valid:")).chain(causes).collect();
        Self { summary: format!("{title} is invalid"), lines }
    }
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
    let mut head = head(&args.output, &[]);
    let mut path = in_editor(session, &format!("{head}{text}"), &args.output).await?;
    let mut is_first = true;
    loop {
        let keep = |why: &str| error_with_copy(why, &path);
        let edited = std::fs::read_to_string(&path).map_err(|error| keep(&error.to_string()))?;
        let edited = without_head(&edited, &head);
        if !is_first && is_same(&edited, &text) {
            return Err(keep("Edit cancelled, no valid changes were saved."));
        }
        let refusal = match submit(session, args, (target, &shown), &edited, output).await {
            Ok(EditOutcome::Edited(object)) => {
                discard(&path);
                return ResultFlags::default().print_result(output, place, &object, "edited");
            }
            Ok(EditOutcome::Cancelled(why)) => {
                discard(&path);
                writeln!(output.err, "{why}")?;
                return Ok(());
            }
            Ok(EditOutcome::Refused(refusal)) => refusal,
            Err(error) => return Err(keep(&requests::message(&error))),
        };
        let noted = writeln!(output.err, "error: {}", refusal.summary);
        head = self::head(&args.output, &refusal.lines);
        (text, is_first) = (edited, false);
        // The last text stays until the next one is written.
        let next = match noted {
            Ok(()) => write_file(&format!("{head}{text}"), &args.output),
            Err(error) => Err(error.into()),
        };
        let next = next.map_err(|error| keep(&requests::message(&error)))?;
        discard(&path);
        path = next;
        let opened = open_editor(session, &path).await;
        opened.map_err(|error| error_with_copy(&requests::message(&error), &path))?;
    }
}

/// Sends what was edited.
async fn submit(
    session: &Session,
    args: &Args,
    (target, shown): (&TargetObject, &Value),
    edited: &str,
    output: &mut Output,
) -> Result<EditOutcome, CommandError> {
    let refused = |why: String| Ok(EditOutcome::Refused(Refusal::of_text(why)));
    let mut after: Value = match yaml::parse(edited) {
        Ok(after) => after,
        Err(error) => return refused(format!("the edited text cannot be read: {error}")),
    };
    if after.is_null() {
        return Ok(EditOutcome::Cancelled("Edit cancelled, saved file was empty."));
    }
    if after == *shown {
        return Ok(EditOutcome::Cancelled("Edit cancelled, no changes made."));
    }
    if !after.is_object() {
        return refused("the edited text is not an object".to_owned());
    }
    let place = &target.place;
    for pointer in ["/apiVersion", "/kind", "/metadata/name", "/metadata/namespace"] {
        if after.pointer(pointer) != shown.pointer(pointer) {
            let field = pointer.trim_start_matches('/').replace('/', ".");
            let title = place.title();
            return Err(CommandError::with_text(format!("{field} of {title} cannot be changed")));
        }
    }
    if args.save_config {
        after = apply::recorded(session.names().await?, &after);
    }
    args.record.annotate(session, &mut after, output).await?;
    let change = requests::changed(session, shown, &after).await?;
    let write = ResultFlags::default().write(&args.field_manager)?;
    let path = place.path(args.subresource.as_deref());
    match requests::patch(session, path, &requests::as_patch(change), &write).await {
        Ok(object) => Ok(EditOutcome::Edited(object)),
        Err(error) if requests::code(&error) == Some(422) => {
            Ok(EditOutcome::Refused(Refusal::of_object(place, &error)))
        }
        Err(error) => Err(error),
    }
}

/// What stands above a text in YAML; JSON has no comments.
fn head(format: &str, reasons: &[String]) -> String {
    if format == "json" {
        return String::new();
    }
    let mut head = "# Lines that begin with '#' do not count. A file without changes, or without anything else, changes nothing.\n#\n".to_owned();
    // No text of the server ends the comment.
    let breaks = |c: char| matches!(c, '\u{2028}' | '\u{2029}');
    for line in reasons.iter().flat_map(|reason| reason.lines()) {
        head.push_str(&format!("# {}\n", visible(&line.replace(breaks, " "))));
    }
    if !reasons.is_empty() {
        head.push_str("#\n");
    }
    head
}

/// The text below `head`, or below the comments that begin a file whose head was edited, too.
fn without_head(text: &str, head: &str) -> String {
    match text.strip_prefix(head) {
        Some(text) => text.to_owned(),
        None => text.split_inclusive('\n').skip_while(|line| line.starts_with('#')).collect(),
    }
}

/// Whether two texts say the same, whatever their form and comments are.
fn is_same(one: &str, other: &str) -> bool {
    match (yaml::parse(one), yaml::parse(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => one == other,
    }
}

/// Removes the file of an edit, which some editors and cleaners of the directory have done before.
pub fn discard(path: &Path) {
    let _ = std::fs::remove_file(path);
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
        discard(&path);
        return Err(error);
    }
    Ok(path)
}

/// Why an edit was not taken, and where it is.
pub fn error_with_copy(why: &str, path: &Path) -> CommandError {
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
                return match file.write_all(text.as_bytes()) {
                    Ok(()) => Ok(path),
                    Err(error) => {
                        discard(&path);
                        Err(error.into())
                    }
                };
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(CommandError::with_text(format!("{} is full of files of edits", directory.display())))
}

async fn open_editor(session: &Session, path: &Path) -> Result<(), CommandError> {
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
        let text = "data:\n  k: |\n    # a comment of the user\n# not of the block\n";
        for why in
            [&[][..], &["d \"x\" was not valid:".to_owned(), "* a: b\r\u{2028}c: d".to_owned()]]
        {
            let head = head("yaml", why);
            assert!(
                head.lines().all(|line| line.starts_with('#'))
                    && !head.contains(['\r', '\u{2028}'])
            );
            assert_eq!(head.lines().count(), if why.is_empty() { 2 } else { 5 });
            assert_eq!(without_head(&format!("{head}{text}"), &head), text);
            assert_eq!(without_head(&format!("# mine\n{head}{text}"), &head), text);
        }
        assert_eq!(head("json", &["why".to_owned()]), "");
    }

    #[test]
    fn an_edit_of_form_and_comments_only_is_none() {
        assert!(is_same("a: 1\nb: 2\n", "# tried\nb: 2\na:  1\n"));
        assert!(!is_same("a: 1", "a: 2"));
        assert!(is_same("a: [", "a: [") && !is_same("a: [", "a: [["));
    }
}
