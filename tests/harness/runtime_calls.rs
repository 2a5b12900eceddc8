//! Counts of CRI calls, from the metrics of the clusters' containerd.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};

/// Where the runtime of a node counts, seen from that node.
pub const PAGE: &str = "http://127.0.0.1:1338/v1/metrics";

/// Calls with which an agent changes something in the runtime.
pub const MUTATIONS: &[&str] = &[
    "RunPodSandbox",
    "StopPodSandbox",
    "RemovePodSandbox",
    "CreateContainer",
    "StartContainer",
    "StopContainer",
    "RemoveContainer",
    "UpdateContainerResources",
    "ReopenContainerLog",
    "ExecSync",
    "PullImage",
    "RemoveImage",
    "UpdateRuntimeConfig",
];

/// How often the runtime was asked for each of [`MUTATIONS`], with success or without, from the text of its page.
///
/// # Errors
/// The page counts no calls of CRI v1, or is no page of metrics.
pub fn mutations(page: &str) -> Result<BTreeMap<&'static str, u64>> {
    let mut sums: BTreeMap<&str, u64> = MUTATIONS.iter().map(|call| (*call, 0)).collect();
    let mut counts = false;
    for line in page.lines().filter(|line| line.starts_with("grpc_server_started_total{")) {
        let (method, value) = sample(line)?;
        if line.contains("runtime.v1.") {
            counts = true;
            if let Some(sum) = sums.get_mut(method) {
                *sum += value;
            }
        }
    }
    ensure!(counts, "the runtime does not count calls: {page}");
    Ok(sums)
}

/// How often each call of the runtime has worked, from the text of its page.
///
/// # Errors
/// It is no page of metrics.
pub fn worked(page: &str) -> Result<BTreeMap<String, u64>> {
    let mut sums = BTreeMap::new();
    let handled = page.lines().filter(|line| line.starts_with("grpc_server_handled_total{"));
    for line in handled.filter(|line| line.contains("grpc_code=\"OK\"")) {
        let (method, value) = sample(line)?;
        *sums.entry(method.to_owned()).or_default() += value;
    }
    Ok(sums)
}

/// Method and value of one line.
fn sample(line: &str) -> Result<(&str, u64)> {
    let (labels, value) = line.rsplit_once(' ').context("a sample")?;
    let (_, rest) = labels.split_once("grpc_method=\"").context("a method")?;
    let method = rest.split('"').next().unwrap_or_default();
    Ok((method, value.parse::<f64>().with_context(|| format!("the value of {line}"))? as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = r#"# TYPE grpc_server_started_total counter
grpc_server_started_total{grpc_method="StartContainer",grpc_service="runtime.v1.RuntimeService",grpc_type="unary"} 3
grpc_server_started_total{grpc_method="StartContainer",grpc_service="other.v1alpha2.RuntimeService",grpc_type="unary"} 5
grpc_server_started_total{grpc_method="Version",grpc_service="runtime.v1.RuntimeService",grpc_type="unary"} 2
grpc_server_handled_total{grpc_code="OK",grpc_method="Version",grpc_service="runtime.v1.RuntimeService"} 2
grpc_server_handled_total{grpc_code="Unknown",grpc_method="Version",grpc_service="runtime.v1.RuntimeService"} 1
"#;

    #[test]
    fn only_changes_of_this_version_count() {
        let asked = mutations(PAGE).expect("counts");
        assert_eq!(asked["StartContainer"], 3);
        assert_eq!(asked.values().sum::<u64>(), 3);
        assert_eq!(worked(PAGE).expect("counts"), BTreeMap::from([("Version".to_owned(), 2)]));
        assert!(mutations("").is_err(), "a page without counts shows nothing");
    }
}
