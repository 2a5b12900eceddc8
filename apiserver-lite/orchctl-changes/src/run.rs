//! `run`: a pod from an image, with its streams if they are asked for.

use std::process::ExitCode;
use std::time::Duration;

use orchctl_client::{CommandError, Output, Session};
use orchctl_plans::generate::service::{self, ExposeFlags};
use orchctl_plans::generate::workload::{self, RunFlags};
use orchctl_plans::image_name;
use orchctl_printers::objects::{list_at, text_at};
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

/// Whether the streams of the container are joined.
fn joins_streams(args: &Args) -> bool {
    args.attach || args.stdin
}

/// Refuses flags that do not go together.
fn check(args: &Args) -> Result<(), CommandError> {
    if args.image.is_empty() {
        return Err(CommandError::with_text("--image is required"));
    }
    image_name::check(&args.image).map_err(requests::argument)?;
    let attach = joins_streams(args);
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
    Ok(())
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
    check(&args)?;
    let attach = joins_streams(&args);
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
    let pod = args.overrides.apply(session, pod).await?;
    let pods = session.discovery().await?.served_kind("v1", "Pod")?.clone();
    let name = text_at(&pod, "/metadata/name").to_owned();
    if name.is_empty() {
        // A path without a name is that of all pods.
        return Err(CommandError::with_text("--overrides must not remove metadata.name"));
    }
    let namespace = Some(session.namespace()?.to_owned());
    let place = Place { resource: pods, namespace, name };
    let service = args.expose.then(|| service_of(&args, &pod)).transpose()?;
    let how = Creation {
        results: &args.results,
        manager: &args.field_manager,
        record: &args.record,
        is_recorded: false,
    };
    let pod = expose::send(session, &place, pod, how, output).await?;
    // The pod is there, whatever becomes of its Service.
    let service = match service {
        Some(service) => {
            expose::create(session, &place, "created", service, how, output).await.map(Some)
        }
        None => Ok(None),
    };
    if !attach {
        args.results.print_result(output, &place, &pod, "created")?;
        return service.map(|_| ExitCode::SUCCESS);
    }
    let service = service.unwrap_or_else(|error| {
        session.warn(&format!("{} has no Service: {}", place.title(), requests::message(&error)));
        None
    });
    args.restart = text_at(&pod, "/spec/restartPolicy").to_owned();
    let container = text_at(&pod, "/spec/containers/0/name").to_owned();
    let ended = join(session, &args, &place, container, output).await;
    if !args.rm {
        return ended;
    }
    let mut removed = Vec::new();
    for made in [Some(place), service].into_iter().flatten() {
        removed.extend(remove(session, &made).await);
    }
    let shown = if args.quiet { Ok(()) } else { show_removed(&removed, output) };
    match ended {
        // How the container ended says more than that the output is closed.
        Ok(code) if code == ExitCode::SUCCESS => shown.map(|()| code),
        ended => ended,
    }
}

/// A Service for the port of the pod.
fn service_of(args: &Args, pod: &Value) -> Result<Value, CommandError> {
    let port = args.port.unwrap_or_default().to_string();
    let flags = ExposeFlags { port: &port, ..ExposeFlags::default() };
    service::exposed(pod, flags).map_err(requests::argument)
}

/// Deletes an object that the command has made, and that may have gone already; returns the line about it. That it cannot be deleted is said, and the
/// command ends as the container did.
async fn remove(session: &Session, place: &Place) -> Option<String> {
    match requests::delete(session, place, &Deletion::default()).await {
        Ok(_) => Some(format!("{} \"{}\" deleted", place.resource.word(), place.name)),
        Err(error) => {
            if !error.is_not_found() {
                let why = requests::message(&error);
                session.warn(&format!("{} was not deleted: {why}", place.title()));
            }
            None
        }
    }
}

fn show_removed(lines: &[String], output: &mut Output) -> Result<(), CommandError> {
    for line in lines {
        writeln!(output.out, "{line}")?;
    }
    Ok(())
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
    if text_at(&pod, "/status/phase") == "Running" {
        if args.stdin && !args.quiet {
            writeln!(output.err, "If you don't see a command prompt, try pressing enter.")?;
        }
        let chosen = Chosen { place: place.clone(), pod, service: None };
        let attached = exec::attach_or_follow(session, &chosen, &container, &flags, output).await?;
        if args.restart == "Always" || args.leave_stdin_open {
            return Ok(attached);
        }
        // The end of the pod says more than that of the streams, which may come first.
    } else {
        // It has ended already: what it said is in its log.
        exec::print_log(session, place, &container, output).await?;
    }
    let pod = until(session, place, limit, |phase| matches!(phase, "Succeeded" | "Failed")).await?;
    let end = read_end(&pod, &container);
    if let (Some(text), false) = (end.text, args.quiet) {
        writeln!(output.err, "{text}")?;
    }
    Ok(ExitCode::from(end.code))
}

/// How a pod has ended.
#[derive(Debug, PartialEq, Eq)]
struct PodEnd {
    /// The exit code of the command: that of the container; 1 if the pod failed otherwise.
    code: u8,
    /// What is said of a pod that failed.
    text: Option<String>,
}

fn read_end(pod: &Value, container: &str) -> PodEnd {
    if text_at(pod, "/status/phase") == "Succeeded" {
        return PodEnd { code: 0, text: None };
    }
    let title =
        format!("pod {}/{}", text_at(pod, "/metadata/namespace"), text_at(pod, "/metadata/name"));
    let mut statuses = list_at(pod, "/status/containerStatuses").iter();
    let status = statuses.find(|one| one["name"] == container);
    let ended = status.and_then(|one| one.pointer("/state/terminated"));
    let code = ended.and_then(|ended| ended["exitCode"].as_i64()).unwrap_or_default();
    let (Some(ended), true) = (ended, code != 0) else {
        return PodEnd { code: 1, text: Some(format!("{title} failed with unknown exit code")) };
    };
    let (reason, message) = (text_at(ended, "/reason"), text_at(ended, "/message"));
    let text = format!("{title} terminated ({reason})\n{message}").trim_end().to_owned();
    // A failure stays one, whatever its lowest byte.
    let lowest = u8::try_from(code & 0xff).ok().filter(|lowest| *lowest != 0);
    PodEnd { code: lowest.unwrap_or(1), text: Some(text) }
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use bytes::Bytes;
    use clap::Parser as _;
    use proto_client::testing::json_response;
    use serde_json::json;

    use super::*;
    use crate::testing::{ClosedAt, Recorder, TestServer};

    #[derive(clap::Parser, Debug)]
    struct Line {
        #[command(flatten)]
        run: Args,
    }

    fn args(line: &str) -> Args {
        let words = ["run", "p", "--image=i"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).expect("a line").run
    }

    fn ended(phase: &str, code: i64) -> Value {
        json!({"metadata": {"name": "p", "namespace": "n"}, "status": {"phase": phase, "containerStatuses": [
            {"name": "a", "state": {"terminated": {"exitCode": 9}}},
            {"name": "p", "state": {"terminated": {"exitCode": code, "reason": "Error", "message": "why"}}}]}})
    }

    #[test]
    fn a_failed_pod_has_the_exit_code_of_its_container() {
        let end = |code, text: &str| PodEnd { code, text: Some(text.to_owned()) };
        let why = "pod n/p terminated (Error)\nwhy";
        for (pod, container, wanted) in [
            (ended("Succeeded", 3), "p", PodEnd { code: 0, text: None }),
            (ended("Failed", 3), "p", end(3, why)),
            (ended("Failed", 256), "p", end(1, why)),
            (ended("Failed", 0), "p", end(1, "pod n/p failed with unknown exit code")),
            (ended("Failed", 3), "x", end(1, "pod n/p failed with unknown exit code")),
        ] {
            assert_eq!(read_end(&pod, container), wanted, "{pod}");
        }
    }

    #[tokio::test]
    async fn no_pod_is_made_of_a_text_that_names_no_image() {
        let server = TestServer::start(|request, _| panic!("{} is asked for", request.path)).await;
        for (image, wanted) in [
            ("X Y", "error: Invalid image name \"X Y\": invalid reference format"),
            ("", "error: --image is required"),
        ] {
            let (mut output, _recorder) = Recorder::output();
            let words = ["run", "p", "--image", image];
            let args = Line::try_parse_from(words).expect("a line").run;
            let error = run(&server.session, args, &mut output).await.expect_err("refused");
            assert_eq!(error.to_string(), wanted);
        }
    }

    /// The container has ended between the look at the pod and the attach.
    #[tokio::test]
    async fn a_pod_that_cannot_be_attached_to_is_shown_by_its_log() {
        let server = TestServer::start(|request, count| match request.path.as_str() {
            "/api/v1/namespaces/default/pods/p/attach" => json_response(
                500,
                &json!({"kind": "Status", "status": "Failure", "message": "no running task", "code": 500}),
            ),
            "/api/v1/namespaces/default/pods/p/log" => {
                assert_eq!(request.query, "container=p&follow=true");
                http::Response::new("said\n".into())
            }
            _ if count == 1 => json_response(200, &json!({"status": {"phase": "Running"}})),
            _ => json_response(200, &ended("Failed", 3)),
        })
        .await;
        let (mut output, recorder) = Recorder::output();
        let place = server.pod("p");
        let args = args("--restart=Never --attach");
        let joined = join(&server.session, &args, &place, "p".into(), &mut output);
        assert_eq!(joined.await.expect("joined"), ExitCode::from(3));
        assert_eq!(recorder.out(), "said\n");
        let warning =
            "warning: couldn't attach to pod/p, falling back to streaming logs: no running task";
        assert_eq!(recorder.err(), format!("{warning}\npod n/p terminated (Error)\nwhy\n"));
    }

    #[tokio::test]
    async fn a_pod_is_removed_with_its_own_grace_period() {
        let refusal = |reason: &str, code: u16| {
            let message = format!("it is {reason}");
            let status = json!({"kind": "Status", "status": "Failure", "reason": reason, "code": code, "message": message});
            json_response(code, &status)
        };
        let server = TestServer::start(move |request, _| {
            let options: Value = serde_json::from_slice(&request.body).expect("options");
            assert_eq!(
                (request.method.as_str(), options.get("gracePeriodSeconds")),
                ("DELETE", None)
            );
            match request.path.rsplit('/').next() {
                Some("gone") => refusal("NotFound", 404),
                Some("kept") => refusal("Forbidden", 403),
                _ => json_response(200, &json!({})),
            }
        })
        .await;
        let mut removed = Vec::new();
        // The next one is deleted all the same.
        for name in ["kept", "gone", "p"] {
            removed.extend(remove(&server.session, &server.pod(name)).await);
        }
        assert_eq!(removed, ["pod \"p\" deleted"]);
        assert_eq!(server.notes.out(), "Warning: pod/kept was not deleted: it is Forbidden\n");
    }

    /// The names of the pods and the services that a server with kinds of both has made and deleted, and the end of the command.
    async fn run_exposed(line: &str, refuses_service: bool) -> (Vec<String>, String, String) {
        let (output, recorder) = Recorder::output();
        let (seen, ended, said) = run_into(output, line, refuses_service).await;
        (seen, ended, format!("{}{said}", recorder.out()))
    }

    /// The same without what is written to `output`.
    async fn run_into(
        mut output: Output,
        line: &str,
        refuses_service: bool,
    ) -> (Vec<String>, String, String) {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        let server = TestServer::start(move |request, _| {
            if request.path.ends_with("/log") {
                return http::Response::new(Bytes::new());
            }
            if request.method == "GET" {
                return json_response(200, &ended("Failed", 3));
            }
            let kind = request.path.split('/').nth(5).unwrap_or_default().to_owned();
            log.lock().expect("a lock").push(format!("{} {kind}", request.method));
            match kind == "services" && refuses_service {
                true => json_response(
                    409,
                    &json!({"kind": "Status", "code": 409, "message": "it exists"}),
                ),
                false => {
                    json_response(201, &serde_json::from_slice(&request.body).unwrap_or_default())
                }
            }
        })
        .await;
        let ended = run(&server.session, args(line), &mut output).await;
        let seen = seen.lock().expect("a lock").clone();
        (seen, format!("{ended:?}"), server.notes.out())
    }

    #[tokio::test]
    async fn a_closed_output_leaves_no_service_and_not_another_exit_code() {
        let (mut output, _recorder) = Recorder::output();
        output.out = Box::new(ClosedAt("deleted"));
        let line = "--expose --port=80 --restart=Never --rm --attach";
        let (seen, ended, _) = run_into(output, line, false).await;
        assert_eq!(seen, ["POST pods", "POST services", "DELETE pods", "DELETE services"]);
        assert_eq!(ended, format!("{:?}", Ok::<_, CommandError>(ExitCode::from(3))));
    }

    #[tokio::test]
    async fn the_service_of_a_pod_comes_and_goes_after_it() {
        let code = |code| format!("{:?}", Ok::<_, CommandError>(ExitCode::from(code)));
        let line = "--expose --port=80 --restart=Never --rm --attach -q";
        let (seen, ended, said) = run_exposed(line, false).await;
        assert_eq!(seen, ["POST pods", "POST services", "DELETE pods", "DELETE services"]);
        assert_eq!((ended, said), (code(3), "service/p created\n".to_owned()));
        let (seen, ended, said) = run_exposed(line, true).await;
        assert_eq!(seen, ["POST pods", "POST services", "DELETE pods"]);
        assert_eq!(
            (ended, said),
            (code(3), "Warning: pod/p has no Service: it exists\n".to_owned())
        );
        let (seen, ended, said) = run_exposed("--expose --port=80", true).await;
        assert_eq!(seen, ["POST pods", "POST services"]);
        assert!(ended.contains("it exists"), "{ended}");
        assert_eq!(said, "pod/p created\n");
    }
}
