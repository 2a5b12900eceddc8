//! The cluster, and how it is made.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The script, in the checkout that this crate is of.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../dind");
/// Bytes of what a failed program has said, in an error.
const SAID_MAX: usize = 4096;

/// Why a cluster cannot be made, changed or removed.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// A program cannot be run.
    #[error("cannot run {program}: {source}")]
    Run {
        program: String,
        /// Why.
        source: std::io::Error,
    },
    /// A program has failed.
    #[error("{line}: {status}: {said}")]
    Failed {
        /// Its command line.
        line: String,
        /// How it ended.
        status: std::process::ExitStatus,
        /// The end of what it said.
        said: String,
    },
    /// A program has said something else than it should.
    #[error("{line}: no line `export NAME=FILE` in {said:?}")]
    Unexpected {
        /// Its command line.
        line: String,
        /// What it said.
        said: String,
    },
}

/// What a cluster is to be.
#[derive(Clone, Debug)]
pub struct Plan {
    name: String,
    arguments: Vec<String>,
    through: Vec<String>,
    is_kept: bool,
}

impl Plan {
    /// How many nodes it has, the first with the control plane [default: 1]
    #[must_use]
    pub fn nodes(self, count: usize) -> Self {
        self.option("--nodes", &count.to_string())
    }

    /// The image of its nodes [default: the one that `hack/dind image` makes]
    #[must_use]
    pub fn image(self, image: &str) -> Self {
        self.option("--image", image)
    }

    /// A port of this machine that leads to a node port of the first node.
    #[must_use]
    pub fn publish(self, port: u16, node_port: u16) -> Self {
        self.option("--publish", &format!("127.0.0.1:{port}:{node_port}"))
    }

    /// `kubernetes` or `orch` [default: kubernetes]
    #[must_use]
    pub fn naming(self, naming: &str) -> Self {
        self.option("--naming", naming)
    }

    /// The cluster stays when the value is dropped: `hack/dind delete --name NAME` removes it.
    #[must_use]
    pub fn keep(mut self) -> Self {
        self.is_kept = true;
        self
    }

    /// Words in front of every command, such as `env DOCKER_HOST=...` for another Docker.
    #[must_use]
    pub fn through(mut self, words: &[&str]) -> Self {
        self.through = words.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// Makes the cluster, and waits until its nodes are Ready. One of the same name that an earlier run left is removed first.
    ///
    /// # Errors
    /// It cannot be made; nothing of it is left.
    pub fn start(self) -> Result<DockerCluster, ClusterError> {
        let mut cluster = DockerCluster { plan: self, kubeconfig: PathBuf::new() };
        cluster.delete()?;
        let arguments = cluster.plan.arguments.clone();
        let command = cluster.script("create", &arguments);
        let line = line_of(&command);
        let said = run(command)?;
        let path =
            said.lines().rev().find_map(|line| line.strip_prefix("export ")?.split_once('='));
        match path {
            Some((_, path)) => cluster.kubeconfig = path.into(),
            None => return Err(ClusterError::Unexpected { line, said }),
        }
        Ok(cluster)
    }

    fn option(mut self, name: &str, value: &str) -> Self {
        self.arguments.extend([name.to_owned(), value.to_owned()]);
        self
    }
}

/// A cluster that runs.
#[derive(Debug)]
pub struct DockerCluster {
    plan: Plan,
    kubeconfig: PathBuf,
}

impl DockerCluster {
    /// Plans a cluster of a name, which tests that run at the same time do not share.
    #[must_use]
    pub fn create(name: &str) -> Plan {
        let (arguments, through) = (Vec::new(), Vec::new());
        Plan { name: name.to_owned(), arguments, through, is_kept: false }
    }

    /// The administrator's client configuration.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The names of its nodes, which are those of their containers too; the first has the control plane.
    ///
    /// # Errors
    /// Docker does not answer.
    pub fn nodes(&self) -> Result<Vec<String>, ClusterError> {
        let said = run(self.script("list", &[] as &[&str]))?;
        Ok(said.lines().map(str::to_owned).collect())
    }

    /// Puts an image of Docker's on every node.
    ///
    /// # Errors
    /// There is no such image, or a node does not take it.
    pub fn load(&self, image: &str) -> Result<(), ClusterError> {
        run(self.script("load", &[image])).map(drop)
    }

    /// Puts the images of an archive on every node.
    ///
    /// # Errors
    /// It cannot be read, or a node does not take it.
    pub fn load_archive(&self, archive: &Path) -> Result<(), ClusterError> {
        run(self.script("load", &[OsStr::new("--archive"), archive.as_os_str()])).map(drop)
    }

    /// Adds a node; its name.
    ///
    /// # Errors
    /// It does not become Ready.
    pub fn add_node(&self) -> Result<String, ClusterError> {
        Ok(run(self.script("add", &[] as &[&str]))?.trim().to_owned())
    }

    /// Removes a node as a fault does: its containers are removed, and the cluster is not notified.
    ///
    /// # Errors
    /// Docker refuses it.
    pub fn remove_node(&self, node: &str) -> Result<(), ClusterError> {
        run(self.docker(&["rm", "--force", "--volumes", node])).map(drop)
    }

    /// Exchanges the programs of all nodes, one after the other, for those of `ORCH_BIN_DIR` or of a build of this checkout.
    ///
    /// # Errors
    /// They are not there, or one does not start.
    pub fn upgrade(&self) -> Result<(), ClusterError> {
        run(self.script("upgrade", &[] as &[&str])).map(drop)
    }

    /// Switches a node off and on.
    ///
    /// # Errors
    /// Docker refuses it.
    pub fn restart(&self, node: &str) -> Result<(), ClusterError> {
        run(self.docker(&["restart", node])).map(drop)
    }

    /// Runs a command on a node; its standard output.
    ///
    /// # Errors
    /// It fails.
    pub fn run_on(&self, node: &str, line: &[&str]) -> Result<String, ClusterError> {
        run(self.docker(&[&["exec", node], line].concat()))
    }

    /// A command of Docker's.
    pub fn docker(&self, arguments: &[&str]) -> Command {
        let mut command = self.command("docker");
        command.args(arguments);
        command
    }

    /// Copies the nodes' logs into a directory.
    ///
    /// # Errors
    /// They cannot be read, or the directory cannot be written to.
    pub fn logs(&self, dir: &Path) -> Result<(), ClusterError> {
        run(self.script("logs", &[dir])).map(drop)
    }

    /// Removes the cluster, which is what dropping it does too, but says when that fails.
    ///
    /// # Errors
    /// Docker refuses something.
    pub fn delete(&self) -> Result<(), ClusterError> {
        run(self.script("delete", &[] as &[&str])).map(drop)
    }

    fn script(&self, verb: &str, arguments: &[impl AsRef<OsStr>]) -> Command {
        let mut command = self.command(SCRIPT);
        command.args([verb, "--name", &self.plan.name]).args(arguments);
        command
    }

    fn command(&self, program: &str) -> Command {
        let mut command = match self.plan.through.split_first() {
            None => return quiet(Command::new(program)),
            Some((first, words)) => {
                let mut command = Command::new(first);
                command.args(words);
                command
            }
        };
        command.arg(program);
        quiet(command)
    }
}

impl Drop for DockerCluster {
    fn drop(&mut self) {
        if !self.plan.is_kept {
            // The receiver was dropped.
            let _left = self.delete();
        }
    }
}

fn quiet(mut command: Command) -> Command {
    command.stdin(Stdio::null());
    command
}

fn line_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

fn run(mut command: Command) -> Result<String, ClusterError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|source| ClusterError::Run { program, source })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let end = &output.stderr[output.stderr.len().saturating_sub(SAID_MAX)..];
    let said = String::from_utf8_lossy(end).trim().to_owned();
    Err(ClusterError::Failed { line: line_of(&command), status: output.status, said })
}

#[cfg(test)]
mod tests;
