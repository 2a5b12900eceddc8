//! What a node answers for its users while it is attacked: log and exec of the canary, and the node's metrics, all through the API server.

use std::fs::File;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use http::Request;
use hyper_util::rt::TokioIo;
use proto_api::core::v1::Pod;
use tokio::io::AsyncReadExt as _;
use tokio::time::{Instant, sleep};

use crate::{Target, requests};

/// Between two rounds of questions.
const PACE: Duration = Duration::from_secs(1);
/// Between an answer that is an error and the same question again.
const PAUSE: Duration = Duration::from_millis(500);
/// What the command in the canary prints.
const WORD: &str = "canary-sings";
/// Longest output of that command with its frames.
const OUTPUT_MAX: usize = 4096;
/// Longest description of an error that is counted.
const ERROR_LEN: usize = 200;

/// What the node is asked for.
#[derive(Clone, Copy)]
enum Question {
    /// The canary's log.
    Log,
    /// A command in the canary.
    Exec,
    /// A page of the node, and a text that it has.
    Page(&'static str, &'static str),
}

/// All questions with their names in the report.
const QUESTIONS: [(&str, Question); 4] = [
    ("log of the canary", Question::Log),
    ("exec in the canary", Question::Exec),
    ("metrics of the node", Question::Page("metrics", "_running_pods")),
    (
        "resource metrics of the node",
        Question::Page("metrics/resource", "node_cpu_usage_seconds_total"),
    ),
];

/// Asks for log, exec and metrics until the attack ends. Each has to succeed within the judge's time, errors before that are counted.
pub async fn watch(target: Target) {
    let judge = &target.judge;
    let pod = match canary(&target).await {
        Ok(pod) => pod,
        Err(error) => return judge.find(format!("no canary to ask: {error:#}")),
    };
    while Instant::now() < target.until {
        for (what, question) in QUESTIONS {
            succeed(&target, &pod, what, question).await;
        }
        sleep(PACE).await;
    }
}

/// A pod of the demo.
pub async fn canary(target: &Target) -> Result<Pod> {
    let pods = target.client.within::<Pod>("demo").list(&Default::default()).await?;
    pods.items.into_iter().next().context("the demo has no pods")
}

/// Repeats a question until it succeeds.
async fn succeed(target: &Target, pod: &Pod, what: &'static str, question: Question) {
    let answered = async {
        while let Err(error) = ask(target, pod, question).await {
            target.judge.count(what, shorten(&format!("{error:#}")));
            sleep(PAUSE).await;
        }
    };
    let answer = target.judge.within(what, answered).await;
    target.judge.count(what, if answer.is_some() { "success" } else { "no answer" });
}

async fn ask(target: &Target, pod: &Pod, question: Question) -> Result<()> {
    match question {
        Question::Log => log(target, pod).await,
        Question::Exec => exec(target, pod).await,
        Question::Page(page, text) => scrape(target, &pod.spec.node_name, page, text).await,
    }
}

/// A cell of the report's table.
fn shorten(text: &str) -> String {
    let is_plain = |c: &char| !c.is_control() && *c != '|';
    text.chars().filter(is_plain).take(ERROR_LEN).collect()
}

async fn log(target: &Target, pod: &Pod) -> Result<()> {
    let path = format!("/api/v1/namespaces/demo/pods/{}/log", pod.metadata.name);
    target.client.call(Request::get(path).body(Default::default())?).await?;
    Ok(())
}

/// Runs a command and reads its output and status.
async fn exec(target: &Target, pod: &Pod) -> Result<()> {
    let name = &pod.metadata.name;
    let path =
        format!("/api/v1/namespaces/demo/pods/{name}/exec?command=echo&command={WORD}&stdout=true");
    let request = requests::websocket(&path, "v4.channel.k8s.io").header("accept", "*/*");
    let (_, upgraded) = target.client.upgrade(request.body(Default::default())?).await?;
    let mut stream = TokioIo::new(upgraded);
    let mut bytes = Vec::new();
    while !has_succeeded(&bytes) {
        ensure!(bytes.len() < OUTPUT_MAX, "more output than the command has");
        if stream.read_buf(&mut bytes).await? == 0 {
            bail!("ended with {:?}", String::from_utf8_lossy(&bytes));
        }
    }
    Ok(())
}

/// Whether the frames hold the command's output and its status.
fn has_succeeded(frames: &[u8]) -> bool {
    let text = String::from_utf8_lossy(frames);
    text.contains(WORD) && text.contains("\"Success\"")
}

async fn scrape(target: &Target, node: &str, page: &str, wanted: &str) -> Result<()> {
    let path = format!("/api/v1/nodes/{node}/proxy/{page}");
    let request = Request::get(path).header("accept", "*/*").body(Default::default())?;
    let answer = target.client.call(request).await?;
    ensure!(String::from_utf8_lossy(&answer.body).contains(wanted), "the page lacks {wanted}");
    Ok(())
}

/// The network namespace of a pod: that of a process of its first container.
pub fn network_of(pod: &Pod) -> Result<File> {
    let container = pod.status.container_statuses.first().context("the pod has no container")?;
    let (_, id) = container.container_id.split_once("://").context("the container has no id")?;
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let cgroups = std::fs::read_to_string(entry.path().join("cgroup")).unwrap_or_default();
        if cgroups.contains(id) {
            return Ok(File::open(entry.path().join("ns/net"))?);
        }
    }
    bail!("no process of container {id}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_succeeds_with_its_output_and_its_status() {
        let output = b"\x82\x0e\x01canary-sings\n".to_vec();
        let status = br#"\x82\x2c\x03{"metadata":{},"status":"Success"}"#.to_vec();
        assert!(has_succeeded(&[output.clone(), status.clone()].concat()));
        assert!(!has_succeeded(&output) && !has_succeeded(&status));
        let failure = br#"{"status":"Failure"}"#.to_vec();
        assert!(!has_succeeded(&[output, failure].concat()));
    }

    #[test]
    fn an_error_is_a_cell_of_the_table() {
        assert_eq!(shorten("a|b\nc"), "abc");
        assert_eq!(shorten(&"x".repeat(1000)).len(), ERROR_LEN);
    }
}
