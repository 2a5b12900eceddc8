//! Tests of defaults.

use proto_api::names::{Names, Profile};
use serde_json::{Value as Json, json};

use crate::{Engine, Format, Strictness};

/// The JSON of `input` with defaults, without `kind` and `apiVersion`.
fn defaulted(engine: &Engine, input: &Json) -> Json {
    let body = input.to_string();
    let decoded = engine.decode_any(Format::Json, body.as_bytes(), Strictness::Strict);
    let mut object = decoded.expect(&body).object;
    engine.default(&mut object);
    let once = engine.encode_json(&object);
    engine.default(&mut object);
    assert_eq!(once, engine.encode_json(&object), "defaulting twice changes nothing");
    serde_json::from_slice(&once).expect("JSON")
}

fn engine() -> Engine {
    Engine::new(Names::new(Profile::Kubernetes))
}

#[test]
fn a_small_pod_becomes_complete() {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {
        "serviceAccountName": "builder",
        "containers": [{
            "name": "c", "image": "web",
            "ports": [{"containerPort": 80}],
            "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
            "resources": {"limits": {"cpu": "0.5", "memory": "64Mi"}, "requests": {"cpu": "100m"}},
            "livenessProbe": {"httpGet": {"port": "http"}},
        }],
        "volumes": [
            {"name": "scratch"},
            {"name": "config", "configMap": {"name": "config"}},
            {"name": "host", "hostPath": {"path": "/srv"}},
            {"name": "all", "projected": {"sources": [
                {"serviceAccountToken": {"path": "token"}},
                {"downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}},
            ]}},
        ],
    }});
    let expect = json!({"volumes": [
            {"name": "scratch", "emptyDir": {}},
            {"name": "config", "configMap": {"name": "config", "defaultMode": 420}},
            {"name": "host", "hostPath": {"path": "/srv", "type": ""}},
            {"name": "all", "projected": {"sources": [
                {"serviceAccountToken": {"expirationSeconds": 3600, "path": "token"}},
                {"downwardAPI": {"items": [
                    {"path": "n", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}},
                ]}},
            ], "defaultMode": 420}},
        ],
        "containers": [{
            "name": "c", "image": "web",
            "ports": [{"containerPort": 80, "protocol": "TCP"}],
            "env": [{"name": "IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}}],
            "resources": {
                "limits": {"cpu": "500m", "memory": "64Mi"},
                "requests": {"cpu": "100m", "memory": "64Mi"},
            },
            "livenessProbe": {
                "httpGet": {"path": "/", "port": "http", "scheme": "HTTP"},
                "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3,
            },
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
            "imagePullPolicy": "Always",
        }],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "builder",
        "serviceAccount": "builder",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "enableServiceLinks": true,
    });
    assert_eq!(defaulted(&engine(), &pod)["spec"], expect);
}

#[test]
fn explicit_values_are_not_defaulted() {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {
        "terminationGracePeriodSeconds": 0, "enableServiceLinks": false, "restartPolicy": "Never",
        "containers": [{"name": "c", "image": "web:1", "imagePullPolicy": "Never"}],
    }});
    let spec = &defaulted(&engine(), &pod)["spec"];
    assert_eq!(spec["terminationGracePeriodSeconds"], 0);
    assert_eq!(spec["enableServiceLinks"], false);
    assert_eq!(spec["restartPolicy"], "Never");
    assert_eq!(spec["containers"][0]["imagePullPolicy"], "Never");
}

#[test]
fn images_that_may_change_are_pulled_each_time() {
    let cases = [
        ("web", "Always"),
        ("host:5000/web", "Always"),
        ("web:latest", "Always"),
        ("web:1.0", "IfNotPresent"),
        ("host:5000/web:1.0", "IfNotPresent"),
        ("web@sha256:00", "IfNotPresent"),
    ];
    let engine = engine();
    for (image, expect) in cases {
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "spec": {"containers": [{"name": "c", "image": image}]}});
        let policy = &defaulted(&engine, &pod)["spec"]["containers"][0]["imagePullPolicy"];
        assert_eq!(policy, expect, "{image}");
    }
}

#[test]
fn objects_of_other_kinds() {
    let cases = [
        (
            json!({"apiVersion": "v1", "kind": "Secret", "data": {"a": "AA==", "b": "AA=="}, "stringData": {"b": "x"}}),
            json!({"metadata": {"creationTimestamp": null}, "data": {"a": "AA==", "b": "eA=="}, "type": "Opaque"}),
        ),
        (
            json!({"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 80}, {"port": 81, "targetPort": "http"}]}}),
            json!({"metadata": {"creationTimestamp": null}, "spec": {
                "ports": [
                    {"protocol": "TCP", "port": 80, "targetPort": 80},
                    {"protocol": "TCP", "port": 81, "targetPort": "http"},
                ],
                "type": "ClusterIP", "sessionAffinity": "None",
                "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster",
            }, "status": {"loadBalancer": {}}}),
        ),
        (
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}),
            json!({"metadata": {"name": "team", "creationTimestamp": null,
                "labels": {"kubernetes.io/metadata.name": "team"}}, "spec": {}, "status": {"phase": "Active"}}),
        ),
        (
            json!({"apiVersion": "v1", "kind": "Node", "spec": {"podCIDR": "10.0.0.0/24"}, "status": {"capacity": {"cpu": 2}}}),
            json!({"metadata": {"creationTimestamp": null},
                "spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"]},
                "status": {"capacity": {"cpu": "2"}, "allocatable": {"cpu": "2"},
                    "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}},
                    "nodeInfo": {"machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "", "osImage": "",
                        "containerRuntimeVersion": "", "kubeletVersion": "", "kubeProxyVersion": "",
                        "operatingSystem": "", "architecture": ""}}}),
        ),
    ];
    let engine = engine();
    for (input, expect) in cases {
        let mut got = defaulted(&engine, &input);
        let map = got.as_object_mut().expect("an object");
        map.remove("apiVersion");
        map.remove("kind");
        assert_eq!(got, expect, "{input}");
    }
}

#[test]
fn workloads_get_their_strategy_and_their_pods_defaults() {
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}});
    let object = |kind: &str| {
        json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "n"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}})
    };
    let engine = engine();
    let deployment = &defaulted(&engine, &object("Deployment"))["spec"];
    let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}});
    assert_eq!(deployment["strategy"], rolling);
    assert_eq!(
        (&deployment["replicas"], &deployment["progressDeadlineSeconds"]),
        (&json!(1), &json!(600))
    );
    assert_eq!(deployment["template"]["spec"]["dnsPolicy"], "ClusterFirst");
    assert!(deployment["template"]["spec"]["enableServiceLinks"].is_null(), "only pods get it");
    let daemons = &defaulted(&engine, &object("DaemonSet"))["spec"];
    assert_eq!(
        daemons["updateStrategy"]["rollingUpdate"],
        json!({"maxUnavailable": 1, "maxSurge": 0})
    );
    let mut stateful = object("StatefulSet");
    stateful["spec"]["volumeClaimTemplates"] = json!([{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}}]);
    let stateful = &defaulted(&engine, &stateful)["spec"];
    let claim = &stateful["volumeClaimTemplates"][0];
    assert_eq!((&claim["spec"]["volumeMode"], &claim["kind"]), (&json!("Filesystem"), &Json::Null));
    assert_eq!(stateful["podManagementPolicy"], "OrderedReady");
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": template}});
    let job = defaulted(&engine, &job);
    assert_eq!(job["metadata"]["labels"], json!({"a": "b"}));
    assert_eq!((&job["spec"]["completions"], &job["spec"]["backoffLimit"]), (&json!(1), &json!(6)));
}

#[test]
fn volumes_claims_and_drivers_get_theirs() {
    let volume = |source: Json| json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": source});
    let source = json!({"apiGroup": "snapshot.example.com", "kind": "Snapshot", "name": "s"});
    let claim = |spec: Json| json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c"}, "spec": spec});
    let driver =
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "d"}});
    let engine = engine();
    for (object, field, expect) in [
        (volume(json!({})), "persistentVolumeReclaimPolicy", json!("Retain")),
        (volume(json!({})), "volumeMode", json!("Filesystem")),
        (volume(json!({"iscsi": {"iqn": "i"}})), "iscsi/iscsiInterface", json!("default")),
        (volume(json!({"azureDisk": {"diskName": "d"}})), "azureDisk/kind", json!("Shared")),
        (volume(json!({"azureDisk": {"diskName": "d"}})), "azureDisk/readOnly", json!(false)),
        (volume(json!({"scaleIO": {"system": "s"}})), "scaleIO/fsType", json!("xfs")),
        (
            volume(json!({"scaleIO": {"system": "s"}})),
            "scaleIO/storageMode",
            json!("ThinProvisioned"),
        ),
        (claim(json!({})), "volumeMode", json!("Filesystem")),
        (claim(json!({"dataSource": source})), "dataSourceRef", source.clone()),
        (claim(json!({"dataSourceRef": source})), "dataSource", source.clone()),
        (driver.clone(), "attachRequired", json!(true)),
        (driver.clone(), "podInfoOnMount", json!(false)),
        (driver.clone(), "requiresRepublish", json!(false)),
        (driver.clone(), "storageCapacity", json!(false)),
        (driver.clone(), "fsGroupPolicy", json!("ReadWriteOnceWithFSType")),
        (driver, "volumeLifecycleModes", json!(["Persistent"])),
    ] {
        let got = defaulted(&engine, &object);
        assert_eq!(got.pointer(&format!("/spec/{field}")), Some(&expect), "{object} {field}");
    }
}

#[test]
fn workloads_keep_ten_revisions_and_roll() {
    let engine = engine();
    for (kind, strategy) in [
        ("Deployment", "strategy"),
        ("StatefulSet", "updateStrategy"),
        ("DaemonSet", "updateStrategy"),
    ] {
        let object =
            json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "n"}, "spec": {}});
        let spec = &defaulted(&engine, &object)["spec"];
        assert_eq!(spec["revisionHistoryLimit"], 10, "{kind}");
        assert_eq!(spec[strategy]["type"], "RollingUpdate", "{kind}");
    }
}

#[test]
fn behavior_of_autoscalers_has_both_directions() {
    let engine = engine();
    let behavior = |behavior: Json| {
        let object = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "n"}, "spec": {"maxReplicas": 3, "behavior": behavior}});
        defaulted(&engine, &object)["spec"]["behavior"].clone()
    };
    let policy =
        |kind: &str, value: i64| json!({"type": kind, "value": value, "periodSeconds": 15});
    let up = json!({"stabilizationWindowSeconds": 0, "selectPolicy": "Max",
        "policies": [policy("Pods", 4), policy("Percent", 100)]});
    let down = json!({"selectPolicy": "Max", "policies": [policy("Percent", 100)]});
    assert_eq!(behavior(json!({})), json!({"scaleUp": up, "scaleDown": down}));
    let slow = json!({"selectPolicy": "Min", "stabilizationWindowSeconds": 60, "policies": [policy("Pods", 1)]});
    assert_eq!(behavior(json!({"scaleUp": slow})), json!({"scaleUp": slow, "scaleDown": down}));
}

#[test]
fn webhooks_fail_closed_after_ten_seconds() {
    let engine = engine();
    let of = |kind: &str| {
        let rule = json!({"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]});
        let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "c"},
            "webhooks": [{"name": "a.b.c", "clientConfig": {"service": {"namespace": "n", "name": "s"}}, "rules": [rule],
                "sideEffects": "None", "admissionReviewVersions": ["v1"]}]});
        defaulted(&engine, &configuration)["webhooks"][0].clone()
    };
    let mutating = of("MutatingWebhookConfiguration");
    for (field, expected) in [
        ("failurePolicy", json!("Fail")),
        ("matchPolicy", json!("Equivalent")),
        ("namespaceSelector", json!({})),
        ("objectSelector", json!({})),
        ("timeoutSeconds", json!(10)),
        ("reinvocationPolicy", json!("Never")),
    ] {
        assert_eq!(mutating[field], expected, "{field}");
    }
    assert_eq!(mutating["rules"][0]["scope"], "*");
    assert_eq!(mutating["clientConfig"]["service"]["port"], 443);
    assert_eq!(of("ValidatingWebhookConfiguration").get("reinvocationPolicy"), None);
}
