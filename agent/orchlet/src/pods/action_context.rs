//! What an action is done with.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_pod::desired::Source;
use proto_api::core::v1::Pod;
use tokio::sync::watch;

use super::ports::{MountedVolumes, Sources};

/// The state of the pod when the action begins.
#[derive(Clone)]
pub struct Scene {
    /// The pod.
    pub pod: Arc<Pod>,
    /// Where it comes from.
    pub source: Source,
    /// Objects that it refers to.
    pub sources: Arc<Sources>,
    /// Its volumes.
    pub mounted: Arc<MountedVolumes>,
    /// Addresses of its sandbox.
    pub pod_ips: Vec<String>,
    /// The runtime's ids of the instances that run, by container.
    pub running: BTreeMap<String, String>,
    /// When what runs is killed, since boot, if the pod ends; it may be decided, or brought forward, while the action is under way.
    pub ending: watch::Receiver<Option<Duration>>,
}

impl Scene {
    /// The instance whose processes an ephemeral container is to see, if it names one that runs.
    pub fn target_of(&self, container: &str) -> Option<String> {
        let mut ephemeral = self.pod.spec.ephemeral_containers.iter();
        let own = ephemeral.find(|c| c.ephemeral_container_common.name == container)?;
        self.running.get(&own.target_container_name).cloned()
    }
}
