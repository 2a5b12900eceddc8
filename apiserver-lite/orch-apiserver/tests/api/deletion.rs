//! Deletions: grace periods, propagation to dependents, dry runs, evictions and bindings.

use http::Method;
use orch_apiserver::Config;
use serde_json::{Value, json};

use crate::support::{TestServer, kubernetes};

const PODS: &str = "/api/v1/namespaces/default/pods";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SETS: &str = "/apis/apps/v1/namespaces/default/replicasets";
const CONTROLLERS: &str = "/api/v1/namespaces/default/replicationcontrollers";
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";

fn pod(name: &str) -> Value {
    let container = json!({"name": "c", "image": "i"});
    json!({"metadata": {"name": name, "labels": {"app": "web"}}, "spec": {"containers": [container]}})
}

fn template() -> Value {
    json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    })
}

fn set(name: &str) -> Value {
    let selector = json!({"matchLabels": {"app": "web"}});
    json!({
        "metadata": {"name": name},
        "spec": {"replicas": 0, "selector": selector, "template": template()},
    })
}

async fn bind(server: &TestServer, name: &str) {
    let binding = json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": "n"}});
    server.post(&format!("{PODS}/{name}/binding"), binding.to_string()).await.expect(201);
}

/// A running pod on node `n`; `ready` is its Ready condition.
async fn running(server: &TestServer, name: &str, ready: &str) {
    server.post(PODS, pod(name).to_string()).await.expect(201);
    bind(server, name).await;
    let condition = json!({"type": "Ready", "status": ready});
    let status = json!({"status": {"phase": "Running", "conditions": [condition]}});
    server.merge_patch(&format!("{PODS}/{name}/status"), &status.to_string()).await.expect(200);
}

async fn delete(server: &TestServer, path: &str, options: Value) -> crate::support::Reply {
    server.call(Method::DELETE, path, "application/json", options.to_string()).await
}

fn finalizers(object: &Value) -> Value {
    object["metadata"]["finalizers"].clone()
}

#[tokio::test]
async fn any_grace_is_survived() {
    let server = TestServer::start().await;
    let longest = i64::from(i32::MAX);
    let table = [
        (json!(i64::MAX), longest),
        (json!(i64::MAX - 1), longest),
        (json!(u64::from(u32::MAX) + 1), longest),
        (json!(longest), longest),
        (json!(-1), 1),
        (json!(i64::MIN), 1),
        (Value::Null, 30),
    ];
    for (at, (asked, expected)) in table.into_iter().enumerate() {
        let name = format!("p{at}");
        server.post(PODS, pod(&name).to_string()).await.expect(201);
        bind(&server, &name).await;
        let path = format!("{PODS}/{name}");
        let options = json!({"gracePeriodSeconds": asked});
        let tried = format!("{path}?dryRun=All");
        let tried = delete(&server, &tried, options.clone()).await.expect(200);
        assert_eq!(tried["metadata"]["deletionGracePeriodSeconds"], expected, "{asked}, tried");
        let unmarked = server.get(&path).await.expect(200);
        assert!(unmarked["metadata"]["deletionTimestamp"].is_null(), "{asked}, tried");
        let evicted = json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": name}, "deleteOptions": options.clone(),
        });
        match at % 2 {
            0 => drop(delete(&server, &path, options).await.expect(200)),
            _ => drop(
                server.post(&format!("{path}/eviction"), evicted.to_string()).await.expect(201),
            ),
        }
        let marked = server.get(&path).await.expect(200);
        assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], expected, "{asked}");
        assert!(marked["metadata"]["deletionTimestamp"].is_string(), "{asked}: {marked}");
    }
    let options = json!({"gracePeriodSeconds": i64::MAX});
    delete(&server, PODS, options).await.expect(200);
    // Query parameters work like the body's options.
    server.delete(&format!("{PODS}/p6?gracePeriodSeconds=-5")).await.expect(200);
    let marked = server.get(&format!("{PODS}/p6")).await.expect(200);
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 1);
    server.delete(&format!("{PODS}/p5?gracePeriodSeconds=many")).await.expect(400);
}

#[tokio::test]
async fn a_grace_that_runs_is_only_shortened_by_name() {
    let server = TestServer::start().await;
    server.post(PODS, pod("p").to_string()).await.expect(201);
    bind(&server, "p").await;
    let path = format!("{PODS}/p");
    let marked = delete(&server, &path, json!({"gracePeriodSeconds": 60})).await.expect(200);
    let again = delete(&server, &path, json!({})).await.expect(200);
    assert_eq!(again["metadata"], marked["metadata"], "no period is asked for");
    let longer = delete(&server, &path, json!({"gracePeriodSeconds": 90})).await.expect(200);
    assert_eq!(longer["metadata"], marked["metadata"]);
    let shorter = delete(&server, &path, json!({"gracePeriodSeconds": 5})).await.expect(200);
    assert_eq!(shorter["metadata"]["deletionGracePeriodSeconds"], 5);
}

#[tokio::test]
async fn the_propagation_policy_sets_the_deletion_finalizers() {
    let server = TestServer::start().await;
    let policy = |policy: &str| json!({"propagationPolicy": policy});
    let table = [
        (policy("Orphan"), json!(["orphan"])),
        (policy("Foreground"), json!(["foregroundDeletion"])),
        (policy("Background"), Value::Null),
        (json!({"orphanDependents": true}), json!(["orphan"])),
        (json!({"orphanDependents": false}), Value::Null),
        (json!({}), Value::Null),
    ];
    for (options, expected) in table {
        server.post(SETS, set("a").to_string()).await.expect(201);
        let path = format!("{SETS}/a");
        delete(&server, &format!("{path}?dryRun=All"), options.clone()).await.expect(200);
        assert!(finalizers(&server.get(&path).await.expect(200)).is_null(), "{options}, tried");
        delete(&server, &path, options.clone()).await.expect(200);
        if expected.is_null() {
            server.get(&path).await.expect(404);
            continue;
        }
        let marked = server.get(&path).await.expect(200);
        assert_eq!(finalizers(&marked), expected, "{options}");
        assert!(marked["metadata"]["deletionTimestamp"].is_string(), "{options}");
        assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 0, "{options}");
        let again = delete(&server, &path, options).await.expect(200);
        assert_eq!(again, marked, "a second request changes nothing");
        // Kubernetes accepts another policy for an object that is being deleted.
        delete(&server, &path, policy("Background")).await.expect(200);
        server.get(&path).await.expect(404);
    }
}

#[tokio::test]
async fn an_explicit_propagation_policy_replaces_deletion_finalizers() {
    let server = TestServer::start().await;
    let table = [
        ("orphan", json!({}), json!(["example.org/hold", "orphan"])),
        ("foregroundDeletion", json!({}), json!(["example.org/hold", "foregroundDeletion"])),
        (
            "orphan",
            json!({"propagationPolicy": "Foreground"}),
            json!(["example.org/hold", "foregroundDeletion"]),
        ),
        ("orphan", json!({"propagationPolicy": "Background"}), json!(["example.org/hold"])),
        ("foregroundDeletion", json!({"orphanDependents": false}), json!(["example.org/hold"])),
    ];
    for (at, (finalizer, options, expected)) in table.into_iter().enumerate() {
        let metadata =
            json!({"name": format!("m{at}"), "finalizers": ["example.org/hold", finalizer]});
        server.post(MAPS, json!({"metadata": metadata}).to_string()).await.expect(201);
        let path = format!("{MAPS}/m{at}");
        delete(&server, &path, options.clone()).await.expect(200);
        assert_eq!(finalizers(&server.get(&path).await.expect(200)), expected, "{at} {options}");
    }
}

#[tokio::test]
async fn kinds_have_their_own_default_policy() {
    let server = TestServer::start().await;
    let controller = json!({
        "metadata": {"name": "a"},
        "spec": {"replicas": 0, "selector": {"app": "web"}, "template": template()},
    });
    let mut job_template = template();
    job_template["spec"]["restartPolicy"] = json!("Never");
    let job = json!({"metadata": {"name": "a"}, "spec": {"template": job_template}});
    for (collection, object, expected) in
        [(CONTROLLERS, controller, json!(["orphan"])), (JOBS, job, json!(["orphan"]))]
    {
        let path = format!("{collection}/a");
        server.post(collection, object.to_string()).await.expect(201);
        server.delete(&path).await.expect(200);
        assert_eq!(finalizers(&server.get(&path).await.expect(200)), expected, "{collection}");
        server.delete(&format!("{path}?propagationPolicy=Background")).await.expect(200);
        server.get(&path).await.expect(404);
        server.post(collection, object.to_string()).await.expect(201);
        server.delete(&format!("{path}?orphanDependents=false")).await.expect(200);
        server.get(&path).await.expect(404);
    }
    // Events have no dependents: policies are ignored.
    let about = json!({"kind": "Pod", "namespace": "default", "name": "p"});
    let event = json!({"metadata": {"name": "e"}, "involvedObject": about, "reason": "Test"});
    let events = "/api/v1/namespaces/default/events";
    server.post(events, event.to_string()).await.expect(201);
    server.delete(&format!("{events}/e?propagationPolicy=Orphan")).await.expect(200);
    server.get(&format!("{events}/e")).await.expect(404);
}

#[tokio::test]
async fn a_policy_must_be_one_and_only_one() {
    let server = TestServer::start().await;
    server.post(SETS, set("a").to_string()).await.expect(201);
    for path in [format!("{SETS}/a"), SETS.to_owned()] {
        let both = json!({"propagationPolicy": "Orphan", "orphanDependents": true});
        let refused = delete(&server, &path, both).await.expect(422);
        let message = refused["message"].as_str().unwrap_or_default();
        assert!(
            message.contains("orphanDependents and deletionPropagation cannot be both set"),
            "{message}"
        );
        let unknown = json!({"propagationPolicy": "Never"});
        let refused = delete(&server, &path, unknown).await.expect(422);
        assert_eq!(refused["details"]["causes"][0]["field"], "propagationPolicy");
        assert_eq!(refused["details"]["kind"], "DeleteOptions");
        server.delete(&format!("{path}?propagationPolicy=Never")).await.expect(422);
    }
    server.get(&format!("{SETS}/a")).await.expect(200);
}

#[tokio::test]
async fn collections_are_deleted_as_objects_are() {
    let server = TestServer::start().await;
    for name in ["a", "b", "c"] {
        server.post(SETS, set(name).to_string()).await.expect(201);
    }
    let orphan = json!({"propagationPolicy": "Orphan"});
    delete(&server, &format!("{SETS}?dryRun=All"), orphan.clone()).await.expect(200);
    let before = server.get(SETS).await.expect(200);
    assert!(before["items"].as_array().unwrap().iter().all(|set| finalizers(set).is_null()));
    // `limit` limits the listed objects, as in Kubernetes.
    delete(&server, &format!("{SETS}?limit=2"), orphan.clone()).await.expect(200);
    let after = server.get(SETS).await.expect(200);
    let marked = |list: &Value| -> Vec<bool> {
        let sets = list["items"].as_array().unwrap().iter();
        sets.map(|set| finalizers(set) == json!(["orphan"])).collect()
    };
    assert_eq!(marked(&after), [true, true, false]);
    delete(&server, SETS, orphan).await.expect(200);
    assert_eq!(marked(&server.get(SETS).await.expect(200)), [true, true, true]);
    server.delete(&format!("{SETS}?limit=x")).await.expect(400);
}

async fn budget(server: &TestServer, name: &str, status: Value) {
    let selector = json!({"matchLabels": {"app": "web"}});
    let budget =
        json!({"metadata": {"name": name}, "spec": {"minAvailable": 1, "selector": selector}});
    server.post(BUDGETS, budget.to_string()).await.expect(201);
    let patch = json!({"status": status}).to_string();
    server.merge_patch(&format!("{BUDGETS}/{name}/status"), &patch).await.expect(200);
}

async fn evict(server: &TestServer, name: &str, query: &str) -> crate::support::Reply {
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
    server.post(&format!("{PODS}/{name}/eviction{query}"), eviction.to_string()).await
}

fn allows(disruptions: i64, healthy: i64, desired: i64) -> Value {
    json!({
        "observedGeneration": 1, "disruptionsAllowed": disruptions, "currentHealthy": healthy,
        "desiredHealthy": desired, "expectedPods": healthy,
    })
}

/// Drainers from before Kubernetes 1.22 send no other version, and 1.25 still takes it.
#[tokio::test]
async fn an_eviction_may_be_of_the_older_version() {
    let server = TestServer::start().await;
    running(&server, "a", "True").await;
    let path = format!("{PODS}/a/eviction");
    let of = |version: &str| {
        json!({"apiVersion": version, "kind": "Eviction", "metadata": {"name": "a"}}).to_string()
    };
    for wrong in ["policy/v1alpha1", "apps/v1beta1", "v1beta1"] {
        server.post(&path, of(wrong)).await.expect(400);
    }
    server.post(&path, of("policy/v1beta1")).await.expect(201);
}

#[tokio::test]
async fn evictions_take_from_the_budget() {
    let server = TestServer::start().await;
    for name in ["a", "b"] {
        running(&server, name, "True").await;
    }
    budget(&server, "one", allows(1, 2, 1)).await;
    let path = format!("{BUDGETS}/one");
    let before = server.get(&path).await.expect(200);
    evict(&server, "a", "?dryRun=All").await.expect(201);
    assert_eq!(server.get(&path).await.expect(200), before, "a dry run takes nothing");
    evict(&server, "a", "").await.expect(201);
    let after = server.get(&path).await.expect(200);
    assert_eq!(after["status"]["disruptionsAllowed"], 0);
    assert!(after["status"]["disruptedPods"]["a"].is_string(), "{after}");
    let condition = &after["status"]["conditions"][0];
    assert_eq!(
        (condition["type"].as_str(), condition["status"].as_str(), condition["reason"].as_str()),
        (Some("DisruptionAllowed"), Some("False"), Some("InsufficientPods"))
    );
    for query in ["", "?dryRun=All"] {
        let refused = evict(&server, "b", query).await.expect(429);
        let cause = &refused["details"]["causes"][0];
        assert_eq!(cause["reason"], "DisruptionBudget", "{refused}");
        assert_eq!(
            cause["message"],
            "The disruption budget one needs 1 healthy pods and has 2 currently"
        );
    }
    // A pod that is being deleted needs no budget.
    evict(&server, "a", "").await.expect(201);
}

#[tokio::test]
async fn pods_that_no_budget_protects() {
    let server = TestServer::start().await;
    running(&server, "sick", "False").await;
    server.post(PODS, pod("pending").to_string()).await.expect(201);
    budget(&server, "one", allows(0, 1, 1)).await;
    evict(&server, "pending", "").await.expect(201);
    evict(&server, "sick", "").await.expect(201);
    running(&server, "well", "True").await;
    evict(&server, "well", "").await.expect(429);
    // The controller has not processed the budget yet.
    let unseen = json!({"observedGeneration": 0, "disruptionsAllowed": 5});
    let patch = json!({"status": unseen}).to_string();
    server.merge_patch(&format!("{BUDGETS}/one/status"), &patch).await.expect(200);
    let refused = evict(&server, "well", "").await;
    assert_eq!(refused.headers.get("retry-after").map(|v| v.as_bytes()), Some(&b"10"[..]));
    refused.expect(429);
    budget(&server, "two", allows(1, 1, 0)).await;
    evict(&server, "well", "").await.expect(500);
}

#[tokio::test]
async fn a_sick_pod_is_protected_while_too_few_are_well() {
    let server = TestServer::start().await;
    running(&server, "sick", "False").await;
    budget(&server, "one", allows(0, 0, 1)).await;
    evict(&server, "sick", "").await.expect(429);
}

async fn start_with_conditions(disruption_conditions: bool) -> TestServer {
    let config = Config { disruption_conditions, ..Config::for_tests(kubernetes()) };
    let server = TestServer::with(config).await;
    let account = json!({"metadata": {"name": "default"}}).to_string();
    server.post("/api/v1/namespaces/default/serviceaccounts", account).await.expect(201);
    server
}

/// With the gate PodDisruptionConditions, which is off unless it is set, the pod says why it ends before it is deleted.
#[tokio::test]
async fn an_evicted_pod_says_so_where_the_gate_is_on() {
    for disruption_conditions in [false, true] {
        let server = start_with_conditions(disruption_conditions).await;
        running(&server, "a", "True").await;
        server.post(PODS, pod("waiting").to_string()).await.expect(201);
        bind(&server, "waiting").await;
        budget(&server, "one", allows(2, 2, 1)).await;
        let path = format!("{PODS}/a");
        let before = server.get(&path).await.expect(200);
        evict(&server, "a", "?dryRun=All").await.expect(201);
        assert_eq!(server.get(&path).await.expect(200), before, "a dry run writes nothing");
        for name in ["a", "waiting"] {
            // A pod that runs and one that its budget does not protect: that one is deleted only in the version that was read.
            evict(&server, name, "").await.expect(201);
            let evicted = server.get(&format!("{PODS}/{name}")).await.expect(200);
            assert!(evicted["metadata"]["deletionTimestamp"].is_string(), "{evicted}");
            let conditions = evicted["status"]["conditions"].as_array().cloned();
            let conditions = conditions.unwrap_or_default();
            let is_target = |one: &&Value| one["type"] == "DisruptionTarget";
            let Some(target) = conditions.iter().find(is_target) else {
                assert!(!disruption_conditions, "{evicted}");
                continue;
            };
            assert!(disruption_conditions, "{evicted}");
            let of = |field: &str| target[field].as_str().unwrap_or_default();
            assert_eq!((of("status"), of("reason")), ("True", "EvictionByEvictionAPI"));
            assert_eq!(of("message"), "Eviction API: evicting");
            assert!(target["lastTransitionTime"].is_string(), "{target}");
        }
        let evicted = server.get(&path).await.expect(200);
        assert_eq!(evicted["status"]["conditions"][0]["type"], "Ready", "the others stay");
        assert_eq!(
            server.get(&format!("{BUDGETS}/one")).await.expect(200)["status"]["disruptionsAllowed"],
            1
        );
    }
}

/// The condition is a new version of the pod: a client's precondition is one about the version before it.
#[tokio::test]
async fn preconditions_of_an_eviction_count_before_the_condition_is_written() {
    let server = start_with_conditions(true).await;
    running(&server, "a", "True").await;
    let path = format!("{PODS}/a");
    let pod = server.get(&path).await.expect(200);
    let evict_version = async |version: &Value| {
        let options = json!({"preconditions": {"resourceVersion": version}});
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": "a"}, "deleteOptions": options});
        server.post(&format!("{path}/eviction"), eviction.to_string()).await
    };
    evict_version(&json!("1")).await.expect(409);
    assert_eq!(server.get(&path).await.expect(200), pod, "nothing is written");
    evict_version(&pod["metadata"]["resourceVersion"]).await.expect(201);
}

#[tokio::test]
async fn node_names_and_annotations_of_bindings_are_validated() {
    let server = TestServer::start().await;
    server.post(PODS, pod("p").to_string()).await.expect(201);
    let path = format!("{PODS}/p/binding");
    let binding = |node: &str, annotations: Value| {
        let metadata = json!({"name": "p", "annotations": annotations});
        json!({"metadata": metadata, "target": {"kind": "Node", "name": node}}).to_string()
    };
    for node in ["../n", "N", "n/x", "a..b", &"n".repeat(254)] {
        server.post(&path, binding(node, json!({}))).await.expect(422);
    }
    let long = "x".repeat(300_000);
    for annotations in [json!({"a/b/c": "x"}), json!({"large": long})] {
        server.post(&path, binding("n", annotations)).await.expect(422);
    }
    let other = json!({"metadata": {"name": "q"}, "target": {"kind": "Node", "name": "n"}});
    server.post(&path, other.to_string()).await.expect(400);
    let unbound = server.get(&format!("{PODS}/p")).await.expect(200);
    assert!(unbound["spec"]["nodeName"].is_null(), "{unbound}");
    server.post(&format!("{path}?dryRun=All"), binding("n", json!({}))).await.expect(201);
    assert_eq!(server.get(&format!("{PODS}/p")).await.expect(200), unbound);
    server.post(&path, binding("n", json!({"note": "x"}))).await.expect(201);
    let refused = server.post(&path, binding("m", json!({}))).await.expect(409);
    let message = refused["message"].as_str().unwrap_or_default();
    assert!(message.contains("pod p is already assigned to node \"n\""), "{message}");
}

/// As in Kubernetes 1.25.
#[tokio::test]
async fn a_binding_sets_annotations_and_no_labels_and_names_the_version_that_it_binds() {
    let server = TestServer::start().await;
    let made = server.post(PODS, pod("p").to_string()).await.expect(201);
    let path = format!("{PODS}/p");
    let bind = async |version: &Value| {
        let metadata = json!({"name": "p", "resourceVersion": version, "annotations": {"note": "x"},
            "labels": {"app": "other", "more": "x"}});
        let binding = json!({"metadata": metadata, "target": {"kind": "Node", "name": "n"}});
        server.post(&format!("{path}/binding"), binding.to_string()).await
    };
    let old = made["metadata"]["resourceVersion"].clone();
    let note = json!({"metadata": {"annotations": {"changed": "x"}}}).to_string();
    let changed = server.merge_patch(&path, &note).await.expect(200);
    let now = changed["metadata"]["resourceVersion"].clone();
    let refused = bind(&old).await.expect(409);
    let message = refused["message"].as_str().unwrap_or_default();
    let words = format!(
        "Precondition failed: ResourceVersion in precondition: {}, ResourceVersion in object meta: {}",
        old.as_str().unwrap_or_default(),
        now.as_str().unwrap_or_default()
    );
    assert!(message.contains(&words), "{message}");
    assert_eq!(server.get(&path).await.expect(200), changed);
    bind(&now).await.expect(201);
    let bound = server.get(&path).await.expect(200);
    assert_eq!(bound["spec"]["nodeName"], "n");
    let (labels, annotations) = (&bound["metadata"]["labels"], &bound["metadata"]["annotations"]);
    assert_eq!(
        (labels, annotations),
        (&json!({"app": "web"}), &json!({"changed": "x", "note": "x"}))
    );
}

#[tokio::test]
async fn field_managers_are_short_and_printable() {
    let server = TestServer::start().await;
    let map = |name: &str| json!({"metadata": {"name": name}}).to_string();
    let long = "m".repeat(129);
    for manager in [long.as_str(), "a%0Ab", "a%07"] {
        let query = format!("?fieldManager={manager}");
        server.post(&format!("{MAPS}{query}"), map("a")).await.expect(422);
    }
    server.post(&format!("{MAPS}?fieldManager={}", "m".repeat(128)), map("a")).await.expect(201);
    let path = format!("{MAPS}/a?fieldManager={long}");
    server.merge_patch(&path, "{}").await.expect(422);
    server.put(&path, &json!({"metadata": {"name": "a"}})).await.expect(422);
}

#[tokio::test]
async fn objects_created_while_their_namespace_is_deleted_are_not_left_behind() {
    // A new pod waits for the missing service account `default`, long enough for the namespace to be deleted.
    let server = TestServer::with(Config::for_tests(kubernetes())).await;
    server.post("/api/v1/namespaces", r#"{"metadata":{"name":"team"}}"#).await.expect(201);
    let (pods, accounts) =
        ("/api/v1/namespaces/team/pods", "/api/v1/namespaces/team/serviceaccounts");
    let create = server.post(pods, pod("p").to_string());
    let end = async {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        let mut going = server.delete("/api/v1/namespaces/team").await.expect(200);
        going["spec"]["finalizers"] = json!([]);
        server.put("/api/v1/namespaces/team/finalize", &going).await.expect(200);
        server.get("/api/v1/namespaces/team").await.expect(404);
        let _ = accounts;
    };
    let (created, ()) = tokio::join!(create, end);
    assert_ne!(created.code(), 201, "created in a namespace that is gone");
    server.get(&format!("{pods}/p")).await.expect(404);
}
