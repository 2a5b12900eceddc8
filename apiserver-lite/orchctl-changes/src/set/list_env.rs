//! `set env --list`: the variables of containers, one a line.

use std::process::ExitCode;

use orchctl_client::{CommandError, Output, Session};
use orchctl_plans::pod_template::{self, Variable};
use serde_json::{Value, json};

use super::EnvArgs;
use crate::requests;
use crate::targets::TargetObject;

/// Prints the variables of the objects' containers, with those of the command line as if they were set.
pub(super) async fn run(
    session: &Session,
    args: &EnvArgs,
    objects: &[String],
    variables: &[Variable],
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let common = &args.common;
    let (targets, unread) =
        common.local.read_each(session, &common.targets, objects, output).await?;
    CommandError::collect(unread)?;
    let mut errors = Vec::new();
    for TargetObject { place, mut object } in targets {
        let word = if place.resource.plural.is_empty() {
            place.resource.kind.to_lowercase()
        } else {
            place.resource.plural.clone()
        };
        let set =
            pod_template::set_environment(&mut object, &args.containers, variables, args.overwrite);
        let listed = set.and_then(|()| pod_template::pod_spec_of(&mut object));
        match listed {
            Ok(spec) => {
                for container in containers(spec, &args.containers) {
                    write!(output.out, "{}", listing(&word, &place.name, container))?;
                }
            }
            Err(error) => errors.push(requests::argument(error)),
        }
    }
    CommandError::collect(errors).map(|()| ExitCode::SUCCESS)
}

/// The containers whose names match: those that run, then those that run before them.
fn containers<'a>(spec: &'a Value, pattern: &'a str) -> impl Iterator<Item = &'a Value> {
    let lists = ["containers", "initContainers"].into_iter();
    let all = lists.filter_map(|list| spec.get(list)?.as_array()).flatten();
    all.filter(move |container| {
        // As for variables that are set: a pod of this container alone has one that matches.
        let mut pod = json!({"kind": "Pod", "spec": {"containers": [container]}});
        pod_template::set_environment(&mut pod, pattern, &[], true).is_ok()
    })
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// A head, and a line for each variable: what has no value here is a comment, so that the lines can be given to `--env`.
fn listing(resource: &str, name: &str, container: &Value) -> String {
    let mut lines = format!("# {resource} {name}, container {}\n", text(container, "/name"));
    let variables = container.get("env").and_then(Value::as_array);
    for variable in variables.into_iter().flatten() {
        let name = text(variable, "/name");
        let line = match variable.get("valueFrom") {
            None => format!("{name}={}\n", text(variable, "/value")),
            Some(source) => format!("# {name} from {}\n", reference(source)),
        };
        lines.push_str(&line);
    }
    lines
}

/// Where the value of a variable is.
fn reference(source: &Value) -> String {
    let Some((kind, reference)) = source.as_object().and_then(|fields| fields.iter().next()) else {
        return "nowhere".to_owned();
    };
    let part = |pointer: &str| text(reference, pointer);
    match kind.as_str() {
        "configMapKeyRef" => format!("configmap {}, key {}", part("/name"), part("/key")),
        "secretKeyRef" => format!("secret {}, key {}", part("/name"), part("/key")),
        "fieldRef" => format!("field path {}", part("/fieldPath")),
        "resourceFieldRef" => match part("/containerName") {
            "" => format!("resource field {}", part("/resource")),
            container => format!("resource field {container}/{}", part("/resource")),
        },
        other => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_listed_by_container() {
        let spec = json!({
            "initContainers": [{"name": "init"}],
            "containers": [{"name": "web", "env": [
                {"name": "A", "value": "1=2"},
                {"name": "EMPTY"},
                {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
                {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                {"name": "F", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}}},
                {"name": "R", "valueFrom": {"resourceFieldRef": {"containerName": "x", "resource": "limits.cpu"}}},
                {"name": "T", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]}]});
        let list = |pattern: &str| {
            let listed = containers(&spec, pattern).map(|one| listing("deployments", "d", one));
            listed.collect::<String>()
        };
        let web = "# deployments d, container web\nA=1=2\nEMPTY=\n# C from configmap c, key k\n# S from secret s, key k\n\
                   # F from field path spec.nodeName\n# R from resource field x/limits.cpu\n# T from resource field limits.cpu\n";
        assert_eq!(list("web"), web);
        assert_eq!(list("*"), format!("{web}# deployments d, container init\n"));
        assert_eq!(list("none"), "");
    }
}
