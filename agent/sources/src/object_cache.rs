//! Cache of the ConfigMaps, Secrets and other objects that the node's pods refer to: one watch per
//! object, shared by all pods, as long as a pod needs it.
//!
//! A change wakes the pods' tasks at once. Claims, volumes and attachments are polled where the API
//! server lets a node only get them, as Kubernetes' authorization module `Node` does.

mod persistent;
mod poll;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use agent_csi::Drivers;
use agent_interfaces::PodObjects;
use agent_interfaces::objects::{
    ObjectCache, Subscription, missing, needs_of, needs_without_pulls,
};
use agent_pod::env::{EnvRequirements, ServiceEnv, linked_services, links_services};
use proto_api::core::v1::{ConfigMap, Container, Pod, Secret};
use proto_api::names::Names;
use proto_api::{ObjectKey, Resource};
use proto_client::watch::{Observed, watch};
use proto_client::{Client, ListParams, Store};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use persistent::{Followed, PersistentObjects};
use poll::Polling;

/// Watched objects by namespace and name, while a pod refers to them.
type ByName<T> = BTreeMap<(String, String), Weak<Watched<T>>>;

/// All watches of one kind.
struct Registry<T: Resource> {
    client: Client,
    /// Whether an object is immutable, so that it need not be watched.
    is_constant: fn(&T) -> bool,
    /// For a kind that a node may not be allowed to watch.
    polling: Option<Arc<Polling<T>>>,
    watched: Mutex<ByName<T>>,
}

/// A watched object.
struct Watched<T> {
    state: Arc<State<T>>,
    task: AbortHandle,
}

impl<T> Drop for Watched<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct State<T> {
    /// `None` before the first read, `Some(None)` if the object does not exist.
    object: RwLock<Option<Option<Arc<T>>>>,
    /// Tasks to wake. Bounded by the pods that refer to the object.
    pokes: Mutex<Vec<Weak<Notify>>>,
    /// Requests a read of a polled object before its interval ends, because another pod refers to it.
    reread: Notify,
}

impl<T> State<T> {
    fn get(&self) -> Option<Option<Arc<T>>> {
        self.object.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, object: Option<Arc<T>>) {
        *self.object.write().unwrap_or_else(PoisonError::into_inner) = Some(object);
        let mut pokes = self.pokes.lock().unwrap_or_else(PoisonError::into_inner);
        pokes.retain(|poke| poke.upgrade().map(|poke| poke.notify_one()).is_some());
    }
}

impl<T: Resource> Registry<T> {
    fn new(client: Client) -> Self {
        Self { client, is_constant: |_| false, polling: None, watched: Mutex::default() }
    }

    fn watch(&self, namespace: &str, name: &str, poke: &Arc<Notify>) -> Arc<Watched<T>> {
        let key = (namespace.to_owned(), name.to_owned());
        let mut all = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, watched| watched.strong_count() > 0);
        let known = all.get(&key).and_then(Weak::upgrade);
        known.iter().for_each(|watched| watched.state.reread.notify_one());
        let watched = known.unwrap_or_else(|| {
            let watched = Arc::new(self.begin(namespace, name));
            all.insert(key, Arc::downgrade(&watched));
            watched
        });
        let mut pokes = watched.state.pokes.lock().unwrap_or_else(PoisonError::into_inner);
        pokes.push(Arc::downgrade(poke));
        drop(pokes);
        watched
    }

    fn begin(&self, namespace: &str, name: &str) -> Watched<T> {
        let state = Arc::new(State {
            object: RwLock::new(None),
            pokes: Mutex::default(),
            reread: Notify::new(),
        });
        let api = match namespace {
            "" => self.client.all::<T>(),
            namespace => self.client.within::<T>(namespace),
        };
        let (params, is_constant) = (ListParams::name(name), self.is_constant);
        let (polling, name) = (self.polling.clone(), name.to_owned());
        let cached = state.clone();
        let task = tokio::spawn(async move {
            if let Some(polling) = polling
                && polling.is_needed(&api, &params).await
            {
                return polling.run(&api, &name, &cached.reread, |object| cached.set(object)).await;
            }
            let (mut listed, settled) = (None, Notify::new());
            let set = |object: Option<Arc<T>>| {
                if object.as_deref().is_some_and(is_constant) {
                    settled.notify_one();
                }
                cached.set(object);
            };
            let follow = watch(&api, &params, |observed| match observed {
                Observed::ListBegan => listed = None,
                Observed::Listed(object) => listed = Some(Arc::new(object)),
                Observed::ListEnded => set(listed.take()),
                Observed::Applied(object) => set(Some(Arc::new(object))),
                Observed::Deleted(_) => set(None),
                Observed::WatchBegan | Observed::WatchEnded => {}
            });
            // Cancel safe: an immutable object need not be watched.
            tokio::select! {
                () = follow => {}
                () = settled.notified() => {}
            }
        });
        Watched { state, task: task.abort_handle() }
    }
}

/// API objects that pods of the node refer to: one watch an object, shared by the pods.
pub struct ClusterObjects {
    config_maps: Registry<ConfigMap>,
    secrets: Arc<Registry<Secret>>,
    persistent: Arc<PersistentObjects>,
    services: Store<Option<ServiceEnv>>,
    names: &'static Names,
}

impl ClusterObjects {
    /// `services` holds every Service for environment variables, `drivers` the registered CSI
    /// drivers.
    pub fn new(
        client: &Client,
        services: Store<Option<ServiceEnv>>,
        drivers: Drivers,
        node: &str,
    ) -> Self {
        let secrets = Arc::new(Registry {
            is_constant: |secret: &Secret| secret.immutable == Some(true),
            ..Registry::new(client.clone())
        });
        Self {
            config_maps: Registry {
                is_constant: |map: &ConfigMap| map.immutable == Some(true),
                ..Registry::new(client.clone())
            },
            persistent: Arc::new(PersistentObjects::new(client, secrets.clone(), drivers, node)),
            secrets,
            services,
            names: client.names(),
        }
    }
}

impl ObjectCache for ClusterObjects {
    fn subscribe(&self, pod: &Pod, poke: Arc<Notify>) -> Box<dyn Subscription> {
        let namespace = &pod.metadata.namespace;
        let EnvRequirements { config_maps, secrets } = needs_of(pod);
        // A static pod runs without an API server, which may itself be one: it does not wait for Services or pull secrets.
        let is_static = pod.metadata.annotations.contains_key(&self.names.label("config.source"));
        let awaited = if is_static { needs_without_pulls(pod).secrets } else { secrets.clone() };
        let maps = config_maps.into_iter().map(|name| {
            let watched = self.config_maps.watch(namespace, &name, &poke);
            (name, watched)
        });
        let maps = maps.collect();
        let secrets = secrets.into_iter().map(|name| {
            let watched = self.secrets.watch(namespace, &name, &poke);
            (name, watched)
        });
        let secrets = secrets.collect();
        if !self.services.is_synced() {
            // Wakes the pod when the first list of Services is complete.
            let (services, poke) = (self.services.clone(), Arc::downgrade(&poke));
            tokio::spawn(async move {
                services.synced().await;
                if let Some(poke) = poke.upgrade() {
                    poke.notify_one();
                }
            });
        }
        Box::new(ClusterSubscription {
            awaits_services: !is_static,
            maps,
            secrets,
            awaited,
            persistent: self.persistent.follow(pod, &poke),
            services: self.services.clone(),
            names: self.names,
        })
    }
}

struct ClusterSubscription {
    /// Whether it waits for the first list of Services.
    awaits_services: bool,
    maps: BTreeMap<String, Arc<Watched<ConfigMap>>>,
    secrets: BTreeMap<String, Arc<Watched<Secret>>>,
    /// Names of the secrets that it waits for.
    awaited: BTreeSet<String>,
    persistent: Option<Followed>,
    services: Store<Option<ServiceEnv>>,
    names: &'static Names,
}

impl Subscription for ClusterSubscription {
    fn objects(&self) -> PodObjects {
        PodObjects {
            config_maps: read_watched(&self.maps),
            secrets: read_watched(&self.secrets),
            persistent: self.persistent.as_ref().map(|p| p.known().0).unwrap_or_default(),
        }
    }

    fn services(&self, pod: &Pod) -> Vec<ServiceEnv> {
        let own = match links_services(pod) {
            true => self.services.within(&pod.metadata.namespace),
            false => Vec::new(),
        };
        let api = self.services.get(&ObjectKey::new("default", self.names.api_service_name()));
        let own = own.iter().filter_map(|service| service.as_ref().as_ref());
        linked_services(own, api.as_ref().and_then(|service| service.as_ref().as_ref()))
    }

    fn is_complete(&self) -> bool {
        let mut secrets = self.secrets.iter().filter(|(name, _)| self.awaited.contains(*name));
        (!self.awaits_services || self.services.is_synced())
            && self.maps.values().all(|w| w.state.get().is_some())
            && secrets.all(|(_, w)| w.state.get().is_some())
            && self.persistent.as_ref().is_none_or(|p| p.known().1)
    }

    fn missing(&self, pod: &Pod, container: &Container) -> Option<String> {
        missing(pod, container, || self.objects())
    }
}

fn read_watched<K: Ord + Clone, T>(
    watched: &BTreeMap<K, Arc<Watched<T>>>,
) -> BTreeMap<K, Option<Arc<T>>> {
    let known = watched.iter().filter_map(|(name, w)| Some((name.clone(), w.state.get()?)));
    known.collect()
}

#[cfg(test)]
mod tests {
    use proto_api::core::v1::{EnvFromSource, LocalObjectReference, SecretEnvSource, Service};
    use proto_api::names::Profile;
    use proto_client::{ClientConfig, Reflector};

    use super::*;

    fn reference(name: &str) -> LocalObjectReference {
        LocalObjectReference { name: name.to_owned() }
    }

    /// The API server of a control plane may be a static pod itself.
    #[tokio::test]
    async fn only_a_static_pod_does_not_wait_for_its_pull_secrets() {
        // Where nothing listens.
        let config = ClientConfig::direct(http::Uri::from_static("http://127.0.0.1:1"));
        let names = Names::new(Profile::Kubernetes);
        let client = Client::new(&config, names, "test/1").expect("a client");
        let list = client.all::<Service>();
        let services = Reflector::projected(list, ListParams::default(), |_| None::<ServiceEnv>);
        let objects = ClusterObjects::new(&client, services.store(), Drivers::default(), "n");
        let is_complete = |pod: &Pod| objects.subscribe(pod, Arc::default()).is_complete();
        let mut pod = Pod::default();
        pod.spec.image_pull_secrets = vec![reference("registry")];
        pod.spec.containers = vec![Container::default()];
        assert!(!is_complete(&pod), "a pod from the API");
        pod.metadata.annotations.insert(names.label("config.source"), "file".into());
        assert!(is_complete(&pod));
        // It needs the same secret for another purpose as well.
        pod.spec.containers[0].env_from = vec![EnvFromSource {
            secret_ref: Some(SecretEnvSource {
                local_object_reference: reference("registry"),
                optional: None,
            }),
            ..EnvFromSource::default()
        }];
        assert!(!is_complete(&pod));
    }
}
