//! The moments of one start, as a table and as a trace.

use serde_json::json;

use super::*;

fn started_pod() -> (Value, Vec<Value>) {
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
    (pod, events)
}

#[test]
fn moments_are_in_the_order_of_time() {
    let (pod, events) = started_pod();
    let text = render(&moments(&pod, &events));
    let rows: Vec<String> = text
        .lines()
        .map(|line| {
            line.split("   ")
                .map(str::trim)
                .filter(|cell| !cell.is_empty())
                .collect::<Vec<_>>()
                .join("|")
        })
        .collect();
    assert_eq!(
        rows,
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
    assert_eq!(moments(&json!({}), &[]), []);
}

#[test]
fn traces_have_spans_and_instants() {
    let (pod, events) = started_pod();
    let trace = trace(&pod, &events, 30 * SECOND);
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
    assert_eq!(instants.count(), moments(&pod, &events).len());
    let names: Vec<&str> = entries
        .iter()
        .filter(|entry| entry["name"] == "thread_name")
        .map(|entry| objects::text_at(entry, "/args/name"))
        .collect();
    assert_eq!(names, ["pod", "first", "app"]);
}
