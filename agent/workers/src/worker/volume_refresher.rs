//! Decides when the volumes of a pod are brought up to date: when the objects that they are built
//! from change, and before one of their tokens expires.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_interfaces::objects::{ObjectCache, Subscription};
use agent_interfaces::{MountedVolumes, PodObjects};
use agent_pod::desired::ConfigState;
use agent_pod::env::ServiceEnv;
use proto_api::core::v1::{Container, Pod};
use proto_daemon::backoff::{Backoff, Retries};
use tokio::sync::Notify;

/// Pauses before a failed refresh is repeated.
const REFRESH_RETRY: Backoff =
    Backoff { first: Duration::from_secs(2), longest: Duration::from_secs(60) };

/// The volumes of one pod that are set up, and the objects that they are built from.
pub struct VolumeRefresher {
    object_cache: Arc<dyn ObjectCache>,
    subscription: Box<dyn Subscription>,
    /// Notified when the objects change.
    wake: Arc<Notify>,
    mounted: Arc<MountedVolumes>,
    /// Number of ephemeral containers that the subscription covers.
    ephemeral: usize,
    /// Labels and annotations that the volumes were built from.
    fields: (BTreeMap<String, String>, BTreeMap<String, String>),
    is_stale: bool,
    not_before: Duration,
    /// Of failed refreshes in a row.
    retries: Retries,
}

/// What is to be done about mounted volumes.
#[derive(Debug, PartialEq, Eq)]
pub enum RefreshStep {
    /// Nothing now; when a refresh is due, since boot.
    Wait(Option<Duration>),
    /// They are brought up to date.
    Refresh,
}

impl VolumeRefresher {
    /// Watches the objects of `pod`; `wake` is notified of each change.
    pub fn new(object_cache: Arc<dyn ObjectCache>, pod: &Pod, wake: Arc<Notify>) -> Self {
        Self {
            subscription: object_cache.subscribe(pod, wake.clone()),
            object_cache,
            wake,
            mounted: Arc::default(),
            ephemeral: pod.spec.ephemeral_containers.len(),
            fields: (pod.metadata.labels.clone(), pod.metadata.annotations.clone()),
            is_stale: false,
            not_before: Duration::ZERO,
            retries: Retries::new(REFRESH_RETRY),
        }
    }

    /// Applies the pod's new state in its source.
    pub fn apply_update(&mut self, pod: &Pod) {
        let fields = (pod.metadata.labels.clone(), pod.metadata.annotations.clone());
        self.is_stale |= fields != self.fields;
        self.fields = fields;
        let ephemeral = pod.spec.ephemeral_containers.len();
        if ephemeral != self.ephemeral {
            // New ephemeral containers may refer to further objects.
            self.ephemeral = ephemeral;
            self.subscription = self.object_cache.subscribe(pod, self.wake.clone());
        }
    }

    /// Waits for a change of the objects. Cancel safe.
    pub async fn changed(&self) {
        self.wake.notified().await;
    }

    /// Marks the volumes stale after a change of their objects; an earlier failure does not delay
    /// the next refresh.
    pub fn objects_changed(&mut self, now: Duration) {
        self.is_stale = true;
        self.not_before = self.not_before.min(now.saturating_add(REFRESH_RETRY.first));
    }

    /// Decides on a refresh of mounted volumes.
    pub fn next_refresh(&mut self, now: Duration) -> RefreshStep {
        let is_aged = self.mounted.refresh_at.is_some_and(|at| at <= now);
        if !self.is_stale && !is_aged {
            return RefreshStep::Wait(self.mounted.refresh_at);
        }
        if now < self.not_before {
            return RefreshStep::Wait(Some(self.not_before));
        }
        self.is_stale = false;
        RefreshStep::Refresh
    }

    /// Applies a successful set-up or refresh.
    pub fn record_mounted(&mut self, mounted: MountedVolumes) {
        self.retries.reset();
        self.mounted = Arc::new(mounted);
    }

    /// Applies a failed refresh: the volumes stay as they are until a retry.
    pub fn record_failed(&mut self, now: Duration) {
        self.is_stale = true;
        self.not_before = now.saturating_add(self.retries.next_delay(1.0));
    }

    /// The volumes that are set up.
    pub fn mounted(&self) -> Arc<MountedVolumes> {
        self.mounted.clone()
    }

    /// The objects that the pod refers to.
    pub fn objects(&self) -> PodObjects {
        self.subscription.objects()
    }

    /// The services that a container's environment shows.
    pub fn services(&self, pod: &Pod) -> Vec<ServiceEnv> {
        self.subscription.services(pod)
    }

    /// Whether all of them have been read.
    pub fn has_all_objects(&self) -> bool {
        self.subscription.is_complete()
    }

    /// Whether all objects for a container's environment are known.
    pub fn environment_state(&self, pod: &Pod, container: &Container) -> ConfigState {
        if !self.subscription.is_complete() {
            return ConfigState::Unknown;
        }
        match self.subscription.missing(pod, container) {
            None => ConfigState::Ready,
            Some(text) => ConfigState::Missing(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use agent_interfaces::objects::NoObjects;

    use super::*;

    #[test]
    fn a_failed_refresh_backs_off_until_the_objects_change() {
        let secs = Duration::from_secs;
        let (cache, pod) = (Arc::new(NoObjects), Pod::default());
        let mut volumes = VolumeRefresher::new(cache, &pod, Arc::default());
        assert_eq!(volumes.next_refresh(secs(9)), RefreshStep::Wait(None));
        let refresh_at = Some(secs(100));
        volumes.record_mounted(MountedVolumes { refresh_at, ..MountedVolumes::default() });
        assert_eq!(volumes.next_refresh(secs(9)), RefreshStep::Wait(refresh_at));
        assert_eq!(volumes.next_refresh(secs(100)), RefreshStep::Refresh, "a token is due");
        for (now, retry) in [(100, 102), (200, 204), (300, 308), (400, 416)] {
            volumes.record_failed(secs(now));
            assert_eq!(volumes.next_refresh(secs(now)), RefreshStep::Wait(Some(secs(retry))));
            assert_eq!(volumes.next_refresh(secs(retry)), RefreshStep::Refresh);
        }
        (0..9).for_each(|_| volumes.record_failed(secs(500)));
        assert_eq!(volumes.next_refresh(secs(500)), RefreshStep::Wait(Some(secs(560))));
        volumes.objects_changed(secs(501));
        assert_eq!(volumes.next_refresh(secs(501)), RefreshStep::Wait(Some(secs(503))));
        let mut changed = pod.clone();
        volumes.record_mounted(MountedVolumes::default());
        assert_eq!(volumes.next_refresh(secs(503)), RefreshStep::Refresh);
        assert_eq!(volumes.next_refresh(secs(503)), RefreshStep::Wait(None));
        changed.metadata.labels.insert("a".into(), "b".into());
        volumes.apply_update(&changed);
        assert_eq!(volumes.next_refresh(secs(503)), RefreshStep::Refresh);
    }
}
