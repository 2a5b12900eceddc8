//! `rollout`: status, history, undo, pause, resume and restart of workloads.

mod history;

use std::process::ExitCode;

use clap::Subcommand;
use orchctl_client::{CommandError, Output, Session};
use orchctl_commands::print_flags::PrintFlags;
use orchctl_commands::time;
use orchctl_plans::{ArgumentError, rollout};
use proto_api::Time;
use proto_api::names::Names;
use serde_json::Value;

use crate::poll::{self, PollIntervals};
use crate::requests;
use crate::results::ResultFlags;
use crate::targets::{self, TargetFlags, TargetObject};

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Part,
}

#[derive(Subcommand, Debug)]
enum Part {
    /// Wait until an update has ended
    Status(StatusArgs),
    /// Show revisions
    History(history::HistoryArgs),
    /// Go back to an earlier revision
    Undo(history::UndoArgs),
    /// Hold up updates of a Deployment
    Pause(ChangeArgs),
    /// Go on with updates of a Deployment
    Resume(ChangeArgs),
    /// Replace all pods
    Restart(ChangeArgs),
}

#[derive(clap::Args, Debug)]
struct StatusArgs {
    /// TYPE NAME or TYPE/NAME
    #[arg(value_name = "OBJECT")]
    objects: Vec<String>,
    #[command(flatten)]
    targets: TargetFlags,
    /// Wait until it has ended
    #[arg(long, short, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true,
        default_missing_value = "true", action = clap::ArgAction::Set)]
    watch: bool,
    /// The revision that must be running; 0 for any
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    revision: i64,
    /// How long to wait; 0 for a week
    #[arg(long, value_name = "TIME", default_value = "0s")]
    timeout: String,
}

#[derive(clap::Args, Debug)]
struct ChangeArgs {
    /// TYPE NAME... or TYPE/NAME...
    #[arg(value_name = "OBJECT")]
    objects: Vec<String>,
    #[command(flatten)]
    targets: TargetFlags,
    /// Who writes
    #[arg(long, value_name = "NAME", default_value = "kubectl-rollout")]
    field_manager: String,
    #[command(flatten)]
    print: PrintFlags,
}

/// Runs the command.
///
/// # Errors
/// When an object cannot be read or changed; the others are shown or changed all the same. Of several objects whose status is followed, the errors are
/// written when they happen, as the others may take long, and the exit code says that there were some.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    match args.command {
        Part::Status(args) => run_status(session, args, output).await,
        Part::History(args) => history::run_history(session, args, output).await,
        Part::Undo(args) => history::run_undo(session, args, output).await,
        Part::Pause(args) => {
            change(session, args, output, "paused", |_, object| rollout::paused(object, true)).await
        }
        Part::Resume(args) => {
            change(session, args, output, "resumed", |_, object| rollout::paused(object, false))
                .await
        }
        Part::Restart(args) => {
            let restart = |names: &Names, object: &Value| {
                let annotation = names.sub_label("kubectl", "restartedAt");
                rollout::restarted(object, &annotation, &Time::from_unix(time::now()).to_string())
            };
            change(session, args, output, "restarted", restart).await
        }
    }
}

/// The annotation with the revision of a Deployment.
fn revision_annotation(names: &Names) -> String {
    names.sub_label("deployment", "revision")
}

async fn run_status(
    session: &Session,
    args: StatusArgs,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let limit = poll::limit("--timeout", &args.timeout)?;
    let (targets, errors) =
        targets::read_each(session, &args.targets, &args.objects, output).await?;
    if targets.is_empty() {
        return CommandError::collect(errors).map(|()| ExitCode::SUCCESS);
    }
    let mut code = ExitCode::SUCCESS;
    for error in errors {
        writeln!(output.err, "{error}")?;
        code = ExitCode::FAILURE;
    }
    let mut left = targets.len();
    for target in targets {
        left = left.saturating_sub(1);
        let pauses = PollIntervals::up_to(limit);
        match follow(session, &args, target, pauses, output).await {
            Ok(()) => {}
            // None is waited for after it, or could be shown.
            Err(error) if left == 0 || error.is_broken_pipe() => return Err(error),
            Err(error) => {
                writeln!(output.err, "{error}")?;
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

/// Says how the update of an object goes on, until it has ended.
async fn follow(
    session: &Session,
    args: &StatusArgs,
    target: TargetObject,
    mut pauses: PollIntervals,
    output: &mut Output,
) -> Result<(), CommandError> {
    let annotation = revision_annotation(session.names().await?);
    let TargetObject { place, mut object } = target;
    let mut said = String::new();
    loop {
        let progress =
            rollout::progress(&object, args.revision, &annotation).map_err(requests::argument)?;
        if progress.text != said {
            writeln!(output.out, "{}", progress.text)?;
            output.out.flush()?;
            said = progress.text;
        }
        if progress.done || !args.watch {
            return Ok(());
        }
        if !pauses.pause().await {
            return Err(CommandError::with_text("timed out waiting for the condition"));
        }
        let Some(next) = requests::find(session, &place).await? else {
            return Err(CommandError::with_text("object has been deleted"));
        };
        object = next;
    }
}

async fn change(
    session: &Session,
    args: ChangeArgs,
    output: &mut Output,
    done: &str,
    make: impl Fn(&Names, &Value) -> Result<Value, ArgumentError>,
) -> Result<ExitCode, CommandError> {
    let names = session.names().await?;
    let results = ResultFlags::printing(args.print.clone());
    let write = results.write(&args.field_manager)?;
    let (targets, mut errors) =
        targets::read_each(session, &args.targets, &args.objects, output).await?;
    for TargetObject { place, object } in targets {
        let changed = match make(names, &object) {
            Ok(changed) => changed,
            Err(error) => {
                let (plural, name) = (place.resource.full_name(), &place.name);
                errors.push(CommandError::with_text(format!("{plural} \"{name}\" {error}")));
                continue;
            }
        };
        let patched = async {
            let patch = requests::as_patch(requests::changed(session, &object, &changed).await?);
            requests::patch(session, place.path(None), &patch, &write).await
        };
        let patched = patched.await;
        let shown = patched.and_then(|object| results.print_result(output, &place, &object, done));
        errors.extend(shown.err());
    }
    CommandError::collect(errors).map(|()| ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use clap::Parser as _;
    use proto_client::testing::json_response;
    use serde_json::json;

    use super::*;
    use crate::testing::{ClosedAt, Recorder, TestServer};

    #[derive(clap::Parser, Debug)]
    struct Line {
        #[command(flatten)]
        rollout: Args,
    }

    fn args(line: &str) -> Args {
        let words = ["rollout"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).expect("a line").rollout
    }

    /// Has the Deployments `done`, `stuck` and `waits` by their states, and others of which none is observed; no `missing`.
    async fn server() -> (TestServer, Arc<Mutex<Vec<String>>>) {
        let patched = Arc::new(Mutex::new(Vec::new()));
        let log = patched.clone();
        let server = TestServer::start(move |request, _| {
            let name = request.path.rsplit('/').next().unwrap_or_default().to_owned();
            let refuse = |reason: &str, code: u16| {
                let message = format!("{name} is {reason}");
                json_response(
                    code,
                    &json!({"kind": "Status", "status": "Failure", "reason": reason, "code": code, "message": message, "details": {"name": name}}),
                )
            };
            let conditions = match name.as_str() {
                "missing" => return refuse("NotFound", 404),
                "refused" if request.method == "PATCH" => return refuse("Forbidden", 403),
                "stuck" => json!([{"type": "Progressing", "reason": "ProgressDeadlineExceeded"}]),
                _ => json!([]),
            };
            if request.method == "PATCH" {
                log.lock().expect("a lock").push(name.clone());
            }
            let available = i32::from(name == "done");
            json_response(
                200,
                &json!({
                "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "generation": 1},
                "spec": {"replicas": 1, "template": {}}, "status": {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1,
                    "availableReplicas": available, "conditions": conditions}}),
            )
        });
        (server.await, patched)
    }

    #[tokio::test]
    async fn an_error_of_one_object_is_shown_while_others_are_followed() {
        let (server, _) = server().await;
        for (line, wanted) in [
            ("deploy/missing deploy/waits", "Error from server (NotFound): missing is NotFound\n"),
            (
                "deploy/stuck deploy/waits",
                "error: deployment \"stuck\" exceeded its progress deadline\n",
            ),
        ] {
            let (mut output, recorder) = Recorder::output();
            let status = args(&format!("status {line}"));
            let followed = run(&server.session, status, &mut output);
            let said = async {
                while recorder.err().is_empty() || recorder.out().is_empty() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::select! {
                ended = followed => panic!("the other one goes on: {ended:?}"),
                said = tokio::time::timeout(Duration::from_secs(20), said) => said.expect(line),
            }
            assert_eq!(recorder.err(), wanted);
        }
    }

    #[tokio::test]
    async fn the_exit_code_says_that_one_of_several_failed() {
        let (server, _) = server().await;
        let done = "deployment \"done\" successfully rolled out\n";
        for (line, wanted, said, last) in [
            ("deploy/done", Some(ExitCode::SUCCESS), "", ""),
            ("deploy/missing deploy/done", Some(ExitCode::FAILURE), "missing is NotFound", ""),
            ("deploy/stuck deploy/done", Some(ExitCode::FAILURE), "progress deadline", ""),
            ("deploy/done deploy/stuck", None, "", "progress deadline"),
        ] {
            let (mut output, recorder) = Recorder::output();
            let ended = run(&server.session, args(&format!("status {line}")), &mut output).await;
            assert_eq!(ended.as_ref().ok(), wanted.as_ref(), "{line}: {ended:?}");
            let error = ended.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(last) && error.is_empty() == last.is_empty(), "{line}: {error}");
            assert!(recorder.err().contains(said), "{line}: {}", recorder.err());
            assert_eq!(recorder.out(), done, "{line}");
        }
    }

    #[tokio::test]
    async fn a_closed_output_takes_no_error_of_an_object_with_it() {
        let (server, patched) = server().await;
        let (mut output, _recorder) = Recorder::output();
        output.out = Box::new(ClosedAt("restarted"));
        let line = args("restart deploy/missing deploy/first deploy/refused deploy/second");
        let error = run(&server.session, line, &mut output).await.expect_err("two failed");
        let wanted = "Error from server (NotFound): missing is NotFound\nError from server (Forbidden): refused is Forbidden";
        assert_eq!((error.to_string().as_str(), error.is_broken_pipe()), (wanted, false));
        assert_eq!(*patched.lock().expect("a lock"), ["first", "second"]);
        let line = args("restart deploy/first deploy/second");
        let error = run(&server.session, line, &mut output).await.expect_err("it is closed");
        assert!(error.is_broken_pipe(), "{error}");
    }
}
