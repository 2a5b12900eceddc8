//! One recount: reads the quota, lists what it counts, and writes its status.
//!
//! The lists are read after the quota. What is created in between changes the quota's amounts: then the status is written with what was added
//! meanwhile on top of what was counted, so that nothing is ever missing in it. What was both added and counted is counted twice, until the next
//! recount, which follows soon.

use std::time::Duration;

use apiserver_clock::now;
use apiserver_quota::{CountedResource, QuotaUsage, with_growth};
use proto_api::core::v1::{PersistentVolumeClaim, Pod, ResourceQuota, Service};
use proto_api::{ObjectKey, Resource};
use proto_client::{Api, Client, ClientError, ListParams, WriteParams};

use crate::kinds::{ReadKind, counted_kinds, custom_kinds};

/// Objects in one answer of the API server.
const PAGE_LEN: u32 = 500;
/// When to count again after others have changed the quota meanwhile.
const REQUEUE: Duration = Duration::from_millis(500);
/// Attempts to write a status while others change the quota.
const WRITE_TRIES: usize = 8;

/// Recalculates the usage of a quota from lists of the API server.
pub struct Recount {
    /// Reads and writes.
    pub client: Client,
    /// See `QuotaController::sync_period`.
    pub sync_period: Duration,
}

impl Recount {
    /// Counts one quota, if it still exists. Returns when to count it again.
    pub async fn run(&self, key: &ObjectKey) -> Result<Option<Duration>, ClientError> {
        let quotas = self.client.within::<ResourceQuota>(&key.namespace);
        let Some(mut quota) = find(&quotas, &key.name).await? else { return Ok(None) };
        let names = self.client.names();
        let mut kinds = counted_kinds(names);
        kinds.extend(custom_kinds(&self.client, [&quota.spec], &kinds).await?);
        let spec = quota.spec.clone();
        let mut usage = QuotaUsage::new(&spec, names, now());
        for read in kinds.iter().filter(|read| usage.needs(&read.kind)).collect::<Vec<_>>() {
            self.count(read, &key.namespace, &mut usage).await?;
        }
        let again = usage.changes_in().map_or(self.sync_period, |due| due.min(self.sync_period));
        let counted = usage.status(|name| kinds.iter().any(|k| k.kind.is_counted_by(name, names)));
        let before = quota.status.used.clone();
        for _ in 0..WRITE_TRIES {
            let status = with_growth(&counted, &before, &quota.status.used);
            let is_exact = status == counted;
            if status == quota.status {
                return Ok(Some(if is_exact { again } else { REQUEUE }));
            }
            quota.status = status;
            match quotas.update_status(&quota, &WriteParams::default()).await {
                Ok(_) => return Ok(Some(if is_exact { again } else { REQUEUE })),
                Err(error) if error.is_not_found() => return Ok(None),
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(error),
            }
            let Some(found) = find(&quotas, &key.name).await? else { return Ok(None) };
            if found.spec != spec || found.metadata.uid != quota.metadata.uid {
                break;
            }
            quota = found;
        }
        Ok(Some(REQUEUE))
    }

    /// Adds the objects of a kind.
    async fn count(
        &self,
        read: &ReadKind,
        namespace: &str,
        usage: &mut QuotaUsage<'_>,
    ) -> Result<(), ClientError> {
        let client = &self.client;
        match (read.kind.group.as_str(), read.kind.plural.as_str()) {
            ("", "pods") => {
                each_page(&client.within::<Pod>(namespace), |pods| usage.add_pods(&pods)).await
            }
            ("", "services") => {
                let services = client.within::<Service>(namespace);
                each_page(&services, |services| usage.add_services(&services)).await
            }
            ("", "persistentvolumeclaims") => {
                let claims = client.within::<PersistentVolumeClaim>(namespace);
                each_page(&claims, |claims| usage.add_claims(&claims)).await
            }
            _ => {
                let objects = client.metadata(read.collection(Some(namespace)));
                let kind: &CountedResource = &read.kind;
                let count = |page: Vec<_>| {
                    usage.add_count(kind, i64::try_from(page.len()).unwrap_or(i64::MAX));
                };
                each_page(&objects, count).await
            }
        }
    }
}

/// The quota, if it exists. Listed, because the controller's role has no `get`.
async fn find(
    quotas: &Api<ResourceQuota>,
    name: &str,
) -> Result<Option<ResourceQuota>, ClientError> {
    Ok(quotas.list(&ListParams::name(name)).await?.items.into_iter().next())
}

/// Lists all objects, page by page at one version.
async fn each_page<T: Resource>(
    api: &Api<T>,
    mut take: impl FnMut(Vec<T>),
) -> Result<(), ClientError> {
    let mut params = ListParams { limit: Some(PAGE_LEN), ..ListParams::default() };
    loop {
        let page = api.list(&params).await?;
        take(page.items);
        if page.metadata.continue_.is_empty() {
            return Ok(());
        }
        params.continue_ = Some(page.metadata.continue_);
    }
}
