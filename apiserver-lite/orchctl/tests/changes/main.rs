//! The changing commands against an API server, and kubectl's answers to the same lines: output and exit codes. `answers.txt` records kubectl's; where
//! kubectl is installed, the record is compared with it, and `ORCH_RECORD=1` writes it again.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

#[path = "../kubectl/mod.rs"]
mod kubectl;

use std::path::Path;
use std::process::Command;

use orch_apiserver::Config;
use proto_api::names::{Names, Profile};
use proto_daemon::drain::Drain;

/// The client whose words count.
const CLIENT: &str = "kubectl.1.32";
/// The lines of the script.
const SCRIPT: &str = include_str!("script.sh");
/// What kubectl answers.
const ANSWERS: &str = include_str!("answers.txt");
/// Lines in which orchctl differs on purpose, with the reason.
const DIFFERENCES: &[(&str, &str)] = &[
    (
        "k create deployment cmd --image=busybox --dry-run=client -o json -- sleep 5",
        "JSON has sorted keys; kubectl prints objects that it makes itself in the order of its types",
    ),
    (
        "k create secret docker-registry r --docker-username=u --docker-password=p --docker-email=e -o json --dry-run=client",
        "the same",
    ),
    (
        "k apply -f $DIR/app.yaml --prune -l part=app",
        "kubectl asks for an order of containers that the server has already, and says configured",
    ),
];

/// A file of the script.
const FILES: &[(&str, &str)] = &[
    ("data/a.txt", "first\n"),
    ("data/b.txt", "second"),
    ("one.txt", "one"),
    ("vars.env", "# comment\nA=1\nB=two words\n"),
    ("names.env", "\u{feff}A=1\r\n  MODE\r\n\t# comment\r\n\r\nNOT_SET\nB=x=y \n"),
    ("number.env", "A=1\n123\n"),
    ("spaces.env", "A =1\n"),
    ("above.env", "..a=1\n"),
    (
        "pod.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: single, labels: {app: single}}\nspec: {containers: [{name: c, image: i}]}\n",
    ),
    ("unknown.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: odd}\ndatum: {a: b}\n"),
    ("app.yaml", include_str!("app.yaml")),
    ("generate.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {generateName: gen-}\n"),
    ("new.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: newer}\n"),
    (
        "applied.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: applied}\ndata: {a: first}\n",
    ),
    ("ssa.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: served}\ndata: {a: b}\n"),
    ("node.yaml", include_str!("node.yaml")),
    ("csr.yaml", include_str!("csr.yaml")),
    ("roles.yaml", include_str!("roles.yaml")),
    ("other-roles.yaml", include_str!("other-roles.yaml")),
    (
        "single-recorded.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: single-recorded, labels: {app: single}}\nspec: {containers: [{name: c, image: i}]}\n",
    ),
];

/// What a program said to each line.
async fn answers(program: &str) -> Vec<(String, String)> {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, text) in FILES {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        std::fs::write(path, text).expect("a file");
    }
    let bound = orch_apiserver::build(Config::for_tests(Names::new(Profile::Kubernetes)));
    let bound = bound.await.expect("a server");
    std::fs::write(directory.path().join("config"), bound.kubeconfig()).expect("a file");
    let drain = Drain::default();
    let running = tokio::spawn(bound.run(drain.watch()));
    let mut all = Vec::new();
    for line in SCRIPT.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (command, compared) = match line.strip_prefix(": ") {
            Some(command) => (command, false),
            None => (line, true),
        };
        let (program, path) = (program.to_owned(), directory.path().to_owned());
        let shell = command.to_owned();
        let answer = tokio::task::spawn_blocking(move || ask(&program, &path, &shell));
        let answer = answer.await.expect("a thread");
        if compared {
            all.push((line.to_owned(), answer));
        }
    }
    drain.drain(std::time::Duration::from_secs(5)).await;
    running.await.expect("the server has ended");
    all
}

fn ask(program: &str, directory: &Path, line: &str) -> String {
    let shell = format!("k() {{ \"$PROGRAM\" --kubeconfig=\"$DIR/config\" \"$@\"; }}\n{line}");
    let output = Command::new("timeout")
        .args(["60", "sh", "-c", &shell])
        .env("PROGRAM", program)
        .env("DIR", directory)
        .env("HOME", directory)
        .output()
        .expect("a shell");
    let code = output.status.code().unwrap_or(-1);
    let text = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).replace(&directory.display().to_string(), "DIR");
        text.lines().map(|line| format!("  {line}\n")).collect::<String>()
    };
    format!("{}[{code}]\n", text(&output.stdout))
}

fn transcript(answers: &[(String, String)]) -> String {
    answers.iter().map(|(line, answer)| format!("{line}\n{answer}")).collect()
}

/// Lines whose answers differ, with both answers.
fn differences(ours: &[(String, String)], recorded: &str) -> Vec<String> {
    let mut rest = recorded;
    let mut differing = Vec::new();
    for (line, answer) in ours {
        let after = rest.strip_prefix(&format!("{line}\n")).expect("the record has the same lines");
        let end = after.find("\n[").map_or(0, |at| at + 1);
        let end = if after.starts_with('[') { 0 } else { end };
        let code = after[end..].find('\n').expect("a code") + end + 1;
        let (theirs, next) = after.split_at(code);
        rest = next;
        if theirs != answer && !DIFFERENCES.iter().any(|(known, _)| known == line) {
            differing.push(format!("{line}\nkubectl:\n{theirs}orchctl:\n{answer}"));
        }
    }
    differing
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_answer_as_kubectl_does() {
    let ours = answers(env!("CARGO_BIN_EXE_orchctl")).await;
    let differing = differences(&ours, ANSWERS);
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

#[test]
fn the_page_of_differences_lists_those_of_changing_lines() {
    kubectl::check_page("Lines that change", SCRIPT, DIFFERENCES);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_record_is_what_kubectl_says() {
    let Some(program) = kubectl::find(CLIENT) else {
        println!("SKIPPED the_record_is_what_kubectl_says: {} is not here", CLIENT);
        return;
    };
    let theirs = transcript(&answers(&program).await);
    if std::env::var_os("ORCH_RECORD").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/changes/answers.txt");
        std::fs::write(path, theirs).expect("written");
        return;
    }
    assert_eq!(theirs, ANSWERS);
}
