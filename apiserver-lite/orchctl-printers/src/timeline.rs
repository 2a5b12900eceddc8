//! The start of a pod as moments in the order of time, and as a trace that Perfetto and Chrome show.
//!
//! Most times of the API are whole seconds. What the pod's node did is known to the millisecond ([`NodeStep`]), and with it when its containers started.

mod node_steps;
mod trace;

use proto_api::MicroTime;
use serde_json::Value;

use crate::columns::{ColumnWidths, Row};
use crate::objects;

pub use node_steps::{NodeStep, read as read_node_steps};
pub use trace::trace;

/// Microseconds of a second.
const SECOND: i64 = 1_000_000;
/// Most moments.
const MOMENTS_MAX: usize = 2000;
/// Conditions of pods, with their place among the moments of the same second.
const CONDITIONS: [(&str, usize); 4] =
    [("PodScheduled", 1), ("Initialized", 20), ("ContainersReady", 40), ("Ready", LAST_CONDITION)];
const LAST_CONDITION: usize = 41;

/// Something that happened at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Microseconds since 1970.
    pub at: i64,
    /// Whether the time has a fraction of a second.
    pub is_precise: bool,
    /// Of moments at the same time, which comes first at a start.
    order: usize,
    /// What it happened to: empty for the pod, else a container.
    pub subject: String,
    /// The container's name.
    container: String,
    /// What happened.
    pub what: String,
}

/// What is known of the start of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodHistory {
    pub pod: Value,
    pub events: Vec<Value>,
    /// What its node did; not set if that is not known: all but some times are whole seconds then.
    pub steps: Option<Vec<NodeStep>>,
}

/// The moments of a pod: of its object, its events and its node.
pub fn moments(history: &PodHistory) -> Vec<Moment> {
    let mut found = of_object(&history.pod);
    found.extend(history.events.iter().filter_map(of_event));
    let steps = history.steps.as_deref().unwrap_or_default();
    for moment in found.iter_mut().filter(|moment| !moment.is_precise) {
        if let Some(at) = precise_time(moment.at, &moment.container, &moment.what, steps) {
            (moment.at, moment.is_precise) = (at, true);
        }
    }
    found.extend(steps.iter().map(of_step));
    sort(&mut found);
    found.truncate(MOMENTS_MAX);
    found
}

/// By time. A moment of which only the second is known stands behind those of this second that come before it at a start.
fn sort(moments: &mut [Moment]) {
    let precise: Vec<(i64, usize)> = moments
        .iter()
        .filter(|moment| moment.is_precise)
        .map(|moment| (moment.at, moment.order))
        .collect();
    moments.sort_by_cached_key(|moment| {
        let (second, order) = (moment.at.div_euclid(SECOND), moment.order);
        let before = |(at, other): &&(i64, usize)| {
            !moment.is_precise && at.div_euclid(SECOND) == second && *other < order
        };
        let place = precise.iter().filter(before).map(|(at, _)| *at).max();
        (place.unwrap_or(moment.at), order)
    });
}

/// The time of a step of the node that a moment of whole seconds shows, too.
fn precise_time(at: i64, container: &str, what: &str, steps: &[NodeStep]) -> Option<i64> {
    let word = what.split(':').next().unwrap_or_default();
    let (action, is_end) = match word {
        "Pulling" => ("PullImage", false),
        "Pulled" => ("PullImage", true),
        "Created" => ("CreateContainer", true),
        "Started" | "started" | "started before" => ("StartContainer", true),
        _ => return None,
    };
    let is_it = |step: &&NodeStep| {
        step.action == action && step.container == container && (step.failure.is_empty() || !is_end)
    };
    let times = steps.iter().filter(is_it).map(|step| match is_end {
        true => step.ended(),
        false => step.began,
    });
    // The one is written down a moment after the other.
    let mut near = times
        .filter(|time| (0..SECOND * 2).contains(&at.saturating_add(SECOND).saturating_sub(*time)));
    near.next_back()
}

fn of_step(step: &NodeStep) -> Moment {
    let order = match step.action.as_str() {
        "WaitForPredecessor" | "Admit" => 4,
        "MountVolumes" => 5,
        "CreateSandbox" => 6,
        "InspectImage" | "PullImage" => 9,
        "CreateContainer" => 11,
        _ => 14,
    };
    let (at, container) = (step.began, step.container.clone());
    let subject = match container.as_str() {
        "" => "node".to_owned(),
        name => format!("node, container {name}"),
    };
    Moment { at, is_precise: true, order, subject, container, what: step.text() }
}

/// The moments that the pod itself shows.
fn of_object(pod: &Value) -> Vec<Moment> {
    let mut found = Vec::new();
    let mut add = |order: usize, time: &str, (title, container): (&str, &str), what: String| {
        let subject = if container.is_empty() { "" } else { &format!("{title} {container}") };
        found.extend(read_time(time).map(|(at, is_precise)| Moment {
            at,
            is_precise,
            order,
            subject: subject.to_owned(),
            container: container.to_owned(),
            what,
        }));
    };
    let of_pod = ("", "");
    let created = objects::text_at(pod, "/metadata/creationTimestamp");
    add(0, created, of_pod, "created".to_owned());
    add(3, objects::text_at(pod, "/status/startTime"), of_pod, "taken up by its node".to_owned());
    let deleted = objects::text_at(pod, "/metadata/deletionTimestamp");
    add(99, deleted, of_pod, "has to be gone".to_owned());
    for one in objects::list_at(pod, "/status/conditions") {
        let text = |pointer: &str| objects::text_at(one, pointer);
        let known = CONDITIONS.iter().find(|(kind, _)| *kind == text("/type"));
        let order = known.map_or(LAST_CONDITION, |(_, order)| *order);
        let reason = Some(text("/reason")).filter(|reason| !reason.is_empty());
        let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
        let what = match text("/status") {
            "True" => text("/type").to_owned(),
            status => format!("{} {status}{reason}", text("/type")),
        };
        add(order, text("/lastTransitionTime"), of_pod, what);
    }
    for (list, started, title) in
        [("initContainerStatuses", 15, "init container"), ("containerStatuses", 30, "container")]
    {
        for status in objects::list_at(pod, &format!("/status/{list}")) {
            let subject = (title, objects::text_at(status, "/name"));
            for (state, word) in [("lastState", "started before"), ("state", "started")] {
                let terminated = status.pointer(&format!("/{state}/terminated"));
                let running = status.pointer(&format!("/{state}/running"));
                let any = terminated.or(running).unwrap_or(&Value::Null);
                add(started, objects::text_at(any, "/startedAt"), subject, word.to_owned());
                if let Some(ended) = terminated {
                    let code = ended.get("exitCode").and_then(Value::as_i64).unwrap_or_default();
                    let what = format!("ended with exit code {code}");
                    add(started + 1, objects::text_at(ended, "/finishedAt"), subject, what);
                }
            }
        }
    }
    found
}

/// The first time that something happened, with how often it did.
fn of_event(event: &Value) -> Option<Moment> {
    let text = |pointer: &str| objects::text_at(event, pointer);
    let times = ["/eventTime", "/firstTimestamp", "/metadata/creationTimestamp"];
    let (at, is_precise) = times.into_iter().find_map(|pointer| read_time(text(pointer)))?;
    let count = event.pointer("/series/count").or_else(|| event.get("count"));
    let count = count.and_then(Value::as_i64).filter(|count| *count > 1);
    let count = count.map(|count| format!(" (x{count})")).unwrap_or_default();
    let order = match text("/reason") {
        "Scheduled" => 2,
        "Pulling" => 10,
        "Pulled" => 11,
        "Created" => 12,
        "Started" => 31,
        _ => 32,
    };
    let container = container_of(event).unwrap_or_default().to_owned();
    let subject =
        if container.is_empty() { String::new() } else { format!("container {container}") };
    let what = format!("{}: {}{count}", text("/reason"), text("/message").trim());
    Some(Moment { at, is_precise, order, subject, container, what })
}

/// The container that an event is about, of `spec.containers{name}`.
fn container_of(event: &Value) -> Option<&str> {
    let path = objects::text_at(event, "/involvedObject/fieldPath");
    path.split_once('{').map(|(_, rest)| rest.trim_end_matches('}'))
}

fn read_time(text: &str) -> Option<(i64, bool)> {
    let micros = text.parse::<MicroTime>().ok()?.unix_micros()?;
    Some((micros, text.contains('.')))
}

/// The moments as a table, with the time since the first and since the one before.
pub fn render(moments: &[Moment]) -> String {
    let mut rows: Vec<Row> = vec![["TIME", "AFTER", "STEP", "WHAT"].map(str::to_owned).to_vec()];
    let mut before: Option<&Moment> = None;
    for moment in moments {
        let first = moments.first().unwrap_or(moment);
        let step = before.map(|before| between(before, moment)).unwrap_or_default();
        let what = match moment.subject.as_str() {
            "" => moment.what.clone(),
            subject => format!("{subject}: {}", moment.what),
        };
        let what = what.split_whitespace().collect::<Vec<_>>().join(" ");
        rows.push(vec![clock(moment), between(first, moment), step, what]);
        before = Some(moment);
    }
    ColumnWidths::default().render(&rows)
}

/// `06:30:46` or `06:30:46.250`, UTC.
fn clock(moment: &Moment) -> String {
    let seconds = moment.at.div_euclid(SECOND);
    let plain = proto_api::Time::from_unix(seconds).to_string();
    let time = plain.split_once('T').map_or("", |(_, time)| time.trim_end_matches('Z'));
    match moment.is_precise {
        true => format!("{time}.{:03}", moment.at.rem_euclid(SECOND) / 1000),
        false => time.to_owned(),
    }
}

/// Seconds from one moment to a later one, with milliseconds if one of them has some.
fn between(from: &Moment, to: &Moment) -> String {
    let micros = to.at.saturating_sub(from.at);
    if micros < 0 {
        return "<1s".to_owned();
    }
    let (seconds, millis) = (micros / SECOND, micros % SECOND / 1000);
    match from.is_precise || to.is_precise {
        true => format!("{seconds}.{millis:03}s"),
        false => format!("{seconds}s"),
    }
}

#[cfg(test)]
mod tests;
