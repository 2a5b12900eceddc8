//! Images, environment, resources and accounts of the pods of a workload.

use proto_api::quantity::Quantity;
use serde_json::{Map, Value, json};

use crate::ArgumentError;
use crate::keep::text_at;

/// The specification of pods in an object of this kind.
///
/// # Errors
/// When the kind has no pods.
pub fn pod_spec_of(object: &mut Value) -> Result<&mut Value, ArgumentError> {
    let kind = text_at(object, "/kind").to_owned();
    let pointer = match kind.as_str() {
        "Pod" => "/spec",
        "CronJob" => "/spec/jobTemplate/spec/template/spec",
        _ => "/spec/template/spec",
    };
    let missing = || ArgumentError::new(format!("{kind} has no pod template"));
    object.pointer_mut(pointer).filter(|spec| spec.is_object()).ok_or_else(missing)
}

/// The containers that run, those that run before them, and debugging ones.
const LISTS: [&str; 2] = ["containers", "initContainers"];

fn containers<'a>(
    spec: &'a mut Value,
    lists: &'a [&str],
) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    let fields = spec.as_object_mut().into_iter().flat_map(Map::iter_mut);
    let fields = fields.filter(move |(name, _)| lists.contains(&name.as_str()));
    fields.filter_map(|(_, list)| list.as_array_mut()).flatten().filter_map(Value::as_object_mut)
}

/// Sets images: pairs of a container's name, or `*` for all, and an image.
///
/// # Errors
/// When there is no such container.
pub fn set_images(object: &mut Value, images: &[(String, String)]) -> Result<(), ArgumentError> {
    let spec = pod_spec_of(object)?;
    for (wanted, image) in images {
        let mut found = false;
        let lists: &[&str] = if wanted == "*" { &LISTS[..1] } else { &LISTS };
        for container in containers(spec, lists) {
            let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
            if wanted == "*" || name == wanted {
                container.insert("image".into(), json!(image));
                found = true;
            }
        }
        if !found {
            return Err(ArgumentError::new(format!("unable to find container named {wanted:?}")));
        }
    }
    Ok(())
}

/// One variable of the environment.
#[derive(Clone, Debug, PartialEq)]
pub enum Variable {
    /// With its value, or with where the value is: an entry of the list `env`.
    Set(Value),
    Remove(String),
}

/// Reads `NAME=value` and `NAME-`.
///
/// # Errors
/// When a text has another form.
pub fn parse_variable(text: &str) -> Result<Variable, ArgumentError> {
    match (text.split_once('='), text.strip_suffix('-')) {
        (Some((name, value)), _) if !name.is_empty() => {
            Ok(Variable::Set(json!({"name": name, "value": value})))
        }
        (None, Some(name)) if !name.is_empty() => Ok(Variable::Remove(name.to_owned())),
        _ => Err(ArgumentError::new(format!(
            "environment variables must be of the form key=value: {text:?}"
        ))),
    }
}

/// Variables from all keys of a ConfigMap or Secret, or from `keys`, with names in capitals after `prefix`.
pub fn variables_from(source: &Value, keys: &[String], prefix: &str) -> Vec<Variable> {
    let field = match text_at(source, "/kind") {
        "Secret" => "secretKeyRef",
        _ => "configMapKeyRef",
    };
    let object = text_at(source, "/metadata/name");
    let mut all: Vec<&String> = source
        .pointer("/data")
        .and_then(Value::as_object)
        .into_iter()
        .flat_map(Map::keys)
        .collect();
    all.sort();
    all.into_iter()
        .filter(|key| keys.is_empty() || keys.contains(key))
        .map(|key| {
            let name = key.to_uppercase().replace(['-', '.'], "_");
            Variable::Set(json!({"name": format!("{prefix}{name}"),
                "valueFrom": {field: {"name": object, "key": key}}}))
        })
        .collect()
}

/// Changes the environment of the containers whose names match `pattern` (`*` stands for any text).
///
/// # Errors
/// When no container matches, or a variable has another value already and `overwrite` is not set.
pub fn set_environment(
    object: &mut Value,
    pattern: &str,
    variables: &[Variable],
    overwrite: bool,
) -> Result<(), ArgumentError> {
    let spec = pod_spec_of(object)?;
    let mut found = false;
    for container in containers(spec, &LISTS) {
        let name = container.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        if !matches(pattern, &name) {
            continue;
        }
        found = true;
        let mut env = match container.remove("env") {
            Some(Value::Array(env)) => env,
            _ => Vec::new(),
        };
        for variable in variables {
            match variable {
                Variable::Remove(name) => env.retain(|have| text_at(have, "/name") != name),
                Variable::Set(wanted) => {
                    let key = text_at(wanted, "/name");
                    match env.iter_mut().find(|have| text_at(have, "/name") == key) {
                        Some(have) if have != wanted && !overwrite => {
                            return Err(ArgumentError::new(format!(
                                "environment variable {key:?} of container {name:?} already has a value, and --overwrite is false"
                            )));
                        }
                        Some(have) => *have = wanted.clone(),
                        None => env.push(wanted.clone()),
                    }
                }
            }
        }
        if !env.is_empty() {
            container.insert("env".into(), Value::Array(env));
        }
    }
    if found { Ok(()) } else { Err(no_container(object, pattern)) }
}

/// Reads amounts of resources: `cpu=100m,memory=1Gi`.
///
/// # Errors
/// When a part is not a name with a quantity.
pub fn parse_resources(text: &str) -> Result<Map<String, Value>, ArgumentError> {
    let mut amounts = Map::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let pair = part.split_once('=').filter(|(name, _)| !name.is_empty());
        let Some((name, amount)) = pair else {
            return Err(ArgumentError::new(format!(
                "invalid argument syntax {part:?}, expected <resource>=<value>"
            )));
        };
        if amount.parse::<Quantity>().is_err() {
            return Err(ArgumentError::new(format!(
                "{name}: {amount:?} is not a quantity, such as 100m or 1Gi"
            )));
        }
        amounts.insert(name.to_owned(), json!(amount));
    }
    Ok(amounts)
}

/// Sets limits and requests of the containers whose names match `pattern`; an amount of 0 removes one.
///
/// # Errors
/// When no container matches.
pub fn set_resources(
    object: &mut Value,
    pattern: &str,
    limits: &Map<String, Value>,
    requests: &Map<String, Value>,
) -> Result<(), ArgumentError> {
    let spec = pod_spec_of(object)?;
    let mut found = false;
    for container in containers(spec, &LISTS[..1]) {
        let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
        if !matches(pattern, name) {
            continue;
        }
        found = true;
        for (field, amounts) in [("limits", limits), ("requests", requests)] {
            for (resource, amount) in amounts {
                let resources = container.entry("resources").or_insert_with(|| json!({}));
                let map = crate::keep::map_at(resources, &[field]);
                if amount.as_str() == Some("0") {
                    map.remove(resource);
                } else {
                    map.insert(resource.clone(), amount.clone());
                }
            }
        }
    }
    if found { Ok(()) } else { Err(no_container(object, pattern)) }
}

/// Has the pods run as another service account.
///
/// # Errors
/// When the kind has no pods.
pub fn set_service_account(object: &mut Value, account: &str) -> Result<(), ArgumentError> {
    let spec = pod_spec_of(object)?;
    if let Some(spec) = spec.as_object_mut() {
        spec.insert("serviceAccountName".into(), json!(account));
        spec.insert("serviceAccount".into(), json!(account)); // the deprecated name of the same field
    }
    Ok(())
}

fn no_container(object: &Value, pattern: &str) -> ArgumentError {
    let (kind, name) = (text_at(object, "/kind"), text_at(object, "/metadata/name"));
    ArgumentError::new(format!("{kind}/{name} does not have any containers matching {pattern:?}"))
}

/// Whether `name` matches `pattern`, in which `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        match rest.split_once(*part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment() -> Value {
        json!({"kind": "Deployment", "metadata": {"name": "web"}, "spec": {"template": {"spec": {
            "initContainers": [{"name": "init", "image": "a"}],
            "containers": [{"name": "web", "image": "a", "env": [{"name": "X", "value": "1"}]}, {"name": "side", "image": "a"}]}}}})
    }

    fn at<'a>(object: &'a Value, rest: &str) -> Option<&'a Value> {
        object.pointer(&format!("/spec/template/spec/{rest}"))
    }

    #[test]
    fn images_are_set_by_container() {
        let pair = |name: &str| vec![(name.to_owned(), "b".to_owned())];
        let mut object = deployment();
        set_images(&mut object, &pair("*")).expect("all");
        assert_eq!(at(&object, "containers/1/image"), Some(&json!("b")));
        assert_eq!(at(&object, "initContainers/0/image"), Some(&json!("a")));
        set_images(&mut object, &pair("init")).expect("one");
        assert_eq!(at(&object, "initContainers/0/image"), Some(&json!("b")));
        let error = set_images(&mut object, &pair("nobody")).expect_err("none");
        assert_eq!(error.to_string(), "unable to find container named \"nobody\"");
        assert!(set_images(&mut json!({"kind": "ConfigMap"}), &pair("*")).is_err());
        let mut cron = json!({"kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": {"spec": {"containers": [{"name": "c"}]}}}}}});
        set_images(&mut cron, &pair("c")).expect("a cron job has pods");
    }

    #[test]
    fn environments_are_sets() {
        let mut object = deployment();
        let variables: Vec<Variable> =
            ["Y=2=3", "X-"].iter().map(|text| parse_variable(text).expect("valid")).collect();
        set_environment(&mut object, "w*", &variables, true).expect("web");
        assert_eq!(at(&object, "containers/0/env"), Some(&json!([{"name": "Y", "value": "2=3"}])));
        assert_eq!(at(&object, "containers/1/env"), None);
        let again = [parse_variable("Y=9").expect("valid")];
        assert!(set_environment(&mut object, "*", &again, false).is_err());
        assert!(set_environment(&mut object, "none", &again, true).is_err());
        for wrong in ["X", "=1", "-"] {
            assert!(parse_variable(wrong).is_err(), "{wrong}");
        }
        let secret =
            json!({"kind": "Secret", "metadata": {"name": "s"}, "data": {"a-b": "", "c": ""}});
        assert_eq!(
            variables_from(&secret, &["a-b".to_owned()], "P_"),
            [Variable::Set(
                json!({"name": "P_A_B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "a-b"}}})
            )]
        );
    }

    #[test]
    fn resources_are_set_and_removed() {
        let mut object = deployment();
        let limits = parse_resources("cpu=100m,memory=1Gi").expect("valid");
        set_resources(&mut object, "*", &limits, &Map::new()).expect("set");
        let none = parse_resources("cpu=0").expect("valid");
        set_resources(&mut object, "web", &none, &none).expect("set");
        assert_eq!(
            at(&object, "containers/0/resources"),
            Some(&json!({"limits": {"memory": "1Gi"}, "requests": {}}))
        );
        assert_eq!(at(&object, "containers/1/resources/limits/cpu"), Some(&json!("100m")));
        for wrong in ["cpu", "cpu=x", "=1"] {
            assert!(parse_resources(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("a", "ab", false),
            ("a*", "ab", true),
            ("*b", "ab", true),
            ("a*c*e", "abcde", true),
            ("a*c*e", "abde", false),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
