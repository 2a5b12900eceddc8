//! Namespaces whose content is to be deleted.

use proto_api::core::v1::{Namespace, NamespaceCondition};

use super::*;

const PATH: &str = "/api/v1/namespaces/gone";

/// The namespace with this uid; one that is being deleted has these finalizers.
fn namespace(uid: &str, finalizers: Option<&[&str]>) -> Value {
    let deleted = finalizers.map(|_| "2020-01-01T00:00:00Z");
    json!({
        "kind": "Namespace", "apiVersion": "v1",
        "metadata": {"name": "gone", "uid": uid, "resourceVersion": "5", "deletionTimestamp": deleted},
        "spec": {"finalizers": finalizers.unwrap_or(&["kubernetes"])},
    })
}

/// What is written when the cache shows a namespace that is being deleted and the server has this one, with a ConfigMap.
fn written(there: Option<Value>) -> Vec<String> {
    let maps = json!({"metadata": {}, "items": [{"metadata": {"name": "m", "namespace": "gone"}}]});
    let mut server = Server::default()
        .showing("namespaces", namespace("u1", Some(&["kubernetes"])))
        .having(&format!("{PATH}/configmaps"), maps);
    if let Some(there) = there {
        server = server.having(PATH, there);
    }
    lines(server.reconcile(ReconcileKey::Namespace("gone".into())))
}

#[test]
fn content_is_deleted_only_of_a_namespace_that_the_server_has_and_deletes() {
    assert_eq!(written(None), [""; 0]);
    assert_eq!(
        written(Some(namespace("u2", None))),
        [""; 0],
        "one of the same name is in its place"
    );
    assert_eq!(written(Some(namespace("u1", Some(&["other"])))), [""; 0]);
    let deleted = written(Some(namespace("u1", Some(&["kubernetes"]))));
    assert_eq!(deleted[0], format!("DELETE {PATH}/configmaps"));
    // The server of this test keeps it.
    assert!(deleted[1..].iter().all(|line| *line == format!("PUT {PATH}/status")), "{deleted:?}");
}

#[tokio::test]
async fn conditions_of_a_namespace_begin_no_round() {
    let read_as = |uid, finalizers| -> Arc<Namespace> {
        Arc::new(serde_json::from_value(namespace(uid, finalizers)).expect("a namespace"))
    };
    let read = |finalizers| read_as("u1", finalizers);
    let old = read(Some(&["kubernetes", "other"]));
    let informers = Server::default().reconciler(None).await.informers;
    let keys = |new: Namespace, old: Option<&Arc<Namespace>>| {
        let (key, new) = (ObjectKey::new("", "gone"), Arc::new(new));
        Namespace::keys(&Change::Applied { key, new, old: old.cloned() }, &informers)
    };
    let due = [ReconcileKey::Namespace("gone".into())];
    assert_eq!(keys((*old).clone(), None), due);
    assert_eq!(keys((*old).clone(), Some(&read(None))), due);
    assert_eq!(keys((*old).clone(), Some(&read_as("u0", Some(&["kubernetes", "other"])))), due);
    let mut reported = (*old).clone();
    reported.status.conditions = vec![NamespaceCondition::default()];
    assert_eq!(keys(reported, Some(&old)), []);
    let mut released = (*old).clone();
    released.spec.finalizers.pop();
    assert_eq!(keys(released, Some(&old)), due);
}
