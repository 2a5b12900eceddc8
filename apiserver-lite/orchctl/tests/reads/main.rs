//! The reading commands beside kubectl: every line of a script runs against an API server, and must be answered as `answers.txt` says that kubectl answers
//! it, but for times, names and widths that differ from run to run. Where kubectl is installed, both programs run against one server and must be answered
//! alike to the letter; `ORCH_RECORD=1` writes the record again.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

#[path = "../kubectl/mod.rs"]
mod kubectl;

use std::process::Command;

use orch_apiserver::Config;
use orch_apiserver::config::FieldGate;
use proto_api::names::{Names, Profile};
use proto_daemon::drain::Drain;
use regex::Regex;

/// The client whose words count.
const CLIENT: &str = "kubectl.1.27";
/// The lines of the script.
const SCRIPT: &str = include_str!("script.sh");
/// What kubectl answers, as [`Workplace::lasting`] shows it.
const ANSWERS: &str = include_str!("answers.txt");
const OBJECTS: &str = include_str!("objects.yaml");

/// Lines that are answered otherwise on purpose, with the reason.
const DIFFERENCES: &[(&str, &str)] =
    &[("k config delete-context other", "the warning names the program")];

/// What both programs work on.
struct Workplace {
    directory: tempfile::TempDir,
    /// What differs from moment to moment, with what is compared instead.
    fleeting: Vec<(Regex, &'static str)>,
    /// What differs from server to server besides.
    of_server: Vec<(Regex, &'static str)>,
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
        let of_server = vec![
            (regex(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(Z| \+0000 UTC)"), "TIME"),
            (regex(r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d \+0000"), "TIME"),
            (regex(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "UID"),
            (regex(r#"(resourceVersion"?: "?)\d+"#), "${1}0"),
            (regex(r"kube-api-access-[a-z0-9]{5}"), "kube-api-access-SUFFIX"),
            (regex(r"127\.0\.0\.1:\d+"), "SERVER"),
            (regex(r"\b10\.(9[6-9]|10\d|11[01])\.\d+\.\d+\b"), "CLUSTER-IP"),
            (
                regex(r#"("(git\w+|buildDate|compiler|platform|goVersion|major|minor)": ")[^"]*"#),
                "$1",
            ),
            // Columns are as wide as what they hold.
            (regex(r"--+"), "--"),
            (regex(r"  +"), "  "),
            (regex(r" +$"), ""),
        ];
        Self { directory, fleeting, of_server }
    }

    /// The answer without what differs from server to server.
    fn lasting(&self, answer: &str) -> String {
        let directory = self.directory.path().display().to_string();
        let lines = answer.lines().map(|line| {
            let line = line.replace(&directory, "DIR");
            let line = self.of_server.iter().fold(line, |line, (fleeting, instead)| {
                fleeting.replace_all(&line, *instead).into_owned()
            });
            format!("  {line}\n")
        });
        lines.collect()
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

/// Starts a server, and has `work` use it from another thread.
async fn with_server<T: Send + 'static>(work: fn(&Workplace) -> T) -> T {
    // The objects have metrics of a container and a claim for one pod.
    let gates = [FieldGate::HpaContainerMetrics, FieldGate::ReadWriteOncePod];
    let mut config = Config::for_tests(Names::new(Profile::Kubernetes));
    config.field_gates = gates.into_iter().collect();
    let bound = orch_apiserver::build(config).await.expect("a server");
    let workplace = Workplace::new(bound.kubeconfig());
    let drain = Drain::default();
    let running = tokio::spawn(bound.run(drain.watch()));
    let done = tokio::task::spawn_blocking(move || work(&workplace)).await.expect("a thread");
    drain.drain(std::time::Duration::from_secs(5)).await;
    running.await.expect("the server has ended");
    done
}

const ORCHCTL: &str = env!("CARGO_BIN_EXE_orchctl");

/// Runs the lines of the script: those that prepare with orchctl, the others are given to `compare`.
fn run_script(workplace: &Workplace, mut compare: impl FnMut(&str)) {
    for line in SCRIPT.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(preparation) = line.strip_prefix(": ") {
            let answer = workplace.ask(ORCHCTL, "orchctl.conf", preparation);
            assert!(answer.ends_with("[0]\n"), "{line}\n{answer}");
        } else {
            compare(line);
        }
    }
}

fn is_known(line: &str) -> bool {
    DIFFERENCES.iter().any(|(known, _)| *known == line)
}

/// A line of the record with its answer.
fn entry(workplace: &Workplace, line: &str, answer: &str) -> String {
    format!("$ {line}\n{}", workplace.lasting(answer))
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_are_answered_as_kubectl_answered_them() {
    let differing = with_server(|workplace| {
        let mut differing = Vec::new();
        let mut rest = ANSWERS;
        run_script(workplace, |line| {
            let ours = entry(workplace, line, &workplace.ask(ORCHCTL, "orchctl.conf", line));
            let end =
                rest.get(2..).and_then(|rest| rest.find("\n$ ")).map_or(rest.len(), |at| at + 3);
            let (theirs, next) = rest.split_at(end);
            rest = next;
            assert!(theirs.starts_with(&format!("$ {line}\n")), "the record lacks {line}");
            if theirs != ours && !is_known(line) {
                differing.push(format!("recorded:\n{theirs}orchctl:\n{ours}"));
            }
        });
        differing
    });
    let differing = differing.await;
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_are_answered_as_kubectl_answers_them() {
    if kubectl::find(CLIENT).is_none() {
        println!("SKIPPED lines_are_answered_as_kubectl_answers_them: {} is not here", CLIENT);
        return;
    }
    let (differing, record) = with_server(|workplace| {
        let kubectl = kubectl::find(CLIENT).expect("found before");
        let (mut differing, mut record) = (Vec::new(), String::new());
        run_script(workplace, |line| {
            let theirs = workplace.ask(&kubectl, "kubectl.conf", line);
            let ours = workplace.ask(ORCHCTL, "orchctl.conf", line);
            record.push_str(&entry(workplace, line, &theirs));
            if theirs != ours && !is_known(line) {
                differing.push(format!("$ {line}\nkubectl:\n{theirs}orchctl:\n{ours}"));
            }
        });
        (differing, record)
    })
    .await;
    if std::env::var_os("ORCH_RECORD").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reads/answers.txt");
        std::fs::write(path, &record).expect("written");
    } else {
        assert_eq!(record, ANSWERS, "ORCH_RECORD=1 writes what kubectl answers now");
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

#[test]
fn the_page_of_differences_lists_those_of_reading_lines() {
    assert!(kubectl::compared_lines(SCRIPT).count() > 100, "the script is shorter than it was");
    kubectl::check_page("Lines that read", SCRIPT, DIFFERENCES);
}

/// What a shell is offered for the last of these words of a command line.
fn completions(workplace: &Workplace, words: &str) -> String {
    let config =
        format!("--kubeconfig={}", workplace.directory.path().join("orchctl.conf").display());
    let words: Vec<&str> = ["orchctl", &config].into_iter().chain(words.split(' ')).collect();
    let output = Command::new(ORCHCTL)
        .arg("--")
        .args(&words)
        .env("ORCHCTL_COMPLETE", "bash")
        .env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string())
        .env("_CLAP_IFS", " ")
        .output()
        .expect("the program");
    assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[tokio::test(flavor = "multi_thread")]
async fn shells_complete_commands_types_and_names() {
    with_server(|workplace| {
        for line in [
            "k create namespace shop",
            "k -n shop create configmap settings",
            "k -n shop create configmap secrets",
            "k create configmap other",
            "k create serviceaccount default",
            "k run one --image=a",
        ] {
            let answer = workplace.ask(ORCHCTL, "orchctl.conf", line);
            assert!(answer.ends_with("[0]\n"), "{line}\n{answer}");
        }
        for (words, expected) in [
            ("cordo", "cordon"),
            ("get --show-man", "--show-managed-fields"),
            ("get configm", "configmaps"),
            ("get -n sho", "shop"),
            ("get -n shop cm ", "secrets settings"),
            ("-n shop get cm settings ", "secrets"),
            ("describe --namespace=shop cm/se", "cm/secrets cm/settings"),
            ("get cm ", "other"),
            ("logs o", "one"),
            ("logs one -c ", "one"),
            ("config use-context none", ""),
            ("--server=http://127.0.0.1:1 get pods o", ""),
        ] {
            assert_eq!(completions(workplace, words), expected, "{words}");
        }
        let contexts = completions(workplace, "config use-context ");
        let file = std::fs::read_to_string(workplace.directory.path().join("orchctl.conf"));
        assert!(!contexts.is_empty() && file.expect("a file").contains(&contexts), "{contexts}");
    })
    .await;
}
