//! Probes, hooks, sidecars, ephemeral containers and termination messages on real containers.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use orch_tests::runner::Skip;
use orch_tests::wait::until;
use proto_api::core::v1::{ContainerStatus, Endpoints, Event, Pod};
use proto_client::{DeleteParams, ListParams};
use tokio::process::Command;

use crate::context::{Context, PATIENCE, output, shown};
use crate::pods::{WAIT, pod};

/// The manifest of a pod whose container gets more fields.
fn pod_with(namespace: &str, name: &str, script: &str, fields: &str) -> String {
    let indented: String = fields.lines().map(|line| format!("    {line}\n")).collect();
    pod(namespace, name, script) + &indented
}

/// What ends orderly on a busy machine too, and at once on another.
fn with_time_to_end(manifest: &str) -> String {
    manifest.replace("terminationGracePeriodSeconds: 1\n", "terminationGracePeriodSeconds: 60\n")
}

fn main_status(pod: &Pod) -> Result<&ContainerStatus, String> {
    pod.status.container_statuses.first().ok_or_else(|| shown(pod))
}

pub async fn a_failing_liveness_probe_restarts_the_container(c: &Context) -> Result<()> {
    let ns = c.namespace("liveness").await?;
    // The first instance loses its file at once, the ones after it find their predecessor's mark and keep it.
    let script = format!("test -e /w/once && touch /w/alive; touch /w/once; {WAIT}");
    let fields = "livenessProbe: {exec: {command: [/bin/cat, /w/alive]}, periodSeconds: 1, failureThreshold: 2}\n\
                  volumeMounts: [{name: w, mountPath: /w}]";
    let manifest =
        pod_with(&ns, "live", &script, fields) + "  volumes:\n  - {name: w, emptyDir: {}}\n";
    c.apply(&manifest).await?;
    let again = |pod: &Pod| {
        let status = main_status(pod)?;
        match status.restart_count >= 1 && status.state.running.is_some() && status.ready {
            true => Ok(()),
            false => Err(shown(pod)),
        }
    };
    c.pod_until(&ns, "live", again).await?;
    let events = c.client.within::<Event>(&ns);
    until("the events of it", PATIENCE, async || {
        let all = events.list(&ListParams::default()).await.map_err(|e| e.to_string())?;
        let told = |reason: &str| all.items.iter().any(|event| event.reason == reason);
        match told("Unhealthy") && told("Killing") {
            true => Ok(()),
            false => Err(format!("{} events", all.items.len())),
        }
    })
    .await?;
    c.discard(&ns).await
}

pub async fn readiness_decides_about_endpoints_and_survives_the_agent(c: &Context) -> Result<()> {
    let ns = c.namespace("readiness").await?;
    let script = "mkdir -p /www; exec httpd -f -p 8080 -h /www";
    let fields = "ports: [{name: web, containerPort: 8080}]\n\
                  startupProbe: {tcpSocket: {port: web}, periodSeconds: 1, failureThreshold: 60}\n\
                  readinessProbe: {httpGet: {path: /ready, port: web}, periodSeconds: 1, timeoutSeconds: 30, failureThreshold: 2}";
    let service = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: {ns}}}\n\
         spec: {{selector: {{app: web}}, ports: [{{port: 80, targetPort: 8080}}]}}\n"
    );
    c.apply(&(pod_with(&ns, "web", script, fields) + "---\n" + &service)).await?;
    let started = |pod: &Pod| match main_status(pod)?.started == Some(true) {
        true => Ok(()),
        false => Err(shown(pod)),
    };
    let pod = c.pod_until(&ns, "web", started).await?;
    ensure!(!main_status(&pod).is_ok_and(|s| s.ready), "ready without an answer");
    ensure!(endpoints(c, &ns).await? == 0, "an endpoint that is not ready");
    c.in_container(&pod, &["/bin/sh", "-c", "echo yes > /www/ready"]).await?;
    until("an endpoint", PATIENCE, async || match endpoints(c, &ns).await {
        Ok(1) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await?;

    // A restarted agent starts to count anew and says nothing before it has.
    let before = c.pod_ready(&ns, "web").await?;
    c.kill("orchlet-node-1").await?;
    until("the agent has heard its sources", PATIENCE, async || {
        let page = c.on_node(&["curl", "-sf", "http://127.0.0.1:10248/readyz"]).await;
        page.map_err(|e| e.to_string())
    })
    .await?;
    // Long enough for it to ask several times; that it does is shown by what follows.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let after = c.pod_ready(&ns, "web").await?;
    ensure!(
        before.metadata.resource_version == after.metadata.resource_version,
        "the restart wrote a status"
    );
    c.in_container(&pod, &["/bin/sh", "-c", "rm /www/ready"]).await?;
    until("no endpoint", PATIENCE, async || match endpoints(c, &ns).await {
        Ok(0) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await?;
    c.discard(&ns).await
}

async fn endpoints(c: &Context, namespace: &str) -> Result<usize> {
    let found = c.client.within::<Endpoints>(namespace).find("web").await?;
    Ok(found.map_or(0, |e| e.subsets.iter().map(|subset| subset.addresses.len()).sum()))
}

pub async fn hooks_run_after_the_start_and_before_the_stop(c: &Context) -> Result<()> {
    let ns = c.namespace("hooks").await?;
    let dir = c.spec.dir.join("hooks");
    let script =
        format!("echo run >> /w/log; {}", WAIT.replace("exit 0", "echo term >> /w/log; exit 0"));
    let fields = "lifecycle:\n  \
                    postStart: {exec: {command: [/bin/sh, -c, \"sleep 1; echo post >> /w/log\"]}}\n  \
                    preStop: {exec: {command: [/bin/sh, -c, \"echo pre >> /w/log\"]}}\n\
                  volumeMounts: [{name: w, mountPath: /w}]";
    let second = format!(
        "  - name: second\n    image: orch.local/demo:1\n    command: [\"/bin/sh\", \"-c\", {:?}]\n    \
         volumeMounts: [{{name: w, mountPath: /w}}]\n",
        format!("echo second >> /w/log; {WAIT}")
    );
    let volume = format!(
        "  volumes:\n  - {{name: w, hostPath: {{path: {}, type: DirectoryOrCreate}}}}\n",
        dir.display()
    );
    let manifest = pod_with(&ns, "hooks", &script, fields) + &second + &volume;
    c.apply(&with_time_to_end(&manifest)).await?;
    c.pod_ready(&ns, "hooks").await?;
    let api = c.client.within::<Pod>(&ns);
    api.delete("hooks", &DeleteParams::default()).await?;
    until("the pod is gone", PATIENCE, async || match api.find("hooks").await {
        Ok(None) => Ok(()),
        Ok(Some(pod)) => Err(shown(&pod)),
        Err(e) => Err(e.to_string()),
    })
    .await?;
    let log = std::fs::read_to_string(dir.join("log"))?;
    ensure!(log == "run\npost\nsecond\npre\nterm\n", "the log says {log:?}");
    c.discard(&ns).await
}

pub async fn sidecars_start_in_order_and_stop_last(c: &Context) -> Result<()> {
    let ns = c.namespace("sidecars").await?;
    let dir = c.spec.dir.join("sidecars");
    let sidecar = |name: &str| {
        let end = WAIT.replace("exit 0", &format!("echo {name}-end >> /w/log; exit 0"));
        let script = format!("echo {name} >> /w/log; {end}");
        format!(
            "  - name: {name}\n    image: orch.local/demo:1\n    restartPolicy: Always\n    \
             command: [\"/bin/sh\", \"-c\", {script:?}]\n    volumeMounts: [{{name: w, mountPath: /w}}]\n    \
             startupProbe: {{exec: {{command: [/bin/sh, -c, \"grep -q {name} /w/log\"]}}, periodSeconds: 1, timeoutSeconds: 30, failureThreshold: 60}}\n"
        )
    };
    let script = "echo main >> /w/log; echo the reason >&2; exit 3";
    let fields =
        "volumeMounts: [{name: w, mountPath: /w}]\nterminationMessagePolicy: FallbackToLogsOnError";
    let init = format!(
        "  initContainers:\n{}  - name: step\n    image: orch.local/demo:1\n    \
         command: [/bin/sh, -c, \"echo step >> /w/log\"]\n    volumeMounts: [{{name: w, mountPath: /w}}]\n{}",
        sidecar("one"),
        sidecar("two")
    );
    let volume = format!(
        "  restartPolicy: Never\n  volumes:\n  - {{name: w, hostPath: {{path: {}, type: DirectoryOrCreate}}}}\n",
        dir.display()
    );
    let manifest = pod_with(&ns, "side", script, fields)
        .replace("  containers:", &format!("{init}  containers:"))
        + &volume;
    c.apply(&with_time_to_end(&manifest)).await?;
    let over = |pod: &Pod| match pod.status.phase == "Failed" {
        true => Ok(()),
        false => Err(shown(pod)),
    };
    let pod = c.pod_until(&ns, "side", over).await?;
    let log = std::fs::read_to_string(dir.join("log"))?;
    ensure!(log == "one\nstep\ntwo\nmain\ntwo-end\none-end\n", "the log says {log:?}");
    let ended = main_status(&pod).ok().and_then(|s| s.state.terminated.clone()).context("ended")?;
    ensure!((ended.exit_code, ended.message.as_str()) == (3, "the reason\n"), "{ended:?}");
    c.discard(&ns).await
}

fn kubectl(c: &Context, args: &[&str]) -> Command {
    let mut command = Command::new("kubectl");
    command.arg("--kubeconfig").arg(c.spec.client_config("admin")).args(args);
    // Its discovery cache must not outlive this cluster.
    command.env("HOME", &c.spec.dir).stdin(Stdio::null());
    command
}

pub async fn an_ephemeral_container_sees_its_target(c: &Context) -> Result<()> {
    if c.spec.naming != "kubernetes" {
        return Err(Skip("kubectl knows one set of names".into()).into());
    }
    if output(kubectl(c, &["version", "--client"])).await.is_err() {
        return Err(Skip("no kubectl on this machine".into()).into());
    }
    let ns = c.namespace("debug").await?;
    c.apply(&pod(&ns, "seen", WAIT)).await?;
    c.pod_ready(&ns, "seen").await?;
    let debug = [
        "debug",
        "-n",
        &ns,
        "seen",
        "-c",
        "look",
        "--image=orch.local/demo:1",
        "--target=main",
        "--image-pull-policy=IfNotPresent",
        "--",
        "/bin/sh",
        "-c",
        "ps; exit 4",
    ];
    output(kubectl(c, &debug)).await?;
    let ended = |pod: &Pod| {
        let status = pod.status.ephemeral_container_statuses.first().ok_or_else(|| shown(pod))?;
        match status.state.terminated.as_ref().map(|t| t.exit_code) {
            Some(4) => Ok(()),
            _ => Err(format!("{status:?}")),
        }
    };
    let pod = c.pod_until(&ns, "seen", ended).await?;
    ensure!(pod.status.phase == "Running" && main_status(&pod).is_ok_and(|s| s.restart_count == 0));
    let seen = output(kubectl(c, &["logs", "-n", &ns, "seen", "-c", "look"])).await?;
    ensure!(seen.contains("sleep 1000"), "it does not see its target: {seen}");
    c.discard(&ns).await
}
