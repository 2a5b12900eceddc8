//! The end of one victim of a preemption: its condition, then its deletion. Both name its uid, and either may conflict.

use apiserver_clock::now;
use apiserver_scheduling::pod_info::PodInfo;
use proto_api::Time;
use proto_api::core::v1::Pod;
use proto_api::names::Names;
use proto_client::{Client, ClientError, DeleteParams, Patch, WriteParams};
use serde_json::{Value, json};

use crate::config::capitalized;

/// How often both are tried while others write the pod.
const TRIES: usize = 3;

/// What became of a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VictimEnd {
    /// This scheduler has deleted it.
    Deleted,
    /// It was gone already, or another pod has its name.
    WasGone,
}

/// Deletes a pod, and first adds the condition DisruptionTarget to its status if the feature is on. A conflict does not say that the pod is gone: others may
/// write it at the same time.
///
/// # Errors
/// The pod may run on.
pub(super) async fn end_victim(
    client: &Client,
    victim: &PodInfo,
    adds_condition: bool,
) -> Result<VictimEnd, ClientError> {
    let api = client.within::<Pod>(&victim.key.namespace);
    let mut tries_left = TRIES;
    loop {
        tries_left = tries_left.saturating_sub(1);
        let conflict = match write_end(client, victim, adds_condition).await {
            Ok(()) => return Ok(VictimEnd::Deleted),
            Err(error) if error.is_not_found() => return Ok(VictimEnd::WasGone),
            Err(error) if error.is_conflict() => error,
            Err(error) => return Err(error),
        };
        let found = api.find(&victim.key.name).await?;
        if found.is_none_or(|pod| pod.metadata.uid != victim.uid) {
            return Ok(VictimEnd::WasGone);
        }
        if tries_left == 0 {
            return Err(conflict);
        }
    }
}

async fn write_end(
    client: &Client,
    victim: &PodInfo,
    adds_condition: bool,
) -> Result<(), ClientError> {
    let api = client.within::<Pod>(&victim.key.namespace);
    if adds_condition {
        let condition = disruption_target(client.names(), now());
        let patch = Patch::Strategic(json!({
            "metadata": { "uid": victim.uid },
            "status": { "conditions": [condition] },
        }));
        api.patch_status(&victim.key.name, &patch, &WriteParams::default()).await?;
    }
    let params = DeleteParams { uid: Some(victim.uid.clone()), ..DeleteParams::default() };
    api.delete(&victim.key.name, &params).await
}

/// The condition of a pod that ends for a more important one.
fn disruption_target(names: &Names, now: Time) -> Value {
    let component = names.component("scheduler");
    let program: String = component.split('-').map(capitalized).collect();
    json!({
        "type": "DisruptionTarget",
        "status": "True",
        "reason": format!("PreemptionBy{program}"),
        "message": format!("{}: preempting", capitalized(&component)),
        "lastProbeTime": null,
        "lastTransitionTime": now,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use apiserver_scheduling::examples::pod;
    use proto_client::testing::{StubRequest, StubServer, json_response};

    use super::*;

    #[test]
    fn the_condition_of_a_victim_says_who_ends_it() {
        let names = Names::new(proto_api::names::Profile::Kubernetes);
        let condition = disruption_target(names, Time::from_unix(1));
        assert_eq!(
            (&condition["type"], &condition["status"]),
            (&json!("DisruptionTarget"), &json!("True"))
        );
        assert_eq!(condition["reason"], "PreemptionByKubeScheduler");
        assert_eq!(condition["message"], "Kube-scheduler: preempting");
        assert_eq!(condition["lastTransitionTime"], "1970-01-01T00:00:01Z");
    }

    /// The end of a pod, and the methods of the requests, at a server that answers each by its method and how many of that method came before.
    async fn end_at(
        adds_condition: bool,
        answer: impl Fn(&str, usize) -> (u16, &'static str) + Send + Sync + 'static,
    ) -> (Result<VictimEnd, Option<u16>>, Vec<String>) {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let kept = requests.clone();
        let server = StubServer::start(move |request: &StubRequest| {
            let method = request.method.as_str().to_owned();
            let mut kept = kept.lock().unwrap();
            let before = kept.iter().filter(|other| **other == method).count();
            let (code, uid) = answer(&method, before);
            kept.push(method);
            let reason = if code == 409 { "Conflict" } else { "" };
            let body = match code {
                200 => json!({ "kind": "Pod", "apiVersion": "v1",
                    "metadata": { "name": "p", "namespace": "ns", "uid": uid } }),
                _ => json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure",
                    "reason": reason, "code": code }),
            };
            Some(json_response(code, &body))
        })
        .await;
        let ended = end_victim(&server.client(), &pod("p", 1, 1), adds_condition).await;
        let requests = requests.lock().unwrap().clone();
        (ended.map_err(|error| error.code()), requests)
    }

    #[tokio::test]
    async fn a_conflict_does_not_count_as_the_end_of_a_victim() {
        let own = pod("p", 1, 1).uid;
        let own: &'static str = Box::leak(own.into_boxed_str());
        let (ended, requests) = end_at(true, move |method, before| match (method, before) {
            ("PATCH", 0) | ("DELETE", 0) => (409, ""),
            _ => (200, own),
        })
        .await;
        assert_eq!(ended, Ok(VictimEnd::Deleted));
        assert_eq!(requests, ["PATCH", "GET", "PATCH", "DELETE", "GET", "PATCH", "DELETE"]);
        for refused in ["PATCH", "DELETE"] {
            let (ended, requests) = end_at(true, move |method, _| match method == refused {
                true => (409, ""),
                false => (200, own),
            })
            .await;
            assert_eq!(ended, Err(Some(409)), "{refused}");
            assert_eq!(requests.iter().filter(|method| *method == refused).count(), TRIES);
        }
    }

    #[tokio::test]
    async fn a_victim_that_is_gone_is_no_failure() {
        let (ended, requests) = end_at(true, |_, _| (404, "")).await;
        assert_eq!((ended, requests), (Ok(VictimEnd::WasGone), vec!["PATCH".to_owned()]));
        let (ended, requests) = end_at(false, |_, _| (404, "")).await;
        assert_eq!((ended, requests), (Ok(VictimEnd::WasGone), vec!["DELETE".to_owned()]));
        let (ended, requests) = end_at(true, |method, _| match method {
            "GET" => (200, "another"),
            _ => (409, ""),
        })
        .await;
        assert_eq!(ended, Ok(VictimEnd::WasGone), "another pod has its name");
        assert_eq!(requests, ["PATCH", "GET"]);
        let (ended, requests) = end_at(true, |_, _| (403, "")).await;
        assert_eq!((ended, requests), (Err(Some(403)), vec!["PATCH".to_owned()]));
    }
}
