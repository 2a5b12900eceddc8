//! The hollow nodes of a cluster, in a few programs, so that a part of the nodes can fail as machines do: without a word.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use apiserver_bootstrap::arguments::command_line;
use kubernetes_server::processes::spawn;
use tokio::process::Child;

use super::PROCESSES;
use super::control_plane::ControlPlane;
use super::costs::Program;

/// Running hollow nodes. They end with it.
pub struct HollowNodes {
    processes: Vec<Process>,
}

struct Process {
    argv: Vec<String>,
    log: PathBuf,
    child: Child,
}

/// What the names of a process' nodes begin with.
fn prefix(process: usize) -> String {
    format!("hollow-{process}")
}

impl HollowNodes {
    /// Starts `count` nodes, each with a client certificate of its own.
    pub fn start(bin_dir: &Path, dir: &Path, plane: &ControlPlane, count: usize) -> Result<Self> {
        let clients = dir.join("clients/nodes");
        std::fs::create_dir(&clients)?;
        let nodes = count / PROCESSES;
        let mut processes = Vec::new();
        for number in 0..PROCESSES {
            let prefix = prefix(number);
            for node in 0..nodes {
                plane.client_of_node(&clients, &format!("{prefix}-{node}"))?;
            }
            let flags = vec![
                ("runtime", "memory".to_owned()),
                ("hollow-nodes", nodes.to_string()),
                ("hostname-override", prefix.clone()),
                ("kubeconfig", clients.display().to_string()),
                ("root-dir", dir.join(&prefix).display().to_string()),
                ("node-ip", "127.0.0.1".to_owned()),
                ("healthz-port", "0".to_owned()),
                ("fail-swap-on", "false".to_owned()),
            ];
            let argv = command_line(bin_dir, "orchlet", plane.names, &flags);
            let log = dir.join(format!("logs/{prefix}.log"));
            let child = spawn(&argv, &log)?;
            processes.push(Process { argv, log, child });
        }
        Ok(Self { processes })
    }

    /// All of them as one program.
    pub fn program(&self) -> Program {
        Program::from_processes("hollow nodes", self.processes.iter().map(|process| &process.child))
    }

    /// Kills the first process. Returns what the names of its nodes begin with.
    pub async fn kill_first(&mut self) -> Result<String> {
        let first = self.processes.first_mut().context("no hollow nodes")?;
        first.child.kill().await?;
        Ok(format!("{}-", prefix(0)))
    }

    /// Starts the first process again.
    pub fn start_first(&mut self) -> Result<()> {
        let first = self.processes.first_mut().context("no hollow nodes")?;
        first.child = spawn(&first.argv, &first.log)?;
        Ok(())
    }
}
