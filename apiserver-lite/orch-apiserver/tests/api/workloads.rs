//! Daemon sets, stateful sets, jobs and cron jobs on a server: it accepts what their controllers plan, and statuses end as they should. The test is the
//! kubelet.

use std::sync::Arc;

use apiserver_controllers::api_writes::{ApiWrite, ObjectKind, Part, WrittenObject};
use apiserver_controllers::{Plan, for_every_written_kind};
use apiserver_workloads::cron_job::ResumedSchedules;
use apiserver_workloads::daemon_set::FailedPods;
use apiserver_workloads::job::UncountedJobs;
use apiserver_workloads::{canonical_revision, cron_job, daemon_set, job, stateful_set};
use http::Method;
use orch_apiserver::Config;
use orch_apiserver::config::{FieldGate, FieldGates};
use proto_api::apps::v1::{ControllerRevision, DaemonSet, StatefulSet};
use proto_api::batch::v1::{CronJob, Job};
use proto_api::core::v1::{Node, PersistentVolumeClaim, Pod};
use proto_api::names::{Names, Profile};
use proto_api::{Resource, Time};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::support::TestServer;

/// The path of a collection.
fn collection<T: Resource>(names: &Names) -> String {
    let api = if T::GROUP.is_empty() { "/api" } else { "/apis" };
    let version = names.api_version(T::GROUP, T::VERSION);
    let namespace = if T::NAMESPACED { "/namespaces/default" } else { "" };
    format!("{api}/{version}{namespace}/{}", T::PLURAL)
}

macro_rules! define_paths {
    ($($kind:ident: $type:ty),+) => {
        fn path_of(names: &Names, kind: ObjectKind) -> String {
            match kind {
                $(ObjectKind::$kind => collection::<$type>(names)),+
            }
        }

        fn into_json(object: &WrittenObject) -> (ObjectKind, Value) {
            match object {
                $(WrittenObject::$kind(object) => {
                    (ObjectKind::$kind, serde_json::to_value(object.as_ref()).expect("JSON"))
                })+
            }
        }
    };
}

for_every_written_kind!(define_paths);

struct Cluster {
    server: TestServer,
    failed: FailedPods,
    resumed: ResumedSchedules,
    uncounted: UncountedJobs,
}

impl Cluster {
    async fn start() -> Self {
        Self::on(TestServer::start().await).await
    }

    async fn on(server: TestServer) -> Self {
        let (failed, resumed) = (FailedPods::default(), ResumedSchedules::default());
        let uncounted = UncountedJobs::default();
        let cluster = Self { server, failed, resumed, uncounted };
        for node in ["node-1", "node-2"] {
            let body = json!({"metadata": {"name": node}});
            cluster.server.post("/api/v1/nodes", body.to_string()).await.expect(201);
            // A new node is tainted until it is ready.
            let (path, ready) = (format!("/api/v1/nodes/{node}"), r#"{"spec":{"taints":null}}"#);
            cluster.server.merge_patch(&path, ready).await.expect(200);
        }
        cluster
    }

    fn path<T: Resource>(&self) -> String {
        collection::<T>(self.server.names)
    }

    async fn list<T: Resource + DeserializeOwned>(&self) -> Vec<Arc<T>> {
        let list = self.server.get(&self.path::<T>()).await.expect(200);
        let items = list["items"].as_array().expect("items").iter();
        items.map(|item| Arc::new(serde_json::from_value(item.clone()).expect("typed"))).collect()
    }

    async fn read<T: Resource + DeserializeOwned>(&self) -> Option<T> {
        let reply = self.server.get(&format!("{}/work", self.path::<T>())).await;
        (reply.code() == 200).then(|| serde_json::from_value(reply.json()).expect("typed"))
    }

    async fn create<T: Resource>(&self, spec: Value) {
        let body = json!({"metadata": {"name": "work"}, "spec": spec});
        self.server.post(&self.path::<T>(), body.to_string()).await.expect(201);
    }

    async fn patch<T: Resource>(&self, patch: Value) {
        let path = format!("{}/work", self.path::<T>());
        self.server.merge_patch(&path, &patch.to_string()).await.expect(200);
    }

    async fn execute(&self, write: &ApiWrite) {
        let names = self.server.names;
        match write {
            ApiWrite::Create(object) => {
                let (kind, body) = into_json(object);
                self.server.post(&path_of(names, kind), body.to_string()).await.expect(201);
            }
            ApiWrite::Update(object) | ApiWrite::UpdateStatus(object) => {
                let (kind, body) = into_json(object);
                let name = body["metadata"]["name"].as_str().expect("a name");
                let path = format!("{}/{name}/status", path_of(names, kind));
                self.server.put(&path, &body).await.expect(200);
            }
            ApiWrite::Patch { kind, key, part, patch } => {
                assert_eq!(*part, Part::Main);
                let path = format!("{}/{}", path_of(names, *kind), key.name);
                self.server.merge_patch(&path, &patch.to_string()).await.expect(200);
            }
            ApiWrite::Delete { kind, key, uid, .. }
            | ApiWrite::DeleteTree { kind, key, uid, .. } => {
                let path = format!("{}/{}", path_of(names, *kind), key.name);
                let options = json!({"preconditions": {"uid": uid}}).to_string();
                self.server
                    .call(Method::DELETE, &path, "application/json", options)
                    .await
                    .expect(200);
            }
        }
    }

    async fn planned(&mut self, now: Time) -> Plan {
        let names = self.server.names;
        let pods = self.list::<Pod>().await;
        let revisions = self.list::<ControllerRevision>().await;
        let revisions: Vec<_> = revisions
            .into_iter()
            .map(|revision| Arc::new(canonical_revision(Arc::unwrap_or_clone(revision))))
            .collect();
        let mut plan = Plan::default();
        if let Some(set) = self.read::<DaemonSet>().await {
            let nodes = self.list::<Node>().await;
            let seen = daemon_set::ObservedDaemonSet {
                set: &set,
                pods: &pods,
                revisions: &revisions,
                nodes: &nodes,
            };
            plan.absorb(daemon_set::plan(names, &seen, &mut self.failed, now));
        }
        if let Some(set) = self.read::<StatefulSet>().await {
            let claims = self.list::<PersistentVolumeClaim>().await;
            let claim =
                |name: &str| claims.iter().find(|claim| claim.metadata.name == name).cloned();
            let seen = stateful_set::ObservedStatefulSet {
                set: &set,
                pods: &pods,
                revisions: &revisions,
                claim: &claim,
                features: stateful_set::StatefulSetFeatures::from_gates(|gate| {
                    gate == "StatefulSetAutoDeletePVC"
                }),
            };
            plan.absorb(stateful_set::plan(names, &seen, now));
        }
        if let Some(cron_job) = self.read::<CronJob>().await {
            let jobs = self.list::<Job>().await;
            let seen = cron_job::ObservedCronJob { cron_job: &cron_job, jobs: &jobs };
            plan.absorb(cron_job::plan(names, &seen, &mut self.resumed, now));
        }
        if let Some(job) = self.read::<Job>().await {
            let seen = job::ObservedJob { job: &job, pods: &pods };
            plan.absorb(job::plan(names, &seen, &mut self.uncounted, now));
        }
        plan
    }

    /// Plans and executes until nothing is planned.
    async fn settle(&mut self, now: i64) {
        for _ in 0..30 {
            let plan = self.planned(Time::from_unix(now)).await;
            if plan.writes.is_empty() {
                return;
            }
            for write in &plan.writes {
                self.execute(write).await;
            }
        }
        panic!("the plans do not end");
    }

    /// Binds and runs all pods, or ends them in this phase; ends those that are deleted.
    async fn run_kubelets(&self, phase: &str) {
        for pod in self.list::<Pod>().await {
            let path = format!("{}/{}", self.path::<Pod>(), pod.metadata.name);
            if pod.metadata.deletion_timestamp.is_some() {
                let now = json!({"gracePeriodSeconds": 0}).to_string();
                self.server.call(Method::DELETE, &path, "application/json", now).await.expect(200);
                continue;
            }
            if pod.spec.node_name.is_empty() {
                let target = json!({"kind": "Node", "name": node_of(&pod)});
                let target = json!({"metadata": {"name": pod.metadata.name}, "target": target});
                self.server.post(&format!("{path}/binding"), target.to_string()).await.expect(201);
            }
            let ready = if phase == "Running" { "True" } else { "False" };
            let ready = json!({"type": "Ready", "status": ready, "lastTransitionTime": "2020-01-01T00:00:00Z"});
            let status = json!({"status": {"phase": phase, "conditions": [ready]}});
            self.server
                .merge_patch(&format!("{path}/status"), &status.to_string())
                .await
                .expect(200);
        }
    }

    /// Plans and kubelets in turn.
    async fn run(&mut self, now: i64) {
        for _ in 0..6 {
            self.settle(now).await;
            self.run_kubelets("Running").await;
        }
        self.settle(now).await;
    }
}

/// The node that a pod asks for.
fn node_of(pod: &Pod) -> String {
    let affinity = pod.spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    let terms = required.into_iter().flat_map(|required| &required.node_selector_terms);
    let mut names = terms.flat_map(|term| &term.match_fields).flat_map(|field| &field.values);
    names.next().cloned().unwrap_or_else(|| "node-1".to_owned())
}

fn template(restart_policy: &str) -> Value {
    let container = json!({"name": "c", "image": "a", "args": ["a<b"]});
    json!({
        "metadata": {"labels": {"app": "work"}},
        "spec": {"containers": [container], "restartPolicy": restart_policy},
    })
}

fn selector() -> Value {
    json!({"matchLabels": {"app": "work"}})
}

/// The image of the containers as a patch.
fn image(image: &str) -> Value {
    let container = json!({"name": "c", "image": image});
    json!({"spec": {"template": {"spec": {"containers": [container]}}}})
}

#[tokio::test]
async fn a_daemon_set_runs_on_each_node_is_updated_and_rolled_back() {
    let mut cluster = Cluster::start().await;
    cluster
        .create::<DaemonSet>(json!({"selector": selector(), "template": template("Always")}))
        .await;
    cluster.run(2_000_000_000).await;
    let images = |pods: &[Arc<Pod>]| -> Vec<(String, String)> {
        let mut images: Vec<_> = pods
            .iter()
            .map(|pod| (pod.spec.node_name.clone(), pod.spec.containers[0].image.clone()))
            .collect();
        images.sort();
        images
    };
    let on_both =
        |image: &str| ["node-1", "node-2"].map(|node| (node.to_owned(), image.to_owned())).to_vec();
    assert_eq!(images(&cluster.list::<Pod>().await), on_both("a"));
    let status = cluster.read::<DaemonSet>().await.expect("the set").status;
    assert_eq!((status.desired_number_scheduled, status.number_available), (2, 2));
    cluster.patch::<DaemonSet>(image("b")).await;
    cluster.run(2_000_000_000).await;
    assert_eq!(images(&cluster.list::<Pod>().await), on_both("b"));
    // What `kubectl rollout undo` sends: the data of the revision.
    let revisions = cluster.list::<ControllerRevision>().await;
    let first = revisions.iter().find(|revision| revision.revision == 1).expect("the first");
    let path = format!("{}/work", cluster.path::<DaemonSet>());
    let media_type = "application/strategic-merge-patch+json";
    let data = first.data.raw.clone();
    cluster.server.call(Method::PATCH, &path, media_type, data).await.expect(200);
    cluster.run(2_000_000_000).await;
    assert_eq!(images(&cluster.list::<Pod>().await), on_both("a"));
    let mut numbers: Vec<i64> =
        cluster.list::<ControllerRevision>().await.iter().map(|r| r.revision).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [2, 3]);
}

/// The spec of a stateful set whose pods have a claim each.
fn with_claims(replicas: i32) -> Value {
    let requests = json!({"requests": {"storage": "1Gi"}});
    let claim = json!({
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": requests},
    });
    let mut template = template("Always");
    // The volume is the claim's.
    template["spec"]["containers"][0]["volumeMounts"] =
        json!([{"name": "data", "mountPath": "/data"}]);
    json!({
        "selector": selector(), "template": template, "serviceName": "work",
        "replicas": replicas, "volumeClaimTemplates": [claim],
    })
}

#[tokio::test]
async fn a_stateful_set_has_its_pods_in_order_and_claims_that_stay() {
    let mut cluster = Cluster::start().await;
    cluster.create::<StatefulSet>(with_claims(2)).await;
    cluster.settle(2_000_000_000).await;
    let names = |pods: &[Arc<Pod>]| -> Vec<String> {
        pods.iter().map(|pod| pod.metadata.name.clone()).collect()
    };
    assert_eq!(names(&cluster.list::<Pod>().await), ["work-0"]);
    cluster.run(2_000_000_000).await;
    assert_eq!(names(&cluster.list::<Pod>().await), ["work-0", "work-1"]);
    cluster.patch::<StatefulSet>(image("b")).await;
    cluster.run(2_000_000_000).await;
    let pods = cluster.list::<Pod>().await;
    assert!(pods.iter().all(|pod| pod.spec.containers[0].image == "b"));
    let status = cluster.read::<StatefulSet>().await.expect("the set").status;
    assert_eq!((status.ready_replicas, status.updated_replicas), (2, 2));
    assert_eq!(status.current_revision, status.update_revision);
    cluster.patch::<StatefulSet>(json!({"spec": {"replicas": 1}})).await;
    cluster.run(2_000_000_000).await;
    assert_eq!(names(&cluster.list::<Pod>().await), ["work-0"]);
    let claims = cluster.list::<PersistentVolumeClaim>().await;
    let claims: Vec<&str> = claims.iter().map(|claim| &*claim.metadata.name).collect();
    assert_eq!(claims, ["data-work-0", "data-work-1"]);
}

/// This gate or none.
fn gate_if(gate: FieldGate, is_on: bool) -> FieldGates {
    is_on.then_some(gate).into_iter().collect()
}

/// A server whose stateful sets have retention policies, or not.
async fn start_with_retention(claim_retention_policies: bool) -> TestServer {
    let names = Names::new(Profile::Kubernetes);
    let field_gates = gate_if(FieldGate::StatefulSetAutoDeletePvc, claim_retention_policies);
    let server = TestServer::with(Config { field_gates, ..Config::for_tests(names) }).await;
    let account = r#"{"metadata": {"name": "default"}}"#;
    server.post("/api/v1/namespaces/default/serviceaccounts", account).await.expect(201);
    server
}

#[tokio::test]
async fn claims_of_a_stateful_set_have_owners_by_its_policy() {
    let mut cluster = Cluster::on(start_with_retention(true).await).await;
    let mut spec = with_claims(2);
    spec["persistentVolumeClaimRetentionPolicy"] =
        json!({"whenDeleted": "Delete", "whenScaled": "Delete"});
    cluster.create::<StatefulSet>(spec).await;
    cluster.run(2_000_000_000).await;
    let owners = async |cluster: &Cluster| -> Vec<String> {
        let claims = cluster.list::<PersistentVolumeClaim>().await;
        let owner = |claim: &Arc<PersistentVolumeClaim>| {
            let owners = claim.metadata.owner_references.iter();
            owners.map(|owner| format!("{} {}", owner.kind, owner.name)).collect::<String>()
        };
        claims.iter().map(owner).collect()
    };
    assert_eq!(owners(&cluster).await, ["StatefulSet work", "StatefulSet work"]);
    cluster.patch::<StatefulSet>(json!({"spec": {"replicas": 1}})).await;
    cluster.settle(2_000_000_000).await;
    assert_eq!(owners(&cluster).await, ["StatefulSet work", "Pod work-1"]);
    cluster.patch::<StatefulSet>(json!({"spec": {"replicas": 2}})).await;
    cluster.settle(2_000_000_000).await;
    assert_eq!(owners(&cluster).await, ["StatefulSet work", "StatefulSet work"]);
}

#[tokio::test]
async fn the_retention_policy_of_claims_is_kept_with_its_feature_only() {
    const SETS: &str = "/apis/apps/v1/namespaces/default/statefulsets";
    const POLICY: &str = "/spec/persistentVolumeClaimRetentionPolicy";
    let plain = json!({"metadata": {"name": "plain"}, "spec": with_claims(1)});
    let change = |policy: Value| {
        json!({"spec": {"persistentVolumeClaimRetentionPolicy": policy}}).to_string()
    };
    for is_on in [false, true] {
        let server = start_with_retention(is_on).await;
        let kept = |words: [&str; 2]| {
            is_on.then(|| json!({"whenDeleted": words[0], "whenScaled": words[1]}))
        };
        let stored = server.post(SETS, plain.to_string()).await.expect(201);
        assert_eq!(stored.pointer(POLICY).cloned(), kept(["Retain", "Retain"]));
        let mut set = json!({"metadata": {"name": "set"}, "spec": with_claims(1)});
        set["spec"]["persistentVolumeClaimRetentionPolicy"] = json!({"whenScaled": "Delete"});
        let stored = server.post(SETS, set.to_string()).await.expect(201);
        assert_eq!(stored.pointer(POLICY).cloned(), kept(["Retain", "Delete"]));
        // It may change. What is dropped is no change.
        let path = format!("{SETS}/set");
        let changed = server.merge_patch(&path, &change(json!({"whenDeleted": "Delete"}))).await;
        let changed = changed.expect(200);
        assert_eq!(changed.pointer(POLICY).cloned(), kept(["Delete", "Delete"]));
        assert_eq!(changed["metadata"]["generation"], if is_on { 2 } else { 1 });
        let wrong = server.merge_patch(&path, &change(json!({"whenDeleted": "Keep"}))).await;
        assert_eq!(wrong.code(), if is_on { 422 } else { 200 });
    }
}

#[tokio::test]
async fn pods_of_a_stateful_set_that_may_be_unavailable_are_kept_with_their_feature_only() {
    const SETS: &str = "/apis/apps/v1/namespaces/default/statefulsets";
    const FIELD: &str = "/spec/updateStrategy/rollingUpdate/maxUnavailable";
    let named = |name: &str| json!({"metadata": {"name": name}, "spec": with_claims(1)});
    let change = |away: Value| {
        json!({"spec": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": away}}}}).to_string()
    };
    for is_on in [false, true] {
        let names = Names::new(Profile::Kubernetes);
        let field_gates = gate_if(FieldGate::MaxUnavailableStatefulSet, is_on);
        let server = TestServer::with(Config { field_gates, ..Config::for_tests(names) }).await;
        let kept = |away: Value| is_on.then_some(away);
        let stored = server.post(SETS, named("plain").to_string()).await.expect(201);
        assert_eq!(stored.pointer(FIELD).cloned(), kept(json!(1)));
        assert_eq!(stored.pointer("/spec/updateStrategy/rollingUpdate/partition"), Some(&json!(0)));
        let mut set = named("set");
        set["spec"]["updateStrategy"] = json!({"rollingUpdate": {"maxUnavailable": 2}});
        let stored = server.post(SETS, set.to_string()).await.expect(201);
        assert_eq!(stored.pointer(FIELD).cloned(), kept(json!(2)));
        let path = format!("{SETS}/set");
        let changed = server.merge_patch(&path, &change(json!("50%"))).await.expect(200);
        assert_eq!(changed.pointer(FIELD).cloned(), kept(json!("50%")));
        let none = server.merge_patch(&path, &change(json!(0))).await;
        assert_eq!(none.code(), if is_on { 422 } else { 200 });
        let mut by_hand = named("by-hand");
        by_hand["spec"]["updateStrategy"] = json!({"type": "OnDelete"});
        let stored = server.post(SETS, by_hand.to_string()).await.expect(201);
        assert_eq!(stored["spec"]["updateStrategy"], json!({"type": "OnDelete"}));
    }
}

#[tokio::test]
async fn an_indexed_job_is_tracked_by_finalizers_until_it_is_complete() {
    let mut cluster = Cluster::start().await;
    cluster
        .create::<Job>(json!({
            "completions": 3, "parallelism": 2, "completionMode": "Indexed",
            "template": template("Never"),
        }))
        .await;
    let tracking = "batch.kubernetes.io/job-tracking";
    let job = cluster.read::<Job>().await.expect("the job");
    assert!(job.metadata.annotations.contains_key(tracking), "{:?}", job.metadata.annotations);
    cluster.settle(2_000_000_000).await;
    let pods = cluster.list::<Pod>().await;
    assert!(pods.len() == 2 && pods.iter().all(|pod| pod.metadata.finalizers == [tracking]));
    let index =
        |pod: &Pod| pod.metadata.annotations["batch.kubernetes.io/job-completion-index"].clone();
    assert_eq!(pods.iter().map(|pod| index(pod)).collect::<Vec<_>>(), ["0", "1"]);
    for _ in 0..2 {
        cluster.run_kubelets("Succeeded").await;
        cluster.settle(2_000_000_000).await;
    }
    let status = cluster.read::<Job>().await.expect("the job").status;
    assert_eq!((status.succeeded, status.active, &*status.completed_indexes), (3, 0, "0-2"));
    assert_eq!(status.conditions.iter().map(|c| &*c.type_).collect::<Vec<_>>(), ["Complete"]);
    let pods = cluster.list::<Pod>().await;
    assert!(pods.len() == 3 && pods.iter().all(|pod| pod.metadata.finalizers.is_empty()));
}

#[tokio::test]
async fn a_deleted_pod_of_a_job_stays_until_it_is_counted() {
    let mut cluster = Cluster::start().await;
    cluster.create::<Job>(json!({"template": template("Never"), "backoffLimit": 0})).await;
    cluster.settle(2_000_000_000).await;
    cluster.run_kubelets("Running").await;
    let pod = cluster.list::<Pod>().await[0].metadata.name.clone();
    let path = format!("{}/{pod}", cluster.path::<Pod>());
    let now = json!({"gracePeriodSeconds": 0}).to_string();
    cluster.server.call(Method::DELETE, &path, "application/json", now).await.expect(200);
    cluster.server.get(&path).await.expect(200);
    cluster.settle(2_000_000_000).await;
    assert_eq!(cluster.server.get(&path).await.code(), 404);
    let status = cluster.read::<Job>().await.expect("the job").status;
    assert_eq!((status.failed, status.active), (1, 0));
    assert_eq!(status.conditions[0].reason, "BackoffLimitExceeded");
}

#[tokio::test]
async fn a_cron_job_starts_a_job_and_notes_its_end() {
    let mut cluster = Cluster::start().await;
    cluster
        .create::<CronJob>(json!({
            "schedule": "*/10 * * * *", "timeZone": "Europe/Berlin",
            "jobTemplate": {"spec": {"template": template("Never")}},
        }))
        .await;
    cluster.settle(2_000_000_000).await;
    let jobs = cluster.list::<Job>().await;
    let [job] = &jobs[..] else { panic!("one job: {jobs:?}") };
    assert_eq!(job.metadata.name, "work-33333330");
    assert_eq!(job.metadata.owner_references[0].kind, "CronJob");
    let status = cluster.read::<CronJob>().await.expect("it").status;
    assert_eq!(status.last_schedule_time, Some(Time::from_unix(1_999_999_800)));
    assert_eq!(status.active[0].uid, job.metadata.uid);
    let path = format!("{}/{}/status", cluster.path::<Job>(), job.metadata.name);
    let done = json!({"status": {
        "completionTime": "2033-05-18T03:33:00Z",
        "conditions": [{"type": "Complete", "status": "True"}],
    }});
    cluster.server.merge_patch(&path, &done.to_string()).await.expect(200);
    cluster.settle(2_000_000_100).await;
    let status = cluster.read::<CronJob>().await.expect("it").status;
    assert!(status.active.is_empty() && status.last_successful_time.is_some());
    assert_eq!(cluster.list::<Job>().await.len(), 1, "its time is over");
}

#[tokio::test]
async fn a_failure_policy_is_kept_with_its_feature_only() {
    const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
    const CRON_JOBS: &str = "/apis/batch/v1/namespaces/default/cronjobs";
    let rule = json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]});
    let containers = json!([{"name": "c", "image": "i"}]);
    let spec = json!({"podFailurePolicy": {"rules": [rule]},
        "template": {"spec": {"restartPolicy": "Never", "containers": containers}}});
    let job = json!({"metadata": {"name": "a"}, "spec": spec});
    let cron_job = json!({"metadata": {"name": "a"},
        "spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": spec}}});
    for pod_failure_policies in [false, true] {
        let names = Names::new(Profile::Kubernetes);
        let field_gates = gate_if(FieldGate::JobPodFailurePolicy, pod_failure_policies);
        let config = Config { field_gates, ..Config::for_tests(names) };
        let server = TestServer::with(config).await;
        for (path, object, policy) in [
            (JOBS, &job, "/spec/podFailurePolicy"),
            (CRON_JOBS, &cron_job, "/spec/jobTemplate/spec/podFailurePolicy"),
        ] {
            let stored = server.post(path, object.to_string()).await.expect(201);
            let status = stored.pointer(&format!("{policy}/rules/0/onPodConditions/0/status"));
            assert_eq!(status == Some(&json!("True")), pod_failure_policies, "{path}");
            // An update does not bring it in either.
            let mut again = stored.clone();
            let parent = policy.trim_end_matches("/podFailurePolicy");
            again.pointer_mut(parent).expect("a spec")["podFailurePolicy"] =
                object.pointer(policy).expect("a policy").clone();
            let stored = server.put(&format!("{path}/a"), &again).await.expect(200);
            assert_eq!(stored.pointer(policy).is_some(), pod_failure_policies, "{path}");
        }
    }
}
