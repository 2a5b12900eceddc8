//! `explain`: the fields of a kind, from the server's OpenAPI document.

use std::process::ExitCode;

use orchctl_client::{ApiResource, CommandError, Output, Session};
use orchctl_printers::schema::{Explanation, Schemas};
use serde_json::Value;

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// TYPE, or a field of one: TYPE.FIELD.FIELD
    #[arg(value_name = "TYPE")]
    path: String,
    /// The names of all fields below it, without their descriptions
    #[arg(long)]
    recursive: bool,
    /// Group and version, as apps/v1, instead of those that the server prefers
    #[arg(long, value_name = "GROUP/VERSION")]
    api_version: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// When the server has no such type, or the type no such field.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let discovery = session.discovery().await?;
    let (word, fields) = split(&args.path, |word| discovery.resource(word).is_ok());
    let mut resource = discovery.resource(word)?;
    if let Some(version) = &args.api_version {
        resource = discovery.served_kind(version, &resource.kind)?;
    }
    let document = document(session, resource).await?;
    let schemas = Schemas::new(&document);
    let explanation = Explanation {
        group: &resource.group,
        version: &resource.version,
        kind: &resource.kind,
        fields: &fields,
        recursive: args.recursive,
    };
    let text = schemas
        .explain(&explanation)
        .map_err(|error| CommandError::with_text(error.to_string()))?;
    output.out.write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// The type, which may have dots (`deployments.apps`), and the fields after it.
fn split(path: &str, is_type: impl Fn(&str) -> bool) -> (&str, Vec<&str>) {
    let path = path.trim_matches('.');
    let first = path.split('.').next().unwrap_or_default();
    let mut ends: Vec<usize> = path.match_indices('.').map(|(at, _)| at).collect();
    ends.push(path.len());
    // The longest type that is one counts, as `ingresses.networking.k8s.io`.
    let longest = ends.iter().rev().filter_map(|end| path.get(..*end)).find(|word| is_type(word));
    let word = longest.unwrap_or(first);
    let rest = path.get(word.len()..).unwrap_or_default();
    (word, rest.split('.').filter(|field| !field.is_empty()).collect())
}

/// The document of one group and version.
async fn document(session: &Session, resource: &ApiResource) -> Result<Value, CommandError> {
    let index = session.get_json("/openapi/v3").await?;
    let key = match resource.group.as_str() {
        "" => format!("api/{}", resource.version),
        group => format!("apis/{group}/{}", resource.version),
    };
    let paths = index.get("paths").and_then(|paths| paths.get(&key));
    let url = paths.and_then(|path| path.get("serverRelativeURL")).and_then(Value::as_str);
    let missing = || {
        CommandError::with_text(format!(
            "the server describes no fields of {}",
            resource.api_version()
        ))
    };
    session.get_json(url.ok_or_else(missing)?).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_may_have_dots() {
        let is_type = |word: &str| ["pods", "deployments", "deployments.apps"].contains(&word);
        assert_eq!(split("pods", is_type), ("pods", vec![]));
        assert_eq!(split("pods.spec.nodeName", is_type), ("pods", vec!["spec", "nodeName"]));
        assert_eq!(split("deployments.apps.spec", is_type), ("deployments.apps", vec!["spec"]));
        assert_eq!(split("foo.bar", is_type), ("foo", vec!["bar"]));
    }
}
