//! Decides when the volumes of a pod are brought up to date: when the objects that they are built
//! from change, and before one of their tokens expires.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_interfaces::objects::{ObjectCache, PodBoundError, Subscription, check_pod_bounds};
use agent_interfaces::{MountedVolumes, PodObjects};
use agent_pod::desired::ConfigState;
use agent_pod::env::{ServiceEnv, check_environments};
use proto_api::core::v1::{Container, EphemeralContainer, Pod};
use proto_daemon::backoff::{Backoff, Retries};
use tokio::sync::Notify;

/// Pauses before a failed refresh is repeated.
const REFRESH_RETRY: Backoff =
    Backoff { first: Duration::from_secs(2), longest: Duration::from_secs(60) };

/// The volumes of one pod that are set up, and the objects that they are built from.
pub struct VolumeRefresher {
    object_cache: Arc<dyn ObjectCache>,
    /// `None` if the pod has too many volumes or names too many objects: none is read then.
    subscription: Option<Box<dyn Subscription>>,
    /// Why the present pod has no subscription of its own: it has none, or one without its new ephemeral containers.
    refused: Option<PodBoundError>,
    /// Until the pod or an object changes.
    environments: Option<CheckedEnvironments>,
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

struct CheckedEnvironments {
    pod: Arc<Pod>,
    states: Environments,
}

/// Whether the environments of a pod's containers can be made.
#[derive(Clone)]
pub struct Environments {
    /// Of every container without an error.
    others: ConfigState,
    /// By container, as messages for users.
    errors: Arc<BTreeMap<String, String>>,
}

impl Environments {
    pub fn state_of(&self, container: &Container) -> ConfigState {
        let error = self.errors.get(&container.name).cloned();
        error.map_or_else(|| self.others.clone(), ConfigState::Missing)
    }
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
        let refused = check_pod_bounds(pod).err();
        Self {
            subscription: refused.is_none().then(|| object_cache.subscribe(pod, wake.clone())),
            refused,
            environments: None,
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
            self.refused = check_pod_bounds(pod).err();
            if self.refused.is_none() {
                self.subscription = Some(self.object_cache.subscribe(pod, self.wake.clone()));
            }
            self.environments = None;
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
        self.environments = None;
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
        self.subscription.as_ref().map(|all| all.objects()).unwrap_or_default()
    }

    /// The services that a container's environment shows.
    pub fn services(&self, pod: &Pod) -> Vec<ServiceEnv> {
        self.subscription.as_ref().map(|all| all.services(pod)).unwrap_or_default()
    }

    /// Whether all of them have been read.
    pub fn has_all_objects(&self) -> bool {
        self.subscription.as_ref().is_some_and(|all| all.is_complete())
    }

    /// Whether the objects for the environments of the containers of `pod` are known. They are checked again when the pod or an object has changed.
    pub fn environments(&mut self, pod: &Arc<Pod>) -> Environments {
        let is_known = self.subscription.as_ref().is_none_or(|all| all.is_complete());
        if !is_known {
            return Environments { others: ConfigState::Unknown, errors: Arc::default() };
        }
        match &self.environments {
            Some(checked) if Arc::ptr_eq(&checked.pod, pod) => checked.states.clone(),
            _ => {
                let states = self.check_environments(pod);
                self.environments =
                    Some(CheckedEnvironments { pod: pod.clone(), states: states.clone() });
                states
            }
        }
    }

    fn check_environments(&self, pod: &Pod) -> Environments {
        let refusal = self.refused.map(|refused| refused.to_string());
        let Some(subscription) = &self.subscription else {
            let others = ConfigState::Missing(refusal.unwrap_or_default());
            return Environments { others, errors: Arc::default() };
        };
        let mut errors = BTreeMap::new();
        if has_environments(pod) {
            let failed = check_environments(pod, &subscription.environment_objects());
            errors.extend(failed.into_iter().map(|(name, error)| (name, error.to_string())));
        }
        // The subscription is that of the pod before it had all of them.
        for container in pod.spec.ephemeral_containers.iter().filter(|_| refusal.is_some()) {
            let name = container.ephemeral_container_common.name.clone();
            errors.insert(name, refusal.clone().unwrap_or_default());
        }
        Environments { others: ConfigState::Ready, errors: Arc::new(errors) }
    }
}

/// Whether a container has any variable of its own.
fn has_environments(pod: &Pod) -> bool {
    let spec = &pod.spec;
    let has_one = |c: &Container| !c.env.is_empty() || !c.env_from.is_empty();
    let ephemeral_has_one = |c: &EphemeralContainer| {
        let c = &c.ephemeral_container_common;
        !c.env.is_empty() || !c.env_from.is_empty()
    };
    spec.init_containers.iter().chain(&spec.containers).any(has_one)
        || spec.ephemeral_containers.iter().any(ephemeral_has_one)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use agent_interfaces::objects::{NAMED_OBJECTS_MAX, NoObjects};
    use proto_api::core::v1::{EnvFromSource, LocalObjectReference, SecretEnvSource};

    use super::*;

    /// Counts subscriptions and how often environments are checked.
    #[derive(Clone, Default)]
    struct Counted {
        subscribed: Arc<AtomicUsize>,
        checked: Arc<AtomicUsize>,
    }

    struct CountedSubscription(Counted, Box<dyn Subscription>);

    impl ObjectCache for Counted {
        fn subscribe(&self, pod: &Pod, poke: Arc<Notify>) -> Box<dyn Subscription> {
            self.subscribed.fetch_add(1, Ordering::Relaxed);
            Box::new(CountedSubscription(self.clone(), NoObjects.subscribe(pod, poke)))
        }
    }

    impl Subscription for CountedSubscription {
        fn objects(&self) -> PodObjects {
            self.1.objects()
        }

        fn services(&self, pod: &Pod) -> Vec<ServiceEnv> {
            self.1.services(pod)
        }

        fn is_complete(&self) -> bool {
            true
        }

        fn environment_objects(&self) -> PodObjects {
            self.0.checked.fetch_add(1, Ordering::Relaxed);
            self.1.objects()
        }
    }

    fn optional_secrets(from: usize, to: usize) -> Vec<EnvFromSource> {
        let secret = |n| EnvFromSource {
            secret_ref: Some(SecretEnvSource {
                local_object_reference: LocalObjectReference { name: format!("a{n}") },
                optional: Some(true),
            }),
            ..EnvFromSource::default()
        };
        (from..to).map(secret).collect()
    }

    fn pod_with(env_from: Vec<EnvFromSource>) -> Pod {
        let mut pod = Pod::default();
        pod.spec.containers =
            vec![Container { name: "c".into(), env_from, ..Container::default() }];
        pod
    }

    #[test]
    fn environments_are_checked_again_when_the_pod_or_an_object_has_changed() {
        let cache = Counted::default();
        let pod = Arc::new(pod_with(optional_secrets(0, 2)));
        let mut volumes = VolumeRefresher::new(Arc::new(cache.clone()), &pod, Arc::default());
        let look = |volumes: &mut VolumeRefresher, pod: &Arc<Pod>| {
            let states =
                (0..3).map(|_| volumes.environments(pod).state_of(&pod.spec.containers[0]));
            let states: Vec<_> = states.collect();
            (states[2].clone(), cache.checked.load(Ordering::Relaxed))
        };
        assert_eq!(look(&mut volumes, &pod), (ConfigState::Ready, 1));
        volumes.objects_changed(Duration::ZERO);
        assert_eq!(look(&mut volumes, &pod), (ConfigState::Ready, 2));
        let mut required = optional_secrets(7, 8);
        required[0].secret_ref.as_mut().expect("a reference").optional = None;
        let changed = Arc::new(pod_with(required));
        let missing = ConfigState::Missing("secret \"a7\" not found".into());
        assert_eq!(look(&mut volumes, &changed), (missing, 3));
        assert_eq!(look(&mut volumes, &Arc::new(pod_with(Vec::new()))), (ConfigState::Ready, 3));
    }

    #[test]
    fn nothing_is_watched_for_a_pod_that_names_too_many_objects() {
        let cache = Counted::default();
        let pod = Arc::new(pod_with(optional_secrets(0, NAMED_OBJECTS_MAX + 1)));
        let mut volumes = VolumeRefresher::new(Arc::new(cache.clone()), &pod, Arc::default());
        let state = volumes.environments(&pod).state_of(&pod.spec.containers[0]);
        let ConfigState::Missing(message) = state else { panic!("{state:?}") };
        assert!(message.contains(" 257 ") && message.contains(" 256 "), "{message}");
        assert!(!volumes.has_all_objects() && volumes.objects().secrets.is_empty());
        assert_eq!(cache.subscribed.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn an_ephemeral_container_with_too_many_objects_takes_none_from_the_others() {
        let cache = Counted::default();
        let mut pod = pod_with(optional_secrets(0, 200));
        let mut volumes = VolumeRefresher::new(Arc::new(cache.clone()), &pod, Arc::default());
        let mut looking = EphemeralContainer::default();
        looking.ephemeral_container_common.name = "looking".into();
        looking.ephemeral_container_common.env_from = optional_secrets(200, 300);
        pod.spec.ephemeral_containers = vec![looking];
        let pod = Arc::new(pod);
        volumes.apply_update(&pod);
        let states = volumes.environments(&pod);
        assert_eq!(states.state_of(&pod.spec.containers[0]), ConfigState::Ready);
        let looking = Container { name: "looking".into(), ..Container::default() };
        assert!(matches!(states.state_of(&looking), ConfigState::Missing(_)));
        assert_eq!(volumes.objects().secrets.len(), 200);
        assert_eq!(cache.subscribed.load(Ordering::Relaxed), 1);
    }

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
