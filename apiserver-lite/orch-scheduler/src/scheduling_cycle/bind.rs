//! The Bind extension point, and the report of a pod that cannot be bound.

use apiserver_clock::now;
use proto_api::core::v1::{Binding, ObjectReference, Pod};
use proto_api::meta::v1::ObjectMeta;
use proto_client::events::EventKind;
use proto_client::{ClientError, ObjectKey, Patch, WriteParams};
use proto_daemon::exit::chain;
use serde_json::json;

use super::Scheduler;
use crate::pod_info::PodInfo;

impl Scheduler {
    pub(super) async fn bind(&self, pod: &PodInfo, node: &str) -> Result<(), ClientError> {
        let ObjectKey { namespace, name } = &pod.key;
        let metadata = ObjectMeta {
            name: name.clone(),
            namespace: namespace.clone(),
            uid: pod.uid.clone(),
            ..ObjectMeta::default()
        };
        let target = ObjectReference {
            kind: "Node".to_owned(),
            name: node.to_owned(),
            ..ObjectReference::default()
        };
        let binding = Binding { metadata, target };
        self.client.within::<Pod>(namespace).post_sub(name, "binding", &binding).await
    }

    /// Records FailedScheduling, and sets the condition PodScheduled unless it has this message.
    pub(super) async fn report_unschedulable(&self, pod: &PodInfo, why: &str) {
        self.events.event(&pod.reference, EventKind::Warning, "FailedScheduling", why);
        let current = pod.unscheduled.as_ref();
        if current.is_some_and(|found| found.reason == "Unschedulable" && found.message == why) {
            return;
        }
        let since = current.map(|found| found.last_transition_time).filter(|time| time.is_set());
        let condition = json!({
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": why,
            "lastProbeTime": null,
            "lastTransitionTime": since.unwrap_or_else(now),
        });
        let patch = Patch::Strategic(json!({
            "metadata": { "uid": pod.uid },
            "status": { "conditions": [condition] },
        }));
        let api = self.client.within::<Pod>(&pod.key.namespace);
        if let Err(error) = api.patch_status(&pod.key.name, &patch, &WriteParams::default()).await {
            tracing::debug!(pod = %pod.key, uid = pod.uid, error = chain(&error), "condition PodScheduled not written");
        }
    }
}
