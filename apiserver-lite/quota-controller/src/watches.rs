//! Watches of the kinds that some quota counts, started and ended as quotas come and go: a cluster without quotas has none.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use apiserver_clock::now;
use apiserver_quota::{Counted, CountedResource, QuotaUsage, ResourceList};
use proto_api::core::v1::{PersistentVolumeClaim, Pod, ResourceQuota, Service};
use proto_api::names::Names;
use proto_api::{ObjectKey, Resource, Time};
use proto_client::{Api, Change, Client, ListParams, Reflector, Store};
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use proto_daemon::work_queue::WorkQueue;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::kinds::{ReadKind, counted_kinds, custom_kinds};

/// How long a quota waits for further changes before it is counted.
const SETTLE: Duration = Duration::from_millis(100);

/// Watches the kinds that quotas count.
pub struct QuotaWatches {
    client: Client,
    quotas: Store<ResourceQuota>,
    queue: WorkQueue<ObjectKey>,
    kinds: Vec<ReadKind>,
    running: BTreeMap<CountedResource, JoinHandle<()>>,
}

/// Ends them.
impl Drop for QuotaWatches {
    fn drop(&mut self) {
        self.running.values().for_each(JoinHandle::abort);
    }
}

impl QuotaWatches {
    /// No watches yet.
    pub fn new(client: Client, quotas: Store<ResourceQuota>, queue: WorkQueue<ObjectKey>) -> Self {
        let kinds = counted_kinds(client.names());
        Self { client, quotas, queue, kinds, running: BTreeMap::new() }
    }

    /// Starts and ends watches whenever quotas have `changed`, until drained.
    pub async fn run(mut self, changed: Arc<Notify>, drain: DrainWatch) {
        loop {
            tokio::select! {
                () = drain.asked() => return,
                () = changed.notified() => {}
            }
            tokio::select! {
                () = drain.asked() => return,
                () = self.follow_quotas(&drain) => {}
            }
        }
    }

    async fn follow_quotas(&mut self, drain: &DrainWatch) {
        let (quotas, names) = (self.quotas.objects(), self.client.names());
        let specs = quotas.iter().map(|quota| &quota.spec);
        let custom = match custom_kinds(&self.client, specs, &self.kinds).await {
            Ok(custom) => custom,
            Err(error) => {
                let error = chain(&error);
                tracing::warn!(
                    error,
                    "cannot list CustomResourceDefinitions; quotas of their kinds are recalculated after the sync period only"
                );
                Vec::new()
            }
        };
        let usages: Vec<QuotaUsage<'_>> = quotas
            .iter()
            .map(|quota| QuotaUsage::new(&quota.spec, names, Time::default()))
            .collect();
        let is_needed = |kind: &CountedResource| usages.iter().any(|usage| usage.needs(kind));
        self.running.retain(|kind, task| {
            let stays = is_needed(kind);
            if !stays {
                task.abort();
            }
            stays
        });
        for read in self.kinds.iter().chain(&custom).filter(|read| is_needed(&read.kind)) {
            if !self.running.contains_key(&read.kind) {
                let task = tokio::spawn(self.watch(read, drain.clone()));
                self.running.insert(read.kind.clone(), task);
            }
        }
    }

    /// The watch of a kind. What is counted by its content is watched as a whole, of others the metadata.
    fn watch(&self, read: &ReadKind, drain: DrainWatch) -> impl Future<Output = ()> + Send + use<> {
        let (client, names) = (self.client.clone(), self.client.names());
        let (quotas, queue) = (self.quotas.clone(), self.queue.clone());
        let requeue = Requeue { quotas, queue, kind: read.kind.clone(), names };
        let (kind, collection) = (read.kind.clone(), read.collection(None));
        async move {
            match (kind.group.as_str(), kind.plural.as_str()) {
                ("", "pods") => {
                    let print = |pod: Pod| print(&Counted::Pod(&pod), names);
                    requeue.follow(client.all::<Pod>(), print, drain).await;
                }
                ("", "services") => {
                    let print = |service: Service| print(&Counted::Service(&service), names);
                    requeue.follow(client.all::<Service>(), print, drain).await;
                }
                ("", "persistentvolumeclaims") => {
                    let print =
                        |claim: PersistentVolumeClaim| print(&Counted::Claim(&claim), names);
                    requeue.follow(client.all::<PersistentVolumeClaim>(), print, drain).await;
                }
                _ => requeue.follow(client.metadata(collection), |_| 0, drain).await,
            }
        }
    }
}

/// Queues the quotas that count objects of a kind.
struct Requeue {
    quotas: Store<ResourceQuota>,
    queue: WorkQueue<ObjectKey>,
    kind: CountedResource,
    names: &'static Names,
}

impl Requeue {
    /// Follows objects, and queues the quotas of their namespace when their `print` changes, and when they come or go. Those that come are charged
    /// by the API server already, except when they race with the quota's creation.
    async fn follow<T: Resource>(
        self,
        api: Api<T>,
        print: impl Fn(T) -> u64 + Send + Sync + 'static,
        drain: DrainWatch,
    ) {
        let reflector = Reflector::projected(api, ListParams::default(), print);
        let mut is_synced = false;
        let follow = reflector.run(drain, |change| match change {
            Change::Applied { key, new, old } if is_synced && Some(&new) != old.as_ref() => {
                self.requeue(&key.namespace);
            }
            Change::Applied { .. } => {}
            Change::Deleted { key, .. } => self.requeue(&key.namespace),
            Change::Synced => {
                is_synced = true;
                // Changes between two watches.
                self.quotas.list().into_iter().for_each(|(key, _)| self.queue.add(key));
            }
        });
        follow.await;
    }

    fn requeue(&self, namespace: &str) {
        let counts = |quota: &ResourceQuota| {
            QuotaUsage::new(&quota.spec, self.names, Time::default()).needs(&self.kind)
        };
        for quota in self.quotas.within(namespace).iter().filter(|quota| counts(quota)) {
            self.queue.add_after(ObjectKey::from_metadata(&quota.metadata), SETTLE);
        }
    }
}

/// Changes when the object uses something else, or may be in other scopes.
fn print(counted: &Counted<'_>, names: &Names) -> u64 {
    let amounts: ResourceList = counted.amounts(names, now());
    let mut hasher = DefaultHasher::new();
    amounts.hash(&mut hasher);
    if let Counted::Pod(pod) = counted {
        pod.spec.active_deadline_seconds.hash(&mut hasher);
        pod.metadata.deletion_timestamp.map(Time::unix).hash(&mut hasher);
    }
    hasher.finish()
}
