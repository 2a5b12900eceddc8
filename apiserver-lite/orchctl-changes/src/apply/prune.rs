//! `apply --prune`: deletes objects that were applied before and are no longer described.

use orchctl_client::{CommandError, Output, Session};
use orchctl_plans::apply;
use serde_json::Value;

use super::Applied;
use crate::requests::{self, Deletion, Place};
use crate::results::{DryRun, ResultFlags};

/// Group (short), version and kind of what is looked at unless the command line names others.
const KINDS: [(&str, &str, &str); 15] = [
    ("", "v1", "ConfigMap"),
    ("", "v1", "Endpoints"),
    ("", "v1", "Namespace"),
    ("", "v1", "PersistentVolumeClaim"),
    ("", "v1", "PersistentVolume"),
    ("", "v1", "Pod"),
    ("", "v1", "ReplicationController"),
    ("", "v1", "Secret"),
    ("", "v1", "Service"),
    ("batch", "v1", "Job"),
    ("batch", "v1", "CronJob"),
    ("networking", "v1", "Ingress"),
    ("apps", "v1", "DaemonSet"),
    ("apps", "v1", "Deployment"),
    ("apps", "v1", "StatefulSet"),
];

/// What is looked at.
pub(super) struct Scope<'a> {
    pub(super) selector: &'a str,
    /// As `group/version/kind`; the usual kinds if empty.
    pub(super) kinds: &'a [String],
}

/// Deletes what was applied once, is selected and was not applied now: in the namespaces of the applied objects, and outside of namespaces.
pub(super) async fn run(
    session: &Session,
    scope: &Scope<'_>,
    deletion: &Deletion,
    applied: &[Applied],
    results: &ResultFlags,
    output: &mut Output,
) -> Result<(), CommandError> {
    let names = session.names().await?;
    let discovery = session.discovery().await?;
    let kinds: Vec<(String, String)> = if scope.kinds.is_empty() {
        let full = |(group, version, kind): &(&str, &str, &str)| {
            (names.api_version(group, version), (*kind).to_owned())
        };
        KINDS.iter().map(full).collect()
    } else {
        scope.kinds.iter().map(|text| parse_kind(text)).collect::<Result<_, _>>()?
    };
    let mut namespaces: Vec<&str> =
        applied.iter().filter_map(|(place, _)| place.namespace.as_deref()).collect();
    namespaces.sort_unstable();
    namespaces.dedup();
    for (api_version, kind) in kinds {
        let resource = match discovery.of_kind(&api_version, &kind) {
            Some(resource) => resource,
            None if scope.kinds.is_empty() => continue,
            None => discovery.served_kind(&api_version, &kind)?,
        };
        let places: Vec<Option<&str>> = match resource.namespaced {
            true => namespaces.iter().copied().map(Some).collect(),
            false => vec![None],
        };
        for namespace in places {
            for object in requests::list(session, resource, namespace, (scope.selector, "")).await?
            {
                let uid =
                    object.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
                let is_applied = applied.iter().any(|(_, known)| known == uid);
                if is_applied || apply::last_applied(names, &object).is_none() {
                    continue;
                }
                let place = Place::listed(resource, &object);
                if results.dry_run != DryRun::Client {
                    let one = Deletion { uid: Some(uid.to_owned()), ..deletion.clone() };
                    requests::delete(session, &place, &one).await?;
                }
                results.print_result(output, &place, &object, "pruned")?;
            }
        }
    }
    Ok(())
}

/// Reads `group/version/kind`.
fn parse_kind(text: &str) -> Result<(String, String), CommandError> {
    let parts: Vec<&str> = text.split('/').collect();
    match parts.as_slice() {
        ["core" | "", version, kind] => Ok(((*version).to_owned(), (*kind).to_owned())),
        [group, version, kind] => Ok((format!("{group}/{version}"), (*kind).to_owned())),
        _ => Err(CommandError::with_text(format!(
            "invalid GroupVersionKind format: {text}, please follow <group/version/kind>"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_three_parts() {
        let read = |text: &str| parse_kind(text).map(|(version, kind)| format!("{version} {kind}"));
        assert_eq!(read("core/v1/Pod").expect("valid"), "v1 Pod");
        assert_eq!(read("apps/v1/Deployment").expect("valid"), "apps/v1 Deployment");
        assert!(read("v1/Pod").is_err());
    }
}
