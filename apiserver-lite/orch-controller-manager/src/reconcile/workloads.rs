//! The plans of daemon sets, stateful sets, jobs and cron jobs, from the caches. A job that a cache lacks is read from the server before it counts as
//! deleted, and one that is to be deleted is read again.

use std::sync::Arc;

use apiserver_clock::now;
use apiserver_controllers::Plan;
use apiserver_workloads::{cron_job, daemon_set, job, stateful_set};
use proto_api::ObjectKey;
use proto_api::batch::v1::Job;
use proto_client::{Client, ListParams};

use super::{ReconcileError, Reconciler, lock};
use crate::keys::ReconcileKey;

impl Reconciler {
    /// Plans nothing for the keys whose plans need live reads.
    pub(super) fn plan_workload(&self, reconcile_key: &ReconcileKey) -> Plan {
        match reconcile_key {
            ReconcileKey::DaemonSet(key) => self.plan_daemon_set(key),
            ReconcileKey::StatefulSet(key) => self.plan_stateful_set(key),
            ReconcileKey::Job(key) => self.plan_job(key),
            _ => Plan::default(),
        }
    }

    fn plan_daemon_set(&self, key: &ObjectKey) -> Plan {
        let informers = &self.informers;
        let Some(set) = informers.daemon_sets.get(key) else { return Plan::default() };
        let seen = daemon_set::ObservedDaemonSet {
            set: &set,
            pods: &informers.pods_to_claim(&set.metadata, set.spec.selector.as_ref()),
            revisions: &informers.revisions.within(&key.namespace),
            nodes: &informers.nodes.objects(),
        };
        daemon_set::plan(informers.names, &seen, &mut lock(&self.state.failed_pods), now())
    }

    fn plan_stateful_set(&self, key: &ObjectKey) -> Plan {
        let informers = &self.informers;
        let Some(set) = informers.stateful_sets.get(key) else { return Plan::default() };
        let named = |name: &str| ObjectKey::new(&key.namespace, name);
        let seen = stateful_set::ObservedStatefulSet {
            set: &set,
            pods: &informers.pods_to_claim(&set.metadata, set.spec.selector.as_ref()),
            revisions: &informers.revisions.within(&key.namespace),
            claim: &|name| informers.claims.get(&named(name)),
            features: self.settings.stateful_sets,
        };
        let has_pod = |name: &str| informers.pods.get(&named(name)).is_some();
        stateful_set::plan_own(informers.names, &seen, &has_pod, now())
    }

    /// From the jobs that the server has, if the cache lacks an active one.
    pub(super) async fn plan_cron_job(
        &self,
        client: &Client,
        key: &ObjectKey,
    ) -> Result<Plan, ReconcileError> {
        let informers = &self.informers;
        let Some(cron_job) = informers.cron_jobs.get(key) else { return Ok(Plan::default()) };
        let mut jobs = informers.jobs.within(&key.namespace);
        if cron_job::lacks_active(&cron_job, &jobs) {
            let api = client.within::<Job>(&key.namespace);
            let listed = api.list(&ListParams::default()).await?;
            jobs = listed.items.into_iter().map(Arc::new).collect();
        }
        let seen = cron_job::ObservedCronJob { cron_job: &cron_job, jobs: &jobs };
        let mut resumed = lock(&self.state.resumed_schedules);
        Ok(cron_job::plan(informers.names, &seen, &mut resumed, now()))
    }

    fn plan_job(&self, key: &ObjectKey) -> Plan {
        let informers = &self.informers;
        let Some(job) = informers.jobs.get(key) else { return Plan::default() };
        let pods = informers.pods_to_claim(&job.metadata, job.spec.selector.as_ref());
        let seen = job::ObservedJob { job: &job, pods: &pods };
        job::plan(informers.names, &seen, &mut lock(&self.state.uncounted_jobs), now())
    }

    /// Plans to let a pod go that has lost its job.
    pub(super) async fn plan_job_orphan(
        &self,
        client: &Client,
        key: &ObjectKey,
    ) -> Result<Plan, ReconcileError> {
        let informers = &self.informers;
        let Some(pod) = informers.pods.get(key) else { return Ok(Plan::default()) };
        let owners = &pod.metadata.owner_references;
        let owner = owners.iter().find(|owner| owner.controller == Some(true));
        let cached = owner
            .and_then(|owner| informers.jobs.get(&ObjectKey::new(&key.namespace, &owner.name)));
        let plan = job::plan_orphan(informers.names, &pod, cached.as_deref());
        let Some(owner) = owner.filter(|_| !plan.writes.is_empty()) else { return Ok(plan) };
        let found = client.within::<Job>(&key.namespace).find(&owner.name).await?;
        Ok(job::plan_orphan(informers.names, &pod, found.as_ref()))
    }

    /// Plans the deletion of a finished job.
    pub(super) async fn plan_job_expiry(
        &self,
        client: &Client,
        key: &ObjectKey,
    ) -> Result<Plan, ReconcileError> {
        let Some(job) = self.informers.jobs.get(key) else { return Ok(Plan::default()) };
        let plan = job::plan_expiry(&job, now());
        if plan.writes.is_empty() {
            return Ok(plan);
        }
        // Its time to live may have been extended.
        let found = client.within::<Job>(&key.namespace).find(&key.name).await?;
        Ok(found.map(|job| job::plan_expiry(&job, now())).unwrap_or_default())
    }
}
