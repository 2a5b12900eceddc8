//! For each rule an invalid value, and valid values next to it.

use serde_json::{Value as Json, json};

use super::{complaints, complaints_with, container, pod, update_complaints};
use crate::update::Subresource;
use crate::{FieldGate, FieldGates};

/// `base` with `value` at a JSON pointer whose parents exist.
fn with(base: &Json, pointer: &str, value: &Json) -> Json {
    let mut object = base.clone();
    let (parent, last) = pointer.rsplit_once('/').expect("a pointer");
    let parent = object.pointer_mut(parent).unwrap_or_else(|| panic!("{pointer}"));
    parent.as_object_mut().expect("an object").insert(last.to_owned(), value.clone());
    object
}

/// The field of the error; `None` for a valid object.
fn fault(object: &Json) -> Option<String> {
    complaints(object).first().map(|text| text.split(": ").next().unwrap_or_default().to_owned())
}

/// Checks for each value at `pointer` whether it is refused.
fn check(base: &Json, pointer: &str, good: &[Json], bad: &[Json]) {
    for value in good {
        let object = with(base, pointer, value);
        assert_eq!(complaints(&object), Vec::<String>::new(), "{pointer} = {value}");
    }
    for value in bad {
        assert!(fault(&with(base, pointer, value)).is_some(), "{pointer} = {value} is accepted");
    }
}

fn named(api_version: &str, kind: &str, spec: Json) -> Json {
    json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "n", "namespace": "d"}, "spec": spec})
}

fn plain_pod() -> Json {
    container(&json!({"securityContext": {}, "resources": {},
        "livenessProbe": {"tcpSocket": {"port": 1}}, "readinessProbe": {"tcpSocket": {"port": 1}}}))
}

#[test]
fn pods_use_what_their_operating_system_has() {
    for (system, linux, windows) in [("linux", true, false), ("windows", false, true)] {
        for (pointer, value, of_linux) in [
            ("/spec/hostPID", json!(true), true),
            ("/spec/securityContext/seccompProfile", json!({"type": "RuntimeDefault"}), true),
            ("/spec/containers/0/securityContext/privileged", json!(true), true),
            ("/spec/containers/0/securityContext/capabilities", json!({"add": ["NET_RAW"]}), true),
            ("/spec/containers/0/securityContext/windowsOptions", json!({}), false),
            ("/spec/securityContext/windowsOptions", json!({}), false),
        ] {
            let mut pod = plain_pod();
            pod["spec"]["os"] = json!({"name": system});
            pod["spec"]["securityContext"] = json!({});
            match if of_linux { linux } else { windows } {
                true => check(&pod, pointer, &[value], &[]),
                false => check(&pod, pointer, &[], &[value]),
            }
        }
    }
}

#[test]
fn there_are_two_operating_systems() {
    let of = |system: &str| complaints(&with(&plain_pod(), "/spec/os", &json!({"name": system})));
    assert_eq!(of("linux"), Vec::<String>::new());
    let supported = "Unsupported value: \"Windows\": supported values: \"linux\", \"windows\"";
    assert_eq!(of("Windows"), [format!("spec.os: {supported}")]);
}

#[test]
fn numbers_of_pods() {
    let mut pod = plain_pod();
    pod["spec"]["securityContext"] = json!({});
    let max = i64::from(i32::MAX);
    let ids = (json!(0), json!(max), json!(-1), json!(max + 1));
    for pointer in [
        "/spec/securityContext/runAsUser",
        "/spec/securityContext/runAsGroup",
        "/spec/securityContext/fsGroup",
        "/spec/containers/0/securityContext/runAsUser",
        "/spec/containers/0/securityContext/runAsGroup",
    ] {
        check(&pod, pointer, &[ids.0.clone(), ids.1.clone()], &[ids.2.clone(), ids.3.clone()]);
    }
    let groups = "/spec/securityContext/supplementalGroups";
    check(&pod, groups, &[json!([0, max])], &[json!([1, -1]), json!([max + 1])]);
    let seconds = "/spec/activeDeadlineSeconds";
    check(&pod, seconds, &[json!(1), json!(max)], &[json!(0), json!(-1), json!(i64::MAX)]);
    let grace = "/spec/terminationGracePeriodSeconds";
    check(&pod, grace, &[json!(-1), json!(0), json!(max)], &[json!(max + 1), json!(i64::MAX)]);
    for field in ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "failureThreshold"] {
        let pointer = format!("/spec/containers/0/livenessProbe/{field}");
        check(&pod, &pointer, &[json!(0), json!(max)], &[json!(-1), json!(i32::MIN)]);
    }
    let grace = "/spec/containers/0/livenessProbe/terminationGracePeriodSeconds";
    check(&pod, grace, &[json!(1)], &[json!(0), json!(-1), json!(i64::MAX)]);
    let grace = "/spec/containers/0/readinessProbe/terminationGracePeriodSeconds";
    check(&pod, grace, &[], &[json!(1)]);
    let handler = "/spec/containers/0/livenessProbe";
    let grpc = |port: i64| json!({"grpc": {"port": port}});
    let http = |extra: Json| {
        let mut get = json!({"port": 80});
        get.as_object_mut().expect("an object").extend(extra.as_object().expect("one").clone());
        json!({"httpGet": get})
    };
    check(
        &pod,
        handler,
        &[grpc(1), http(json!({"scheme": "HTTPS", "httpHeaders": [{"name": "A-b"}]}))],
        &[
            grpc(0),
            grpc(65536),
            http(json!({"scheme": "FTP"})),
            http(json!({"httpHeaders": [{"name": "a b"}]})),
        ],
    );
}

#[test]
fn resources_of_containers() {
    let limits = |map: Json| json!({"limits": map});
    let both = |requests: Json, limits: Json| json!({"requests": requests, "limits": limits});
    check(
        &plain_pod(),
        "/spec/containers/0/resources",
        &[
            limits(json!({"cpu": "1500m", "memory": "1Gi", "ephemeral-storage": "1"})),
            limits(json!({"example.com/gpu": "2"})),
            limits(json!({"cpu": "1", "hugepages-2Mi": "4Mi"})),
            both(json!({"cpu": "0"}), json!({"cpu": "1"})),
        ],
        &[
            limits(json!({"foo": "1"})),
            limits(json!({"pods": "1"})),
            limits(json!({"storage": "1"})),
            limits(json!({"example.com/gpu": "500m"})),
            limits(json!({"requests.example.com/gpu": "1"})),
            limits(json!({"hugepages-2Mi": "4Mi"})),
            limits(json!({"cpu": "-1"})),
            json!({"requests": {"example.com/gpu": "1"}}),
            both(json!({"example.com/gpu": "1"}), json!({"example.com/gpu": "2"})),
            both(json!({"cpu": "1", "hugepages-2Mi": "2Mi"}), json!({"hugepages-2Mi": "4Mi"})),
        ],
    );
    let foo = with(&plain_pod(), "/spec/containers/0/resources", &limits(json!({"foo": "1"})));
    let path = "spec.containers[0].resources.limits[foo]: Invalid value: \"foo\": must be a standard resource";
    // The request defaulted from the limit has the same name.
    assert_eq!(complaints(&foo).first(), Some(&format!("{path} type or fully qualified")));
    assert_eq!(complaints(&foo).get(1), Some(&format!("{path} for containers")));
}

#[test]
fn places_of_pods() {
    let pod = plain_pod();
    let weighted = |weight: i64| {
        json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": weight, "podAffinityTerm": {"topologyKey": "zone"}}]},
            "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": weight, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}]}})
    };
    let required = |requirement: Json| {
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [requirement]}}})
    };
    check(
        &pod,
        "/spec/affinity",
        &[
            weighted(1),
            weighted(100),
            required(
                json!({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}),
            ),
            required(
                json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}),
            ),
        ],
        &[
            weighted(0),
            weighted(101),
            weighted(-1),
            required(json!({"matchExpressions": [{"key": "a", "operator": "In"}]})),
            required(
                json!({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1", "2"]}]}),
            ),
            required(
                json!({"matchFields": [{"key": "spec.x", "operator": "In", "values": ["n"]}]}),
            ),
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}),
            json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}),
        ],
    );
    let spread = |extra: Json| {
        let mut one =
            json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"});
        one.as_object_mut().expect("an object").extend(extra.as_object().expect("one").clone());
        one
    };
    let plain = spread(json!({}));
    check(
        &pod,
        "/spec/topologySpreadConstraints",
        &[json!([plain]), json!([plain, spread(json!({"whenUnsatisfiable": "ScheduleAnyway"}))])],
        &[
            json!([plain, plain]),
            json!([spread(json!({"maxSkew": 0}))]),
            json!([spread(json!({"maxSkew": -1}))]),
            json!([spread(json!({"minDomains": 0}))]),
            json!([spread(json!({"minDomains": 1, "whenUnsatisfiable": "ScheduleAnyway"}))]),
            json!([spread(json!({"topologyKey": ""}))]),
            json!([spread(json!({"whenUnsatisfiable": "Maybe"}))]),
            json!([spread(json!({"nodeTaintsPolicy": "Maybe"}))]),
        ],
    );
}

#[test]
fn security_of_pods() {
    let mut pod = plain_pod();
    pod["spec"]["securityContext"] = json!({});
    let local = |file: &str| json!({"type": "Localhost", "localhostProfile": file});
    for pointer in [
        "/spec/securityContext/seccompProfile",
        "/spec/containers/0/securityContext/seccompProfile",
    ] {
        check(
            &pod,
            pointer,
            &[json!({"type": "RuntimeDefault"}), json!({"type": "Unconfined"}), local("a/b.json")],
            &[
                json!({}),
                json!({"type": "Mine"}),
                json!({"type": "Localhost"}),
                json!({"type": "Unconfined", "localhostProfile": "a"}),
                local("/a"),
                local("../a"),
            ],
        );
    }
    let sysctl = |name: &str| json!([{"name": name, "value": "1"}]);
    check(
        &pod,
        "/spec/securityContext/sysctls",
        &[sysctl("kernel.shm_rmid_forced"), sysctl("net/ipv4/conf/eth0.1/x")],
        &[
            sysctl(""),
            sysctl("Kernel.x"),
            sysctl(".a"),
            sysctl("a b"),
            sysctl(&"a".repeat(254)),
            json!([{"name": "a.b", "value": "1"}, {"name": "a.b", "value": "2"}]),
        ],
    );
    let escalation = json!({"allowPrivilegeEscalation": false, "privileged": true});
    check(
        &pod,
        "/spec/containers/0/securityContext",
        &[json!({"privileged": true})],
        &[escalation],
    );
}

#[test]
fn references_of_variables() {
    let field = |path: &str| json!([{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": path}}}]);
    let resource = |name: &str, divisor: &str| json!([{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": name, "divisor": divisor}}}]);
    let key = |name: &str, key: &str| json!([{"name": "A", "valueFrom": {"secretKeyRef": {"name": name, "key": key}}}]);
    check(
        &plain_pod(),
        "/spec/containers/0/env",
        &[
            field("metadata.name"),
            field("spec.nodeName"),
            field("status.podIPs"),
            field("metadata.labels['app']"),
            field("metadata.annotations['example.com/A']"),
            resource("limits.cpu", "1m"),
            resource("requests.memory", "1Mi"),
            resource("limits.memory", "0"),
            key("s", "k"),
        ],
        &[
            field(""),
            field("spec.x"),
            field("metadata.labels"),
            field("metadata.labels['"),
            field("metadata.labels['a b']"),
            field("spec.nodeName['a']"),
            field("status.phase"),
            resource("limits.gpu", "1"),
            resource("limits.cpu", "2"),
            resource("limits.memory", "3"),
            key("", "k"),
            key("s", ""),
            key("s", "a/b"),
        ],
    );
}

fn workload(kind: &str) -> Json {
    named(
        "apps/v1",
        kind,
        json!({"serviceName": "s", "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]}}}),
    )
}

#[test]
fn roll_outs() {
    let mut deployment = workload("Deployment");
    deployment["spec"].as_object_mut().expect("an object").remove("serviceName");
    let rolling = |surge: Json, away: Json| json!({"rollingUpdate": {"maxSurge": surge, "maxUnavailable": away}});
    check(
        &deployment,
        "/spec/strategy",
        // Kubernetes allows a surge above 100 %.
        &[rolling(json!(1), json!(0)), rolling(json!("300%"), json!("100%"))],
        &[
            rolling(json!(-1), json!(1)),
            rolling(json!(1), json!(-1)),
            rolling(json!(1), json!("101%")),
            rolling(json!("x"), json!(1)),
            rolling(json!("-1%"), json!(1)),
            rolling(json!("99999999999999999999%"), json!(1)),
            rolling(json!(0), json!("0%")),
        ],
    );
    let deadline = "/spec/progressDeadlineSeconds";
    check(&deployment, deadline, &[json!(1)], &[json!(0), json!(-1)]);
    deployment["spec"]["minReadySeconds"] = json!(600);
    check(&deployment, deadline, &[json!(601)], &[json!(600)]);
    let mut set = workload("DaemonSet");
    set["spec"].as_object_mut().expect("an object").remove("serviceName");
    check(
        &set,
        "/spec/updateStrategy",
        &[rolling(json!(1), json!(0)), rolling(json!(0), json!("10%"))],
        &[
            rolling(json!(0), json!(0)),
            rolling(json!(1), json!(1)),
            rolling(json!("200%"), json!(0)),
        ],
    );
    let set = workload("StatefulSet");
    let partition = |number: i64| json!({"rollingUpdate": {"partition": number}});
    let away = |share: Json| json!({"rollingUpdate": {"maxUnavailable": share}});
    let good = [partition(3), away(json!(1)), away(json!("100%"))];
    let bad = [partition(-1), away(json!(0)), away(json!("0%")), away(json!("101%"))];
    check(&set, "/spec/updateStrategy", &good, &bad);
    check(&set, "/spec/podManagementPolicy", &[json!("Parallel")], &[json!("Serial")]);
}

#[test]
fn claims_of_a_stateful_set_are_retained_or_deleted() {
    let set = workload("StatefulSet");
    let policy = |words: [&str; 2]| json!({"whenDeleted": words[0], "whenScaled": words[1]});
    let good = [policy(["Delete", "Retain"]), policy(["Retain", "Delete"])];
    let bad = [policy(["Delete", "Keep"]), json!({"whenDeleted": "Delete"}), json!({})];
    let field = "/spec/persistentVolumeClaimRetentionPolicy";
    check(&set, field, &good, &bad);
    let wrong = complaints(&with(&set, field, &policy(["Keep", "Delete"])));
    let expected = "spec.persistentVolumeClaimRetentionPolicy.whenDeleted: Unsupported value: \"Keep\": \
                    supported values: \"Retain\", \"Delete\"";
    assert_eq!(wrong, [expected]);
    let changed = with(&set, field, &good[0]);
    assert_eq!(update_complaints(&set, &changed, Subresource::Main), Vec::<String>::new());
}

#[test]
fn budgets_classes_and_limits() {
    let budget = named("policy/v1", "PodDisruptionBudget", json!({}));
    for field in ["/spec/minAvailable", "/spec/maxUnavailable"] {
        let bad = [json!(-1), json!("x"), json!("101%"), json!("%")];
        check(&budget, field, &[json!(0), json!(3), json!("100%")], &bad);
    }
    check(&budget, "/spec", &[], &[json!({"minAvailable": 1, "maxUnavailable": 1})]);

    let class = |name: &str, value: i64| json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value});
    for good in [
        class("high", 1_000_000_000),
        class("low", -2_147_483_648),
        class("system-node-critical", 2_000_001_000),
    ] {
        assert_eq!(complaints(&good), Vec::<String>::new());
    }
    assert_eq!(
        complaints(&class("high", 1_000_000_001)),
        ["value: Forbidden: maximum allowed value of a user defined priority is 1000000000"]
    );
    assert_eq!(fault(&class("system-mine", 1)).as_deref(), Some("metadata.name"));
    assert_eq!(fault(&class("system-node-critical", 1)).as_deref(), Some("metadata.name"));
    let changed = update_complaints(&class("a", 1), &class("a", 2), Subresource::Main);
    assert_eq!(changed, ["value: Forbidden: may not be changed in an update."]);

    let range = named("v1", "LimitRange", json!({}));
    let limit = |extra: Json| {
        let mut one = json!({"type": "Container"});
        one.as_object_mut().expect("an object").extend(extra.as_object().expect("one").clone());
        json!([one])
    };
    check(
        &range,
        "/spec/limits",
        &[
            limit(json!({"min": {"cpu": "1"}, "max": {"cpu": "1"}})),
            limit(json!({"default": {"cpu": "1"}})),
        ],
        &[
            limit(json!({"min": {"cpu": "2"}, "max": {"cpu": "1"}})),
            limit(json!({"default": {"cpu": "2"}, "max": {"cpu": "1"}})),
            limit(json!({"defaultRequest": {"cpu": "2"}, "default": {"cpu": "1"}})),
            limit(json!({"maxLimitRequestRatio": {"cpu": "500m"}})),
            limit(json!({"max": {"foo": "1"}})),
            limit(json!({"type": "Thing"})),
            limit(json!({"type": "PersistentVolumeClaim"})),
            limit(json!({"type": "Pod", "default": {"cpu": "1"}})),
        ],
    );
}

#[test]
fn quotas() {
    let quota = named("v1", "ResourceQuota", json!({}));
    check(
        &quota,
        "/spec/hard",
        &[
            json!({"pods": "3", "requests.cpu": "500m", "count/deployments.apps": "1"}),
            json!({"requests.nvidia.com/gpu": "1", "gold.storageclass.storage.k8s.io/requests.storage": "1Gi"}),
        ],
        &[json!({"foo": "1"}), json!({"pods": "500m"}), json!({"pods": "-1"}), json!({"a b": "1"})],
    );
    check(
        &quota,
        "/spec/scopes",
        &[json!(["BestEffort"])],
        &[json!(["Mine"]), json!(["BestEffort", "NotBestEffort"])],
    );
    let selects = |scope: &str, operator: &str, values: &[&str]| json!({"matchExpressions": [{"scopeName": scope, "operator": operator, "values": values}]});
    check(
        &quota,
        "/spec/scopeSelector",
        &[
            selects("PriorityClass", "In", &["high"]),
            selects("PriorityClass", "Exists", &[]),
            selects("Terminating", "Exists", &[]),
        ],
        &[
            selects("PriorityClass", "In", &[]),
            selects("PriorityClass", "Exists", &["high"]),
            selects("PriorityClass", "Near", &[]),
            selects("Terminating", "DoesNotExist", &[]),
            selects("Mine", "Exists", &[]),
        ],
    );
    let scoped = |scopes: &[&str], name: &str| {
        named("v1", "ResourceQuota", json!({"hard": {name: "1"}, "scopes": scopes}))
    };
    for (scope, name, fits) in [
        ("BestEffort", "pods", true),
        ("BestEffort", "cpu", false),
        ("NotBestEffort", "cpu", true),
        ("NotBestEffort", "services", false),
        ("Terminating", "count/deployments.apps", true),
    ] {
        let expect = if fits { None } else { Some("spec.scopes".to_owned()) };
        assert_eq!(fault(&scoped(&[scope], name)), expect, "{scope} {name}");
    }
    let (old, new) = (scoped(&["Terminating"], "pods"), scoped(&["NotTerminating"], "pods"));
    assert_eq!(
        update_complaints(&old, &new, Subresource::Main),
        ["spec.scopes: Invalid value: [\"NotTerminating\"]: field is immutable"]
    );
}

#[test]
fn objects_of_csi_drivers_keep_what_others_rely_on() {
    let object = |kind: &str, fields: Json| {
        let mut object =
            json!({"apiVersion": "storage.k8s.io/v1", "kind": kind, "metadata": {"name": "n"}});
        object.as_object_mut().expect("an object").extend(fields.as_object().expect("one").clone());
        object
    };
    let driver = |spec: Json| object("CSIDriver", json!({"spec": spec}));
    let capacity = |class: &str, zone: &str| {
        let topology = json!({"matchLabels": {"zone": zone}});
        let metadata = json!({"name": "n", "namespace": "d"});
        object(
            "CSIStorageCapacity",
            json!({"metadata": metadata, "storageClassName": class, "nodeTopology": topology}),
        )
    };
    let attachment = |node: &str, source: Json| {
        object(
            "VolumeAttachment",
            json!({"spec": {"attacher": "a", "nodeName": node, "source": source}}),
        )
    };
    let volume = || json!({"persistentVolumeName": "v"});
    for (bad, field) in [
        (capacity("", "a"), "storageClassName"),
        (attachment("", volume()), "spec.nodeName"),
        (attachment("n", json!({})), "spec.source"),
        (attachment("n", json!({"persistentVolumeName": ""})), "spec.source.persistentVolumeName"),
    ] {
        assert_eq!(fault(&bad).as_deref(), Some(field), "{bad}");
    }
    let was = driver(json!({"attachRequired": true, "storageCapacity": false}));
    for (old, new, field) in [
        (
            was.clone(),
            driver(json!({"attachRequired": false, "storageCapacity": false})),
            "spec.attachRequired",
        ),
        (was.clone(), driver(json!({"attachRequired": true, "storageCapacity": true})), ""),
        (
            was.clone(),
            driver(json!({"attachRequired": true, "fsGroupPolicy": "None"})),
            "spec.fsGroupPolicy",
        ),
        (capacity("a", "a"), capacity("b", "a"), "storageClassName"),
        (capacity("a", "a"), capacity("a", "b"), "nodeTopology"),
        (capacity("a", "a"), capacity("a", "a"), ""),
        (attachment("n", volume()), attachment("m", volume()), "spec"),
    ] {
        let found = update_complaints(&old, &new, Subresource::Main);
        let fields: Vec<&str> = found.iter().filter_map(|text| text.split(": ").next()).collect();
        assert_eq!(fields.join(" "), field, "{new}");
    }
}

#[test]
fn schedules() {
    let cron = |schedule: &str| {
        named(
            "batch/v1",
            "CronJob",
            json!({"schedule": schedule, "jobTemplate": {"spec": {"template": {"spec": {"restartPolicy": "Never",
                "containers": [{"name": "c", "image": "i"}]}}}}}),
        )
    };
    for good in [
        "* * * * *",
        "*/5 0-23/2 1,15 jan-MAR Sun",
        "0 0 ? * 1-5",
        "59 23 31 12 6",
        "@hourly",
        "@every 1h30m",
        "TZ=Europe/Berlin 0 1 * * *",
        "CRON_TZ=UTC @daily",
        "TZ= @daily",
        "TZ=Local @daily",
        "5/15 * * * *",
    ] {
        assert_eq!(complaints(&cron(good)), Vec::<String>::new(), "{good}");
    }
    for bad in [
        "",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 13 *",
        "* * * * 7",
        "5-1 * * * *",
        "*/0 * * * *",
        "1/2/3 * * * *",
        "1-2-3 * * * *",
        "x * * * *",
        "-1 * * * *",
        "@sometimes",
        "@every",
        "@every x",
        "TZ=Europe/Berlin",
        "TZ=Nowhere/City 0 1 * * *",
        "CRON_TZ=europe/berlin @daily",
        "TZ=../UTC @daily",
        "* * * foo *",
        "4294967296 * * * *",
    ] {
        assert_eq!(fault(&cron(bad)).as_deref(), Some("spec.schedule"), "{bad:?}");
    }
    let field = "/spec/startingDeadlineSeconds";
    check(&cron("@daily"), field, &[json!(0)], &[json!(-1), json!(i64::MAX)]);
    let zones = [json!("UTC"), json!("Europe/Berlin")];
    let none = ["", "Local", "local", "Nowhere", "europe/berlin", "../UTC"].map(|zone| json!(zone));
    check(&cron("@daily"), "/spec/timeZone", &zones, &none);
    for schedule in ["TZ=UTC @daily", "CRON_TZ=UTC @daily"] {
        let both = with(&cron(schedule), "/spec/timeZone", &json!("UTC"));
        let expected = format!(
            "spec.schedule: Invalid value: {schedule:?}: cannot use both timeZone field and TZ or CRON_TZ in schedule"
        );
        let update = update_complaints(&cron("@daily"), &both, Subresource::Main);
        assert_eq!(complaints(&both), [expected.as_str()]);
        assert_eq!(update, [expected]);
    }
}

#[test]
fn the_last_pod_of_an_indexed_job_has_a_dns_label_as_its_hostname() {
    let job = |name: &str, mode: &str, completions: i64| {
        let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
        let mut job = named(
            "batch/v1",
            "Job",
            json!({"completionMode": mode, "completions": completions, "template": template}),
        );
        job["metadata"]["name"] = json!(name);
        job
    };
    let long = "a".repeat(61);
    for (name, mode, completions, hostname) in [
        ("etl.daily", "Indexed", 3, "etl.daily-2"),
        ("etl.daily", "NonIndexed", 3, ""),
        ("etl.daily", "Indexed", 0, ""),
        ("etl-daily", "Indexed", 3, ""),
        (&long, "Indexed", 10, ""),
        (&long, "Indexed", 11, &format!("{long}-10")),
    ] {
        let expected = format!(
            "metadata.name: Invalid value: {name:?}: will not able to create pod with invalid DNS label: {hostname}"
        );
        let expected = Some(expected).filter(|_| !hostname.is_empty());
        let job = job(name, mode, completions);
        assert_eq!(complaints(&job), Vec::from_iter(expected), "{name}, {completions}");
        let relabelled = with(&job, "/metadata/labels", &json!({"a": "b"}));
        let update = update_complaints(&job, &relabelled, Subresource::Main);
        assert_eq!(update, Vec::<String>::new(), "{name} is stored");
    }
}

#[test]
fn policies_and_ingresses() {
    let policy = named("networking.k8s.io/v1", "NetworkPolicy", json!({"podSelector": {}}));
    let ports = |port: Json| json!([{"ports": [port]}]);
    let block = |cidr: &str, except: &[&str]| json!([{"from": [{"ipBlock": {"cidr": cidr, "except": except}}]}]);
    check(
        &policy,
        "/spec/ingress",
        &[
            ports(json!({})),
            ports(json!({"port": 80, "endPort": 90, "protocol": "SCTP"})),
            ports(json!({"port": "http"})),
            block("10.0.0.0/8", &["10.1.0.0/16"]),
            block("::/0", &["fd00::/8"]),
            json!([{"from": [{"podSelector": {}, "namespaceSelector": {}}]}]),
        ],
        &[
            ports(json!({"port": 0})),
            ports(json!({"port": 65536})),
            ports(json!({"port": 80, "endPort": 79})),
            ports(json!({"port": 80, "endPort": 65536})),
            ports(json!({"endPort": 80})),
            ports(json!({"port": "http", "endPort": 80})),
            ports(json!({"port": 80, "protocol": "ICMP"})),
            block("", &[]),
            block("10.0.0.0", &[]),
            block("10.0.0.0/33", &[]),
            block("10.0.0.0/8", &["11.0.0.0/16"]),
            block("10.0.0.0/8", &["10.0.0.0/8"]),
            block("10.0.0.0/8", &["fd00::/16"]),
            json!([{"from": [{}]}]),
            json!([{"from": [{"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}}]}]),
        ],
    );
    check(&policy, "/spec/policyTypes", &[json!(["Egress"])], &[json!(["Both"])]);

    let ingress = named("networking.k8s.io/v1", "Ingress", json!({}));
    let rule = |path: Json| json!([{"http": {"paths": [path]}}]);
    let to = |port: Json| json!({"service": {"name": "s", "port": port}});
    let path = |kind: &str, path: &str| json!({"pathType": kind, "path": path, "backend": to(json!({"number": 80}))});
    let backend = |backend: Json| json!({"pathType": "Prefix", "path": "/", "backend": backend});
    check(
        &ingress,
        "/spec/rules",
        &[
            rule(path("Prefix", "/a")),
            rule(path("ImplementationSpecific", "")),
            rule(backend(to(json!({"name": "http"})))),
            rule(backend(json!({"resource": {"kind": "K", "name": "n"}}))),
            json!([{"host": "*.example.com"}]),
        ],
        &[
            json!([]),
            json!([{"http": {"paths": []}}]),
            json!([{"host": "10.0.0.1"}]),
            json!([{"host": "a b"}]),
            rule(path("Exact", "a")),
            rule(path("Exact", "/a//b")),
            rule(path("Prefix", "/a/..")),
            rule(path("Regex", "/a")),
            rule(json!({"path": "/", "backend": to(json!({"number": 80}))})),
            rule(backend(to(json!({})))),
            rule(backend(to(json!({"number": 70000})))),
            rule(backend(to(json!({"number": 80, "name": "http"})))),
            rule(backend(json!({}))),
        ],
    );
}

#[test]
fn autoscalers() {
    let scaler = named(
        "autoscaling/v2",
        "HorizontalPodAutoscaler",
        json!({"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "d"}}),
    );
    check(&scaler, "/spec/maxReplicas", &[json!(1)], &[json!(0), json!(-1)]);
    check(&scaler, "/spec/minReplicas", &[json!(3)], &[json!(0), json!(4), json!(-1)]);
    let mut idle = scaler.clone();
    idle["spec"]["minReplicas"] = json!(0);
    idle["spec"]["metrics"] = json!([{"type": "External", "external":
        {"metric": {"name": "m"}, "target": {"type": "AverageValue", "averageValue": "1"}}}]);
    let expected = "spec.minReplicas: Invalid value: 0: must be greater than or equal to 1";
    assert_eq!(complaints(&idle), [expected]);
    let zero = FieldGates::from_iter([FieldGate::HpaScaleToZero]);
    assert_eq!(complaints_with(zero, &idle), Vec::<String>::new());
    assert_eq!(update_complaints(&idle, &idle, Subresource::Main), Vec::<String>::new());
    let mut below = idle.clone();
    below["spec"]["minReplicas"] = json!(-1);
    let expected = "spec.minReplicas: Invalid value: -1: must be greater than or equal to 0";
    assert_eq!(complaints_with(zero, &below), [expected]);
    check(&scaler, "/spec/scaleTargetRef", &[], &[json!({}), json!({"kind": "a/b", "name": "c"})]);
    let mut counted = scaler.clone();
    counted["status"] = json!({"currentReplicas": 0, "desiredReplicas": -1});
    let wrong = update_complaints(&scaler, &counted, Subresource::Status);
    assert!(wrong.len() == 1 && wrong[0].starts_with("status.desiredReplicas: "), "{wrong:?}");
    let metric = |share: i64| {
        json!([{"type": "Resource", "resource": {"name": "cpu",
            "target": {"type": "Utilization", "averageUtilization": share}}}])
    };
    let none = json!([{"type": "Resource"}]);
    let unknown = json!([{"type": "Moon"}]);
    check(&scaler, "/spec/metrics", &[metric(1)], &[metric(0), metric(-1), none, unknown]);
    let window = |seconds: i64| json!({"scaleDown": {"stabilizationWindowSeconds": seconds}});
    let policy = |value: i64, period: i64| json!({"scaleUp": {"policies": [{"type": "Pods", "value": value, "periodSeconds": period}]}});
    check(
        &scaler,
        "/spec/behavior",
        &[window(0), window(3600), policy(1, 1800)],
        &[window(-1), window(3601), policy(0, 1), policy(1, 0), policy(1, 1801)],
    );
}

#[test]
fn events_are_about_objects_of_their_namespace() {
    let event = |namespace: &str| json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "n", "namespace": namespace}});
    assert_eq!(fault(&event("default")), None);
    assert_eq!(fault(&event("d")).as_deref(), Some("involvedObject.namespace"));
    let about = json!({"namespace": "d"});
    assert_eq!(fault(&with(&event("d"), "/involvedObject", &about)), None);
}

#[test]
fn roles_classes_and_drivers() {
    let cluster = |group: &str, kind: &str, fields: Json| {
        let mut object = json!({"apiVersion": group, "kind": kind, "metadata": {"name": "n"}});
        object.as_object_mut().expect("an object").extend(fields.as_object().expect("one").clone());
        object
    };
    let rbac = "rbac.authorization.k8s.io/v1";
    let role = cluster(rbac, "ClusterRole", json!({}));
    let rule = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]});
    check(
        &role,
        "/rules",
        &[json!([rule]), json!([{"verbs": ["get"], "nonResourceURLs": ["/x"]}])],
        &[
            json!([{"apiGroups": [""], "resources": ["pods"]}]),
            json!([{"verbs": ["get"], "resources": ["pods"]}]),
            json!([{"verbs": ["get"], "apiGroups": [""]}]),
            json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "nonResourceURLs": ["/x"]}]),
        ],
    );
    let reference = |kind: &str| json!({"kind": kind, "name": "r"});
    let binding = cluster(rbac, "ClusterRoleBinding", json!({"roleRef": reference("ClusterRole")}));
    check(
        &binding,
        "/roleRef",
        &[reference("ClusterRole")],
        &[reference("Role"), reference("Pod"), json!({})],
    );
    check(
        &binding,
        "/subjects",
        &[
            json!([{"kind": "User", "name": "jane"}, {"kind": "ServiceAccount", "name": "a", "namespace": "d"}]),
        ],
        &[
            json!([{"kind": "Robot", "name": "r"}]),
            json!([{"kind": "User", "name": ""}]),
            json!([{"kind": "ServiceAccount", "name": "a"}]),
            json!([{"kind": "User", "name": "jane", "apiGroup": "x"}]),
        ],
    );
    let storage =
        cluster("storage.k8s.io/v1", "StorageClass", json!({"provisioner": "example.com/p"}));
    check(&storage, "/provisioner", &[], &[json!(""), json!("a b")]);
    check(&storage, "/reclaimPolicy", &[json!("Retain")], &[json!("Recycle")]);
    check(&storage, "/volumeBindingMode", &[json!("WaitForFirstConsumer")], &[json!("Later")]);
    let runtime = cluster("node.k8s.io/v1", "RuntimeClass", json!({"handler": "runc"}));
    check(&runtime, "/handler", &[json!("a-b")], &[json!(""), json!("A_b")]);
    let driver = cluster("storage.k8s.io/v1", "CSIDriver", json!({"spec": {}}));
    check(&driver, "/spec/fsGroupPolicy", &[json!("None")], &[json!("Maybe")]);
    check(&driver, "/spec/volumeLifecycleModes", &[json!(["Ephemeral"])], &[json!(["Once"])]);
    let tokens = |seconds: i64| json!([{"audience": "a", "expirationSeconds": seconds}]);
    check(
        &driver,
        "/spec/tokenRequests",
        &[tokens(600)],
        &[tokens(599), tokens(i64::MAX), tokens(-1)],
    );
}

#[test]
fn services_and_their_addresses() {
    let service = named("v1", "Service", json!({"ports": [{"port": 80}]}));
    check(
        &service,
        "/spec/clusterIPs",
        &[json!(["10.0.0.1", "fd00::1"])],
        &[
            json!(["10.0.0.1", "10.0.0.2"]),
            json!(["10.0.0.1", "fd00::1", "fd00::2"]),
            json!(["None", "10.0.0.1"]),
            json!(["x"]),
        ],
    );
    check(
        &service,
        "/spec/ipFamilies",
        &[json!(["IPv6"])],
        &[json!(["IPv4", "IPv4"]), json!(["IPv5"])],
    );
    let bad = [
        "127.0.0.1",
        "0.0.0.0",
        "169.254.1.1",
        "224.0.0.1",
        "239.1.1.1",
        "fe80::1",
        "::1",
        "::ffff:127.0.0.1",
        "255.255.255.255",
    ];
    let bad: Vec<Json> = bad.iter().map(|address| json!([address])).collect();
    check(&service, "/spec/externalIPs", &[json!(["192.0.2.1", "2001:db8::1"])], &bad);
    check(&service, "/spec/loadBalancerSourceRanges", &[], &[json!(["10.0.0.0/8"])]);
    let balanced = named("v1", "Service", json!({"type": "LoadBalancer", "ports": [{"port": 80}]}));
    let ranges = "/spec/loadBalancerSourceRanges";
    check(
        &balanced,
        ranges,
        &[json!(["10.0.0.0/8", " ::/0"])],
        &[json!(["10.0.0.0"]), json!(["x/8"])],
    );
    check(&service, "/spec/healthCheckNodePort", &[], &[json!(30000), json!(-1)]);
}

#[test]
fn addresses_in_statuses() {
    let status = |object: &Json, status: Json| {
        let mut new = object.clone();
        new["status"] = status;
        update_complaints(object, &new, Subresource::Status)
    };
    let pod = plain_pod();
    assert_eq!(
        status(
            &pod,
            json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}], "hostIP": "192.0.2.1"})
        ),
        Vec::<String>::new()
    );
    for bad in [
        json!({"podIP": "127.0.0.1"}),
        json!({"podIP": "169.254.169.254"}),
        json!({"podIP": "x"}),
        json!({"hostIP": "169.254.169.254"}),
        json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}]}),
    ] {
        assert!(!status(&pod, bad.clone()).is_empty(), "{bad}");
    }
    // A node may have a loopback address, and a pod with host networking its node's addresses.
    assert_eq!(status(&pod, json!({"hostIP": "::1"})), Vec::<String>::new());
    let mut shares = pod.clone();
    shares["spec"]["hostNetwork"] = json!(true);
    assert_eq!(
        status(&shares, json!({"podIP": "127.0.0.1", "hostIP": "127.0.0.1"})),
        Vec::<String>::new()
    );
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    let address = |text: &str| json!({"addresses": [{"type": "InternalIP", "address": text}]});
    assert_eq!(status(&node, address("192.0.2.1")), Vec::<String>::new());
    for bad in ["169.254.169.254", "0.0.0.0", "224.0.0.1", "x", ""] {
        assert!(!status(&node, address(bad)).is_empty(), "{bad}");
    }
    let slice = |kind: &str, address: &str| {
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "n", "namespace": "d"},
            "addressType": kind, "endpoints": [{"addresses": [address]}]})
    };
    assert_eq!(complaints(&slice("IPv4", "10.0.0.1")), Vec::<String>::new());
    for (kind, bad) in [
        ("IPv4", "127.0.0.1"),
        ("IPv4", "fd00::1"),
        ("IPv6", "10.0.0.1"),
        ("IPv6", "fe80::1"),
        ("IPv4", "x"),
    ] {
        assert!(fault(&slice(kind, bad)).is_some(), "{kind} {bad}");
    }
}

/// Objects with errors from before a rule existed can be updated and deleted; new errors are refused.
#[test]
fn old_faults_do_not_stand_in_the_way() {
    let old =
        named("v1", "Service", json!({"ports": [{"port": 80}], "externalIPs": ["127.0.0.1"]}));
    let update = |new: &Json| update_complaints(&old, new, Subresource::Main);
    assert_eq!(complaints(&old).len(), 1);
    let labelled = with(&old, "/metadata/labels", &json!({"a": "b"}));
    assert_eq!(update(&labelled), Vec::<String>::new());
    assert_eq!(update(&with(&old, "/spec/externalIPs", &json!([]))), Vec::<String>::new());
    assert_eq!(update(&with(&old, "/spec/externalIPs", &json!(["127.0.0.2"]))).len(), 1);
    assert_eq!(update(&with(&old, "/spec/externalIPs", &json!(["127.0.0.1", "::1"]))).len(), 1);
    let pod = |grace: i64| {
        pod(
            &json!({"terminationGracePeriodSeconds": grace, "containers": [{"name": "c", "image": "i"}]}),
        )
    };
    let mend = update_complaints(&pod(-5), &pod(1), Subresource::Main);
    assert_eq!(mend, Vec::<String>::new());
    assert_eq!(update_complaints(&pod(5), &pod(1), Subresource::Main).len(), 1);
}

#[test]
fn so_many_errors_and_no_more() {
    let ports: Vec<Json> = (0..5000).map(|_| json!({"port": 0})).collect();
    assert_eq!(complaints(&named("v1", "Service", json!({"ports": ports}))).len(), 1000);
}

#[test]
fn a_selector_is_required_and_stays() {
    for kind in ["Deployment", "ReplicaSet", "DaemonSet", "StatefulSet"] {
        let mut object = workload(kind);
        if kind != "StatefulSet" {
            object["spec"].as_object_mut().expect("an object").remove("serviceName");
        }
        let mut without = object.clone();
        without["spec"].as_object_mut().expect("an object").remove("selector");
        assert_eq!(fault(&without).as_deref(), Some("spec.selector"), "{kind}");
        let mut other = object.clone();
        other["spec"]["selector"] = json!({"matchLabels": {"c": "d"}});
        other["spec"]["template"]["metadata"]["labels"] = json!({"c": "d"});
        assert_eq!(complaints(&other), Vec::<String>::new(), "{kind}");
        let changed = update_complaints(&object, &other, Subresource::Main);
        let why = if kind == "StatefulSet" { "are forbidden" } else { "field is immutable" };
        assert!(changed.len() == 1 && changed[0].ends_with(why), "{changed:?}");
    }
}

#[test]
fn audiences_of_token_requests_and_drivers_of_a_csi_node_are_unique() {
    let driver = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "d"}, "spec": {}});
    check(
        &driver,
        "/spec/tokenRequests",
        &[json!([{"audience": ""}, {"audience": "a"}, {"audience": "b"}])],
        &[
            json!([{"audience": "a"}, {"audience": "a"}]),
            json!([{"audience": ""}, {"audience": ""}]),
        ],
    );
    let node = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": "n"}, "spec": {}});
    let of = |name: &str, count: i64| json!({"name": name, "nodeID": "n", "topologyKeys": [], "allocatable": {"count": count}});
    check(
        &node,
        "/spec/drivers",
        &[json!([]), json!([of("a", 0), of("b", 16)]), json!([{"name": "a", "nodeID": "n"}])],
        &[json!([of("a", 1), of("a", 1)]), json!([of("", 1)]), json!([of("a", -1)])],
    );
}

#[test]
fn the_failure_policy_of_a_job_has_rules_that_can_match() {
    let policy = |rules: Json| json!({ "rules": rules });
    let job = named(
        "batch/v1",
        "Job",
        json!({"podFailurePolicy": policy(json!([])), "template": {"spec": {"restartPolicy": "Never",
            "containers": [{"name": "c", "image": "i"}], "initContainers": [{"name": "init", "image": "i"}]}}}),
    );
    let codes = |operator: &str, values: Json| json!([{"action": "FailJob", "onExitCodes": {"operator": operator, "values": values}}]);
    let of = |name: &str| {
        let codes = json!({"containerName": name, "operator": "In", "values": [1]});
        json!([{"action": "Ignore", "onExitCodes": codes}])
    };
    let conditions = |kind: &str, status: &str| json!([{"action": "Count", "onPodConditions": [{"type": kind, "status": status}]}]);
    let both = json!([{"action": "Count", "onExitCodes": {"operator": "In", "values": [1]},
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]);
    let many = |len: usize| Json::from(vec![of("c")[0].clone(); len]);
    let all: Vec<usize> = (1..=256).collect();
    let good = [
        codes("In", json!([1, 2, 255])),
        codes("NotIn", json!([0, 1])),
        codes("In", json!(all[..255])),
        of("c"),
        of("init"),
        conditions("DisruptionTarget", "True"),
        json!([{"action": "Count", "onPodConditions": [{"type": "DisruptionTarget"}]}]),
        many(20),
    ];
    let bad = [
        codes("In", json!([0])),
        codes("In", json!([])),
        codes("In", json!([2, 1])),
        codes("In", json!([1, 1])),
        codes("In", json!(all)),
        codes("Is", json!([1])),
        of("other"),
        conditions("DisruptionTarget", "Maybe"),
        conditions("a b", "True"),
        both,
        json!([{"action": "Count"}]),
        json!([{"action": "Forgive", "onExitCodes": {"operator": "In", "values": [1]}}]),
        many(21),
    ];
    check(&job, "/spec/podFailurePolicy", &good.map(policy), &bad.map(policy));
    let mut restarting = job.clone();
    restarting["spec"]["template"]["spec"]["restartPolicy"] = json!("OnFailure");
    assert_eq!(fault(&restarting).as_deref(), Some("spec.template.spec.restartPolicy"));
}

#[test]
fn finalizers_without_a_domain_are_kubernetes_own() {
    let with = |api_version: &str, kind: &str, finalizers: &[&str]| {
        json!({"apiVersion": api_version, "kind": kind,
            "metadata": {"name": "n", "namespace": "d", "finalizers": finalizers}})
    };
    let own = ["foregroundDeletion", "kubernetes.io/pvc-protection", "a.b/c"];
    assert_eq!(fault(&with("v1", "ConfigMap", &own)), None);
    let refused = fault(&with("v1", "ConfigMap", &["a.b/c", "mine"]));
    assert_eq!(refused.as_deref(), Some("metadata.finalizers[1]"));
    assert_eq!(fault(&with("coordination.k8s.io/v1", "Lease", &["mine"])), None);
    // One that was stored before the rule stays; an update brings no other.
    let map = |finalizers: &[&str]| with("v1", "ConfigMap", finalizers);
    let kept = update_complaints(&map(&["a", "b"]), &map(&["b", "a.b/c"]), Subresource::Main);
    assert_eq!(kept, Vec::<String>::new());
    let brought = update_complaints(&map(&["a"]), &map(&["a", "b"]), Subresource::Main);
    assert!(brought[0].starts_with("metadata.finalizers[1]: Invalid value: \"b\""), "{brought:?}");
    let named = |prefix: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "n", "namespace": "d", "generateName": prefix}})
    };
    assert_eq!(fault(&named("a-")), None);
    assert_eq!(fault(&named("a.")).as_deref(), Some("metadata.generateName"));
}

#[test]
fn templates_of_workloads() {
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": plain_pod()["spec"]});
    let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
    let deployment = named("apps/v1", "Deployment", spec.clone());
    assert_eq!(complaints(&deployment), Vec::<String>::new());
    let deadline = "/spec/template/spec/activeDeadlineSeconds";
    for kind in ["Deployment", "ReplicaSet", "DaemonSet", "StatefulSet"] {
        let workload = with(&named("apps/v1", kind, spec.clone()), deadline, &json!(5));
        let kind = if kind == "Deployment" { "ReplicaSet" } else { kind };
        let expect = format!(
            "spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in {kind} is not Supported"
        );
        assert_eq!(complaints(&workload), [expect]);
    }
    let none = with(&deployment, "/spec/selector", &json!(null));
    assert_eq!(faults(&none), ["spec.selector", "spec.template.metadata.labels"]);
    let wrong = json!({"matchExpressions": [{"key": "a", "operator": "Is"}]});
    let wrong = with(&deployment, "/spec/selector", &wrong);
    assert_eq!(faults(&wrong), ["spec.selector.matchExpressions[0].operator", "spec.selector"]);
    let strategy = with(&deployment, "/spec/strategy", &json!({"type": "Other"}));
    assert_eq!(faults(&strategy), ["spec.strategy"]);
    for (policy, cause) in [("Always", "Required value"), ("Other", "Unsupported value")] {
        let job = named("batch/v1", "Job", json!({"template": {"spec": plain_pod()["spec"]}}));
        let job = with(&job, "/spec/template/spec/restartPolicy", &json!(policy));
        let found = complaints(&job);
        let expect = format!("spec.template.spec.restartPolicy: {cause}");
        assert!(found.iter().any(|one| one.starts_with(&expect)), "{found:?}");
    }
}

/// The fields of all errors.
fn faults(object: &Json) -> Vec<String> {
    let of = |text: &String| text.split(": ").next().unwrap_or_default().to_owned();
    complaints(object).iter().map(of).collect()
}

#[test]
fn users_of_windows() {
    let mut pod = plain_pod();
    pod["spec"]["securityContext"] = json!({"windowsOptions": {}});
    let long = "x".repeat(105);
    check(
        &pod,
        "/spec/securityContext/windowsOptions/runAsUserName",
        &[json!("a"), json!("NT AUTHORITY\\user"), json!("x".repeat(104))],
        &[json!(""), json!("a\\b\\c"), json!("\\a"), json!("a\\"), json!("a\u{7}"), json!("..")],
    );
    let name = json!(long);
    let named = with(&pod, "/spec/securityContext/windowsOptions/runAsUserName", &name);
    assert_eq!(fault(&named).as_deref(), Some("spec.securityContext.windowsOptions.runAsUserName"));
}

#[test]
fn causes_name_the_fields_that_kubernetes_names() {
    let mut term = plain_pod();
    term["spec"]["affinity"] = json!({"podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [{"namespaces": ["A"]}]}});
    let path = "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]";
    let expect = ["namespace", "topologyKey", "topologyKey"].map(|field| format!("{path}.{field}"));
    let mut found = faults(&term);
    found.dedup_by(|a, b| a == b && a.ends_with("namespace"));
    assert_eq!(found.iter().filter(|field| field.starts_with(path)).count(), found.len());
    assert_eq!(found[0], expect[0]);
    assert!(found.iter().filter(|field| **field == expect[1]).count() >= 2);

    let mounts = json!({"volumeMounts": [{"mountPath": "/a", "mountPropagation": "Up"}]});
    let list = "spec.containers[0].volumeMounts";
    assert_eq!(
        faults(&container(&mounts)),
        [format!("{list}[0].name"), format!("{list}[0].name"), format!("{list}.mountPropagation")]
    );
    let env = json!({"envFrom": [{}], "terminationMessagePolicy": "Never"});
    let found = faults(&container(&env));
    assert_eq!(
        found,
        ["spec.containers[0].terminationMessagePolicy", "spec.containers[0].envFrom"]
    );
    let claim = named(
        "v1",
        "PersistentVolumeClaim",
        json!({"accessModes": ["Some"], "resources": {"requests": {"storage": "1"}}}),
    );
    assert_eq!(faults(&claim), ["spec.accessModes"]);
}

#[test]
fn classes_and_drivers_of_nodes() {
    let toleration = json!({"key": "a", "operator": "Exists"});
    let class = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "n"},
        "handler": "h", "scheduling": {"tolerations": [toleration, toleration]}});
    assert_eq!(faults(&class), ["scheduling.tolerations[1]"]);
    let node = |id: &str| {
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": "n"},
            "spec": {"drivers": [{"name": "d", "nodeID": id}]}})
    };
    assert_eq!(fault(&node(&"x".repeat(192))), None);
    assert_eq!(fault(&node(&"x".repeat(193))).as_deref(), Some("spec.drivers[0].nodeID"));
    let changed = update_complaints(&node("a"), &node("b"), Subresource::Main);
    assert!(changed[0].starts_with("CSINodeDriver: Invalid value"), "{changed:?}");
    assert!(update_complaints(&node("a"), &node("a"), Subresource::Main).is_empty());
}

#[test]
fn protocols_of_applications_are_names() {
    let service = |protocol: &str| {
        named("v1", "Service", json!({"ports": [{"port": 80, "appProtocol": protocol}]}))
    };
    assert_eq!(fault(&service("example.com/h2c")), None);
    for wrong in ["", "Not Valid!"] {
        assert_eq!(fault(&service(wrong)).as_deref(), Some("spec.ports[0].appProtocol"));
    }
}

#[test]
fn counts_of_a_status_fit_each_other() {
    let with_status = |status: Json| {
        let mut set = named("apps/v1", "ReplicaSet", json!({"replicas": 3}));
        set["status"] = status;
        set
    };
    let none = with_status(json!({"replicas": 0}));
    let complaints =
        |status: Json| update_complaints(&none, &with_status(status), Subresource::Status);
    let good = json!({"replicas": 3, "readyReplicas": 2, "availableReplicas": 2});
    assert_eq!(complaints(good), Vec::<String>::new());
    assert_eq!(
        complaints(json!({"replicas": 3, "readyReplicas": 1, "availableReplicas": 2})),
        ["status.availableReplicas: Invalid value: 2: cannot be greater than readyReplicas"]
    );
    assert_eq!(
        complaints(json!({"replicas": 1, "readyReplicas": 2})),
        ["status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas"]
    );
}

#[test]
fn only_running_pods_get_ephemeral_containers() {
    let debug = json!([{"name": "d", "image": "i", "terminationMessagePolicy": "File", "imagePullPolicy": "Always"}]);
    let pod = with(&plain_pod(), "/spec/ephemeralContainers", &debug);
    assert_eq!(faults(&pod), ["spec.ephemeralContainers"]);
    let spec = json!({"selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod["spec"]}});
    let set = named("apps/v1", "ReplicaSet", spec);
    assert_eq!(faults(&set), ["spec.template.spec.ephemeralContainers"]);
}

/// `kubectl debug` adds them; what is wrong stays in the pod, because they are not removed again.
#[test]
fn ephemeral_containers_see_what_is_there_and_reserve_nothing() {
    let pod = plain_pod();
    let debug = |change: Json| {
        let mut container = json!({"name": "d", "image": "i", "terminationMessagePolicy": "File", "imagePullPolicy": "Always"});
        container
            .as_object_mut()
            .expect("an object")
            .extend(change.as_object().expect("an object").clone());
        let new = with(&pod, "/spec/ephemeralContainers", &json!([container]));
        update_complaints(&pod, &new, Subresource::EphemeralContainers)
    };
    let target = pod["spec"]["containers"][0]["name"].clone();
    assert_eq!(debug(json!({"targetContainerName": target})), Vec::<String>::new());
    assert_eq!(
        debug(json!({"targetContainerName": "none"})),
        ["spec.ephemeralContainers[0].targetContainerName: Not found: \"none\""]
    );
    let get = json!({"httpGet": {"path": "/", "port": 80}});
    for (field, value) in [
        ("ports", json!([{"containerPort": 80}])),
        ("resources", json!({"limits": {"cpu": "1"}})),
        ("livenessProbe", get.clone()),
        ("lifecycle", json!({"preStop": get})),
        ("lifecycle", json!({})),
    ] {
        let refused = format!(
            "spec.ephemeralContainers[0].{field}: Forbidden: cannot be set for an Ephemeral Container"
        );
        assert_eq!(debug(json!({field: value})), [refused]);
    }
    assert_eq!(debug(json!({"resources": {}})), Vec::<String>::new());
}

#[test]
fn init_containers_have_neither_hooks_nor_probes() {
    let init = |field: &str, value: &Json| {
        let container = json!([{"name": "i", "image": "i", field: value}]);
        faults(&with(&plain_pod(), "/spec/initContainers", &container))
    };
    let get = json!({"httpGet": {"path": "/", "port": 80}});
    for (field, value) in [
        ("lifecycle", json!({"preStop": get})),
        ("lifecycle", json!({})),
        ("lifecycle", json!({"postStart": null})),
        ("livenessProbe", get.clone()),
        ("readinessProbe", get.clone()),
        ("startupProbe", get.clone()),
    ] {
        assert_eq!(init(field, &value), [format!("spec.initContainers[0].{field}")], "{value}");
    }
    for field in ["lifecycle", "resources", "ports"] {
        assert_eq!(init(field, &Json::Null), Vec::<String>::new(), "{field}");
    }
    assert_eq!(init("resources", &json!({})), Vec::<String>::new());
}

#[test]
fn annotations_of_pods_mean_what_they_say() {
    const COST: &str = "controller.kubernetes.io/pod-deletion-cost";
    const PROFILE: &str = "container.apparmor.security.beta.kubernetes.io/c";
    let annotated =
        |key: &str, value: &str| with(&plain_pod(), "/metadata/annotations", &json!({key: value}));
    for good in ["0", "10", "-10", "2147483647", "-2147483648"] {
        assert_eq!(complaints(&annotated(COST, good)), Vec::<String>::new(), "{good}");
    }
    for wrong in ["", "a", "+1", "01", "1.5", "2147483648"] {
        let expected = format!(
            "metadata.annotations[{COST}]: Invalid value: {wrong:?}: must be a 32bit integer"
        );
        assert_eq!(complaints(&annotated(COST, wrong)), [expected]);
    }
    for good in ["runtime/default", "unconfined", "localhost/own", ""] {
        assert_eq!(complaints(&annotated(PROFILE, good)), Vec::<String>::new(), "{good}");
    }
    let other = format!("{}d", &PROFILE[..PROFILE.len() - 1]);
    for (key, value) in [(PROFILE, "own"), (other.as_str(), "unconfined")] {
        assert_eq!(faults(&annotated(key, value)), [format!("metadata.annotations[{key}]")]);
    }
    let change = |before: &str, after: &str| {
        update_complaints(
            &annotated(PROFILE, before),
            &annotated(PROFILE, after),
            Subresource::Main,
        )
    };
    assert_eq!(change("unconfined", "unconfined"), Vec::<String>::new());
    let changed = change("runtime/default", "unconfined");
    let [error] = changed.as_slice() else { panic!("{changed:?}") };
    assert!(error.ends_with("may not remove or update AppArmor annotations"), "{error}");
    let added =
        update_complaints(&plain_pod(), &annotated(PROFILE, "unconfined"), Subresource::Status);
    let [error] = added.as_slice() else { panic!("{added:?}") };
    assert!(error.ends_with("may not add AppArmor annotations"), "{error}");
}

#[test]
fn annotations_of_templates_are_checked_as_their_pods_are() {
    let template = |key: &str| json!({"metadata": {"labels": {"a": "b"}, "annotations": {key: "b"}}, "spec": plain_pod()["spec"]});
    let selector = json!({"matchLabels": {"a": "b"}});
    let of_kinds = |key: &str| {
        let mut ending = template(key);
        ending["spec"]["restartPolicy"] = json!("Never");
        let job = json!({"template": ending});
        [
            (
                "spec.template",
                named(
                    "apps/v1",
                    "Deployment",
                    json!({"selector": selector, "template": template(key)}),
                ),
            ),
            ("spec.template", named("batch/v1", "Job", job.clone())),
            (
                "spec.jobTemplate.spec.template",
                named(
                    "batch/v1",
                    "CronJob",
                    json!({"schedule": "* * * * *", "jobTemplate": {"spec": job}}),
                ),
            ),
            (
                "spec.template",
                named(
                    "v1",
                    "ReplicationController",
                    json!({"selector": {"a": "b"}, "template": template(key)}),
                ),
            ),
        ]
    };
    for (path, object) in of_kinds("Not Valid!") {
        assert_eq!(faults(&object), [format!("{path}.metadata.annotations")], "{object}");
    }
    let cost = "controller.kubernetes.io/pod-deletion-cost";
    for (path, object) in of_kinds(cost) {
        assert_eq!(faults(&object), [format!("{path}.metadata.annotations[{cost}]")], "{object}");
    }
    for (_, object) in of_kinds("example.com/fine") {
        assert_eq!(faults(&object), Vec::<String>::new(), "{object}");
    }
}

#[test]
fn stateful_sets_keep_what_their_pods_are_made_from() {
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": plain_pod()["spec"]});
    let set = named(
        "apps/v1",
        "StatefulSet",
        json!({"selector": {"matchLabels": {"a": "b"}}, "template": template, "serviceName": "s", "replicas": 1}),
    );
    let changed = |field: &str, value: Json| {
        update_complaints(&set, &with(&set, &format!("/spec/{field}"), &value), Subresource::Main)
    };
    for (field, value) in [("replicas", json!(3)), ("minReadySeconds", json!(5))] {
        assert_eq!(changed(field, value), Vec::<String>::new(), "{field}");
    }
    for (field, value) in [
        ("serviceName", json!("other")),
        ("podManagementPolicy", json!("Parallel")),
        ("revisionHistoryLimit", json!(2)),
        ("volumeClaimTemplates", json!([{"metadata": {"name": "c"}}])),
    ] {
        let found = changed(field, value);
        assert!(found.iter().any(|one| one.starts_with("spec: Forbidden: ")), "{field}: {found:?}");
    }
}

#[test]
fn a_namespace_says_whether_it_is_being_deleted() {
    let namespace = |deleted: bool, phase: &str| {
        let mut object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}, "status": {"phase": phase}});
        if deleted {
            object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        }
        object
    };
    for (deleted, right, wrong) in
        [(false, "Active", "Terminating"), (true, "Terminating", "Active")]
    {
        let old = namespace(deleted, right);
        let complaints =
            |phase| update_complaints(&old, &namespace(deleted, phase), Subresource::Status);
        assert_eq!(complaints(right), Vec::<String>::new());
        assert!(
            complaints(wrong)[0].starts_with("status.Phase: Invalid value"),
            "{phase:?}",
            phase = complaints(wrong)
        );
    }
}
