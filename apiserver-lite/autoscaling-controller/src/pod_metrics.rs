//! Reads the metrics of pods (`metrics.k8s.io`) from the API server, built in or metrics-server's.

use std::collections::BTreeMap;

use apiserver_autoscaling::{ContainerUsage, PodUsage};
use proto_api::{Collection, duration};
use proto_client::dynamic::Dynamic;
use proto_client::{Client, ClientError, ListParams};
use serde_json::Value;

/// The metrics of the pods of a namespace that `params` select.
pub async fn list(
    client: &Client,
    namespace: &str,
    params: &ListParams,
) -> Result<Vec<PodUsage>, ClientError> {
    let collection = Collection {
        group: client.names().group("metrics"),
        version: "v1beta1".to_owned(),
        plural: "pods".to_owned(),
        namespace: Some(namespace.to_owned()),
    };
    let list = Dynamic::new(client.clone(), collection).list(params).await?;
    Ok(read(&list))
}

/// Reads a PodMetricsList. What is malformed is left out: it is a metric that is missing.
fn read(list: &Value) -> Vec<PodUsage> {
    let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(read_pod).collect()
}

fn read_pod(item: &Value) -> Option<PodUsage> {
    let containers = item["containers"].as_array()?.iter().map(|container| ContainerUsage {
        name: container["name"].as_str().unwrap_or_default().to_owned(),
        used: read_usage(&container["usage"]),
    });
    Some(PodUsage {
        name: item.pointer("/metadata/name")?.as_str()?.to_owned(),
        at: item["timestamp"].as_str()?.parse().ok()?,
        window: duration::parse(item["window"].as_str()?).ok()?,
        containers: containers.collect(),
    })
}

fn read_usage(usage: &Value) -> BTreeMap<String, proto_api::Quantity> {
    let amounts = usage.as_object().into_iter().flatten();
    let read =
        |(name, amount): (&String, &Value)| Some((name.clone(), amount.as_str()?.parse().ok()?));
    amounts.filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proto_api::{Quantity, Time};
    use serde_json::json;

    use super::*;

    #[test]
    fn malformed_pod_metrics_are_left_out() {
        let list = json!({"items": [
            {"metadata": {"name": "a"}, "timestamp": "1970-01-01T00:01:00Z", "window": "15.2s",
             "containers": [{"name": "c", "usage": {"cpu": "250m", "memory": "1Mi", "x": "?"}}]},
            {"metadata": {"name": "b"}, "timestamp": "yesterday", "window": "15s", "containers": []},
            {"metadata": {"name": "c"}, "timestamp": "1970-01-01T00:01:00Z", "window": "15s"},
            7,
        ]});
        let used = BTreeMap::from([
            ("cpu".to_owned(), Quantity::from_milli(250)),
            ("memory".to_owned(), Quantity::from_bytes(1 << 20)),
        ]);
        let containers = vec![ContainerUsage { name: "c".to_owned(), used }];
        let (at, window) = (Time::from_unix(60), Duration::from_millis(15_200));
        assert_eq!(read(&list), [PodUsage { name: "a".to_owned(), at, window, containers }]);
        assert_eq!(read(&json!({})), []);
    }
}
