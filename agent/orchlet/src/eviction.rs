//! Keeps the node from running out: reads its signals, shows pressure, frees what nobody needs, and ends pods one at a time.
//!
//! What that means is decided in `agent_node::eviction`; here it is read and done. A look follows every ten seconds, when the kernel
//! says that tasks wait for memory, when a decision changes with time, and at once after a pod has gone.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod measure;
mod signals;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent_host::stall::{self, Stall};
use agent_node::eviction::decide::{Decision, Reclaim, State};
use agent_node::eviction::rank::{self, Candidate};
use agent_node::eviction::storage::{self, Exceeded};
use agent_node::eviction::thresholds::Threshold;
use agent_node::eviction::{Readings, Signal};
use agent_node::image_gc::Limits;
use agent_node::priority;
use agent_pod::desired::{Source, Verdict};
use agent_pod::events::{PodEvent, Severity};
use proto_client::events::EventKind;
use proto_daemon::statusz::TaskStatus;

use crate::clock;
use crate::images::image_gc::Goal;
use crate::node_events::NodeEvents;
use crate::pods::pod_context::{Known, Parts};
use measure::{Extent, Measured, measure};

/// Between two looks when nothing calls for one sooner.
const LOOK: Duration = Duration::from_secs(10);
/// Shortest time between two looks that the kernel calls for.
const LOOK_MIN: Duration = Duration::from_millis(500);
/// How long tasks must have waited for memory within two seconds before the kernel calls.
const STALLED: Duration = Duration::from_millis(200);
/// How long an evicted pod is waited for before the next look.
const GONE_WITHIN: Duration = Duration::from_secs(30);
/// Reason of pods that were evicted.
const EVICTED: &str = "Evicted";

/// What evicts pods.
pub struct Evictor {
    /// Pods, and what they share.
    pub parts: Arc<Parts>,
    /// When.
    pub thresholds: Vec<Threshold>,
    /// How long a condition outlasts its cause.
    pub transition: Duration,
    /// Most time that a soft threshold leaves to a pod.
    pub soft_grace: Duration,
    /// Age of images below which they stay.
    pub image_limits: Limits,
    /// Memory that pods together may use, in bytes.
    pub pods_memory: u64,
    /// Whether limits of pods on local storage are kept.
    pub limits_storage: bool,
    /// What is told of the node.
    pub events: NodeEvents,
    /// What was decided so far.
    pub state: State,
}

/// What a look brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Did {
    /// Nothing had to be done.
    Nothing,
    /// Something was freed without a pod.
    Freed,
    /// Pods were ended.
    Evicted(usize),
    /// Something is short and nobody may be ended for it.
    Helpless,
}

impl Evictor {
    /// Looks for as long as the agent runs.
    pub async fn run(mut self, page: TaskStatus) {
        let stall = Stall::watch(Path::new(stall::MEMORY), STALLED);
        let stall = stall
            .inspect_err(|error| tracing::info!(%error, "memory is looked at on a period only"))
            .ok();
        let mut last = Did::Nothing;
        loop {
            page.started("look");
            let (did, wake_at) = self.look().await;
            if did == Did::Helpless && last != did {
                tracing::warn!("something is short, and no pod may be evicted for it");
            }
            last = did;
            page.done(format!("{did:?}"));
            if matches!(did, Did::Evicted(_)) {
                // Whether that was enough is to be seen at once.
                tokio::time::sleep(LOOK_MIN).await;
                continue;
            }
            let sooner = wake_at.map(|at| at.saturating_sub(clock::boot()));
            let pause = sooner.map_or(LOOK, |sooner| sooner.clamp(LOOK_MIN, LOOK));
            // Both arms are cancel safe: they only say that it is time to look.
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stalls(stall.as_ref()) => tokio::time::sleep(LOOK_MIN).await,
            }
        }
    }

    async fn look(&mut self) -> (Did, Option<Duration>) {
        let disks = signals::disks(&self.parts).await;
        let read_at = std::time::Instant::now();
        let readings = self.read(&disks).await;
        let now = clock::boot();
        let decision = self.state.decide(&self.thresholds, &readings, self.transition, now);
        self.show(&decision);
        if self.limits_storage {
            let evicted = self.keep_limits().await;
            if evicted > 0 {
                return (Did::Evicted(evicted), decision.wake_at);
            }
        }
        let did = match &decision.reclaim {
            None => Did::Nothing,
            Some(reclaim) => self.reclaim(reclaim, &readings, &disks).await,
        };
        if let (Did::Evicted(_), Some(reclaim)) = (did, &decision.reclaim) {
            let signal = reclaim.signal.as_str();
            self.parts.metrics.acts.acted_on_readings(signal, read_at.elapsed());
        }
        (did, decision.wake_at)
    }

    async fn read(&self, disks: &signals::Disks) -> Readings {
        signals::read(&self.parts, disks, self.pods_memory).await
    }

    /// Shows what is short to whom it concerns: the Node object, admission, pods.
    fn show(&self, decision: &Decision) {
        let shown = self.parts.strain.send_if_modified(|strain| {
            let news = strain.pressure != decision.pressure;
            strain.pressure = decision.pressure;
            news
        });
        if shown {
            tracing::info!(pressure = ?decision.pressure, "pressure of the node");
            // Under pressure of disk pods drop what they keep of dead containers.
            self.parts.poke_all();
        }
    }

    /// Ends pods that use more local storage than they may; how many.
    async fn keep_limits(&self) -> usize {
        let mut pods = self.standing_pods();
        // The node cannot do without critical ones, and a static pod that was evicted would not come back.
        let is_critical =
            |known: &Known| priority::is_critical(&known.pod, known.source == Source::Static);
        pods.retain(|known| storage::is_limited(&known.pod) && !is_critical(known));
        if pods.is_empty() {
            return 0;
        }
        let measured = measure(&self.parts, &pods, Extent::Disk).await;
        let mut evicted: usize = 0;
        for known in &pods {
            let Some(Measured { uses, volumes }) = measured.get(&known.pod.metadata.uid) else {
                continue;
            };
            if let Some(Exceeded { signal, message }) = storage::exceeded(&known.pod, uses, volumes)
            {
                self.evict(known, signal, message, Duration::ZERO);
                evicted = evicted.saturating_add(1);
            }
        }
        evicted
    }

    /// Pods that the node has not ended yet. One that does not stop keeps no other from being evicted.
    fn standing_pods(&self) -> Vec<Known> {
        let mut pods = self.parts.current_pods();
        pods.retain(|known| self.parts.verdict(&known.pod.metadata.uid).is_none());
        pods
    }

    async fn reclaim(
        &mut self,
        reclaim: &Reclaim,
        readings: &Readings,
        disks: &signals::Disks,
    ) -> Did {
        let signal = reclaim.signal;
        let message = format!("Attempting to reclaim {}", signal.resource());
        self.events.tell(EventKind::Warning, "EvictionThresholdMet", message);
        if self.free_without_pods(reclaim, readings, disks).await {
            let again = self.read(disks).await;
            let reading = again.get(&signal);
            if reading.is_some_and(|reading| !reclaim.threshold.is_reached(reading, true)) {
                return Did::Freed;
            }
        }
        let pods = self.standing_pods();
        let measured = measure(&self.parts, &pods, Extent::of(signal)).await;
        let candidates: Vec<Candidate<'_>> = pods
            .iter()
            .map(|known| Candidate {
                pod: &known.pod,
                is_static: known.source == Source::Static,
                uses: measured.get(&known.pod.metadata.uid).map(|measured| measured.uses.clone()),
            })
            .collect();
        let Some(first) = rank::order(&candidates, signal).first().copied() else {
            return Did::Helpless;
        };
        let uid = first.pod.metadata.uid.clone();
        let grace = if reclaim.at_once { Duration::ZERO } else { self.soft_grace };
        let message = rank::message(first, signal);
        if let Some(known) = pods.iter().find(|known| known.pod.metadata.uid == uid) {
            self.evict(known, signal.as_str(), message, grace);
        }
        self.state.acted(signal, readings);
        self.parts.ended(&[uid], clock::after(grace.saturating_add(GONE_WITHIN))).await;
        Did::Evicted(1)
    }

    /// Frees what no pod needs, where that can help; whether anything was freed.
    async fn free_without_pods(
        &self,
        reclaim: &Reclaim,
        readings: &Readings,
        disks: &signals::Disks,
    ) -> bool {
        let goal = match (reclaim.signal, readings.get(&reclaim.signal)) {
            (Signal::NodefsAvailable | Signal::NodefsInodesFree, _) if !disks.is_one => {
                return false;
            }
            (Signal::NodefsAvailable | Signal::ImagefsAvailable, Some(reading)) => {
                let more = reclaim.threshold.min_reclaim.map_or(0, |m| m.of(reading.capacity));
                let wanted = reclaim.threshold.below.of(reading.capacity).saturating_add(more);
                Goal::Bytes(wanted.saturating_sub(reading.available))
            }
            (Signal::NodefsInodesFree | Signal::ImagefsInodesFree, _) => Goal::Everything,
            _ => return false,
        };
        // Pods were told of the pressure and drop their dead containers meanwhile.
        match self.parts.images.collect(&self.parts, goal, self.image_limits).await {
            Ok(freed) => freed.images > 0,
            Err(line) => {
                tracing::warn!(error = line, "images are not collected");
                false
            }
        }
    }

    fn evict(&self, known: &Known, signal: &str, message: String, grace: Duration) {
        let meta = &known.pod.metadata;
        self.parts.metrics.evictions.with_label_values(&[signal]).inc();
        tracing::warn!(pod = meta.name, namespace = meta.namespace, message, "evicted");
        let event = PodEvent::new(Severity::Warning, EVICTED, message.clone());
        self.parts.reports.event(&known.pod, event);
        let reason = EVICTED.to_owned();
        self.parts.end(&meta.uid, Verdict { reason, message, grace: Some(grace) });
    }
}

async fn stalls(stall: Option<&Stall>) {
    match stall {
        Some(stall) if stall.happens().await.is_ok() => {}
        _ => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
