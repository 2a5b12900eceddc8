//! The input of an action.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_interfaces::{MountedVolumes, PodObjects};
use agent_pod::desired::PodSource;
use agent_pod::env::ServiceEnv;
use proto_api::core::v1::Pod;
use tokio::sync::watch;

/// The state of the pod when the action starts.
#[derive(Clone)]
pub struct ActionContext {
    pub pod: Arc<Pod>,
    pub source: PodSource,
    /// API objects that the pod refers to.
    pub objects: Arc<PodObjects>,
    /// Services for the environment variables of a new container; none for other actions.
    pub services: Vec<ServiceEnv>,
    /// Its volumes that are set up.
    pub mounted: Arc<MountedVolumes>,
    /// Addresses of its sandbox.
    pub pod_ips: Vec<String>,
    /// CRI ids of running containers, by container name.
    pub running: BTreeMap<String, String>,
    /// The time since boot at which running containers are killed, if the pod terminates. It may be
    /// set or brought forward while the action runs.
    pub ending: watch::Receiver<Option<Duration>>,
}

impl ActionContext {
    /// The running container whose processes an ephemeral container shares (`targetContainerName`).
    pub fn target_of(&self, container: &str) -> Option<String> {
        let mut ephemeral = self.pod.spec.ephemeral_containers.iter();
        let own = ephemeral.find(|c| c.ephemeral_container_common.name == container)?;
        self.running.get(&own.target_container_name).cloned()
    }
}
