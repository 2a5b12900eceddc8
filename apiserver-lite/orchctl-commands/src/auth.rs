//! `auth`: who the user is and what the user may do.

mod rules;

use std::process::ExitCode;

use bytes::Bytes;
use clap::Subcommand;
use orchctl_client::{ApiResource, CommandError, Output, Session};
use orchctl_printers::columns::ColumnWidths;
use orchctl_printers::{objects, rules as rows};
use proto_api::Collection;
use proto_client::WriteParams;
use proto_client::request::{self, JSON};
use serde_json::{Value, json};

use crate::print_flags::PrintFlags;

/// Commands that ask.
#[derive(Debug, Subcommand)]
pub enum AuthCommand {
    /// Ask whether an action is allowed
    CanI(CanIArgs),
    /// Show the name and groups of the user
    Whoami(PrintFlags),
}

/// Flags of `auth can-i`.
#[derive(clap::Args, Debug)]
pub struct CanIArgs {
    /// VERB TYPE, VERB TYPE/NAME or VERB /PATH
    #[arg(value_name = "VERB TYPE")]
    args: Vec<String>,
    /// List what is allowed in the namespace
    #[arg(long)]
    list: bool,
    /// In all namespaces
    #[arg(long, short = 'A')]
    all_namespaces: bool,
    /// Subresource of the objects
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    subresource: String,
    /// Answer by the exit code alone
    #[arg(long, short)]
    quiet: bool,
    /// Leave out the names of columns
    #[arg(long)]
    no_headers: bool,
}

impl CanIArgs {
    /// Why the flags and arguments do not go together; the words are kubectl's.
    fn contradiction(&self) -> Option<&'static str> {
        let is_path = self.args.get(1).is_some_and(|what| what.starts_with('/'));
        let narrowed = self.quiet || self.all_namespaces || !self.subresource.is_empty();
        match (self.list, self.args.len()) {
            (true, 1..) => Some("list option must be specified with no arguments"),
            (true, 0) if narrowed => Some(
                "list option can't be specified with neither quiet, all-namespaces nor subresource options",
            ),
            (true, 0) => None,
            (false, 2) if is_path && !self.subresource.is_empty() => {
                Some("--subresource can not be used with NonResourceURL")
            }
            (false, 2) if self.no_headers => {
                Some("--no-headers cannot be set without --list specified")
            }
            (false, 2) => None,
            (false, _) => Some(
                "you must specify two arguments: verb resource or verb resource/resourceName.\nSee 'orchctl auth can-i -h' for help and examples.",
            ),
        }
    }
}

/// Runs the command.
///
/// # Errors
/// The server cannot be reached.
pub async fn run(
    session: &Session,
    question: AuthCommand,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    match question {
        AuthCommand::CanI(args) => {
            if let Some(why) = args.contradiction() {
                return Err(CommandError::with_text(why));
            }
            match args.list {
                true => rules::list(session, args.no_headers, output).await,
                false => can_i(session, args, output).await,
            }
        }
        AuthCommand::Whoami(print) => whoami(session, &print, output).await,
    }
}

/// Sends a review: an object that the server answers at once and does not keep.
async fn review(
    session: &Session,
    group: &str,
    plural: &str,
    kind: &str,
    spec: Value,
) -> Result<Value, CommandError> {
    let version = "v1";
    let group = session.names().await?.group(group);
    let body = json!({"apiVersion": format!("{group}/{version}"), "kind": kind, "spec": spec});
    let collection = Collection {
        group,
        version: version.to_owned(),
        plural: plural.to_owned(),
        namespace: None,
    };
    let body = Bytes::from(body.to_string());
    let request = request::create(collection.path(), &WriteParams::default(), JSON, body);
    session.call_json(request).await
}

async fn can_i(
    session: &Session,
    args: CanIArgs,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let [verb, what] = args.args.as_slice() else { return Ok(ExitCode::FAILURE) };
    let (what, name) = match what.split_once('/').filter(|_| !what.starts_with('/')) {
        Some((what, name)) => (what, name),
        None => (what.as_str(), ""),
    };
    let spec = if what.starts_with('/') {
        json!({"nonResourceAttributes": {"verb": verb, "path": what}})
    } else {
        let resource = resource(session, what, args.all_namespaces).await?;
        let namespace = if args.all_namespaces { "" } else { session.namespace()? };
        json!({"resourceAttributes": {
            "verb": verb,
            "group": resource.group,
            "resource": resource.plural,
            "subresource": args.subresource,
            "name": name,
            "namespace": namespace,
        }})
    };
    let answer = review(
        session,
        "authorization",
        "selfsubjectaccessreviews",
        "SelfSubjectAccessReview",
        spec,
    );
    let answer = answer.await?;
    let allowed = answer.pointer("/status/allowed") == Some(&Value::Bool(true));
    if !args.quiet {
        let mut text = if allowed { "yes" } else { "no" }.to_owned();
        for pointer in ["/status/reason", "/status/evaluationError"] {
            let more = objects::text_at(&answer, pointer);
            if !allowed && !more.is_empty() {
                text = format!("{text} - {more}");
            }
        }
        writeln!(output.out, "{text}")?;
    }
    Ok(if allowed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The resource that a word means; one that the server does not serve can be asked about, too.
async fn resource(
    session: &Session,
    word: &str,
    everywhere: bool,
) -> Result<ApiResource, CommandError> {
    if word == "*" {
        return Ok(ApiResource { plural: word.to_owned(), ..ApiResource::default() });
    }
    let Ok(found) = session.discovery().await?.resource(word) else {
        let (plural, group) = word.split_once('.').unwrap_or((word, ""));
        let inside = if group.is_empty() { String::new() } else { format!(" in group '{group}'") };
        session.warn(&format!("the server doesn't have a resource type '{plural}'{inside}\n"));
        return Ok(ApiResource {
            plural: plural.to_owned(),
            group: group.to_owned(),
            ..ApiResource::default()
        });
    };
    if !found.namespaced && !everywhere {
        let group = &found.group;
        let inside = if group.is_empty() { String::new() } else { format!(" in group '{group}'") };
        session.warn(&format!("resource '{}' is not namespace scoped{inside}\n", found.plural));
    }
    Ok(found.clone())
}

async fn whoami(
    session: &Session,
    print: &PrintFlags,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let group = session.names().await?.group("authentication");
    let resources = &session.discovery().await?.resources;
    let served = resources
        .iter()
        .find(|resource| resource.group == group && resource.plural == "selfsubjectreviews");
    let Some(served) = served else {
        return Err(CommandError::with_text(
            "the selfsubjectreviews API is not enabled in the cluster",
        ));
    };
    let body = json!({"apiVersion": served.api_version(), "kind": served.kind});
    let path = served.collection(None).path();
    let body = Bytes::from(body.to_string());
    let request = request::create(path, &WriteParams::default(), JSON, body);
    let answer = session.call_json(request).await?;
    let form = print.form()?;
    if !form.is_table() {
        print.print(&form, answer, true, output)?;
        return Ok(ExitCode::SUCCESS);
    }
    let user = answer.pointer("/status/userInfo").unwrap_or(&Value::Null);
    let mut rows = vec![vec!["ATTRIBUTE".to_owned(), "VALUE".to_owned()]];
    let name = objects::text_at(user, "/username");
    rows.push(vec!["Username".to_owned(), name.to_owned()]);
    if let Some(uid) = Some(objects::text_at(user, "/uid")).filter(|uid| !uid.is_empty()) {
        rows.push(vec!["UID".to_owned(), uid.to_owned()]);
    }
    let groups = rows::words(objects::list_at(user, "/groups"));
    if groups != "[]" {
        rows.push(vec!["Groups".to_owned(), groups]);
    }
    for (key, values) in objects::map_at(user, "/extra").into_iter().flatten() {
        let values = rows::words(values.as_array().map_or(&[], Vec::as_slice));
        rows.push(vec![format!("Extra: {key}"), values]);
    }
    output.out.write_all(ColumnWidths::default().render(&rows).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
