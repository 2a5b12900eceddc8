//! The objects of a cluster of hollow nodes: Services, each with a Deployment of some pods.

use anyhow::Result;
use proto_api::apps::v1::Deployment;
use proto_api::core::v1::{Namespace, Service, ServiceAccount};
use proto_client::{Client, WriteParams};
use serde_json::json;
use tokio::task::JoinSet;

use super::PATIENCE;
use super::control_plane::ControlPlane;

/// Namespaces among which the objects lie.
pub const NAMESPACES: usize = 4;
/// Clients that create them.
const CREATORS: usize = 8;

/// A namespace's name.
pub fn namespace(number: usize) -> String {
    format!("scale-{number}")
}

/// Creates Services with Deployments that have `pods` together, which tolerate a lost node for so many seconds.
pub async fn create(
    plane: &ControlPlane,
    services: usize,
    pods: usize,
    toleration: u32,
) -> Result<()> {
    let write = WriteParams::default();
    for number in 0..NAMESPACES {
        let object: Namespace =
            serde_json::from_value(json!({"metadata": {"name": namespace(number)}}))?;
        plane.client.all().create(&object, &write).await?;
    }
    for number in 0..NAMESPACES {
        let accounts = plane.client.within::<ServiceAccount>(&namespace(number));
        orch_tests::wait::until("the account of new pods", PATIENCE, async || {
            accounts.get("default").await
        })
        .await?;
    }
    let taints = ["not-ready", "unreachable"].map(|taint| plane.names.sub_label("node", taint));
    let mut creators = JoinSet::new();
    for first in 0..CREATORS {
        let (client, taints) = (plane.client.separate()?, taints.clone());
        creators.spawn(async move {
            for number in (first..services).step_by(CREATORS) {
                let replicas = pods / services + usize::from(number < pods % services);
                create_one(&client, number, replicas, &taints, toleration).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = creators.join_next().await {
        done??;
    }
    Ok(())
}

async fn create_one(
    client: &Client,
    number: usize,
    replicas: usize,
    taints: &[String],
    toleration: u32,
) -> Result<()> {
    let (name, namespace) = (format!("app-{number}"), namespace(number % NAMESPACES));
    let labels = json!({"app": name});
    let tolerations: Vec<_> = taints
        .iter()
        .map(|taint| {
            json!({"key": taint, "operator": "Exists", "effect": "NoExecute",
                   "tolerationSeconds": toleration})
        })
        .collect();
    let service: Service = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": 8080}]},
    }))?;
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "tolerations": tolerations,
                    "containers": [{
                        "name": "app",
                        "image": "registry.invalid/hollow:1",
                        "ports": [{"containerPort": 8080}],
                        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
                    }],
                },
            },
        },
    }))?;
    let write = WriteParams::default();
    client.within(&namespace).create(&service, &write).await?;
    client.within(&namespace).create(&deployment, &write).await?;
    Ok(())
}
