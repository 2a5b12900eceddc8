//! Tables: what was read of an object, and the findings.

mod cluster;

use serde_json::json;

use super::*;

const NOW: i64 = 1000;

fn event(reason: &str, message: &str) -> Value {
    json!({"reason": reason, "message": message})
}

fn event_of(container: &str, reason: &str, message: &str) -> Value {
    json!({"reason": reason, "message": message, "count": 3,
        "involvedObject": {"fieldPath": format!("spec.containers{{{container}}}")}})
}

fn node(ready: &str) -> Lookup {
    Lookup::Found(json!({"status": {"conditions": [
        {"type": "Ready", "status": ready, "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."}]}}))
}

/// A pod of one container on a ready node; `status` is that of the container.
fn pod(container: Value, status: Value, events: &[Value]) -> PodCase {
    let mut spec = json!({"name": "app", "image": "i:1"});
    merge(&mut spec, container);
    let mut shown = json!({"name": "app", "ready": false, "restartCount": 0, "state": {}});
    merge(&mut shown, status);
    PodCase {
        pod: json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "n"},
            "spec": {"nodeName": "n1", "containers": [spec]},
            "status": {"phase": "Pending", "containerStatuses": [shown],
                "conditions": [{"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "containers with unready status: [app]"}]}}),
        events: events.to_vec(),
        node: Some(node("True")),
        claims: Vec::new(),
    }
}

/// Sets fields of maps in maps.
fn merge(tree: &mut Value, other: Value) {
    match (tree, other) {
        (Value::Object(tree), Value::Object(other)) => {
            for (key, value) in other {
                merge(tree.entry(key).or_insert(Value::Null), value);
            }
        }
        (tree, other) => *tree = other,
    }
}

fn with(mut case: PodCase, other: Value) -> PodCase {
    merge(&mut case.pod, other);
    case
}

fn waiting(reason: &str, message: &str) -> Value {
    json!({"state": {"waiting": {"reason": reason, "message": message}}})
}

fn running(more: Value) -> Value {
    let mut status = json!({"state": {"running": {"startedAt": "1970-01-01T00:00:10Z"}}});
    merge(&mut status, more);
    status
}

fn text(case: &Case) -> String {
    render(&explain(case, NOW))
}

fn pod_text(case: PodCase) -> String {
    text(&Case { object: case.pod.clone(), pods: vec![case], ..Case::default() })
}

/// Each line of the answer holds the parts of one wanted line, in order.
fn assert_findings(what: &str, answer: &str, wanted: &[&[&str]]) {
    assert_eq!(answer.lines().count(), wanted.len(), "{what}: {answer}");
    for (line, parts) in answer.lines().zip(wanted) {
        let mut rest = line;
        for part in *parts {
            let found = rest.split_once(part);
            assert!(found.is_some(), "{what}: {part:?} is not in {line:?}");
            rest = found.map(|(_, rest)| rest).unwrap_or_default();
        }
    }
}

fn unscheduled(message: &str) -> PodCase {
    let mut case = pod(json!({"resources": {"requests": {"cpu": "4"}}}), json!({}), &[]);
    case.pod["spec"]["nodeName"] = Value::Null;
    case.pod["status"]["conditions"] = json!([
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]);
    case
}

#[test]
fn pods_without_a_node() {
    let mut unseen = unscheduled("");
    unseen.pod["status"]["conditions"] = Value::Null;
    unseen.pod["spec"]["schedulerName"] = json!("mine");
    let mut claim =
        unscheduled("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.");
    claim.claims = vec![("c".into(), Lookup::Found(json!({"status": {"phase": "Pending"}})))];
    for (what, case, wanted) in [
        (
            "taints and resources",
            unscheduled(
                "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint {k: v}. preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod.",
            ),
            &[
                &[
                    "nodes have taints that it does not tolerate - 2 of 3 nodes: node(s) had untolerated taint {k: v} - add a toleration",
                ][..],
                &[
                    "nodes have too little left",
                    " - 1 of 3 nodes: Insufficient cpu; it asks for 4 (app) - ask for less",
                ],
            ][..],
        ),
        (
            "labels and cordons",
            unscheduled(
                "0/2 nodes are available: 1 node(s) were unschedulable, 1 node(s) didn't match Pod's node affinity/selector.",
            ),
            &[
                &["nodes are cordoned", "orchctl uncordon"][..],
                &["nodes lack the labels", "--show-labels"],
            ],
        ),
        (
            "no node at all",
            unscheduled("no nodes available to schedule pods"),
            &[&["no node can take it - no nodes available"]],
        ),
        (
            "no scheduler",
            unseen,
            &[&["no scheduler has looked at it yet", "its scheduler is mine"]],
        ),
        (
            "claims",
            claim,
            &[
                &["its claims are not bound"][..],
                &["the claim c has no volume - its phase is Pending", "orchctl why -n n pvc/c"],
            ],
        ),
    ] {
        assert_findings(what, &pod_text(case), wanted);
    }
}

#[test]
fn images_that_cannot_be_pulled() {
    let backs_off = || waiting("ImagePullBackOff", "Back-off pulling image \"i:1\"");
    let failed = |message: &str| {
        let message = format!("Failed to pull image \"i:1\": {message}");
        pod(
            json!({}),
            backs_off(),
            &[
                event_of("app", "Failed", &message),
                event_of("app", "Failed", "Error: ErrImagePull"),
            ],
        )
    };
    for (case, wanted) in [
        (
            failed("not found"),
            &[
                "the image i:1 of container app cannot be pulled - ImagePullBackOff: Failed to pull image \"i:1\": not found - check the name and tag",
            ][..],
        ),
        (failed("401 Unauthorized"), &["401 Unauthorized", "imagePullSecrets"]),
        (
            failed("dial tcp: lookup r: no such host"),
            &["no such host", "the node reaches the registry"],
        ),
        (pod(json!({}), backs_off(), &[]), &["ImagePullBackOff: Back-off pulling"]),
        (
            pod(json!({}), waiting("ErrImageNeverPull", "m"), &[]),
            &["ErrImageNeverPull: m", "it is Never"],
        ),
        (pod(json!({}), waiting("InvalidImageName", "m"), &[]), &["correct the name of the image"]),
    ] {
        assert_findings("image", &pod_text(case), &[wanted]);
    }
}

#[test]
#[allow(clippy::too_many_lines, reason = "one table")]
fn containers_that_crash_or_cannot_start() {
    let crashed = |ended: Value| {
        let mut status = waiting("CrashLoopBackOff", "back-off 10s");
        merge(&mut status, json!({"restartCount": 5, "lastState": {"terminated": ended}}));
        status
    };
    let limits = || json!({"resources": {"limits": {"memory": "64Mi"}}});
    let killed = [
        event_of(
            "app",
            "Unhealthy",
            "Liveness probe failed: HTTP probe failed with statuscode: 500",
        ),
        event_of("app", "Killing", "Container app failed liveness probe, will be restarted"),
    ];
    let plain = json!({"exitCode": 1, "reason": "Error", "message": "no database"});
    for (what, case, wanted) in [
        (
            "exit code",
            pod(json!({}), crashed(plain.clone()), &[]),
            &[&[
                "container app keeps crashing - CrashLoopBackOff: restarted 5 times, last with exit code 1 (Error): no database - read its last output: orchctl logs -n n p -c app --previous",
            ][..]][..],
        ),
        (
            "out of memory",
            pod(limits(), crashed(json!({"exitCode": 137, "reason": "OOMKilled"})), &[]),
            &[&[
                "exit code 137 (OOMKilled, signal 9)",
                "raise resources.limits.memory (it is 64Mi)",
            ]],
        ),
        (
            "no program",
            pod(json!({}), crashed(json!({"exitCode": 127})), &[]),
            &[&["no such program"]],
        ),
        (
            "it ends",
            pod(json!({}), crashed(json!({"exitCode": 0, "reason": "Completed"})), &[]),
            &[&["exit code 0 (Completed)", "run it as a Job"]],
        ),
        (
            "a liveness probe",
            pod(json!({}), crashed(plain.clone()), &killed),
            &[
                &["keeps crashing"][..],
                &[
                    "the liveness probe of container app fails - Liveness probe failed: HTTP probe failed with statuscode: 500 (3 times)",
                ],
            ],
        ),
        (
            "ended",
            pod(json!({}), json!({"state": {"terminated": plain}}), &[]),
            &[&["container app has ended - exit code 1", "orchctl logs -n n p -c app"]],
        ),
        (
            "no ConfigMap",
            pod(
                json!({}),
                waiting("CreateContainerConfigError", "configmap \"settings\" not found"),
                &[],
            ),
            &[&[
                "the ConfigMap settings does not exist - configmap \"settings\" not found - create it (orchctl create configmap settings",
            ]],
        ),
        (
            "no Secret",
            pod(json!({}), waiting("CreateContainerConfigError", "secret \"s\" not found"), &[]),
            &[&["the Secret s does not exist"]],
        ),
        (
            "no key",
            pod(
                json!({}),
                waiting("CreateContainerConfigError", "couldn't find key k in Secret n/s"),
                &[],
            ),
            &[&["lacks a key that the pod names - couldn't find key k in Secret n/s"]],
        ),
        (
            "root",
            pod(
                json!({}),
                waiting("CreateContainerConfigError", "container has runAsNonRoot"),
                &[],
            ),
            &[&["container app cannot be configured - container has runAsNonRoot"]],
        ),
        (
            "its runtime",
            pod(json!({}), waiting("RunContainerError", "no such file"), &[]),
            &[&["container app cannot be started - RunContainerError: no such file"]],
        ),
    ] {
        assert_findings(what, &pod_text(case), wanted);
    }
}

#[test]
fn containers_that_run_and_are_not_ready() {
    let readiness = || json!({"readinessProbe": {"initialDelaySeconds": 30}});
    let other = [event_of("other", "Unhealthy", "Readiness probe failed: refused")];
    let own = [event_of("app", "Unhealthy", "Readiness probe failed: refused")];
    let startup = [event_of("app", "Unhealthy", "Startup probe failed: refused")];
    for (what, case, wanted) in [
        (
            "readiness",
            pod(readiness(), running(json!({})), &own),
            &[&[
                "the readiness probe of container app fails - Readiness probe failed: refused (3 times)",
                "orchctl logs -n n p -c app",
            ][..]][..],
        ),
        (
            "another container's probe",
            pod(readiness(), running(json!({})), &other),
            &[&[
                "the readiness probe of container app has not succeeded yet",
                "its first try is 30s after the start",
            ]],
        ),
        (
            "startup",
            pod(
                json!({"startupProbe": {}, "readinessProbe": {}}),
                running(json!({"started": false})),
                &startup,
            ),
            &[&["the startup probe of container app fails"]],
        ),
        (
            "no probe",
            pod(json!({}), running(json!({})), &[]),
            &[&["container app runs and is not ready"]],
        ),
        (
            "readiness gates",
            with(
                pod(json!({}), running(json!({"ready": true})), &[]),
                json!({"spec": {"readinessGates": [{"conditionType": "a"}, {"conditionType": "b"}, {"conditionType": "c"}]},
                    "status": {"conditions": [{"type": "a", "status": "False", "reason": "Target"}, {"type": "b", "status": "True"}]}}),
            ),
            &[
                &["its readiness gate a is not met - it is False Target"][..],
                &["its readiness gate c is not met - it is not set"],
            ],
        ),
    ] {
        assert_findings(what, &pod_text(case), wanted);
    }
}

#[test]
#[allow(clippy::too_many_lines, reason = "one table")]
fn reasons_before_containers_start_are_explained() {
    let creating = |events: &[Value]| pod(json!({}), waiting("ContainerCreating", ""), events);
    let with_node = |lookup: Lookup| PodCase { node: Some(lookup), ..creating(&[]) };
    let with_init = |status: Value, events: &[Value]| {
        let mut init = json!({"name": "first", "ready": false});
        merge(&mut init, status);
        let more = json!({"spec": {"initContainers": [{"name": "first", "image": "i:2"}, {"name": "second"}]},
            "status": {"initContainerStatuses": [init]}});
        with(pod(json!({}), waiting("PodInitializing", ""), events), more)
    };
    let missing = PodCase { claims: vec![("c".into(), Lookup::Missing)], ..creating(&[]) };
    for (what, case, wanted) in [
        (
            "a volume",
            creating(&[event(
                "FailedMount",
                "MountVolume.SetUp failed for volume \"v\" : mount failed: exit status 32",
            )]),
            &[&["a volume cannot be mounted - MountVolume.SetUp failed"][..]][..],
        ),
        (
            "a volume's source",
            creating(&[event(
                "FailedMount",
                "MountVolume.SetUp failed for volume \"v\" : secret \"tls\" not found",
            )]),
            &[&["the Secret tls does not exist"]],
        ),
        (
            "a volume's key",
            creating(&[event(
                "FailedMount",
                "MountVolume.SetUp failed for volume \"v\" : references non-existent config key: k",
            )]),
            &[&["lacks a key that the pod names"]],
        ),
        (
            "attachment",
            creating(&[event("FailedAttachVolume", "Multi-Attach error")]),
            &[&["a volume cannot be attached to the node - Multi-Attach error"]],
        ),
        (
            "the sandbox",
            creating(&[event("FailedCreatePodSandBox", "cni plugin not initialized")]),
            &[&["sandbox or network", "cni plugin not initialized"]],
        ),
        (
            "a hook that fails",
            creating(&[
                event_of("other", "FailedPostStartHook", "not this one"),
                event_of("app", "FailedPostStartHook", "Exec lifecycle hook ([a]) failed"),
                event_of("app", "Killing", "FailedPostStartHook"),
            ]),
            &[&[
                "the postStart hook of container app fails - Exec lifecycle hook ([a]) failed",
                "correct lifecycle.postStart",
            ]],
        ),
        (
            "a hook that has failed",
            pod(json!({}), waiting("PostStartHookError", "Exec lifecycle hook ([a]) failed"), &[]),
            &[&[
                "the postStart hook of container app fails - Exec lifecycle hook ([a]) failed",
                "correct lifecycle.postStart",
            ]],
        ),
        (
            "the hook of another container",
            creating(&[event_of("other", "FailedPostStartHook", "not this one")]),
            &[&["container app is not made yet - ContainerCreating"]],
        ),
        (
            "a hook for which it was killed",
            pod(
                json!({}),
                waiting("CrashLoopBackOff", ""),
                &[
                    event_of("app", "FailedPostStartHook", "Exec lifecycle hook ([a]) failed"),
                    event_of("app", "Killing", "FailedPostStartHook"),
                ],
            ),
            &[
                &["container app keeps crashing"],
                &["the postStart hook of container app fails - Exec lifecycle hook"],
            ],
        ),
        ("nothing known", creating(&[]), &[&["container app is not made yet - ContainerCreating"]]),
        ("no claim", missing, &[&["the claim c does not exist"]]),
        (
            "a node that is not ready",
            with_node(node("Unknown")),
            &[&[
                "its node n1 is not ready - NodeStatusUnknown: Kubelet stopped posting",
                "orchctl describe node n1",
            ]],
        ),
        ("no such node", with_node(Lookup::Missing), &[&["its node n1 does not exist"]]),
        (
            "a node that may not be read",
            with_node(Lookup::Unread),
            &[&["container app is not made yet"]],
        ),
        (
            "an init container that runs",
            with_init(running(json!({})), &[]),
            &[&[
                "init container first still runs - 0 of 2 init containers are done",
                "orchctl logs -n n p -c first",
            ]],
        ),
        (
            "an init container that crashes",
            with_init(
                json!({"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 2,
                    "lastState": {"terminated": {"exitCode": 3, "reason": "Error"}}}),
                &[event("FailedMount", "an old failure")],
            ),
            &[&["init container first keeps crashing", "exit code 3 (Error)"]],
        ),
        (
            "the image of an init container",
            with_init(waiting("ErrImagePull", "manifest unknown"), &[]),
            &[&["the image i:2 of init container first cannot be pulled"]],
        ),
        (
            "after the first init container",
            with_init(json!({"state": {"terminated": {"exitCode": 0}}}), &[]),
            &[&["init container second is not made yet"]],
        ),
    ] {
        assert_findings(what, &pod_text(case), wanted);
    }
}

#[test]
fn pods_that_go_that_ended_or_that_are_well() {
    let ready = || {
        let more = json!({"status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:20Z"}]}});
        let ended =
            json!({"ready": true, "restartCount": 2, "lastState": {"terminated": {"exitCode": 1}}});
        with(pod(json!({}), running(ended), &[]), more)
    };
    let deleted = |time: &str, finalizers: Value| {
        with(ready(), json!({"metadata": {"deletionTimestamp": time, "finalizers": finalizers}}))
    };
    let phase = |phase: &str, more: Value| {
        let mut case = with(
            pod(json!({}), json!({"state": {"terminated": {"exitCode": 4}}}), &[]),
            json!({"status": more}),
        );
        case.pod["status"]["phase"] = json!(phase);
        case
    };
    for (what, case, wanted) in [
        (
            "well",
            ready(),
            &[&[
                "nothing is wrong - it is ready since 1970-01-01T00:00:20Z; container app was restarted 2 times, last after exit code 1",
            ][..]][..],
        ),
        ("success", phase("Succeeded", json!({})), &[&["nothing is wrong - it has ended"]]),
        (
            "failure",
            phase("Failed", json!({})),
            &[&[
                "it has failed and will not run again - container app ended with exit code 4",
                "orchctl logs",
            ]],
        ),
        (
            "eviction",
            phase("Failed", json!({"reason": "Evicted", "message": "low on memory"})),
            &[&["it has failed", "Evicted: low on memory", "free what the node lacks"]],
        ),
        (
            "finalizers",
            deleted("1970-01-01T00:00:30Z", json!(["example.com/hold"])),
            &[&[
                "it is being deleted and finalizers hold it - example.com/hold since 1970-01-01T00:00:30Z",
            ]],
        ),
        (
            "a node that is late",
            deleted("1970-01-01T00:00:30Z", json!([])),
            &[&["its node has not ended it", "orchctl describe node n1"]],
        ),
        (
            "in time",
            deleted("1970-01-01T00:16:30Z", json!([])),
            &[&["it is being deleted - deletion time 1970-01-01T00:16:30Z - wait"]],
        ),
    ] {
        assert_findings(what, &pod_text(case), wanted);
    }
}

fn workload(
    kind: &str,
    spec: Value,
    status: Value,
    events: &[Value],
    pods: Vec<PodCase>,
) -> String {
    let group = if kind == "Job" { "batch" } else { "apps" };
    let mut object = json!({"apiVersion": format!("{group}/v1"), "kind": kind,
        "metadata": {"name": "w", "namespace": "n", "generation": 2}, "spec": spec, "status": {"observedGeneration": 2}});
    merge(&mut object["status"], status);
    text(&Case { object, events: events.to_vec(), pods, ..Case::default() })
}

#[test]
#[allow(clippy::too_many_lines, reason = "one table")]
fn workloads_say_why_pods_are_missing_or_not_ready() {
    let condition = |kind: &str, status: &str, reason: &str, message: &str| json!({"conditions": [{"type": kind, "status": status, "reason": reason, "message": message}]});
    let quota = "pods \"w-\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2";
    let broken = |name: &str| {
        with(
            pod(json!({}), waiting("ErrImagePull", "not found"), &[]),
            json!({"metadata": {"name": name}}),
        )
    };
    let going = with(
        broken("old"),
        json!({"metadata": {"deletionTimestamp": "1970-01-01T00:16:30Z"}, "status": {"containerStatuses": []}}),
    );
    let done = json!({"replicas": 2, "readyReplicas": 2, "updatedReplicas": 2});
    for (what, answer, wanted) in [
        (
            "quota of a replica set",
            workload(
                "ReplicaSet",
                json!({"replicas": 3}),
                condition("ReplicaFailure", "True", "FailedCreate", quota),
                &[],
                vec![],
            ),
            &[&[
                "the quota of the namespace does not allow its pods - pods \"w-\" is forbidden: exceeded quota: q",
                "orchctl describe quota",
            ][..]][..],
        ),
        (
            "quota by events",
            workload(
                "StatefulSet",
                json!({"replicas": 1}),
                json!({}),
                &[event("FailedCreate", quota)],
                vec![],
            ),
            &[&["the quota of the namespace"]],
        ),
        (
            "quota of some pods of a job",
            workload(
                "Job",
                json!({"parallelism": 3}),
                json!({"active": 1, "ready": 1}),
                &[event("FailedCreate", quota)],
                vec![],
            ),
            &[&["the quota of the namespace"]],
        ),
        (
            "the last pod of a job that was refused before",
            workload(
                "Job",
                json!({"parallelism": 3, "completions": 4}),
                json!({"active": 1, "succeeded": 3}),
                &[event("FailedCreate", quota)],
                vec![],
            ),
            &[&["nothing is wrong - it runs: 1 pods are active"]],
        ),
        (
            "an account",
            workload(
                "DaemonSet",
                json!({}),
                json!({"desiredNumberScheduled": 1}),
                &[event(
                    "FailedCreate",
                    "error looking up service account n/x: serviceaccount \"x\" not found",
                )],
                vec![],
            ),
            &[&["the service account of its pods does not exist"]],
        ),
        (
            "the same for several pods is said once",
            workload(
                "Deployment",
                json!({"replicas": 3}),
                json!({"replicas": 3, "updatedReplicas": 3}),
                &[],
                vec![broken("a"), broken("b"), going.clone()],
            ),
            &[&[
                "2 of 3 pods, as a: the image i:1 of container app cannot be pulled - ErrImagePull: not found",
            ]],
        ),
        (
            "no progress",
            workload(
                "Deployment",
                json!({"replicas": 1}),
                condition("Progressing", "False", "ProgressDeadlineExceeded", "m"),
                &[],
                vec![broken("a")],
            ),
            &[
                &["its rollout makes no progress - ProgressDeadlineExceeded: m"][..],
                &["pod a: the image"],
            ],
        ),
        (
            "paused",
            workload(
                "Deployment",
                json!({"replicas": 2, "paused": true}),
                json!({"replicas": 2, "readyReplicas": 2, "updatedReplicas": 0}),
                &[],
                vec![],
            ),
            &[&["its rollout is paused - 0 of 2 pods", "orchctl rollout resume -n n deployment/w"]],
        ),
        (
            "no controller",
            workload(
                "Deployment",
                json!({"replicas": 2}),
                json!({"observedGeneration": 1, "replicas": 2, "readyReplicas": 2, "updatedReplicas": 2}),
                &[],
                vec![],
            ),
            &[&["its controller has not acted on the last change - generation 2, observed 1"]],
        ),
        (
            "the old pod stays ready and the new one does not come",
            workload(
                "Deployment",
                json!({"replicas": 1}),
                json!({"replicas": 2, "readyReplicas": 1, "updatedReplicas": 1}),
                &[],
                vec![broken("a")],
            ),
            &[&["pod a: the image"]],
        ),
        (
            "pods are being made",
            workload(
                "Deployment",
                json!({"replicas": 2}),
                json!({"replicas": 1, "updatedReplicas": 1}),
                &[],
                vec![],
            ),
            &[&["its pods are not all ready - 2 are wanted, 1 are there, 0 ready"]],
        ),
        (
            "well",
            workload(
                "Deployment",
                json!({"replicas": 2}),
                done.clone(),
                &[event("FailedCreate", "old")],
                vec![broken("a")],
            ),
            &[&["nothing is wrong - 2 of 2 pods are ready"]],
        ),
        (
            "none wanted",
            workload("Deployment", json!({"replicas": 0}), json!({}), &[], vec![]),
            &[&["nothing is wrong - no pods are wanted"]],
        ),
        (
            "pods that are replaced when they are deleted",
            workload(
                "DaemonSet",
                json!({"updateStrategy": {"type": "OnDelete"}}),
                json!({"desiredNumberScheduled": 1, "currentNumberScheduled": 1, "numberReady": 1}),
                &[],
                vec![],
            ),
            &[&["nothing is wrong - 1 of 1 pods are ready"]],
        ),
        (
            "a partition",
            workload(
                "StatefulSet",
                json!({"replicas": 2, "updateStrategy": {"rollingUpdate": {"partition": 1}}}),
                json!({"replicas": 2, "readyReplicas": 2}),
                &[],
                vec![],
            ),
            &[&["nothing is wrong"]],
        ),
        (
            "no node",
            workload("DaemonSet", json!({}), json!({}), &[], vec![]),
            &[&["no node is one that it runs on"]],
        ),
    ] {
        assert_findings(what, &answer, wanted);
    }
}

#[test]
fn failed_jobs_are_explained() {
    let condition = |kind: &str, reason: &str| json!({"conditions": [{"type": kind, "status": "True", "reason": reason, "message": "m"}]});
    let failed = with(
        pod(json!({}), json!({"state": {"terminated": {"exitCode": 9}}}), &[]),
        json!({"status": {"phase": "Failed"}}),
    );
    for (what, answer, wanted) in [
        (
            "failed",
            workload(
                "Job",
                json!({}),
                condition("Failed", "BackoffLimitExceeded"),
                &[],
                vec![failed],
            ),
            &[
                &["the job has failed - BackoffLimitExceeded: m"][..],
                &[
                    "pod p: it has failed and will not run again - container app ended with exit code 9",
                ],
            ][..],
        ),
        (
            "late",
            workload("Job", json!({}), condition("Failed", "DeadlineExceeded"), &[], vec![]),
            &[&["the job has failed", "activeDeadlineSeconds"]],
        ),
        (
            "complete",
            workload("Job", json!({}), condition("Complete", ""), &[], vec![]),
            &[&["nothing is wrong - it is complete"]],
        ),
        (
            "running",
            workload("Job", json!({}), json!({"active": 1}), &[], vec![]),
            &[&["nothing is wrong - it runs: 1 pods"]],
        ),
        (
            "suspended",
            workload("Job", json!({"suspend": true}), json!({}), &[], vec![]),
            &[&["the job is suspended", "orchctl patch job -n n w"]],
        ),
        (
            "refused",
            workload(
                "Job",
                json!({}),
                json!({}),
                &[event("FailedCreate", "admission webhook \"x\" denied")],
                vec![],
            ),
            &[&["an admission webhook refuses its pods"]],
        ),
        (
            "nothing yet",
            workload("Job", json!({}), json!({}), &[], vec![]),
            &[&["its pods are not there"]],
        ),
    ] {
        assert_findings(what, &answer, wanted);
    }
}

#[test]
#[allow(clippy::too_many_lines, reason = "one table")]
fn services_say_why_they_have_no_endpoints() {
    let case = |spec: Value, subsets: Value, pods: Vec<PodCase>| {
        let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "n"}, "spec": spec});
        let endpoints = Some(Lookup::Found(json!({"subsets": subsets})));
        Case { object, endpoints, pods, ..Case::default() }
    };
    let service = |spec, subsets, pods| text(&case(spec, subsets, pods));
    // One of its two ready pods, or both, are on nodes that do not exist.
    let lost = |spec, names: &[&str]| {
        let left_out = names.iter().map(|&name| name.to_owned()).collect();
        text(&Case { left_out, ..case(spec, json!([{"addresses": [{}, {}]}]), vec![]) })
    };
    let selector =
        || json!({"selector": {"app": "a"}, "ports": [{"port": 80, "targetPort": 8080}]});
    let ready = || {
        with(
            pod(json!({}), running(json!({"ready": true})), &[]),
            json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}),
        )
    };
    let by_name = json!({"selector": {"app": "a"}, "ports": [{"port": 80, "targetPort": "http"}]});
    for (what, answer, wanted) in [
        (
            "ready",
            service(
                selector(),
                json!([{"addresses": [{}, {}], "notReadyAddresses": [{}]}]),
                vec![],
            ),
            &[&["nothing is wrong - it has 2 ready endpoints, and 1 that are not ready"][..]][..],
        ),
        (
            "a name",
            service(json!({"type": "ExternalName", "externalName": "x.y"}), json!([]), vec![]),
            &[&["nothing is wrong - it is another name of x.y"]],
        ),
        (
            "a node that is gone",
            lost(selector(), &["p"]),
            &[&[
                "pods that it selects are on nodes that do not exist",
                "pod p is ready, and in no EndpointSlice",
            ]],
        ),
        (
            "nodes that are gone",
            lost(selector(), &["p", "q"]),
            &[&["2 ready pods are in no EndpointSlice: p, ..."]],
        ),
        (
            "a node that is gone, and all addresses are published",
            lost(json!({"selector": {"app": "a"}, "publishNotReadyAddresses": true}), &["p"]),
            &[&["nothing is wrong - it has 2 ready endpoints"]],
        ),
        ("no selector", service(json!({}), json!([]), vec![]), &[&["it has no selector"]]),
        (
            "no load balancer",
            service(
                json!({"type": "LoadBalancer", "selector": {"app": "a"}}),
                json!([{"addresses": [{}]}]),
                vec![],
            ),
            &[&[
                "it has no address of a load balancer - status.loadBalancer is empty",
                "--service-load-balancer-addresses",
            ]],
        ),
        (
            "no load balancer of a class",
            service(
                json!({"type": "LoadBalancer", "loadBalancerClass": "x/y", "selector": {"app": "a"}}),
                json!([{"addresses": [{}]}]),
                vec![],
            ),
            &[&["its class is x/y", "whether the controller of the class x/y runs"]],
        ),
        (
            "no pod",
            service(selector(), json!([]), vec![]),
            &[&[
                "no pod has the labels that it selects - spec.selector is app=a",
                "orchctl get pods -n n --show-labels",
            ]],
        ),
        (
            "pods that are not ready",
            service(
                selector(),
                json!([{"notReadyAddresses": [{}]}]),
                vec![pod(json!({}), waiting("ErrImagePull", "not found"), &[])],
            ),
            &[&["pod p: the image i:1"]],
        ),
        (
            "no such port",
            service(by_name, json!([]), vec![ready()]),
            &[&["no container has a port with the name http"]],
        ),
        (
            "not written",
            service(selector(), json!([]), vec![ready()]),
            &[&["its endpoints are not written yet - 1 of 1 pods with app=a are ready"]],
        ),
    ] {
        assert_findings(what, &answer, wanted);
    }
}

#[test]
#[allow(clippy::too_many_lines, reason = "one table")]
fn claims_say_what_they_wait_for() {
    let claim = |spec: Value, phase: &str, case: Case| {
        let object = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "c", "namespace": "n", "uid": "u"}, "spec": spec, "status": {"phase": phase}});
        let mut object = object;
        if case.object.is_object() {
            merge(&mut object, case.object);
        }
        text(&Case { object, ..case })
    };
    let class = |provisioner: &str, mode: &str| {
        Some(Lookup::Found(json!({"provisioner": provisioner, "volumeBindingMode": mode})))
    };
    let of_class = || json!({"storageClassName": "fast"});
    let user = || pod(json!({}), json!({}), &[]);
    let volume = |claim_ref: Value| {
        Some(Lookup::Found(
            json!({"spec": {"claimRef": claim_ref}, "status": {"phase": "Released"}}),
        ))
    };
    let named = || json!({"volumeName": "v"});
    let none = Case::default;
    for (what, answer, wanted) in [
        (
            "bound",
            claim(named(), "Bound", none()),
            &["nothing is wrong - it is bound to the volume v"][..],
        ),
        ("lost", claim(named(), "Lost", none()), &["its volume is gone"]),
        (
            "no class",
            claim(of_class(), "Pending", Case { class: Some(Lookup::Missing), ..none() }),
            &["no volume of the class fast fits it, and no storage class of this name exists"],
        ),
        (
            "no class at all",
            claim(
                json!({}),
                "Pending",
                Case {
                    events: vec![event("FailedBinding", "no persistent volumes available")],
                    ..none()
                },
            ),
            &["no volume fits it", "no persistent volumes available"],
        ),
        (
            "no pod",
            claim(
                of_class(),
                "Pending",
                Case { class: class("d", "WaitForFirstConsumer"), ..none() },
            ),
            &["it waits for a pod that uses it"],
        ),
        (
            "its pod",
            claim(
                of_class(),
                "Pending",
                Case { class: class("d", "WaitForFirstConsumer"), pods: vec![user()], ..none() },
            ),
            &["it is not bound yet", "orchctl why -n n pod/p"],
        ),
        (
            "a driver that fails",
            claim(
                of_class(),
                "Pending",
                Case {
                    class: class("d", "Immediate"),
                    events: vec![event("ProvisioningFailed", "no space")],
                    ..none()
                },
            ),
            &["its volume cannot be made - no space"],
        ),
        (
            "a driver that is silent",
            claim(
                of_class(),
                "Pending",
                Case {
                    class: class("d", "Immediate"),
                    events: vec![event("ExternalProvisioning", "waiting")],
                    ..none()
                },
            ),
            &["its driver has not made the volume yet", "the driver d runs"],
        ),
        (
            "no provisioner",
            claim(
                of_class(),
                "Pending",
                Case { class: class("kubernetes.io/no-provisioner", "Immediate"), ..none() },
            ),
            &["no volume fits it, and its class makes none"],
        ),
        (
            "no volume",
            claim(named(), "Pending", Case { volume: Some(Lookup::Missing), ..none() }),
            &["the volume v does not exist"],
        ),
        (
            "a volume of another",
            claim(
                named(),
                "Pending",
                Case { volume: volume(json!({"namespace": "n", "name": "x"})), ..none() },
            ),
            &["the volume v belongs to another claim - its claimRef is n/x, phase Released"],
        ),
        (
            "a volume of an older one",
            claim(
                named(),
                "Pending",
                Case {
                    volume: volume(json!({"namespace": "n", "name": "c", "uid": "old"})),
                    ..none()
                },
            ),
            &["belongs to another claim"],
        ),
        (
            "a volume that does not fit",
            claim(named(), "Pending", Case { volume: volume(Value::Null), ..none() }),
            &["the volume v does not fit"],
        ),
        (
            "in use",
            claim(
                named(),
                "Bound",
                Case {
                    object: json!({"metadata": {"deletionTimestamp": "1970-01-01T00:00:30Z", "finalizers": ["kubernetes.io/pvc-protection"]}}),
                    pods: vec![user()],
                    ..none()
                },
            ),
            &[
                "finalizers hold it - kubernetes.io/pvc-protection",
                "pods that use it: p - end these pods",
            ],
        ),
    ] {
        assert_findings(what, &answer, &[wanted]);
    }
}

#[test]
fn an_image_that_is_being_pulled() {
    let mut pulling = event_of("app", "Pulling", "Pulling image \"i:1\"");
    merge(&mut pulling, json!({"lastTimestamp": "1970-01-01T00:10:00Z"}));
    let other = event_of("other", "Pulled", "Container image is there");
    let creating = waiting("ContainerCreating", "");
    let case = |events: &[Value]| pod_text(pod(json!({}), creating.clone(), events));
    let wanted = [
        "the image of container app is being pulled - Pulling image \"i:1\" since 1970-01-01T00:10:00Z - wait",
    ];
    assert_findings("pulling", &case(&[pulling.clone(), other]), &[&wanted]);
    let pulled = event_of("app", "Pulled", "Successfully pulled");
    assert_findings("pulled", &case(&[pulling, pulled]), &[&["container app is not made yet"]]);
}

#[test]
fn answers_are_short_and_plain() {
    let long = "x".repeat(2 * EVIDENCE_LEN_MAX);
    let finding = Finding::stuck("a\u{1b}[31m", format!("b\n{long}"), "c");
    let line = render(&Verdict::Wrong(vec![finding]));
    assert!(line.starts_with("a^[[31m - b x"), "{line}");
    assert!(line.ends_with("... - c\n"), "{line}");
    assert!(line.chars().count() < EVIDENCE_LEN_MAX + 40);
    assert!(supports_kind("apps", "Deployment") && !supports_kind("", "Secret"));
}
