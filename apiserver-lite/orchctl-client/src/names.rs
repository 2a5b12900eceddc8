//! Which objects a command line names: `TYPE`, `TYPE NAME...`, `TYPE,TYPE`, `TYPE/NAME...`, categories.

use crate::{ApiResource, CommandError, ServerResources};

/// What one command line names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceTuple {
    /// The kind.
    pub resource: ApiResource,
    /// One object, or the collection.
    pub name: Option<String>,
}

/// Most objects of a command line.
const SELECTIONS_MAX: usize = 100_000;

/// Reads the arguments of a command.
///
/// # Errors
/// When the server has no such type, or both forms are mixed.
pub fn parse(
    discovery: &ServerResources,
    args: &[String],
) -> Result<Vec<ResourceTuple>, CommandError> {
    let Some((first, rest)) = args.split_first() else {
        return Err(CommandError::with_text(
            "name an object: TYPE NAME or TYPE/NAME (`orchctl api-resources` lists the types)",
        ));
    };
    if args.iter().any(|arg| arg.contains('/')) {
        return args.iter().map(|arg| parse_pair(discovery, arg)).collect();
    }
    let mut resources = Vec::new();
    for word in first.split(',').filter(|word| !word.is_empty()) {
        let category = discovery.category(&word.to_lowercase());
        if category.is_empty() {
            resources.push(discovery.resource(word)?);
        } else {
            resources.extend(category);
        }
    }
    if resources.is_empty() {
        return Err(CommandError::with_text("you must specify the type of resource"));
    }
    if resources.len().saturating_mul(rest.len()) > SELECTIONS_MAX {
        return Err(CommandError::with_text(format!(
            "more than {SELECTIONS_MAX} objects are named"
        )));
    }
    let mut selections = Vec::new();
    for resource in resources {
        if rest.is_empty() {
            selections.push(ResourceTuple { resource: resource.clone(), name: None });
        }
        for name in rest {
            let (resource, name) = (resource.clone(), Some(checked(name)?));
            selections.push(ResourceTuple { resource, name });
        }
    }
    Ok(selections)
}

/// Reads `TYPE/NAME`.
///
/// # Errors
/// When it is none, or the server has no such type.
pub fn parse_pair(discovery: &ServerResources, arg: &str) -> Result<ResourceTuple, CommandError> {
    match arg.split_once('/') {
        Some((kind, name)) if !kind.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok(ResourceTuple {
                resource: discovery.resource(kind)?.clone(),
                name: Some(checked(name)?),
            })
        }
        Some(_) => Err(CommandError::with_text(format!(
            "arguments in resource/name form must have a single resource and name, not \"{arg}\""
        ))),
        None => Err(CommandError::with_text(format!(
            "there is no need to name a type apart when arguments have the form TYPE/NAME: \"{arg}\" is not of that form"
        ))),
    }
}

/// One object: `NAME` of the kind `default`, `TYPE/NAME` or `TYPE NAME`.
///
/// # Errors
/// When another number of objects is named.
pub fn parse_one(
    discovery: &ServerResources,
    args: &[String],
    default: &str,
) -> Result<ResourceTuple, CommandError> {
    let selections = match args {
        [one] if !one.contains('/') => {
            let resource = discovery.resource(default)?.clone();
            return Ok(ResourceTuple { resource, name: Some(checked(one)?) });
        }
        args => parse(discovery, args)?,
    };
    match <[ResourceTuple; 1]>::try_from(selections) {
        Ok([one]) if one.name.is_some() => Ok(one),
        _ => Err(CommandError::with_text("exactly one object has to be named")),
    }
}

/// Names become parts of paths: those that cannot be one are refused here.
fn checked(name: &str) -> Result<String, CommandError> {
    match name {
        "" => Err(CommandError::with_text("resource name may not be empty")),
        "." | ".." => Err(CommandError::with_text(format!("invalid resource name \"{name}\""))),
        _ if name.contains('%') => Err(CommandError::with_text(format!(
            "invalid resource name \"{name}\": may not contain '%'"
        ))),
        _ => Ok(name.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::tests::sample;

    fn read(args: &[&str]) -> Result<Vec<String>, String> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let show = |one: ResourceTuple| {
            format!("{}/{}", one.resource.plural, one.name.as_deref().unwrap_or("*"))
        };
        parse(&sample(), &args)
            .map(|all| all.into_iter().map(show).collect())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn arguments_name_objects() {
        for (args, wanted) in [
            (&["pods"][..], &["pods/*"][..]),
            (&["pods,deploy"], &["pods/*", "deployments/*"]),
            (&["pod", "a", "b"], &["pods/a", "pods/b"]),
            (&["pods,deploy", "a"], &["pods/a", "deployments/a"]),
            (&["pod/a", "deploy/b"], &["pods/a", "deployments/b"]),
            (&["all"], &["pods/*", "deployments/*", "po/*"]),
        ] {
            assert_eq!(read(args).expect("valid"), wanted, "{args:?}");
        }
        for args in
            [&[][..], &["pods", "deploy/x"], &["pod/"], &["pod/a/b"], &["foo"], &["pods", ".."]]
        {
            assert!(read(args).is_err(), "{args:?}");
        }
    }

    #[test]
    fn one_object_has_a_default_kind() {
        let one = |args: &[&str]| {
            let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
            parse_one(&sample(), &args, "pods").map(|one| (one.resource.plural, one.name)).ok()
        };
        assert_eq!(one(&["a"]), Some(("pods".into(), Some("a".into()))));
        assert_eq!(one(&["deploy/a"]), Some(("deployments".into(), Some("a".into()))));
        assert_eq!(one(&["deploy", "a"]), Some(("deployments".into(), Some("a".into()))));
        assert_eq!(one(&["pods", "a", "b"]), None);
    }
}
