//! Execution of writes: one request each.

use std::future::Future;
use std::pin::Pin;

use apiserver_controllers::api_writes::{
    ApiWrite, Effect, EffectState, ObjectKind, Part, WrittenObject,
};
use apiserver_controllers::for_every_written_kind;
use proto_api::{Kind, ObjectKey, Resource, merge_patch};
use proto_client::dynamic::Dynamic;
use proto_client::{Client, ClientError, DeleteParams, Patch, WriteParams};
use serde_json::Value;

/// A write under way. It is on the heap: the state of all kinds of writes in one frame would take most of a thread's stack.
type Execution<'a> = Pin<Box<dyn Future<Output = Result<Option<Effect>, ClientError>> + Send + 'a>>;

/// Defines [`execute`].
macro_rules! define_execute {
    ($($kind:ident: $type:ty),+) => {
        /// Executes a write. Gives its effect; none if the object to create existed.
        ///
        /// # Errors
        /// The server rejects it, or the request fails.
        pub async fn execute(write: &ApiWrite, client: &Client) -> Result<Option<Effect>, ClientError> {
            let execution: Execution<'_> = match write {
                $(ApiWrite::Create(WrittenObject::$kind(object)) => {
                    create(client, ObjectKind::$kind, object.as_ref())
                })+
                $(ApiWrite::Update(WrittenObject::$kind(object)) => {
                    update(client, ObjectKind::$kind, object.as_ref(), Part::Main)
                })+
                $(ApiWrite::UpdateStatus(WrittenObject::$kind(object)) => {
                    update(client, ObjectKind::$kind, object.as_ref(), Part::Status)
                })+
                $(ApiWrite::Patch { kind: ObjectKind::$kind, key, part, patch } => {
                    apply_patch::<$type>(client, (ObjectKind::$kind, key), *part, patch)
                })+
                $(ApiWrite::Delete { kind: ObjectKind::$kind, key, uid, grace_secs } => {
                    let params = DeleteParams { grace_secs: *grace_secs, ..DeleteParams::default() };
                    delete::<$type>(client, (ObjectKind::$kind, key), uid, params)
                })+
                $(ApiWrite::DeleteTree { kind: ObjectKind::$kind, key, uid, propagation } => {
                    let params = DeleteParams { propagation: Some(*propagation), ..DeleteParams::default() };
                    delete::<$type>(client, (ObjectKind::$kind, key), uid, params)
                })+
            };
            execution.await
        }
    };
}

for_every_written_kind!(define_execute);

fn create<'a, T: Resource>(client: &'a Client, kind: ObjectKind, object: &'a T) -> Execution<'a> {
    Box::pin(async move {
        match client.all::<T>().create(object, &WriteParams::default()).await {
            Ok(new) => Ok(effect(kind, &new)),
            Err(error) if error.is_already_exists() => Ok(None),
            Err(error) => Err(error),
        }
    })
}

fn update<'a, T: Resource>(
    client: &'a Client,
    kind: ObjectKind,
    object: &'a T,
    part: Part,
) -> Execution<'a> {
    Box::pin(async move {
        let (api, params) = (client.all::<T>(), WriteParams::default());
        let new = match part {
            Part::Main => api.update(object, &params).await?,
            Part::Status => api.update_status(object, &params).await?,
        };
        Ok(effect(kind, &new))
    })
}

fn apply_patch<'a, T: Resource>(
    client: &'a Client,
    (kind, key): (ObjectKind, &'a ObjectKey),
    part: Part,
    patch: &'a Value,
) -> Execution<'a> {
    Box::pin(async move {
        let version = patch_or_replace::<T>(client, key, part, patch).await?;
        let state = version.parse().ok().map(EffectState::Version);
        Ok(state.map(|state| Effect { kind, key: key.clone(), state }.of_patch()))
    })
}

fn delete<'a, T: Resource>(
    client: &'a Client,
    (kind, key): (ObjectKind, &'a ObjectKey),
    uid: &'a str,
    params: DeleteParams,
) -> Execution<'a> {
    Box::pin(async move {
        let params = DeleteParams { uid: Some(uid.to_owned()), ..params };
        let api = client.within::<T>(&key.namespace);
        match api.delete(&key.name, &params).await {
            // The object is deleted.
            Err(error) if error.is_not_found() => {}
            // Another one has its name, or others kept writing to it.
            Err(conflict) if conflict.is_conflict() => match api.get(&key.name).await {
                Ok(left) if left.metadata().uid == uid => return Err(conflict),
                Err(error) if !error.is_not_found() => return Err(conflict),
                _ => {}
            },
            other => other?,
        }
        Ok(Some(deleted(kind, key, uid)))
    })
}

/// Patches an object or its status. Gives its new version. Kubernetes' roles let its controllers update objects and not patch them: where patching is
/// forbidden, the object is read, changed here and replaced.
async fn patch_or_replace<T: Resource>(
    client: &Client,
    key: &ObjectKey,
    part: Part,
    patch: &Value,
) -> Result<String, ClientError> {
    let api = client.within::<T>(&key.namespace);
    let (merge, params) = (Patch::Merge(patch.clone()), WriteParams::default());
    let patched = match part {
        Part::Main => api.patch(&key.name, &merge, &params).await,
        Part::Status => api.patch_status(&key.name, &merge, &params).await,
    };
    match patched {
        Err(refusal) if refusal.is_forbidden() => {
            let objects = Dynamic::new(client.clone(), api.collection().clone());
            let replaced = replace_patched(&objects, &key.name, part, patch).await;
            replaced.map_err(|error| if error.is_forbidden() { refusal } else { error })
        }
        patched => Ok(patched?.metadata().resource_version.clone()),
    }
}

/// As JSON, which keeps fields that are newer than this program. Without a version in the patch the one that was read is the condition.
async fn replace_patched(
    objects: &Dynamic,
    name: &str,
    part: Part,
    patch: &Value,
) -> Result<String, ClientError> {
    let mut object = objects.get(name).await?;
    merge_patch::apply(&mut object, patch);
    let subresource = (part == Part::Status).then_some("status");
    let new = objects.update(name, subresource, &object, &WriteParams::default()).await?;
    let version = new.pointer("/metadata/resourceVersion").and_then(Value::as_str);
    Ok(version.unwrap_or_default().to_owned())
}

fn deleted(kind: ObjectKind, key: &ObjectKey, uid: &str) -> Effect {
    Effect { kind, key: key.clone(), state: EffectState::Deleted(uid.to_owned()) }
}

fn effect<T: Resource + Kind>(kind: ObjectKind, new: &T) -> Option<Effect> {
    let version = new.metadata().resource_version.parse().ok()?;
    let (key, state) = (ObjectKey::from_metadata(new.metadata()), EffectState::Version(version));
    Some(Effect { kind, key, state })
}

#[cfg(test)]
mod tests {
    use proto_client::testing::{StubServer, json_response};
    use serde_json::json;
    use tokio::sync::mpsc;

    use super::*;

    /// A server whose user may read and update deployments, and not patch them. Reports the paths and bodies of updates.
    async fn start(updates: mpsc::UnboundedSender<(String, Value)>) -> Client {
        let server = StubServer::start(move |request| {
            let mut object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"newer": true},
                "metadata": {"name": "d", "namespace": "n", "resourceVersion": "7"}});
            let (code, answer) = match request.method.as_str() {
                "GET" => (200, object),
                "PUT" => {
                    let body = serde_json::from_slice(&request.body).expect("JSON");
                    updates.send((request.path.clone(), body)).expect("the test reads");
                    object["metadata"]["resourceVersion"] = "8".into();
                    (200, object)
                }
                _ => (
                    403,
                    json!({"kind": "Status", "apiVersion": "v1", "reason": "Forbidden", "code": 403}),
                ),
            };
            Some(json_response(code, &answer))
        });
        server.await.client()
    }

    #[tokio::test]
    async fn where_patches_are_forbidden_objects_are_updated() {
        let (sender, mut updates) = mpsc::unbounded_channel();
        let client = start(sender).await;
        let write = ApiWrite::Patch {
            kind: ObjectKind::Deployment,
            key: ObjectKey::new("n", "d"),
            part: Part::Status,
            patch: json!({"status": {"replicas": 2}}),
        };
        let effect = execute(&write, &client).await.expect("updated").expect("an effect");
        assert_eq!(effect.state, EffectState::Patched(8));
        let (path, body) = updates.recv().await.expect("an update");
        assert_eq!(path, "/apis/apps/v1/namespaces/n/deployments/d/status");
        assert_eq!(body["status"], json!({"replicas": 2}));
        assert_eq!(
            (&body["spec"]["newer"], &body["metadata"]["resourceVersion"]),
            (&json!(true), &json!("7"))
        );
    }

    #[tokio::test]
    async fn an_object_whose_deletion_conflicts_is_deleted_only_if_it_is_another() {
        for (uid, is_deleted) in [("u1", false), ("u2", true)] {
            let answer =
                json!({"kind": "Status", "apiVersion": "v1", "reason": "Conflict", "code": 409});
            let object = json!({"apiVersion": "apps/v1", "kind": "Deployment",
                "metadata": {"name": "d", "namespace": "n", "uid": uid, "resourceVersion": "7"}});
            let server = StubServer::start(move |request| {
                Some(match request.method.as_str() {
                    "GET" => json_response(200, &object),
                    _ => json_response(409, &answer),
                })
            });
            let client = server.await.client();
            let write = ApiWrite::Delete {
                kind: ObjectKind::Deployment,
                key: ObjectKey::new("n", "d"),
                uid: "u1".to_owned(),
                grace_secs: None,
            };
            let effect = execute(&write, &client).await;
            assert_eq!(effect.is_ok(), is_deleted, "{uid}");
            if let Ok(effect) = effect {
                let state = effect.expect("an effect").state;
                assert_eq!(state, EffectState::Deleted("u1".to_owned()));
            }
        }
    }
}
