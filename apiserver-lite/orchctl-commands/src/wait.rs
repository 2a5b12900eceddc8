//! `wait`: until objects have a condition, a value, or are deleted.

use std::process::ExitCode;
use std::time::Duration;

use orchctl_client::manifests::{self, FileFlags};
use orchctl_client::names::{self, ResourceTuple};
use orchctl_client::{ApiResource, CommandError, LineReader, Output, Session};
use orchctl_printers::jsonpath::{MissingFields, Path, text_of};
use orchctl_printers::objects;
use proto_client::{ListParams, request};
use serde_json::Value;
use tokio::time::timeout;

/// What a negative limit means: a week.
const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);
/// Seconds after which the server ends a watch.
const WATCH_SECS: u64 = 300;
/// Between two watches that end at once.
const PAUSE: Duration = Duration::from_millis(200);

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// TYPE NAME..., TYPE/NAME..., or TYPE with --all or --selector
    #[arg(value_name = "OBJECT")]
    args: Vec<String>,
    /// Files with the objects
    #[command(flatten)]
    files: FileFlags,
    /// What to wait for: delete, condition=NAME[=VALUE] or jsonpath=PATH[=VALUE]
    #[arg(long = "for", value_name = "WHAT")]
    what: String,
    /// How long for each object; 0 to look once, negative for a week
    #[arg(long, value_name = "TIME", default_value = "30s", allow_hyphen_values = true)]
    timeout: String,
    /// Objects with these labels
    #[arg(
        long,
        short = 'l',
        value_name = "SELECTOR",
        default_value = "",
        hide_default_value = true
    )]
    selector: String,
    /// Objects with these fields
    #[arg(long, value_name = "SELECTOR", default_value = "", hide_default_value = true)]
    field_selector: String,
    /// All objects of the types in the namespace
    #[arg(long)]
    all: bool,
    /// Objects of all namespaces
    #[arg(long, short = 'A')]
    all_namespaces: bool,
    /// Form of the output: name
    #[arg(long, short, value_name = "FORM", value_parser = ["name", ""], hide_possible_values = true, default_value = "", hide_default_value = true)]
    output: String,
}

/// What is waited for.
#[derive(Debug, PartialEq)]
enum WaitCondition {
    Deleted,
    Condition { name: String, value: String },
    JsonPath { path: Path, value: Option<String> },
}

impl WaitCondition {
    fn parse(text: &str) -> Result<Self, CommandError> {
        if text.eq_ignore_ascii_case("delete") {
            return Ok(Self::Deleted);
        }
        if let Some(rest) = text.strip_prefix("condition=") {
            let (name, value) = rest.split_once('=').unwrap_or((rest, "true"));
            return Ok(Self::Condition { name: name.to_owned(), value: value.to_owned() });
        }
        let Some(rest) = text.strip_prefix("jsonpath=") else {
            return Err(CommandError::with_text(format!("unrecognized condition: \"{text}\"")));
        };
        // Signs of equality within braces belong to the path.
        let (path, value) = match rest.rfind('}').map(|end| rest.split_at(end + 1)) {
            Some((path, "")) => (path, None),
            Some((path, value)) => {
                let value = value.strip_prefix('=').filter(|value| !value.is_empty());
                let wrong = || {
                    CommandError::with_text(
                        "jsonpath wait format must be --for=jsonpath='{.status.readyReplicas}'=3",
                    )
                };
                (path, Some(value.ok_or_else(wrong)?))
            }
            None => match rest.split_once('=') {
                Some((path, value)) => (path, Some(value)),
                None => (rest, None),
            },
        };
        let path = Path::parse_relaxed(path)
            .map_err(|error| CommandError::with_text(format!("jsonpath {path}: {error}")))?;
        let value = value.map(|value| value.trim_matches(['\'', '"']).to_owned());
        Ok(Self::JsonPath { path, value })
    }

    /// Whether an object has reached it.
    fn is_reached(&self, object: &Value) -> Result<bool, CommandError> {
        match self {
            Self::Deleted => Ok(false),
            Self::Condition { name, value } => Ok(has_condition(object, name, value)),
            Self::JsonPath { path, value } => {
                let found = path
                    .find(object, MissingFields::Skipped)
                    .map_err(|error| CommandError::with_text(error.to_string()))?;
                let Some(value) = value else { return Ok(!found.is_empty()) };
                match found.as_slice() {
                    [] => Ok(false),
                    [Value::Object(_) | Value::Array(_)] => Err(CommandError::with_text(
                        "jsonpath leads to an object or a list, which has no value to compare",
                    )),
                    [one] => Ok(text_of(one) == *value),
                    _ => Err(CommandError::with_text(
                        "given jsonpath expression matches more than one value",
                    )),
                }
            }
        }
    }
}

fn has_condition(object: &Value, name: &str, value: &str) -> bool {
    let is = |one: &&Value| objects::text_at(one, "/type").eq_ignore_ascii_case(name);
    let Some(condition) = objects::list_at(object, "/status/conditions").iter().find(is) else {
        return false;
    };
    let number = |value: &Value, pointer: &str| value.pointer(pointer).and_then(Value::as_i64);
    // What a condition says of an older generation does not count.
    let generation = number(object, "/metadata/generation").unwrap_or_default();
    let observed = number(condition, "/observedGeneration")
        .or_else(|| number(object, "/status/observedGeneration"))
        .unwrap_or(generation);
    observed >= generation && objects::text_at(condition, "/status").eq_ignore_ascii_case(value)
}

/// One of the objects.
struct Target {
    resource: ApiResource,
    namespace: Option<String>,
    name: String,
}

/// Runs the command.
///
/// # Errors
/// When the time is up, or there are no such objects.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let goal = WaitCondition::parse(&args.what)?;
    let limit = Limit::parse(&args.timeout)?;
    let targets = targets(session, &args, &goal, output).await?;
    if targets.is_empty() {
        if goal == WaitCondition::Deleted {
            return Ok(ExitCode::SUCCESS);
        }
        return Err(CommandError::with_text("no matching resources found"));
    }
    let mut errors = Vec::new();
    for target in targets {
        let reached = async {
            match limit {
                Limit::Once => meets_condition(session, &target, &goal).await,
                Limit::Time(time) => match timeout(time, reach(session, &target, &goal)).await {
                    Ok(reached) => reached.map(|()| true),
                    Err(_) => Ok(false),
                },
            }
        };
        match reached.await {
            Ok(true) if args.output == "name" => {
                writeln!(output.out, "{}/{}", target.resource.word(), target.name)?;
            }
            Ok(true) => {
                writeln!(output.out, "{}/{} condition met", target.resource.word(), target.name)?;
            }
            Err(error) => errors.push(error),
            Ok(false) => errors.push(CommandError::with_text(format!(
                "timed out waiting for the condition on {}/{}",
                target.resource.plural, target.name
            ))),
        }
        output.out.flush()?;
    }
    CommandError::collect(errors).map(|()| ExitCode::SUCCESS)
}

/// How long each object is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    /// It is looked at once.
    Once,
    /// So long.
    Time(Duration),
}

impl Limit {
    fn parse(text: &str) -> Result<Self, CommandError> {
        let positive = text.strip_prefix('-');
        let time = proto_api::duration::parse(positive.unwrap_or(text))
            .map_err(|error| CommandError::with_text(format!("--timeout: {error}")))?;
        Ok(match (time, positive) {
            (Duration::ZERO, _) => Self::Once,
            (_, Some(_)) => Self::Time(WEEK),
            (time, None) => Self::Time(time),
        })
    }
}

async fn targets(
    session: &Session,
    args: &Args,
    goal: &WaitCondition,
    output: &mut Output,
) -> Result<Vec<Target>, CommandError> {
    let discovery = session.discovery().await?;
    let current = session.namespace()?;
    let mut targets = Vec::new();
    if !args.files.filename.is_empty() {
        for manifest in manifests::read(session, &args.files, output).await? {
            let resource = discovery.served_kind(manifest.api_version(), manifest.kind())?.clone();
            let namespace = manifest.namespace().unwrap_or(current).to_owned();
            let name = manifest.name().to_owned();
            targets.push(Target { resource, namespace: Some(namespace), name });
        }
        return Ok(targets);
    }
    let by_selector = args.all || !args.selector.is_empty() || !args.field_selector.is_empty();
    for ResourceTuple { resource, name } in names::parse(discovery, &args.args)? {
        let namespace = Some(current.to_owned()).filter(|_| !args.all_namespaces);
        if let Some(name) = name {
            if by_selector {
                return Err(CommandError::with_text(
                    "name cannot be provided when a selector is specified",
                ));
            }
            if args.all_namespaces && resource.namespaced {
                return Err(CommandError::with_text(
                    "a resource cannot be retrieved by name across all namespaces",
                ));
            }
            // An object that does not exist is an error, unless it should be gone.
            let path = resource.collection(namespace.as_deref()).item(&name, None);
            match session.call(request::get(path)).await {
                Err(error) if error.is_not_found() && *goal == WaitCondition::Deleted => continue,
                answer => answer?,
            };
            targets.push(Target { resource, namespace, name });
            continue;
        }
        if !by_selector {
            return Err(CommandError::with_text(
                "resource(s) were provided, but no name was specified",
            ));
        }
        let params = ListParams {
            label_selector: args.selector.clone(),
            field_selector: args.field_selector.clone(),
            ..ListParams::default()
        };
        let path = resource.collection(namespace.as_deref()).path();
        let list = session.call_json(request::list(path, &params)).await?;
        for item in objects::list_at(&list, "/items") {
            let namespace = Some(objects::namespace(item).to_owned());
            let name = objects::name(item).to_owned();
            targets.push(Target { resource: resource.clone(), namespace, name });
        }
    }
    Ok(targets)
}

/// Whether the object has reached the goal now.
async fn meets_condition(
    session: &Session,
    target: &Target,
    goal: &WaitCondition,
) -> Result<bool, CommandError> {
    let path = target.resource.collection(target.namespace.as_deref()).path();
    let list = session.call_json(request::list(path, &ListParams::name(&target.name))).await?;
    match objects::list_at(&list, "/items").first() {
        None => Ok(*goal == WaitCondition::Deleted),
        Some(object) => goal.is_reached(object),
    }
}

/// Waits without a limit.
async fn reach(
    session: &Session,
    target: &Target,
    goal: &WaitCondition,
) -> Result<(), CommandError> {
    let path = target.resource.collection(target.namespace.as_deref()).path();
    let params = ListParams::name(&target.name);
    let mut uid: Option<String> = None;
    loop {
        let list = session.call_json(request::list(path.clone(), &params)).await?;
        match objects::list_at(&list, "/items").first() {
            None if *goal == WaitCondition::Deleted => return Ok(()),
            None => {}
            Some(object) => {
                let now = objects::text_at(object, "/metadata/uid").to_owned();
                let known = uid.get_or_insert_with(|| now.clone());
                // Another object of the same name: the first one has gone.
                if *goal == WaitCondition::Deleted && *known != now || goal.is_reached(object)? {
                    return Ok(());
                }
            }
        }
        let version = objects::text_at(&list, "/metadata/resourceVersion");
        let request = request::watch(path.clone(), &params, version, WATCH_SECS);
        let mut lines = LineReader::new(session.open(request).await?);
        // A watch that breaks has ended.
        while let Ok(Some(line)) = lines.next_line().await {
            let event: Value = serde_json::from_slice(&line).unwrap_or_default();
            let object = event.get("object").unwrap_or(&Value::Null);
            match objects::text_at(&event, "/type") {
                "DELETED" if *goal == WaitCondition::Deleted => return Ok(()),
                "ADDED" | "MODIFIED" if goal.is_reached(object)? => return Ok(()),
                "ERROR" => break,
                _ => {}
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn reached(goal: &str, object: &Value) -> bool {
        WaitCondition::parse(goal).expect(goal).is_reached(object).expect(goal)
    }

    #[test]
    fn goals_are_conditions_or_values() {
        let pod = json!({"metadata": {"generation": 2}, "status": {"phase": "Failed", "n": 3,
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "Old", "status": "True", "observedGeneration": 1}]}});
        for (goal, wanted) in [
            ("condition=Ready", true),
            ("condition=ready=TRUE", true),
            ("condition=Ready=false", false),
            ("condition=Old", false),
            ("condition=None", false),
            ("jsonpath={.status.phase}=Failed", true),
            ("jsonpath='{.status.phase}'=Failed", true),
            ("jsonpath={.status.n}=3", true),
            ("jsonpath={.status.n}=4", false),
            ("jsonpath=.status.phase=Failed", true),
            ("jsonpath={.status.phase}", true),
            ("jsonpath={.status.nothing}", false),
            ("jsonpath={.status.conditions[?(@.type==\"Ready\")].status}=True", true),
            ("delete", false),
        ] {
            let goal = goal.replace('\'', "");
            assert_eq!(reached(&goal, &pod), wanted, "{goal}");
        }
        for goal in ["foo", "jsonpath={.a}x", "jsonpath={.a}=", "jsonpath={"] {
            assert!(WaitCondition::parse(goal).is_err(), "{goal}");
        }
        let several =
            WaitCondition::parse("jsonpath={.status.conditions[*].type}=x").expect("valid");
        assert!(several.is_reached(&pod).is_err());
    }

    #[test]
    fn limits_may_be_negative() {
        let limit = |text: &str| Limit::parse(text).ok();
        assert_eq!(limit("-1s"), Some(Limit::Time(WEEK)));
        assert_eq!(limit("5s"), Some(Limit::Time(Duration::from_secs(5))));
        assert_eq!(limit("0"), Some(Limit::Once));
        assert_eq!(limit("0s"), Some(Limit::Once));
        assert_eq!((limit("x"), limit("-x")), (None, None));
    }
}
