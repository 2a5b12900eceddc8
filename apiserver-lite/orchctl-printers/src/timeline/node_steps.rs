//! What the agent of a node did for a pod, to the millisecond, as its page `/debug/pods/NAMESPACE/NAME` says it.

use serde_json::Value;

use super::read_time;
use crate::objects;

/// Most steps of one pod.
const STEPS_MAX: usize = 1000;

/// An action for a pod, with its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStep {
    /// When it began: microseconds since 1970.
    pub began: i64,
    /// How long it took, in microseconds.
    pub took: i64,
    /// What was done, as `CreateContainer`.
    pub action: String,
    /// To which container; empty for the pod.
    pub container: String,
    /// What it was done with, as an image.
    pub detail: String,
    /// Why it failed; empty if it did not.
    pub failure: String,
    /// How often it ended so in a row.
    pub times: u64,
}

impl NodeStep {
    /// When it ended: microseconds since 1970.
    pub fn ended(&self) -> i64 {
        self.began.saturating_add(self.took)
    }

    /// The step in words.
    pub fn text(&self) -> String {
        let mut text = self.action.clone();
        if !self.detail.is_empty() {
            text = format!("{text} {}", self.detail);
        }
        let millis = self.took / 1000;
        text = format!("{text} took {}.{:03}s", millis / 1000, millis % 1000);
        if self.times > 1 {
            text = format!("{text} (x{}, the last time)", self.times);
        }
        if self.failure.is_empty() { text } else { format!("{text} and failed: {}", self.failure) }
    }
}

/// The steps for the pod with this UID; `None` if the page has none of it.
pub fn read(page: &Value, uid: &str) -> Option<Vec<NodeStep>> {
    let mut all = objects::list_at(page, "/timelines").iter();
    let own = all.find(|timeline| objects::text_at(timeline, "/uid") == uid)?;
    let steps = objects::list_at(own, "/steps").iter();
    Some(steps.filter_map(step).take(STEPS_MAX).collect())
}

fn step(step: &Value) -> Option<NodeStep> {
    let text = |pointer: &str| objects::text_at(step, pointer);
    let (began, _) = read_time(text("/began"))?;
    let seconds = step.get("seconds").and_then(Value::as_f64).unwrap_or_default();
    let took = std::time::Duration::try_from_secs_f64(seconds).unwrap_or_default();
    let what = text("/step");
    let action = what.split(['{', '(', ' ']).next().unwrap_or_default();
    let detail = quoted(what, "image").unwrap_or_default();
    let failure = match text("/outcome") {
        "failed" if text("/why").is_empty() => "no reason given",
        "failed" => text("/why"),
        _ => "",
    };
    Some(NodeStep {
        began,
        took: i64::try_from(took.as_micros()).unwrap_or(i64::MAX),
        action: action.to_owned(),
        container: quoted(what, "container").unwrap_or_default().to_owned(),
        detail: detail.to_owned(),
        failure: failure.to_owned(),
        times: step.get("times").and_then(Value::as_u64).unwrap_or(1),
    })
}

/// The text of `name: "text"`.
fn quoted<'a>(what: &'a str, name: &str) -> Option<&'a str> {
    let (before, rest) = what.split_once(&format!("{name}: \""))?;
    let (text, _) = rest.split_once('"')?;
    before.ends_with([' ', '{']).then_some(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn steps_are_read_from_the_page_of_a_node() {
        let page = json!({"timelines": [
            {"uid": "before", "steps": [{"step": "Admit", "began": "1970-01-01T00:00:01.000Z", "seconds": 0.0}]},
            {"uid": "u", "leftOut": 0, "steps": [
                {"step": "CreateContainer { container: \"c\", attempt: 0, sandbox_id: \"s\" }",
                    "began": "1970-01-01T00:00:10.250Z", "seconds": 0.0345, "outcome": "done", "why": "", "times": 1},
                {"step": "PullImage { image: \"a/b:1\", container: \"c\" }", "began": "1970-01-01T00:00:11.000Z",
                    "seconds": 1.5, "outcome": "failed", "why": "no such image", "times": 3},
                {"step": "Admit", "began": "never", "seconds": 1},
                {"step": "Admit", "began": "1970-01-01T00:00:12.000Z", "seconds": -1e300}]}]});
        let steps = read(&page, "u").expect("of this pod");
        let shown: Vec<String> = steps
            .iter()
            .map(|step| format!("{} {} [{}]", step.began, step.text(), step.container))
            .collect();
        assert_eq!(
            shown,
            [
                "10250000 CreateContainer took 0.034s [c]",
                "11000000 PullImage a/b:1 took 1.500s (x3, the last time) and failed: no such image [c]",
                "12000000 Admit took 0.000s []",
            ]
        );
        assert_eq!(read(&page, "other"), None);
        assert_eq!(read(&json!("text"), "u"), None);
    }
}
