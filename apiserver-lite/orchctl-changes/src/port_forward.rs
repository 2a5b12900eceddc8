//! `port-forward`: local ports that lead to ports of a pod.

use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use orchctl_client::{CommandError, Output, Session};
use orchctl_printers::objects;
use orchctl_streams::forward;
use proto_client::ClientError;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::pods::{self, Chosen};
use crate::{poll, requests};

/// Most connections at one time.
const CONNECTIONS_MAX: usize = 256;
/// Connections that were accepted and are not served yet.
const QUEUE_LEN: usize = 16;
/// What is said when the pod has ended.
const LOST: &str = "lost connection to pod";
/// Pause between two looks whether the pod still runs.
const LOOK_PAUSE: Duration = Duration::from_secs(2);
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// POD or TYPE/NAME
    #[arg(value_name = "OBJECT")]
    object: String,
    /// PORT, LOCAL:REMOTE or :REMOTE for any local port
    #[arg(value_name = "PORT", required = true)]
    ports: Vec<String>,
    /// Addresses to listen on: localhost or IP addresses
    #[arg(long, value_delimiter = ',', value_name = "ADDRESS", default_value = "localhost")]
    address: Vec<String>,
    /// How long to wait for a running pod of a workload
    #[arg(long, value_name = "TIME", default_value = "1m0s")]
    pod_running_timeout: String,
}

/// A pair of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pair {
    /// 0 for any.
    local: u16,
    remote: u16,
}

/// Runs the command, until it is ended.
///
/// # Errors
/// When there is no such pod, no port can be listened on, or the pod has ended.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let wait = poll::limit("--pod-running-timeout", &args.pod_running_timeout)?;
    let chosen = pods::choose(session, &args.object, wait).await?;
    let phase = chosen.pod.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default();
    if phase != "Running" {
        return Err(CommandError::with_text(format!(
            "unable to forward port because pod is not running. Current status={phase}"
        )));
    }
    let pairs: Vec<Pair> =
        args.ports.iter().map(|text| read_pair(text, &chosen)).collect::<Result<_, _>>()?;
    let listeners = listen_on_all(&pairs, &args.address, output).await?;
    output.out.flush()?;
    serve(session, &chosen, listeners, output).await
}

/// Reads a pair of ports; names are those of the Service's or the containers' ports.
fn read_pair(text: &str, chosen: &Chosen) -> Result<Pair, CommandError> {
    let invalid = || {
        CommandError::with_text(format!(
            "invalid port format '{text}': expected PORT, LOCAL:REMOTE or :REMOTE"
        ))
    };
    let (local, remote) = match text.split_once(':') {
        Some(pair) => pair,
        None => (text, text),
    };
    let number: Option<u16> = remote.parse().ok().filter(|number| *number > 0);
    let is_name = remote.bytes().any(|byte| byte.is_ascii_alphabetic()) && !remote.contains(':');
    if number.is_none() && !is_name {
        return Err(invalid());
    }
    let wanted = remote_port(number, remote, chosen)?;
    let local = match local {
        "" => 0,
        number => match number.parse() {
            Ok(number) => number,
            // A name alone stands for its number on both sides.
            Err(_) if local == remote => wanted.named,
            Err(_) => return Err(invalid()),
        },
    };
    Ok(Pair { local, remote: wanted.remote })
}

struct Remote {
    /// The port that the name or number stands for where it was named.
    named: u16,
    /// The port of the pod.
    remote: u16,
}

/// The port with this number or, without one, of this name.
fn remote_port(number: Option<u16>, name: &str, chosen: &Chosen) -> Result<Remote, CommandError> {
    let of_pod = |name: &str| {
        let pod = &chosen.place.name;
        let missing =
            || CommandError::with_text(format!("Pod '{pod}' does not have a named port '{name}'"));
        container_port(&chosen.pod, name).ok_or_else(missing)
    };
    let as_port = |value: &Value| value.as_u64().and_then(|number| u16::try_from(number).ok());
    let Some(service) = &chosen.service else {
        let remote = number.map_or_else(|| of_pod(name), Ok)?;
        return Ok(Remote { named: remote, remote });
    };
    let missing = || {
        let service = service.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        CommandError::with_text(match number {
            Some(number) => format!("Service {service} does not have a service port {number}"),
            None => format!("Service '{service}' does not have a named port '{name}'"),
        })
    };
    let ports = service.pointer("/spec/ports").and_then(Value::as_array);
    let port = ports.into_iter().flatten().find(|port| match number {
        Some(number) => as_port(&port["port"]) == Some(number),
        None => port["name"] == name,
    });
    let port = port.ok_or_else(missing)?;
    let named = as_port(&port["port"]).ok_or_else(missing)?;
    if service.pointer("/spec/clusterIP").and_then(Value::as_str) == Some("None") {
        return Ok(Remote { named, remote: named });
    }
    let remote = match &port["targetPort"] {
        Value::String(name) => of_pod(name)?,
        number => as_port(number).unwrap_or(named),
    };
    Ok(Remote { named, remote })
}

/// The port of this name among those of the pod's containers.
fn container_port(pod: &Value, name: &str) -> Option<u16> {
    let containers = pod.pointer("/spec/containers")?.as_array()?;
    let ports = containers.iter().filter_map(|one| one["ports"].as_array()).flatten();
    let port = ports.into_iter().find(|port| port["name"] == name)?;
    port["containerPort"].as_u64().and_then(|number| u16::try_from(number).ok())
}

type Listening = (TcpListener, Pair);

/// Listens on the ports that are free; says which are not.
///
/// # Errors
/// None is free.
async fn listen_on_all(
    pairs: &[Pair],
    addresses: &[String],
    output: &mut Output,
) -> Result<Vec<Listening>, CommandError> {
    let (mut listening, mut failed) = (Vec::new(), Vec::new());
    for pair in pairs {
        match listen(*pair, addresses, output).await {
            Ok(more) => listening.extend(more),
            Err(error) => failed.push(error),
        }
    }
    if listening.is_empty() {
        CommandError::collect(failed)?;
        return Ok(listening);
    }
    for error in failed {
        writeln!(output.err, "{error}")?;
    }
    Ok(listening)
}

async fn listen(
    pair: Pair,
    addresses: &[String],
    output: &mut Output,
) -> Result<Vec<Listening>, CommandError> {
    let mut listening = Vec::new();
    let mut failed = Vec::new();
    let mut local = pair.local;
    for text in addresses {
        let both = [IpAddr::from([127, 0, 0, 1]), IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])];
        let ips = match text.as_str() {
            "localhost" => both.to_vec(),
            text => vec![text.parse().map_err(|_| {
                CommandError::with_text(format!(
                    "invalid address {text:?}: expected localhost or an IP address"
                ))
            })?],
        };
        for ip in ips {
            match TcpListener::bind((ip, local)).await {
                Ok(listener) => {
                    let address = listener.local_addr()?;
                    local = address.port(); // the same one for the next address
                    writeln!(output.out, "Forwarding from {address} -> {}", pair.remote)?;
                    listening.push((listener, pair));
                }
                Err(error) => failed.push(format!("{ip}: {error}")),
            }
        }
    }
    if listening.is_empty() {
        return Err(CommandError::with_text(format!(
            "unable to listen on port {}: {}",
            pair.local,
            failed.join(", ")
        )));
    }
    Ok(listening)
}

async fn serve(
    session: &Session,
    chosen: &Chosen,
    listeners: Vec<Listening>,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let (sender, mut accepted) = mpsc::channel::<(TcpStream, Pair)>(QUEUE_LEN);
    let mut accepting = tokio::task::JoinSet::new();
    for (listener, pair) in listeners {
        let sender = sender.clone();
        accepting.spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((socket, _)) => {
                        if sender.send((socket, pair)).await.is_err() {
                            return;
                        }
                    }
                    Err(_) => sleep(ACCEPT_PAUSE).await,
                }
            }
        });
    }
    let mut forwarding = FuturesUnordered::new();
    let interrupted = tokio::signal::ctrl_c();
    let pod_end = until_ended(session, chosen, LOOK_PAUSE);
    tokio::pin!(interrupted, pod_end);
    loop {
        tokio::select! {
            Some((socket, pair)) = accepted.recv(), if forwarding.len() < CONNECTIONS_MAX => {
                let port = socket.local_addr().map_or(pair.local, |address| address.port());
                writeln!(output.out, "Handling connection for {port}")?;
                output.out.flush()?;
                let pair = Pair { local: port, ..pair };
                forwarding.push(join(session, chosen, socket, pair));
            }
            Some(ended) = forwarding.next() => match ended {
                Ok(()) => {}
                // No connection will work any more.
                Err(error) if says_gone(&error) => return Err(CommandError::with_text(LOST)),
                Err(error) => writeln!(output.err, "{error}")?,
            },
            () = &mut pod_end => return Err(CommandError::with_text(LOST)),
            ended = &mut interrupted => {
                ended?;
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
}

/// Waits until the pod has ended: also without connections, so that a loop around the command starts it again for the next pod.
async fn until_ended(session: &Session, chosen: &Chosen, pause: Duration) {
    let uid = objects::text_at(&chosen.pod, "/metadata/uid");
    loop {
        sleep(pause).await;
        // A server that does not answer says nothing of the pod.
        let now = match requests::get(session, &chosen.place).await {
            Ok(pod) => Some(pod),
            Err(error) if says_gone(&error) => None,
            Err(_) => continue,
        };
        if has_ended(now.as_ref(), uid) {
            return;
        }
    }
}

/// Whether an error says that the pod does not exist any more. What stands before the API server (a load balancer, a proxy) has a 404 of its own,
/// which names no object.
fn says_gone(error: &CommandError) -> bool {
    let CommandError::Client(ClientError::Api { status, .. }) = error else { return false };
    let details = status.details.as_ref();
    error.is_not_found() && details.is_some_and(|details| details.kind == "pods")
}

/// Whether the pod of this UID has ended, from what the server has under its name.
fn has_ended(now: Option<&Value>, uid: &str) -> bool {
    let is_there = now.filter(|pod| objects::text_at(pod, "/metadata/uid") == uid);
    is_there
        .is_none_or(|pod| matches!(objects::text_at(pod, "/status/phase"), "Succeeded" | "Failed"))
}

/// Joins a local connection with one to the pod until both have ended.
async fn join(
    session: &Session,
    chosen: &Chosen,
    socket: TcpStream,
    pair: Pair,
) -> Result<(), CommandError> {
    let port = pair.remote.to_string();
    let request = ("portforward", &[("ports", port.as_str())][..]);
    let connection = pods::connect(session, &chosen.place, request, forward::PROTOCOL).await?;
    forward::run(connection, socket, pair.remote).await.map_err(|error| {
        let Pair { local, remote } = pair;
        CommandError::with_text(format!(
            "an error occurred forwarding {local} -> {remote}: {}",
            proto_daemon::exit::chain(&error)
        ))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bytes::Bytes;
    use http::Response;
    use orchctl_client::ApiResource;
    use proto_client::testing::json_response;
    use serde_json::json;
    use tokio::io::AsyncReadExt as _;

    use super::*;
    use crate::requests::Place;
    use crate::testing::{Recorder, TestServer};

    fn chosen(service: Option<Value>) -> Chosen {
        let place = Place { resource: ApiResource::default(), namespace: None, name: "p".into() };
        let pod =
            json!({"spec": {"containers": [{"ports": [{"name": "http", "containerPort": 8080}]}]}});
        Chosen { place, pod, service }
    }

    #[test]
    fn a_pod_has_ended_when_it_runs_no_more() {
        let pod = |uid: &str, phase: &str| {
            Some(json!({"metadata": {"uid": uid}, "status": {"phase": phase}}))
        };
        for (now, ended) in [
            (pod("u", "Running"), false),
            (pod("u", "Unknown"), false),
            (pod("u", "Succeeded"), true),
            (pod("u", "Failed"), true),
            (pod("another", "Running"), true),
            (None, true),
        ] {
            assert_eq!(has_ended(now.as_ref(), "u"), ended, "{now:?}");
        }
    }

    #[tokio::test]
    async fn forwarding_ends_with_its_pod() {
        let status = |code: u16| json!({"kind": "Status", "status": "Failure", "code": code});
        let asked = Arc::new(AtomicUsize::new(0));
        let seen = asked.clone();
        let server =
            TestServer::start(move |_, count| match seen.fetch_max(count, Ordering::Relaxed) + 1 {
                1 => json_response(500, &status(500)),
                2 => json_response(
                    200,
                    &json!({"metadata": {"uid": "u"}, "status": {"phase": "Running"}}),
                ),
                3 => json_response(404, &status(404)),
                4 => missing_page(),
                _ => json_response(404, &gone()),
            })
            .await;
        let pod = json!({"metadata": {"uid": "u"}});
        let chosen = Chosen { place: server.pod("p"), pod, service: None };
        let waited = until_ended(&server.session, &chosen, Duration::ZERO);
        tokio::time::timeout(Duration::from_secs(120), waited).await.expect("it ends");
        assert_eq!(asked.load(Ordering::Relaxed), 5, "a 404 that names no object says nothing");
    }

    /// What a load balancer says.
    fn missing_page() -> Response<Bytes> {
        let page = Response::builder().status(404).header("content-type", "text/html");
        page.body("<html>404 page not found</html>".into()).expect("a response")
    }

    /// What the API server says.
    fn gone() -> Value {
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
            "message": "pods \"p\" not found", "details": {"name": "p", "kind": "pods"}})
    }

    #[tokio::test]
    async fn a_connection_that_fails_does_not_end_the_others() {
        let count = AtomicUsize::new(0);
        let server = TestServer::start(move |request, _| {
            if !request.path.ends_with("/pods/p/portforward") {
                return json_response(200, &json!({"status": {"phase": "Running"}}));
            }
            match count.fetch_add(1, Ordering::Relaxed) {
                0 => missing_page(),
                1 => json_response(500, &json!({"kind": "Status", "code": 500, "message": "busy"})),
                _ => json_response(404, &gone()),
            }
        })
        .await;
        let chosen = Chosen { place: server.pod("p"), pod: json!({}), service: None };
        let (mut output, recorder) = Recorder::output();
        let addresses = ["127.0.0.1".to_owned()];
        let listening = listen(Pair { local: 0, remote: 80 }, &addresses, &mut output).await;
        let listening = listening.expect("a free port");
        let address = listening[0].0.local_addr().expect("bound");
        let ask = async {
            for _ in 0..3 {
                let mut socket = TcpStream::connect(address).await.expect("it listens");
                // It is closed when its connection to the pod has failed.
                let mut byte = [0];
                let read = socket.read(&mut byte);
                let read = tokio::time::timeout(Duration::from_secs(60), read).await;
                drop(read.expect("it is closed"));
            }
            std::future::pending::<()>().await;
        };
        let serving = serve(&server.session, &chosen, listening, &mut output);
        let ended = tokio::select! {
            ended = serving => ended,
            () = ask => unreachable!(),
        };
        assert_eq!(ended.expect_err("the pod has gone").to_string(), format!("error: {LOST}"));
        let said = recorder.err();
        assert!(said.contains("(NotFound)") && said.contains("busy"), "{said}");
        assert_eq!(recorder.out().matches("Handling connection for").count(), 3);
    }

    #[test]
    fn ports_are_pairs() {
        let pod = chosen(None);
        let read = |text: &str| read_pair(text, &pod).ok().map(|pair| (pair.local, pair.remote));
        assert_eq!(read("80"), Some((80, 80)));
        assert_eq!(read("8000:80"), Some((8000, 80)));
        assert_eq!(read(":80"), Some((0, 80)));
        assert_eq!(read("8000:http"), Some((8000, 8080)));
        assert_eq!(read("http"), Some((8080, 8080)));
        for wrong in ["", "0", "x", "1:2:3", "70000", "x:80"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_port_that_does_not_exist_is_named() {
        let message = |text: &str, chosen: &Chosen| {
            read_pair(text, chosen).map(drop).map_err(|error| error.to_string())
        };
        let service = json!({"metadata": {"name": "web"},
            "spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 80, "targetPort": "nosuch"}]}});
        let (pod, service) = (chosen(None), chosen(Some(service)));
        for (text, chosen, wanted) in [
            ("8000:nosuch", &pod, "Pod 'p' does not have a named port 'nosuch'"),
            ("8000:80", &service, "Pod 'p' does not have a named port 'nosuch'"),
            ("8000:81", &service, "Service web does not have a service port 81"),
            ("http", &service, "Service 'web' does not have a named port 'http'"),
            ("8000:", &pod, "invalid port format '8000:': expected PORT, LOCAL:REMOTE or :REMOTE"),
        ] {
            assert_eq!(message(text, chosen), Err(format!("error: {wanted}")), "{text}");
        }
    }

    #[test]
    fn ports_of_a_service_lead_to_its_targets() {
        let service = |ip: &str| {
            chosen(Some(json!({"spec": {"clusterIP": ip, "ports": [
                {"name": "web", "port": 80, "targetPort": "http"}, {"port": 81, "targetPort": 9000}]}})))
        };
        let read = |ip: &str, text: &str| {
            read_pair(text, &service(ip)).ok().map(|pair| (pair.local, pair.remote))
        };
        assert_eq!(read("10.0.0.1", "80"), Some((80, 8080)));
        assert_eq!(read("10.0.0.1", "5000:web"), Some((5000, 8080)));
        assert_eq!(read("10.0.0.1", "81"), Some((81, 9000)));
        assert_eq!(read("10.0.0.1", "82"), None);
        assert_eq!(read("None", "81"), Some((81, 81)));
    }

    #[tokio::test]
    async fn a_port_that_is_taken_leaves_the_others() {
        let taken = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let local = taken.local_addr().expect("an address").port();
        let addresses = ["127.0.0.1".to_owned()];
        let (mut output, recorder) = Recorder::output();
        let pairs = [Pair { local, remote: 80 }, Pair { local: 0, remote: 81 }];
        let listening = listen_on_all(&pairs, &addresses, &mut output).await.expect("one is free");
        assert_eq!(listening.len(), 1);
        assert!(recorder.err().contains(&format!("unable to listen on port {local}")));
        assert!(listen_on_all(&pairs[..1], &addresses, &mut output).await.is_err());
    }
}
