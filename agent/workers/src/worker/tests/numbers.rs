//! Every number that a pod can have, at its extremes, through a pod's whole life: none of them ends the task.

use serde_json::{Value, json};

use super::*;
use crate::extremes;

/// A pod that runs here and has as many numbers as one that does can have.
fn filled() -> Value {
    let probe = || {
        json!({
            "exec": {"command": ["true"]}, "initialDelaySeconds": 1, "timeoutSeconds": 1,
            "periodSeconds": 1, "successThreshold": 1, "failureThreshold": 1,
            "terminationGracePeriodSeconds": 1,
        })
    };
    let http = || json!({"httpGet": {"port": 1, "path": "/"}, "periodSeconds": 1});
    let state = || {
        json!({
            "name": "c", "ready": true, "restartCount": 1, "image": "image:1", "imageID": "",
            "containerID": "containerd://x",
            "state": {"terminated": {"exitCode": 1, "signal": 1}},
            "lastState": {"terminated": {"exitCode": 1, "signal": 1}},
        })
    };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "p", "namespace": "ns", "uid": "u", "generation": 1,
            "deletionGracePeriodSeconds": 1,
        },
        "spec": {
            "dnsPolicy": "Default", "restartPolicy": "Always", "priority": 1,
            "activeDeadlineSeconds": 1, "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsUser": 1, "runAsGroup": 1, "fsGroup": 1, "supplementalGroups": [1],
            },
            "overhead": {"cpu": "1m", "memory": "1"},
            "tolerations": [{"key": "a", "effect": "NoExecute", "tolerationSeconds": 1}],
            "topologySpreadConstraints": [{
                "maxSkew": 1, "minDomains": 1, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule",
            }],
            "initContainers": [{"name": "i", "image": "image:1", "command": ["exit 0"]}],
            "containers": [{
                "name": "c", "image": "image:1",
                "resources": {
                    "requests": {"cpu": "1m", "memory": "1", "ephemeral-storage": "1"},
                    "limits": {"cpu": "1m", "memory": "1", "ephemeral-storage": "1"},
                },
                "ports": [{"containerPort": 1, "hostPort": 1}],
                "securityContext": {"runAsUser": 1, "runAsGroup": 1},
                "livenessProbe": probe(), "readinessProbe": probe(), "startupProbe": probe(),
                "lifecycle": {
                    "postStart": {"exec": {"command": ["true"]}},
                    "preStop": {"httpGet": {"port": 1, "path": "/"}},
                },
                "env": [{
                    "name": "A",
                    "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1"}},
                }],
            }, {
                "name": "d", "image": "image:1", "readinessProbe": http(),
                "livenessProbe": {"grpc": {"port": 1}, "periodSeconds": 1},
                "startupProbe": {"tcpSocket": {"port": 1}, "periodSeconds": 1},
            }],
            "volumes": [
                {"name": "e", "emptyDir": {"sizeLimit": "1"}},
                {"name": "f", "configMap": {
                    "name": "m", "optional": true, "defaultMode": 1,
                    "items": [{"key": "a", "path": "a", "mode": 1}],
                }},
                {"name": "g", "projected": {"defaultMode": 1, "sources": [
                    {"serviceAccountToken": {"path": "t", "expirationSeconds": 1}},
                ]}},
            ],
        },
        "status": {"phase": "Running", "containerStatuses": [state()]},
    })
}

#[tokio::test(start_paused = true)]
async fn no_number_of_a_pod_ends_its_task() {
    let pods = extremes::pods_with_extremes(&filled());
    assert!(pods.len() > 350, "numbers of a pod: {}", pods.len());
    for few in pods.chunks(40) {
        let (runtime, mut happened) = FakeRuntime::new();
        let runtime = Arc::new(runtime);
        runtime.add_image("image:1");
        let dir = crate::test_support::directory();
        let shared = crate::test_support::plain_context(runtime.clone(), dir.path());
        shared.pods.node.write().expect("lock").status.allocatable.clear();
        let mut tasks = Vec::new();
        for (n, (what, pod)) in few.iter().enumerate() {
            let mut pod = pod.clone();
            pod.metadata.uid = format!("u{n}");
            let (pod, source, presence) = (Arc::new(pod), PodSource::Api, SourcePresence::Present);
            let update = PodUpdate { pod, source, presence };
            let (update, updates) = watch::channel(update);
            let news = Arc::new(Inbox::default());
            let page = StatusBoard::default().task("pod");
            let worker =
                Worker::new(shared.clone(), updates, news.clone(), page, InitialState::default());
            tasks.push((what, update, news, tokio::spawn(Box::new(worker).run())));
        }
        let mut pass = async |secs: u64| {
            for _ in 0..secs {
                // The journal's thread lives in another time.
                std::thread::sleep(Duration::from_millis(5));
                tokio::time::sleep(Duration::from_secs(1)).await;
                while let Ok(news) = happened.try_recv() {
                    let uid = match &news {
                        RuntimeEvent::Container { pod_uid, .. }
                        | RuntimeEvent::Sandbox { pod_uid, .. } => pod_uid.clone(),
                        RuntimeEvent::Missed => continue,
                    };
                    let n: usize = uid.trim_start_matches('u').parse().expect("number");
                    tasks[n].2.add(news, 64, || RuntimeEvent::Missed);
                }
            }
        };
        pass(20).await;
        // Some crash.
        for (_, container) in runtime.live().into_iter().step_by(3) {
            runtime.end(&container.id, i32::MIN);
        }
        pass(20).await;
        for (_, update, ..) in &tasks {
            update.send_modify(|update| {
                let mut pod = (*update.pod).clone();
                pod.metadata.deletion_timestamp = Some(Time::from_unix(1));
                update.pod = Arc::new(pod);
            });
        }
        pass(20).await;
        for (_, update, ..) in &tasks {
            update.send_modify(|update| update.presence = SourcePresence::Dropped);
        }
        for _ in 0..60 {
            if tasks.iter().all(|(.., task)| task.is_finished()) {
                break;
            }
            pass(10).await;
        }
        for (what, update, _news, task) in tasks {
            let uid = update.borrow().pod.metadata.uid.clone();
            let left = runtime.pod(&uid).await.expect("pod");
            let trouble = shared.timelines.trouble(&uid);
            assert!(task.is_finished(), "{what}: has not ended: {left:?}, {trouble:?}");
            let ended = task.await.unwrap_or_else(|error| panic!("{what}: {error}"));
            ended.unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        shared.journal.close();
    }
}
