//! A cluster whose credentials are tried: a pod of each of two nodes, with what these use, and clients with the credentials.

use anyhow::{Context as _, Result};
use orch_tests::wait::until;
use proto_api::authentication::v1::TokenRequest;
use proto_api::core::v1::{Namespace, Node, Pod, ServiceAccount};
use proto_api::names::Names;
use proto_client::config::{ClientConfig, Credential, Verification};
use proto_client::{Client, DeleteParams};
use serde_json::{Value, json};

use super::{core, within};
use crate::context::{Context, PATIENCE};
use crate::pods::{WAIT, pod};

/// The PersistentVolume of the other node's pod.
pub const DISK: &str = "stolen-disk";

/// Secrets that the other node's pod refers to, each in its own way; `debugged` in an ephemeral container, `disk` in its PersistentVolume.
pub const SECRETS: [&str; 6] = ["theirs", "projected", "variable", "pulled", "debugged", "disk"];

/// A cluster, however it was made.
pub struct Target {
    pub names: &'static Names,
    /// Its administrator.
    pub admin: Client,
    /// What the stolen node has to reach the API server.
    pub config: ClientConfig,
    /// That node.
    pub own: String,
    /// Another node; it may be in the API only.
    pub other: String,
    /// A node whose endpoint is tried.
    pub endpoint_of: String,
    /// The namespace of the pods `here`, of the stolen node, and `there`, of the other.
    pub ns: String,
    /// A bootstrap token of a cluster that hosts join.
    pub join_token: Option<String>,
}

impl Target {
    /// Makes the pods and what they use, and waits until the node may read what is its pod's.
    pub async fn fill(&self) -> Result<()> {
        let (admin, ns) = (&self.admin, &self.ns);
        let namespace = format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {ns}}}\n");
        cluster::apply::apply(admin, &namespace).await?;
        let accounts = admin.within::<ServiceAccount>(ns);
        until("the service account is there", PATIENCE, async || {
            accounts.get("default").await.map(drop).map_err(|error| error.to_string())
        })
        .await?;
        cluster::apply::apply(admin, &self.manifests()).await?;
        let debugger = json!({"spec": {"ephemeralContainers": [{
            "name": "d", "image": "i", "envFrom": [{"secretRef": {"name": "debugged"}}],
        }]}});
        let ephemeral = within(ns, "pods/there/ephemeralcontainers");
        let status = Context::status(admin, "PATCH", &ephemeral, &debugger).await?;
        anyhow::ensure!(status == 200, "no debugger: {status}");
        let node = self.node()?;
        until("the node reads its pod's Secret", PATIENCE, async || {
            let own = within(ns, "secrets/ours");
            match Context::status(&node, "GET", &own, &Value::Null).await {
                Ok(200) => Ok(()),
                Ok(status) => Err(status.to_string()),
                Err(error) => Err(format!("{error:#}")),
            }
        })
        .await
    }

    /// Removes what [`Target::fill`] has made; the namespace ends later.
    pub async fn empty(&self) -> Result<()> {
        let now = json!({"gracePeriodSeconds": 0});
        for (path, body) in [
            (within(&self.ns, "pods/there"), now),
            (core(&format!("persistentvolumes/{DISK}")), Value::Null),
        ] {
            Context::status(&self.admin, "DELETE", &path, &body).await?;
        }
        self.admin.all::<Namespace>().delete(&self.ns, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Secrets, used by a pod of each node.
    fn manifests(&self) -> String {
        let ns = self.ns.as_str();
        let object = |kind: &str, name: &str, rest: &str| {
            format!(
                "apiVersion: v1\nkind: {kind}\nmetadata: {{name: {name}, namespace: {ns}}}\n{rest}"
            )
        };
        let secret = |name: &str| object("Secret", name, "stringData: {k: v}\n");
        let here = pod(ns, "here", WAIT)
            + &format!(
                "  nodeName: {}\n  volumes: [{{name: s, secret: {{secretName: ours}}}}]\n",
                self.own
            );
        let volumes = "[{name: s, secret: {secretName: theirs}}, {name: p, projected: {sources: [{secret: {name: projected}}]}}, \
            {name: c, configMap: {name: theirs}}, {name: d, persistentVolumeClaim: {claimName: data}}]";
        let variable = "{name: A, valueFrom: {secretKeyRef: {name: variable, key: k}}}";
        let other = &self.other;
        let there = pod(ns, "there", WAIT)
            + &format!("    env: [{variable}]\n  nodeName: {other}\n  volumes: {volumes}\n")
            + "  imagePullSecrets: [{name: pulled}]\n";
        let size = "{storage: 1Gi}";
        let volume = format!(
            "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {DISK}}}\nspec:\n  capacity: {size}\n  accessModes: [ReadWriteOnce]\n  \
             claimRef: {{namespace: {ns}, name: data}}\n  \
             csi: {{driver: a.example, volumeHandle: a, nodePublishSecretRef: {{namespace: {ns}, name: disk}}}}\n"
        );
        let claim = format!(
            "spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {size}}}, volumeName: {DISK}, storageClassName: \"\"}}\n"
        );
        let mut all: Vec<String> = SECRETS.into_iter().map(secret).collect();
        all.extend([
            secret("ours"),
            object("ConfigMap", "theirs", "data: {k: v}\n"),
            object("ServiceAccount", "other", ""),
            volume,
            object("PersistentVolumeClaim", "data", &claim),
            here,
            there,
        ]);
        all.join("---\n")
    }

    /// A path with the names of the two nodes: `OWN` stands for the stolen one, `OTHER` for the other.
    pub fn named(&self, path: &str) -> String {
        path.replace("OWN", &self.own).replace("OTHER", &self.other)
    }

    /// The uids of the node and of the other node's pod.
    pub async fn uids(&self) -> Result<(String, String)> {
        let node = self.admin.all::<Node>().get(&self.own).await?;
        let pod = self.admin.within::<Pod>(&self.ns).get("there").await?;
        Ok((node.metadata.uid, pod.metadata.uid))
    }

    /// A client with the node's credentials.
    pub fn node(&self) -> Result<Client> {
        Ok(Client::new(&self.config, self.names, "e2e")?)
    }

    /// A client with a token alone; without any credentials if there is none.
    pub fn by_token(&self, token: Option<&str>) -> Result<Client> {
        Ok(Client::new(&self.config_of(token), self.names, "e2e")?)
    }

    fn config_of(&self, token: Option<&str>) -> ClientConfig {
        let mut config = self.config.clone();
        config.tls.identity = None;
        config.credential =
            token.map_or(Credential::None, |token| Credential::Token(token.to_owned()));
        config
    }

    /// The token of a pod without rights.
    pub async fn pod_token(&self) -> Result<String> {
        let accounts = self.admin.within::<ServiceAccount>(&self.ns);
        let issued: TokenRequest =
            accounts.create_sub("default", "token", &TokenRequest::default()).await?;
        Ok(issued.status.token)
    }

    /// Clients of a node's own endpoint: with the credentials of the stolen node, with a token, and with none.
    pub async fn endpoint_clients(&self, token: &str) -> Result<[Client; 3]> {
        let node = self.admin.all::<Node>().get(&self.endpoint_of).await?;
        let addresses = &node.status.addresses;
        let address = addresses.iter().find(|address| address.type_ == "InternalIP");
        let address = &address.context("the node has no address")?.address;
        let server =
            format!("https://{address}:{}", node.status.daemon_endpoints.kubelet_endpoint.port);
        let client = |mut config: ClientConfig| -> Result<Client> {
            config.server = server.parse()?;
            // Its certificate is its own.
            config.tls.verification = Verification::Skipped;
            config.tls.authority = None;
            Ok(Client::new(&config, self.names, "e2e")?)
        };
        Ok([
            client(self.config.clone())?,
            client(self.config_of(Some(token)))?,
            client(self.config_of(None))?,
        ])
    }
}
