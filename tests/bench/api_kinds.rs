//! Server-side apply, custom objects, and what each more definition costs the API server.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use proto_api::Collection;
use proto_api::apps::v1::Deployment;
use proto_client::dynamic::Dynamic;
use proto_client::{Api, Client, Patch, WriteParams, request};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::api_load::CLIENTS;
use crate::api_server::Served;
use crate::figures::{Figure, Group, KUBERNETES, Unit};
use crate::footprint::Memory;

const APPLIES: usize = 6_400;
const SERIAL_APPLIES: usize = 500;
const CUSTOM_OBJECTS: usize = 10_000;
const DEFINITIONS: usize = 500;
const DEFINITIONS_OF_A_GROUP: usize = 10;
const DEFINITION_CLIENTS: usize = 8;
const LISTS: usize = 20;
/// Until a server has done what it does after definitions were made.
const SETTLE: Duration = Duration::from_secs(10);
/// The most that one more definition may cost.
const DEFINITION_BUDGET_KB: usize = 200;

/// All of it.
pub async fn measure(server: &Served) -> Result<()> {
    applies(server).await?;
    custom_objects(server).await?;
    definitions(server).await
}

fn tell(figure: Figure, server: &Served) -> Result<()> {
    Ok(figure.side(server.side).beside(KUBERNETES).tell()?)
}

/// A Deployment of two containers.
fn deployment(name: &str, round: usize) -> Value {
    let container = |name: &str| {
        json!({"name": name, "image": format!("registry.example.com/{name}:1"), "args": ["--serve", "--port=8080"],
            "ports": [{"containerPort": 8080, "name": "http"}],
            "env": [{"name": "ROUND", "value": round.to_string()}, {"name": "MODE", "value": "production"}],
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
            "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 5}})
    };
    let labels = json!({"app": name, "tier": "backend"});
    json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default", "labels": labels, "annotations": {"example.com/round": round.to_string()}},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container("web"), container("sidecar")]}}}})
}

/// Applies of one client, and of many: each changes an annotation and two variables of an object of its own.
async fn applies(server: &Served) -> Result<()> {
    let params = WriteParams { field_manager: Some("bench".to_owned()), ..Default::default() };
    let apply = async |api: &Api<Deployment>, name: &str, round| {
        api.patch(name, &Patch::Apply(deployment(name, round)), &params).await
    };
    let api = server.client.within::<Deployment>("default");
    apply(&api, "serial", 0).await?;
    let mut samples = Vec::new();
    for round in 1..=SERIAL_APPLIES {
        let began = Instant::now();
        apply(&api, "serial", round).await?;
        samples.push(began.elapsed());
    }
    let what = "server-side apply of a Deployment, one client";
    tell(Figure::of_times(Group::Api, what, Unit::Millis, samples), server)?;
    let began = Instant::now();
    by_clients(&server.client, CLIENTS, move |client, number| async move {
        let api = client.within::<Deployment>("default");
        let params = WriteParams { field_manager: Some("bench".to_owned()), ..Default::default() };
        let name = format!("d{number}");
        for round in 0..APPLIES / CLIENTS {
            api.patch(&name, &Patch::Apply(deployment(&name, round)), &params).await?;
        }
        Ok(())
    })
    .await?;
    let rate = APPLIES as f64 / began.elapsed().as_secs_f64();
    let what = "server-side applies of Deployments";
    tell(Figure::new(Group::Api, what, Unit::PerSecond, rate).at(CLIENTS, "clients"), server)
}

/// Does the same by so many clients at one time, each with a connection of its own.
async fn by_clients<Work>(
    client: &Client,
    count: usize,
    work: impl Fn(Client, usize) -> Work,
) -> Result<()>
where
    Work: Future<Output = Result<()>> + Send + 'static,
{
    let mut clients = JoinSet::new();
    for number in 0..count {
        clients.spawn(work(client.separate()?, number));
    }
    while let Some(done) = clients.join_next().await {
        done??;
    }
    Ok(())
}

/// The definition of a kind in the group `group`, with a schema of some size.
fn definition(group: &str, plural: &str) -> Value {
    let text = json!({"type": "string", "maxLength": 253});
    let condition = json!({"type": "object", "required": ["type", "status"],
        "properties": {"type": text, "status": text, "reason": text, "message": {"type": "string"}}});
    let spec = json!({"type": "object", "required": ["size"], "properties": {
        "size": {"type": "integer", "minimum": 1, "maximum": 100}, "mode": {"type": "string", "enum": ["Fast", "Safe"], "default": "Safe"},
        "owner": text, "labels": {"type": "object", "additionalProperties": text},
        "parts": {"type": "array", "maxItems": 64, "items": {"type": "object", "properties": {"name": text, "weight": {"type": "integer"}}}}}});
    let status = json!({"type": "object", "properties": {"conditions": {"type": "array", "items": condition}}});
    let schema = json!({"type": "object", "properties": {"spec": spec, "status": status}});
    let kind = format!("Kind{plural}");
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": format!("{plural}.{group}")},
        "spec": {"group": group, "scope": "Namespaced", "names": {"plural": plural, "kind": kind},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}}, "schema": {"openAPIV3Schema": schema}}]}})
}

fn collection(group: &str, plural: &str, namespace: Option<&str>) -> Collection {
    Collection {
        group: group.to_owned(),
        version: "v1".to_owned(),
        plural: plural.to_owned(),
        namespace: namespace.map(str::to_owned),
    }
}

/// Makes a definition.
async fn define(client: &Client, group: &str, plural: &str) -> Result<()> {
    let definitions = collection("apiextensions.k8s.io", "customresourcedefinitions", None);
    let definitions = Dynamic::new(client.clone(), definitions);
    definitions.create(&definition(group, plural), &WriteParams::default()).await?;
    Ok(())
}

/// Waits until objects of a kind can be listed.
async fn wait_served(client: &Client, group: &str, plural: &str) -> Result<()> {
    let path = collection(group, plural, None).path();
    for _ in 0..60_000 {
        if client.call(request::get(format!("{path}?limit=1"))).await.is_ok_and(|a| a.status == 200)
        {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    anyhow::bail!("{plural}.{group} is not served after two minutes")
}

async fn custom_objects(server: &Served) -> Result<()> {
    let (group, plural) = ("bench.example.com", "gadgets");
    define(&server.client, group, plural).await?;
    wait_served(&server.client, group, plural).await?;
    let began = Instant::now();
    by_clients(&server.client, CLIENTS, move |client, number| async move {
        let objects = Dynamic::new(client, collection(group, plural, Some("default")));
        for n in (number..CUSTOM_OBJECTS).step_by(CLIENTS) {
            let object = json!({"apiVersion": format!("{group}/v1"), "kind": "Kindgadgets", "metadata": {"name": format!("g{n}")},
                "spec": {"size": n % 100 + 1, "owner": "bench", "labels": {"a": "b"}, "parts": [{"name": "x", "weight": 1}, {"name": "y", "weight": 2}]}});
            objects.create(&object, &WriteParams::default()).await?;
        }
        Ok(())
    })
    .await?;
    let rate = CUSTOM_OBJECTS as f64 / began.elapsed().as_secs_f64();
    let what = "durable creates of custom objects";
    tell(Figure::new(Group::Api, what, Unit::PerSecond, rate).at(CLIENTS, "clients"), server)?;
    for (what, query) in [
        ("list of 10,000 custom objects", "?resourceVersion=0"),
        ("list of 500 of 10,000 custom objects", "?limit=500"),
    ] {
        let path = format!("{}{query}", collection(group, plural, Some("default")).path());
        let mut samples = Vec::new();
        for _ in 0..LISTS {
            let began = Instant::now();
            let answer = server.client.call(request::get(path.clone())).await?;
            samples.push(began.elapsed());
            ensure!(answer.status == 200, "{path}: status {}", answer.status);
        }
        tell(Figure::of_times(Group::Api, what, Unit::Millis, samples), server)?;
    }
    Ok(())
}

/// Registers many kinds: until the last is served, and the memory that they cost.
async fn definitions(server: &Served) -> Result<()> {
    let pid = i32::try_from(server.process.id().context("the server has ended")?)?;
    let (before, _) = Memory::read(pid)?.megabytes();
    let began = Instant::now();
    by_clients(&server.client, DEFINITION_CLIENTS, |client, number| async move {
        for n in (number..DEFINITIONS).step_by(DEFINITION_CLIENTS) {
            let group = format!("g{}.example.com", n / DEFINITIONS_OF_A_GROUP);
            let plural = format!("things{}", n % DEFINITIONS_OF_A_GROUP);
            define(&client, &group, &plural).await?;
            wait_served(&client, &group, &plural).await?;
        }
        Ok(())
    })
    .await?;
    let figure = Figure::of_times(
        Group::Api,
        "definitions created -> all served",
        Unit::Millis,
        [began.elapsed()],
    );
    tell(figure.at(DEFINITIONS, "definitions"), server)?;
    tokio::time::sleep(SETTLE).await;
    let (after, _) = Memory::read(pid)?.megabytes();
    let figure =
        Figure::new(Group::Api, "PSS that definitions added", Unit::Megabytes, after - before);
    let budget = (DEFINITIONS * DEFINITION_BUDGET_KB) as f64 / 1000.0;
    tell(figure.at(DEFINITIONS, "definitions").budget(budget), server)
}
