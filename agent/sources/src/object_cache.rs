//! Cache of the ConfigMaps, Secrets and other objects that the node's pods refer to: one watch per
//! object, shared by all pods, as long as a pod needs it.
//!
//! A change wakes the pods' tasks at once. Claims, volumes and attachments are polled where the API
//! server lets a node only get them, as Kubernetes' authorization module `Node` does. So is what a
//! namespace needs beyond its share of watches.

mod persistent;
mod poll;
mod shares;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use agent_csi::Drivers;
use agent_interfaces::PodObjects;
use agent_interfaces::objects::{ObjectCache, Subscription, needs_of, needs_without_pulls};
use agent_pod::env::{EnvRequirements, ServiceEnv, linked_services, links_services};
use proto_api::core::v1::{ConfigMap, Pod, Secret};
use proto_api::names::Names;
use proto_api::{ObjectKey, Resource};
use proto_client::watch::{Observed, watch};
use proto_client::{Api, Client, ListParams, Store};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use persistent::{Followed, PersistentObjects};
use poll::Polling;
use shares::Shares;

/// Entries below which those that no pod refers to are not looked for.
const CLEANED_LEN_MIN: usize = 64;

/// Watched objects by namespace and name. Those that no pod refers to any more are removed when the entries have doubled.
struct ByName<T> {
    entries: BTreeMap<(String, String), Weak<Watched<T>>>,
    clean_at: usize,
}

impl<T> ByName<T> {
    fn insert(&mut self, key: (String, String), watched: &Arc<Watched<T>>) {
        if self.entries.len() >= self.clean_at {
            proto_api::count_steps!(self.entries.len());
            self.entries.retain(|_, watched| watched.strong_count() > 0);
            self.clean_at = self.entries.len().saturating_mul(2).max(CLEANED_LEN_MIN);
        }
        self.entries.insert(key, Arc::downgrade(watched));
    }
}

/// The pod that needs an object.
#[derive(Clone, Copy)]
struct Subscriber<'a> {
    /// Its namespace, whose share of the watches is used.
    namespace: &'a str,
    /// Notified of changes of the object.
    poke: &'a Arc<Notify>,
}

/// All watches of one kind.
struct Registry<T: Resource> {
    client: Client,
    /// Whether an object is immutable, so that it need not be watched.
    is_constant: fn(&T) -> bool,
    /// For objects that are not watched.
    polling: Arc<Polling<T>>,
    /// Whether a node may not be allowed to watch the kind.
    may_be_forbidden: bool,
    shares: Arc<Shares>,
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
    /// Tasks to wake. Bounded by twice the pods that refer to the object.
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

    fn add_poke(&self, poke: &Arc<Notify>) {
        let mut pokes = self.pokes.lock().unwrap_or_else(PoisonError::into_inner);
        if pokes.len() == pokes.capacity() {
            proto_api::count_steps!(pokes.len());
            pokes.retain(|poke| poke.strong_count() > 0);
            // The next time is after as many again.
            let present = pokes.len().max(1);
            pokes.reserve(present);
        }
        pokes.push(Arc::downgrade(poke));
    }
}

impl<T: Resource> Registry<T> {
    fn new(client: Client, shares: Arc<Shares>) -> Self {
        let watched = ByName { entries: BTreeMap::new(), clean_at: CLEANED_LEN_MIN };
        Self {
            client,
            is_constant: |_| false,
            polling: Arc::new(Polling::new(|_| true)),
            may_be_forbidden: false,
            shares,
            watched: Mutex::new(watched),
        }
    }

    fn watch(&self, namespace: &str, name: &str, subscriber: Subscriber<'_>) -> Arc<Watched<T>> {
        let key = (namespace.to_owned(), name.to_owned());
        let mut all = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.entries.get(&key).and_then(Weak::upgrade);
        known.iter().for_each(|watched| watched.state.reread.notify_one());
        let watched = known.unwrap_or_else(|| {
            let watched = Arc::new(self.begin(namespace, name, subscriber.namespace));
            all.insert(key, &watched);
            watched
        });
        watched.state.add_poke(subscriber.poke);
        watched
    }

    fn begin(&self, namespace: &str, name: &str, needed_in: &str) -> Watched<T> {
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
        let (polling, may_be_forbidden) = (self.polling.clone(), self.may_be_forbidden);
        let (shares, reads) = (self.shares.clone(), self.shares.reads(needed_in));
        let (name, needed_in) = (name.to_owned(), needed_in.to_owned());
        let cached = state.clone();
        let task = tokio::spawn(async move {
            let settled = Notify::new();
            let set = |object: Option<Arc<T>>| {
                if object.as_deref().is_some_and(is_constant) {
                    settled.notify_one();
                }
                cached.set(object);
            };
            let follow = async {
                let is_forbidden =
                    may_be_forbidden && polling.is_needed(&reads, &api, &params).await;
                let place = if is_forbidden { None } else { shares.watch(&needed_in) };
                match place {
                    Some(_place) => watch_one(&api, &params, &set).await,
                    None => polling.run(&reads, (&api, &name), &cached.reread, &set).await,
                }
            };
            // Cancel safe: an immutable object need not be watched.
            tokio::select! {
                () = follow => {}
                () = settled.notified() => {}
            }
        });
        Watched { state, task: task.abort_handle() }
    }
}

/// Watches the object that `params` select; calls `set` with each of its states. Never returns.
async fn watch_one<T: Resource>(
    api: &Api<T>,
    params: &ListParams,
    set: &(impl Fn(Option<Arc<T>>) + Sync),
) {
    let mut listed = None;
    let observe = |observed| match observed {
        Observed::ListBegan => listed = None,
        Observed::Listed(object) => listed = Some(Arc::new(object)),
        Observed::ListEnded => set(listed.take()),
        Observed::Applied(object) => set(Some(Arc::new(object))),
        Observed::Deleted(_) => set(None),
        Observed::WatchBegan | Observed::WatchEnded => {}
    };
    watch(api, params, observe).await;
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
        let shares = Arc::new(Shares::default());
        let secrets = Arc::new(Registry {
            is_constant: |secret: &Secret| secret.immutable == Some(true),
            ..Registry::new(client.clone(), shares.clone())
        });
        Self {
            config_maps: Registry {
                is_constant: |map: &ConfigMap| map.immutable == Some(true),
                ..Registry::new(client.clone(), shares)
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
        let subscriber = Subscriber { namespace, poke: &poke };
        let EnvRequirements { config_maps, secrets } = needs_of(pod);
        // A static pod runs without an API server, which may itself be one: it does not wait for Services or pull secrets.
        let is_static = pod.metadata.annotations.contains_key(&self.names.label("config.source"));
        let awaited = if is_static { needs_without_pulls(pod).secrets } else { secrets.clone() };
        let maps = config_maps.into_iter().map(|name| {
            let watched = self.config_maps.watch(namespace, &name, subscriber);
            (name, watched)
        });
        let maps = maps.collect();
        let secrets = secrets.into_iter().map(|name| {
            let watched = self.secrets.watch(namespace, &name, subscriber);
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
        let persistent = self.persistent.as_ref().map(|p| p.known_objects().0).unwrap_or_default();
        PodObjects { persistent, ..self.environment_objects() }
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
            && self.persistent.as_ref().is_none_or(|p| p.known_objects().1)
    }

    fn environment_objects(&self) -> PodObjects {
        PodObjects {
            config_maps: read_watched(&self.maps),
            secrets: read_watched(&self.secrets),
            ..PodObjects::default()
        }
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
    use std::time::Duration;

    use proto_api::core::v1::{
        Container, EnvFromSource, LocalObjectReference, SecretEnvSource, Service,
    };
    use proto_api::names::Profile;
    use proto_client::testing::{StubRequest, StubServer, json_response};
    use proto_client::{ClientConfig, Reflector};

    use super::*;

    use http::Response;
    use hyper::body::Bytes;
    use serde_json::json;

    fn reference(name: &str) -> LocalObjectReference {
        LocalObjectReference { name: name.to_owned() }
    }

    /// A client of a server where nothing listens.
    fn unreachable() -> Client {
        let config = ClientConfig::direct(http::Uri::from_static("http://127.0.0.1:1"));
        Client::new(&config, Names::new(Profile::Kubernetes), "test/1").expect("a client")
    }

    /// 40,000 names were 8 * 10^8 steps of the dispatcher.
    #[tokio::test]
    async fn new_watches_do_not_walk_the_others_and_dropped_ones_are_forgotten() {
        let secrets = Registry::<Secret>::new(unreachable(), Arc::default());
        let poke = Arc::default();
        let subscriber = Subscriber { namespace: "n", poke: &poke };
        let mut held = Vec::new();
        let steps = proto_api::steps::count_during(|| {
            held.extend((0..10_000).map(|n| secrets.watch("n", &format!("a{n}"), subscriber)));
        });
        assert!(steps <= 2 * 10_000, "{steps}");
        let entries = || secrets.watched.lock().expect("no panic").entries.len();
        held.truncate(10);
        (0..30_000).for_each(|n| drop(secrets.watch("n", &format!("b{n}"), subscriber)));
        assert!(entries() <= 2 * CLEANED_LEN_MIN, "{}", entries());
        // Pods come and go while one keeps the object.
        let steps = proto_api::steps::count_during(|| {
            for _ in 0..10_000 {
                let poke = Arc::default();
                secrets.watch("n", "a0", Subscriber { namespace: "n", poke: &poke });
            }
        });
        let pokes = held[0].state.pokes.lock().expect("no panic").len();
        assert!(pokes <= 4 && steps <= 2 * 10_000, "{pokes} {steps}");
    }

    /// Answers lists and reads with objects, and keeps watches open; `watched` has the names in their queries.
    fn answer(request: &StubRequest, watched: &Mutex<BTreeSet<String>>) -> Option<Response<Bytes>> {
        let object = |name: &str| json!({"metadata": {"name": name, "namespace": "n", "resourceVersion": "7"}});
        let selected =
            request.query.split('&').find_map(|part| part.strip_prefix("fieldSelector="));
        let Some((_, selected)) = selected.and_then(|field| field.split_once("%3D")) else {
            let name = request.path.rsplit('/').next().unwrap_or_default();
            return Some(json_response(200, &object(name)));
        };
        if request.query.contains("watch=") {
            watched.lock().expect("no panic").insert(selected.to_owned());
            return None;
        }
        let list = json!({"metadata": {"resourceVersion": "7"}, "items": [object(selected)]});
        Some(json_response(200, &list))
    }

    #[tokio::test]
    async fn what_a_namespace_needs_beyond_its_share_is_read_without_a_watch() {
        let watched = Arc::new(Mutex::new(BTreeSet::new()));
        let seen = watched.clone();
        let server = StubServer::start(move |request| answer(request, &seen)).await;
        let maps = Registry::<ConfigMap>::new(server.client(), Arc::new(Shares::new(4, 2)));
        let poke = Arc::default();
        let watch = |namespace, name| maps.watch("n", name, Subscriber { namespace, poke: &poke });
        let names = async |expect: &[&str]| {
            while *watched.lock().expect("no panic") != expect.iter().map(|n| (*n).into()).collect()
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let read = async |watched: &Watched<ConfigMap>| loop {
            if let Some(object) = watched.state.get() {
                break object.expect("an object").metadata.name.clone();
            }
            poke.notified().await;
        };
        let mut held = Vec::new();
        for (namespace, name) in [("n", "a"), ("n", "b"), ("n", "c"), ("m", "d"), ("n", "e")] {
            held.push(watch(namespace, name));
            assert_eq!(read(held.last().expect("one")).await, name);
        }
        names(&["a", "b", "d"]).await;
        // A place is given back with the last pod that needs the object.
        held.remove(0);
        tokio::task::yield_now().await;
        held.push(watch("n", "f"));
        assert_eq!(read(held.last().expect("one")).await, "f");
        names(&["a", "b", "d", "f"]).await;
    }

    /// The API server of a control plane may be a static pod itself.
    #[tokio::test]
    async fn only_a_static_pod_does_not_wait_for_its_pull_secrets() {
        let (client, names) = (unreachable(), Names::new(Profile::Kubernetes));
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
