//! What is run, seen by a program that stands in front of every command.

use super::*;

/// A cluster whose commands only tell what they are, with the status of `ends`.
fn told(ends: &str) -> Plan {
    let shown = format!("echo \"export NAME=/x/file\"; echo \"$@\" >&2; {ends}");
    DockerCluster::create("one").through(&["sh", "-c", &shown, "sh"])
}

#[test]
fn options_reach_the_script() {
    let plan = DockerCluster::create("one").nodes(3).publish(8080, 30080).naming("orch").keep();
    let cluster = DockerCluster { plan: plan.clone(), kubeconfig: PathBuf::new() };
    let line = line_of(&cluster.script("create", &plan.arguments));
    let options = "create --name one --nodes 3 --publish 127.0.0.1:8080:30080 --naming orch";
    assert!(line.ends_with(&format!("/../dind {options}")), "{line}");
    assert!(Path::new(SCRIPT).exists(), "{SCRIPT}");
}

#[test]
fn the_client_configuration_is_what_the_script_says() {
    let cluster = told("exit 0").keep().start().unwrap();
    assert_eq!(cluster.kubeconfig(), Path::new("/x/file"));
}

#[test]
fn a_failure_names_the_command_and_its_status() {
    let error = told("exit 3").start().unwrap_err().to_string();
    for part in ["dind delete --name one", "exit status: 3"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let missing = DockerCluster::create("one").through(&["/nowhere/program"]).start();
    assert!(matches!(missing, Err(ClusterError::Run { .. })), "{missing:?}");
}

#[test]
fn a_script_that_prints_no_file_is_an_error() {
    let plan = DockerCluster::create("one").through(&["true"]);
    assert!(matches!(plan.start(), Err(ClusterError::Unexpected { .. })));
}
