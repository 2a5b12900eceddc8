//! The least that anybody has to ask of the runtime for a pod of one container: the floor under what a whole cluster takes.

use std::time::Duration;

use agent_pod::spec::{ContainerConfig, NamespaceScope, Namespaces, SandboxConfig};
use agent_runtime::Runtime;
use agent_runtime::cri::CriRuntime;
use anyhow::{Context as _, Result};
use cluster::images::BUSYBOX_IMAGE;
use cluster::spec::Spec;

use crate::workload::{Network, shell};

/// The runtime of the first node, without an agent before it.
pub struct Direct {
    runtime: CriRuntime,
    cgroup: String,
}

/// A pod made by direct calls, by the runtime's ids.
pub struct Made {
    sandbox: String,
    container: String,
}

impl Direct {
    /// The runtime of the first node; pods get a cgroup that they share.
    pub fn new(spec: &Spec) -> Result<Direct> {
        let socket = spec.containerd_socket("node-1");
        Ok(Direct {
            runtime: CriRuntime::new(&format!("unix://{}", socket.display()))?,
            cgroup: format!("{}/floor", spec.node_cgroup("node-1")),
        })
    }

    /// Makes and starts pod `number`, whose only container runs `script`.
    pub async fn start(&self, number: usize, network: Network, script: &str) -> Result<Made> {
        let config = self.sandbox(number, network);
        let container = ContainerConfig {
            name: "main".into(),
            image: BUSYBOX_IMAGE.into(),
            command: shell(script),
            ..ContainerConfig::default()
        };
        let made = self.runtime.run_sandbox(&config).await;
        let sandbox = made.with_context(|| format!("sandbox of direct pod {number}"))?.id;
        let id = self.runtime.create_container(&sandbox, &container, &config).await;
        let container = id.with_context(|| format!("container of direct pod {number}"))?;
        let started = self.runtime.start_container(&container).await;
        started.with_context(|| format!("start of direct pod {number}"))?;
        Ok(Made { sandbox, container })
    }

    /// Stops and removes a pod; its container has `grace` to end by itself.
    pub async fn end(&self, made: &Made, grace: Duration) -> Result<()> {
        self.runtime.stop_container(&made.container, grace).await?;
        self.runtime.stop_sandbox(&made.sandbox).await?;
        self.runtime.remove_sandbox(&made.sandbox).await?;
        Ok(())
    }

    fn sandbox(&self, number: usize, network: Network) -> SandboxConfig {
        let network = match network {
            Network::Host => NamespaceScope::Node,
            Network::Pod => NamespaceScope::Pod,
        };
        SandboxConfig {
            name: format!("floor{number}"),
            uid: format!("00000000-0000-4000-8000-{number:012}"),
            namespace: "floor".into(),
            log_directory: "/var/log/pods/floor".into(),
            cgroup_parent: self.cgroup.clone(),
            namespaces: Namespaces { network, ..Namespaces::default() },
            ..SandboxConfig::default()
        }
    }
}
