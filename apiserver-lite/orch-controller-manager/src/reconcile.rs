//! Reconciles one key: reads the caches, calls the controller's plan function and executes its writes.

mod adoption;
mod disruption;
mod namespace;
mod pods;
mod services;
mod tokens;
mod volumes;
mod workloads;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use apiserver_clock::now;
use apiserver_controller_io::accounts::Accounts;
use apiserver_controller_io::execute_plan::{PlanExecution, execute_plan};
use apiserver_controller_io::execute_write::execute;
use apiserver_controller_io::expiring_map::ExpiringMap;
use apiserver_controller_io::informers::Informers;
use apiserver_controller_io::lost_races::{LostRaces, is_lost_race};
use apiserver_controller_io::observe_write::retain_present;
use apiserver_controllers::addresses::has_ended;
use apiserver_controllers::api_writes::{ApiWrite, Effect};
use apiserver_controllers::disruption::{OwnerScale, controller as owner_of};
use apiserver_controllers::disruption_target::Disruption;
use apiserver_controllers::endpoint_slices::Manager;
use apiserver_controllers::load_balancer_addresses::AddressShortage;
use apiserver_controllers::node_cidr;
use apiserver_controllers::node_lifecycle::{
    self, ClusterHealth, NodeClocks, NodeHealth, ZoneEvictions,
};
use apiserver_controllers::volumes::{VolumeAnnotations, attach};
use apiserver_controllers::write_events::WriteEvent;
use apiserver_controllers::{
    Plan, cluster_role_aggregation, deployment, pod_gc, replica_set, replication_controller,
    root_ca, service_account,
};
use apiserver_workloads::cron_job::ResumedSchedules;
use apiserver_workloads::daemon_set::FailedPods;
use apiserver_workloads::job::UncountedJobs;
use proto_api::core::v1::Namespace;
use proto_api::{Cidr, ObjectKey, Quantity};
use proto_client::events::Recorder;
use proto_client::{Client, ClientError};
use proto_daemon::statusz::{StatusBoard, TaskStatus};
use proto_daemon::work_queue::{Requeue, WorkQueueMetrics};
use tokio::sync::Semaphore;

use crate::keys::{CONTROLLERS, ReconcileKey};
use crate::settings::Settings;

/// How long the next plan of a key waits for the caches to show the last one's writes. After that the objects are read from the server.
const OBSERVE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long writes are remembered whose key is not reconciled again.
const UNOBSERVED_KEPT: Duration = Duration::from_secs(3600);
/// When to reconcile again if no change of the caches queues the key.
const REQUEUE: Duration = Duration::from_millis(50);

/// Executes the reconciles of all controllers.
pub struct Reconciler {
    accounts: Accounts,
    informers: Informers,
    settings: Settings,
    annotations: VolumeAnnotations,
    state: ReconcilerState,
    status: BTreeMap<&'static str, TaskStatus>,
    recorders: BTreeMap<&'static str, Recorder>,
}

/// Status page, metrics and events of the controllers.
#[derive(Clone)]
pub struct Observability {
    /// The status page.
    pub board: StatusBoard,
    /// The metrics of work queues.
    pub queue_metrics: WorkQueueMetrics,
    /// Event recorders by source component.
    pub recorders: BTreeMap<&'static str, Recorder>,
}

/// State that is kept between reconciles. Losing it costs time, not correctness.
struct ReconcilerState {
    /// Writes of the last plan of each key that the caches do not show yet.
    unobserved: Mutex<ExpiringMap<ReconcileKey, Vec<Effect>>>,
    /// The last observed state of each node.
    node_health: Mutex<BTreeMap<String, NodeHealth>>,
    /// The health of the cluster at the last reconcile of a node.
    cluster: Mutex<Option<ClusterHealth>>,
    /// The latest evictions of nodes.
    zone_evictions: Mutex<ZoneEvictions>,
    /// When each node that pods name was first found missing.
    vanished: Mutex<ExpiringMap<String, ()>>,
    /// When each pod with a limited toleration was first seen with its node's taints.
    tainted: Mutex<BTreeMap<ObjectKey, pods::TaintedPod>>,
    /// The CIDRs assigned to each node, by uid. Locked during an assignment, so that no two nodes get the same.
    assigned_cidrs: tokio::sync::Mutex<BTreeMap<String, Vec<Cidr>>>,
    /// The state of the attach-detach controller.
    attaching: Mutex<attach::AttachState>,
    /// The requested size that was last announced for each claim, by uid.
    announced: Mutex<BTreeMap<String, Quantity>>,
    /// What earlier turns of budgets have read: scales of controllers by uid.
    read_scales: Mutex<BTreeMap<ObjectKey, BTreeMap<String, OwnerScale>>>,
    /// The back-off of failed pods of daemon sets.
    failed_pods: Mutex<FailedPods>,
    /// Where the schedules of cron jobs go on after the clock was set back.
    resumed_schedules: Mutex<ResumedSchedules>,
    /// The jobs whose pods the server does not let us count.
    uncounted_jobs: Mutex<UncountedJobs>,
    /// How often keys have lost a race against other writers.
    races: LostRaces<ReconcileKey>,
    /// Turns of rounds of namespace deletion.
    namespace_rounds: Semaphore,
}

impl Default for ReconcilerState {
    fn default() -> Self {
        Self {
            unobserved: Mutex::new(ExpiringMap::new(UNOBSERVED_KEPT)),
            node_health: Mutex::default(),
            cluster: Mutex::default(),
            zone_evictions: Mutex::default(),
            vanished: Mutex::new(ExpiringMap::new(pods::VANISHED)),
            tainted: Mutex::default(),
            assigned_cidrs: tokio::sync::Mutex::default(),
            attaching: Mutex::default(),
            announced: Mutex::default(),
            read_scales: Mutex::default(),
            failed_pods: Mutex::default(),
            resumed_schedules: Mutex::default(),
            uncounted_jobs: Mutex::default(),
            races: LostRaces::default(),
            namespace_rounds: Semaphore::new(namespace::ROUNDS_MAX),
        }
    }
}

/// Why a reconcile failed; it is retried.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// A request to the API server failed.
    #[error("the request to the API server failed")]
    Client(#[from] ClientError),
    /// What was to be patched is gone; the cache lags behind.
    #[error("the object to patch does not exist")]
    Gone(#[source] ClientError),
    /// No pod CIDR is left.
    #[error("cannot allocate a pod CIDR")]
    Exhausted(#[from] node_cidr::RangeExhausted),
    /// A load balancer has no address.
    #[error(transparent)]
    Addresses(#[from] AddressShortage),
    /// A token cannot be signed.
    #[error("cannot sign the service account token")]
    Token(#[from] apiserver_token::KeyError),
}

impl ReconcileError {
    /// Whether another client was faster; the next run sees what it has written.
    fn is_race(&self) -> bool {
        matches!(self, Self::Client(error) if is_lost_race(error)) || matches!(self, Self::Gone(_))
    }
}

impl Reconciler {
    /// A reconciler without state.
    pub fn new(
        accounts: Accounts,
        informers: Informers,
        settings: Settings,
        shown: Observability,
    ) -> Self {
        let Observability { board, recorders, .. } = shown;
        let status = CONTROLLERS.iter().map(|name| (*name, board.task(*name))).collect();
        let (annotations, state) =
            (VolumeAnnotations::new(informers.names), ReconcilerState::default());
        Self { accounts, informers, settings, annotations, state, status, recorders }
    }

    /// Reconciles a key. Returns when to reconcile it again if nothing changes.
    pub async fn run(&self, reconcile_key: ReconcileKey) -> Result<Requeue, ReconcileError> {
        if !self.has_observed_writes(&reconcile_key).await? {
            return Ok(Requeue::NotBegun(REQUEUE));
        }
        let controller = reconcile_key.controller();
        let status = self.status.get(controller);
        if let Some(status) = status {
            status.started(reconcile_key.to_string());
        }
        let done = self.dispatch(&reconcile_key).await;
        let done = self.state.races.retry(&reconcile_key, done, ReconcileError::is_race);
        match (&done, status) {
            (Ok(_), Some(status)) => status.done(""),
            (Err(error), Some(status)) => status.failed(proto_daemon::exit::chain(error)),
            _ => {}
        }
        done.map(Requeue::from)
    }

    async fn dispatch(
        &self,
        reconcile_key: &ReconcileKey,
    ) -> Result<Option<Duration>, ReconcileError> {
        let client = self.accounts.of_controller(reconcile_key.controller());
        match reconcile_key {
            ReconcileKey::Namespace(name) => {
                return self.delete_namespace_content(client, name).await;
            }
            ReconcileKey::PodGc(key) => return self.collect_pod(reconcile_key, key).await,
            ReconcileKey::Disruption(key) => {
                return self.update_disruption(reconcile_key, key).await;
            }
            ReconcileKey::NodeIpam(name) => return self.assign_cidrs(client, name).await,
            ReconcileKey::LoadBalancer(key) => {
                return self.assign_addresses(reconcile_key, key).await;
            }
            ReconcileKey::Claim(_)
            | ReconcileKey::Volume(_)
            | ReconcileKey::ClaimProtection(_)
            | ReconcileKey::VolumeProtection(_)
            | ReconcileKey::EphemeralClaims(_)
            | ReconcileKey::Attachments(_)
            | ReconcileKey::Expand(_) => return self.reconcile_volumes(reconcile_key).await,
            _ => {}
        }
        let plan = self.plan(client, reconcile_key).await?;
        self.apply(reconcile_key, plan).await
    }

    async fn plan(
        &self,
        client: &Client,
        reconcile_key: &ReconcileKey,
    ) -> Result<Plan, ReconcileError> {
        match reconcile_key {
            ReconcileKey::AccountToken(account) => self.plan_tokens(client, account).await,
            ReconcileKey::TokenReference(reference) => {
                self.plan_token_reference(client, reference).await
            }
            ReconcileKey::Endpoints(key) => self.plan_endpoints(client, key).await,
            ReconcileKey::Slices(key) => self.plan_slices(client, key, Manager::Selector).await,
            ReconcileKey::Mirror(key) => self.plan_slices(client, key, Manager::Mirror).await,
            ReconcileKey::CronJob(key) => self.plan_cron_job(client, key).await,
            ReconcileKey::JobOrphan(key) => self.plan_job_orphan(client, key).await,
            ReconcileKey::JobExpiry(key) => self.plan_job_expiry(client, key).await,
            _ => Ok(self.plan_from_caches(reconcile_key)),
        }
    }

    fn plan_from_caches(&self, reconcile_key: &ReconcileKey) -> Plan {
        let (informers, names) = (&self.informers, self.informers.names);
        match reconcile_key {
            ReconcileKey::ServiceAccount(namespace) => {
                self.within_namespace(namespace, |namespace, key| {
                    let existing = informers.service_accounts.get(&key(service_account::NAME));
                    service_account::plan(namespace, existing.as_deref())
                })
            }
            ReconcileKey::RootCa(namespace) => match &self.settings.root_ca {
                Some(ca) => self.within_namespace(namespace, |namespace, key| {
                    let existing = informers.root_cas.get(&key(names.root_ca_config_map()));
                    root_ca::plan(names, namespace, ca, existing.as_deref())
                }),
                None => Plan::default(),
            },
            ReconcileKey::EndedPods => {
                let pods = informers.pods.objects();
                let plan = pod_gc::plan_ended(&pods, self.settings.ended_pods_max);
                self.add_disruption_targets(plan, &pods, Disruption::Cleanup)
            }
            ReconcileKey::NodeLifecycle(name) => self.plan_node(name),
            ReconcileKey::PodReadiness(key) => self.plan_pod_readiness(key),
            ReconcileKey::TaintEviction(key) => self.plan_taint_eviction(key),
            ReconcileKey::ReplicaSet(key) => {
                let Some(set) = informers.replica_sets.get(key) else { return Plan::default() };
                let pods = informers.pods_to_claim(&set.metadata, set.spec.selector.as_ref());
                let beside = informers.pods_beside(&set, &pods);
                replica_set::plan_beside(names, &set, &pods, &beside, now())
            }
            ReconcileKey::ReplicationController(key) => {
                let found = informers.replication_controllers.get(key);
                let Some(found) = found else { return Plan::default() };
                let pods = informers.pods_of_controller(&found.metadata, &found.spec.selector);
                replication_controller::plan(names, &found, &pods, now())
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
            ReconcileKey::RoleAggregation(name) => {
                let role = informers.cluster_roles.get(&ObjectKey::new("", name));
                let plan =
                    |role| cluster_role_aggregation::plan(role, &informers.cluster_roles.objects());
                role.as_deref().map(plan).unwrap_or_default()
            }
            _ => self.plan_workload(reconcile_key),
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

    fn plan_node(&self, name: &str) -> Plan {
        // Until the plan is noted no other node is planned.
        let mut evicted = lock(&self.state.zone_evictions);
        let key = ObjectKey::new("", name);
        let found = self.informers.nodes.get(&key);
        let cluster = match found.as_deref() {
            Some(node) if node_lifecycle::is_ready(node) => ClusterHealth::SomeReady,
            found => {
                let all = self.informers.nodes.objects();
                let all = all.iter().map(|node| &**node);
                let rates = &self.settings.evictions;
                ClusterHealth::assess(self.informers.names, rates, found, all, &evicted, now())
            }
        };
        let mut health = lock(&self.state.node_health);
        let steady = Instant::now();
        let before = lock(&self.state.cluster).replace(cluster);
        if before == Some(ClusterHealth::NoneReady) && cluster != ClusterHealth::NoneReady {
            // The other kubelets could not report either: their grace periods start now, as in Kubernetes.
            health.values_mut().for_each(|node| node.restart_grace(steady));
        }
        let recorder = self.recorder(&ReconcileKey::NodeLifecycle(name.to_owned()));
        let record = |before: Option<&NodeHealth>, after: Option<&NodeHealth>| {
            let event = node_lifecycle::transition_event(before, after);
            recorder.zip(event).into_iter().for_each(|(recorder, event)| recorder.record(event));
        };
        let Some(node) = found else {
            record(health.remove(name).as_ref(), None);
            return Plan::default();
        };
        let lease = ObjectKey::new(self.informers.names.node_lease_namespace(), name);
        let lease = self.informers.leases.get(&lease);
        let clocks = NodeClocks { steady, wall: now() };
        let latest = NodeHealth::update(health.get(name), &node, lease.as_deref(), clocks.steady);
        record(health.get(name), Some(&latest));
        health.insert(name.to_owned(), latest.clone());
        let (names, grace) = (self.informers.names, self.settings.grace.for_node(&node));
        let plan = node_lifecycle::plan(names, &node, &latest, grace, clocks, cluster);
        evicted.note(names, &self.settings.evictions, &node, &plan, clocks.wall);
        plan
    }

    /// Gives a zone its turn of evictions back when the taints of its node are refused. What a server that fails has written is not known.
    fn take_turn_back(&self, reconcile_key: &ReconcileKey, error: &ClientError) {
        if let ReconcileKey::NodeLifecycle(node) = reconcile_key
            && error.code().is_some_and(|code| code < 500)
        {
            lock(&self.state.zone_evictions).withdraw_eviction(node);
        }
    }

    /// Executes the writes of a plan in order, without those that depend on one that failed, and remembers what the caches have to show before the next
    /// plan of the key. Fails as the first write that did.
    async fn apply(
        &self,
        reconcile_key: &ReconcileKey,
        plan: Plan,
    ) -> Result<Option<Duration>, ReconcileError> {
        let client = self.accounts.of_controller(reconcile_key.controller());
        if let Some(adopter) = &plan.adopter
            && !self.can_adopt(client, adopter).await?
        {
            return Ok(Some(REQUEUE));
        }
        let execution = execute_plan(&plan, client, |nth, done| {
            if let Some(event) = plan.events.get(&nth) {
                self.record(reconcile_key, event, done);
            }
        });
        let PlanExecution { mut effects, failures } = execution.await;
        let mut reported =
            failures.iter().filter(|(_, why)| self.is_worth_telling(reconcile_key, why));
        let status = reported
            .find_map(|(nth, why)| plan.status_of_failure(*nth, why.server_message(), now()));
        // Without it the failure is still an event, and the next try writes the status.
        if let Some(status) = status
            && let Ok(effect) = execute(&status, client).await
        {
            effects.extend(effect);
        }
        if !effects.is_empty() {
            tracing::debug!(%reconcile_key, writes = effects.len(), "plan executed");
            lock(&self.state.unobserved).insert(reconcile_key.clone(), effects, Instant::now());
        }
        let Some((nth, error)) = failures.into_iter().next() else {
            if let Some(recorder) = self.recorder(reconcile_key) {
                plan.reports.into_iter().for_each(|event| recorder.record(event));
            }
            return Ok(plan.requeue_after);
        };
        self.take_turn_back(reconcile_key, &error);
        match plan.writes.get(nth) {
            _ if self.ends_with_namespace(reconcile_key, &error) => Ok(None),
            Some(ApiWrite::Patch { .. }) if error.is_not_found() => {
                Err(ReconcileError::Gone(error))
            }
            _ => Err(error.into()),
        }
    }

    fn recorder(&self, reconcile_key: &ReconcileKey) -> Option<&Recorder> {
        self.recorders.get(reconcile_key.event_source()?)
    }

    /// Records the event of one write.
    fn record(
        &self,
        reconcile_key: &ReconcileKey,
        event: &WriteEvent,
        done: &Result<Option<Effect>, ClientError>,
    ) {
        let Some(recorder) = self.recorder(reconcile_key) else { return };
        let said = match done {
            Ok(Some(effect)) => Some(event.success(&effect.key)),
            // The object existed: its creator records the event.
            Ok(None) => None,
            Err(error) if !self.is_worth_telling(reconcile_key, error) => None,
            Err(error) => event.failure(&error.server_message()),
        };
        said.into_iter().for_each(|event| recorder.record(event));
    }

    /// Whether users are to see why a write failed: neither a race that the next try decides, nor the end of a namespace.
    fn is_worth_telling(&self, reconcile_key: &ReconcileKey, error: &ClientError) -> bool {
        let is_race = is_lost_race(error) && self.state.races.may_lose(reconcile_key);
        !is_race && !self.ends_with_namespace(reconcile_key, error)
    }

    /// Whether the write failed because the namespace is terminating.
    fn ends_with_namespace(&self, reconcile_key: &ReconcileKey, error: &ClientError) -> bool {
        let ends = |namespace| self.informers.is_terminating(namespace);
        error.is_forbidden() && reconcile_key.namespace().is_some_and(ends)
    }

    /// Whether the caches show the writes of the key's last plan, or those that they do not show were undone.
    async fn has_observed_writes(&self, key: &ReconcileKey) -> Result<bool, ClientError> {
        let late = {
            let mut unobserved = lock(&self.state.unobserved);
            let Some((since, effects)) = unobserved.get_mut(key) else { return Ok(true) };
            effects.retain(|effect| !self.informers.shows(effect));
            if !effects.is_empty() && since.elapsed() <= OBSERVE_TIMEOUT {
                return Ok(false);
            }
            effects.clone()
        };
        let standing = retain_present(&late, self.accounts.own()).await?;
        let mut unobserved = lock(&self.state.unobserved);
        if standing.is_empty() {
            unobserved.remove(key);
            return Ok(true);
        }
        tracing::warn!(%key, writes = standing.len(), "a watch lags: its cache does not contain writes of this controller; the key waits for them");
        unobserved.insert(key.clone(), standing, Instant::now());
        Ok(false)
    }

    async fn assign_cidrs(
        &self,
        client: &Client,
        name: &str,
    ) -> Result<Option<Duration>, ReconcileError> {
        let Some(node) = self.informers.nodes.get(&ObjectKey::new("", name)) else {
            return Ok(None);
        };
        // Nodes change often and keep their CIDRs: the other nodes are only listed for a node without.
        if node_cidr::has_ranges(&node) {
            return Ok(None);
        }
        let mut assigned = self.state.assigned_cidrs.lock().await;
        let nodes = self.informers.nodes.objects();
        // By uid: a node that was deleted and created again has none.
        let uids: BTreeSet<&str> = nodes.iter().map(|node| node.metadata.uid.as_str()).collect();
        assigned.retain(|uid, _| uids.contains(uid.as_str()));
        if assigned.contains_key(&node.metadata.uid) {
            return Ok(None);
        }
        let shown = nodes.iter().flat_map(|node| node_cidr::of_node(node));
        let others = assigned.values().flatten().chain(&self.settings.service_ranges).copied();
        let taken: BTreeSet<Cidr> = shown.chain(others).collect();
        let plan = node_cidr::plan(&node, &self.settings.node_ranges, &taken)?;
        for write in &plan.writes {
            let ranges = node_cidr::of_write(write);
            execute(write, client).await?;
            assigned.insert(node.metadata.uid.clone(), ranges);
        }
        Ok(None)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
