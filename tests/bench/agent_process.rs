//! The agent of the first node as a child process of this program: stopped and started without a supervisor's pauses.

use std::net::SocketAddr;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cluster::programs::{Program, programs, with_own};
use cluster::spec::Spec;
use cluster::supervisor::{self, Programs};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::workload::PATIENCE;

/// Its name among the programs of a cluster.
const NAME: &str = "orchlet-node-1";
const HEALTH_PORT: u16 = 10248;
/// Poll interval of readiness.
const LOOK: Duration = Duration::from_millis(2);

/// The agent, while the cluster has no supervisor.
pub struct Agent<'a> {
    spec: &'a Spec,
    program: Program,
    /// Set when it was started here and has to be reaped.
    child: Option<Child>,
}

impl<'a> Agent<'a> {
    /// Ends the cluster's supervisor; all programs run on.
    pub async fn take_over(spec: &'a Spec) -> Result<Agent<'a>> {
        let program = programs(spec).into_iter().find(|program| program.name == NAME);
        let program = program.context("no agent in this cluster")?;
        supervisor::end_supervisor(spec, Programs::Leave).await?;
        Ok(Agent { spec, program, child: None })
    }

    /// Gives the programs back to a supervisor, which starts the agent if it does not run.
    pub fn hand_back(self) -> Result<()> {
        supervisor::start_supervisor(self.spec)
    }

    /// Ends it by force.
    pub async fn kill(&mut self) -> Result<()> {
        if let Some(agent) = supervisor::find(self.spec, NAME) {
            agent.signal(Signal::SIGKILL)?;
            agent.ended().await?;
        }
        if let Some(mut child) = self.child.take() {
            child.wait()?;
        }
        Ok(())
    }

    /// Starts it; when that began.
    pub async fn start(&mut self) -> Result<Instant> {
        let began = Instant::now();
        self.child = Some(supervisor::start(self.spec, &self.program).await?.1);
        Ok(began)
    }

    /// Starts it without an API server, with `flags` in the place of the cluster's.
    pub async fn start_alone(&mut self, flags: &[String]) -> Result<()> {
        let mut program = self.program.clone();
        program.argv.retain(|flag| !flag.starts_with("--kubeconfig="));
        program.argv = with_own(program.argv, flags);
        self.child = Some(supervisor::start(self.spec, &program).await?.1);
        self.ready().await
    }

    /// The statuses of its tasks with this prefix.
    pub async fn tasks(&self, prefix: &str) -> Result<Vec<Value>> {
        let page: Value = serde_json::from_str(&self.page("/statusz?format=json").await?)?;
        let tasks = page.get("tasks").unwrap_or(&page).as_object().context("no tasks")?;
        let own = tasks.iter().filter(|(name, _)| name.starts_with(prefix));
        Ok(own.map(|(_, task)| task.clone()).collect())
    }

    /// Waits until it is ready.
    pub async fn ready(&self) -> Result<()> {
        let began = Instant::now();
        while !self.page("/readyz").await.is_ok_and(|text| !text.is_empty()) {
            ensure!(began.elapsed() < PATIENCE, "the agent is not ready");
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// A page of its health server.
    pub async fn page(&self, path: &str) -> Result<String> {
        let node = self.spec.node_list().into_iter().next().context("no node")?;
        cluster::demo::http_get(SocketAddr::from((node.address, HEALTH_PORT)), path).await
    }
}

/// Whether a pod's task has found its containers running or has started them.
pub fn is_at_work(task: &Value) -> bool {
    task["outcome"]["done"] == "Running"
}

/// Process id of the first node's agent.
pub fn pid(spec: &Spec) -> Result<i32> {
    let handle = supervisor::find(spec, NAME).context("the agent does not run")?;
    Ok(handle.identity.pid)
}

/// Runs `work` while the first node has no agent, which would remove unknown pods.
pub async fn without<T>(spec: &Spec, work: impl Future<Output = Result<T>>) -> Result<T> {
    let mut agent = Agent::take_over(spec).await?;
    agent.kill().await?;
    let done = work.await;
    agent.hand_back()?;
    done
}
