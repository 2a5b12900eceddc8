//! `run`: a pod from an image, with its streams if they are asked for.

use std::process::ExitCode;
use std::time::Duration;

use orchctl_client::{CommandError, Output, Session};
use orchctl_plans::generate::service::{self, ExposeFlags};
use orchctl_plans::generate::workload::{self, RunFlags};
use orchctl_printers::objects::text_at;
use serde_json::Value;

use crate::exec::{self, StreamFlags};
use crate::expose::{self, Creation};
use crate::overrides::OverrideFlags;
use crate::pods::Chosen;
use crate::poll::{self, PollIntervals};
use crate::record::RecordFlags;
use crate::requests::{self, Deletion, Place};
use crate::results::{DryRun, ResultFlags};

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Name of the pod
    name: String,
    /// Arguments of the container without --
    #[arg(hide = true)]
    words: Vec<String>,
    /// Image of its container
    #[arg(long, value_name = "IMAGE")]
    image: String,
    /// When the image is pulled: Always, IfNotPresent or Never
    #[arg(long, value_name = "WHEN", default_value = "", hide_default_value = true)]
    image_pull_policy: String,
    /// When the container is started again: Always, OnFailure or Never
    #[arg(long, value_name = "WHEN", default_value = "Always")]
    restart: String,
    /// Variable as NAME=VALUE; repeatable
    #[arg(long, value_name = "VARIABLE")]
    env: Vec<String>,
    /// Port of the container
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Make a Service for the port, too
    #[arg(long, requires = "port")]
    expose: bool,
    /// Labels as KEY=VALUE,...
    #[arg(long, short, value_name = "LABELS", default_value = "", hide_default_value = true)]
    labels: String,
    /// Annotation as KEY=VALUE; repeatable
    #[arg(long, value_name = "PAIR")]
    annotations: Vec<String>,
    /// What follows -- is the command, not its arguments
    #[arg(long)]
    command: bool,
    /// The container may do everything on its node
    #[arg(long)]
    privileged: bool,
    /// Pass standard input on
    #[arg(long, short = 'i')]
    stdin: bool,
    /// Keep the container's input open when this command has ended
    #[arg(long, requires = "stdin")]
    leave_stdin_open: bool,
    /// The container has a terminal
    #[arg(long, short = 't')]
    tty: bool,
    /// Join the container's streams; so does --stdin
    #[arg(long)]
    attach: bool,
    /// Delete the pod afterwards
    #[arg(long)]
    rm: bool,
    /// Say only what the container says
    #[arg(long, short)]
    quiet: bool,
    /// How long to wait until the pod runs
    #[arg(long, value_name = "TIME", default_value = "1m0s")]
    pod_running_timeout: String,
    /// Arguments of the container, after --
    #[arg(last = true, value_name = "ARGUMENT")]
    arguments: Vec<String>,
    #[command(flatten)]
    overrides: OverrideFlags,
    /// Who writes
    #[arg(long, value_name = "NAME", default_value = "kubectl-run")]
    field_manager: String,
    #[command(flatten)]
    record: RecordFlags,
    #[command(flatten)]
    results: ResultFlags,
}

/// Runs the command; exits as the container does if its streams were joined.
///
/// # Errors
/// When the pod cannot be made or does not run in time.
pub async fn run(
    session: &Session,
    mut args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    args.words.append(&mut args.arguments);
    args.arguments = std::mem::take(&mut args.words);
    let attach = args.attach || args.stdin;
    if args.rm && !attach {
        return Err(CommandError::with_text("--rm should only be used for attached containers"));
    }
    if args.tty && !args.stdin {
        return Err(CommandError::with_text(
            "-i/--stdin is required for containers with -t/--tty=true",
        ));
    }
    if attach && args.results.dry_run != DryRun::None {
        return Err(CommandError::with_text(
            "--dry-run=[server|client] can't be used with attached containers options (--attach, --stdin, or --tty)",
        ));
    }
    let flags = RunFlags {
        image: &args.image,
        pull_policy: &args.image_pull_policy,
        restart: &args.restart,
        env: &args.env,
        port: args.port,
        labels: &args.labels,
        annotations: &args.annotations,
        arguments: &args.arguments,
        is_command: args.command,
        stdin: args.stdin,
        leave_stdin_open: args.leave_stdin_open,
        tty: args.tty,
        privileged: args.privileged,
    };
    let pod = workload::pod(&args.name, flags).map_err(requests::argument)?;
    let mut pod = args.overrides.apply(session, pod).await?;
    let pods = session.discovery().await?.served_kind("v1", "Pod")?.clone();
    let name = text_at(&pod, "/metadata/name").to_owned();
    if name.is_empty() {
        // A path without a name is that of all pods.
        return Err(CommandError::with_text("--overrides must not remove metadata.name"));
    }
    let namespace = Some(session.namespace()?.to_owned());
    let place = Place { resource: pods, namespace, name };
    let how =
        Creation { results: &args.results, manager: &args.field_manager, record: &args.record };
    if args.expose {
        let port = args.port.unwrap_or_default().to_string();
        let flags = ExposeFlags { port: &port, ..ExposeFlags::default() };
        let service = service::exposed(&pod, flags).map_err(requests::argument)?;
        expose::create(session, &place, "created", service, how, output).await?;
    }
    if !attach {
        expose::create(session, &place, "created", pod, how, output).await?;
        return Ok(ExitCode::SUCCESS);
    }
    args.record.annotate(session, &mut pod, output).await?;
    let write = args.results.write(&args.field_manager)?;
    requests::create(session, place.collection(), &pod, &write).await?;
    args.restart = text_at(&pod, "/spec/restartPolicy").to_owned();
    let ended =
        join(session, &args, &place, text_at(&pod, "/spec/containers/0/name").to_owned(), output)
            .await;
    if args.rm {
        let deletion = Deletion { grace_secs: Some(0), ..Deletion::default() };
        requests::delete(session, &place, &deletion).await?;
        if !args.quiet {
            writeln!(output.out, "pod \"{}\" deleted", place.name)?;
        }
    }
    ended
}
/// Waits until the pod runs, joins its streams, and waits for the exit code of one that is not started again.
async fn join(
    session: &Session,
    args: &Args,
    place: &Place,
    container: String,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let limit = poll::limit("--pod-running-timeout", &args.pod_running_timeout)?;
    let pod = until(session, place, limit, |phase| phase != "Pending").await?;
    let flags = StreamFlags {
        container: Some(container.clone()),
        stdin: args.stdin,
        tty: args.tty,
        quiet: args.quiet,
        pod_running_timeout: args.pod_running_timeout.clone(),
    };
    if pod.pointer("/status/phase").and_then(Value::as_str) == Some("Running") {
        if args.stdin && !args.quiet {
            writeln!(output.err, "If you don't see a command prompt, try pressing enter.")?;
        }
        let chosen = Chosen { place: place.clone(), pod, service: None };
        let attached = exec::attach(session, &chosen, &container, &flags, output).await;
        if args.restart == "Always" {
            return attached;
        }
        // The end of the pod says more than that of the streams, which may come first.
    } else {
        // It has ended already: what it said is in its log.
        let request = proto_client::request::get(place.path(Some("log")));
        let log = session.call(request).await?;
        output.out.write_all(&log.body)?;
    }
    let pod = until(session, place, limit, |phase| matches!(phase, "Succeeded" | "Failed")).await?;
    let code = pod.pointer("/status/containerStatuses/0/state/terminated/exitCode");
    match code.and_then(Value::as_u64).unwrap_or_default() {
        0 => Ok(ExitCode::SUCCESS),
        code => Ok(ExitCode::from(u8::try_from(code & 0xff).unwrap_or(1))),
    }
}

/// Waits for a phase of the pod.
async fn until(
    session: &Session,
    place: &Place,
    limit: Duration,
    is_reached: impl Fn(&str) -> bool,
) -> Result<Value, CommandError> {
    let mut pauses = PollIntervals::up_to(limit);
    loop {
        let pod = requests::get(session, place).await?;
        let phase = pod.pointer("/status/phase").and_then(Value::as_str).unwrap_or("Pending");
        if is_reached(phase) {
            return Ok(pod);
        }
        if !pauses.pause().await {
            return Err(CommandError::with_text(format!(
                "timed out waiting for the condition: {} is {phase}",
                place.title()
            )));
        }
    }
}
