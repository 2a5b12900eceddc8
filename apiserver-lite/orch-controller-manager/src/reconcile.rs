//! Doing a task: take what the maps show, let the controller decide, make its writes.

mod adoption;
mod disruption;
mod expiring_map;
mod namespace;
mod pods;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use proto_api::core::v1::Namespace;
use proto_api::{Cidr, Quantity, Time};
use proto_client::events::Recorder;
use proto_client::{Client, ClientError, ObjectKey};
use proto_daemon::statusz::{StatusBoard, TaskStatus};

use crate::api_writes::Effect;
use crate::controllers::account_token::TokenSigner;
use crate::controllers::addresses::has_ended;
use crate::controllers::disruption::controller as owner_of;
use crate::controllers::endpoint_slices::{Manager, SliceContext};
use crate::controllers::node_cidr;
use crate::controllers::node_lifecycle::{self, Clocks, ClusterHealth, NodeHealth};
use crate::controllers::volumes::{Marks, attach};
use crate::controllers::write_events::WriteEvent;
use crate::controllers::{
    Plan, account_token, deployment, endpoint_slices, endpoints, mirror, pod_gc, replica_set,
    replication_controller, root_ca, service_account,
};
use crate::informers::Informers;
use crate::keys::{CONTROLLERS, ReconcileKey};
use crate::metrics::Counters;
use crate::settings::Settings;
use expiring_map::ExpiringMap;

/// How long a plan waits for the maps to show what the last one did. Longer means that somebody undid it.
const PATIENCE: Duration = Duration::from_secs(5);
/// When to look again if no event tells that the maps have caught up.
const CATCH_UP: Duration = Duration::from_millis(50);

/// Does tasks. One for the whole program.
pub struct Reconciler {
    client: Client,
    informers: Informers,
    settings: Settings,
    marks: Marks,
    memory: Memory,
    status: BTreeMap<&'static str, TaskStatus>,
    counters: Counters,
    recorders: BTreeMap<&'static str, Recorder>,
}

/// Where the work is shown.
#[derive(Clone)]
pub struct Observability {
    /// The last run of each controller.
    pub board: StatusBoard,
    /// All runs.
    pub counters: Counters,
    /// Event recorders by source component.
    pub recorders: BTreeMap<&'static str, Recorder>,
}

/// What has to be remembered from one task to the next. Losing it costs time, never correctness.
struct Memory {
    /// By task, what its last plan did and the maps do not show yet.
    awaited: Mutex<ExpiringMap<ReconcileKey, Vec<Effect>>>,
    /// The last observed state of each node.
    node_health: Mutex<BTreeMap<String, NodeHealth>>,
    /// What was known of all nodes together when one was last looked at.
    cluster: Mutex<Option<ClusterHealth>>,
    /// By node that is not there, since when.
    vanished: Mutex<ExpiringMap<String, ()>>,
    /// By pod that may not stay for ever on its node, since when its taints are looked at.
    tainted: Mutex<BTreeMap<ObjectKey, pods::Tainted>>,
    /// By uid of a node, the ranges given to it; held while one is given, so that no two nodes get the same.
    given: tokio::sync::Mutex<BTreeMap<String, Vec<Cidr>>>,
    /// What is waited for and was told about attached volumes.
    attaching: Mutex<attach::Memory>,
    /// By uid of a claim, the last wish for more that was told.
    wishes: Mutex<BTreeMap<String, Quantity>>,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            awaited: Mutex::new(ExpiringMap::new(PATIENCE)),
            node_health: Mutex::default(),
            cluster: Mutex::default(),
            vanished: Mutex::new(ExpiringMap::new(pods::VANISHED)),
            tainted: Mutex::default(),
            given: tokio::sync::Mutex::default(),
            attaching: Mutex::default(),
            wishes: Mutex::default(),
        }
    }
}

/// Why a task is not done; it is tried again.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// The server did not do what was asked.
    #[error("write")]
    Client(#[from] ClientError),
    /// No pod addresses are left.
    #[error("allocate pod addresses")]
    Exhausted(#[from] node_cidr::Exhausted),
    /// A token cannot be made.
    #[error("sign a token")]
    Token(#[from] apiserver_token::KeyError),
    /// An object cannot be written as JSON.
    #[error("encode {0}")]
    Encode(String, #[source] serde_json::Error),
}

impl Reconciler {
    /// A worker that knows nothing yet.
    pub fn new(
        client: Client,
        informers: Informers,
        settings: Settings,
        shown: Observability,
    ) -> Self {
        let Observability { board, counters, recorders } = shown;
        let status = CONTROLLERS.iter().map(|name| (*name, board.task(*name))).collect();
        let (marks, memory) = (Marks::new(informers.names), Memory::default());
        Self { client, informers, settings, marks, memory, status, counters, recorders }
    }

    /// Does the task and says when to look again, if nothing changes before.
    pub async fn run(&self, task: ReconcileKey) -> Result<Option<Duration>, ReconcileError> {
        if !self.has_caught_up(&task) {
            return Ok(Some(CATCH_UP));
        }
        let controller = task.controller();
        let status = self.status.get(controller);
        if let Some(status) = status {
            status.started(task.to_string());
        }
        let begun = Instant::now();
        let done = self.work(&task).await;
        self.counters.worked(controller, begun.elapsed());
        if done.is_err() {
            self.counters.failed(controller);
        }
        match (&done, status) {
            (Ok(_), Some(status)) => status.done(""),
            (Err(error), Some(status)) => status.failed(proto_daemon::exit::chain(error)),
            _ => {}
        }
        done
    }

    async fn work(&self, task: &ReconcileKey) -> Result<Option<Duration>, ReconcileError> {
        match task {
            ReconcileKey::Namespace(name) => return self.end_namespace(name).await,
            ReconcileKey::PodGc(key) => return self.collect_pod(task, key).await,
            ReconcileKey::Disruption(key) => return self.count_disruptions(task, key).await,
            ReconcileKey::NodeCidr(name) => return self.give_ranges(name).await,
            ReconcileKey::Claim(_)
            | ReconcileKey::Volume(_)
            | ReconcileKey::ClaimProtection(_)
            | ReconcileKey::VolumeProtection(_)
            | ReconcileKey::OwnClaims(_)
            | ReconcileKey::Attachments(_)
            | ReconcileKey::Expand(_) => return self.work_volumes(task).await,
            _ => {}
        }
        let plan = match task {
            ReconcileKey::AccountToken(account) => self.plan_token(account)?,
            _ => self.plan(task),
        };
        self.apply(task, plan).await
    }

    fn plan(&self, task: &ReconcileKey) -> Plan {
        let Informers { names, .. } = self.informers;
        let informers = &self.informers;
        match task {
            ReconcileKey::ServiceAccount(namespace) => {
                self.within_namespace(namespace, |namespace, key| {
                    let existing = informers.service_accounts.get(&key(service_account::NAME));
                    service_account::plan(namespace, existing.as_deref())
                })
            }
            ReconcileKey::RootCa(namespace) => {
                self.within_namespace(namespace, |namespace, key| {
                    let Some(ca) = &self.settings.root_ca else { return Plan::default() };
                    let existing = informers.root_cas.get(&key(names.root_ca_config_map()));
                    root_ca::plan(names, namespace, ca, existing.as_deref())
                })
            }
            ReconcileKey::Endpoints(key) => {
                let (service, pods) =
                    (informers.services.get(key), informers.pods.within(&key.namespace));
                let existing = informers.endpoints.get(key);
                endpoints::plan(names, service.as_deref(), &pods, existing.as_deref())
            }
            ReconcileKey::Slices(key) => self.plan_slices(key, Manager::Selector),
            ReconcileKey::Mirror(key) => self.plan_slices(key, Manager::Mirror),
            ReconcileKey::EndedPods => {
                pod_gc::plan_ended(&informers.pods.objects(), self.settings.ended_pods_max)
            }
            ReconcileKey::NodeLifecycle(name) => self.plan_node(name),
            ReconcileKey::PodReadiness(key) => self.plan_pod_readiness(key),
            ReconcileKey::TaintEviction(key) => self.plan_taint_eviction(key),
            ReconcileKey::ReplicaSet(key) => match informers.replica_sets.get(key) {
                Some(set) => {
                    replica_set::plan(names, &set, &informers.pods.within(&key.namespace), now())
                }
                None => Plan::default(),
            },
            ReconcileKey::ReplicationController(key) => {
                match informers.replication_controllers.get(key) {
                    Some(controller) => {
                        let pods = informers.pods.within(&key.namespace);
                        replication_controller::plan(names, &controller, &pods, now())
                    }
                    None => Plan::default(),
                }
            }
            ReconcileKey::Deployment(key) => match informers.deployments.get(key) {
                Some(deployment) => {
                    let sets = informers.replica_sets.within(&key.namespace);
                    let pods = match deployment::recreates(&deployment) {
                        true => informers.pods.within(&key.namespace),
                        false => Vec::new(),
                    };
                    let running = pods.iter().filter(|pod| !has_ended(pod));
                    let owners = running.filter_map(|pod| owner_of(pod));
                    let owners: BTreeSet<&str> = owners.map(|owner| owner.uid.as_str()).collect();
                    let has_pods = |uid: &str| owners.contains(uid);
                    deployment::plan(names, &deployment, &sets, &has_pods, now())
                }
                None => Plan::default(),
            },
            // Those that ask the server before they plan, see `work`.
            _ => Plan::default(),
        }
    }

    fn within_namespace(
        &self,
        name: &str,
        plan: impl FnOnce(&Namespace, &dyn Fn(&str) -> ObjectKey) -> Plan,
    ) -> Plan {
        let namespace = self.informers.namespaces.get(&ObjectKey::new("", name));
        namespace
            .map(|found| plan(&found, &|object| ObjectKey::new(name, object)))
            .unwrap_or_default()
    }

    /// Without a key to sign with nothing is planned.
    fn plan_token(&self, account: &ObjectKey) -> Result<Plan, ReconcileError> {
        let (informers, names) = (&self.informers, self.informers.names);
        let Some(key) = &self.settings.token_key else { return Ok(Plan::default()) };
        if informers.is_ending(&account.namespace) {
            return Ok(Plan::default());
        }
        let mut secrets = informers.token_secrets.within(&account.namespace);
        secrets.retain(|secret| {
            account_token::account_of(names, &secret.metadata).as_ref() == Some(account)
        });
        let signer = TokenSigner {
            names,
            key,
            ca: self.settings.root_ca.as_deref(),
            makes_unasked: self.settings.makes_tokens,
        };
        let existing = informers.service_accounts.get(account);
        Ok(account_token::plan(&signer, existing.as_deref(), &secrets)?)
    }

    fn plan_slices(&self, key: &ObjectKey, manager: Manager) -> Plan {
        let informers = &self.informers;
        let label = informers.names.sub_label("topology", "zone");
        let zone = |node: &str| {
            let node = informers.nodes.get(&ObjectKey::new("", node))?;
            node.metadata.labels.get(&label).cloned()
        };
        let (names, endpoints_max) = (informers.names, self.settings.endpoints_max);
        let context = SliceContext { names, zone: &zone, endpoints_max };
        let mut slices = informers.slices.within(&key.namespace);
        slices.retain(|slice| {
            endpoint_slices::origin(names, slice)
                .is_some_and(|origin| origin == (manager, key.clone()))
        });
        let service = informers.services.get(key);
        match manager {
            Manager::Selector => {
                let pods = informers.pods.within(&key.namespace);
                endpoint_slices::plan(&context, service.as_deref(), &pods, &slices)
            }
            Manager::Mirror => {
                let endpoints = informers.endpoints.get(key);
                mirror::plan(&context, service.as_deref(), endpoints.as_deref(), &slices)
            }
        }
    }

    fn plan_node(&self, name: &str) -> Plan {
        let key = ObjectKey::new("", name);
        let cluster = match self.informers.nodes.get(&key) {
            Some(node) if node_lifecycle::is_ready(&node) => ClusterHealth::SomeReady,
            _ => ClusterHealth::of(self.informers.nodes.objects().iter().map(|node| &**node)),
        };
        let mut health = lock(&self.memory.node_health);
        let steady = Instant::now();
        let before = lock(&self.memory.cluster).replace(cluster);
        if (before, cluster) == (Some(ClusterHealth::NoneReady), ClusterHealth::SomeReady) {
            // The other kubelets could not report either: their grace periods start now, as in Kubernetes.
            health.values_mut().for_each(|node| node.restart_grace(steady));
        }
        let recorder = self.recorder(&ReconcileKey::NodeLifecycle(name.to_owned()));
        let record = |before: Option<&NodeHealth>, after: Option<&NodeHealth>| {
            let event = node_lifecycle::transition_event(before, after);
            recorder.zip(event).into_iter().for_each(|(recorder, event)| recorder.record(event));
        };
        let Some(node) = self.informers.nodes.get(&key) else {
            record(health.remove(name).as_ref(), None);
            return Plan::default();
        };
        let lease = ObjectKey::new(self.informers.names.node_lease_namespace(), name);
        let lease = self.informers.leases.get(&lease);
        let clocks = Clocks { steady, wall: now() };
        let latest = NodeHealth::update(health.get(name), &node, lease.as_deref(), clocks.steady);
        record(health.get(name), Some(&latest));
        health.insert(name.to_owned(), latest.clone());
        node_lifecycle::plan(
            self.informers.names,
            &node,
            &latest,
            self.settings.grace,
            clocks,
            cluster,
        )
    }

    /// Makes the writes of a plan in their order, and remembers what the maps have to show before the next
    /// plan for the task. The first failure ends it: the rest is planned anew.
    async fn apply(
        &self,
        task: &ReconcileKey,
        plan: Plan,
    ) -> Result<Option<Duration>, ReconcileError> {
        if let Some(adopter) = &plan.adopter
            && !self.may_adopt(adopter).await?
        {
            return Ok(Some(CATCH_UP));
        }
        let mut effects = Vec::new();
        let mut failure = None;
        for (nth, write) in plan.writes.iter().enumerate() {
            let done = write.apply(&self.client).await;
            if let Some(event) = plan.events.get(&nth) {
                self.record(task, event, &done);
            }
            match done {
                Ok(effect) => effects.extend(effect),
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        if !effects.is_empty() {
            tracing::debug!(%task, writes = effects.len(), "written");
            lock(&self.memory.awaited).insert(task.clone(), effects, Instant::now());
        }
        if failure.is_none()
            && let Some(recorder) = self.recorder(task)
        {
            plan.said.into_iter().for_each(|said| recorder.record(said));
        }
        match failure {
            // Somebody was faster; the event of that change brings the task back.
            Some(error) if error.is_conflict() => Ok(Some(CATCH_UP)),
            Some(error) if self.ends_with_namespace(task, &error) => Ok(None),
            Some(error) => Err(error.into()),
            None => Ok(plan.again_in),
        }
    }

    fn recorder(&self, task: &ReconcileKey) -> Option<&Recorder> {
        self.recorders.get(task.event_source()?)
    }

    /// Records the event of one write.
    fn record(
        &self,
        task: &ReconcileKey,
        event: &WriteEvent,
        done: &Result<Option<Effect>, ClientError>,
    ) {
        let Some(recorder) = self.recorder(task) else { return };
        let said = match done {
            Ok(Some(effect)) => Some(event.done(&effect.key)),
            // It was there, or it was changed meanwhile: the event is another writer's.
            Ok(None) => None,
            Err(error) if error.is_conflict() || self.ends_with_namespace(task, error) => None,
            Err(error) => event.failed(&error.to_string()),
        };
        said.into_iter().for_each(|said| recorder.record(said));
    }

    /// Nothing more is made in a namespace that ends.
    fn ends_with_namespace(&self, task: &ReconcileKey, error: &ClientError) -> bool {
        let ends = |namespace| self.informers.is_ending(namespace);
        error.is_forbidden() && task.namespace().is_some_and(ends)
    }

    /// Whether the maps show what the task's last plan did.
    fn has_caught_up(&self, task: &ReconcileKey) -> bool {
        let mut awaited = lock(&self.memory.awaited);
        let Some((since, effects)) = awaited.get_mut(task) else { return true };
        effects.retain(|effect| !self.informers.shows(effect));
        if effects.is_empty() || since.elapsed() > PATIENCE {
            awaited.remove(task);
            return true;
        }
        false
    }

    async fn give_ranges(&self, name: &str) -> Result<Option<Duration>, ReconcileError> {
        let Some(node) = self.informers.nodes.get(&ObjectKey::new("", name)) else {
            return Ok(None);
        };
        // Nodes report all the time, and have a range for good: all of them are only looked at for one that has none.
        if node_cidr::has_ranges(&node) {
            return Ok(None);
        }
        let mut given = self.memory.given.lock().await;
        let nodes = self.informers.nodes.objects();
        // By uid: a node that was deleted and made again has nothing.
        let uids: BTreeSet<&str> = nodes.iter().map(|node| node.metadata.uid.as_str()).collect();
        given.retain(|uid, _| uids.contains(uid.as_str()));
        if given.contains_key(&node.metadata.uid) {
            return Ok(None);
        }
        let shown = nodes.iter().flat_map(|node| node_cidr::of_node(node));
        let taken: BTreeSet<Cidr> = shown.chain(given.values().flatten().copied()).collect();
        let plan = node_cidr::plan(&node, &self.settings.node_ranges, &taken)?;
        for write in &plan.writes {
            let ranges = node_cidr::of_write(write);
            write.apply(&self.client).await?;
            given.insert(node.metadata.uid.clone(), ranges);
        }
        Ok(None)
    }
}

/// The time of day.
pub fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time::from_unix(i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
