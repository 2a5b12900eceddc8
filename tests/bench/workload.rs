//! The measured pods, and how a watch reports them.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use proto_api::core::v1::Pod;
use proto_client::watch::{Observed, watch};
use proto_client::{Api, Client, ListParams};
use serde_json::{Value, json};
use tokio::sync;
use tokio::task::JoinHandle;

/// A container that ends at once on SIGTERM.
pub const SCRIPT: &str = "trap 'exit 0' TERM; while true; do sleep 1000 & wait; done";
/// Other agents take more than a minute for a config map.
pub const PATIENCE: Duration = Duration::from_secs(200);

/// Where a pod's network is.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// It is the node's.
    Host,
    /// It is the pod's own.
    Pod,
}

impl Network {
    /// Both, the cheaper one first.
    pub const BOTH: [Network; 2] = [Network::Host, Network::Pod];
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Network::Host => "host network",
            Network::Pod => "pod network",
        })
    }
}

/// A shell with a script, as a command.
pub fn shell(script: &str) -> Vec<String> {
    ["/bin/sh", "-c", script].map(str::to_owned).to_vec()
}

/// A pod with neither token nor service variables, of `containers` (JSON) and `volumes`.
pub fn pod(
    namespace: &str,
    name: &str,
    network: Network,
    containers: Vec<Value>,
    volumes: Vec<Value>,
) -> Result<Pod> {
    let value = json!({
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "hostNetwork": network == Network::Host,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "containers": containers,
            "volumes": volumes,
        }
    });
    Ok(serde_json::from_value(value)?)
}

/// A container, as JSON, of an image that is present.
pub fn container(name: &str, image: &str, script: &str) -> Value {
    json!({
        "name": name, "image": image, "imagePullPolicy": "IfNotPresent", "command": shell(script),
    })
}

/// What a watch has shown last of a pod: the pod, or nothing when it is gone, and when.
type Last = (Option<Pod>, Instant);

/// The pods of a namespace, as a watch over a connection of its own shows them.
pub struct Shown {
    last: sync::watch::Receiver<BTreeMap<String, Last>>,
    task: JoinHandle<()>,
}

impl Shown {
    /// Follows the pods of `namespace` until it is dropped.
    pub fn follow(client: &Client, namespace: &str) -> Result<Shown> {
        let (sender, last) = sync::watch::channel(BTreeMap::new());
        let api = client.separate()?.within::<Pod>(namespace);
        Ok(Shown { last, task: tokio::spawn(observe(api, sender)) })
    }

    /// When a pod was first seen as it should be; `None` stands for one that is gone.
    pub async fn until(
        &mut self,
        name: &str,
        fits: impl Fn(Option<&Pod>) -> bool,
    ) -> Result<Instant> {
        let found = |last: &BTreeMap<String, Last>| match last.get(name) {
            Some((pod, at)) if fits(pod.as_ref()) => Some(*at),
            _ => None,
        };
        let seen = tokio::time::timeout(PATIENCE, async {
            loop {
                if let Some(at) = found(&self.last.borrow_and_update()) {
                    return Ok(at);
                }
                self.last.changed().await?;
            }
        });
        seen.await.with_context(|| format!("{name} is not as awaited in {PATIENCE:?}"))?
    }

    /// When the last of these pods became Ready.
    pub async fn until_ready(&mut self, names: &[String]) -> Result<Instant> {
        let mut last = None;
        for name in names {
            let ready = |pod: Option<&Pod>| pod.is_some_and(cluster::demo::is_pod_ready);
            last = last.max(Some(self.until(name, ready).await?));
        }
        last.context("no pods to wait for")
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn observe(api: Api<Pod>, sender: sync::watch::Sender<BTreeMap<String, Last>>) {
    watch(&api, &ListParams::default(), |observed| {
        let (name, pod) = match observed {
            Observed::Listed(pod) | Observed::Applied(pod) => {
                (pod.metadata.name.clone(), Some(pod))
            }
            Observed::Deleted(pod) => (pod.metadata.name, None),
            Observed::ListBegan
            | Observed::ListEnded
            | Observed::WatchBegan
            | Observed::WatchEnded => return,
        };
        let at = Instant::now();
        sender.send_modify(|last| match last.get_mut(&name) {
            // The first moment counts, not that of what changed later in a pod that was Ready already.
            Some((known, since)) if is_ready(known) && is_ready(&pod) => {
                (*known, *since) = (pod, *since);
            }
            _ => drop(last.insert(name, (pod, at))),
        });
    })
    .await;
}

fn is_ready(pod: &Option<Pod>) -> bool {
    pod.as_ref().is_some_and(cluster::demo::is_pod_ready)
}
