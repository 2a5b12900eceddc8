//! The container runtime over its CRI socket: what it is, and the end of its pods.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use apiserver_bootstrap::preflight::RuntimeFacts;
use hyper_util::rt::TokioIo;
use proto_grpc::cri::v1::runtime_service_client::RuntimeServiceClient;
use proto_grpc::cri::v1::{
    ListPodSandboxRequest, RemovePodSandboxRequest, StatusRequest, StopPodSandboxRequest,
    VersionRequest,
};
use serde_json::Value;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

/// containerd's socket.
pub const DEFAULT_SOCKET: &str = "unix:///run/containerd/containerd.sock";
/// Longest wait for an answer.
const DEADLINE: Duration = Duration::from_secs(10);
/// Longest wait for the end of a pod.
const STOP_DEADLINE: Duration = Duration::from_secs(60);

/// A client of the runtime.
pub struct Runtime {
    client: RuntimeServiceClient<Channel>,
}

impl Runtime {
    /// Connects to a socket, `unix:///path` or a path.
    ///
    /// # Errors
    /// The path is not a socket, or has no listener.
    pub async fn connect(endpoint: &str) -> Result<Self> {
        let path = socket_path(endpoint)?;
        let shown = path.display().to_string();
        // What the transport says of a socket that is not there says less.
        UnixStream::connect(&path).await.with_context(|| format!("cannot connect to {shown}"))?;
        // A placeholder: the connector opens the socket instead.
        let endpoint = Endpoint::from_static("http://runtime").timeout(STOP_DEADLINE);
        let connector = tower::service_fn(move |_| {
            let path = path.clone();
            async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
        });
        let channel = endpoint.connect_with_connector(connector);
        let channel = tokio::time::timeout(DEADLINE, channel).await.context("no answer")?;
        let channel = channel.with_context(|| format!("cannot reach the runtime at {shown}"))?;
        Ok(Self { client: RuntimeServiceClient::new(channel) })
    }

    /// What the runtime says of itself.
    ///
    /// # Errors
    /// It does not answer version 1 of CRI.
    pub async fn facts(&mut self) -> Result<RuntimeFacts> {
        let version = self.client.version(VersionRequest { version: "v1".to_owned() });
        let version = tokio::time::timeout(DEADLINE, version).await.context("no answer")?;
        let version = version.context("the runtime does not serve CRI v1")?.into_inner();
        let status = self.client.status(StatusRequest { verbose: true });
        let status = tokio::time::timeout(DEADLINE, status).await.context("no answer")?;
        let status = status.context("cannot get the status of the runtime")?.into_inner();
        let config = status.info.get("config").map(String::as_str).unwrap_or_default();
        let config = serde_json::from_str(config).unwrap_or(Value::Null);
        let version = format!("{} {}", version.runtime_name, version.runtime_version);
        Ok(RuntimeFacts { version, ..facts_of(&config) })
    }

    /// Stops and removes every pod of the runtime; the number of them.
    ///
    /// # Errors
    /// A pod does not end.
    pub async fn remove_pods(&mut self) -> Result<usize> {
        let listed = self.client.list_pod_sandbox(ListPodSandboxRequest::default());
        let pods = listed.await.context("cannot list the pods of the runtime")?.into_inner().items;
        for pod in &pods {
            let id = || pod.id.clone();
            let stop = StopPodSandboxRequest { pod_sandbox_id: id() };
            let stopped = self.client.stop_pod_sandbox(stop).await;
            stopped.with_context(|| format!("cannot stop the pod {}", pod.id))?;
            let remove = RemovePodSandboxRequest { pod_sandbox_id: id() };
            let removed = self.client.remove_pod_sandbox(remove).await;
            removed.with_context(|| format!("cannot remove the pod {}", pod.id))?;
        }
        Ok(pods.len())
    }
}

/// What containerd's description of its configuration says.
fn facts_of(config: &Value) -> RuntimeFacts {
    let sandbox = config["sandboxImage"].as_str().unwrap_or_default();
    let runtime = config["containerd"]["defaultRuntimeName"].as_str().unwrap_or("runc");
    let options = &config["containerd"]["runtimes"][runtime]["options"];
    RuntimeFacts {
        version: String::new(),
        sandbox_image: sandbox.to_owned(),
        uses_systemd_cgroups: options["SystemdCgroup"].as_bool().unwrap_or_default(),
    }
}

/// The path of a socket.
///
/// # Errors
/// It is not absolute.
pub fn socket_path(endpoint: &str) -> Result<PathBuf> {
    let path = Path::new(endpoint.strip_prefix("unix://").unwrap_or(endpoint));
    if !path.is_absolute() {
        bail!("the runtime's socket {endpoint:?}: must be unix:///path");
    }
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn containerd_says_how_it_is_configured() {
        let config = json!({
            "sandboxImage": "registry.example/pause:3",
            "containerd": {
                "defaultRuntimeName": "r",
                "runtimes": {"r": {"options": {"SystemdCgroup": true}}, "runc": {}},
            },
        });
        let facts = facts_of(&config);
        assert_eq!(facts.sandbox_image, "registry.example/pause:3");
        assert!(facts.uses_systemd_cgroups);
        assert_eq!(facts_of(&Value::Null), RuntimeFacts::default());
    }

    #[test]
    fn a_socket_is_a_path() {
        assert_eq!(socket_path("unix:///a/b").unwrap(), Path::new("/a/b"));
        assert_eq!(socket_path("/a/b").unwrap(), Path::new("/a/b"));
        assert!(socket_path("tcp://a").is_err());
    }
}
