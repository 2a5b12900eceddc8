//! The process as a server for tests: its line, what it loads, and what remains of it.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};

use crate::support::Api;

/// The process; killed when dropped.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server, and what its line says.
struct Ephemeral {
    process: Killed,
    kubeconfig: PathBuf,
    api: Api,
}

fn command(temporary: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orch-apiserver"));
    command.arg("--ephemeral").current_dir(temporary).env("TMPDIR", temporary);
    command.env("HOME", temporary).stderr(Stdio::null());
    command
}

fn start(temporary: &Path, fixtures: Option<&Path>) -> Ephemeral {
    let mut command = command(temporary);
    command.args(fixtures.map(|dir| format!("--fixtures={}", dir.display())));
    let mut process = Killed(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let (kubeconfig, server) = line.trim_end().split_once(' ').expect("two parts");
    let kubeconfig = PathBuf::from(kubeconfig.strip_prefix("KUBECONFIG=").unwrap());
    let text = std::fs::read_to_string(&kubeconfig).unwrap();
    let server = server.strip_prefix("SERVER=").unwrap();
    assert!(server.starts_with("https://127.0.0.1:") && text.contains(server), "{line}");
    Ephemeral { process, api: Api::new(&text), kubeconfig }
}

async fn exists(api: &Api, path: &str) -> bool {
    api.get(path).await.code() == 200
}

#[tokio::test]
async fn nothing_is_left_of_a_killed_server() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = start(dir.path(), None);
    let maps = "/api/v1/namespaces/default/configmaps";
    server.api.post(maps, r#"{"metadata":{"name":"a"}}"#).await.expect(201);
    // The default names are those that clients know.
    server.api.get("/apis/rbac.authorization.k8s.io/v1").await.expect(200);
    // A pod needs no controller that makes its account.
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    server.api.post("/api/v1/namespaces/default/pods", pod.to_string()).await.expect(201);
    server.process.0.kill().unwrap();
    server.process.0.wait().unwrap();
    assert_eq!(dir.path().read_dir().unwrap().count(), 0, "no file remains");
    assert!(std::fs::read(&server.kubeconfig).is_err(), "nor the kubeconfig");
    assert!(TcpStream::connect(server.api.address()).is_err(), "nor a listener");
}

fn write(dir: &Path, name: &str, text: &str) {
    let path = dir.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

const DEFINITION: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: boats, kind: Boat}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {length: {type: integer}}}
          status: {type: object, properties: {afloat: {type: boolean}}}
";

#[tokio::test]
async fn fixtures_are_there_from_the_first_request_on() {
    let (dir, empty) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // In the order of names everything comes before what it needs.
    let boat = "apiVersion: example.com/v1\nkind: Boat\nmetadata: {name: a, namespace: team, resourceVersion: '7'}\nspec: {length: 3}\nstatus: {afloat: true}\n";
    write(dir.path(), "a/boat.yaml", boat);
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: team}\nspec: {priorityClassName: high, containers: [{name: c, image: i}]}\nstatus: {phase: Running}\n";
    write(dir.path(), "b.yaml", pod);
    // As controller-gen writes it: what it says of conditions and names is the server's.
    let status =
        "status: {acceptedNames: {kind: '', plural: ''}, conditions: [], storedVersions: []}\n";
    write(dir.path(), "c.yaml", &format!("{DEFINITION}{status}"));
    let class = r#"{"apiVersion":"scheduling.k8s.io/v1","kind":"PriorityClass","metadata":{"name":"high"},"value":1000}"#;
    write(
        dir.path(),
        "d.json",
        &format!(r#"{{"apiVersion":"v1","kind":"List","items":[{class}]}}"#),
    );
    let namespaces = "apiVersion: v1\nkind: Namespace\nmetadata: {name: team}\nstatus: {phase: Terminating}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: default, labels: {of: fixtures}}\n";
    write(dir.path(), "e.yaml", namespaces);
    let server = start(empty.path(), Some(dir.path()));
    let boats = "/apis/example.com/v1/namespaces/team/boats";
    let boat = server.api.get(&format!("{boats}/a")).await.expect(200);
    assert_eq!((&boat["spec"]["length"], &boat["status"]["afloat"]), (&json!(3), &json!(true)));
    let pod = server.api.get("/api/v1/namespaces/team/pods/p").await.expect(200);
    assert_eq!(
        (&pod["spec"]["priority"], &pod["status"]["phase"]),
        (&json!(1000), &json!("Running"))
    );
    let default = server.api.get("/api/v1/namespaces/default").await.expect(200);
    assert_eq!(default["metadata"]["labels"]["of"], "fixtures");
    let team = server.api.get("/api/v1/namespaces/team").await.expect(200);
    assert_eq!(team["status"]["phase"], "Active");
    // What the server adds by itself is there too, and has its place in the state.
    let api_service = "/apis/apiregistration.k8s.io/v1/apiservices/v1.example.com";
    let api_service_of_boats = server.api.get(api_service).await.expect(200);
    assert_eq!(api_service_of_boats["status"]["conditions"][0]["status"], "True");
    // They are the state that is put back.
    server.api.delete(&format!("{boats}/a")).await.expect(200);
    server.api.post("/api/v1/namespaces", r#"{"metadata":{"name":"other"}}"#).await.expect(201);
    server.api.post("/store/restore", "").await.expect(201);
    assert_eq!(server.api.get(&format!("{boats}/a")).await.expect(200), boat);
    assert!(!exists(&server.api, "/api/v1/namespaces/other").await);
    assert_eq!(server.api.get(api_service).await.expect(200), api_service_of_boats);
}

#[test]
fn the_line_of_a_server_on_all_addresses_says_where_it_is_reached() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = command(dir.path());
    command.arg("--bind-address=0.0.0.0").stdout(Stdio::piped());
    let mut process = Killed(command.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains(" SERVER=https://127.0.0.1:"), "{line}");
}

/// What a server says that does not start with these fixtures.
fn refused(dir: &Path) -> String {
    let empty = tempfile::tempdir().unwrap();
    let mut command = command(empty.path());
    command.arg(format!("--fixtures={}", dir.display())).stderr(Stdio::piped());
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(!status.success() && stdout.is_empty(), "{}", String::from_utf8_lossy(&stdout));
    String::from_utf8(stderr).unwrap()
}

#[test]
fn fixtures_that_cannot_be_are_named() {
    let check = |text: &str, expected: &[&str]| {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "ok.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ok}\n");
        write(dir.path(), "sub/bad.yaml", text);
        let told = refused(dir.path());
        for part in ["sub/bad.yaml", "document 1"].iter().chain(expected) {
            assert!(told.contains(part), "{part}: {told}");
        }
    };
    let of = |kind: &str, rest: &str| {
        format!("apiVersion: v1\nkind: {kind}\nmetadata: {{name: a}}\n{rest}")
    };
    check(&of("ConfigMap", "dta: {a: b}\n"), &["ConfigMap a", "unknown field \"dta\""]);
    check(&of("Service", "spec: {ports: [{port: 0}]}\n"), &["Service a", "spec.ports[0].port"]);
    check(&of("Boat", ""), &["Boat a", "kind", "no Boat in v1"]);
    check(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ok}\n",
        &["duplicate of the object in", "ok.yaml"],
    );
    let spelled = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ok, namespace: default}\n";
    check(spelled, &["duplicate of the object in", "ok.yaml"]);
    check(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: gone}\n",
        &["ConfigMap gone/a", "not found"],
    );
    let definition: Value = proto_api::yaml::parse(DEFINITION).unwrap();
    let mut other = definition.clone();
    other["metadata"]["name"] = json!("x.example.com");
    other["spec"]["names"]["plural"] = json!("x");
    // The kind has an owner already: this one is never established.
    let both = format!(
        "{}---\n{}",
        proto_api::yaml::to_string(&definition),
        proto_api::yaml::to_string(&other)
    );
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "bad.yaml", &both);
    let told = refused(dir.path());
    assert!(told.contains("document 2") && told.contains("not established"), "{told}");
}

#[test]
fn fixtures_that_are_hostile_are_refused_before_anything_runs() {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(dir.path(), dir.path().join("loop")).unwrap();
    assert!(refused(dir.path()).contains("reached twice"));
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("binary.yaml"), [0xff; 1000]).unwrap();
    assert!(refused(dir.path()).contains("binary.yaml is not UTF-8"));
    let dir = tempfile::tempdir().unwrap();
    // Not too long to be read, and too deep for an object.
    let deep = format!("{{\"a\":{}1{}}}", "[".repeat(100), "]".repeat(100));
    let text = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"a"}},"data":{deep}}}"#
    );
    std::fs::write(dir.path().join("deep.json"), text).unwrap();
    let told = refused(dir.path());
    assert!(told.contains("deep.json, document 1: ConfigMap a"), "{told}");
}

#[test]
fn the_line_comes_once_the_server_answers() {
    let dir = tempfile::tempdir().unwrap();
    let mut process = Killed(command(dir.path()).stdout(Stdio::piped()).spawn().unwrap());
    let mut out = BufReader::new(process.0.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    let address = line.trim_end().rsplit("https://").next().unwrap().to_owned();
    TcpStream::connect(address).unwrap();
    process.0.kill().unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "", "one line");
}
