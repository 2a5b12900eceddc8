//! A ResourceQuota is exact while pods come and go, and what they have used is given back.

use anyhow::{Result, ensure};
use orch_tests::wait::until;
use proto_api::core::v1::{Pod, ResourceQuota};
use proto_client::{Client, ClientError, DeleteParams, ListParams, WriteParams};
use serde_json::{from_value, json};
use tokio::task::JoinSet;

use crate::context::{Context, PATIENCE};

const NAMESPACE: &str = "quota";
const PODS_MAX: usize = 5;
const CLIENTS: usize = 64;
const ROUNDS: usize = 20;

/// A pod that no node takes.
fn pod(name: &str) -> Result<Pod> {
    let container = json!({"name": "main", "image": "orch.local/demo:1", "resources": {"requests": {"cpu": "100m"}}});
    Ok(from_value(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"nodeSelector": {"nobody": "has-it"}, "containers": [container]},
    }))?)
}

/// Waits until the quota has used this.
async fn used(client: &Client, pods: usize) -> Result<()> {
    let quotas = client.within::<ResourceQuota>(NAMESPACE);
    let wanted = format!("pods {pods}, CPU {}m", pods * 100);
    until(&format!("the quota has used {wanted}"), PATIENCE, async || {
        let quota = quotas.get("q").await.map_err(|error| error.to_string())?;
        let of = |name: &str| quota.status.used.get(name).copied();
        let milli = of("requests.cpu").map(|cpu| cpu.as_milli());
        let found = format!("pods {:?}, CPU {milli:?}", of("pods").map(|count| count.value()));
        let count = i64::try_from(pods).unwrap_or(i64::MAX);
        match (of("pods").map(|c| c.value()), milli) {
            (Some(used), Some(cpu)) if used == count && cpu == count * 100 => Ok(()),
            _ => Err(found),
        }
    })
    .await
}

pub async fn a_quota_is_exact_while_pods_come_and_go(c: &Context) -> Result<()> {
    c.namespace(NAMESPACE).await?;
    c.apply(&format!(
        "apiVersion: v1\nkind: ResourceQuota\nmetadata: {{name: q, namespace: {NAMESPACE}}}\n\
         spec: {{hard: {{pods: {PODS_MAX}, requests.cpu: 10}}}}\n"
    ))
    .await?;
    used(&c.client, 0).await?;
    let mut clients = JoinSet::new();
    for nth in 0..CLIENTS {
        clients.spawn(come_and_go(c.client.clone(), nth));
    }
    let (mut made, mut refused) = (0, 0);
    while let Some(ended) = clients.join_next().await {
        let (of_one, refused_of_one) = ended??;
        made += of_one;
        refused += refused_of_one;
    }
    ensure!(made > PODS_MAX && refused > 0, "{made} pods were created, {refused} refused");
    let pods = c.client.within::<Pod>(NAMESPACE);
    let left = pods.list(&ListParams::default()).await?.items;
    used(&c.client, left.len()).await?;
    for pod in &left {
        pods.delete(&pod.metadata.name, &DeleteParams::now(&pod.metadata.uid)).await?;
    }
    used(&c.client, 0).await?;
    c.discard(NAMESPACE).await
}

/// Creates and deletes pods; there are never more than the quota allows. Returns how many were created, and how many refused.
async fn come_and_go(client: Client, nth: usize) -> Result<(usize, usize)> {
    let pods = client.within::<Pod>(NAMESPACE);
    let (mut made, mut refused) = (0, 0);
    for round in 0..ROUNDS {
        let name = format!("p-{nth}-{round}");
        match pods.create(&pod(&name)?, &WriteParams::default()).await {
            Ok(pod) => {
                made += 1;
                let all = pods.list(&ListParams::default()).await?.items;
                ensure!(all.len() <= PODS_MAX, "{} pods exist", all.len());
                pods.delete(&name, &DeleteParams::now(&pod.metadata.uid)).await?;
            }
            Err(ClientError::Api { status, .. }) if status.code == 403 => {
                ensure!(status.message.contains("exceeded quota: q"), "{}", status.message);
                refused += 1;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok((made, refused))
}
