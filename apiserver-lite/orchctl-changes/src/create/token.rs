//! `create token`: a token of a service account.

use std::process::ExitCode;

use orchctl_client::{CommandError, Output, Session};
use orchctl_printers::json;
use proto_api::yaml;
use serde_json::{Value, json};

use crate::poll;
use crate::requests::{self, Place, WriteOptions};

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The service account
    name: String,
    /// For whom the token is valid; the API server's own if not set; repeatable
    #[arg(long, value_name = "AUDIENCE", value_delimiter = ',')]
    audience: Vec<String>,
    /// How long it is valid; the server's own if not set
    #[arg(long, value_name = "TIME")]
    duration: Option<String>,
    /// Kind of an object with which the token ends
    #[arg(long, value_name = "KIND", value_parser = ["Pod", "Secret"], requires = "bound_object_name")]
    bound_object_kind: Option<String>,
    /// Name of that object
    #[arg(long, value_name = "NAME", requires = "bound_object_kind")]
    bound_object_name: Option<String>,
    /// UID of that object
    #[arg(long, value_name = "UID", requires = "bound_object_kind")]
    bound_object_uid: Option<String>,
    /// Print the object instead of the token
    #[arg(long, short, value_name = "FORM", value_parser = ["json", "yaml"])]
    output: Option<String>,
}

pub(super) async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let mut spec = json!({"audiences": args.audience});
    if let Some(text) = &args.duration {
        spec["expirationSeconds"] = json!(poll::limit("--duration", text)?.as_secs());
    }
    if let (Some(kind), Some(name)) = (&args.bound_object_kind, &args.bound_object_name) {
        spec["boundObjectRef"] = json!({"kind": kind, "apiVersion": "v1", "name": name,
            "uid": args.bound_object_uid.as_deref().unwrap_or_default()});
    }
    let names = session.names().await?;
    let request = json!({"kind": "TokenRequest",
        "apiVersion": names.api_version("authentication", "v1"), "spec": spec});
    let resource = session.discovery().await?.served_kind("v1", "ServiceAccount")?.clone();
    let namespace = Some(session.namespace()?.to_owned());
    let place = Place { resource, namespace, name: args.name };
    let path = place.path(Some("token"));
    let answer = requests::create(session, path, &request, &WriteOptions::default()).await;
    let answer = answer.map_err(|error| match requests::code(&error) {
        Some(_) => CommandError::with_text(format!(
            "failed to create token: {}",
            requests::message(&error)
        )),
        None => error,
    })?;
    match args.output.as_deref() {
        Some("json") => write!(output.out, "{}", json::pretty(&answer))?,
        Some(_) => write!(output.out, "{}", yaml::to_string(&answer))?,
        None => {
            let token = answer.pointer("/status/token").and_then(Value::as_str);
            let token = token.filter(|token| !token.is_empty());
            let token = token.ok_or_else(|| {
                CommandError::with_text("failed to create token: the server returned no token")
            })?;
            writeln!(output.out, "{token}")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
