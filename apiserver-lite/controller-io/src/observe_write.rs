//! Whether the server still has what a write has left, for caches that do not show it: a watch may lag for any time, and a plan from such a cache would
//! repeat the write.

use apiserver_controllers::api_writes::{Effect, ObjectKind};
use apiserver_controllers::for_every_written_kind;
use proto_api::{ObjectKey, Resource};
use proto_client::{Client, ClientError, ListParams};

use crate::informers::shows;

/// Those of the effects that the server still has; the others were undone.
///
/// # Errors
/// A request fails.
pub async fn retain_present(
    effects: &[Effect],
    client: &Client,
) -> Result<Vec<Effect>, ClientError> {
    let mut standing = Vec::new();
    for effect in effects {
        if is_present(effect, client).await? {
            standing.push(effect.clone());
        }
    }
    Ok(standing)
}

/// Defines [`is_present`].
macro_rules! define_stands {
    ($($kind:ident: $type:ty),+) => {
        /// Whether the object on the server is in the state after the write, or newer.
        async fn is_present(effect: &Effect, client: &Client) -> Result<bool, ClientError> {
            match effect.kind {
                $(ObjectKind::$kind => {
                    let found = find::<$type>(client, &effect.key).await?;
                    Ok(shows(&effect.state, found.as_ref().map(Resource::metadata)))
                })+
            }
        }
    };
}

for_every_written_kind!(define_stands);

/// Found in a list: who may watch objects may list them, but not all may get them.
async fn find<T: Resource>(client: &Client, key: &ObjectKey) -> Result<Option<T>, ClientError> {
    let listed = client.within::<T>(&key.namespace).list(&ListParams::name(&key.name)).await?;
    Ok(listed.items.into_iter().find(|found| found.metadata().name == key.name))
}

#[cfg(test)]
mod tests {
    use apiserver_controllers::api_writes::EffectState;
    use proto_client::testing::{StubServer, json_response};
    use serde_json::json;

    use super::*;

    /// A server that has one pod, `a` at version 10 with the uid `u`, and answers 500 for namespace `broken`.
    async fn client() -> Client {
        let server = StubServer::start(|request| {
            let pod = json!({"metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "10"}});
            let is_listed =
                request.path.contains("/namespaces/n/") && request.query.contains("name%3Da");
            let items = if is_listed { vec![pod] } else { Vec::new() };
            let list =
                json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items});
            let code = if request.path.contains("broken") { 500 } else { 200 };
            Some(json_response(code, &list))
        });
        server.await.client()
    }

    fn effect(namespace: &str, name: &str, state: EffectState) -> Effect {
        Effect { kind: ObjectKind::Pod, key: ObjectKey::new(namespace, name), state }
    }

    #[tokio::test]
    async fn effects_that_the_server_has_are_retained_and_undone_ones_are_not() {
        let client = client().await;
        let deleted = |uid: &str| EffectState::Deleted(uid.to_owned());
        let stand = [
            effect("n", "a", EffectState::Version(9)),
            effect("n", "a", EffectState::Version(10)),
            effect("n", "a", deleted("another")),
            effect("n", "b", deleted("u")),
        ];
        let undone = [
            effect("n", "b", EffectState::Version(9)),
            effect("n", "a", EffectState::Version(11)),
            effect("n", "a", deleted("u")),
        ];
        let all: Vec<Effect> = stand.iter().chain(&undone).cloned().collect();
        assert_eq!(retain_present(&all, &client).await.expect("answered"), stand);
        let unknown = [effect("broken", "a", EffectState::Version(1))];
        assert!(
            retain_present(&unknown, &client).await.is_err(),
            "nothing is made twice without an answer"
        );
    }
}
