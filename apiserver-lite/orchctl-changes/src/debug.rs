//! `debug`: another container in a running pod, a changed copy of a pod, or a pod on a node that sees all of it.

use std::process::ExitCode;
use std::time::Duration;

use orchctl_client::{CommandError, Output, Session, names};
use orchctl_plans::generate::debug::{
    CopyChanges, DEBUGGER, DebugProfile, has_container, node_pod,
};
use orchctl_plans::image_name;
use orchctl_plans::pod_template::{Variable, parse_variable};
use orchctl_printers::objects;
use proto_client::Patch;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::exec::{self, StreamFlags};
use crate::pods::{self, Chosen};
use crate::poll::{self, PollIntervals};
use crate::requests::{self, Deletion, Place, WriteOptions};

/// Most names of containers that are tried.
const NAMES_MAX: usize = 1000;
/// Longest wait for a running pod.
const START_WAIT: &str = "1m0s";
/// How long a container may say why it does not start: its image may appear meanwhile, and the node tries again.
const FAULT_WAIT: Duration = Duration::from_secs(120);

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// POD, TYPE/NAME or node/NAME
    #[arg(value_name = "OBJECT")]
    object: String,
    /// Image of the container
    #[arg(long, value_name = "IMAGE", default_value = "", hide_default_value = true)]
    image: String,
    /// Make a copy of the pod with this name, and change that
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    copy_to: String,
    /// Delete the pod once its copy is made
    #[arg(long, requires = "copy_to")]
    replace: bool,
    /// The copy runs on the node of the pod
    #[arg(long, requires = "copy_to")]
    same_node: bool,
    /// Images of the copy's containers as CONTAINER=IMAGE,...; the container * stands for the others; repeatable
    #[arg(long, value_name = "IMAGES", requires = "copy_to")]
    set_image: Vec<String>,
    /// Whether containers of the copy see each other's processes; as in the pod if not set
    #[arg(long, value_name = "WHETHER", num_args = 0..=1, require_equals = true, default_missing_value = "true", requires = "copy_to")]
    share_processes: Option<bool>,
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
    /// Join the container's streams; so does --stdin. Fails when the container cannot start for two minutes
    #[arg(long)]
    attach: bool,
    /// What the container may do: legacy, general, baseline, restricted, netadmin or sysadmin
    #[arg(long, value_name = "PROFILE", default_value = "legacy")]
    profile: String,
    /// Say only what the container says
    #[arg(long, short)]
    quiet: bool,
    /// Command of the container, after --
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

fn read_profile(args: &Args) -> Result<DebugProfile, CommandError> {
    DebugProfile::parse(&args.profile).map_err(requests::argument)
}

/// Runs the command.
///
/// # Errors
/// When the server refuses the container or the pod, or it does not run in time.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    check(&args)?;
    let object = named(session, &args.object).await?;
    let is_node = object.resource.kind == "Node" && object.resource.group.is_empty();
    let (chosen, name) = match (is_node, args.copy_to.as_str()) {
        (true, "") => create_pod(session, &args, &object, output).await?,
        (true, _) => {
            return Err(CommandError::with_text("--copy-to is for pods, and the object is a node"));
        }
        (false, "") => add_container(session, &args, output).await?,
        (false, _) => match copy_pod(session, &args, object, output).await? {
            (chosen, Some(name)) => (chosen, name),
            (_, None) => return Ok(ExitCode::SUCCESS),
        },
    };
    if !args.attach && !args.stdin {
        return Ok(ExitCode::SUCCESS);
    }
    join(session, &args, chosen, &name, output).await
}

/// Refuses flags that do not go together.
fn check(args: &Args) -> Result<(), CommandError> {
    let refuse = |text: &str| Err(CommandError::with_text(text));
    read_profile(args)?;
    if !args.image.is_empty() {
        image_name::check(&args.image).map_err(requests::argument)?;
    }
    if args.copy_to.is_empty() {
        return match args.image.is_empty() {
            true => refuse("you must specify --image when not using --copy-to."),
            false => Ok(()),
        };
    }
    let (image, images) = (!args.image.is_empty(), !args.set_image.is_empty());
    let command = !args.command.is_empty();
    if !image && !images && !command {
        return refuse("you must specify --image, --set-image or command arguments.");
    }
    if command && !image && args.container.is_none() {
        return refuse(
            "you must specify an existing container or a new image when specifying args.",
        );
    }
    if args.target.is_some() {
        return refuse("--target is incompatible with --copy-to. Use --share-processes instead.");
    }
    Ok(())
}

/// The object of the command.
async fn named(session: &Session, object: &str) -> Result<Place, CommandError> {
    let discovery = session.discovery().await?;
    let selection = names::parse_one(discovery, &[object.to_owned()], "pods")?;
    let resource = selection.resource;
    let namespace = match resource.namespaced {
        true => Some(session.namespace()?.to_owned()),
        false => None,
    };
    Ok(Place { resource, namespace, name: selection.name.unwrap_or_default() })
}

/// Makes a changed copy of a pod; the name of the container to join, if there is one.
async fn copy_pod(
    session: &Session,
    args: &Args,
    pod: Place,
    output: &mut Output,
) -> Result<(Chosen, Option<String>), CommandError> {
    if pod.resource.kind != "Pod" || !pod.resource.group.is_empty() {
        return Err(CommandError::with_text(format!(
            "--copy-to is for pods, not for {}",
            pod.resource.full_name()
        )));
    }
    let original = requests::get(session, &pod).await?;
    // Without an image and a container's name only images of the pod's own containers change.
    let name = match &args.container {
        // As in kubectl, a name that no container has says nothing where images are set.
        Some(name) => {
            let is_there = !args.image.is_empty() || has_container(&original, name);
            Some(name.clone()).filter(|_| is_there || args.set_image.is_empty())
        }
        None if args.image.is_empty() => None,
        None => {
            let name = free_name(&original)?;
            if !args.quiet {
                writeln!(output.err, "Defaulting debug container name to {name}.")?;
            }
            Some(name)
        }
    };
    if let Some(name) = &name
        && args.image.is_empty()
        && !has_container(&original, name)
    {
        return Err(CommandError::with_text("you must specify image when creating new container"));
    }
    let container = name.as_deref().map(|name| container(args, name)).transpose()?;
    let container = container.map(|mut container| {
        // A container that is changed has the streams of the flags, not those of the pod.
        container.insert("stdin".into(), json!(args.stdin));
        container.insert("tty".into(), json!(args.tty));
        container
    });
    let changes = CopyChanges {
        name: args.copy_to.clone(),
        same_node: args.same_node,
        share_processes: args.share_processes,
        images: CopyChanges::parse_images(&args.set_image.join(",")).map_err(requests::argument)?,
        container,
        profile: read_profile(args)?,
    };
    let collection = pod.resource.collection(pod.namespace.as_deref()).path();
    let write = WriteOptions::default();
    let copy = requests::create(session, collection, &changes.copy(&original), &write).await?;
    if args.replace {
        let uid = original["metadata"]["uid"].as_str().map(str::to_owned);
        let deletion = Deletion { grace_secs: Some(0), uid, ..Deletion::default() };
        requests::delete(session, &pod, &deletion).await?;
    }
    let place = Place { name: args.copy_to.clone(), ..pod };
    Ok((Chosen { place, pod: copy, service: None }, name))
}

/// Makes the pod of a node.
async fn create_pod(
    session: &Session,
    args: &Args,
    node: &Place,
    output: &mut Output,
) -> Result<(Chosen, String), CommandError> {
    requests::get(session, node).await?;
    let node = node.name.as_str();
    let name = args.container.clone().unwrap_or_else(|| DEBUGGER.to_owned());
    let mut container = container(args, &name)?;
    // A container of its own pod sees the processes of the node.
    container.remove("targetContainerName");
    let resource = session.discovery().await?.served_kind("v1", "Pod")?.clone();
    let collection = resource.collection(Some(session.namespace()?)).path();
    let pod = node_pod(node, container, read_profile(args)?);
    let pod = requests::create(session, collection, &pod, &WriteOptions::default()).await?;
    let place = Place::listed(&resource, &pod);
    if !args.quiet {
        writeln!(
            output.out,
            "Creating debugging pod {} with container {name} on node {node}.",
            place.name
        )?;
        output.out.flush()?;
    }
    Ok((Chosen { place, pod, service: None }, name))
}

/// Puts a container into a pod.
async fn add_container(
    session: &Session,
    args: &Args,
    output: &mut Output,
) -> Result<(Chosen, String), CommandError> {
    let chosen = pods::choose(session, &args.object, poll::limit("", START_WAIT)?).await?;
    let name = match &args.container {
        Some(name) => name.clone(),
        None => free_name(&chosen.pod)?,
    };
    let mut container = container(args, &name)?;
    read_profile(args)?.restrict(&mut container);
    if args.container.is_none() && !args.quiet {
        writeln!(output.err, "Defaulting debug container name to {name}.")?;
    }
    let patch = Patch::Strategic(json!({"spec": {"ephemeralContainers": [container]}}));
    let path = chosen.place.path(Some("ephemeralcontainers"));
    requests::patch(session, path, &patch, &WriteOptions::default()).await?;
    Ok((chosen, name))
}

/// Joins the streams of the container once it runs. One that has ended already has said what is in its log.
async fn join(
    session: &Session,
    args: &Args,
    mut chosen: Chosen,
    name: &str,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let warn = |text: &str| {
        if !args.quiet {
            session.warn(text);
        }
    };
    chosen.pod = until_started(session, &chosen.place, name, FAULT_WAIT, warn).await?;
    if status_of(&chosen.pod, name).is_some_and(|one| one["state"].get("terminated").is_some()) {
        exec::print_log(session, &chosen.place, name, output).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let flags = StreamFlags {
        container: Some(name.to_owned()),
        stdin: args.stdin,
        tty: args.tty,
        quiet: args.quiet,
        pod_running_timeout: START_WAIT.to_owned(),
    };
    if args.stdin && !args.quiet {
        writeln!(output.err, "If you don't see a command prompt, try pressing enter.")?;
    }
    exec::attach_or_follow(session, &chosen, name, &flags, output).await
}

/// Waits until the container runs or has run, and returns its pod. Every other thing that it says of why it does not goes to `warn`.
///
/// # Errors
/// When it has said so for as long as `fault_wait`, or the pod has gone or ended.
async fn until_started(
    session: &Session,
    place: &Place,
    name: &str,
    fault_wait: Duration,
    warn: impl Fn(&str),
) -> Result<Value, CommandError> {
    // As in kubectl, without an end where nothing is wrong: the container's image may be large, and a copy waits for a node.
    let mut pauses = PollIntervals::up_to(poll::limit("", "0s")?);
    let mut said = String::new();
    let mut wrong_since: Option<Instant> = None;
    loop {
        let pod = requests::get(session, place).await?;
        let state = status_of(&pod, name).map_or(&Value::Null, |one| &one["state"]);
        if state.get("running").is_some() || state.get("terminated").is_some() {
            return Ok(pod);
        }
        let phase = objects::text_at(&pod, "/status/phase");
        if matches!(phase, "Succeeded" | "Failed") {
            return Err(CommandError::with_text(format!(
                "pod {} ended before container {name} ran: {phase}",
                place.name
            )));
        }
        let why = objects::text_at(state, "/waiting/message");
        if why.is_empty() {
            wrong_since = None;
        } else {
            if why != said {
                warn(&format!("container {name}: {why}"));
                why.clone_into(&mut said);
            }
            if wrong_since.get_or_insert_with(Instant::now).elapsed() >= fault_wait {
                return Err(CommandError::with_text(format!(
                    "container {name} cannot start: {why}"
                )));
            }
        }
        if !pauses.pause().await {
            return Err(CommandError::with_text(format!(
                "timed out waiting for container {name} to run"
            )));
        }
    }
}

/// What the pod's status says of a container.
fn status_of<'a>(pod: &'a Value, name: &str) -> Option<&'a Value> {
    let lists = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];
    let mut all = lists.iter().filter_map(|list| pod["status"][list].as_array()).flatten();
    all.find(|one| one["name"] == name)
}

/// The container of the flags.
fn container(args: &Args, name: &str) -> Result<Map<String, Value>, CommandError> {
    let mut container = Map::new();
    container.insert("name".into(), json!(name));
    if !args.image.is_empty() {
        container.insert("image".into(), json!(args.image));
    }
    container.insert("resources".into(), json!({}));
    if !args.image_pull_policy.is_empty() {
        container.insert("imagePullPolicy".into(), json!(args.image_pull_policy));
    }
    if let Some(target) = &args.target {
        container.insert("targetContainerName".into(), json!(target));
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
        container.insert("env".into(), Value::Array(env));
    }
    if !args.command.is_empty() {
        let field = if args.arguments_only { "args" } else { "command" };
        container.insert(field.into(), json!(args.command));
    }
    for (field, wanted) in [("stdin", args.stdin), ("tty", args.tty)] {
        if wanted {
            container.insert(field.into(), json!(true));
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
    use proto_client::testing::json_response;

    use super::*;
    use crate::testing::TestServer;

    #[test]
    fn names_are_free() {
        let pod = json!({"spec": {"containers": [{"name": "a"}], "ephemeralContainers": [{"name": "debugger-1"}]}});
        assert_eq!(free_name(&pod).expect("a name"), "debugger-2");
        assert_eq!(free_name(&json!({})).expect("a name"), "debugger-1");
    }

    #[test]
    fn statuses_are_those_of_both_lists() {
        let status = json!({"containerStatuses": [{"name": "a", "x": 1}],
            "ephemeralContainerStatuses": [{"name": "b", "x": 2}]});
        let pod = json!({"status": status});
        let found = |name: &str| status_of(&pod, name).map(|one| one["x"].clone());
        assert_eq!(found("a"), Some(json!(1)));
        assert_eq!(found("b"), Some(json!(2)));
        assert_eq!(found("c"), None);
    }

    #[tokio::test]
    async fn a_container_that_cannot_start_says_so_at_once_and_ends_the_wait() {
        let waiting =
            |message: &str| json!({"waiting": {"reason": "ImagePullBackOff", "message": message}});
        let states = [json!({}), waiting("not found"), waiting("not found"), waiting("back-off")];
        let server = TestServer::start(move |_, count| {
            let state = states.get(count.saturating_sub(1)).unwrap_or(&states[3]);
            let status = json!({"ephemeralContainerStatuses": [{"name": "d", "state": state}]});
            json_response(200, &json!({"status": status}))
        })
        .await;
        let warn = |text: &str| server.session.warn(text);
        let place = server.pod("p");
        let endless = until_started(&server.session, &place, "d", FAULT_WAIT, warn);
        // Warnings do not wait for the end.
        let warned = async {
            while server.notes.out().lines().count() < 2 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            ended = endless => panic!("{ended:?}"),
            () = warned => {}
        }
        assert_eq!(
            server.notes.out(),
            "Warning: container d: not found\nWarning: container d: back-off\n"
        );
        let ended = until_started(&server.session, &place, "d", Duration::ZERO, warn).await;
        assert_eq!(
            ended.expect_err("it cannot start").to_string(),
            "error: container d cannot start: back-off"
        );
    }

    #[tokio::test]
    async fn a_container_has_started_when_it_runs_or_has_run() {
        for (status, error) in [
            (json!({"containerStatuses": [{"name": "d", "state": {"running": {}}}]}), None),
            (json!({"containerStatuses": [{"name": "d", "state": {"terminated": {}}}]}), None),
            (json!({"phase": "Failed"}), Some("error: pod p ended before container d ran: Failed")),
        ] {
            let pod = json!({"status": status});
            let server = TestServer::start(move |_, _| json_response(200, &pod)).await;
            let place = server.pod("p");
            let started =
                until_started(&server.session, &place, "d", FAULT_WAIT, |text| panic!("{text}"));
            let said = started.await.err().map(|error| error.to_string());
            assert_eq!(said.as_deref(), error, "{status}");
        }
    }
}
