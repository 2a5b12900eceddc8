//! The start of a pod as Chrome's trace JSON: spans of the pod, of image pulls, of containers and of what its node did, and events as instants.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Moment, NodeStep, PodHistory, container_of, moments, precise_time, read_time};
use crate::{objects, state};

/// The track of the pod itself.
const POD_TRACK: usize = 1;
/// The process of what the API shows, and that of what the node did.
const API: usize = 1;
const NODE: usize = 2;

/// Spans of the pod: what each is called, and the conditions at whose change it begins and ends.
const PHASES: [(&str, &str, &str); 4] = [
    ("scheduling", "", "PodScheduled"),
    ("volumes, sandbox and init containers", "PodScheduled", "Initialized"),
    ("containers", "Initialized", "ContainersReady"),
    ("readiness", "ContainersReady", "Ready"),
];

/// The trace of a pod. Times are microseconds since its creation; containers that run do so until `now` (microseconds since 1970).
pub fn trace(history: &PodHistory, now: i64) -> Value {
    let pod = &history.pod;
    let steps = history.steps.as_deref().unwrap_or_default();
    let all = moments(history);
    let zero = all.first().map_or(0, |moment| moment.at);
    let mut tracing = Tracing { zero, entries: Vec::new(), tracks: BTreeMap::new() };
    let title = format!("pod {}/{}", objects::namespace(pod), objects::name(pod));
    tracing.name_process(API, &title);
    tracing.name_track(API, POD_TRACK, "pod");
    tracing.add_phases(pod);
    for (list, title) in
        [("initContainerStatuses", "init container"), ("containerStatuses", "container")]
    {
        for status in objects::list_at(pod, &format!("/status/{list}")) {
            tracing.add_container(status, title, steps, now);
        }
    }
    if !steps.iter().any(|step| step.action == "PullImage") {
        tracing.add_pulls(&history.events);
    }
    if !steps.is_empty() {
        let node = objects::text_at(pod, "/spec/nodeName");
        tracing.name_process(NODE, &format!("node {node}"));
        tracing.name_track(NODE, POD_TRACK, "pod");
    }
    for step in steps {
        let track = tracing.track(&step.container);
        if track != POD_TRACK {
            tracing.name_track(NODE, track, &step.container);
        }
        tracing.add_span((NODE, track), &step.text(), step.began, step.ended());
    }
    for moment in all.iter().filter(|moment| !is_of_node(moment)) {
        tracing.add_instant(moment);
    }
    json!({"displayTimeUnit": "ms", "traceEvents": tracing.entries})
}

/// Steps of the node are spans of their own.
fn is_of_node(moment: &Moment) -> bool {
    moment.subject.starts_with("node")
}

struct Tracing {
    /// The time that counts as 0.
    zero: i64,
    entries: Vec<Value>,
    /// Tracks by the name of the container.
    tracks: BTreeMap<String, usize>,
}

impl Tracing {
    fn name_process(&mut self, process: usize, name: &str) {
        self.entries.push(
            json!({"name": "process_name", "ph": "M", "pid": process, "args": {"name": name}}),
        );
    }

    /// Names a track, once.
    fn name_track(&mut self, process: usize, track: usize, name: &str) {
        let entry = json!({"name": "thread_name", "ph": "M", "pid": process, "tid": track, "args": {"name": name}});
        if !self.entries.contains(&entry) {
            self.entries.push(entry);
        }
    }

    fn track(&mut self, container: &str) -> usize {
        if container.is_empty() {
            return POD_TRACK;
        }
        if let Some(track) = self.tracks.get(container) {
            return *track;
        }
        let track = POD_TRACK.saturating_add(self.tracks.len()).saturating_add(1);
        self.tracks.insert(container.to_owned(), track);
        self.name_track(API, track, container);
        track
    }

    fn add_span(&mut self, (process, track): (usize, usize), name: &str, from: i64, to: i64) {
        let (ts, dur) = (from.saturating_sub(self.zero), to.saturating_sub(from).max(0));
        self.entries.push(
            json!({"name": name, "ph": "X", "pid": process, "tid": track, "ts": ts, "dur": dur}),
        );
    }

    fn add_phases(&mut self, pod: &Value) {
        let changed = |kind: &str| {
            let condition = state::condition(pod, kind)?;
            let is_true = objects::text_at(condition, "/status") == "True";
            let time = read_time(objects::text_at(condition, "/lastTransitionTime"));
            time.filter(|_| is_true).map(|(at, _)| at)
        };
        let created = read_time(objects::text_at(pod, "/metadata/creationTimestamp"));
        for (name, from, to) in PHASES {
            let from = if from.is_empty() { created.map(|(at, _)| at) } else { changed(from) };
            if let (Some(from), Some(to)) = (from, changed(to)) {
                self.add_span((API, POD_TRACK), name, from, to);
            }
        }
    }

    fn add_container(&mut self, status: &Value, title: &str, steps: &[NodeStep], now: i64) {
        let container = objects::text_at(status, "/name");
        let track = self.track(container);
        for state in ["/lastState", "/state"] {
            let time = |part: &str| {
                let text = objects::text_at(status, &format!("{state}/{part}"));
                let (at, is_precise) = read_time(text)?;
                let refined =
                    Some("started").filter(|_| part.ends_with("startedAt") && !is_precise);
                let refined = refined.and_then(|what| precise_time(at, container, what, steps));
                Some(refined.unwrap_or(at))
            };
            let name = format!("{title} {container}");
            if let Some(from) = time("running/startedAt") {
                self.add_span((API, track), &name, from, now);
            } else if let (Some(from), Some(to)) =
                (time("terminated/startedAt"), time("terminated/finishedAt"))
            {
                self.add_span((API, track), &name, from, to);
            }
        }
    }

    /// A pull ends at its event and took as long as that says.
    fn add_pulls(&mut self, events: &[Value]) {
        for event in events {
            let message = objects::text_at(event, "/message");
            let ended = read_time(objects::text_at(event, "/eventTime"))
                .or_else(|| read_time(objects::text_at(event, "/firstTimestamp")));
            if objects::text_at(event, "/reason") == "Pulled"
                && let Some((to, _)) = ended
                && let Some(took) = pull_time(message)
            {
                let track = self.track(container_of(event).unwrap_or_default());
                self.add_span((API, track), "image pull", to.saturating_sub(took), to);
            }
        }
    }

    fn add_instant(&mut self, moment: &Moment) {
        let (track, ts) = (self.track(&moment.container), moment.at.saturating_sub(self.zero));
        self.entries.push(
            json!({"name": moment.what, "ph": "i", "s": "t", "pid": API, "tid": track, "ts": ts}),
        );
    }
}

/// Microseconds of `Successfully pulled image "x" in 1.5s (2s including waiting)`.
fn pull_time(message: &str) -> Option<i64> {
    let (_, rest) = message.strip_prefix("Successfully pulled image ")?.split_once(" in ")?;
    let word = rest.split_whitespace().next()?;
    let took = proto_api::duration::parse(word.trim_end_matches('.')).ok()?;
    i64::try_from(took.as_micros()).ok()
}
