//! What must not be lost: the program against an API server, with files and flags that name less or more than was meant.

#![allow(clippy::expect_used, reason = "this file is a test")]

use std::path::Path;
use std::process::Stdio;

use orch_apiserver::Config;
use proto_api::names::{Names, Profile};
use proto_daemon::drain::Drain;
use tokio::process::Command;

/// An API server, and a directory for files.
struct Server {
    directory: tempfile::TempDir,
    _drain: Drain,
}

/// Code and output of a command.
type Answer = (Option<i32>, String);

impl Server {
    async fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let config = Config::for_tests(Names::new(Profile::Kubernetes));
        let bound = orch_apiserver::build(config).await.expect("a server");
        std::fs::write(directory.path().join("config"), bound.kubeconfig()).expect("a file");
        let drain = Drain::default();
        tokio::spawn(bound.run(drain.watch()));
        Self { directory, _drain: drain }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A file with this text.
    fn file(&self, name: &str, text: &str) -> String {
        let path = self.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    }

    async fn orchctl(&self, arguments: &[&str]) -> Answer {
        let output = Command::new(env!("CARGO_BIN_EXE_orchctl"))
            .arg("--kubeconfig")
            .arg(self.path().join("config"))
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .await
            .expect("run");
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    }

    /// Runs a command that has to succeed.
    async fn run(&self, arguments: &[&str]) -> String {
        let (code, text) = self.orchctl(arguments).await;
        assert_eq!(code, Some(0), "{arguments:?}: {text}");
        text
    }

    async fn names(&self, resource: &str) -> String {
        self.run(&["get", resource, "-o", "name"]).await
    }
}

const MAPS: &str = "configmap/a\nconfigmap/b\n";

async fn with_maps() -> Server {
    let server = Server::start().await;
    for name in ["a", "b"] {
        server.run(&["create", "configmap", name, "--from-literal=k=v"]).await;
    }
    server
}

/// The path of an object without a name is that of all objects.
#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_without_a_name_deletes_nothing() {
    let server = with_maps().await;
    for (at, metadata) in ["{generateName: c-}", "{}", "{name: ''}"].into_iter().enumerate() {
        let text = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {metadata}\n");
        let file = server.file(&format!("{at}.yaml"), &text);
        for command in [&["delete", "--wait=false"][..], &["replace", "--force"]] {
            let (code, said) = server.orchctl(&[command, &["-f", &file]].concat()).await;
            assert_eq!(code, Some(1), "{command:?} {metadata}: {said}");
            assert!(said.contains("resource name may not be empty"), "{said}");
        }
    }
    assert_eq!(server.names("configmaps").await, MAPS);
    let generated = server.path().join("0.yaml").display().to_string();
    server.run(&["create", "-f", &generated]).await;
    assert_eq!(server.names("configmaps").await.lines().count(), 3, "one was made");
    let (_, said) = server.orchctl(&["apply", "-f", &generated]).await;
    assert!(said.contains("cannot use generate name with apply"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn apply_force_keeps_what_it_cannot_replace() {
    let server = Server::start().await;
    let service = |ip: &str, port: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: s}}\nspec: {{clusterIP: {ip}, ports: [{{port: {port}}}]}}\n"
        )
    };
    let first = server.file("first.yaml", &service("None", "80"));
    server.run(&["apply", "-f", &first]).await;
    let port = ["get", "service", "s", "-o", "jsonpath={.spec.ports[0].port}"];
    // The address cannot change, so it is made again; the other one is valid nowhere.
    let invalid = server.file("invalid.yaml", &service("None", "0"));
    let (code, said) = server.orchctl(&["apply", "--force", "-f", &invalid]).await;
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(server.run(&port).await, "80", "there as before");
    // A time that cannot be read is found before anything is deleted.
    let (code, said) =
        server.orchctl(&["apply", "--force", "--timeout=soon", "-f", &invalid]).await;
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(server.run(&port).await, "80");
}

/// An unset variable of a script is an empty selector.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_selector_selects_no_node() {
    let server = Server::start().await;
    let node = server.file("node.yaml", "apiVersion: v1\nkind: Node\nmetadata: {name: one}\n");
    server.run(&["create", "-f", &node]).await;
    for command in ["cordon", "drain"] {
        let (code, said) = server.orchctl(&[command, "-l", ""]).await;
        assert_ne!(code, Some(0), "{said}");
    }
    let cordoned = ["get", "node", "one", "-o", "jsonpath={.spec.unschedulable}"];
    assert_eq!(server.run(&cordoned).await, "");
}
