//! Requirements on a cluster under attack: programs run on within their memory limits, a canary is served, and no file of the node's root is exposed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use cluster::demo::http_get;
use cluster::processes::ProcessIdentity;
use cluster::programs::programs;
use cluster::spec::Spec;
use cluster::supervisor;
use proto_api::core::v1::Pod;
use proto_client::request;
use tokio::time::{Instant, sleep, timeout};

use crate::{NAMESPACE, Target};

/// Memory that a program may have at any moment, in kB of its resident set. What it needs for the largest requests at once.
const PEAK_KB_MAX: u64 = 700 << 10;
/// Memory that a program may have once the attack has ended and its objects are gone.
const REST_KB_MAX: u64 = 400 << 10;
/// Longest time without an answer of the canary, or of the API server.
const SILENCE_MAX: Duration = Duration::from_secs(10 * SLOWNESS);
/// Longest time of an answer that a node has to make: on two cores a busy runtime takes seconds for a new process.
const ANSWER_MAX: Duration = Duration::from_secs(15 * SLOWNESS);
/// Programs with debug assertions take several times as long for what they parse.
pub const SLOWNESS: u64 = if cfg!(debug_assertions) { 3 } else { 1 };
/// How long the cluster rests after the attack before it is looked at.
const REST: Duration = Duration::from_secs(15);
/// Longest time after that until it is as it has to be at rest.
const RECOVERY_MAX: Duration = Duration::from_secs(15 * SLOWNESS);
/// How many looks in turn, [`PACE`] apart, have to find all of it right.
const LOOKS: u32 = 15;
/// Between two questions.
const PACE: Duration = Duration::from_millis(200);
/// As in the demo's manifests.
const NODE_PORT: u16 = 30080;
/// Findings that are kept; the first ones say most.
const FINDINGS_MAX: usize = 100;

/// Collects what was sent and what gave way.
pub struct Judge {
    /// Processes as they were before the attack, by program.
    before: BTreeMap<String, ProcessIdentity>,
    /// What stands in a file that only the node's root may read; no answer may hold it.
    pub marker: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Requests and connections by attack and answer.
    sent: BTreeMap<(&'static str, String), u64>,
    /// Most memory of each program, kB.
    peaks: BTreeMap<String, u64>,
    /// Longest time of each kind of answer that has a bound.
    slowest: BTreeMap<&'static str, Duration>,
    findings: Vec<String>,
}

impl Judge {
    /// Remembers which processes there are.
    pub fn start(spec: &Spec) -> Result<Self> {
        let mut before = BTreeMap::new();
        for program in programs(spec) {
            let handle = supervisor::find(spec, &program.name);
            let handle = handle.with_context(|| format!("{} does not run", program.name))?;
            before.insert(program.name, handle.identity);
        }
        let marker = format!("marker-{}-of-root", std::process::id());
        Ok(Self { before, marker, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one request of `attack` with its answer.
    pub fn count(&self, attack: &'static str, answer: impl Into<String>) {
        *self.state().sent.entry((attack, answer.into())).or_default() += 1;
    }

    /// Notes that something gave way.
    pub fn find(&self, what: String) {
        let mut state = self.state();
        if state.findings.len() < FINDINGS_MAX && !state.findings.contains(&what) {
            println!("FINDING: {what}");
            state.findings.push(what);
        }
    }

    /// The answer of a node, which has [`ANSWER_MAX`]; `None` is a finding.
    pub async fn within<T>(
        &self,
        what: &'static str,
        answer: impl Future<Output = T>,
    ) -> Option<T> {
        let start = Instant::now();
        let answer = timeout(ANSWER_MAX, answer).await.ok();
        let took = start.elapsed();
        let mut state = self.state();
        let slowest = state.slowest.entry(what).or_default();
        *slowest = took.max(*slowest);
        drop(state);
        if answer.is_none() {
            self.find(format!("{what}: no answer within {} s", ANSWER_MAX.as_secs()));
        }
        answer
    }

    /// Looks for the marker in what was answered.
    pub fn read(&self, attack: &str, bytes: &[u8]) {
        let marker = self.marker.as_bytes();
        if bytes.windows(marker.len()).any(|window| window == marker) {
            self.find(format!("{attack}: the answer shows a file of the node's root"));
        }
    }

    /// Compares the programs with those of the beginning, and looks at their memory; says what is wrong.
    fn look_at_programs(&self, kb_max: u64) -> Vec<String> {
        let mut wrong = Vec::new();
        for (name, identity) in &self.before {
            if !identity.is_running() {
                wrong.push(format!("{name} ended"));
                continue;
            }
            let kb = resident_kb(identity.pid);
            if kb > kb_max {
                wrong.push(format!("{name} needs over {} MB", kb_max >> 10));
            }
            let mut state = self.state();
            let peak = state.peaks.entry(name.clone()).or_default();
            *peak = kb.max(*peak);
        }
        wrong
    }

    /// Prints what was done; the number of findings.
    pub fn report(&self, seed: u64, seconds: u64) -> usize {
        let state = self.state();
        println!("\n| attack | answers |\n|---|---|");
        let mut attacks: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for ((attack, answer), count) in &state.sent {
            attacks.entry(attack).or_default().push(format!("{answer}: {count}"));
        }
        for (attack, answers) in attacks {
            println!("| {attack} | {} |", answers.join(", "));
        }
        let peaks = state.peaks.iter().map(|(name, kb)| format!("{name} {} MB", kb >> 10));
        println!("\nmost memory: {}", peaks.collect::<Vec<_>>().join(", "));
        let slowest = state.slowest.iter();
        let slowest = slowest.map(|(what, took)| format!("{what} {:.1} s", took.as_secs_f64()));
        println!("slowest answers: {}", slowest.collect::<Vec<_>>().join(", "));
        let all: u64 = state.sent.values().sum();
        println!("seed {seed}, {seconds} s, {all} attacks, {} findings", state.findings.len());
        state.findings.iter().for_each(|finding| println!("  {finding}"));
        state.findings.len()
    }
}

/// Resident set of a process in kB, see proc_pid_status(5); 0 of one that has just ended.
fn resident_kb(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.and_then(|line| line.split_ascii_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}

/// Asks the canary's Service, the API server and the node's health page until the attack ends.
pub async fn watch(target: Target) {
    let judge = &target.judge;
    let Some(node) = target.spec.node_list().into_iter().next() else { return };
    let canary = SocketAddr::from((node.address, NODE_PORT));
    let (mut served, mut answered) = (Instant::now(), Instant::now());
    while Instant::now() < target.until {
        judge.look_at_programs(PEAK_KB_MAX).into_iter().for_each(|what| judge.find(what));
        match timeout(Duration::from_secs(2), http_get(canary, "/")).await {
            Ok(Ok(_)) => served = Instant::now(),
            _ => judge.count("canary", "no answer"),
        }
        let asked = target.client.call(request::get("/api/v1/namespaces/demo/pods".into()));
        match timeout(Duration::from_secs(5), asked).await {
            Ok(Ok(_)) => answered = Instant::now(),
            _ => judge.count("list of the canary's pods", "no answer"),
        }
        if served.elapsed() > SILENCE_MAX {
            judge.find(format!("the canary's Service was silent for {} s", SILENCE_MAX.as_secs()));
            served = Instant::now();
        }
        if answered.elapsed() > SILENCE_MAX {
            judge.find(format!("the API server was silent for {} s", SILENCE_MAX.as_secs()));
            answered = Instant::now();
        }
        sleep(PACE).await;
    }
}

/// Looks once more when the attackers have stopped: everything runs, is small again, and the canary is Ready and was never restarted. On a busy machine the
/// end of the attackers' objects takes its time, so what is wrong may become right within [`RECOVERY_MAX`].
pub async fn at_rest(target: &Target) {
    let judge = &target.judge;
    let path = format!("/api/v1/namespaces/{NAMESPACE}");
    let _ = target.client.call(request::delete(path, &Default::default(), "{}".into())).await;
    sleep(REST).await;
    let end = Instant::now() + RECOVERY_MAX;
    let mut right = 0;
    let wrong = loop {
        let mut wrong = judge.look_at_programs(REST_KB_MAX);
        wrong.extend(look_at_canary(target).await);
        right = if wrong.is_empty() { right + 1 } else { 0 };
        if right == LOOKS || !wrong.is_empty() && Instant::now() >= end {
            break wrong;
        }
        sleep(PACE).await;
    };
    wrong.into_iter().for_each(|what| judge.find(what));
}

/// Says what is wrong with the canary's pods.
async fn look_at_canary(target: &Target) -> Vec<String> {
    let pods = match target.client.within::<Pod>("demo").list(&Default::default()).await {
        Ok(pods) => pods.items,
        Err(error) => return vec![format!("the canary cannot be listed: {error}")],
    };
    let mut wrong = Vec::new();
    for pod in pods {
        let restarts: i32 = pod.status.container_statuses.iter().map(|c| c.restart_count).sum();
        if restarts > 0 || !cluster::demo::is_pod_ready(&pod) {
            wrong.push(format!("canary {}: {restarts} restarts, or not Ready", pod.metadata.name));
        }
    }
    wrong
}

/// The last lines of every program's log.
pub fn print_logs(dir: &Path) {
    for entry in std::fs::read_dir(dir.join("logs")).into_iter().flatten().flatten() {
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let panics = lines.iter().filter(|line| line.contains("panic")).take(5);
        let last = lines.iter().rev().take(15).rev();
        println!("--- {}", entry.path().display());
        panics
            .chain(last)
            .for_each(|line| println!("{}", line.chars().take(400).collect::<String>()));
    }
}
