//! The agent alone: pods from a directory of manifests, without an API server. This measures the agent's own share of a burst.

use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use cluster::images::BUSYBOX_IMAGE;
use cluster::spec::Spec;
use serde_json::{Value, json};

use crate::agent_process::{Agent, is_at_work};
use crate::footprint::Spent;
use crate::runtime_floor::RuntimeFloor;
use crate::workload::{self, Network, PATIENCE, SCRIPT};

const NAMESPACE: &str = "alone";
/// Poll interval. A poll costs the agent a millisecond.
const LOOK: Duration = Duration::from_millis(250);
/// Time from the last creation of a container until it runs.
const LAST: Duration = Duration::from_secs(2);

/// Directories of an agent without an API server.
pub struct AgentOnly<'a> {
    spec: &'a Spec,
    dir: PathBuf,
}

impl<'a> AgentOnly<'a> {
    /// On the first node.
    pub fn new(spec: &'a Spec) -> Result<AgentOnly<'a>> {
        let dir = spec.node_dir("node-1").join("alone");
        for part in ["manifests", "written", "orchlet"] {
            std::fs::create_dir_all(dir.join(part))?;
        }
        Ok(AgentOnly { spec, dir })
    }

    /// Flags that replace those of the cluster.
    pub fn flags(&self) -> Vec<String> {
        let flag = |name: &str, part: &str| format!("--{name}={}", self.dir.join(part).display());
        vec![flag("root-dir", "orchlet"), flag("pod-manifest-path", "manifests")]
    }

    /// Lets the agent create the pods; the time until the last container ran, by the runtime's clock.
    pub async fn fill(
        &self,
        numbers: Range<usize>,
        network: Network,
        agent: &Agent<'_>,
        direct: &RuntimeFloor,
    ) -> Result<(Duration, Spent)> {
        for number in numbers.clone() {
            std::fs::write(self.file("written", number), manifest(number, network)?)?;
        }
        let count = numbers.len();
        let (before, began) = (Spent::now(self.spec)?, SystemTime::now());
        for number in numbers {
            std::fs::rename(self.file("written", number), self.file("manifests", number))?;
        }
        self.until(agent, "all pods are about to run", |tasks| {
            tasks.len() == count && tasks.iter().all(is_at_work)
        })
        .await?;
        tokio::time::sleep(LAST).await;
        let spent = before.until_now(self.spec)?;
        let started = direct.started(NAMESPACE).await?;
        ensure!(started.len() == count, "{} of {count} containers run", started.len());
        let last = started.into_iter().max().context("no pods")?;
        let last = UNIX_EPOCH + Duration::from_nanos(last);
        Ok((last.duration_since(began)?, spent))
    }

    /// Removes all pods.
    pub async fn empty(&self, agent: &Agent<'_>) -> Result<()> {
        for manifest in std::fs::read_dir(self.dir.join("manifests"))? {
            std::fs::remove_file(manifest?.path())?;
        }
        self.until(agent, "no pod is left", |tasks| tasks.is_empty()).await
    }

    fn file(&self, part: &str, number: usize) -> PathBuf {
        self.dir.join(part).join(format!("{number}.json"))
    }

    /// Waits until the tasks of these pods meet a condition.
    async fn until(
        &self,
        agent: &Agent<'_>,
        what: &str,
        fits: impl Fn(&[Value]) -> bool,
    ) -> Result<()> {
        let began = Instant::now();
        loop {
            let tasks = agent.tasks(&format!("pod {NAMESPACE}/")).await?;
            if fits(&tasks) {
                return Ok(());
            }
            ensure!(began.elapsed() < PATIENCE, "waited in vain until {what}");
            tokio::time::sleep(LOOK).await;
        }
    }
}

fn manifest(number: usize, network: Network) -> Result<String> {
    let container = workload::container("main", BUSYBOX_IMAGE, SCRIPT);
    let name = format!("b{number}");
    let pod = workload::pod(NAMESPACE, &name, network, vec![container], Vec::new())?;
    let mut value = serde_json::to_value(pod)?;
    value["apiVersion"] = json!("v1");
    value["kind"] = json!("Pod");
    Ok(value.to_string())
}
