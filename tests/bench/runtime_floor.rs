//! The minimum of runtime calls for a pod of one container: the floor below the time of a whole cluster. The calls are those of an agent, with the same
//! mounts, masks and names and a cgroup for each pod; the agent's other work is left out.

use std::path::PathBuf;
use std::time::Duration;

use agent_host::cgroups::{Cgroups, Removal};
use agent_pod::node_facts::NodeFacts;
use agent_pod::observed::{InstanceState, ObservedContainer};
use agent_pod::spec::Mount;
use agent_pod::translate::{self, ContainerInputs};
use agent_runtime::cri::CriRuntime;
use agent_runtime::{ContainerRuntime as _, PodReader as _, SandboxRuntime as _};
use anyhow::{Context as _, Result, ensure};
use cluster::images::BUSYBOX_IMAGE;
use cluster::spec::Spec;
use proto_api::core::v1::Pod;

use crate::workload::{self, Network};

/// Mounts that an agent adds to each container.
const OWN_MOUNTS: [&str; 2] = ["/etc/hosts", "/dev/termination-log"];
const NAMESPACE: &str = "floor";

/// The runtime of the first node, without an agent.
pub struct RuntimeFloor {
    runtime: CriRuntime,
    cgroups: Cgroups,
    /// Parent of the pods' cgroups, at the same depth as with an agent.
    cgroup: String,
    facts: NodeFacts,
    /// A file that all containers share; an agent would create one for each.
    file: PathBuf,
}

/// A pod made by direct calls, by the runtime's ids.
pub struct Made {
    sandbox: String,
    container: String,
    cgroup: String,
}

/// Pod `number`, whose only container runs `script`.
pub fn pod(number: usize, network: Network, script: &str) -> Result<Pod> {
    let container = workload::container("main", BUSYBOX_IMAGE, script);
    let name = format!("floor{number}");
    let mut pod = workload::pod(NAMESPACE, &name, network, vec![container], Vec::new())?;
    pod.metadata.uid = format!("00000000-0000-4000-8000-{number:012}");
    pod.spec.dns_policy = "Default".into();
    Ok(pod)
}

impl RuntimeFloor {
    /// The runtime of the first node.
    pub fn new(spec: &Spec) -> Result<RuntimeFloor> {
        let socket = spec.containerd_socket("node-1");
        let dir = spec.node_dir("node-1").join("floor");
        std::fs::create_dir_all(&dir)?;
        let file = dir.join("file");
        std::fs::write(&file, "")?;
        Ok(RuntimeFloor {
            runtime: CriRuntime::new(&format!("unix://{}", socket.display()))?,
            cgroups: Cgroups::detect()?,
            cgroup: format!("{}/floor/besteffort", spec.node_cgroup("node-1")),
            facts: NodeFacts {
                pod_logs_dir: dir.join("logs").to_string_lossy().into_owned(),
                names: cluster::up::names(spec),
                ..NodeFacts::default()
            },
            file,
        })
    }

    /// Makes and starts a pod of one container.
    pub async fn start(&self, pod: &Pod) -> Result<Made> {
        let name = &pod.metadata.name;
        // The runtime creates it.
        let cgroup = format!("{}/pod{}", self.cgroup, pod.metadata.uid);
        let config = translate::sandbox_config(pod, &self.facts, &cgroup, 0)?;
        let container = pod.spec.containers.first().context("no container")?;
        let mount = |path: &&str| Mount {
            container_path: (*path).to_owned(),
            host_path: self.file.to_string_lossy().into_owned(),
            ..Mount::default()
        };
        let inputs = ContainerInputs {
            image_id: container.image.clone(),
            extra_mounts: OWN_MOUNTS.iter().map(mount).collect(),
            ..ContainerInputs::default()
        };
        let wanted = translate::container_config(pod, container, &self.facts, inputs)?;
        std::fs::create_dir_all(PathBuf::from(&config.log_directory).join(&container.name))?;
        let made = self.runtime.run_sandbox(&config).await;
        let sandbox = made.with_context(|| format!("sandbox of {name}"))?.id;
        let id = self.runtime.create_container(&sandbox, &wanted, &config).await;
        let container = id.with_context(|| format!("container of {name}"))?;
        let started = self.runtime.start_container(&container).await;
        started.with_context(|| format!("start of {name}"))?;
        Ok(Made { sandbox, container, cgroup })
    }

    /// When the containers of a namespace that run were started, in nanoseconds since 1970 by the runtime's clock.
    pub async fn started(&self, namespace: &str) -> Result<Vec<u64>> {
        let pods = self.runtime.list().await?.into_iter().filter(|pod| pod.namespace == namespace);
        let started = |container: ObservedContainer| match container.state {
            InstanceState::Running { started_at } => u64::try_from(started_at).ok(),
            _ => None,
        };
        Ok(pods.flat_map(|pod| pod.containers).filter_map(started).collect())
    }

    /// Stops and removes a pod; its container has `grace` to end by itself.
    pub async fn end(&self, made: &Made, grace: Duration) -> Result<()> {
        self.runtime.stop_container(&made.container, grace).await?;
        self.runtime.stop_sandbox(&made.sandbox).await?;
        self.runtime.remove_sandbox(&made.sandbox).await?;
        let removed = self.cgroups.remove(&made.cgroup)?;
        ensure!(removed == Removal::Gone, "something runs in {}", made.cgroup);
        Ok(())
    }
}
