//! The APIServices of what this server serves itself: it makes those of built-in groups and of custom kinds, and keeps them as they should be.
//!
//! They have a label that says so. An APIService without it is its author's, and is left alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_schema::update::Subresource;
use apiserver_schema::{Kind, Map, Object, Value};
use apiserver_store::Watch;
use futures_util::{StreamExt as _, stream};
use proto_api::schema;
use tokio_util::sync::CancellationToken;

use crate::aggregation::priorities::{CUSTOM, Priority, of_built_in};
use crate::aggregation::{GROUP, RESOURCE, availability};
use crate::definitions;
use crate::definitions::strategy::DefinitionCondition;
use crate::internal_requests::{agent, call, request};
use crate::options::{DeleteOptions, Effects};
use crate::reconcile_loop::{self, WRITES_MAX};
use crate::record::StoredObject;
use crate::request::{Query, Verb};
use crate::server::Server;
use crate::status::ApiError;
use crate::times::{now, timestamp};
use crate::verbs::{UpdateAttempt, commit_update, create_object, delete_object};

/// Whose an APIService is, in the value of its label.
const ON_START: &str = "onstart";
const ALWAYS: &str = "true";

/// A local APIService as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DesiredApiService {
    group: String,
    version: String,
    priority: Priority,
    managed: &'static str,
}

/// Keeps the local APIServices until `stopping` is cancelled.
pub async fn run(server: Arc<Server>, stopping: CancellationToken) {
    let server = &*server;
    let (watch, reconcile) = (|| changes(server), || Box::pin(reconcile(server)));
    reconcile_loop::run("local APIServices", stopping, watch, reconcile, || ()).await;
}

/// Changes of APIServices and definitions from now on; empty if they cannot be watched.
fn changes(server: &Server) -> Vec<Watch<StoredObject>> {
    let of = [(GROUP, RESOURCE), (definitions::GROUP, definitions::RESOURCE)];
    let kinds = of.into_iter().filter_map(|(group, resource)| server.kind(group, resource));
    reconcile_loop::watch_kinds(server, kinds)
}

/// Makes, corrects and deletes local APIServices. Where all is as it should be, nothing is written. No state is put back meanwhile.
///
/// # Errors
/// The first write that failed; the others are done.
pub async fn reconcile(server: &Server) -> Result<(), ApiError> {
    let Some(kind) = server.kind(GROUP, RESOURCE) else { return Ok(()) };
    let _held = server.hold_state().await;
    let (label, wanted) = (managed_label(server), list_desired(server));
    let label = label.as_str();
    let mut writes = Vec::with_capacity(wanted.len());
    for (name, of) in &wanted {
        writes.push(async move {
            match server.find(kind, "", name) {
                None => create(server, kind, name, of, label).await,
                Some(record) => correct(server, kind, &record, of, label).await,
            }
        });
    }
    // Concurrent writes share one sync of the log.
    let mut steps: Vec<Result<(), ApiError>> =
        stream::iter(writes).buffer_unordered(WRITES_MAX).collect().await;
    for service in server.api_services.all() {
        if wanted.contains_key(&service.name) {
            continue;
        }
        let Some(record) = server.find(kind, "", &service.name) else { continue };
        if record.object().labels().contains_key(label) {
            steps.push(delete(server, kind, &service.name).await);
        } else if service.backend.is_none() {
            steps.push(write_condition(server, kind, &record, availability::local()).await);
        }
    }
    steps.into_iter().collect()
}

/// The label of APIServices that a server makes by itself.
fn managed_label(server: &Server) -> String {
    server.names.sub_label(&server.names.component("aggregator"), "automanaged")
}

/// The local APIServices of what is served, by name. The group of APIServices itself has none, as in Kubernetes; that of resource metrics neither, so that
/// a server that provides the group can create its own.
fn list_desired(server: &Server) -> BTreeMap<String, DesiredApiService> {
    let mut all = BTreeMap::new();
    let mut add = |group: String, version: &str, priority, managed| {
        let name = format!("{version}.{group}");
        let version = version.to_owned();
        all.entry(name).or_insert(DesiredApiService { group, version, priority, managed });
    };
    let switches = &server.config.runtime_config;
    for row in schema::resources()
        .iter()
        .chain(schema::optional_resources())
        .filter(|row| ![GROUP, schema::METRICS_GROUP].contains(&row.group))
    {
        if switches.serves(row.group, row.version, row.plural) {
            let priority = of_built_in(row.group, row.version);
            add(server.names.group(row.group), row.version, priority, ON_START);
        }
    }
    for kind in server.definitions.served_kinds() {
        add(kind.group.clone(), kind.version(), CUSTOM, ALWAYS);
    }
    all
}

fn spec_of(wanted: &DesiredApiService) -> Map {
    let mut spec = Map::new();
    // Trees do not store empty texts.
    if !wanted.group.is_empty() {
        spec.insert("group", wanted.group.as_str());
    }
    spec.insert("version", wanted.version.as_str());
    spec.insert("groupPriorityMinimum", wanted.priority.group);
    spec.insert("versionPriority", wanted.priority.version);
    spec
}

async fn create(
    server: &Server,
    kind: &Arc<Kind>,
    name: &str,
    wanted: &DesiredApiService,
    label: &str,
) -> Result<(), ApiError> {
    let mut object = Object::new(kind.clone());
    object.set_meta_str("name", name);
    object.metadata_mut().map_or_insert("labels").insert(label.to_owned(), wanted.managed);
    object.fields.insert("spec", Value::Map(spec_of(wanted)));
    let request = request(Verb::Create, kind, "", "", "");
    let (query, agent) = (Query::default(), agent(server));
    let call = call(server, kind, &request, &query, &agent);
    match create_object(&call, object, Effects::Real).await {
        Err(error) if error.code() != 409 => Err(error),
        _ => Ok(()),
    }
}

/// Brings spec and condition of an APIService up to date; the spec of one that a user has written is not changed.
async fn correct(
    server: &Server,
    kind: &Arc<Kind>,
    record: &Arc<StoredObject>,
    wanted: &DesiredApiService,
    label: &str,
) -> Result<(), ApiError> {
    let (object, spec) = (record.object(), spec_of(wanted));
    if object.labels().contains_key(label) && object.spec() != Some(&spec) {
        let mut next = object.clone();
        next.fields.insert("spec", Value::Map(spec));
        return write(server, kind, record, next, Subresource::Main).await;
    }
    if object.spec().is_some_and(|spec| spec.map("service").is_some()) {
        return Ok(());
    }
    write_condition(server, kind, record, availability::local()).await
}

async fn delete(server: &Server, kind: &Arc<Kind>, name: &str) -> Result<(), ApiError> {
    let request = request(Verb::Delete, kind, "", "", name);
    let (query, agent) = (Query::default(), agent(server));
    let call = call(server, kind, &request, &query, &agent);
    match delete_object(&call, &DeleteOptions::default()).await {
        Err(error) if error.code() != 404 => Err(error),
        _ => Ok(()),
    }
}

/// Writes a condition of an APIService unless it has it, or another write is first.
///
/// # Errors
/// Errors of the write.
pub async fn write_condition(
    server: &Server,
    kind: &Arc<Kind>,
    record: &Arc<StoredObject>,
    condition: DefinitionCondition,
) -> Result<(), ApiError> {
    match availability::with_condition(record.object(), condition, &timestamp(now())) {
        Some(next) => write(server, kind, record, next, Subresource::Status).await,
        None => Ok(()),
    }
}

async fn write(
    server: &Server,
    kind: &Arc<Kind>,
    record: &Arc<StoredObject>,
    next: Object,
    subresource: Subresource,
) -> Result<(), ApiError> {
    let path = if subresource == Subresource::Status { "status" } else { "" };
    let request = request(Verb::Update, kind, path, "", record.object().name());
    let (query, agent) = (Query::default(), agent(server));
    let call = call(server, kind, &request, &query, &agent);
    match commit_update(&call, record, next, subresource, Effects::Real).await {
        Ok(UpdateAttempt::Done(_) | UpdateAttempt::Conflict) => Ok(()),
        Err(error) if error.code() == 404 => Ok(()),
        Err(error) => Err(error),
    }
}
