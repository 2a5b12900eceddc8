//! Transcripts: shell commands with their output, to be run again and compared.
//!
//! A line `$ command` is an action; the following lines with two leading blanks are its output, and `  [N]` is its exit code if that is not 0. `@ command` is
//! run and not compared (preparation and waiting). Lines that begin with `#` belong to the next action. [`normalize`] replaces on both sides what differs
//! between runs (addresses, ages, ids, generated names).

use std::path::Path;
use std::process::Stdio;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use regex::{Captures, Regex};
use tokio::process::Command;

/// How long one command may run. `--timeout` of a command in a transcript has to be less.
const COMMAND_MAX: Duration = Duration::from_secs(180);

/// One line to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Action {
    /// Comment lines above it, without the sign.
    pub remarks: Vec<String>,
    /// What bash is given.
    pub command: String,
    /// Whether the answer counts, or the command only prepares.
    pub is_compared: bool,
    /// What it is expected to print, in lines, the exit code as the last.
    pub answer: Vec<String>,
}

impl Action {
    /// Whether the answer ends with an exit code, which is not 0.
    pub fn has_failed(&self) -> bool {
        self.answer.last().is_some_and(|line| line.starts_with('[') && line.ends_with(']'))
    }
}

/// Reads a transcript. An error names the line that is none of the four kinds.
pub fn parse(text: &str) -> Result<Vec<Action>> {
    let mut actions: Vec<Action> = Vec::new();
    let mut remarks = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if let Some(remark) = line.strip_prefix('#') {
            remarks.push(remark.trim().to_owned());
        } else if let Some(printed) = line.strip_prefix("  ") {
            let action = actions.last_mut().filter(|action| action.is_compared);
            action
                .with_context(|| format!("line {}: an answer without an action", number + 1))?
                .answer
                .push(printed.to_owned());
        } else if let Some((sign @ ("$" | "@"), command)) = line.split_once(' ') {
            let (remarks, is_compared) = (std::mem::take(&mut remarks), sign == "$");
            let command = command.to_owned();
            actions.push(Action { remarks, command, is_compared, answer: Vec::new() });
        } else if !line.is_empty() {
            bail!("line {}: neither action, answer nor remark: {line:?}", number + 1);
        }
    }
    Ok(actions)
}

/// Writes a transcript that [`parse`] reads.
pub fn print(actions: &[Action]) -> String {
    let mut text = String::new();
    for action in actions {
        for remark in &action.remarks {
            text.push_str(format!("# {remark}").trim_end());
            text.push('\n');
        }
        text.push_str(if action.is_compared { "$ " } else { "@ " });
        text.push_str(&action.command);
        text.push('\n');
        for line in &action.answer {
            text.push_str(&format!("  {line}\n"));
        }
    }
    text
}

/// Where commands run.
#[derive(Debug)]
pub struct Shell<'a> {
    /// Their working directory.
    pub dir: &'a Path,
    /// Environment variables that replace the shell's own.
    pub env: Vec<(String, String)>,
}

impl Shell<'_> {
    /// Runs the command in bash, standard error among the output. Gives what it printed, normalized, with its exit code. An error if it runs
    /// for longer than three minutes.
    pub async fn answer(&self, action: &Action) -> Result<Vec<String>> {
        let mut bash = Command::new("bash");
        bash.args(["-c", &format!("exec 2>&1\n{}", action.command)]).current_dir(self.dir);
        bash.envs(self.env.iter().map(|(name, value)| (name, value)));
        bash.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let ended = tokio::time::timeout(COMMAND_MAX, bash.output()).await;
        let ended = ended.with_context(|| format!("{} does not end", action.command))??;
        let text = String::from_utf8_lossy(&ended.stdout);
        let mut lines: Vec<String> = text.lines().map(normalize).collect();
        if !ended.status.success() {
            lines.push(match ended.status.code() {
                Some(code) => format!("[{code}]"),
                None => format!("[{}]", ended.status),
            });
        }
        Ok(lines)
    }
}

/// One thing that differs between runs, and what stands for it.
struct Rule {
    pattern: Regex,
    stands_for: &'static str,
}

/// The letters of names that Kubernetes generates: no vowels, no digits that look like them.
const GENERATED: &str = "[bcdfghjklmnpqrstvwxz2456789]";

static RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| {
    let rule = |pattern: &str, stands_for| {
        let pattern = Regex::new(pattern).ok()?;
        Some(Rule { pattern, stands_for })
    };
    let rules = [
        rule(r"\x1b\[[0-9;]*m", ""),
        rule(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME"),
        rule(r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [+-]\d{4}", "TIME"),
        rule(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UID"),
        rule(r"(containerd://|sha256:)[0-9a-f]{64}", "${1}ID"),
        rule(r"\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b", "IP"),
        rule(&format!(r"-{GENERATED}{{8,10}}-{GENERATED}{{5}}\b"), "-HASH-SUFFIX"),
        rule(&format!(r"-{GENERATED}{{8,10}}\b"), "-HASH"),
        rule(&format!(r"=({GENERATED}{{8,10}})\b"), "=HASH"),
        rule(&format!(r"(kube-api-access|default-token)-{GENERATED}{{5}}\b"), "TOKEN-VOLUME"),
        rule(r"\b(\d+d)?(\d+h)?(\d+m)?\d+(s|m|h|d)\b", "AGE"),
        rule(r#"(resourceVersion"?: )"\d+""#, r#"${1}"NUMBER""#),
        rule(r":3[0-2]\d{3}/", ":NODEPORT/"),
        rule(r"\b(node-1|n1)\b", "NODE"),
        rule(r"/tmp/(LIVE|MERGED)-\d+/", "${1}/"),
    ];
    rules.into_iter().flatten().collect()
});

static GAPS: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"(\S) {2,}").ok());

/// The line with everything replaced that differs between two runs: ids, addresses, times, ages, generated names, the width of columns.
pub fn normalize(line: &str) -> String {
    let mut line = line.replace('\t', "  ").trim_end().to_owned();
    for rule in RULES.iter() {
        line = rule.pattern.replace_all(&line, rule.stands_for).into_owned();
    }
    let Some(gaps) = GAPS.as_ref() else { return line };
    gaps.replace_all(&line, |found: &Captures<'_>| format!("{}  ", &found[1])).into_owned()
}

/// How an answer compares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As the reference says.
    Equal,
    /// As the list of explained differences says.
    Explained,
    /// As the reference says, though a difference is listed.
    Stale,
    /// Neither.
    Different,
}

/// Compares an answer with the reference and, if there is one, with the explained difference.
pub fn compare(reference: &Action, explained: Option<&Action>, answer: &[String]) -> Verdict {
    match (reference.answer == answer, explained) {
        (true, None) => Verdict::Equal,
        (true, Some(_)) => Verdict::Stale,
        (false, Some(explained)) if explained.answer == answer => Verdict::Explained,
        (false, _) => Verdict::Different,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transcript_is_read_as_it_is_written() {
        let text = "# first\n$ true\n$ false\n  said\n  [1]\n@ sleep 1\n";
        let actions = parse(text).unwrap();
        assert_eq!(actions.len(), 3);
        assert_eq!(actions[0].remarks, ["first"]);
        assert_eq!(actions[1].answer, ["said", "[1]"]);
        assert_eq!(print(&actions), text);
        for bad in ["  answer\n", "@ a\n  answer\n", "words\n"] {
            parse(bad).unwrap_err();
        }
    }

    #[test]
    fn values_that_differ_between_runs_are_replaced() {
        for (line, expected) in [
            ("web   1/1   Running   0   2m3s  10.244.0.7", "web  1/1  Running  0  AGE  IP"),
            ("pod/api-5d4f8c7b9d-x2k4z created", "pod/api-HASH-SUFFIX created"),
            ("uid: 0b0a3b1e-6a0e-4d3c-9a54-0a0a0a0a0a0a", "uid: UID"),
            ("  resourceVersion: \"17\"", "  resourceVersion: \"NUMBER\""),
            ("80:30123/TCP", "80:NODEPORT/TCP"),
            ("node/node-1 cordoned", "node/NODE cordoned"),
            ("configmap/settings unchanged", "configmap/settings unchanged"),
        ] {
            assert_eq!(normalize(line), expected);
        }
        assert_eq!(RULES.len(), 15);
    }

    #[tokio::test]
    async fn commands_answer_with_output_and_code() {
        let command = "echo $A; echo c >&2; exit 3".to_owned();
        let action = Action { command, ..Action::default() };
        let shell = Shell { dir: Path::new("/"), env: vec![("A".into(), "b".into())] };
        let answer = shell.answer(&action).await.unwrap();
        assert_eq!(answer, ["b", "c", "[3]"]);
    }

    #[test]
    fn a_difference_is_explained_stale_or_none() {
        let said = |line: &str| Action { answer: vec![line.to_owned()], ..Action::default() };
        let (theirs, ours) = (said("a"), said("b"));
        let answer = |line: &str| vec![line.to_owned()];
        assert_eq!(compare(&theirs, None, &answer("a")), Verdict::Equal);
        assert_eq!(compare(&theirs, Some(&ours), &answer("b")), Verdict::Explained);
        assert_eq!(compare(&theirs, Some(&ours), &answer("a")), Verdict::Stale);
        assert_eq!(compare(&theirs, Some(&ours), &answer("c")), Verdict::Different);
        assert_eq!(compare(&theirs, None, &answer("c")), Verdict::Different);
    }
}
