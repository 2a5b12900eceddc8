//! Requests to the API server: extreme numbers in every field of every kind, and random and mutated bodies, patches, queries and paths.

use std::time::Duration;

use bytes::Bytes;
use http::request::Builder;
use http::{Method, Request};
use proto_api::schema::{self, ResourceDescriptor};
use proto_client::ClientError;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::Value as Json;
use tokio::time::{Instant, sleep, timeout};

use crate::generate::{self, NUMBERS};
use crate::manifests::{self, base};
use crate::{NAMESPACE, Target};

/// Objects that an attacker leaves of each resource before it removes them.
const OBJECTS_MAX: u32 = 40;
/// A request that takes longer is given up.
const PATIENCE: Duration = Duration::from_secs(10);

/// Resources that attackers may write: all that store objects, but for those whose change by an administrator ends a cluster by right.
fn resources() -> impl Iterator<Item = &'static ResourceDescriptor> {
    let spared = ["namespaces", "componentstatuses", "bindings"];
    schema::resources()
        .iter()
        .filter(move |r| r.verbs.contains(&"create") && !spared.contains(&r.plural))
}

/// Path of a resource's collection, in the attackers' namespace if it has namespaces.
fn collection(target: &Target, resource: &ResourceDescriptor) -> String {
    let version = api_version(target, resource);
    let root = if resource.group.is_empty() { "api" } else { "apis" };
    let within =
        if resource.namespaced { format!("/namespaces/{NAMESPACE}") } else { String::new() };
    format!("/{root}/{version}{within}/{}", resource.plural)
}

fn api_version(target: &Target, resource: &ResourceDescriptor) -> String {
    target.client.names().api_version(resource.group, resource.version)
}

/// Puts each extreme number into each integer of each kind: created, shown as a table, patched, deleted with a grace of that number.
pub async fn every_number(target: Target) {
    for resource in resources() {
        let api_version = api_version(&target, resource);
        let path = collection(&target, resource);
        let paths = generate::integer_paths(resource.message.get());
        for (count, field) in paths.iter().enumerate() {
            for number in NUMBERS {
                if Instant::now() >= target.until {
                    return;
                }
                let name = format!("{}{count}", manifests::PREFIX);
                let mut object = base(resource, &api_version, &name, target.client.names());
                generate::place(&mut object, field, number);
                let body = Bytes::from(object.to_string());
                send(&target, "number: create", Method::POST, &path, JSON, body.clone()).await;
                let at = format!("{path}/{name}");
                send(&target, "number: patch", Method::PATCH, &at, MERGE, body).await;
                let grace = format!("{at}?gracePeriodSeconds={number}");
                send(&target, "number: delete", Method::DELETE, &grace, JSON, Bytes::new()).await;
                force(&target, &at).await;
            }
        }
        let table = format!("{path}?limit=5&timeoutSeconds={}", i64::MAX);
        send(&target, "number: list", Method::GET, &table, JSON, Bytes::new()).await;
    }
    target.judge.count("number: every kind", "done");
}

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
/// Query of an apply that takes fields from their owners.
const MANAGER: &str = "?fieldManager=attack&force=true";

/// Deletes an attacker's object at once.
async fn force(target: &Target, path: &str) {
    let path = format!("{path}?gracePeriodSeconds=0");
    send(target, "clean-up", Method::DELETE, &path, JSON, Bytes::new()).await;
}

/// Sends random requests until the end.
pub async fn random(target: Target, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let all: Vec<&ResourceDescriptor> = resources().collect();
    while Instant::now() < target.until {
        let Some(resource) = all.choose(&mut random) else { return };
        match random.random_range(0..10) {
            0..4 => random_body(&target, &mut random, resource).await,
            _ => random_path(&target, &mut random, resource).await,
        }
    }
}

fn random_name(random: &mut StdRng) -> String {
    format!("{}{}", manifests::PREFIX, random.random_range(0..OBJECTS_MAX))
}

/// One object that is random, damaged, or not even Protobuf.
async fn random_body(target: &Target, random: &mut StdRng, resource: &ResourceDescriptor) {
    let (path, name) = (collection(target, resource), random_name(random));
    let api_version = api_version(target, resource);
    match random.random_range(0..5) {
        0 => {
            let valid = base(resource, &api_version, &name, target.client.names());
            let bytes = generate::mutate(random, valid.to_string().as_bytes());
            let kind = [JSON, "application/yaml"].choose(random).copied().unwrap_or(JSON);
            send(target, "mutated body", Method::POST, &path, kind, bytes.into()).await;
        }
        1 if random.random_bool(0.5) => {
            let valid = base(resource, &api_version, &name, target.client.names());
            mutated_protobuf(target, random, &path, &name, &valid).await;
        }
        1 => {
            let mut bytes = b"k8s\0".to_vec();
            let len = random.random_range(0..400);
            bytes.extend(generate::junk(random, len));
            let kind = target.client.names().protobuf_media_type();
            send(target, "junk Protobuf", Method::POST, &path, kind, bytes.into()).await;
        }
        2 => {
            let body = generate::deep(random, &api_version, resource.kind, &name).into();
            match [JSON, "application/yaml", APPLY].choose(random).copied().unwrap_or(APPLY) {
                APPLY => {
                    send(
                        target,
                        "deep apply",
                        Method::PATCH,
                        &format!("{path}/{name}{MANAGER}"),
                        APPLY,
                        body,
                    )
                    .await
                }
                kind => send(target, "deep body", Method::POST, &path, kind, body).await,
            }
        }
        _ => {
            let made = generate::object(random, resource, &api_version, &name);
            write(target, random, &path, &format!("{path}/{name}"), &made).await;
        }
    }
}

/// Creates an object, reads it as Protobuf, and writes that with some of its bytes changed.
async fn mutated_protobuf(
    target: &Target,
    random: &mut StdRng,
    path: &str,
    name: &str,
    valid: &Json,
) {
    let (at, media) = (format!("{path}/{name}"), target.client.names().protobuf_media_type());
    send(target, "valid object", Method::POST, path, JSON, valid.to_string().into()).await;
    let Ok(read) = Request::get(&at).header("accept", media).body(Bytes::new()) else { return };
    match timeout(PATIENCE, target.client.call(read)).await {
        Ok(Ok(answer)) => {
            let bytes = generate::mutate(random, &answer.body);
            send(target, "mutated Protobuf", Method::PUT, &at, media, bytes.into()).await;
        }
        _ => target.judge.count("mutated Protobuf", "no object to change"),
    }
}

/// What lies below an object; some of it exists for some kinds.
const SUBRESOURCES: [&str; 12] = [
    "status",
    "scale",
    "log",
    "exec",
    "attach",
    "proxy/a",
    "eviction",
    "token",
    "x",
    "portforward",
    "ephemeralcontainers",
    "binding",
];

/// One request that is random in its path, query or patch.
async fn random_path(target: &Target, random: &mut StdRng, resource: &ResourceDescriptor) {
    let path = collection(target, resource);
    let object = format!("{path}/{}", random_name(random));
    let query = generate::query(random);
    match random.random_range(0..6) {
        0 | 1 => {
            let (kind, body) = generate::patch(random);
            let at = format!("{object}{query}");
            send(target, "patch", Method::PATCH, &at, kind, body.into()).await;
        }
        2 => {
            let below = SUBRESOURCES.choose(random).copied().unwrap_or_default();
            let at = format!("{object}/{below}{query}");
            let methods = [Method::GET, Method::POST, Method::PUT];
            let method = methods.choose(random).cloned().unwrap_or(Method::GET);
            send(target, "subresource", method, &at, JSON, Bytes::from_static(b"{}")).await;
        }
        3 => {
            let at = format!("{object}{query}");
            send(target, "delete", Method::DELETE, &at, JSON, Bytes::new()).await;
        }
        4 => {
            let seconds = NUMBERS.choose(random).copied().unwrap_or(1);
            watch(target, &format!("{path}?watch=1&timeoutSeconds={seconds}")).await;
        }
        _ => {
            let at = format!("{path}{query}");
            send(target, "list", Method::GET, &at, JSON, Bytes::new()).await;
        }
    }
}

async fn write(target: &Target, random: &mut StdRng, path: &str, object: &str, made: &Json) {
    let body = Bytes::from(made.to_string());
    match random.random_range(0..4) {
        0 => send(target, "random object: update", Method::PUT, object, JSON, body).await,
        1 => {
            let at = format!("{path}?dryRun=All");
            send(target, "random object: dry run", Method::POST, &at, JSON, body).await;
        }
        2 => {
            let at = format!("{object}{MANAGER}");
            send(target, "random object: apply", Method::PATCH, &at, APPLY, body).await;
        }
        _ => send(target, "random object: create", Method::POST, path, JSON, body).await,
    }
}

/// The handshake of a WebSocket with these subprotocols.
pub fn websocket(path: &str, protocols: &str) -> Builder {
    Request::get(path)
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "AQIDBAUGBwgJCgsMDQ4PEA==")
        .header("sec-websocket-protocol", protocols)
}

/// Opens a watch and leaves it after a moment.
async fn watch(target: &Target, path: &str) {
    let Ok(request) = Request::get(path).body(Bytes::new()) else { return };
    let opened = timeout(Duration::from_millis(300), target.client.open(request)).await;
    let answer = match opened {
        Ok(Ok(_)) => "open".to_owned(),
        Ok(Err(error)) => describe(&error),
        Err(_) => "quiet".to_owned(),
    };
    target.judge.count("watch", answer);
}

/// Sends one request and counts its answer by code. A connection that breaks is worth a look when nothing else explains it, so it is counted apart.
async fn send(
    target: &Target,
    attack: &'static str,
    method: Method,
    path: &str,
    kind: &str,
    body: Bytes,
) {
    let request = Request::builder().method(method).uri(path).header("content-type", kind);
    let Ok(request) = request.body(body) else { return target.judge.count(attack, "not a URI") };
    let answer = match timeout(PATIENCE, target.client.call(request)).await {
        Ok(Ok(answer)) => {
            target.judge.read(attack, &answer.body);
            answer.status.to_string()
        }
        Ok(Err(error)) => {
            if error.code() == Some(500) {
                target.judge.find(format!("{attack}: 500: {error}"));
            }
            describe(&error)
        }
        Err(_) => "no answer".to_owned(),
    };
    if answer == "broken" {
        // The server may have gone: the judge says so; do not add to it.
        sleep(Duration::from_millis(50)).await;
    }
    target.judge.count(attack, answer);
}

fn describe(error: &ClientError) -> String {
    match (error, error.code()) {
        (_, Some(code)) => code.to_string(),
        (ClientError::Deadline { .. }, _) => "no answer".to_owned(),
        _ => "broken".to_owned(),
    }
}
