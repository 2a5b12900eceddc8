//! Eviction: reads the node's signals, publishes its pressure, frees images and dead containers,
//! and ends pods one at a time.
//!
//! `agent_node::eviction` decides; this file reads and executes. A pass runs every ten seconds,
//! when the kernel reports memory stalls (PSI), when a decision changes with time, and at once
//! after an evicted pod has ended. It never waits for a walk over files: disk usage is measured in
//! the background (`agent_resources::pod_disk_usage`).

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod measure;
mod signals;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent_host::stall::{self, StallDetector};
use agent_node::eviction::decide::{EvictionDecision, EvictionState, Reclaim};
use agent_node::eviction::rank::{self, Candidate};
use agent_node::eviction::storage::{self, Exceeded};
use agent_node::eviction::thresholds::Threshold;
use agent_node::eviction::{Readings, Signal};
use agent_node::image_gc::ImageGcLimits;
use agent_node::priority;
use agent_pod::desired::{Disruption, PodSource};
use agent_pod::events::{PodEvent, Severity};
use proto_api::event_report::EventKind;
use proto_daemon::exit::chain;
use proto_daemon::statusz::TaskStatus;

use agent_clock as clock;
use agent_images::PodImages as _;
use agent_images::image_gc::ReclaimGoal;
use agent_resources::pod_disk_usage::PodDiskUsages;
use agent_telemetry::node_events::NodeEvents;
use agent_workers::pod_context::{PodContext, PodSnapshot};
use measure::{MeasureScope, MeasuredPod, measure, measured_disk};

/// Interval between passes without another cause.
const PASS_INTERVAL: Duration = Duration::from_secs(10);
/// Shortest interval between passes caused by memory stalls.
const PASS_MIN: Duration = Duration::from_millis(500);
/// Stall time within two seconds that triggers a pass.
const STALLED: Duration = Duration::from_millis(200);
/// How long to wait for an evicted pod before the next pass.
const END_WAIT: Duration = Duration::from_secs(30);
const EVICTED: &str = "Evicted";

/// Evicts pods under pressure.
pub struct Evictor {
    pub shared: Arc<PodContext>,
    /// Disk usage of pods as last measured.
    pub disk_usages: Arc<PodDiskUsages>,
    /// The eviction thresholds.
    pub thresholds: Vec<Threshold>,
    /// `evictionPressureTransitionPeriod`: how long a condition outlasts its cause.
    pub transition: Duration,
    /// `evictionMaxPodGracePeriod`: grace period under soft thresholds.
    pub soft_grace: Duration,
    /// Limits of image garbage collection.
    pub image_limits: ImageGcLimits,
    /// Memory that all pods together may use, in bytes.
    pub pods_memory: u64,
    /// Whether limits on local storage are enforced.
    pub limits_storage: bool,
    /// Recorder of Node events.
    pub events: NodeEvents,
    /// State of earlier passes.
    pub state: EvictionState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PassOutcome {
    /// Nothing was reclaimed.
    Nothing,
    /// Freed enough without evicting a pod.
    Freed,
    /// Number of evicted pods.
    Evicted(usize),
    /// The disk is short, and the figures of some pods are renewed before one is evicted.
    Measuring,
    /// A resource is short, but no pod may be evicted for it.
    Helpless(Signal),
}

impl PassOutcome {
    /// The outcome of a pass that evicted more pods.
    fn and_evicted(self, more: usize) -> Self {
        match self {
            Self::Evicted(pods) => Self::Evicted(pods.saturating_add(more)),
            _ if more > 0 => Self::Evicted(more),
            outcome => outcome,
        }
    }
}

impl Evictor {
    /// Runs passes for as long as the agent runs.
    pub async fn run(mut self, page: TaskStatus) {
        let stall = StallDetector::watch(Path::new(stall::MEMORY), STALLED);
        let stall = stall
            .inspect_err(|error| tracing::info!(%error, "no PSI monitor for memory stalls; memory is checked every ten seconds only"))
            .ok();
        let mut last = PassOutcome::Nothing;
        loop {
            page.started("pass");
            let (did, wake_at) = self.run_pass().await;
            if let PassOutcome::Helpless(signal) = did
                && last != did
            {
                tracing::warn!(
                    signal = signal.as_str(),
                    "a resource is below its eviction threshold, but no pod may be evicted for it"
                );
            }
            last = did;
            page.done(format!("{did:?}"));
            if matches!(did, PassOutcome::Evicted(_) | PassOutcome::Measuring) {
                // The next pass checks at once whether that was enough, or all pods are measured.
                tokio::time::sleep(PASS_MIN).await;
                continue;
            }
            let sooner = wake_at.map(|at| at.saturating_sub(clock::boot()));
            let pause =
                sooner.map_or(PASS_INTERVAL, |sooner| sooner.clamp(PASS_MIN, PASS_INTERVAL));
            // Both arms are cancel safe: they only time the next pass.
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = next_stall(stall.as_ref()) => tokio::time::sleep(PASS_MIN).await,
            }
        }
    }

    async fn run_pass(&mut self) -> (PassOutcome, Option<Duration>) {
        let disks = signals::disks(&self.shared).await;
        let read_at = std::time::Instant::now();
        let readings = self.read(&disks).await;
        let now = clock::boot();
        let decision = self.state.decide(&self.thresholds, &readings, self.transition, now);
        self.publish_pressure(&decision);
        // Pods above their own limits go first where that frees what is short; else the shortage does not wait for them.
        let frees =
            |reclaim: &Reclaim| MeasureScope::from_signal(reclaim.signal) == MeasureScope::Disk;
        if decision.reclaim.as_ref().is_some_and(frees) {
            let over_limits = self.enforce_storage_limits();
            if over_limits > 0 {
                return (PassOutcome::Evicted(over_limits), decision.wake_at);
            }
        }
        let did = match &decision.reclaim {
            None => PassOutcome::Nothing,
            Some(reclaim) => self.reclaim(reclaim, &readings, &disks).await,
        };
        if let (PassOutcome::Evicted(_), Some(reclaim)) = (did, &decision.reclaim) {
            let signal = reclaim.signal.as_str();
            self.shared.metrics.operations.record_eviction_age(signal, read_at.elapsed());
        }
        (did.and_evicted(self.enforce_storage_limits()), decision.wake_at)
    }

    async fn read(&self, disks: &signals::FileSystems) -> Readings {
        signals::read(&self.shared, disks, self.pods_memory).await
    }

    /// Publishes the pressure to the Node object, admission and pod tasks.
    fn publish_pressure(&self, decision: &EvictionDecision) {
        let shown = self.shared.node_pressure.send_if_modified(|node_pressure| {
            let news = node_pressure.pressure != decision.pressure;
            node_pressure.pressure = decision.pressure;
            news
        });
        if shown {
            tracing::info!(pressure = ?decision.pressure, "node pressure conditions changed");
            // Under disk pressure pod tasks remove dead containers.
            self.shared.wake_pods();
        }
    }

    /// Evicts pods that exceeded their local storage limits when they were last measured. Returns how many.
    fn enforce_storage_limits(&self) -> usize {
        if !self.limits_storage {
            return 0;
        }
        let mut evicted: usize = 0;
        for known in self.remaining_pods() {
            // Critical pods are needed by the node, and an evicted static pod would not come back.
            let is_critical = priority::is_critical(&known.pod, known.source == PodSource::Static);
            if is_critical || !storage::is_limited(&known.pod) {
                continue;
            }
            let Some((MeasuredPod { uses, volumes }, age)) =
                measured_disk(&self.disk_usages, &known.pod)
            else {
                continue;
            };
            if let Some(Exceeded { signal, message }) =
                storage::exceeded_limit(&known.pod, &uses, &volumes)
            {
                let (meta, secs) = (&known.pod.metadata, age.as_secs());
                tracing::info!(
                    pod = meta.name,
                    namespace = meta.namespace,
                    uid = meta.uid,
                    secs,
                    "pod exceeds a limit of local storage; evicting it"
                );
                self.evict(&known, signal, message, Duration::ZERO);
                evicted = evicted.saturating_add(1);
            }
        }
        evicted
    }

    /// Pods not ended by the node yet. A pod that does not stop does not prevent others from being
    /// evicted.
    fn remaining_pods(&self) -> Vec<PodSnapshot> {
        let mut pods = self.shared.pods.current_pods();
        pods.retain(|known| self.shared.pods.decision(&known.pod.metadata.uid).is_none());
        pods
    }

    async fn reclaim(
        &mut self,
        reclaim: &Reclaim,
        readings: &Readings,
        disks: &signals::FileSystems,
    ) -> PassOutcome {
        let signal = reclaim.signal;
        let extent = MeasureScope::from_signal(signal);
        let pods = self.remaining_pods();
        let uids = pods.iter().map(|known| known.pod.metadata.uid.as_str());
        if extent == MeasureScope::Disk && !self.disk_usages.are_recent(uids) {
            return PassOutcome::Measuring;
        }
        let message = format!("Attempting to reclaim {}", signal.resource());
        self.events.record_event(EventKind::Warning, "EvictionThresholdMet", message);
        if self.free_without_pods(reclaim, readings, disks).await {
            let again = self.read(disks).await;
            let reading = again.get(&signal);
            if reading.is_some_and(|reading| !reclaim.threshold.is_reached(reading, true)) {
                return PassOutcome::Freed;
            }
        }
        let pods = self.remaining_pods();
        let measured = measure(&self.shared, &self.disk_usages, &pods, extent).await;
        let candidates: Vec<Candidate<'_>> = pods
            .iter()
            .map(|known| Candidate {
                pod: &known.pod,
                is_static: known.source == PodSource::Static,
                uses: measured.get(&known.pod.metadata.uid).map(|measured| measured.uses.clone()),
            })
            .collect();
        let Some(first) = rank::eviction_order(&candidates, signal).first().copied() else {
            return PassOutcome::Helpless(signal);
        };
        let uid = first.pod.metadata.uid.clone();
        let grace = if reclaim.at_once { Duration::ZERO } else { self.soft_grace };
        let message = rank::eviction_message(first, signal);
        if let Some(known) = pods.iter().find(|known| known.pod.metadata.uid == uid) {
            self.evict(known, signal.as_str(), message, grace);
        }
        self.state.record_eviction(signal, readings);
        self.shared
            .pods
            .wait_until_ended(&[uid], clock::after(grace.saturating_add(END_WAIT)))
            .await;
        PassOutcome::Evicted(1)
    }

    /// Frees unused images where that can help. Returns whether anything was freed.
    async fn free_without_pods(
        &self,
        reclaim: &Reclaim,
        readings: &Readings,
        disks: &signals::FileSystems,
    ) -> bool {
        let goal = match (reclaim.signal, readings.get(&reclaim.signal)) {
            (Signal::NodefsAvailable | Signal::NodefsInodesFree, _) if !disks.is_one => {
                return false;
            }
            (Signal::NodefsAvailable | Signal::ImagefsAvailable, Some(reading)) => {
                let more = reclaim.threshold.min_reclaim.map_or(0, |m| m.resolve(reading.capacity));
                let wanted = reclaim.threshold.below.resolve(reading.capacity).saturating_add(more);
                ReclaimGoal::Bytes(wanted.saturating_sub(reading.available))
            }
            (Signal::NodefsInodesFree | Signal::ImagefsInodesFree, _) => ReclaimGoal::Everything,
            _ => return false,
        };
        // Pod tasks remove dead containers meanwhile.
        match self.shared.images.collect(&*self.shared, goal, self.image_limits).await {
            Ok(freed) => freed.images > 0,
            Err(error) => {
                let error = chain(&error);
                tracing::warn!(error, "cannot collect images; pods are evicted instead");
                false
            }
        }
    }

    fn evict(&self, known: &PodSnapshot, signal: &str, message: String, grace: Duration) {
        let meta = &known.pod.metadata;
        self.shared.metrics.evictions.with_label_values(&[signal]).inc();
        tracing::warn!(
            pod = meta.name,
            namespace = meta.namespace,
            uid = meta.uid,
            signal,
            grace_secs = grace.as_secs(),
            message,
            "evicting pod"
        );
        let event = PodEvent::new(Severity::Warning, EVICTED, message.clone());
        self.shared.reports.event(&known.pod, event);
        let reason = EVICTED.to_owned();
        self.shared.pods.end_pod(&meta.uid, Disruption { reason, message, grace: Some(grace) });
    }
}

async fn next_stall(stall: Option<&StallDetector>) {
    match stall {
        Some(stall) if stall.wait().await.is_ok() => {}
        _ => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
