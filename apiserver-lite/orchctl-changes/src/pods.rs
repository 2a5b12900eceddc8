//! Pods that commands stream with: named themselves, or chosen from those of a workload or Service; their containers; upgraded connections with them.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONNECTION, HeaderName, UPGRADE};
use http::{HeaderValue, Method, Request};
use hyper_util::rt::TokioIo;
use orchctl_client::{CommandError, Session, names};
use orchctl_printers::objects;
use orchctl_streams::spdy::Connection;
use proto_api::names::Names;
use proto_api::uri;
use serde_json::Value;

use crate::poll::PollIntervals;
use crate::requests::{self, Place};

/// What a name of the command line stands for.
pub struct Chosen {
    /// The pod.
    pub place: Place,
    /// What the server has of it.
    pub pod: Value,
    /// The Service that was named, if it was one.
    pub service: Option<Value>,
}

/// The pod of `NAME` or `TYPE/NAME`; of a workload or Service one that runs, for which `wait` is waited at most.
///
/// # Errors
/// When there is none.
pub async fn choose(session: &Session, name: &str, wait: Duration) -> Result<Chosen, CommandError> {
    let discovery = session.discovery().await?;
    let args = [name.to_owned()];
    let selection = names::parse_one(discovery, &args, "pods")?;
    let pods = discovery.served_kind("v1", "Pod")?.clone();
    let named = Place {
        namespace: Some(session.namespace()?.to_owned()),
        name: selection.name.unwrap_or_default(),
        resource: selection.resource,
    };
    let object = requests::get(session, &named).await?;
    if named.resource == pods {
        return Ok(Chosen { place: named, pod: object, service: None });
    }
    let is_service = named.resource.kind == "Service" && named.resource.group.is_empty();
    let Some(selector) = objects::pod_selector(&object) else {
        return Err(CommandError::with_text(format!(
            "cannot attach to {}: it selects no pods",
            named.title()
        )));
    };
    let mut pauses = PollIntervals::up_to(wait);
    loop {
        let namespace = named.namespace.as_deref();
        let mut found = requests::list(session, &pods, namespace, (&selector, "")).await?;
        found.sort_by_cached_key(|pod| (rank(pod), order(pod)));
        if let Some(pod) = found.into_iter().next().filter(|pod| rank(pod) < 2) {
            let place = Place::listed(&pods, &pod);
            return Ok(Chosen { place, pod, service: Some(object).filter(|_| is_service) });
        }
        if !pauses.pause().await {
            return Err(CommandError::with_text(format!(
                "timed out waiting for a running pod of {}",
                named.title()
            )));
        }
    }
}

/// Ready pods come first, then those that run; others do not serve.
fn rank(pod: &Value) -> u8 {
    let text = |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    if text("/status/phase") != "Running" || pod.pointer("/metadata/deletionTimestamp").is_some() {
        return 2;
    }
    if ready_since(pod).is_some() { 0 } else { 1 }
}

/// Since when a pod is ready.
fn ready_since(pod: &Value) -> Option<&str> {
    let mut conditions = objects::list_at(pod, "/status/conditions").iter();
    let ready = conditions.find(|one| one["type"] == "Ready" && one["status"] == "True")?;
    Some(objects::text_at(ready, "/lastTransitionTime"))
}

/// The order of pods of one rank, as kubectl has it: those that are ready for the longest time, with the fewest restarts, the oldest. Times that are not
/// known come last.
fn order(pod: &Value) -> impl Ord + use<> {
    let late = |time: &str| (time.is_empty(), time.to_owned());
    let statuses = objects::list_at(pod, "/status/containerStatuses").iter();
    let restarts = statuses.filter_map(|one| one["restartCount"].as_u64()).max();
    let created = late(objects::text_at(pod, "/metadata/creationTimestamp"));
    (late(ready_since(pod).unwrap_or_default()), restarts.unwrap_or_default(), created)
}

/// The container that is meant: the named one, that of the annotation, or the first; `note` is called if there are others.
///
/// # Errors
/// When the pod has no such container.
pub fn container(
    names: &Names,
    pod: &Value,
    wanted: Option<&str>,
    note: impl FnOnce(&str),
) -> Result<String, CommandError> {
    let list = |field: &str| {
        let items = pod.pointer(&format!("/spec/{field}")).and_then(Value::as_array);
        let names = items.into_iter().flatten().filter_map(|one| one["name"].as_str());
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    let mut all = list("containers");
    let main = all.clone();
    all.extend(list("initContainers"));
    all.extend(list("ephemeralContainers"));
    let name = pod.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    if let Some(wanted) = wanted {
        if all.iter().any(|one| one == wanted) {
            return Ok(wanted.to_owned());
        }
        return Err(CommandError::with_text(format!("container {wanted} not found in pod {name}")));
    }
    let annotation = names.sub_label("kubectl", "default-container");
    let chosen = pod.pointer("/metadata/annotations").and_then(|map| map.get(&annotation));
    let chosen =
        chosen.and_then(Value::as_str).filter(|chosen| all.iter().any(|one| one == chosen));
    if let Some(chosen) = chosen {
        return Ok(chosen.to_owned());
    }
    let first = main.first().cloned();
    let first =
        first.ok_or_else(|| CommandError::with_text(format!("pod {name} has no container")))?;
    if all.len() > 1 {
        note(&format!("Defaulted container \"{first}\" out of: {}", all.join(", ")));
    }
    Ok(first)
}

/// Upgrades a connection to streams with a container or a port.
///
/// # Errors
/// When the server or the node refuses.
pub async fn connect(
    session: &Session,
    place: &Place,
    (subresource, query): (&str, &[(&str, &str)]),
    protocol: &'static str,
) -> Result<Connection, CommandError> {
    let pairs =
        query.iter().map(|(key, value)| format!("{key}={}", uri::encode(value, uri::COMPONENT)));
    let path = format!("{}?{}", place.path(Some(subresource)), pairs.collect::<Vec<_>>().join("&"));
    let mut request = Request::new(Bytes::new());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = path
        .parse()
        .map_err(|_| CommandError::with_text("the command is too long for a request URL"))?;
    let headers = request.headers_mut();
    // Runtimes refuse a request whose answer may not be a stream of any kind.
    headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("SPDY/3.1"));
    headers.insert(
        HeaderName::from_static("x-stream-protocol-version"),
        HeaderValue::from_static(protocol),
    );
    let (answered, upgraded) = session.upgrade(request).await?;
    let upgrade = answered.get(UPGRADE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !upgrade.eq_ignore_ascii_case("SPDY/3.1") {
        return Err(CommandError::with_text(format!(
            "the node speaks {upgrade:?}, expected SPDY/3.1"
        )));
    }
    Ok(Connection::new(TokioIo::new(upgraded)))
}

/// Converts an error of a SPDY stream to one of a command.
pub fn stream_error(error: &orchctl_streams::StreamError) -> CommandError {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    CommandError::with_text(text)
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_container_is_named_annotated_or_the_first() {
        let names = Names::new(Profile::Kubernetes);
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}, {"name": "b"}],
            "initContainers": [{"name": "i"}]}});
        let mut said = String::new();
        let first = container(names, &pod, None, |text| said = text.to_owned());
        assert_eq!(first.expect("the first"), "a");
        assert_eq!(said, "Defaulted container \"a\" out of: a, b, i");
        assert_eq!(container(names, &pod, Some("i"), |_| {}).expect("named"), "i");
        assert!(container(names, &pod, Some("x"), |_| {}).is_err());
        pod["metadata"]["annotations"] =
            json!({names.sub_label("kubectl", "default-container"): "b"});
        let unsaid = |text: &str| panic!("{text}");
        assert_eq!(container(names, &pod, None, unsaid).expect("annotated"), "b");
        assert!(container(names, &json!({}), None, |_| {}).is_err());
    }

    #[test]
    fn ready_pods_are_preferred() {
        let pod = |phase: &str, ready: &str| json!({"status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]}});
        assert_eq!(rank(&pod("Running", "True")), 0);
        assert_eq!(rank(&pod("Running", "False")), 1);
        assert_eq!(rank(&pod("Succeeded", "True")), 2);
        let mut leaving = pod("Running", "True");
        leaving["metadata"] = json!({"deletionTimestamp": "now"});
        assert_eq!(rank(&leaving), 2);
    }

    #[test]
    fn of_ready_pods_the_steadiest_is_chosen() {
        let pod = |name: &str, ready: &str, restarts: u64, created: &str| {
            json!({"metadata": {"name": name, "creationTimestamp": created}, "status": {"phase": "Running",
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": ready}],
                "containerStatuses": [{"restartCount": 0}, {"restartCount": restarts}]}})
        };
        let mut pods = [
            pod("unknown", "", 0, "2026-01-01T00:00:00Z"),
            pod("late", "2026-01-03T00:00:00Z", 0, "2026-01-01T00:00:00Z"),
            pod("restarted", "2026-01-02T00:00:00Z", 1, "2026-01-01T00:00:00Z"),
            pod("young", "2026-01-02T00:00:00Z", 0, "2026-01-02T00:00:00Z"),
            pod("old", "2026-01-02T00:00:00Z", 0, "2026-01-01T00:00:00Z"),
        ];
        pods.sort_by_cached_key(|pod| (rank(pod), order(pod)));
        let names: Vec<&str> = pods.iter().map(objects::name).collect();
        assert_eq!(names, ["old", "young", "restarted", "late", "unknown"]);
    }
}
