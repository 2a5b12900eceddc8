//! An API server in this process, and the program asked about it.

use std::path::Path;
use std::process::Stdio;

use orch_apiserver::Config;
use proto_api::names::{Names, Profile};
use proto_daemon::drain::Drain;
use tokio::process::Command;

/// An API server without controllers, and a directory for files.
pub(crate) struct Server {
    directory: tempfile::TempDir,
    _drain: Drain,
}

/// What a command wrote.
pub(crate) struct Answer {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::with(Config::for_tests(Names::new(Profile::Kubernetes))).await
    }

    pub(crate) async fn with(config: Config) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let bound = orch_apiserver::build(config).await.expect("a server");
        std::fs::write(directory.path().join("config"), bound.kubeconfig()).expect("a file");
        let drain = Drain::default();
        tokio::spawn(bound.run(drain.watch()));
        let server = Self { directory, _drain: drain };
        // No controller makes it here, and pods need it.
        server.run(&["create", "serviceaccount", "default"]).await;
        server
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The program with the configuration of this server.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_orchctl"));
        command.arg("--kubeconfig").arg(self.path().join("config"));
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    pub(crate) async fn ask(&self, arguments: &[&str]) -> Answer {
        let output = self.command().args(arguments).output().await.expect("run");
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Answer { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// Runs a command that has to succeed.
    pub(crate) async fn run(&self, arguments: &[&str]) -> String {
        let answer = self.ask(arguments).await;
        assert_eq!(answer.code, Some(0), "{arguments:?}: {}{}", answer.out, answer.err);
        answer.out
    }

    /// Creates the objects of a manifest.
    pub(crate) async fn create(&self, manifest: &str) {
        let file = self.path().join("manifest.yaml");
        std::fs::write(&file, manifest).expect("a file");
        self.run(&["create", "-f", &file.display().to_string()]).await;
    }

    /// Sets the status of an object.
    pub(crate) async fn set_status(&self, object: &str, status: &str) {
        let patch = format!("{{\"status\": {status}}}");
        let arguments = ["patch", object, "--subresource=status", "--type=merge", "-p", &patch];
        self.run(&arguments).await;
    }

    pub(crate) async fn uid(&self, object: &str) -> String {
        self.run(&["get", object, "-o", "jsonpath={.metadata.uid}"]).await
    }
}
