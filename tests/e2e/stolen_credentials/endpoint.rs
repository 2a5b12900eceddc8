//! What a node's own endpoint is tried for, past the API server.

use serde_json::Value;

use super::Attempt;

/// Everything that it serves; `refused` is the answer to each.
pub fn attempts(ns: &str, refused: u16) -> Vec<Attempt<'static>> {
    let reads = [
        "healthz".to_owned(),
        "pods".to_owned(),
        "runningpods/".to_owned(),
        "metrics".to_owned(),
        "metrics/cadvisor".to_owned(),
        "metrics/resource".to_owned(),
        "stats/summary".to_owned(),
        "configz".to_owned(),
        "logs/".to_owned(),
        format!("containerLogs/{ns}/here/main"),
        format!("debug/pods/{ns}/here"),
    ];
    let ways = [
        format!("run/{ns}/here/main?cmd=id"),
        format!("exec/{ns}/here/main?command=id&output=1"),
        format!("attach/{ns}/here/main?output=1"),
        format!("portForward/{ns}/here"),
    ];
    let attempt = |method, path: &str| (method, format!("/{path}"), Value::Null, refused);
    let reads = reads.iter().map(|path| attempt("GET", path));
    reads.chain(ways.iter().map(|path| attempt("POST", path))).collect()
}
