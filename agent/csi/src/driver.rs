//! One driver of the node: its connection, what it can do, and its calls, each with a deadline.

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

/// Deadline of calls that only ask.
pub const ASK: Duration = Duration::from_secs(10);
/// Deadline of NodeGetVolumeStats: a scrape of the node's metrics waits for all drivers.
const STATS: Duration = Duration::from_secs(3);
/// Deadline of calls that change something; the ecosystem's usual one.
pub const CHANGE: Duration = Duration::from_secs(120);

/// A driver.
#[derive(Clone, Debug)]
pub struct Driver {
    /// Its name.
    pub name: String,
    /// Its socket.
    pub endpoint: PathBuf,
    /// What it can do beside publishing.
    pub able: Capabilities,
    /// What it says of the node.
    pub info: NodeInfo,
    service: Arc<dyn NodeService>,
    change: Duration,
}

/// The future of a driver's answer.
pub type Answer<A> = BoxFuture<'static, Result<Response<A>, Status>>;

/// A driver's node service, as far as volumes are concerned. The driver's socket is one; tests have one in memory.
pub trait NodeService: Send + Sync + std::fmt::Debug {
    /// `NodeStageVolume`
    fn stage(
        &self,
        asked: Request<wire::NodeStageVolumeRequest>,
    ) -> Answer<wire::NodeStageVolumeResponse>;
    /// `NodeUnstageVolume`
    fn unstage(
        &self,
        asked: Request<wire::NodeUnstageVolumeRequest>,
    ) -> Answer<wire::NodeUnstageVolumeResponse>;
    /// `NodePublishVolume`
    fn publish(
        &self,
        asked: Request<wire::NodePublishVolumeRequest>,
    ) -> Answer<wire::NodePublishVolumeResponse>;
    /// `NodeUnpublishVolume`
    fn unpublish(
        &self,
        asked: Request<wire::NodeUnpublishVolumeRequest>,
    ) -> Answer<wire::NodeUnpublishVolumeResponse>;
    /// `NodeExpandVolume`
    fn expand(
        &self,
        asked: Request<wire::NodeExpandVolumeRequest>,
    ) -> Answer<wire::NodeExpandVolumeResponse>;
    /// `NodeGetVolumeStats`
    fn stats(
        &self,
        asked: Request<wire::NodeGetVolumeStatsRequest>,
    ) -> Answer<wire::NodeGetVolumeStatsResponse>;
}

macro_rules! over_a_socket {
    ($($name:ident = $call:ident($question:ident) -> $answer:ident;)*) => {
        impl NodeService for NodeClient<Channel> {
            $(fn $name(&self, asked: Request<wire::$question>) -> Answer<wire::$answer> {
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

/// What a driver can do beside publishing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Its volumes are staged.
    pub stage: bool,
    /// It tells how full a volume is.
    pub stats: bool,
    /// It makes a volume's file system grow.
    pub expand: bool,
    /// It tells whether a volume is sound.
    pub condition: bool,
    /// It tells one writer on a node from several.
    pub single_node_multi_writer: bool,
    /// It gives volumes to a group itself.
    pub mount_group: bool,
}

/// What a driver says of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeInfo {
    /// The node as its driver knows it.
    pub node_id: String,
    /// Most volumes on the node; 0 when the driver does not say.
    pub volumes_max: i64,
    /// Where the node is.
    pub topology: BTreeMap<String, String>,
}

/// Why a call did not work, in the words that users of this ecosystem know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {} desc = {message}", code_name(*code))]
pub struct CallError {
    /// Kind of the error.
    pub code: Code,
    /// The driver's text.
    pub message: String,
}

impl From<Status> for CallError {
    fn from(status: Status) -> Self {
        // A status of our own side, of a connection that could not be opened or broke, hides why in its sources.
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

/// The name of a code as tools of this ecosystem write it.
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

/// A connection to a socket of the node, opened with the first call and again when it breaks.
pub(crate) fn connect(socket: &Path) -> Channel {
    let socket = socket.to_owned();
    // The address is never used: the connector opens the socket instead.
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

/// One call. The driver is told the deadline too; it is ours that holds.
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
    /// Asks the driver behind a socket what it can do and what it says of the node.
    ///
    /// # Errors
    /// It does not answer, or not what it has to.
    pub async fn ask(name: &str, endpoint: &Path, change: Duration) -> Result<Self, CallError> {
        let mut client = NodeClient::new(connect(endpoint));
        let asked = wire::NodeGetInfoRequest {};
        let info = call(ASK, asked, |r| client.node_get_info(r)).await?;
        if info.node_id.is_empty() {
            let message = format!("driver {name} names no node id");
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

    /// A driver that is not behind a socket, for tests.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn of_service(name: &str, able: Capabilities, service: Arc<dyn NodeService>) -> Self {
        let info = NodeInfo { node_id: "node".to_owned(), ..NodeInfo::default() };
        let (name, endpoint) = (name.to_owned(), PathBuf::new());
        Self { name, endpoint, able, info, service, change: CHANGE }
    }

    /// Prepares a volume for the node.
    ///
    /// # Errors
    /// What the driver says, or that it says nothing in time; the same for all calls below.
    pub async fn stage(&self, asked: wire::NodeStageVolumeRequest) -> Result<(), CallError> {
        call(self.change, asked, |r| self.service.stage(r)).await.map(drop)
    }

    /// Undoes [`Driver::stage`].
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

    /// Puts a volume where a pod has it.
    ///
    /// # Errors
    /// As above.
    pub async fn publish(&self, asked: wire::NodePublishVolumeRequest) -> Result<(), CallError> {
        call(self.change, asked, |r| self.service.publish(r)).await.map(drop)
    }

    /// Undoes [`Driver::publish`].
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

    /// Makes a volume's file system grow.
    ///
    /// # Errors
    /// As above.
    pub async fn expand(&self, asked: wire::NodeExpandVolumeRequest) -> Result<(), CallError> {
        call(self.change, asked, |r| self.service.expand(r)).await.map(drop)
    }

    /// How full a volume is.
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

/// A path of the agent's own, which is text.
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
    fn errors_read_as_users_know_them() {
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
