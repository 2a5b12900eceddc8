//! `debug`: another container in a running pod.

use std::process::ExitCode;

use orchctl_client::{CommandError, Output, Session};
use orchctl_plans::pod_template::{Variable, parse_variable};
use proto_client::Patch;
use serde_json::{Value, json};

use crate::exec::{self, StreamFlags};
use crate::pods;
use crate::poll::{self, PollIntervals};
use crate::requests::{self, Write};

/// Most names of containers that are tried.
const NAMES_MAX: usize = 1000;

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// POD or TYPE/NAME
    #[arg(value_name = "OBJECT")]
    object: String,
    /// Image of the container
    #[arg(long, value_name = "IMAGE")]
    image: String,
    /// When the image is pulled: Always, IfNotPresent or Never
    #[arg(long, value_name = "WHEN", default_value = "", hide_default_value = true)]
    image_pull_policy: String,
    /// Name of the container; made up if not set
    #[arg(long, short, value_name = "NAME")]
    container: Option<String>,
    /// Container whose processes are seen
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
    /// Variable as NAME=VALUE; repeatable
    #[arg(long, value_name = "VARIABLE")]
    env: Vec<String>,
    /// What follows -- are arguments of the image's command
    #[arg(long)]
    arguments_only: bool,
    /// Pass standard input on
    #[arg(long, short = 'i')]
    stdin: bool,
    /// The container has a terminal
    #[arg(long, short = 't')]
    tty: bool,
    /// Join the container's streams; so does --stdin
    #[arg(long)]
    attach: bool,
    /// Say only what the container says
    #[arg(long, short)]
    quiet: bool,
    /// Command of the container, after --
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// When the server refuses the container, or it does not run in time.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let minute = poll::limit("", "1m")?;
    let mut chosen = pods::choose(session, &args.object, minute).await?;
    let name = match &args.container {
        Some(name) => name.clone(),
        None => free_name(&chosen.pod)?,
    };
    let container = container(&args, &name)?;
    if args.container.is_none() && !args.quiet {
        writeln!(output.err, "Defaulting debug container name to {name}.")?;
    }
    let patch = Patch::Strategic(json!({"spec": {"ephemeralContainers": [container]}}));
    let path = chosen.place.path(Some("ephemeralcontainers"));
    requests::patch(session, path, &patch, &Write::default()).await?;
    if !args.attach && !args.stdin {
        return Ok(ExitCode::SUCCESS);
    }
    let mut pauses = PollIntervals::up_to(minute);
    loop {
        chosen.pod = requests::get(session, &chosen.place).await?;
        let statuses =
            chosen.pod.pointer("/status/ephemeralContainerStatuses").and_then(Value::as_array);
        let status = statuses.into_iter().flatten().find(|one| one["name"] == name.as_str());
        let state = |state: &str| status.and_then(|one| one["state"].get(state)).is_some();
        if state("running") {
            break;
        }
        if state("terminated") {
            return Err(CommandError::with_text(format!(
                "container {name} has ended already: see its log"
            )));
        }
        if !pauses.pause().await {
            return Err(CommandError::with_text(format!(
                "timed out waiting for container {name} to run"
            )));
        }
    }
    let flags = StreamFlags {
        container: Some(name.clone()),
        stdin: args.stdin,
        tty: args.tty,
        quiet: args.quiet,
        pod_running_timeout: "1m".to_owned(),
    };
    if args.stdin && !args.quiet {
        writeln!(output.err, "If you don't see a command prompt, try pressing enter.")?;
    }
    exec::attach(session, &chosen, &name, &flags, output).await
}

/// The container of the flags.
fn container(args: &Args, name: &str) -> Result<Value, CommandError> {
    let mut container = json!({"name": name, "image": args.image, "resources": {}});
    if !args.image_pull_policy.is_empty() {
        container["imagePullPolicy"] = json!(args.image_pull_policy);
    }
    if let Some(target) = &args.target {
        container["targetContainerName"] = json!(target);
    }
    let mut env = Vec::new();
    for text in &args.env {
        match parse_variable(text).map_err(requests::argument)? {
            Variable::Set(entry) => env.push(entry),
            Variable::Remove(name) => {
                return Err(CommandError::with_text(format!(
                    "invalid env: {name}-, expected NAME=value"
                )));
            }
        }
    }
    if !env.is_empty() {
        container["env"] = Value::Array(env);
    }
    if !args.command.is_empty() {
        let field = if args.arguments_only { "args" } else { "command" };
        container[field] = json!(args.command);
    }
    for (field, wanted) in [("stdin", args.stdin), ("tty", args.tty)] {
        if wanted {
            container[field] = json!(true);
        }
    }
    Ok(container)
}

/// A name that no container of the pod has.
fn free_name(pod: &Value) -> Result<String, CommandError> {
    let lists = ["containers", "initContainers", "ephemeralContainers"];
    let all = lists.iter().filter_map(|list| pod["spec"][list].as_array()).flatten();
    let taken: Vec<&str> = all.filter_map(|one| one["name"].as_str()).collect();
    let mut names = (1..=NAMES_MAX).map(|at| format!("debugger-{at}"));
    let free = names.find(|name| !taken.contains(&name.as_str()));
    free.ok_or_else(|| {
        CommandError::with_text(
            "the pod has too many debugging containers: name one with --container",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_free() {
        let pod = json!({"spec": {"containers": [{"name": "a"}], "ephemeralContainers": [{"name": "debugger-1"}]}});
        assert_eq!(free_name(&pod).expect("a name"), "debugger-2");
        assert_eq!(free_name(&json!({})).expect("a name"), "debugger-1");
    }
}
