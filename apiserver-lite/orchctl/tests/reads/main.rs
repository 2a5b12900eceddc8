//! The reading commands beside kubectl: every line of a script runs with both programs against one API server, and must be answered alike.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

#[path = "../kubectl/mod.rs"]
mod kubectl;

use std::process::Command;

use orch_apiserver::Config;
use proto_api::names::{Names, Profile};
use proto_daemon::drain::Drain;
use regex::Regex;

/// The client whose words count.
const CLIENT: &str = "kubectl.1.27";
/// The lines of the script.
const SCRIPT: &str = include_str!("script.sh");
const OBJECTS: &str = include_str!("objects.yaml");

/// Lines that are answered otherwise on purpose, with the reason.
const DIFFERENCES: &[(&str, &str)] =
    &[("k config delete-context other", "the warning names the program")];

/// What both programs work on.
struct Workplace {
    directory: tempfile::TempDir,
    /// What differs from moment to moment, with what is compared instead.
    fleeting: Vec<(Regex, &'static str)>,
}

impl Workplace {
    fn new(kubeconfig: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("objects.yaml"), OBJECTS).expect("a file");
        for name in ["kubectl.conf", "orchctl.conf"] {
            std::fs::write(directory.path().join(name), kubeconfig).expect("a file");
        }
        let regex = |text: &str| Regex::new(text).expect("valid");
        let fleeting = vec![
            (regex(r"\b(\d+[smhd])+( +|$)"), "AGE "),
            (regex(r"\(x3 over [^)]*\) *"), ""),
            (regex(r"(kubectl|orchctl)\.conf"), "CONFIG"),
            (regex(r"kubectl(\.1\.27)? "), "orchctl "),
        ];
        Self { directory, fleeting }
    }

    /// Output, errors and exit code of a line, run by `program`.
    fn ask(&self, program: &str, config: &str, line: &str) -> String {
        let directory = self.directory.path();
        let shell = format!("k() {{ \"$PROGRAM\" --kubeconfig=\"$CONFIG\" \"$@\"; }}\n{line}");
        let output = Command::new("timeout")
            .args(["60", "sh", "-c", &shell])
            .env("PROGRAM", program)
            .env("CONFIG", directory.join(config))
            .env("DIR", directory)
            .env("HOME", directory)
            .env("TZ", "UTC")
            .output()
            .expect("a shell");
        let text = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            let lines = text.lines().map(|line| {
                self.fleeting.iter().fold(line.to_owned(), |line, (fleeting, instead)| {
                    fleeting.replace_all(&line, *instead).into_owned()
                })
            });
            lines.map(|line| line + "\n").collect::<String>()
        };
        let code = output.status.code().unwrap_or(-1);
        format!("{}{}[{code}]\n", text(&output.stdout), text(&output.stderr))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_are_answered_as_kubectl_answers_them() {
    let Some(kubectl) = kubectl::find(CLIENT) else {
        println!("SKIPPED lines_are_answered_as_kubectl_answers_them: {} is not here", CLIENT);
        return;
    };
    let bound = orch_apiserver::build(Config::for_tests(Names::new(Profile::Kubernetes)));
    let bound = bound.await.expect("a server");
    let workplace = Workplace::new(bound.kubeconfig());
    let drain = Drain::default();
    let running = tokio::spawn(bound.run(drain.watch()));
    let compared = tokio::task::spawn_blocking(move || compare(&workplace, &kubectl));
    let (equal, differing) = compared.await.expect("a thread");
    drain.drain(std::time::Duration::from_secs(5)).await;
    running.await.expect("the server has ended");
    assert!(differing.is_empty(), "{}", differing.join("\n"));
    assert!(equal > 80, "the script is shorter than it was: {equal}");
}

/// How many lines are answered alike, and the others with both answers.
fn compare(workplace: &Workplace, kubectl: &str) -> (usize, Vec<String>) {
    let orchctl = env!("CARGO_BIN_EXE_orchctl");
    let (mut equal, mut differing) = (0, Vec::new());
    for line in SCRIPT.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(preparation) = line.strip_prefix(": ") {
            let answer = workplace.ask(orchctl, "orchctl.conf", preparation);
            assert!(answer.ends_with("[0]\n"), "{line}\n{answer}");
            continue;
        }
        let theirs = workplace.ask(kubectl, "kubectl.conf", line);
        let ours = workplace.ask(orchctl, "orchctl.conf", line);
        if theirs == ours || DIFFERENCES.iter().any(|(known, _)| *known == line) {
            equal += 1;
        } else {
            differing.push(format!("$ {line}\nkubectl:\n{theirs}orchctl:\n{ours}"));
        }
    }
    (equal, differing)
}
