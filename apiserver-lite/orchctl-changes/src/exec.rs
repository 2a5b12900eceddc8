//! `exec` and `attach`: a command in a container, and its main process.

use std::process::ExitCode;

use orchctl_client::{CommandError, LineReader, Output, Session};
use orchctl_streams::exec::{self, Exit, LocalStreams, Streams};
use orchctl_streams::terminal::{self, RawMode};
use proto_api::uri;
use proto_client::request;
use serde_json::Value;

use crate::pods::{self, Chosen};
use crate::poll;
use crate::requests::{self, Place};

/// Flags that both commands have.
#[derive(clap::Args, Clone, Debug)]
pub struct StreamFlags {
    /// The container; that of an annotation or the first if not set
    #[arg(long, short, value_name = "NAME")]
    pub container: Option<String>,
    /// Pass standard input on
    #[arg(long, short = 'i')]
    pub stdin: bool,
    /// Standard input is a terminal
    #[arg(long, short = 't')]
    pub tty: bool,
    /// Say only what the command says
    #[arg(long, short)]
    pub quiet: bool,
    /// How long to wait for a running pod of a workload
    #[arg(long, value_name = "TIME", default_value = "1m0s")]
    pub pod_running_timeout: String,
}

/// Flags of `exec`.
#[derive(clap::Args, Debug)]
pub struct ExecArgs {
    /// POD or TYPE/NAME
    #[arg(value_name = "OBJECT")]
    object: String,
    /// The command without --, as old scripts have it
    #[arg(hide = true)]
    words: Vec<String>,
    /// The command, after --
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
    #[command(flatten)]
    flags: StreamFlags,
}

/// Flags of `attach`.
#[derive(clap::Args, Debug)]
pub struct AttachArgs {
    /// POD or TYPE/NAME
    #[arg(value_name = "OBJECT")]
    object: String,
    #[command(flatten)]
    flags: StreamFlags,
}

/// Runs `exec`; exits as the command does.
///
/// # Errors
/// When the command cannot be run.
pub async fn run_exec(
    session: &Session,
    mut args: ExecArgs,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    if !args.words.is_empty() {
        writeln!(
            output.err,
            "orchctl exec [POD] [COMMAND] is DEPRECATED and will be removed in a future version. Use orchctl exec [POD] -- [COMMAND] instead."
        )?;
        args.words.append(&mut args.command);
        args.command = std::mem::take(&mut args.words);
    }
    if args.command.is_empty() {
        return Err(CommandError::with_text(
            "you must specify at least one command for the container",
        ));
    }
    let chosen = choose(session, &args.object, &args.flags, "exec into", output).await?;
    let container = container(session, &chosen, &args.flags, output).await?;
    let mut query: Vec<(&str, &str)> =
        args.command.iter().map(|word| ("command", word.as_str())).collect();
    query.push(("container", &container));
    run(session, &chosen, ("exec", query), &args.flags, args.flags.tty, output).await
}

/// Runs `attach`; exits as the container's process does.
///
/// # Errors
/// When the pod has ended, or the container has no terminal and one is asked for.
pub async fn run_attach(
    session: &Session,
    args: AttachArgs,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let chosen = choose(session, &args.object, &args.flags, "attach", output).await?;
    let container = container(session, &chosen, &args.flags, output).await?;
    attach(session, &chosen, &container, &args.flags, output).await
}

/// Joins the streams of the container's main process.
///
/// # Errors
/// When the server or the node refuses.
pub async fn attach(
    session: &Session,
    chosen: &Chosen,
    container: &str,
    flags: &StreamFlags,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let lists = ["containers", "ephemeralContainers", "initContainers"];
    let specs = lists.iter().filter_map(|list| chosen.pod["spec"][list].as_array()).flatten();
    let has_tty = specs.filter(|one| one["name"] == container).any(|one| one["tty"] == true);
    if flags.tty && !has_tty && !flags.quiet {
        writeln!(output.err, "Unable to use a TTY - container {container} did not allocate one")?;
    }
    let query = vec![("container", container)];
    run(session, chosen, ("attach", query), flags, has_tty, output).await
}

/// As [`attach`]; where that fails, its error is a warning and the log of the container is followed to its end: the container may have ended meanwhile, and
/// what it said is there.
///
/// # Errors
/// When the log cannot be read either.
pub async fn attach_or_follow(
    session: &Session,
    chosen: &Chosen,
    container: &str,
    flags: &StreamFlags,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    match attach(session, chosen, container, flags, output).await {
        Err(error) if !error.is_broken_pipe() => {
            if !flags.quiet {
                writeln!(
                    output.err,
                    "warning: couldn't attach to pod/{}, falling back to streaming logs: {}",
                    chosen.place.name,
                    requests::message(&error)
                )?;
            }
            print_log(session, &chosen.place, container, output).await?;
            Ok(ExitCode::SUCCESS)
        }
        ended => ended,
    }
}

/// Prints the log of a container until the container ends.
///
/// # Errors
/// When the server or the node refuses.
pub async fn print_log(
    session: &Session,
    pod: &Place,
    container: &str,
    output: &mut Output,
) -> Result<(), CommandError> {
    let container = uri::encode(container, uri::COMPONENT);
    let path = format!("{}?container={container}&follow=true", pod.path(Some("log")));
    let mut log = LineReader::new(session.open(request::get(path)).await?);
    while let Some(part) = log.part().await? {
        output.out.write_all(&part)?;
        output.out.flush()?;
    }
    Ok(())
}

/// The pod; `what` is what cannot be done with one that has ended.
async fn choose(
    session: &Session,
    object: &str,
    flags: &StreamFlags,
    what: &str,
    output: &mut Output,
) -> Result<Chosen, CommandError> {
    let wait = poll::limit("--pod-running-timeout", &flags.pod_running_timeout)?;
    output.out.flush()?;
    let chosen = pods::choose(session, object, wait).await?;
    let phase = chosen.pod.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default();
    if matches!(phase, "Succeeded" | "Failed") {
        return Err(CommandError::with_text(format!(
            "cannot {what} a container in a completed pod; current phase is {phase}"
        )));
    }
    Ok(chosen)
}

async fn container(
    session: &Session,
    chosen: &Chosen,
    flags: &StreamFlags,
    output: &mut Output,
) -> Result<String, CommandError> {
    let names = session.names().await?;
    pods::container(names, &chosen.pod, flags.container.as_deref(), |note| {
        if !flags.quiet {
            // A closed terminal changes nothing.
            let _ = writeln!(output.err, "{note}");
        }
    })
}

async fn run(
    session: &Session,
    chosen: &Chosen,
    (subresource, mut query): (&str, Vec<(&str, &str)>),
    flags: &StreamFlags,
    tty: bool,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let is_terminal = terminal::is_terminal();
    if flags.tty && flags.stdin && !is_terminal {
        writeln!(
            output.err,
            "Unable to use a TTY - input is not a terminal or the right kind of file"
        )?;
    }
    // A terminal needs one on this side, too; without input there is nothing to make raw.
    let tty = tty && (!flags.stdin || is_terminal || subresource == "attach");
    let streams = Streams { stdin: flags.stdin, stdout: true, stderr: !tty, tty };
    let wanted =
        [("stdin", streams.stdin), ("stdout", true), ("stderr", streams.stderr), ("tty", tty)];
    query.extend(wanted.into_iter().filter(|(_, wanted)| *wanted).map(|(name, _)| (name, "true")));
    let connection =
        pods::connect(session, &chosen.place, (subresource, &query), exec::PROTOCOL).await?;
    let raw = match tty && flags.stdin && is_terminal {
        true => Some(RawMode::enter()?),
        false => None,
    };
    let local = LocalStreams {
        stdin: tokio::io::stdin(),
        stdout: tokio::io::stdout(),
        stderr: tokio::io::stderr(),
        sizes: (tty && is_terminal).then(terminal::sizes),
    };
    let ended = exec::run(connection, streams, local).await;
    drop(raw);
    match ended.map_err(|error| pods::stream_error(&error))? {
        Exit::Success => Ok(ExitCode::SUCCESS),
        Exit::Code(code) => {
            if !flags.quiet {
                writeln!(output.err, "command terminated with exit code {code}")?;
            }
            // A failure stays one, whatever its lowest byte.
            let lowest = u8::try_from(code & 0xff).ok().filter(|lowest| *lowest != 0);
            Ok(ExitCode::from(lowest.unwrap_or(1)))
        }
        Exit::Failed(text) => Err(CommandError::with_text(text)),
    }
}
