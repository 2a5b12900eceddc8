//! Cases of `kube`, the client of Rust. One line a case: its name, ok or failed, and the reason, between tabs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, ServiceAccount};
use k8s_openapi::api::events::v1::Event as StoredEvent;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    Api, AttachParams, DeleteParams, DynamicObject, EvictParams, ListParams, Patch, PatchParams,
    PostParams, Preconditions, Resource, ResourceExt as _, WatchEvent, WatchParams,
};
use kube::core::PartialObjectMeta;
use kube::core::crd::CustomResourceExt as _;
use kube::runtime::controller::{Action, Controller};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::finalizer::{Event as Finalized, finalizer};
use kube::runtime::reflector::{ObjectRef, reflector, store};
use kube::runtime::wait::{await_condition, conditions};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, CustomResource, Discovery, discovery};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Time of one case.
const LIMIT: Duration = Duration::from_secs(60);

/// A custom kind, whose definition is made of these types.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "people.example", version = "v1", kind = "Lamp", namespaced, status = "LampStatus")]
#[kube(scale(spec_replicas_path = ".spec.watts", status_replicas_path = ".status.watts"))]
#[kube(
    shortname = "lmp",
    printcolumn(name = "Watts", type_ = "integer", json_path = ".spec.watts")
)]
struct LampSpec {
    watts: i32,
    #[serde(default = "white")]
    color: String,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
struct LampStatus {
    watts: i32,
}

fn white() -> String {
    "white".to_owned()
}

/// What the cases share.
#[derive(Clone)]
struct Context {
    client: Client,
    namespace: String,
    image: String,
}

impl Context {
    fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn pod(&self, name: &str, command: &[&str]) -> Pod {
        let container =
            json!({"name": "c", "image": self.image, "command": command, "stdin": true});
        let spec = json!({"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 1});
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).expect("a pod")
    }

    async fn run_pod(&self, name: &str, command: &[&str]) -> Result<Api<Pod>> {
        let pods: Api<Pod> = self.api();
        pods.create(&PostParams::default(), &self.pod(name, command)).await?;
        await_condition(pods.clone(), name, conditions::is_pod_running()).await?;
        Ok(pods)
    }
}

fn config_map(name: &str, data: &[(&str, &str)]) -> ConfigMap {
    let pairs = data.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    let mut map = ConfigMap { data: Some(pairs.collect()), ..ConfigMap::default() };
    map.metadata.name = Some(name.to_owned());
    map.metadata.labels = Some(BTreeMap::from([("of".to_owned(), "rust".to_owned())]));
    map
}

/// The code and reason with which the server has refused.
fn refusal<T>(result: kube::Result<T>) -> Result<(u16, String)> {
    match result {
        Err(kube::Error::Api(status)) => Ok((status.code, status.reason)),
        Err(error) => Err(error.into()),
        Ok(_) => bail!("the call was not refused"),
    }
}

async fn version(context: Context) -> Result<()> {
    let info = context.client.apiserver_version().await?;
    ensure!(info.minor.starts_with("25"), "{info:?}");
    Ok(())
}

async fn create_get_list(context: Context) -> Result<()> {
    let maps: Api<ConfigMap> = context.api();
    let made = maps.create(&PostParams::default(), &config_map("a", &[("k", "v")])).await?;
    ensure!(made.uid().is_some() && made.managed_fields()[0].manager.is_some());
    ensure!(maps.get("a").await?.data == made.data);
    ensure!(maps.get_opt("none").await?.is_none());
    let listed = maps.list(&ListParams::default().labels("of=rust").limit(1)).await?;
    ensure!(listed.items.len() == 1 && listed.types.kind == "ConfigMapList");
    let all: Api<ConfigMap> = Api::all(context.client);
    ensure!(!all.list(&ListParams::default().fields("metadata.name=a")).await?.items.is_empty());
    Ok(())
}

async fn replace_and_conflict(context: Context) -> Result<()> {
    let maps: Api<ConfigMap> = context.api();
    let old = maps.get("a").await?;
    let mut new = old.clone();
    new.data = Some(BTreeMap::from([("k".to_owned(), "w".to_owned())]));
    maps.replace("a", &PostParams::default(), &new).await?;
    let refused = refusal(maps.replace("a", &PostParams::default(), &old).await)?;
    ensure!(refused == (409, "Conflict".to_owned()), "{refused:?}");
    Ok(())
}

async fn patches(context: Context) -> Result<()> {
    let maps: Api<ConfigMap> = context.api();
    let params = PatchParams::default();
    let value = |map: &ConfigMap, key: &str| map.data.as_ref().and_then(|d| d.get(key).cloned());
    let merged = maps.patch("a", &params, &Patch::Merge(json!({"data": {"m": "1"}}))).await?;
    ensure!(value(&merged, "m").as_deref() == Some("1"));
    let body = json!({"data": {"s": "2", "m": null}});
    let merged = maps.patch("a", &params, &Patch::Strategic(body)).await?;
    ensure!(value(&merged, "s").as_deref() == Some("2") && value(&merged, "m").is_none());
    let body = json!({"metadata": {"annotations": {"x": "y"}}});
    let metadata = maps.patch_metadata("a", &params, &Patch::Merge(body)).await?;
    ensure!(metadata.annotations()["x"] == "y");
    let strict =
        PatchParams { field_validation: Some(kube::api::ValidationDirective::Strict), ..params };
    let refused = refusal(maps.patch("a", &strict, &Patch::Merge(json!({"dota": 1}))).await)?;
    ensure!(refused == (422, "Invalid".to_owned()), "{refused:?}");
    Ok(())
}

async fn apply_and_conflict(context: Context) -> Result<()> {
    let maps: Api<ConfigMap> = context.api();
    let apply = |value: &'static str, params: PatchParams| {
        let maps = maps.clone();
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": value}});
        async move { maps.patch("applied", &params, &Patch::Apply(body)).await }
    };
    apply("v", PatchParams::apply("one")).await?;
    let refused = refusal(apply("w", PatchParams::apply("two")).await)?;
    ensure!(refused == (409, "Conflict".to_owned()), "{refused:?}");
    let forced = apply("w", PatchParams::apply("two").force()).await?;
    ensure!(forced.managed_fields().len() == 1);
    Ok(())
}

async fn entries(context: Context) -> Result<()> {
    let maps: Api<ConfigMap> = context.api();
    let entry = maps.entry("entry").await?;
    let mut entry = entry.or_insert(|| config_map("entry", &[("k", "v")]));
    entry.commit(&PostParams::default()).await?;
    entry.get_mut().data = None;
    entry.commit(&PostParams::default()).await?;
    ensure!(maps.get("entry").await?.data.is_none());
    Ok(())
}

async fn dry_run(context: Context) -> Result<()> {
    let maps: Api<ConfigMap> = context.api();
    let params = PostParams { dry_run: true, field_manager: None };
    maps.create(&params, &config_map("dry", &[])).await?;
    ensure!(maps.get_opt("dry").await?.is_none());
    Ok(())
}

async fn metadata_only(context: Context) -> Result<()> {
    let maps: Api<ConfigMap> = context.api();
    let one = maps.get_metadata("a").await?;
    ensure!(one.labels()["of"] == "rust");
    let listed = maps.list_metadata(&ListParams::default().labels("of=rust")).await?;
    ensure!(listed.items.len() == 2, "{}", listed.items.len());
    let metadata: Api<PartialObjectMeta<ConfigMap>> = context.api();
    let watched = watcher(metadata, watcher::Config::default().labels("of=rust"));
    let mut events = Box::pin(watched.applied_objects());
    events.try_next().await?.context("an object")?;
    Ok(())
}

async fn raw_watch(context: Context) -> Result<()> {
    let maps: Api<ConfigMap> = context.api();
    let start =
        maps.list(&ListParams::default()).await?.metadata.resource_version.context("a version")?;
    let mut events = maps.watch(&WatchParams::default().timeout(20), &start).await?.boxed();
    maps.create(&PostParams::default(), &config_map("seen", &[])).await?;
    maps.delete("seen", &DeleteParams::default()).await?;
    let mut seen = Vec::new();
    while seen.len() < 2 {
        match events.try_next().await?.context("an event")? {
            WatchEvent::Added(map) => seen.push(("added", map.name_any())),
            WatchEvent::Deleted(map) => seen.push(("deleted", map.name_any())),
            _ => {}
        }
    }
    ensure!(seen == [("added", "seen".to_owned()), ("deleted", "seen".to_owned())], "{seen:?}");
    Ok(())
}

async fn reflected_store(context: Context) -> Result<()> {
    let maps: Api<ConfigMap> = context.api();
    let (reader, writer) = store();
    let config = watcher::Config::default().labels("of=rust").page_size(1);
    let stream =
        reflector(writer, watcher(maps.clone(), config)).default_backoff().touched_objects();
    let task = tokio::spawn(stream.for_each(|_| async {}));
    reader.wait_until_ready().await?;
    let reference = ObjectRef::new("a").within(&context.namespace);
    ensure!(reader.get(&reference).is_some());
    maps.create(&PostParams::default(), &config_map("reflected", &[])).await?;
    let reference = ObjectRef::new("reflected").within(&context.namespace);
    while reader.get(&reference).is_none() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    task.abort();
    Ok(())
}

async fn discovered_groups(context: Context) -> Result<()> {
    let all = Discovery::new(context.client.clone()).run().await?;
    ensure!(all.has_group("apps") && all.groups().count() > 10);
    let aggregated = Discovery::new(context.client.clone()).run_aggregated().await;
    let group = discovery::group(&context.client, "batch").await?;
    ensure!(group.recommended_kind("Job").is_some());
    let count = aggregated.map(|all| all.groups().count());
    ensure!(count.as_ref().is_ok_and(|count| *count > 10), "aggregated discovery: {count:?}");
    Ok(())
}

async fn every_kind_is_listed(context: Context) -> Result<()> {
    let all = Discovery::new(context.client.clone()).run().await?;
    let mut count = 0;
    for group in all.groups() {
        for (resource, capabilities) in group.recommended_resources() {
            if capabilities.supports_operation(discovery::verbs::LIST) {
                let api: Api<DynamicObject> = Api::all_with(context.client.clone(), &resource);
                api.list(&ListParams::default()).await.with_context(|| resource.plural.clone())?;
                count += 1;
            }
        }
    }
    ensure!(count > 40, "{count} kinds");
    Ok(())
}

async fn scale(context: Context) -> Result<()> {
    let deployments: Api<Deployment> = context.api();
    let labels = json!({"app": "rust"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": context.image, "command": ["sleep", "1000"]}]}});
    let spec = json!({"replicas": 0, "selector": {"matchLabels": labels}, "template": template});
    let body = serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": spec}))?;
    deployments.create(&PostParams::default(), &body).await?;
    let patch = json!({"spec": {"replicas": 1}});
    let scale =
        deployments.patch_scale("d", &PatchParams::default(), &Patch::Merge(&patch)).await?;
    ensure!(scale.spec.and_then(|spec| spec.replicas) == Some(1));
    await_condition(deployments.clone(), "d", conditions::is_deployment_completed()).await?;
    ensure!(deployments.get_status("d").await?.status.and_then(|s| s.ready_replicas) == Some(1));
    Ok(())
}

async fn scale_is_applied(context: Context) -> Result<()> {
    let deployments: Api<Deployment> = context.api();
    let body = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": {"replicas": 0}});
    let params = PatchParams::apply("scaler").force();
    let scale = deployments.patch_scale("d", &params, &Patch::Apply(&body)).await?;
    ensure!(scale.spec.and_then(|spec| spec.replicas).unwrap_or_default() == 0);
    let managers = deployments.get("d").await?.managed_fields().to_vec();
    ensure!(managers.iter().any(|m| m.subresource.as_deref() == Some("scale")), "{managers:?}");
    Ok(())
}

async fn exec_and_logs(context: Context) -> Result<()> {
    let pods = context.run_pod("p", &["sh", "-c", "echo line; sleep 1000"]).await?;
    let params = AttachParams::default().stdin(true);
    let script = "read x; echo out $x; echo err $x >&2; exit 7";
    let mut process = pods.exec("p", ["sh", "-c", script], &params).await?;
    let mut input = process.stdin().context("an input")?;
    let (mut out, mut error) =
        (process.stdout().context("output")?, process.stderr().context("errors")?);
    let status = process.take_status().context("a status")?;
    input.write_all(b"data\n").await?;
    let (mut written, mut complained) = (String::new(), String::new());
    tokio::try_join!(out.read_to_string(&mut written), error.read_to_string(&mut complained))?;
    ensure!(written == "out data\n" && complained == "err data\n", "{written} {complained}");
    let status = status.await.context("a status")?;
    ensure!(status.reason.as_deref() == Some("NonZeroExitCode"), "{status:?}");
    ensure!(pods.logs("p", &Default::default()).await? == "line\n");
    Ok(())
}

async fn forwarded_port(context: Context) -> Result<()> {
    let pods = context
        .run_pod("web", &["sh", "-c", "while true; do echo yes | nc -l -p 8080; done"])
        .await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut forwarder = pods.portforward("web", &[8080]).await?;
    let mut stream = forwarder.take_stream(8080).context("a stream")?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).await?;
    ensure!(&answer == b"yes\n");
    drop(stream);
    pods.evict("web", &EvictParams::default()).await?;
    Ok(())
}

async fn ephemeral_containers(context: Context) -> Result<()> {
    let pods: Api<Pod> = context.api();
    let container = json!({"name": "debug", "image": context.image, "command": ["sleep", "1000"]});
    let patch = json!({"spec": {"ephemeralContainers": [container]}});
    let params = PatchParams::default();
    let patched = pods.patch_ephemeral_containers("p", &params, &Patch::Strategic(patch)).await?;
    ensure!(
        patched.spec.and_then(|spec| spec.ephemeral_containers).is_some_and(|all| all.len() == 1)
    );
    Ok(())
}

async fn service_account_tokens(context: Context) -> Result<()> {
    let accounts: Api<ServiceAccount> = context.api();
    let request: TokenRequest =
        serde_json::from_value(json!({"spec": {"audiences": [], "expirationSeconds": 600}}))?;
    let request =
        accounts.create_token_request("default", &PostParams::default(), &request).await?;
    ensure!(!request.status.context("a status")?.token.is_empty());
    Ok(())
}

async fn recorded_events(context: Context) -> Result<()> {
    let reporter = Reporter { controller: "cases".to_owned(), instance: Some("one".to_owned()) };
    let recorder = Recorder::new(context.client.clone(), reporter);
    let map = context.api::<ConfigMap>().get("a").await?;
    let event = Event {
        type_: EventType::Normal,
        reason: "Tried".to_owned(),
        note: Some("a text".to_owned()),
        action: "Try".to_owned(),
        secondary: None,
    };
    for _ in 0..2 {
        recorder.publish(&event, &map.object_ref(&())).await?;
    }
    let events: Api<StoredEvent> = context.api();
    let listed = events.list(&ListParams::default().fields("reason=Tried")).await?;
    let series =
        listed.items.first().and_then(|event| event.series.as_ref()).map(|series| series.count);
    ensure!(listed.items.len() == 1 && series == Some(2), "{:?}", listed.items);
    Ok(())
}

async fn nodes(context: Context) -> Result<()> {
    let nodes: Api<Node> = Api::all(context.client);
    let name = nodes.list(&ListParams::default()).await?.items[0].name_any();
    nodes.cordon(&name).await?;
    ensure!(nodes.get(&name).await?.spec.and_then(|spec| spec.unschedulable) == Some(true));
    nodes.uncordon(&name).await?;
    Ok(())
}

async fn derived_definition(context: Context) -> Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(context.client.clone());
    let params = PatchParams::apply("cases").force();
    definitions.patch("lamps.people.example", &params, &Patch::Apply(Lamp::crd())).await?;
    await_condition(definitions, "lamps.people.example", conditions::is_crd_established()).await?;
    let lamps: Api<Lamp> = context.api();
    let body = json!({"apiVersion": "people.example/v1", "kind": "Lamp", "spec": {"watts": 5}});
    let lamp = lamps.patch("l", &params, &Patch::Apply(body)).await?;
    ensure!(lamp.spec.color == "white", "the default of the schema");
    let body = json!({"apiVersion": "people.example/v1", "kind": "Lamp", "status": {"watts": 4}});
    let lamp = lamps.patch_status("l", &PatchParams::apply("status"), &Patch::Apply(body)).await?;
    ensure!(lamp.status.is_some_and(|status| status.watts == 4));
    let scale = lamps.get_scale("l").await?;
    ensure!(scale.status.map(|status| status.replicas) == Some(4));
    let refused = refusal(
        lamps
            .patch("l", &PatchParams::default(), &Patch::Merge(json!({"spec": {"watts": "x"}})))
            .await,
    )?;
    ensure!(refused == (422, "Invalid".to_owned()), "{refused:?}");
    Ok(())
}

async fn reconcile(
    lamp: Arc<Lamp>,
    context: Arc<Context>,
) -> Result<Action, kube::runtime::finalizer::Error<kube::Error>> {
    let lamps: Api<Lamp> = context.api();
    let maps: Api<ConfigMap> = context.api();
    finalizer(&lamps, "people.example/lamp", lamp, |event| async {
        match event {
            Finalized::Apply(lamp) => {
                let owner = lamp.controller_owner_ref(&());
                let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"ownerReferences": [owner]}, "data": {"watts": lamp.spec.watts.to_string()}});
                let name = format!("of-{}", lamp.name_any());
                maps.patch(&name, &PatchParams::apply("controller").force(), &Patch::Apply(body)).await?;
                let status = json!({"status": {"watts": lamp.spec.watts}});
                lamps.patch_status(&lamp.name_any(), &PatchParams::default(), &Patch::Merge(status)).await?;
            }
            Finalized::Cleanup(lamp) => {
                let name = format!("cleared-{}", lamp.name_any());
                maps.create(&PostParams::default(), &config_map(&name, &[])).await?;
            }
        }
        Ok(Action::await_change())
    })
    .await
}

async fn controller(context: Context) -> Result<()> {
    let (lamps, maps): (Api<Lamp>, Api<ConfigMap>) = (context.api(), context.api());
    let running = Controller::new(lamps.clone(), watcher::Config::default())
        .owns(maps.clone(), watcher::Config::default())
        .run(
            reconcile,
            |_, _, _| Action::requeue(Duration::from_millis(200)),
            Arc::new(context.clone()),
        )
        .for_each(|_| async {});
    let task = tokio::spawn(running);
    let has_watts = |watts: &'static str| {
        move |map: Option<&ConfigMap>| {
            map.and_then(|map| map.data.as_ref())
                .is_some_and(|data| data.get("watts").is_some_and(|w| w == watts))
        }
    };
    await_condition(maps.clone(), "of-l", has_watts("5")).await?;
    lamps.patch("l", &PatchParams::default(), &Patch::Merge(json!({"spec": {"watts": 7}}))).await?;
    await_condition(maps.clone(), "of-l", has_watts("7")).await?;
    // What it owns comes back, and goes with its owner, whose finalizer is heeded.
    maps.delete("of-l", &DeleteParams::default()).await?;
    await_condition(maps.clone(), "of-l", has_watts("7")).await?;
    let uid = lamps.get("l").await?.uid().context("a uid")?;
    let child = maps.get("of-l").await?.uid().context("a uid")?;
    lamps.delete("l", &DeleteParams::background()).await?;
    await_condition(lamps.clone(), "l", conditions::is_deleted(&uid)).await?;
    await_condition(maps.clone(), "of-l", conditions::is_deleted(&child)).await?;
    maps.get("cleared-l").await?;
    task.abort();
    Ok(())
}

async fn deletions(context: Context) -> Result<()> {
    let maps: Api<ConfigMap> = context.api();
    let wrong = Preconditions { uid: Some("other".to_owned()), resource_version: None };
    let refused = refusal(maps.delete("a", &DeleteParams::default().preconditions(wrong)).await)?;
    ensure!(refused == (409, "Conflict".to_owned()), "{refused:?}");
    maps.delete_collection(&DeleteParams::default(), &ListParams::default().labels("of=rust"))
        .await?;
    ensure!(maps.list(&ListParams::default().labels("of=rust")).await?.items.is_empty());
    let definitions: Api<CustomResourceDefinition> = Api::all(context.client.clone());
    let uid = definitions.get("lamps.people.example").await?.uid().context("a uid")?;
    definitions.delete("lamps.people.example", &DeleteParams::default()).await?;
    await_condition(definitions, "lamps.people.example", conditions::is_deleted(&uid)).await?;
    Ok(())
}

macro_rules! cases {
    ($context:expr; $($case:ident),* $(,)?) => {
        $( report(stringify!($case), tokio::spawn(tokio::time::timeout(LIMIT, $case($context.clone())))).await; )*
    };
}

async fn report(
    name: &str,
    case: tokio::task::JoinHandle<Result<Result<()>, tokio::time::error::Elapsed>>,
) {
    let name = name.replace('_', "-");
    let reason = match case.await {
        Ok(Ok(Ok(()))) => return println!("{name}\tok\t"),
        Ok(Ok(Err(error))) => format!("{error:#}"),
        Ok(Err(_)) => format!("did not end in {} s", LIMIT.as_secs()),
        Err(error) => error.to_string(),
    };
    let reason: String = reason.replace(['\t', '\n'], " ").chars().take(300).collect();
    println!("{name}\tfailed\t{reason}");
}

#[tokio::main]
async fn main() -> Result<()> {
    let variable = |name: &str| std::env::var(name).with_context(|| name.to_owned());
    let context = Context {
        client: Client::try_default().await?,
        namespace: variable("NAMESPACE")?,
        image: variable("IMAGE")?,
    };
    cases!(context;
        version, create_get_list, replace_and_conflict, patches, apply_and_conflict, entries, dry_run, metadata_only, raw_watch, reflected_store,
        discovered_groups, every_kind_is_listed, scale, scale_is_applied, exec_and_logs, forwarded_port, ephemeral_containers,
        service_account_tokens, recorded_events, nodes, derived_definition, controller, deletions,
    );
    Ok(())
}
