//! The flow schemas and priority levels that every server has: they are made and kept as they should be. Also the condition `Dangling` of all flow schemas.
//!
//! Whether the spec of a suggested object is kept is what its annotation says; that of a mandatory one always is.

use std::sync::Arc;

use apiserver_flow_control::{
    BuiltInObject, DANGLING, FLOW_SCHEMAS, FlowSchemaUsage, GROUP, PRIORITY_LEVELS, VERSION,
    built_in_objects, dangling, is_obsolete, reconcile as compare,
};
use apiserver_schema::update::Subresource;
use apiserver_schema::{Format, Kind, Object, Strictness};
use apiserver_store::{Range, Watch};
use futures_util::{StreamExt as _, stream};
use tokio_util::sync::CancellationToken;

use crate::definitions::strategy::{DefinitionCondition, set_condition};
use crate::flow_control::FlowControl;
use crate::internal_requests::{call, request};
use crate::key;
use crate::options::{DeleteOptions, Effects};
use crate::reconcile_loop::{self, WRITES_MAX};
use crate::record::StoredObject;
use crate::request::{Query, Verb};
use crate::server::{Server, missing_kind};
use crate::status::ApiError;
use crate::times::{now, timestamp};
use crate::verbs::{UpdateAttempt, commit_update, create_object, delete_object};

/// Most flow schemas whose condition is kept.
const CONDITIONS_MAX: usize = 4096;
/// Managers of the fields of the objects, and of their status.
const PRODUCER: &str = "api-priority-and-fairness-config-producer-v1";
const CONSUMER: &str = "api-priority-and-fairness-config-consumer-v1";

/// Keeps the objects until `stopping` is cancelled, and lets changes count for requests that wait.
pub async fn run(server: Arc<Server>, control: Arc<FlowControl>, stopping: CancellationToken) {
    let (server, control) = (&*server, &*control);
    let reconcile = || Box::pin(reconcile(server, control));
    let watch = || changes(server);
    let objects = "flow schemas and priority levels";
    reconcile_loop::run(objects, stopping, watch, reconcile, || control.catch_up()).await;
}

fn kind<'a>(server: &'a Server, resource: &str) -> Result<&'a Arc<Kind>, ApiError> {
    let kind = server.engine.resource(&server.names.group(GROUP), VERSION, resource);
    kind.ok_or_else(|| missing_kind(resource))
}

/// Changes of both kinds from now on; empty if they cannot be watched.
fn changes(server: &Server) -> Vec<Watch<StoredObject>> {
    let kinds = [FLOW_SCHEMAS, PRIORITY_LEVELS].into_iter().filter_map(|of| kind(server, of).ok());
    reconcile_loop::watch_kinds(server, kinds)
}

/// Makes, corrects and deletes objects, and writes conditions. Where all is as it should be, nothing is written.
async fn reconcile(server: &Server, control: &FlowControl) -> Result<(), ApiError> {
    let objects = reconcile_objects(server).await;
    objects.and(reconcile_conditions(server, control).await)
}

/// Makes, corrects and deletes objects; a server is ready when it has done so. Their conditions are written by [`run`].
///
/// # Errors
/// The first write that failed; the others are done.
pub async fn reconcile_objects(server: &Server) -> Result<(), ApiError> {
    let annotation = server.names.sub_label("apf", "autoupdate-spec");
    let annotation = annotation.as_str();
    let built_in = built_in_objects(server.names);
    let mut writes = Vec::with_capacity(built_in.len());
    for of in &built_in {
        writes.push(async move { keep(server, of, annotation).await });
    }
    // Concurrent writes share one sync of the log.
    let mut steps: Vec<Result<(), ApiError>> =
        stream::iter(writes).buffer_unordered(WRITES_MAX).collect().await;
    for resource in [FLOW_SCHEMAS, PRIORITY_LEVELS] {
        let kind = kind(server, resource)?;
        for record in stored(server, kind) {
            let object = record.object();
            let is_built_in =
                built_in.iter().any(|of| of.resource == resource && of.name() == object.name());
            if !is_built_in && is_obsolete(object, annotation) {
                steps.push(delete(server, kind, object.name()).await);
            }
        }
    }
    steps.into_iter().collect()
}

/// Writes the conditions of all flow schemas that lack them.
async fn reconcile_conditions(server: &Server, control: &FlowControl) -> Result<(), ApiError> {
    let (schemas, levels) = (kind(server, FLOW_SCHEMAS)?, kind(server, PRIORITY_LEVELS)?);
    let mut conditions = Vec::new();
    for record in stored(server, schemas) {
        let object = record.object();
        let level = object.str_at(&["spec", "priorityLevelConfiguration", "name"]);
        let usage = match server.find(levels, "", level) {
            Some(_) => control.usage(object.name(), level),
            None => FlowSchemaUsage::NoLevel,
        };
        conditions.push(async move { keep_condition(server, schemas, usage, &record).await });
    }
    let written: Vec<Result<(), ApiError>> =
        stream::iter(conditions).buffer_unordered(WRITES_MAX).collect().await;
    written.into_iter().collect()
}

/// The stored objects of a kind.
fn stored(server: &Server, kind: &Kind) -> Vec<Arc<StoredObject>> {
    let prefix = key::prefix(kind, "");
    let range = Range { prefix: &prefix, after: None, limit: Some(CONDITIONS_MAX) };
    // The current revision is never compacted.
    let found = server.snapshot().range(range).map(|page| page.entries).unwrap_or_default();
    found.into_iter().map(|entry| entry.record).collect()
}

/// Makes or corrects a built-in object.
async fn keep(server: &Server, of: &BuiltInObject, annotation: &str) -> Result<(), ApiError> {
    let kind = kind(server, of.resource)?;
    let text = of.object.to_string();
    let decoded = server.engine.decode(kind, Format::Json, text.as_bytes(), Strictness::Strict);
    let mut wanted = decoded.map_err(ApiError::internal)?.object;
    server.engine.default(&mut wanted);
    let Some(record) = server.find(kind, "", of.name()) else {
        let request = request(Verb::Create, kind, "", "", "");
        let query = Query::default();
        let call = call(server, kind, &request, &query, PRODUCER);
        return match create_object(&call, wanted, Effects::Real).await {
            Err(error) if error.code() != 409 => Err(error),
            _ => Ok(()),
        };
    };
    match compare(record.object(), &wanted, of.is_mandatory, annotation) {
        Some(next) => write(server, kind, &record, next, Subresource::Main).await,
        None => Ok(()),
    }
}

/// Writes whether a flow schema is used, unless its condition says so.
async fn keep_condition(
    server: &Server,
    schemas: &Arc<Kind>,
    usage: FlowSchemaUsage,
    record: &Arc<StoredObject>,
) -> Result<(), ApiError> {
    let level = record.object().str_at(&["spec", "priorityLevelConfiguration", "name"]);
    let said = dangling(level, usage);
    let condition = DefinitionCondition {
        kind: DANGLING,
        status: said.status,
        reason: said.reason.to_owned(),
        message: said.message,
    };
    let mut next = record.object().clone();
    set_condition(&mut next, condition, &timestamp(now()));
    if next == *record.object() {
        return Ok(());
    }
    write(server, schemas, record, next, Subresource::Status).await
}

async fn delete(server: &Server, kind: &Arc<Kind>, name: &str) -> Result<(), ApiError> {
    let request = request(Verb::Delete, kind, "", "", name);
    let query = Query::default();
    let call = call(server, kind, &request, &query, PRODUCER);
    match delete_object(&call, &DeleteOptions::default()).await {
        Err(error) if error.code() != 404 => Err(error),
        _ => Ok(()),
    }
}

async fn write(
    server: &Server,
    kind: &Arc<Kind>,
    record: &Arc<StoredObject>,
    next: Object,
    subresource: Subresource,
) -> Result<(), ApiError> {
    let (path, agent) = match subresource {
        Subresource::Status => ("status", CONSUMER),
        _ => ("", PRODUCER),
    };
    let request = request(Verb::Update, kind, path, "", record.object().name());
    let query = Query::default();
    let call = call(server, kind, &request, &query, agent);
    match commit_update(&call, record, next, subresource, Effects::Real).await {
        Ok(UpdateAttempt::Done(_) | UpdateAttempt::Conflict) => Ok(()),
        Err(error) if error.code() == 404 => Ok(()),
        Err(error) => Err(error),
    }
}
