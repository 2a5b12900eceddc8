//! The caches of what default spread constraints select by: the selectors of Services and of the controllers of pods. Nothing else is kept of these objects.

use std::collections::BTreeMap;

use proto_api::apps::v1::{ReplicaSet, StatefulSet};
use proto_api::core::v1::{ReplicationController, Service};
use proto_api::meta::v1::LabelSelector;
use proto_api::selectors::Selector;
use proto_api::{ObjectKey, Resource};
use proto_client::{Client, ListParams, Reflector, Store};
use proto_daemon::drain::DrainWatch;
use tokio::task::JoinHandle;

use crate::cycle_trigger::CycleTrigger;
use crate::storage_informers;
use apiserver_scheduling::default_spread::default_selector;
use apiserver_scheduling::pod_controller::ControllerKind;
use apiserver_scheduling::pod_info::PodInfo;

/// The caches. Cheap to clone.
#[derive(Clone)]
pub struct SelectorInformers {
    services: Store<BTreeMap<String, String>>,
    replication_controllers: Store<Selector>,
    replica_sets: Store<Selector>,
    stateful_sets: Store<Selector>,
}

impl SelectorInformers {
    /// Starts the watches. A change triggers a scheduling cycle if there is a trigger: pods may wait because of what was selected before.
    pub fn start(
        client: &Client,
        trigger: Option<&CycleTrigger>,
        drain: &DrainWatch,
    ) -> (Self, Vec<JoinHandle<()>>) {
        let all = ListParams::default;
        let services =
            Reflector::projected(client.all(), all(), |service: Service| service.spec.selector);
        let replication_controllers =
            Reflector::projected(client.all(), all(), |controller: ReplicationController| {
                Selector::from_map(&controller.spec.selector)
            });
        let replica_sets = Reflector::projected(client.all(), all(), |set: ReplicaSet| {
            read(set.spec.selector.as_ref())
        });
        let stateful_sets = Reflector::projected(client.all(), all(), |set: StatefulSet| {
            read(set.spec.selector.as_ref())
        });
        let stores = Self {
            services: services.store(),
            replication_controllers: replication_controllers.store(),
            replica_sets: replica_sets.store(),
            stateful_sets: stateful_sets.store(),
        };
        let tasks = vec![
            run(services, trigger, drain),
            run(replication_controllers, trigger, drain),
            run(replica_sets, trigger, drain),
            run(stateful_sets, trigger, drain),
        ];
        (stores, tasks)
    }

    /// Waits until the caches are complete.
    pub async fn synced(&self) {
        self.services.synced().await;
        self.replication_controllers.synced().await;
        self.replica_sets.synced().await;
        self.stateful_sets.synced().await;
    }

    /// What the Services and the controller of a pod select together; none if that is everything.
    pub fn selector_of(&self, pod: &PodInfo) -> Option<Selector> {
        let namespace = &pod.key.namespace;
        let controller = pod.controller.as_ref().and_then(|controller| {
            let store = match controller.kind {
                ControllerKind::ReplicationController => &self.replication_controllers,
                ControllerKind::ReplicaSet => &self.replica_sets,
                ControllerKind::StatefulSet => &self.stateful_sets,
            };
            store.get(&ObjectKey::new(namespace, &controller.name))
        });
        default_selector(pod, &self.services.within(namespace), controller.as_deref())
    }
}

/// Nothing is added by a selector that is missing or invalid.
fn read(selector: Option<&LabelSelector>) -> Selector {
    let selector = selector.map(|of| Selector::from_label_selector(of, "spec.selector"));
    selector.and_then(Result::ok).unwrap_or_default()
}

fn run<T, U>(
    reflector: Reflector<T, U>,
    trigger: Option<&CycleTrigger>,
    drain: &DrainWatch,
) -> JoinHandle<()>
where
    T: Resource,
    U: Clone + PartialEq + Send + Sync + 'static,
{
    match trigger {
        Some(trigger) => storage_informers::run(reflector, trigger, drain),
        None => tokio::spawn(reflector.run(drain.clone(), |_| ())),
    }
}

#[cfg(test)]
mod tests {
    use apiserver_scheduling::default_spread::spread_by_default;
    use apiserver_scheduling::examples::{self, names};
    use apiserver_scheduling::profile::{DefaultConstraint, DefaultSpread, WhenUnsatisfiable};
    use proto_client::testing::{StubServer, json_response};
    use proto_daemon::drain::Drain;
    use serde_json::{Value, json};

    use super::*;

    /// Kind, path and selector of the objects `web` in the namespace `ns`.
    const SERVED: [(&str, &str, &str); 4] = [
        ("ServiceList", "/api/v1/services", r#"{"app": "web"}"#),
        ("ReplicationControllerList", "/api/v1/replicationcontrollers", r#"{"from": "rc"}"#),
        ("ReplicaSetList", "/apis/apps/v1/replicasets", r#"{"matchLabels": {"from": "rs"}}"#),
        (
            "StatefulSetList",
            "/apis/apps/v1/statefulsets",
            r#"{"matchExpressions": [{"key": "from", "operator": "In", "values": ["sts"]}]}"#,
        ),
    ];

    /// Complete caches of a server with these objects.
    async fn informers(trigger: Option<&CycleTrigger>, drain: &Drain) -> SelectorInformers {
        let server = StubServer::start(|request| {
            let found = SERVED.iter().find(|(_, path, _)| *path == request.path);
            // A watch has no events.
            let (kind, path, selector) = found.filter(|_| !request.query.contains("watch=true"))?;
            let version = if path.starts_with("/apis") { "apps/v1" } else { "v1" };
            let selector: Value = serde_json::from_str(selector).expect("JSON");
            let item = json!({"metadata": {"name": "web", "namespace": "ns", "resourceVersion": "1"},
                "spec": {"selector": selector}});
            let list = json!({"kind": kind, "apiVersion": version, "metadata": {"resourceVersion": "9"}, "items": [item]});
            Some(json_response(200, &list))
        });
        let client = server.await.client();
        let (informers, _tasks) = SelectorInformers::start(&client, trigger, &drain.watch());
        informers.synced().await;
        informers
    }

    fn pod(kind: &str, namespace: &str) -> PodInfo {
        let mut pod = proto_api::core::v1::Pod::default();
        pod.metadata.namespace = namespace.into();
        pod.metadata.labels = [("app".to_owned(), "web".to_owned())].into();
        let api_version = if kind == "ReplicationController" { "v1" } else { "apps/v1" };
        pod.metadata.owner_references = vec![proto_api::meta::v1::OwnerReference {
            api_version: api_version.into(),
            kind: kind.into(),
            name: "web".into(),
            controller: Some(true),
            ..Default::default()
        }];
        PodInfo::from_pod(names(), &pod)
    }

    #[tokio::test]
    async fn the_pods_of_services_and_controllers_are_selected() {
        let drain = Drain::default();
        let informers = informers(None, &drain).await;
        for (kind, expected) in [
            ("ReplicationController", "app=web,from=rc"),
            ("ReplicaSet", "app=web,from=rs"),
            ("StatefulSet", "app=web,from=sts"),
            ("DaemonSet", "app=web"),
        ] {
            let found = informers.selector_of(&pod(kind, "ns"));
            assert_eq!(found.map(|found| found.to_string()).as_deref(), Some(expected), "{kind}");
            assert_eq!(informers.selector_of(&pod(kind, "other")), None, "{kind}");
        }
        // With a hard constraint the pod is spread over what was found.
        let constraint = DefaultConstraint {
            topology_key: "zone".into(),
            max_skew: 1,
            min_domains: 1,
            when_unsatisfiable: WhenUnsatisfiable::DoNotSchedule,
        };
        let mut profile = examples::profile();
        profile.default_spread =
            DefaultSpread { constraints: vec![constraint], ..DefaultSpread::default() };
        let pod = std::sync::Arc::new(pod("ReplicaSet", "ns"));
        let spread = spread_by_default(pod, &profile, |pod| informers.selector_of(pod));
        let [hard] = &spread.constraints.topology_spread[..] else { panic!("a constraint") };
        assert_eq!(hard.pods.as_ref().map(ToString::to_string).as_deref(), Some("app=web,from=rs"));
    }

    #[tokio::test]
    async fn changes_of_selectors_trigger_a_cycle_where_pods_may_wait_for_them() {
        let (drain, trigger) = (Drain::default(), CycleTrigger::default());
        informers(Some(&trigger), &drain).await;
        assert!(trigger.take_cluster_change(), "they have come");
    }
}
