//! Which changes queue the mirror of Endpoints.

use proto_api::core::v1::{Endpoints, Service};

use super::*;

fn service(name: &str, spec: Value) -> Value {
    json!({"kind": "Service", "apiVersion": "v1", "spec": spec,
        "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "7"}})
}

/// The keys of Endpoints and of their mirror that a change of Endpoints queues.
fn queued(informers: &Informers, name: &str, is_deletion: bool) -> [bool; 2] {
    let (key, object) = (ObjectKey::new("ns", name), Arc::new(Endpoints::default()));
    let change = match is_deletion {
        true => Change::Deleted { key: key.clone(), old: object },
        false => Change::Applied { key: key.clone(), new: object, old: None },
    };
    let keys = Endpoints::keys(&change, informers);
    [ReconcileKey::Endpoints(key.clone()), ReconcileKey::Mirror(key)].map(|key| keys.contains(&key))
}

#[tokio::test]
async fn endpoints_of_a_selector_do_not_queue_their_mirror() {
    let selector = json!({"app": "web"});
    let server = Server::default().showing(
        "services",
        json!([
            service("selecting", json!({"selector": selector})),
            service("manual", json!({})),
            service("external", json!({"type": "ExternalName", "selector": selector})),
        ]),
    );
    let informers = server.reconciler(None).await.informers;
    for is_deletion in [false, true] {
        assert_eq!(queued(&informers, "selecting", is_deletion), [true, false]);
        assert_eq!(queued(&informers, "manual", is_deletion), [true, true]);
        assert_eq!(queued(&informers, "external", is_deletion), [true, true]);
    }
    assert_eq!(queued(&informers, "unknown", true), [true, true]);
    assert_eq!(queued(&informers, "unknown", false), [false, false], "the Service queues them");
}

/// What a mirror left, or lacks, when the selector comes or goes, the Service included.
#[tokio::test]
async fn every_change_of_a_service_queues_the_mirror() {
    let informers = Server::default().reconciler(None).await.informers;
    let (key, manual) = (ObjectKey::new("ns", "web"), Arc::new(Service::default()));
    let mut selecting = Service::default();
    selecting.spec.selector.insert("app".into(), "web".into());
    let selecting = Arc::new(selecting);
    let applied = |new: &Arc<Service>, old: Option<&Arc<Service>>| Change::Applied {
        key: key.clone(),
        new: new.clone(),
        old: old.cloned(),
    };
    for change in [
        applied(&manual, None),
        applied(&selecting, None),
        applied(&selecting, Some(&manual)),
        applied(&manual, Some(&selecting)),
        Change::Deleted { key: key.clone(), old: selecting.clone() },
    ] {
        let keys = Service::keys(&change, &informers);
        assert!(keys.contains(&ReconcileKey::Mirror(key.clone())), "{change:?}");
    }
}
