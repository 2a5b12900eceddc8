//! `set subject`: who has the role of a binding.

use std::process::ExitCode;

use orchctl_client::{CommandError, Output, Session};
use orchctl_plans::ArgumentError;
use orchctl_plans::generate::access;
use proto_api::names::{Names, Profile};
use serde_json::{Value, json};

use super::CommonFlags;
use crate::create::access::SubjectArgs;
use crate::requests;

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// rolebinding NAME or clusterrolebinding NAME
    #[arg(value_name = "OBJECT")]
    objects: Vec<String>,
    #[command(flatten)]
    pub(super) subjects: SubjectArgs,
    #[command(flatten)]
    common: CommonFlags,
}

pub(super) async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    if args.subjects.is_empty() {
        return Err(CommandError::with_text(
            "you must specify at least one value of user, group or serviceaccount",
        ));
    }
    // Only their group differs by the server's names: it is that of the binding.
    let names = Names::new(Profile::Kubernetes);
    let made = access::binding(names, ("RoleBinding", ""), ("Role", ""), args.subjects.flags());
    let mut made = made.map_err(requests::argument)?;
    let added = made.get_mut("subjects").map(Value::take);
    let added = added.as_ref().and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let what = (args.objects.as_slice(), "subjects updated");
    super::change(session, &args.common, what, output, |object| add(object, added)).await
}

/// Adds subjects that a binding does not have.
fn add(object: &mut Value, added: &[Value]) -> Result<(), ArgumentError> {
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
    if !matches!(kind, "RoleBinding" | "ClusterRoleBinding") {
        return Err(ArgumentError::new(
            "setting subjects is only supported for RoleBinding/ClusterRoleBinding",
        ));
    }
    let mut subjects = match object.get("subjects") {
        Some(Value::Array(subjects)) => subjects.clone(),
        _ => Vec::new(),
    };
    let api_version = object.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
    let group = api_version.split('/').next().unwrap_or_default();
    for one in added {
        let is_same = |have: &Value| {
            ["kind", "name", "namespace"].iter().all(|field| have.get(field) == one.get(field))
        };
        if subjects.iter().any(is_same) {
            continue;
        }
        let mut one = one.clone();
        if let Some(own) = one.get_mut("apiGroup") {
            *own = json!(group);
        }
        subjects.push(one);
    }
    object["subjects"] = json!(subjects);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_added_once() {
        let user = |name: &str| json!({"kind": "User", "apiGroup": "rbac.authorization.example.com", "name": name});
        let account = |namespace: &str| json!({"kind": "ServiceAccount", "name": "a", "namespace": namespace});
        for (have, added, wanted) in [
            (json!([user("a")]), vec![user("a"), user("b")], json!([user("a"), user("b")])),
            (json!(null), vec![account("n")], json!([account("n")])),
            (
                json!([]),
                vec![json!({"kind": "User", "apiGroup": "other", "name": "a"})],
                json!([user("a")]),
            ),
            (json!([account("n")]), vec![account("m")], json!([account("n"), account("m")])),
        ] {
            let api_version = "rbac.authorization.example.com/v1";
            let mut object =
                json!({"apiVersion": api_version, "kind": "RoleBinding", "subjects": have});
            add(&mut object, &added).expect("a binding");
            assert_eq!(object["subjects"], wanted);
        }
        assert!(add(&mut json!({"kind": "Role"}), &[user("a")]).is_err());
    }
}
