//! One look at an autoscaler: reads what the plan needs, scales the target, writes status and events.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use apiserver_autoscaling::{
    AutoscalerEvent, AutoscalerSettings, Clocks, NoUsage, ObservedAutoscaler, Outcome, PodUsage,
    Scale, ScaleHistory, Severity, needs_metrics, plan, without_scale,
};
use apiserver_clock::now;
use proto_api::ObjectKey;
use proto_api::autoscaling::v2::{HorizontalPodAutoscaler, HorizontalPodAutoscalerStatus};
use proto_api::core::v1::Pod;
use proto_api::event_report::{EventKind, reference};
use proto_client::events::Recorder;
use proto_client::{Client, ClientError, ListParams, Store, WriteParams};

use crate::flags::AutoscalingFlags;
use crate::pod_metrics;
use crate::target::{AutoscalerTarget, message};

/// Reads metrics and targets of autoscalers, and executes their plans.
pub struct AutoscalerReconciler {
    client: Client,
    autoscalers: Store<HorizontalPodAutoscaler>,
    recorder: Recorder,
    settings: AutoscalerSettings,
    sync_period: Duration,
    /// Of each autoscaler that exists. While it is looked at it is not here.
    histories: Mutex<BTreeMap<ObjectKey, (String, ScaleHistory)>>,
}

impl AutoscalerReconciler {
    /// Remembers nothing yet.
    pub fn new(
        client: Client,
        autoscalers: Store<HorizontalPodAutoscaler>,
        recorder: Recorder,
        flags: &AutoscalingFlags,
    ) -> Self {
        let (settings, sync_period) = (flags.settings(), flags.sync_period());
        let histories = Mutex::default();
        Self { client, autoscalers, recorder, settings, sync_period, histories }
    }

    /// Looks at one autoscaler, if it still exists. Returns when to look again.
    pub async fn run(&self, key: &ObjectKey) -> Result<Option<Duration>, ClientError> {
        let known = self.change(|histories| histories.remove(key));
        let Some(hpa) = self.autoscalers.get(key) else { return Ok(None) };
        // One that was made again has no past.
        let known = known.filter(|(uid, _)| *uid == hpa.metadata.uid);
        let mut history = known.map(|(_, history)| history).unwrap_or_default();
        let outcome = self.reconcile(&hpa, &mut history).await;
        let remembered = (hpa.metadata.uid.clone(), history);
        self.change(|histories| histories.insert(key.clone(), remembered));
        self.note(&hpa, &outcome.notes);
        self.write(&hpa, &outcome.status).await?;
        Ok(Some(self.sync_period))
    }

    fn change<T>(
        &self,
        change: impl FnOnce(&mut BTreeMap<ObjectKey, (String, ScaleHistory)>) -> T,
    ) -> T {
        change(&mut self.histories.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn reconcile(
        &self,
        hpa: &HorizontalPodAutoscaler,
        history: &mut ScaleHistory,
    ) -> Outcome {
        let (namespace, of) = (&hpa.metadata.namespace, &hpa.spec.scale_target_ref);
        let target = match AutoscalerTarget::read(&self.client, namespace, of).await {
            Ok(target) => target,
            Err(error) => return without_scale(hpa, &error.message(), now()),
        };
        let scale = target.scale();
        let (pods, usage) = self.observe(hpa, &scale).await;
        let pods: Vec<&Pod> = pods.iter().collect();
        let observed = ObservedAutoscaler { scale: &scale, pods: &pods, usage: &usage };
        let plan = plan(hpa, &observed, history, &self.settings, read_clocks());
        let Some(replicas) = plan.scale_to else { return plan.unchanged() };
        match target.set_replicas(&self.client, replicas).await {
            Ok(()) => {
                tracing::info!(
                    namespace,
                    autoscaler = hpa.metadata.name,
                    target = of.name,
                    from = scale.replicas,
                    to = replicas,
                    "scaled the target of an autoscaler"
                );
                plan.scaled(hpa, replicas, history, read_clocks())
            }
            Err(error) => plan.not_scaled(hpa, replicas, &message(&error), now()),
        }
    }

    /// The pods of the target and their metrics, if the decision needs them.
    async fn observe(
        &self,
        hpa: &HorizontalPodAutoscaler,
        scale: &Scale,
    ) -> (Vec<Pod>, Result<Vec<PodUsage>, NoUsage>) {
        if needs_metrics(hpa, scale).is_none() {
            return (Vec::new(), Ok(Vec::new()));
        }
        let namespace = &hpa.metadata.namespace;
        let params = ListParams::labels(&*scale.selector);
        // Metrics first: a pod that comes in between has none, and is known to have none.
        let usage = pod_metrics::list(&self.client, namespace, &params).await;
        let pods = self.client.within::<Pod>(namespace).list(&params).await;
        match (pods, usage) {
            (Ok(pods), usage) => (pods.items, usage.map_err(|error| NoUsage(message(&error)))),
            (Err(error), _) => (Vec::new(), Err(NoUsage(message(&error)))),
        }
    }

    fn note(&self, hpa: &HorizontalPodAutoscaler, notes: &[AutoscalerEvent]) {
        let about = reference(hpa, self.client.names());
        for note in notes {
            let kind = match note.severity {
                Severity::Normal => EventKind::Normal,
                Severity::Warning => EventKind::Warning,
            };
            self.recorder.event(&about, kind, note.reason, note.message.clone());
        }
    }

    /// Writes a status that has changed; into the autoscaler as it is now, if others have written it meanwhile.
    async fn write(
        &self,
        hpa: &Arc<HorizontalPodAutoscaler>,
        status: &HorizontalPodAutoscalerStatus,
    ) -> Result<(), ClientError> {
        if hpa.status == *status {
            return Ok(());
        }
        let all = self.client.within::<HorizontalPodAutoscaler>(&hpa.metadata.namespace);
        let written = HorizontalPodAutoscaler { status: status.clone(), ..(**hpa).clone() };
        let error = match all.update_status(&written, &WriteParams::default()).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        if error.is_not_found() {
            return Ok(());
        }
        if error.is_conflict() {
            let found = all.find(&hpa.metadata.name).await?;
            let found = found.filter(|found| found.metadata.uid == hpa.metadata.uid);
            let Some(found) = found else { return Ok(()) };
            let written = HorizontalPodAutoscaler { status: status.clone(), ..found };
            return all.update_status(&written, &WriteParams::default()).await.map(drop);
        }
        let about = reference(&**hpa, self.client.names());
        self.recorder.event(&about, EventKind::Warning, "FailedUpdateStatus", message(&error));
        Err(error)
    }
}

fn read_clocks() -> Clocks {
    Clocks { steady: Instant::now(), wall: now() }
}
