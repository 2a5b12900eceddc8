//! A CSI driver on the node: its connection, capabilities and calls, each with a deadline.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use proto_grpc::csi::v1 as wire;
use proto_grpc::csi::v1::node_client::NodeClient;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

/// Deadline of calls that only read.
pub const ASK: Duration = Duration::from_secs(10);
/// Deadline of NodeGetVolumeStats: a scrape of the node's metrics waits for all drivers.
const STATS: Duration = Duration::from_secs(3);
/// Deadline of calls that change something; the kubelet's default.
pub const CHANGE: Duration = Duration::from_secs(120);

/// A registered CSI driver.
#[derive(Clone, Debug)]
pub struct Driver {
    pub name: String,
    /// Path of its socket.
    pub endpoint: PathBuf,
    /// Its optional capabilities.
    pub able: Capabilities,
    /// Result of NodeGetInfo.
    pub info: NodeInfo,
    service: Arc<dyn NodeService>,
    change: Duration,
}

/// Future of a driver's response.
pub type DriverFuture<A> = BoxFuture<'static, Result<Response<A>, Status>>;

/// The CSI Node service of a driver, as far as volumes need it. Implemented over the driver's socket, and in memory for tests.
pub trait NodeService: Send + Sync + std::fmt::Debug {
    /// `NodeStageVolume`
    fn stage(
        &self,
        asked: Request<wire::NodeStageVolumeRequest>,
    ) -> DriverFuture<wire::NodeStageVolumeResponse>;
    /// `NodeUnstageVolume`
    fn unstage(
        &self,
        asked: Request<wire::NodeUnstageVolumeRequest>,
    ) -> DriverFuture<wire::NodeUnstageVolumeResponse>;
    /// `NodePublishVolume`
    fn publish(
        &self,
        asked: Request<wire::NodePublishVolumeRequest>,
    ) -> DriverFuture<wire::NodePublishVolumeResponse>;
    /// `NodeUnpublishVolume`
    fn unpublish(
        &self,
        asked: Request<wire::NodeUnpublishVolumeRequest>,
    ) -> DriverFuture<wire::NodeUnpublishVolumeResponse>;
    /// `NodeExpandVolume`
    fn expand(
        &self,
        asked: Request<wire::NodeExpandVolumeRequest>,
    ) -> DriverFuture<wire::NodeExpandVolumeResponse>;
    /// `NodeGetVolumeStats`
    fn stats(
        &self,
        asked: Request<wire::NodeGetVolumeStatsRequest>,
    ) -> DriverFuture<wire::NodeGetVolumeStatsResponse>;
}

macro_rules! over_a_socket {
    ($($name:ident = $call:ident($question:ident) -> $answer:ident;)*) => {
        impl NodeService for NodeClient<Channel> {
            $(fn $name(&self, asked: Request<wire::$question>) -> DriverFuture<wire::$answer> {
                let mut client = self.clone();
                Box::pin(async move { client.$call(asked).await })
            })*
        }
    };
}

over_a_socket! {
    stage = node_stage_volume(NodeStageVolumeRequest) -> NodeStageVolumeResponse;
    unstage = node_unstage_volume(NodeUnstageVolumeRequest) -> NodeUnstageVolumeResponse;
    publish = node_publish_volume(NodePublishVolumeRequest) -> NodePublishVolumeResponse;
    unpublish = node_unpublish_volume(NodeUnpublishVolumeRequest) -> NodeUnpublishVolumeResponse;
    expand = node_expand_volume(NodeExpandVolumeRequest) -> NodeExpandVolumeResponse;
    stats = node_get_volume_stats(NodeGetVolumeStatsRequest) -> NodeGetVolumeStatsResponse;
}

/// Optional capabilities of a driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// `STAGE_UNSTAGE_VOLUME`.
    pub stage: bool,
    /// `GET_VOLUME_STATS`.
    pub stats: bool,
    /// `EXPAND_VOLUME`.
    pub expand: bool,
    /// `VOLUME_CONDITION`.
    pub condition: bool,
    pub single_node_multi_writer: bool,
    /// `VOLUME_MOUNT_GROUP`: the driver applies `fsGroup`.
    pub mount_group: bool,
}

/// Result of NodeGetInfo.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeInfo {
    /// The driver's id of the node.
    pub node_id: String,
    /// Most volumes on the node; 0 if the driver sets no limit.
    pub volumes_max: i64,
    /// Topology segments of the node.
    pub topology: BTreeMap<String, String>,
}

/// A failed call, in the format of Go's gRPC library, which users know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {} desc = {message}", code_name(*code))]
pub struct CallError {
    /// Status code.
    pub code: Code,
    /// Message of the driver.
    pub message: String,
}

impl From<Status> for CallError {
    fn from(status: Status) -> Self {
        // A status created by the client, for a connection that could not be opened or broke, has the cause in its sources.
        let mut innermost = std::error::Error::source(&status);
        while let Some(next) = innermost.and_then(std::error::Error::source) {
            innermost = Some(next);
        }
        match innermost {
            Some(why) => {
                Self { code: Code::Unavailable, message: format!("connection error: {why}") }
            }
            None => Self { code: status.code(), message: status.message().to_owned() },
        }
    }
}

/// Name of a code in Go's gRPC library.
fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

/// A client for a socket that connects with the first call and reconnects.
pub(crate) fn connect(socket: &Path) -> Channel {
    let socket = socket.to_owned();
    // A placeholder: the connector opens the socket instead.
    Endpoint::from_static("http://plugin").connect_with_connector_lazy(tower::service_fn(
        move |_| {
            let socket = socket.clone();
            async move {
                let stream = tokio::net::UnixStream::connect(socket).await?;
                Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(stream))
            }
        },
    ))
}

/// Makes one call. The deadline is sent to the driver and enforced here.
pub(crate) async fn call<Q, A, F>(
    deadline: Duration,
    question: Q,
    make: impl FnOnce(Request<Q>) -> F,
) -> Result<A, CallError>
where
    F: Future<Output = Result<Response<A>, Status>>,
{
    let mut request = Request::new(question);
    request.set_timeout(deadline);
    match tokio::time::timeout(deadline, make(request)).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(status.into()),
        Err(_) => Err(CallError {
            code: Code::DeadlineExceeded,
            message: "context deadline exceeded".to_owned(),
        }),
    }
}

impl Driver {
    /// Queries the capabilities and node information of the driver at a socket.
    ///
    /// # Errors
    /// The driver does not respond, or its response is incomplete.
    pub async fn query(name: &str, endpoint: &Path, change: Duration) -> Result<Self, CallError> {
        let mut client = NodeClient::new(connect(endpoint));
        let asked = wire::NodeGetInfoRequest {};
        let info = call(ASK, asked, |r| client.node_get_info(r)).await?;
        if info.node_id.is_empty() {
            let message = format!("driver {name} returned no node id");
            return Err(CallError { code: Code::Internal, message });
        }
        let asked = wire::NodeGetCapabilitiesRequest {};
        let able = call(ASK, asked, |r| client.node_get_capabilities(r)).await?;
        let topology = info.accessible_topology.map(|t| t.segments).unwrap_or_default();
        Ok(Self {
            name: name.to_owned(),
            endpoint: endpoint.to_owned(),
            able: capabilities(&able),
            info: NodeInfo {
                node_id: info.node_id,
                volumes_max: info.max_volumes_per_node,
                topology: topology.into_iter().collect(),
            },
            service: Arc::new(client),
            change,
        })
    }

    /// A driver without a socket, for tests.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn of_service(name: &str, able: Capabilities, service: Arc<dyn NodeService>) -> Self {
        let info = NodeInfo { node_id: "node".to_owned(), ..NodeInfo::default() };
        let (name, endpoint) = (name.to_owned(), PathBuf::new());
        Self { name, endpoint, able, info, service, change: CHANGE }
    }

    /// Stages a volume on the node.
    ///
    /// # Errors
    /// The driver's error, or no response before the deadline; also for all calls below.
    pub async fn stage(&self, asked: wire::NodeStageVolumeRequest) -> Result<(), CallError> {
        call(self.change, asked, |r| self.service.stage(r)).await.map(drop)
    }

    /// Unstages a volume from `path`.
    ///
    /// # Errors
    /// As above.
    pub async fn unstage(&self, handle: &str, path: &Path) -> Result<(), CallError> {
        let asked = wire::NodeUnstageVolumeRequest {
            volume_id: handle.to_owned(),
            staging_target_path: text(path),
        };
        call(self.change, asked, |r| self.service.unstage(r)).await.map(drop)
    }

    /// Publishes a volume for a pod.
    ///
    /// # Errors
    /// As above.
    pub async fn publish(&self, asked: wire::NodePublishVolumeRequest) -> Result<(), CallError> {
        call(self.change, asked, |r| self.service.publish(r)).await.map(drop)
    }

    /// Unpublishes a volume from `path`.
    ///
    /// # Errors
    /// As above.
    pub async fn unpublish(&self, handle: &str, path: &Path) -> Result<(), CallError> {
        let asked = wire::NodeUnpublishVolumeRequest {
            volume_id: handle.to_owned(),
            target_path: text(path),
        };
        call(self.change, asked, |r| self.service.unpublish(r)).await.map(drop)
    }

    /// Expands a volume's file system.
    ///
    /// # Errors
    /// As above.
    pub async fn expand(&self, asked: wire::NodeExpandVolumeRequest) -> Result<(), CallError> {
        call(self.change, asked, |r| self.service.expand(r)).await.map(drop)
    }

    /// Usage of a volume.
    ///
    /// # Errors
    /// As above.
    pub async fn stats(
        &self,
        asked: wire::NodeGetVolumeStatsRequest,
    ) -> Result<wire::NodeGetVolumeStatsResponse, CallError> {
        call(STATS, asked, |r| self.service.stats(r)).await
    }
}

/// A path created by the agent, which is UTF-8.
pub(crate) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn capabilities(answer: &wire::NodeGetCapabilitiesResponse) -> Capabilities {
    use wire::node_service_capability::Type;
    use wire::node_service_capability::rpc::Type as Rpc;
    let has = |wanted: Rpc| {
        answer.capabilities.iter().any(|capability| match &capability.r#type {
            Some(Type::Rpc(rpc)) => rpc.r#type == i32::from(wanted),
            None => false,
        })
    };
    Capabilities {
        stage: has(Rpc::StageUnstageVolume),
        stats: has(Rpc::GetVolumeStats),
        expand: has(Rpc::ExpandVolume),
        condition: has(Rpc::VolumeCondition),
        single_node_multi_writer: has(Rpc::SingleNodeMultiWriter),
        mount_group: has(Rpc::VolumeMountGroup),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_errors_have_the_text_of_grpc_go() {
        let error = CallError::from(Status::internal("no room"));
        assert_eq!(error.to_string(), "rpc error: code = Internal desc = no room");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_driver_is_given_up() {
        let error = call(Duration::from_secs(5), (), |_| {
            std::future::pending::<Result<Response<()>, Status>>()
        });
        assert_eq!(error.await.unwrap_err().code, Code::DeadlineExceeded);
    }
}
