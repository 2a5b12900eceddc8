//! The moments of one start, as a table and as a trace.

use serde_json::json;

use super::*;

fn started_pod() -> PodHistory {
    let condition = |kind: &str, time: &str| json!({"type": kind, "status": "True", "lastTransitionTime": time});
    let pod = json!({"metadata": {"name": "p", "namespace": "n", "creationTimestamp": "1970-01-01T00:00:10Z"},
        "status": {"startTime": "1970-01-01T00:00:11Z",
            "conditions": [
                condition("Ready", "1970-01-01T00:00:20Z"), condition("ContainersReady", "1970-01-01T00:00:20Z"),
                condition("Initialized", "1970-01-01T00:00:13Z"), condition("PodScheduled", "1970-01-01T00:00:10Z"),
                {"type": "example.com/gate", "status": "False", "reason": "Waits", "lastTransitionTime": "1970-01-01T00:00:12Z"}],
            "initContainerStatuses": [{"name": "first", "state": {"terminated": {"exitCode": 0,
                "startedAt": "1970-01-01T00:00:12Z", "finishedAt": "1970-01-01T00:00:13Z"}}}],
            "containerStatuses": [{"name": "app", "state": {"running": {"startedAt": "1970-01-01T00:00:18Z"}},
                "lastState": {"terminated": {"exitCode": 2, "startedAt": "1970-01-01T00:00:14Z", "finishedAt": "1970-01-01T00:00:15Z"}}}]}});
    let app = json!({"fieldPath": "spec.containers{app}"});
    let events = vec![
        json!({"reason": "Scheduled", "message": "to n1", "eventTime": "1970-01-01T00:00:10.250000Z"}),
        json!({"reason": "Pulled", "message": "Successfully pulled image \"i\" in 1.5s (1.6s including waiting)", "count": 2,
            "involvedObject": app, "firstTimestamp": "1970-01-01T00:00:14Z"}),
        json!({"reason": "Timeless", "message": "m"}),
    ];
    PodHistory { pod, events, steps: None }
}

/// A step of a container that ended this many milliseconds after 1970.
fn step(action: &str, ended_ms: i64, took_ms: i64) -> NodeStep {
    NodeStep {
        began: (ended_ms - took_ms) * 1000,
        took: took_ms * 1000,
        action: action.into(),
        container: "app".into(),
        detail: String::new(),
        failure: String::new(),
        times: 1,
    }
}

#[test]
fn moments_are_in_the_order_of_time() {
    assert_eq!(
        rows(&started_pod()),
        [
            "TIME|AFTER|STEP|WHAT",
            "00:00:10|0s|created",
            "00:00:10|0s|0s|PodScheduled",
            "00:00:10.250|0.250s|0.250s|Scheduled: to n1",
            "00:00:11|1s|0.750s|taken up by its node",
            "00:00:12|2s|1s|init container first: started",
            "00:00:12|2s|0s|example.com/gate False (Waits)",
            "00:00:13|3s|1s|init container first: ended with exit code 0",
            "00:00:13|3s|0s|Initialized",
            "00:00:14|4s|1s|container app: Pulled: Successfully pulled image \"i\" in 1.5s (1.6s including waiting) (x2)",
            "00:00:14|4s|0s|container app: started before",
            "00:00:15|5s|1s|container app: ended with exit code 2",
            "00:00:18|8s|3s|container app: started",
            "00:00:20|10s|2s|ContainersReady",
            "00:00:20|10s|0s|Ready",
        ]
    );
    assert_eq!(moments(&PodHistory::default()), []);
}

/// The table with a bar between cells.
fn rows(history: &PodHistory) -> Vec<String> {
    let text = render(&moments(history));
    let cells = |line: &str| -> Vec<String> {
        let cells = line.split("   ").map(|cell| cell.trim().to_owned());
        cells.filter(|cell| !cell.is_empty()).collect()
    };
    text.lines().map(|line| cells(line).join("|")).collect()
}

#[test]
fn what_the_node_did_is_told_to_the_millisecond() {
    let mut history = started_pod();
    let sandbox = NodeStep { container: String::new(), ..step("CreateSandbox", 11_450, 120) };
    history.steps = Some(vec![
        sandbox,
        step("CreateContainer", 17_900, 50),
        step("StartContainer", 18_305, 5),
        // Of another start than the one that the status tells of.
        step("StartContainer", 25_000, 5),
    ]);
    let rows = rows(&history);
    let from = rows.iter().position(|row| row.starts_with("00:00:11")).expect("a row");
    assert_eq!(
        rows[from..from + 2],
        [
            "00:00:11|1s|0.750s|taken up by its node",
            "00:00:11.330|1.330s|0.330s|node: CreateSandbox took 0.120s",
        ]
    );
    let from = rows.iter().position(|row| row.starts_with("00:00:17")).expect("a row");
    assert_eq!(
        rows[from..],
        [
            "00:00:17.850|7.850s|2.850s|node, container app: CreateContainer took 0.050s",
            "00:00:18.300|8.300s|0.450s|node, container app: StartContainer took 0.005s",
            "00:00:18.305|8.305s|0.005s|container app: started",
            "00:00:20|10s|1.695s|ContainersReady",
            "00:00:20|10s|0s|Ready",
            "00:00:24.995|14.995s|4.995s|node, container app: StartContainer took 0.005s",
        ]
    );
    // Ready came after what started in the same second.
    history.steps = Some(vec![step("StartContainer", 20_400, 100)]);
    let last = self::rows(&history).split_off(from);
    assert_eq!(
        last[last.len() - 3..],
        [
            "00:00:20.300|10.300s|2.300s|node, container app: StartContainer took 0.100s",
            "00:00:20|10s|<1s|ContainersReady",
            "00:00:20|10s|0s|Ready",
        ]
    );
}

#[test]
fn traces_have_spans_and_instants() {
    let history = started_pod();
    let trace = trace(&history, 30 * SECOND);
    let entries = objects::list_at(&trace, "/traceEvents");
    let spans: Vec<String> = entries
        .iter()
        .filter(|entry| entry["ph"] == "X")
        .map(|entry| format!("{} {} {}+{}", entry["tid"], entry["name"], entry["ts"], entry["dur"]))
        .collect();
    assert_eq!(
        spans,
        [
            "1 \"scheduling\" 0+0",
            "1 \"volumes, sandbox and init containers\" 0+3000000",
            "1 \"containers\" 3000000+7000000",
            "1 \"readiness\" 10000000+0",
            "2 \"init container first\" 2000000+1000000",
            "3 \"container app\" 4000000+1000000",
            "3 \"container app\" 8000000+12000000",
            "3 \"image pull\" 2500000+1500000",
        ]
    );
    let instants = entries.iter().filter(|entry| entry["ph"] == "i");
    assert_eq!(instants.count(), moments(&history).len());
    let names: Vec<&str> = entries
        .iter()
        .filter(|entry| entry["name"] == "thread_name")
        .map(|entry| objects::text_at(entry, "/args/name"))
        .collect();
    assert_eq!(names, ["pod", "first", "app"]);
}

#[test]
fn steps_of_the_node_are_spans_of_a_process_of_their_own() {
    let mut history = started_pod();
    history.pod["spec"] = json!({"nodeName": "n1"});
    history.steps = Some(vec![step("PullImage", 13_900, 1_500), step("StartContainer", 18_305, 5)]);
    let trace = trace(&history, 30 * SECOND);
    let entries = objects::list_at(&trace, "/traceEvents");
    let of_node = entries.iter().filter(|entry| entry["pid"] == 2);
    let of_node: Vec<String> = of_node
        .map(|entry| match entry["ph"].as_str() {
            Some("M") => format!("{}", entry["args"]["name"]),
            _ => format!("{} {} {}+{}", entry["tid"], entry["name"], entry["ts"], entry["dur"]),
        })
        .collect();
    assert_eq!(
        of_node,
        [
            "\"node n1\"",
            "\"pod\"",
            "\"app\"",
            "3 \"PullImage took 1.500s\" 2400000+1500000",
            "3 \"StartContainer took 0.005s\" 8300000+5000",
        ]
    );
    // The container runs from then on, and the pull is shown once.
    let spans = |name: &str| -> Vec<&Value> {
        let spans = entries.iter().filter(|entry| entry["pid"] == 1 && entry["ph"] == "X");
        spans.filter(|entry| entry["name"] == name).collect()
    };
    assert_eq!(spans("container app")[1]["ts"], 8_305_000);
    assert!(spans("image pull").is_empty());
}
