//! Nodes, namespaces, volumes, autoscalers and budgets.

use super::*;

/// The answer for an object of this kind, and what each of its lines holds.
fn check(kind: &str, rows: Vec<(&str, Value, &[&[&str]])>) {
    for (what, fields, wanted) in rows {
        let mut object = json!({"kind": kind, "metadata": {"name": "x"}});
        merge(&mut object, fields);
        let answer = text(&Case { object, ..Case::default() });
        assert_findings(what, &answer, wanted);
    }
}

fn conditions(all: &[(&str, &str, &str)]) -> Value {
    let one = |(kind, status, reason): &(&str, &str, &str)| json!({"type": kind, "status": status, "reason": reason, "message": "so it is"});
    json!({"status": {"conditions": all.iter().map(one).collect::<Vec<_>>()}})
}

fn and(mut object: Value, more: Value) -> Value {
    merge(&mut object, more);
    object
}

#[test]
fn nodes_that_are_not_ready_or_take_no_pods() {
    let ready = || conditions(&[("Ready", "True", "KubeletReady"), ("DiskPressure", "False", "")]);
    let tainted =
        json!({"spec": {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}});
    let rows: Vec<(&str, Value, &[&[&str]])> = vec![
        ("ready", ready(), &[&["nothing is wrong - it is ready and takes pods"]]),
        (
            "tainted",
            and(ready(), tainted),
            &[&["nothing is wrong", "tolerate its taints: gpu=yes:NoSchedule"]],
        ),
        ("new", json!({}), &[&["its kubelet has not reported yet"]]),
        (
            "not ready",
            conditions(&[("Ready", "False", "KubeletNotReady")]),
            &[&["says that it is not ready - KubeletNotReady: so it is - "]],
        ),
        (
            "silent",
            conditions(&[("Ready", "Unknown", "NodeStatusUnknown")]),
            &[&[
                "has stopped to report - NodeStatusUnknown",
                "orchctl get lease -n kube-node-lease x",
            ]],
        ),
        (
            "full and cordoned",
            and(
                conditions(&[
                    ("Ready", "True", ""),
                    ("DiskPressure", "True", "KubeletHasDiskPressure"),
                ]),
                json!({"spec": {"unschedulable": true}}),
            ),
            &[
                &["it takes no new pods - ", "orchctl uncordon x"],
                &["it has too little disk - KubeletHasDiskPressure"],
            ],
        ),
        (
            "without routes",
            conditions(&[("Ready", "True", ""), ("NetworkUnavailable", "True", "NoRouteCreated")]),
            &[&["its network is not set up - NoRouteCreated"]],
        ),
    ];
    check("Node", rows);
}

#[test]
fn namespaces_that_stay() {
    let deleted = |more: Value| {
        and(
            json!({"metadata": {"deletionTimestamp": "1970-01-01T00:10:00Z"}, "spec": {"finalizers": ["kubernetes"]}}),
            more,
        )
    };
    let rows: Vec<(&str, Value, &[&[&str]])> = vec![
        ("active", json!({"status": {"phase": "Active"}}), &[&["nothing is wrong - it is Active"]]),
        (
            "an API without its server",
            deleted(conditions(&[(
                "NamespaceDeletionDiscoveryFailure",
                "True",
                "DiscoveryFailed",
            )])),
            &[&[
                "not all kinds of objects are known",
                "DiscoveryFailed: so it is",
                "orchctl get apiservices",
            ]],
        ),
        (
            "held by finalizers of its objects",
            deleted(conditions(&[
                ("NamespaceContentRemaining", "True", "SomeResourcesRemain"),
                ("NamespaceFinalizersRemaining", "True", "SomeFinalizersRemain"),
            ])),
            &[&["objects in it have finalizers - SomeFinalizersRemain", "orchctl edit -n x"]],
        ),
        (
            "in time",
            deleted(conditions(&[("NamespaceContentRemaining", "True", "SomeResourcesRemain")])),
            &[&[
                "objects in it are being deleted - SomeResourcesRemain",
                "orchctl why -n x TYPE/NAME",
            ]],
        ),
        ("nothing said", deleted(json!({})), &[&["it is being deleted - ", "controller manager"]]),
        (
            "a finalizer of its spec",
            deleted(json!({"spec": {"finalizers": ["kubernetes", "example.com/a"]}})),
            &[&["finalizers of its spec hold it - example.com/a since"]],
        ),
        (
            "a finalizer of its metadata",
            deleted(
                json!({"spec": {"finalizers": null}, "metadata": {"finalizers": ["example.com/b"]}}),
            ),
            &[&["finalizers hold it - example.com/b"]],
        ),
    ];
    check("Namespace", rows);
}

#[test]
fn volumes_without_a_claim() {
    let of = |phase: &str, policy: &str| {
        json!({"spec": {"persistentVolumeReclaimPolicy": policy, "claimRef": {"namespace": "n", "name": "c"}, "csi": {"driver": "d"}},
            "status": {"phase": phase, "reason": "VolumeFailedDelete", "message": "busy"}})
    };
    let deleted = json!({"metadata": {"deletionTimestamp": "1970-01-01T00:10:00Z", "finalizers": ["kubernetes.io/pv-protection"]}});
    let rows: Vec<(&str, Value, &[&[&str]])> = vec![
        ("bound", of("Bound", "Delete"), &[&["nothing is wrong - it is bound to the claim n/c"]]),
        (
            "free",
            and(of("Available", "Retain"), json!({"spec": {"claimRef": null}})),
            &[&["nothing is wrong - it is free for a claim"]],
        ),
        ("reserved", of("Available", "Retain"), &[&["it is reserved for the claim n/c"]]),
        (
            "kept",
            of("Released", "Retain"),
            &[&["no claim can have it", "the claim n/c is gone", "Retain", "patch pv x"]],
        ),
        (
            "going",
            of("Released", "Delete"),
            &[&["its storage is being deleted", "the driver d runs"]],
        ),
        (
            "failed",
            of("Failed", "Delete"),
            &[&["could not be reclaimed - VolumeFailedDelete: busy"]],
        ),
        ("new", json!({}), &[&["its phase is not known yet"]]),
        (
            "deleted in use",
            and(of("Bound", "Delete"), deleted),
            &[&[
                "finalizers hold it - kubernetes.io/pv-protection",
                "bound to the claim n/c - delete the claim first",
            ]],
        ),
    ];
    check("PersistentVolume", rows);
    let mut object = json!({"kind": "PersistentVolume", "metadata": {"name": "x"}});
    merge(&mut object, of("Released", "Delete"));
    let events = vec![event("VolumeFailedDelete", "the disk is busy")];
    let answer = text(&Case { object, events, ..Case::default() });
    assert_findings(
        "not deleted",
        &answer,
        &[&["its storage cannot be deleted - the disk is busy"]],
    );
}

#[test]
fn autoscalers_that_do_not_scale() {
    let target = |more: Value| {
        and(json!({"spec": {"scaleTargetRef": {"kind": "Deployment", "name": "web"}}}), more)
    };
    let active = ("ScalingActive", "True", "ValidMetricFound");
    let rows: Vec<(&str, Value, &[&[&str]])> = vec![
        (
            "scales",
            target(and(
                conditions(&[
                    ("AbleToScale", "True", ""),
                    active,
                    ("ScalingLimited", "True", "TooFewReplicas"),
                ]),
                json!({"status": {"currentReplicas": 2, "desiredReplicas": 3}}),
            )),
            &[&["nothing is wrong - it scales deployment/web: 2 replicas, 3 wanted"]],
        ),
        ("new", target(json!({})), &[&["its controller has not acted on it yet"]]),
        (
            "no target",
            target(conditions(&[("AbleToScale", "False", "FailedGetScale")])),
            &[&["it cannot scale deployment/web - FailedGetScale: so it is"]],
        ),
        (
            "no metrics",
            target(conditions(&[("ScalingActive", "False", "FailedGetResourceMetric")])),
            &[&["it has no metric to scale by - FailedGetResourceMetric", "orchctl top pod"]],
        ),
        (
            "at its most",
            target(conditions(&[active, ("ScalingLimited", "True", "TooManyReplicas")])),
            &[&["it wants more replicas than it may have", "maxReplicas"]],
        ),
    ];
    check("HorizontalPodAutoscaler", rows);
}

#[test]
fn budgets_that_allow_no_eviction() {
    let counted = |numbers: [i64; 4], reason: &str| {
        let [allowed, expected, healthy, wanted] = numbers;
        let counts = json!({"disruptionsAllowed": allowed, "expectedPods": expected, "currentHealthy": healthy, "desiredHealthy": wanted});
        and(conditions(&[("DisruptionAllowed", "False", reason)]), json!({"status": counts}))
    };
    let rows: Vec<(&str, Value, &[&[&str]])> = vec![
        (
            "allows",
            counted([1, 3, 3, 2], ""),
            &[&["nothing is wrong - 1 of 3 pods may be evicted now"]],
        ),
        ("new", json!({}), &[&["its pods have not been counted yet"]]),
        ("no pods", counted([0, 0, 0, 0], "InsufficientPods"), &[&["it selects no pod"]]),
        (
            "keeps all",
            counted([0, 3, 3, 3], "InsufficientPods"),
            &[&[
                "it never allows an eviction - 3 of 3 pods are healthy, 3 have to be",
                "minAvailable",
            ]],
        ),
        (
            "keeps a number",
            and(counted([0, 2, 2, 2], "InsufficientPods"), json!({"spec": {"minAvailable": 2}})),
            &[&["no more pods exist than it keeps - 2 of 2", "what owns them"]],
        ),
        (
            "changed",
            and(
                counted([0, 3, 3, 3], "InsufficientPods"),
                json!({"metadata": {"name": "x", "generation": 2}}),
            ),
            &[&["its last change has not been seen yet"]],
        ),
        (
            "unhealthy",
            counted([0, 3, 2, 2], "InsufficientPods"),
            &[&["too few of its pods are healthy - 2 of 3"]],
        ),
        (
            "not counted",
            counted([0, 0, 0, 0], "SyncFailed"),
            &[&["its pods cannot be counted - SyncFailed"]],
        ),
    ];
    check("PodDisruptionBudget", rows);
    let object = and(
        json!({"kind": "PodDisruptionBudget", "metadata": {"name": "x"}}),
        counted([0, 0, 0, 0], "InsufficientPods"),
    );
    let events = vec![event(
        "UnmanagedPods",
        "Pods selected by this PodDisruptionBudget were found to be unmanaged.",
    )];
    let answer = text(&Case { object, events, ..Case::default() });
    assert!(answer.starts_with("its pods cannot be counted - Pods selected"), "{answer}");
    let object = and(
        json!({"kind": "PodDisruptionBudget", "metadata": {"name": "x"}}),
        counted([0, 2, 1, 1], "InsufficientPods"),
    );
    let pods = vec![pod(json!({}), waiting("CrashLoopBackOff", "back-off"), &[])];
    let answer = text(&Case { object, pods, ..Case::default() });
    assert_eq!(answer.lines().count(), 2, "{answer}");
    assert!(answer.contains("pod p: "), "{answer}");
}
