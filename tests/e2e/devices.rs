//! Devices of a device plugin: in the Node object, in containers, and in the pod resources API.

use std::collections::HashMap;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use hyper_util::rt::TokioIo;
use orch_tests::wait::until;
use proto_api::core::v1::Node;
use proto_grpc::device_plugin::v1beta1 as wire;
use proto_grpc::pod_resources::v1 as shown;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use wire::device_plugin_server::{DevicePlugin, DevicePluginServer};

use crate::context::{Context, PATIENCE, shown as look};
use crate::csi::event;
use crate::pods::{WAIT, pod};

const RESOURCE: &str = "example.com/zero";

/// A plugin with one healthy device, which is /dev/zero, and one that is broken.
struct Vendor;

#[tonic::async_trait]
impl DevicePlugin for Vendor {
    type ListAndWatchStream = ReceiverStream<Result<wire::ListAndWatchResponse, Status>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<wire::Empty>,
    ) -> Result<Response<wire::DevicePluginOptions>, Status> {
        Ok(Response::new(wire::DevicePluginOptions::default()))
    }

    async fn list_and_watch(
        &self,
        _: Request<wire::Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let (send, receive) = mpsc::channel(1);
        let device = |id: &str, health: &str| wire::Device {
            id: id.into(),
            health: health.into(),
            topology: None,
        };
        tokio::spawn(async move {
            let devices = vec![device("z0", "Healthy"), device("z1", "Unhealthy")];
            let _ = send.send(Ok(wire::ListAndWatchResponse { devices })).await;
            // The list stays open until the agent is gone.
            send.closed().await;
        });
        Ok(Response::new(ReceiverStream::new(receive)))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<wire::PreferredAllocationRequest>,
    ) -> Result<Response<wire::PreferredAllocationResponse>, Status> {
        Err(Status::unimplemented("it has no preference"))
    }

    async fn allocate(
        &self,
        request: Request<wire::AllocateRequest>,
    ) -> Result<Response<wire::AllocateResponse>, Status> {
        let asked = request.into_inner().container_requests;
        let answer = |one: wire::ContainerAllocateRequest| wire::ContainerAllocateResponse {
            envs: HashMap::from([("ZEROS".to_owned(), one.device_ids.join(","))]),
            devices: vec![wire::DeviceSpec {
                container_path: "/dev/my-zero".into(),
                host_path: "/dev/zero".into(),
                permissions: "r".into(),
            }],
            ..wire::ContainerAllocateResponse::default()
        };
        let container_responses = asked.into_iter().map(answer).collect();
        Ok(Response::new(wire::AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        _: Request<wire::PreStartContainerRequest>,
    ) -> Result<Response<wire::PreStartContainerResponse>, Status> {
        Ok(Response::new(wire::PreStartContainerResponse {}))
    }
}

async fn connect(path: PathBuf) -> Result<Channel> {
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    Ok(Endpoint::from_static("http://node").connect_with_connector(connector).await?)
}

fn amounts(node: &Node) -> (i64, i64) {
    let of = |list: &std::collections::BTreeMap<String, proto_api::Quantity>| {
        list.get(RESOURCE).map_or(-1, |q| q.value())
    };
    (of(&node.status.capacity), of(&node.status.allocatable))
}

pub async fn a_plugins_device_reaches_one_container(c: &Context) -> Result<()> {
    let agent = c.spec.node_dir("node-1").join("orchlet");
    let directory = agent.join("device-plugins");
    let listener = UnixListener::bind(directory.join("zero.sock"))?;
    let server = Server::builder()
        .add_service(DevicePluginServer::new(Vendor))
        .serve_with_incoming(UnixListenerStream::new(listener));
    let server = tokio::spawn(server);
    let request = wire::RegisterRequest {
        version: "v1beta1".into(),
        endpoint: "zero.sock".into(),
        resource_name: RESOURCE.into(),
        options: None,
    };
    let desk = connect(directory.join("kubelet.sock")).await?;
    wire::registration_client::RegistrationClient::new(desk).register(request).await?;
    let nodes = c.client.all::<Node>();
    let shows = async |wanted: (i64, i64)| {
        until("the node shows its devices", PATIENCE, async || {
            let node = nodes.get("node-1").await.map_err(|e| e.to_string())?;
            let shown = amounts(&node);
            if shown == wanted { Ok(()) } else { Err(format!("{shown:?}")) }
        })
        .await
    };
    shows((2, 1)).await?;

    let ns = c.namespace("devices").await?;
    let limits = format!("    resources: {{limits: {{{RESOURCE}: 1}}}}\n");
    c.apply(&(pod(&ns, "first", WAIT) + &limits)).await?;
    let first = c.pod_ready(&ns, "first").await?;
    let env = c.read_in_container(&first, &["/bin/env"]).await?;
    // What the process itself was started with is what the plugin said; an exec has its own.
    let own = c.read_in_container(&first, &["/bin/cat", "/proc/1/environ"]).await?;
    ensure!(own.contains("ZEROS=z0") || env.contains("ZEROS=z0"), "{own} {env}");
    let device = c.read_in_container(&first, &["/bin/ls", "-l", "/dev/my-zero"]).await?;
    ensure!(device.starts_with('c') && device.contains("1,   5"), "{device}");

    let channel = connect(agent.join("pod-resources/kubelet.sock")).await?;
    let mut monitor = shown::pod_resources_lister_client::PodResourcesListerClient::new(channel);
    let listed = monitor.list(shown::ListPodResourcesRequest {}).await?.into_inner();
    let listed = listed.pod_resources.iter().find(|p| p.name == "first").context("not listed")?;
    let devices = &listed.containers.first().context("no container")?.devices;
    ensure!(devices.iter().any(|d| d.resource_name == RESOURCE && d.device_ids == ["z0"]));

    // One that comes straight to the node, past the scheduler, finds none left.
    let past = |name: &str| pod(&ns, name, WAIT).replace("spec:\n", "spec:\n  nodeName: node-1\n");
    c.apply(&(past("second") + &limits)).await?;
    let refused = c
        .pod_until(&ns, "second", |pod| match pod.status.phase.as_str() {
            "Failed" => Ok(()),
            phase => Err(phase.to_owned()),
        })
        .await?;
    let reason = format!("OutOf{RESOURCE}");
    ensure!(refused.status.reason == reason, "{}", look(&refused));
    event(c, &ns, &reason, &format!("resource: {RESOURCE}, requested: 1, used: 1, capacity: 1"))
        .await?;

    // What no plugin of the node has ever offered is the cluster's, and none of the node's business.
    c.apply(&(past("third") + &limits.replace(RESOURCE, "example.com/licence"))).await?;
    c.pod_ready(&ns, "third").await?;

    // The plugin goes: the node has the devices and can give none; who has one keeps it.
    server.abort();
    let _ = server.await;
    std::fs::remove_file(directory.join("zero.sock"))?;
    c.kill("orchlet-node-1").await?;
    shows((0, 0)).await?;
    let after = c.pod_ready(&ns, "first").await?;
    ensure!(after.status.container_statuses.iter().all(|s| s.restart_count == 0));
    c.discard(&ns).await
}
