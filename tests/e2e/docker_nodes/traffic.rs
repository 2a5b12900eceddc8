//! Connections to the pods' Service, opened all the time by pods of chosen nodes and through a published port; beside them one a node that stays open.

use std::process::{Child, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};
use orch_tests::wait::until;
use serde_json::json;

use super::daemon::{DIR, Daemon};
use super::{Cluster, LONG, SERVICE_ADDRESS, request};

/// The port of this machine that leads to [`NODE_PORT`] of the first node.
pub const PUBLISHED_PORT: u16 = 8080;
/// The node port of the Service.
pub const NODE_PORT: u16 = 30080;
/// Connections that each client opens before what is tried begins, and again after it.
pub const CONNECTIONS: usize = 30;
/// What the client of the published port is called.
const OUTSIDE: &str = "outside";

/// One connection of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub client: String,
    /// When it was opened, as seconds of the machine's clock.
    pub at: u64,
    /// The pod that answered; empty if none did.
    pub pod: String,
}

impl Answer {
    pub fn is_failed(&self) -> bool {
        self.pod.is_empty()
    }
}

/// The clients. Pods are removed by [`Traffic::end`], the process of the published port also when the value is dropped.
pub struct Traffic<'a> {
    cluster: &'a Cluster,
    daemon: &'a Daemon,
    pods: Vec<String>,
    outside: Child,
}

impl<'a> Traffic<'a> {
    /// Starts a client on each of `nodes` and one outside, and waits until all of them are answered.
    pub async fn start(
        cluster: &'a Cluster,
        daemon: &'a Daemon,
        nodes: &[String],
    ) -> Result<Traffic<'a>> {
        let mut pods = Vec::new();
        for (number, node) in nodes.iter().enumerate() {
            let name = format!("client-{number}");
            let file = daemon.file("client.json");
            std::fs::write(&file, client(&name, node))?;
            cluster.orchctl(daemon, &["apply", "-f", &file.display().to_string()])?;
            pods.push(name);
        }
        let traffic = Self { cluster, daemon, pods, outside: outside(daemon)? };
        traffic.more_than(&[]).await?;
        Ok(traffic)
    }

    /// Waits until each client has opened some more connections.
    pub async fn more(&self) -> Result<()> {
        self.more_than(&self.answers()?).await
    }

    async fn more_than(&self, before: &[Answer]) -> Result<()> {
        let of = |answers: &[Answer], client: &str| {
            answers.iter().filter(|answer| answer.client == client).count()
        };
        until("the Service is asked by all clients", LONG, async || {
            let now = self.answers().map_err(|error| format!("{error:#}"))?;
            let clients = self.pods.iter().map(String::as_str).chain([OUTSIDE]);
            let missing: Vec<&str> = clients
                .filter(|client| of(&now, client) < of(before, client) + CONNECTIONS)
                .collect();
            if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?} are not")) }
        })
        .await
    }

    /// All connections so far.
    pub fn answers(&self) -> Result<Vec<Answer>> {
        let mut answers = Vec::new();
        for pod in &self.pods {
            let text =
                self.cluster.orchctl(self.daemon, &["exec", pod, "--", "cat", "/tmp/answers"])?;
            answers.extend(parse(pod, &text)?);
        }
        let text = std::fs::read_to_string(self.daemon.file(OUTSIDE)).unwrap_or_default();
        answers.extend(parse(OUTSIDE, &text)?);
        Ok(answers)
    }

    /// No connection that was opened since `from` has failed.
    pub fn is_undisturbed(&self, from: u64, what: &str) -> Result<()> {
        let answers = self.answers()?;
        let since: Vec<&Answer> = answers.iter().filter(|answer| answer.at >= from).collect();
        let failed: Vec<&&Answer> = since.iter().filter(|answer| answer.is_failed()).collect();
        let all = since.len();
        ensure!(
            failed.is_empty(),
            "{} of {all} connections failed {what}: {failed:?}",
            failed.len()
        );
        println!("    {all} connections were opened {what}, none failed");
        Ok(())
    }

    /// The connections that stay open have ended for no client, and bring more back than `before`.
    pub async fn open_ones_go_on(&self, before: &[usize]) -> Result<()> {
        until("the open connections go on", LONG, async || {
            let now = self.echoes().map_err(|error| format!("{error:#}"))?;
            let go_on = before.len() == now.len() && before.iter().zip(&now).all(|(b, n)| n > b);
            if go_on { Ok(()) } else { Err(format!("{before:?} lines, then {now:?}")) }
        })
        .await?;
        for pod in &self.pods {
            let line = ["exec", pod, "--", "sh", "-c", "cat /tmp/ended 2>/dev/null; true"];
            let ended = self.cluster.orchctl(self.daemon, &line)?;
            ensure!(ended.is_empty(), "the open connection of {pod} has ended: {ended}");
        }
        Ok(())
    }

    /// How many lines the open connections have brought back so far, by client.
    pub fn echoes(&self) -> Result<Vec<usize>> {
        let count = |pod: &String| -> Result<usize> {
            let line = ["exec", pod, "--", "busybox", "wc", "-l", "/tmp/echoes"];
            let said = self.cluster.orchctl(self.daemon, &line)?;
            let count = said.split_whitespace().next().context("no count")?;
            count.parse().with_context(|| format!("{pod}: {said:?}"))
        };
        self.pods.iter().map(count).collect()
    }

    pub async fn end(self) -> Result<()> {
        let line = [&["delete", "pod", "--grace-period=1"], &names(&self.pods)[..]].concat();
        self.cluster.orchctl(self.daemon, &line).map(drop)
    }
}

impl Drop for Traffic<'_> {
    fn drop(&mut self) {
        // Ended, or so soon.
        let _ended = self.outside.kill().and_then(|()| self.outside.wait());
    }
}

fn names(pods: &[String]) -> Vec<&str> {
    pods.iter().map(String::as_str).collect()
}

/// Seconds of this machine's clock, which is that of all containers.
pub fn now() -> Result<u64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())
}

/// A pod that opens one connection after the other, and holds one open that says everything twice.
fn client(name: &str, node: &str) -> String {
    let ask = request(&format!("{SERVICE_ADDRESS} 80"));
    let open = format!(
        "(while true; do echo; sleep 0.2; done | nc {SERVICE_ADDRESS} 9000 > /tmp/echoes; date > /tmp/ended) &"
    );
    let script = format!(
        "{open} while true; do at=$(busybox date +%s); echo $at $({ask} | busybox tail -n 1) >> /tmp/answers; sleep 0.05; done"
    );
    let container = json!({
        "name": name,
        "image": cluster::images::BUSYBOX_IMAGE,
        "imagePullPolicy": "Never",
        // Without a request the node's own programs may keep it from running for seconds on a busy machine.
        "resources": {"requests": {"cpu": "50m"}},
        "args": ["sh", "-c", script],
    });
    let spec =
        json!({"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 1});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}).to_string()
}

/// A process that opens one connection after the other to the published port.
fn outside(daemon: &Daemon) -> Result<Child> {
    let file = daemon.file(OUTSIDE);
    let _absent = std::fs::remove_file(&file);
    let script = format!(
        "while true; do at=$(date +%s); echo $at $(curl --silent --max-time 3 http://127.0.0.1:{PUBLISHED_PORT}/) >> '{}'; sleep 0.05; done",
        file.display()
    );
    let mut command: Command = daemon.inside("sh");
    command.args(["-c", &script]).env("DIR", DIR).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command.spawn()?)
}

/// Lines of a time and the name of a pod, which is missing if none answered.
fn parse(client: &str, text: &str) -> Result<Vec<Answer>> {
    // The last line may not be whole yet.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let mut answers = Vec::new();
    for line in whole.lines() {
        let mut words = line.split_whitespace();
        let (at, pod) = (words.next(), words.next().unwrap_or_default());
        let Some(at) = at.and_then(|at| at.parse().ok()) else { bail!("{client}: {line:?}") };
        answers.push(Answer { client: client.to_owned(), at, pod: pod.to_owned() });
    }
    Ok(answers)
}
