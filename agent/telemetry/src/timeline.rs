//! The recent steps of each pod with their duration and outcome, and why a pod is not ready, at
//! `/debug/pods/<namespace>/<name>`. Bounded: the first and last steps of a pod are kept, and
//! repeated steps are counted.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use proto_api::Time;
use proto_api::core::v1::{ContainerStatus, Pod, PodStatus};
use serde_json::{Value, json};

/// Steps kept from a pod's start ...
const FIRST_MAX: usize = 32;
/// ... and the last ones after them.
const LAST_MAX: usize = 32;
/// Deleted pods whose timelines are kept.
const GONE_MAX: usize = 64;
/// Pods with a timeline; further ones are not recorded.
const PODS_MAX: usize = 2048;
/// Longest text of a step.
const TEXT_MAX: usize = 512;

/// The timelines of all pods.
#[derive(Debug, Default)]
pub struct Timelines(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// By uid.
    pods: BTreeMap<String, Timeline>,
    /// Uids of deleted pods, oldest first.
    gone: VecDeque<String>,
}

/// The timeline of one pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    namespace: String,
    name: String,
    first: Vec<TimelineStep>,
    last: VecDeque<TimelineStep>,
    /// Number of dropped steps between the first and the last ones.
    left_out: u64,
}

/// An action of a pod: when it last started, how long it took and how often it ran.
#[derive(Clone, Debug, PartialEq)]
pub struct TimelineStep {
    /// The action, such as `CreateContainer { container: "c", attempt: 0 }`.
    pub what: String,
    /// When it last started.
    pub began: SystemTime,
    /// How long it last took.
    pub took: Duration,
    /// How it ended.
    pub outcome: Outcome,
    /// How often in a row it had this outcome.
    pub times: u32,
}

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Success.
    Done,
    /// Failure with its error.
    Failed(String),
}

impl Timeline {
    fn push(&mut self, step: TimelineStep) {
        let before = self.last.back_mut().or(self.first.last_mut());
        if let Some(before) = before
            && before.what == step.what
            && before.outcome == step.outcome
        {
            *before = TimelineStep { times: before.times.saturating_add(1), ..step };
            return;
        }
        if self.first.len() < FIRST_MAX {
            self.first.push(step);
            return;
        }
        if self.last.len() == LAST_MAX {
            self.last.pop_front();
            self.left_out += 1;
        }
        self.last.push_back(step);
    }

    fn steps(&self) -> impl Iterator<Item = &TimelineStep> {
        self.first.iter().chain(&self.last)
    }
}

impl Timelines {
    /// Records a step that ended now.
    pub fn step(&self, pod: &Pod, what: String, took: Duration, outcome: Outcome) {
        let meta = &pod.metadata;
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.pods.len() >= PODS_MAX && !state.pods.contains_key(&meta.uid) {
            return;
        }
        let timeline = state.pods.entry(meta.uid.clone()).or_insert_with(|| Timeline {
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            ..Timeline::default()
        });
        let now = SystemTime::now();
        let outcome = match outcome {
            Outcome::Failed(why) => Outcome::Failed(cut(why)),
            Outcome::Done => Outcome::Done,
        };
        let began = now.checked_sub(took).unwrap_or(now);
        timeline.push(TimelineStep { what: cut(what), began, took, outcome, times: 1 });
    }

    /// Marks a pod as deleted; its timeline is kept for a while.
    pub fn mark_deleted(&self, uid: &str) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.pods.contains_key(uid) {
            return;
        }
        state.gone.push_back(uid.to_owned());
        if state.gone.len() > GONE_MAX
            && let Some(oldest) = state.gone.pop_front()
        {
            state.pods.remove(&oldest);
        }
    }

    /// The error of the last step, if it failed.
    pub fn trouble(&self, uid: &str) -> Option<String> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = state.pods.get(uid)?.steps().last()?;
        match &last.outcome {
            Outcome::Failed(why) => Some(format!("{}: {why}", last.what)),
            Outcome::Done => None,
        }
    }

    /// Timelines of the present and deleted pods of that name with their uids, newest last.
    pub fn find_timelines(&self, namespace: &str, name: &str) -> Vec<(String, Timeline)> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |timeline: &Timeline| timeline.namespace == namespace && timeline.name == name;
        let found = state.pods.iter().filter(|(_, timeline)| is_it(timeline));
        let mut found: Vec<_> =
            found.map(|(uid, timeline)| (uid.clone(), timeline.clone())).collect();
        found.sort_by_key(|(_, timeline)| timeline.first.first().map(|step| step.began));
        found
    }
}

fn cut(mut text: String) -> String {
    if text.len() > TEXT_MAX {
        let end = (0..=TEXT_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Why a pod is not ready, one reason per line; empty if it is. Pure.
pub fn reasons(status: &PodStatus) -> Vec<String> {
    let mut reasons = Vec::new();
    if matches!(status.phase.as_str(), "Succeeded" | "Failed") {
        let why = [&status.reason, &status.message].map(String::as_str).join(" ");
        return vec![
            format!("the pod has terminated: {} {why}", status.phase).trim_end().to_owned(),
        ];
    }
    for condition in status.conditions.iter().filter(|condition| condition.status != "True") {
        let texts = [condition.reason.as_str(), condition.message.as_str()];
        reasons.push(
            format!("{} is {}: {}", condition.type_, condition.status, texts.join(" "))
                .trim_end()
                .to_owned(),
        );
    }
    let statuses = status.init_container_statuses.iter().chain(&status.container_statuses);
    reasons.extend(statuses.filter_map(of_container));
    reasons
}

fn of_container(status: &ContainerStatus) -> Option<String> {
    let name = &status.name;
    if let Some(waiting) = &status.state.waiting {
        return Some(
            format!("container {name} waits: {} {}", waiting.reason, waiting.message)
                .trim_end()
                .to_owned(),
        );
    }
    if let Some(ended) = &status.state.terminated {
        let fine = ended.exit_code == 0;
        let line = format!(
            "container {name} exited with {}: {} {}",
            ended.exit_code, ended.reason, ended.message
        );
        return (!fine).then(|| line.trim_end().to_owned());
    }
    let runs = status.state.running.is_some();
    (runs && !status.ready).then(|| format!("container {name} is running but not ready"))
}

/// Status and timeline of a pod as JSON.
pub fn json_of(pod: Option<&Pod>, timelines: &[(String, Timeline)]) -> Value {
    let step = |step: &TimelineStep| {
        let (outcome, why) = match &step.outcome {
            Outcome::Done => ("done", ""),
            Outcome::Failed(why) => ("failed", why.as_str()),
        };
        json!({"step": step.what, "began": time(step.began), "seconds": step.took.as_secs_f64(),
            "outcome": outcome, "why": why, "times": step.times})
    };
    let timelines: Vec<_> = timelines
        .iter()
        .map(|(uid, timeline)| {
            json!({"uid": uid, "leftOut": timeline.left_out, "steps": timeline.steps().map(step).collect::<Vec<_>>()})
        })
        .collect();
    let shown = pod.map(|pod| {
        json!({"uid": pod.metadata.uid, "phase": pod.status.phase, "notReadyBecause": reasons(&pod.status)})
    });
    json!({"pod": shown, "timelines": timelines})
}

/// Status and timeline of a pod as text.
pub fn text_of(pod: Option<&Pod>, timelines: &[(String, Timeline)]) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    match pod {
        None => out.push_str("the pod is deleted\n"),
        Some(pod) => {
            let _ = writeln!(out, "{}: uid {}", pod.status.phase, pod.metadata.uid);
            let reasons = reasons(&pod.status);
            if reasons.is_empty() {
                out.push_str("ready\n");
            }
            reasons.iter().for_each(|reason| {
                let _ = writeln!(out, "not ready: {reason}");
            });
        }
    }
    for (uid, timeline) in timelines {
        let _ = writeln!(out, "\nuid {uid}");
        for (at, step) in timeline.steps().enumerate() {
            if at == FIRST_MAX && timeline.left_out > 0 {
                let _ = writeln!(out, "... {} steps omitted", timeline.left_out);
            }
            let outcome = match &step.outcome {
                Outcome::Done => "done".to_owned(),
                Outcome::Failed(why) => format!("failed: {why}"),
            };
            let times =
                if step.times > 1 { format!(" ({} times)", step.times) } else { String::new() };
            let _ = writeln!(
                out,
                "{} {:>9.3} ms  {}{times}: {outcome}",
                time(step.began),
                step.took.as_secs_f64() * 1e3,
                step.what
            );
        }
    }
    out
}

fn time(at: SystemTime) -> String {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = Time::from_unix(i64::try_from(since.as_secs()).unwrap_or(0)).to_string();
    format!("{}.{:03}Z", seconds.trim_end_matches('Z'), since.subsec_millis())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proto_api::core::v1::{ContainerState, ContainerStateWaiting, PodCondition};

    use super::*;

    fn pod(uid: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.uid = uid.into();
        pod.metadata.namespace = "a".into();
        pod.metadata.name = "web".into();
        pod
    }

    #[test]
    fn steps_are_recorded_with_their_outcome() {
        let timelines = Timelines::default();
        let pod = pod("u1");
        timelines.step(&pod, "CreateSandbox".into(), Duration::from_millis(120), Outcome::Done);
        for _ in 0..3 {
            timelines.step(
                &pod,
                "PullImage".into(),
                Duration::from_millis(5),
                Outcome::Failed("no such host".into()),
            );
        }
        let found = timelines.find_timelines("a", "web");
        let text = text_of(Some(&pod), &found);
        assert!(text.contains("120.000 ms  CreateSandbox: done"), "{text}");
        assert!(text.contains("PullImage (3 times): failed: no such host"), "{text}");
        let shown = json_of(None, &found);
        assert_eq!(shown["timelines"][0]["steps"][1]["times"], 3);
        assert_eq!(shown["pod"], Value::Null);
        assert!(timelines.find_timelines("a", "other").is_empty());
    }

    #[test]
    fn a_bounded_number_of_deleted_pods_is_remembered() {
        let timelines = Timelines::default();
        for n in 0..GONE_MAX + 3 {
            let pod = pod(&n.to_string());
            timelines.step(&pod, "x".into(), Duration::ZERO, Outcome::Done);
            timelines.mark_deleted(&pod.metadata.uid);
        }
        timelines.mark_deleted("never heard of");
        let left = timelines.find_timelines("a", "web");
        assert_eq!(left.len(), GONE_MAX);
        assert!(!left.iter().any(|(uid, _)| uid == "0"));
    }

    #[test]
    fn why_a_pod_is_not_ready() {
        let mut status = PodStatus { phase: "Pending".into(), ..PodStatus::default() };
        status.conditions = vec![PodCondition {
            type_: "ContainersReady".into(),
            status: "False".into(),
            reason: "ContainersNotReady".into(),
            ..PodCondition::default()
        }];
        let waiting = ContainerStateWaiting {
            reason: "ImagePullBackOff".into(),
            message: "Back-off pulling image".into(),
        };
        let state = ContainerState { waiting: Some(waiting), ..ContainerState::default() };
        status.container_statuses =
            vec![ContainerStatus { name: "c".into(), state, ..ContainerStatus::default() }];
        assert_eq!(
            reasons(&status),
            [
                "ContainersReady is False: ContainersNotReady",
                "container c waits: ImagePullBackOff Back-off pulling image"
            ]
        );
        assert!(reasons(&PodStatus { phase: "Running".into(), ..PodStatus::default() }).is_empty());
    }

    proptest! {
        #[test]
        fn a_timeline_is_bounded_and_loses_no_count(steps in proptest::collection::vec(0_u8..4, 0..400)) {
            let mut timeline = Timeline::default();
            for step in &steps {
                timeline.push(TimelineStep { what: step.to_string(), began: SystemTime::UNIX_EPOCH, took: Duration::ZERO, outcome: Outcome::Done, times: 1 });
            }
            prop_assert!(timeline.steps().count() <= FIRST_MAX + LAST_MAX);
            let runs = steps.chunk_by(|a, b| a == b).count() as u64;
            prop_assert_eq!(timeline.steps().count() as u64 + timeline.left_out, runs);
            let newest = timeline.last.back().or(timeline.first.last()).map(|step| step.what.clone());
            prop_assert_eq!(newest, steps.last().map(u8::to_string));
        }
    }
}
