//! The plans of daemon sets, stateful sets, jobs and cron jobs, from the caches.

use apiserver_clock::now;
use apiserver_controllers::Plan;
use apiserver_workloads::{cron_job, daemon_set, job, stateful_set};
use proto_client::ObjectKey;

use super::{Reconciler, lock};
use crate::keys::ReconcileKey;

impl Reconciler {
    /// Plans nothing for the keys that `dispatch` handles, because they need live reads.
    pub(super) fn plan_workload(&self, reconcile_key: &ReconcileKey) -> Plan {
        match reconcile_key {
            ReconcileKey::DaemonSet(key) => self.plan_daemon_set(key),
            ReconcileKey::StatefulSet(key) => self.plan_stateful_set(key),
            ReconcileKey::CronJob(key) => self.plan_cron_job(key),
            ReconcileKey::Job(key) => self.plan_job(key),
            ReconcileKey::JobOrphan(key) => self.plan_job_orphan(key),
            ReconcileKey::JobExpiry(key) => self.plan_job_expiry(key),
            _ => Plan::default(),
        }
    }

    fn plan_daemon_set(&self, key: &ObjectKey) -> Plan {
        let informers = &self.informers;
        let Some(set) = informers.daemon_sets.get(key) else { return Plan::default() };
        let seen = daemon_set::Observed {
            set: &set,
            pods: &informers.pods.within(&key.namespace),
            revisions: &informers.revisions.within(&key.namespace),
            nodes: &informers.nodes.objects(),
        };
        daemon_set::plan(informers.names, &seen, &mut lock(&self.state.failed_pods), now())
    }

    fn plan_stateful_set(&self, key: &ObjectKey) -> Plan {
        let informers = &self.informers;
        let Some(set) = informers.stateful_sets.get(key) else { return Plan::default() };
        let seen = stateful_set::Observed {
            set: &set,
            pods: &informers.pods.within(&key.namespace),
            revisions: &informers.revisions.within(&key.namespace),
            claim: &|name| informers.claims.get(&ObjectKey::new(&key.namespace, name)),
        };
        stateful_set::plan(informers.names, &seen, now())
    }

    fn plan_cron_job(&self, key: &ObjectKey) -> Plan {
        let informers = &self.informers;
        let Some(cron_job) = informers.cron_jobs.get(key) else { return Plan::default() };
        let jobs = informers.jobs.within(&key.namespace);
        let seen = cron_job::Observed { cron_job: &cron_job, jobs: &jobs };
        cron_job::plan(informers.names, &seen, now())
    }

    fn plan_job(&self, key: &ObjectKey) -> Plan {
        let informers = &self.informers;
        let Some(job) = informers.jobs.get(key) else { return Plan::default() };
        let seen = job::Observed { job: &job, pods: &informers.pods.within(&key.namespace) };
        job::plan(informers.names, &seen, now())
    }

    fn plan_job_orphan(&self, key: &ObjectKey) -> Plan {
        let informers = &self.informers;
        let Some(pod) = informers.pods.get(key) else { return Plan::default() };
        let owners = &pod.metadata.owner_references;
        let owner = owners.iter().find(|owner| owner.controller == Some(true));
        let job = owner
            .and_then(|owner| informers.jobs.get(&ObjectKey::new(&key.namespace, &owner.name)));
        job::plan_orphan(informers.names, &pod, job.as_deref())
    }

    fn plan_job_expiry(&self, key: &ObjectKey) -> Plan {
        let job = self.informers.jobs.get(key);
        job.map(|job| job::plan_expiry(&job, now())).unwrap_or_default()
    }
}
