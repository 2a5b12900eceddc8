//! Pods that attack their node: numbers that overflow, environments that explode, links and FIFOs where orchlet reads and writes.

use std::time::Duration;

use bytes::Bytes;
use cluster::apply::apply;
use http::Request;
use proto_api::core::v1::Pod;
use proto_client::{DeleteParams, ListParams};
use serde_json::{Value as Json, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, sleep, timeout};

use crate::{NAMESPACE, Target};

/// Makes the pods, lets them do harm, removes them, and again, until the end.
pub async fn hostile(target: Target) {
    let marked = target.spec.dir.join("attack-marker");
    if let Err(error) = std::fs::write(&marked, &target.judge.marker) {
        return target.judge.find(format!("cannot write {}: {error}", marked.display()));
    }
    let marked = marked.display().to_string();
    let mut round = 0_u32;
    while Instant::now() < target.until {
        round += 1;
        for pod in all(round, &marked) {
            let answer = match apply(&target.client, &pod.to_string()).await {
                Ok(()) => "accepted",
                Err(_) => "refused",
            };
            target.judge.count("hostile pod", answer);
        }
        sleep(Duration::from_secs(3)).await;
        let link = format!("link-{round}");
        for _ in 0..5 {
            read_logs(&target, &link).await;
            junk_stream(&target, &format!("calm-{round}")).await;
            sleep(Duration::from_millis(500)).await;
        }
        remove(&target).await;
    }
}

/// All hostile pods of a round.
fn all(round: u32, marked: &str) -> Vec<Json> {
    let named = |name: &str, spec: Json| {
        let metadata = json!({"name": format!("{name}-{round}"), "namespace": NAMESPACE});
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    };
    let spec = |more: Json| {
        let mut container = json!({
            "name": "main", "image": "orch.local/demo:1", "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", "exec sleep 1000"],
        });
        if let (Some(container), Json::Object(more)) = (container.as_object_mut(), more) {
            container.extend(more);
        }
        json!({"terminationGracePeriodSeconds": 0, "restartPolicy": "Never", "containers": [container]})
    };
    let with = |mut spec: Json, key: &str, value: Json| {
        spec[key] = value;
        spec
    };
    // Each of nine steps has sixteen of the last: 64 bytes become 4 TB.
    let mut bomb = vec![json!({"name": "A0", "value": "x".repeat(64)})];
    for step in 1..9 {
        let value = format!("$(A{})", step - 1).repeat(16);
        bomb.push(json!({"name": format!("A{step}"), "value": value}));
    }
    let planted = format!(
        "cd /logs; while true; do for log in */main/0.log; do case $log in *link-{round}*) rm -f $log; ln -s {marked} $log;; \
         *fifo-{round}*) rm -f $log; mkfifo $log;; esac; done; sleep 1; done"
    );
    let mount = json!([{"name": "logs", "mountPath": "/logs"}]);
    let planter = spec(json!({"command": ["/bin/sh", "-c", planted], "volumeMounts": mount}));
    let logs = json!([{"name": "logs", "hostPath": {"path": "/var/log/pods"}}]);
    vec![
        named("calm", spec(json!({}))),
        named("link", spec(json!({}))),
        named("fifo", spec(json!({}))),
        named("planter", with(planter, "volumes", logs)),
        named("bomb", spec(json!({"env": bomb}))),
        named("args", spec(json!({"env": bomb_tail(&bomb), "args": ["$(A3)$(A3)$(A3)"]}))),
        named("deadline", with(spec(json!({})), "activeDeadlineSeconds", i64::MAX.into())),
        named("grace", with(spec(json!({})), "terminationGracePeriodSeconds", i64::MAX.into())),
        named(
            "probe",
            spec(json!({"livenessProbe": {
                "exec": {"command": ["true"]}, "periodSeconds": i32::MAX, "timeoutSeconds": i32::MAX,
                "initialDelaySeconds": i32::MAX, "failureThreshold": i32::MAX, "terminationGracePeriodSeconds": i64::MAX,
            }})),
        ),
        named(
            "message",
            spec(json!({
                "command": ["/bin/sh", "-c", format!("rm -f /t; ln -s {marked} /t")], "terminationMessagePath": "/t",
            })),
        ),
        named("loud", spec(json!({"command": ["/bin/sh", "-c", "yes | head -c 50000000"]}))),
    ]
}

/// As much of the bomb as fits: arguments are made from it.
fn bomb_tail(bomb: &[Json]) -> Vec<Json> {
    bomb.iter().take(4).cloned().collect()
}

/// Asks for a pod's log, whose file another pod has replaced by a link.
async fn read_logs(target: &Target, pod: &str) {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}/log");
    let Ok(request) = Request::get(path).body(Bytes::new()) else { return };
    let asked = target.judge.within("log of a pod", target.client.call(request));
    let answer = match asked.await {
        Some(Ok(answer)) => {
            target.judge.read("log of a pod", &answer.body);
            answer.status.to_string()
        }
        Some(Err(error)) => {
            let code = error.code().map(|code| code.to_string());
            code.unwrap_or_else(|| format!("{:#}", anyhow::Error::from(error)))
        }
        None => "no answer".to_owned(),
    };
    target.judge.count("log of a pod", answer);
}

/// Opens an exec stream by SPDY and sends a SETTINGS frame that promises four billion entries.
async fn junk_stream(target: &Target, pod: &str) {
    let path = format!(
        "/api/v1/namespaces/{NAMESPACE}/pods/{pod}/exec?command=true&container=main&stdout=true"
    );
    let request = Request::post(path)
        .header("connection", "Upgrade")
        .header("upgrade", "SPDY/3.1")
        .header("x-stream-protocol-version", "v4.channel.k8s.io")
        // What the runtime's server answers is no representation of anything.
        .header("accept", "*/*")
        .body(Bytes::new());
    let Ok(request) = request else { return };
    let answer = match timeout(Duration::from_secs(5), target.client.upgrade(request)).await {
        Ok(Ok((_, upgraded))) => {
            let mut stream = hyper_util::rt::TokioIo::new(upgraded);
            let frame =
                [0x80, 3, 0, 4, 0, 0, 0, 12, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0];
            let _ = stream.write_all(&frame).await;
            let mut rest = Vec::new();
            let _ = timeout(Duration::from_secs(1), stream.take(4096).read_to_end(&mut rest)).await;
            "opened".to_owned()
        }
        Ok(Err(error)) => {
            // Without the pod's name, and on one line.
            format!("{:#}", anyhow::Error::from(error)).replace(pod, "POD").replace('\n', " ")
        }
        Err(_) => "no answer".to_owned(),
    };
    target.judge.count("junk SPDY frame", answer);
}

/// Removes what a round has made.
async fn remove(target: &Target) {
    let pods = target.client.within::<Pod>(NAMESPACE);
    let Ok(list) = pods.list(&ListParams::default()).await else { return };
    let now = DeleteParams { grace_secs: Some(0), ..DeleteParams::default() };
    for pod in list.items {
        let _ = pods.delete(&pod.metadata.name, &now).await;
    }
}
