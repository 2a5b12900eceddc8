//! ResourceQuotas: an object and the used amounts of the quotas that count it are committed together, so that the amounts are exact however
//! many clients write at once. What a deletion gives back is counted by the controller resourcequota.

use std::sync::Arc;

use apiserver_quota::{Charge, Counted, CountedResource, charge};
use apiserver_schema::{Map, Object};
use apiserver_store::{CommittedWrite, Write, WriteError};
use proto_api::Time;
use proto_api::core::v1::{PersistentVolumeClaim, Pod, ResourceQuota, Service};
use proto_api::object::from_json;

use super::update_common::CONFLICT_TRIES;
use crate::config::AdmissionPlugin;
use crate::context::RequestContext;
use crate::conversion;
use crate::key;
use crate::record::{Draft, StoredObject};
use crate::server::{Server, missing_kind};
use crate::status::{ApiError, StatusTarget};
use crate::times::now;

/// A new object, or an object with its earlier version.
#[derive(Clone, Copy)]
pub struct ObjectChange<'a> {
    /// As it will be.
    pub new: &'a Object,
    /// As it is stored, if it is.
    pub old: Option<&'a Object>,
}

/// An object in the form in which it is counted.
enum CountedObject {
    Pod(Box<Pod>),
    Service(Box<Service>),
    Claim(Box<PersistentVolumeClaim>),
    Other(CountedResource),
}

/// A quota as stored, and decoded.
struct StoredQuota {
    record: Arc<StoredObject>,
    quota: ResourceQuota,
}

type WriteResult = Result<CommittedWrite<StoredObject>, WriteError<StoredObject>>;

/// Whether the change fits the quotas of its namespace. Asked before addresses and ports are reserved, so that what does not fit takes none from
/// others; decided again when the change is committed.
///
/// # Errors
/// 403 with the first quota that does not admit it.
pub async fn check(call: &RequestContext<'_>, change: ObjectChange<'_>) -> Result<(), ApiError> {
    if !is_counted(call, change) || !has_quotas(call.server, change.new.namespace())? {
        return Ok(());
    }
    let quotas = read_quotas(call.server, change.new.namespace()).await?;
    charges(call, change, &quotas).map(drop)
}

/// Commits `write` of the changed object, together with what the change adds to the quotas of its namespace.
///
/// # Errors
/// 403 with the first quota that does not admit it, 409 if others keep changing a quota meanwhile. The inner error is that of the object's own write.
pub async fn commit(
    call: &RequestContext<'_>,
    change: ObjectChange<'_>,
    write: impl Fn(Draft) -> Write<StoredObject>,
) -> Result<WriteResult, ApiError> {
    let server = call.server;
    let stored = conversion::to_storage(call.asker(), change.new).await?;
    let write = || write(Draft::new(&server.engine, Object::clone(&stored)));
    let namespace = change.new.namespace();
    if !is_counted(call, change) || !has_quotas(server, namespace)? {
        return Ok(server.store.write(write()).await);
    }
    // Boxed, so that the futures of all other writes stay small.
    Box::pin(commit_charged(call, change, write)).await
}

/// [`commit`] in a namespace with quotas.
async fn commit_charged(
    call: &RequestContext<'_>,
    change: ObjectChange<'_>,
    write: impl Fn() -> Write<StoredObject>,
) -> Result<WriteResult, ApiError> {
    let (server, namespace) = (call.server, change.new.namespace());
    let _turn = server.quota_turns.take(namespace).await;
    let mut contended = String::new();
    for _ in 0..CONFLICT_TRIES {
        let quotas = read_quotas(server, namespace).await?;
        let mut writes = Vec::new();
        for charge in charges(call, change, &quotas)? {
            let found = quotas.get(charge.quota);
            writes.extend(found.map(|found| write_of_quota(server, found, charge)));
        }
        let of_quotas: Vec<String> = writes.iter().map(|write| write.key().to_owned()).collect();
        writes.push(write());
        match server.store.write_all(writes).await {
            Err(WriteError::Conflict { key, .. } | WriteError::NotFound { key })
                if of_quotas.contains(&key) =>
            {
                contended = key.rsplit('/').next().unwrap_or_default().to_owned();
            }
            written => return Ok(written.and_then(|mut all| all.pop().ok_or(WriteError::Closed))),
        }
    }
    let about =
        StatusTarget { kind: "resourcequotas", name: &contended, ..StatusTarget::default() };
    Err(ApiError::modified(about))
}

/// Creations count, and updates of what can grow: Services by their type, claims by their size.
fn is_counted(call: &RequestContext<'_>, change: ObjectChange<'_>) -> bool {
    let kind = &change.new.kind;
    if !call.server.config.admission.runs(AdmissionPlugin::ResourceQuota) {
        return false;
    }
    let grows = kind.is("", "Service") || kind.is("", "PersistentVolumeClaim");
    kind.namespaced()
        && (change.old.is_none() || grows)
        && CountedResource::new(&kind.group, kind.plural()).is_counted()
}

fn charges(
    call: &RequestContext<'_>,
    change: ObjectChange<'_>,
    quotas: &[StoredQuota],
) -> Result<Vec<Charge>, ApiError> {
    if quotas.is_empty() {
        return Ok(Vec::new());
    }
    let new = typed(call.server, change.new)?;
    let old = change.old.map(|old| typed(call.server, old)).transpose()?;
    let quotas: Vec<&ResourceQuota> = quotas.iter().map(|found| &found.quota).collect();
    let now = Time::from_unix(now().unix_timestamp());
    let old = old.as_ref().map(CountedObject::counted);
    charge(&quotas, new.counted(), old, call.server.names, now).map_err(|refusal| {
        let about = StatusTarget { name: change.new.name(), ..call.about() };
        ApiError::forbidden(about, &refusal.to_string())
    })
}

/// The write of a quota's new amounts.
fn write_of_quota(server: &Server, found: &StoredQuota, charge: Charge) -> Write<StoredObject> {
    let mut object = found.record.object().clone();
    let used: Map = charge.used.into_iter().map(|(name, used)| (name, used.to_string())).collect();
    object.fields.map_or_insert("status").insert("used", used);
    let key = key::object(&object.kind, object.namespace(), object.name());
    Write::update(key, found.record.revision(), Draft::new(&server.engine, object))
}

fn has_quotas(server: &Server, namespace: &str) -> Result<bool, ApiError> {
    Ok(!stored_quotas(server, namespace, Some(1))?.is_empty())
}

/// The stored quotas of a namespace, by name, at most this many.
fn stored_quotas(
    server: &Server,
    namespace: &str,
    limit: Option<usize>,
) -> Result<Vec<Arc<StoredObject>>, ApiError> {
    let kind = server.kind("", "resourcequotas").ok_or_else(|| missing_kind("ResourceQuota"))?;
    Ok(server.objects(kind, namespace, limit))
}

/// The quotas of a namespace, decoded, by name.
async fn read_quotas(server: &Server, namespace: &str) -> Result<Vec<StoredQuota>, ApiError> {
    let stored = stored_quotas(server, namespace, None)?;
    let mut quotas = Vec::with_capacity(stored.len());
    for record in stored {
        let json = record.json(&server.engine);
        let quota = from_json(json, server.names).map_err(|error| {
            let name = record.object().name();
            ApiError::internal(format!("cannot read the quota {namespace}/{name}: {error}"))
        })?;
        quotas.push(StoredQuota { record, quota });
        // A namespace may have many: other requests go on in between.
        tokio::task::yield_now().await;
    }
    Ok(quotas)
}

/// # Errors
/// 500: what cannot be read cannot be counted.
fn typed(server: &Server, object: &Object) -> Result<CountedObject, ApiError> {
    let unreadable = |error: proto_api::object::DecodeObjectError| {
        let (kind, name) = (object.kind.kind(), object.name());
        ApiError::internal(format!("cannot count {kind} {name:?}: {error}"))
    };
    let json = || server.engine.encode_json(object);
    let names = server.names;
    Ok(match (object.kind.short_group, object.kind.kind()) {
        ("", "Pod") => CountedObject::Pod(Box::new(from_json(&json(), names).map_err(unreadable)?)),
        ("", "Service") => {
            CountedObject::Service(Box::new(from_json(&json(), names).map_err(unreadable)?))
        }
        ("", "PersistentVolumeClaim") => {
            CountedObject::Claim(Box::new(from_json(&json(), names).map_err(unreadable)?))
        }
        _ => CountedObject::Other(CountedResource::new(&object.kind.group, object.kind.plural())),
    })
}

impl CountedObject {
    fn counted(&self) -> Counted<'_> {
        match self {
            CountedObject::Pod(pod) => Counted::Pod(pod),
            CountedObject::Service(service) => Counted::Service(service),
            CountedObject::Claim(claim) => Counted::Claim(claim),
            CountedObject::Other(kind) => Counted::Other(kind),
        }
    }
}
