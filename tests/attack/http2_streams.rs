//! Many requests on one HTTP/2 connection: thousands without a body, and watches whose selectors are 60 KB long. Requests are made one by one, and of
//! the answers only the frames are read, so that the attack itself stays small.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use cluster::apply::apply;
use cluster::spec::Spec;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, WriteHalf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::client::TlsStream;

use crate::cluster_checks::SLOWNESS;
use crate::http2_frames::{Answer, Answers, Window, head, preface, request};
use crate::stalled_http2_clients::{CONNECT_TIMEOUT, config, open};
use crate::{NAMESPACE, Target, manifests};

/// Requests without a body on one connection.
const REQUESTS: u32 = 2000;
/// Of these, open at the same time, as most servers allow.
const OPEN_REQUESTS: u32 = 250;
/// Longest time of such a connection.
const REQUESTS_TIMEOUT: Duration = Duration::from_secs(10);
/// Watches on one connection: some more than one user may have of these.
const WATCHES: u32 = 80;
/// Between two connections. The attack is to find what gives way, and not to use up the machine.
const PAUSE: Duration = Duration::from_secs(2);
/// How long they are held.
const WATCHES_HELD: Duration = Duration::from_secs(5);
/// After so few rounds it may be by chance that nothing of a load was accepted.
const FEW_ROUNDS: u32 = 2;
/// How long a load of which nothing was accepted is tried again when the others have ended.
const AGAIN_MAX: Duration = Duration::from_secs(30 * SLOWNESS);
/// Length of a watch's selector: a request's head of 64 KiB is taken.
const SELECTOR_LEN: usize = 60_000;

/// What is sent on one connection.
struct Load {
    attack: &'static str,
    /// Heads that take turns.
    heads: Vec<Vec<u8>>,
    requests: u32,
    /// Requests that wait for an answer at the same time.
    open_max: u32,
    /// Whether the connection stays open when all are answered.
    is_held: bool,
    time: Duration,
}

/// Sends requests without a body until the end: in an order that the server allows, and all at once.
pub async fn without_bodies(target: Target) {
    let token = match manifests::service_account_token(&target.client, "flood").await {
        Ok(token) => token,
        Err(error) => {
            return target.judge.find(format!("no token for HTTP/2 requests: {error:#}"));
        }
    };
    let object = format!("/api/v1/namespaces/{NAMESPACE}/configmaps/none");
    let collection = format!("/api/v1/namespaces/{NAMESPACE}/configmaps");
    let mut heads = vec![head("GET", "/version", None)];
    for (method, path) in [
        ("GET", "/version"),
        ("POST", &collection),
        ("PUT", &object),
        ("PATCH", &object),
        ("DELETE", &object),
    ] {
        heads.push(head(method, path, Some(&token)));
    }
    let load = |attack, open_max| Load {
        attack,
        heads: heads.clone(),
        requests: REQUESTS,
        open_max,
        is_held: false,
        time: REQUESTS_TIMEOUT,
    };
    let loads = [
        load("HTTP/2 requests without a body, in turn", OPEN_REQUESTS),
        load("HTTP/2 requests without a body, at once", u32::MAX),
    ];
    repeat(&target, &loads).await;
}

/// Opens watches with long selectors until the end.
pub async fn long_selectors(target: Target) {
    let token = match watcher(&target).await {
        Ok(token) => token,
        Err(error) => return target.judge.find(format!("no token for watches: {error:#}")),
    };
    let heads = selectors().map(|selector| {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods?watch=1&labelSelector={selector}");
        head("GET", &path, Some(&token))
    });
    let load = Load {
        attack: "HTTP/2 watches with long selectors",
        heads: heads.to_vec(),
        requests: WATCHES,
        open_max: u32::MAX,
        is_held: true,
        time: WATCHES_HELD,
    };
    repeat(&target, &[load]).await;
}

/// A token of a service account that may read the attackers' namespace.
async fn watcher(target: &Target) -> Result<String> {
    let name = "watcher";
    let token = manifests::service_account_token(&target.client, name).await?;
    let group = cluster::up::names(&target.spec).group("rbac");
    let binding = json!({
        "apiVersion": format!("{group}/v1"), "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}],
    });
    apply(&target.client, &binding.to_string()).await?;
    Ok(token)
}

/// Selectors of [`SELECTOR_LEN`], as they stand in a path: one requirement of many values, and many requirements.
fn selectors() -> [String; 2] {
    let many = |open: &str, one: &dyn Fn(usize) -> String, close: &str| {
        let mut text = open.to_owned();
        for number in 0.. {
            let next = one(number);
            if text.len() + next.len() + close.len() > SELECTOR_LEN {
                break;
            }
            text.push_str(&next);
        }
        text + close
    };
    let values = many("app+in+(a", &|number| format!(",v{number}"), ")");
    let requirements = many("app", &|number| format!(",k{number}!=v"), "");
    [values, requirements]
}

/// Sends loads in turn, each on a connection of its own, until the attack ends. That none of a load's requests was accepted is a finding: nothing was
/// attacked. In a short attack a load has one or two connections, which a busy machine may not make in time: such a load is tried again first.
async fn repeat(target: &Target, loads: &[Load]) {
    let mut accepted = vec![false; loads.len()];
    let mut rounds = 0;
    while Instant::now() < target.until {
        rounds += 1;
        for (load, accepted) in loads.iter().zip(&mut accepted) {
            *accepted |= send(target, load).await;
        }
        sleep(PAUSE).await;
    }
    for (load, _) in loads.iter().zip(&accepted).filter(|(_, accepted)| !**accepted) {
        if rounds > FEW_ROUNDS || !send_again(target, load).await {
            target.judge.find(format!("{}: none was accepted", load.attack));
        }
    }
}

/// Sends a load until one of its requests is accepted, for a bounded time; whether one was.
async fn send_again(target: &Target, load: &Load) -> bool {
    let end = Instant::now() + AGAIN_MAX;
    while Instant::now() < end {
        if send(target, load).await {
            return true;
        }
        sleep(PAUSE).await;
    }
    false
}

/// Sends a load on a new connection; whether one of its requests was accepted.
async fn send(target: &Target, load: &Load) -> bool {
    let server = SocketAddr::from((target.spec.api_address(), Spec::API_PORT));
    let (config, first) = (config(), preface(Window::Open));
    let opening = open(server, &config, &first);
    let Ok(Ok(stream)) = timeout(CONNECT_TIMEOUT, opening).await else {
        target.judge.count(load.attack, "no connection");
        return false;
    };
    let (mut from, to) = tokio::io::split(stream);
    let (answered, answers_seen) = watch::channel(0);
    let mut is_accepted = false;
    let receive = async {
        let (mut answers, mut bytes) = (Answers::default(), vec![0; 16 << 10]);
        loop {
            let Ok(len @ 1..) = from.read(&mut bytes).await else { return "ended by the server" };
            let Some(found) = answers.take(&bytes[..len]) else { return "a frame is too long" };
            for answer in found {
                is_accepted |= answer == Answer::Accepted;
                target.judge.count(load.attack, name(answer));
                let is_of_request = answer != Answer::GoAway;
                answered.send_modify(|count| *count += u32::from(is_of_request));
            }
            if !load.is_held && *answered.borrow() >= load.requests {
                return "all answered";
            }
        }
    };
    let both = async {
        tokio::select! {
            end = receive => end,
            never = write_all(to, load, answers_seen) => match never {},
        }
    };
    let end = timeout(load.time, both).await.unwrap_or("left by the client");
    target.judge.count(load.attack, format!("connection {end}"));
    is_accepted
}

/// Writes the requests, as many at a time as the load allows. It never ends: who reads the answers knows when all is done.
async fn write_all(
    mut to: WriteHalf<TlsStream<TcpStream>>,
    load: &Load,
    mut answered: watch::Receiver<u32>,
) -> std::convert::Infallible {
    for number in 0..load.requests {
        let may_go = |answered: &u32| number.saturating_sub(*answered) < load.open_max;
        let Ok(_) = answered.wait_for(may_go).await else { break };
        let head = &load.heads[number as usize % load.heads.len()];
        if to.write_all(&request(head, number)).await.is_err() || to.flush().await.is_err() {
            break;
        }
    }
    std::future::pending().await
}

const fn name(answer: Answer) -> &'static str {
    match answer {
        Answer::Accepted => "200",
        Answer::OtherStatus => "another status",
        Answer::Reset => "reset",
        Answer::GoAway => "GOAWAY",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_long_and_fit_a_request() {
        for selector in selectors() {
            assert!((SELECTOR_LEN - 20..=SELECTOR_LEN).contains(&selector.len()));
            assert!(selector.bytes().all(|byte| byte.is_ascii_graphic()), "no escapes needed");
            assert!(head("GET", &selector, Some(&"t".repeat(2000))).len() < 64 << 10);
        }
    }
}
