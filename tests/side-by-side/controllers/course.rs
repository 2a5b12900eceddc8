//! What is done to the objects, stage by stage.

use anyhow::{Context as _, Result};
use apiserver_bootstrap::apply::{apply_one, create_one};
use proto_api::Collection;
use proto_client::dynamic::Dynamic;
use proto_client::{Client, DeleteParams, Patch, WriteParams};
use serde_json::json;

const OBJECTS: &str = include_str!("objects.yaml");
const NAMESPACE: &str = "compared";

/// Changes after which everything comes to rest.
pub struct Stage {
    /// What it is about.
    pub name: &'static str,
    acts: &'static [Act],
}

enum Act {
    /// A merge patch of an object of a group: resource, name, patch as JSON.
    Change(&'static str, &'static str, &'static str, &'static str),
    /// A deletion with a propagation policy.
    Delete(&'static str, &'static str, &'static str, &'static str),
    /// A namespace's deletion.
    DeleteNamespace(&'static str),
    /// A patch of a node.
    ChangeNode(&'static str, &'static str),
}

/// All stages, after [`create`].
pub const STAGES: &[Stage] = &[
    Stage {
        name: "updates and scaling",
        acts: &[
            Act::Change("apps", "deployments", "web", NEW_IMAGE),
            Act::Change("apps", "deployments", "anew", NEW_IMAGE),
            Act::Change(
                "apps",
                "deployments",
                "paused",
                r#"{"spec": {"paused": true, "replicas": 3}}"#,
            ),
            Act::Change("apps", "statefulsets", "set", NEW_IMAGE),
            Act::Change("apps", "statefulsets", "parted", NEW_IMAGE),
            Act::Change("apps", "daemonsets", "agent", NEW_IMAGE),
            Act::Change("apps", "replicasets", "bare", r#"{"spec": {"replicas": 1}}"#),
            Act::Change("", "replicationcontrollers", "old", r#"{"spec": {"replicas": 0}}"#),
        ],
    },
    Stage {
        name: "deletions",
        acts: &[
            Act::Change("apps", "deployments", "paused", NEW_IMAGE),
            Act::Change("apps", "statefulsets", "set", r#"{"spec": {"replicas": 1}}"#),
            Act::Delete("apps", "deployments", "orphaning", "Orphan"),
            Act::Delete("apps", "deployments", "foreground", "Foreground"),
            Act::Delete("apps", "statefulsets", "parted", "Background"),
            Act::DeleteNamespace("doomed"),
        ],
    },
    Stage {
        name: "a node with a taint that evicts",
        acts: &[Act::ChangeNode(
            "hollow-2",
            r#"{"spec": {"taints": [{"key": "out", "effect": "NoExecute"}]}}"#,
        )],
    },
];

const NEW_IMAGE: &str = r#"{"spec": {"template": {"spec": {"containers":
    [{"name": "app", "image": "registry.invalid/app:2"}]}}}}"#;

/// Creates the objects; disruption budgets in the version that the server has.
pub async fn create(client: &Client, beta_version: &str) -> Result<()> {
    let objects = proto_api::yaml::parse_all(OBJECTS).context("the objects")?;
    for object in objects {
        let has_pods = object["spec"]["template"].is_object();
        match has_pods {
            true => create_one(client, &object).await?,
            false => apply_one(client, &object).await?,
        }
    }
    let collection = Collection {
        group: client.names().group("policy"),
        version: beta_version.to_owned(),
        plural: "poddisruptionbudgets".to_owned(),
        namespace: Some(NAMESPACE.to_owned()),
    };
    let budgets = Dynamic::new(client.clone(), collection);
    for (name, bound) in
        [("web", json!({"minAvailable": 3})), ("set", json!({"maxUnavailable": "50%"}))]
    {
        let mut object = json!({
            "apiVersion": format!("policy/{beta_version}"), "kind": "PodDisruptionBudget",
            "metadata": {"name": name}, "spec": bound,
        });
        object["spec"]["selector"] = json!({"matchLabels": {"app": name}});
        budgets.create(&object, &WriteParams::default()).await?;
    }
    Ok(())
}

/// Makes the changes of a stage.
pub async fn change(client: &Client, stage: &Stage) -> Result<()> {
    let write = WriteParams::default();
    let resource = |group: &str, plural: &str, namespace: Option<&str>| {
        Dynamic::new(
            client.clone(),
            Collection {
                group: group.to_owned(),
                version: "v1".to_owned(),
                plural: plural.to_owned(),
                namespace: namespace.map(str::to_owned),
            },
        )
    };
    for act in stage.acts {
        match act {
            Act::Change(group, plural, name, patch) => {
                let patch = Patch::Merge(serde_json::from_str(patch)?);
                resource(group, plural, Some(NAMESPACE)).patch(name, &patch, &write).await?;
            }
            Act::Delete(group, plural, name, policy) => {
                let options = DeleteParams { propagation: Some(policy), ..Default::default() };
                resource(group, plural, Some(NAMESPACE)).delete(name, &options).await?;
            }
            Act::DeleteNamespace(name) => {
                resource("", "namespaces", None).delete(name, &DeleteParams::default()).await?;
            }
            Act::ChangeNode(name, patch) => {
                let patch = Patch::Merge(serde_json::from_str(patch)?);
                resource("", "nodes", None).patch(name, &patch, &write).await?;
            }
        }
    }
    Ok(())
}
