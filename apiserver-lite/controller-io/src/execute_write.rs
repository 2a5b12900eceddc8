//! Execution of writes: one request each.

use apiserver_controllers::api_writes::{
    ApiWrite, Effect, EffectState, ObjectKind, Part, WrittenObject,
};
use apiserver_controllers::for_every_written_kind;
use proto_api::{Kind, Resource};
use proto_client::{Client, ClientError, DeleteParams, ObjectKey, Patch, WriteParams};
use serde_json::Value;

/// Defines [`execute`].
macro_rules! define_execute {
    ($($kind:ident: $type:ty),+) => {
        /// Executes a write. Gives its effect; none if the object to create existed.
        ///
        /// # Errors
        /// The server rejects it, or the request fails.
        pub async fn execute(write: &ApiWrite, client: &Client) -> Result<Option<Effect>, ClientError> {
            match write {
                $(ApiWrite::Create(WrittenObject::$kind(object)) => {
                    create(client, ObjectKind::$kind, object.as_ref()).await
                })+
                $(ApiWrite::Update(WrittenObject::$kind(object)) => {
                    let new = client.all::<$type>().update(object, &WriteParams::default()).await?;
                    Ok(effect(ObjectKind::$kind, &new))
                })+
                $(ApiWrite::UpdateStatus(WrittenObject::$kind(object)) => {
                    let params = WriteParams::default();
                    let new = client.all::<$type>().update_status(object, &params).await?;
                    Ok(effect(ObjectKind::$kind, &new))
                })+
                $(ApiWrite::Patch { kind: ObjectKind::$kind, key, part, patch } => {
                    let new = apply_patch::<$type>(client, key, *part, patch).await?;
                    Ok(effect(ObjectKind::$kind, &new).map(|effect| effect.of_patch()))
                })+
                $(ApiWrite::Delete { kind: ObjectKind::$kind, key, uid, grace_secs } => {
                    let params = DeleteParams { grace_secs: *grace_secs, ..DeleteParams::default() };
                    delete::<$type>(client, key, uid, params).await?;
                    Ok(Some(deleted(ObjectKind::$kind, key, uid)))
                })+
                $(ApiWrite::DeleteTree { kind: ObjectKind::$kind, key, uid, propagation } => {
                    let params = DeleteParams { propagation: Some(*propagation), ..DeleteParams::default() };
                    delete::<$type>(client, key, uid, params).await?;
                    Ok(Some(deleted(ObjectKind::$kind, key, uid)))
                })+
            }
        }
    };
}

for_every_written_kind!(define_execute);

async fn create<T: Resource>(
    client: &Client,
    kind: ObjectKind,
    object: &T,
) -> Result<Option<Effect>, ClientError> {
    match client.all::<T>().create(object, &WriteParams::default()).await {
        Ok(new) => Ok(effect(kind, &new)),
        Err(error) if error.is_already_exists() => Ok(None),
        Err(error) => Err(error),
    }
}

async fn apply_patch<T: Resource>(
    client: &Client,
    key: &ObjectKey,
    part: Part,
    patch: &Value,
) -> Result<T, ClientError> {
    let api = client.within::<T>(&key.namespace);
    let (patch, params) = (Patch::Merge(patch.clone()), WriteParams::default());
    match part {
        Part::Main => api.patch(&key.name, &patch, &params).await,
        Part::Status => api.patch_status(&key.name, &patch, &params).await,
    }
}

async fn delete<T: Resource>(
    client: &Client,
    key: &ObjectKey,
    uid: &str,
    params: DeleteParams,
) -> Result<(), ClientError> {
    let params = DeleteParams { uid: Some(uid.to_owned()), ..params };
    match client.within::<T>(&key.namespace).delete(&key.name, &params).await {
        // The object is deleted, or another one has its name.
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        other => other,
    }
}

fn deleted(kind: ObjectKind, key: &ObjectKey, uid: &str) -> Effect {
    Effect { kind, key: key.clone(), state: EffectState::Deleted(uid.to_owned()) }
}

fn effect<T: Resource + Kind>(kind: ObjectKind, new: &T) -> Option<Effect> {
    let version = new.metadata().resource_version.parse().ok()?;
    let (key, state) = (ObjectKey::of(new.metadata()), EffectState::Version(version));
    Some(Effect { kind, key, state })
}
