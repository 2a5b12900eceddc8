//! A device plugin as vendors write them, over real sockets: registration, changes of devices, allocation.
#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent_devices::{Plugins, registration, resources};
use agent_node::managers::devices::{DeviceChoice, DeviceHealth, Ids, Inventory};
use agent_node::managers::memory::MemoryGrant;
use agent_node::managers::{Grant, IdSet};
use hyper_util::rt::TokioIo;
use proto_api::names::Names;
use proto_grpc::device_plugin::v1beta1 as wire;
use proto_grpc::pod_resources::v1 as shown;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use wire::device_plugin_server::{DevicePlugin, DevicePluginServer};
use wire::registration_client::RegistrationClient;

const RESOURCE: &str = "example.com/gpu";

/// A plugin with devices chosen by the test.
#[derive(Clone)]
struct Vendor {
    devices: watch::Receiver<Vec<(&'static str, &'static str, i64)>>,
    prepared: Arc<Mutex<Vec<String>>>,
}

#[tonic::async_trait]
impl DevicePlugin for Vendor {
    type ListAndWatchStream = ReceiverStream<Result<wire::ListAndWatchResponse, Status>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<wire::Empty>,
    ) -> Result<Response<wire::DevicePluginOptions>, Status> {
        Ok(Response::new(options()))
    }

    async fn list_and_watch(
        &self,
        _: Request<wire::Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let (send, receive) = mpsc::channel(4);
        let mut devices = self.devices.clone();
        tokio::spawn(async move {
            loop {
                let device = |(id, health, node): &(&str, &str, i64)| wire::Device {
                    id: (*id).into(),
                    health: (*health).into(),
                    topology: Some(wire::TopologyInfo {
                        nodes: vec![wire::NumaNode { id: *node }],
                    }),
                };
                let devices_now = devices.borrow_and_update().iter().map(device).collect();
                let list = wire::ListAndWatchResponse { devices: devices_now };
                if send.send(Ok(list)).await.is_err() || devices.changed().await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receive)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<wire::PreferredAllocationRequest>,
    ) -> Result<Response<wire::PreferredAllocationResponse>, Status> {
        let asked = request.into_inner().container_requests;
        // It prefers the last ones.
        let answer = asked.into_iter().map(|one| {
            let size = usize::try_from(one.allocation_size).unwrap_or(0);
            let last = one.available_device_ids.into_iter().rev().take(size);
            wire::ContainerPreferredAllocationResponse { device_ids: last.collect() }
        });
        let container_responses = answer.collect();
        Ok(Response::new(wire::PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<wire::AllocateRequest>,
    ) -> Result<Response<wire::AllocateResponse>, Status> {
        let asked = request.into_inner().container_requests;
        let answer = |one: wire::ContainerAllocateRequest| {
            let ids = one.device_ids.join(",");
            if ids == "broken" {
                return Err(Status::internal("out of order"));
            }
            Ok(wire::ContainerAllocateResponse {
                envs: HashMap::from([("GPUS".to_owned(), ids.clone())]),
                mounts: vec![wire::Mount {
                    container_path: "/lib/gpu".into(),
                    host_path: "/opt/gpu".into(),
                    read_only: true,
                }],
                devices: vec![wire::DeviceSpec {
                    container_path: "/dev/gpu".into(),
                    host_path: format!("/dev/{ids}"),
                    permissions: "rw".into(),
                }],
                annotations: HashMap::from([("vendor".to_owned(), "v".to_owned())]),
            })
        };
        let container_responses = asked.into_iter().map(answer).collect::<Result<_, _>>()?;
        Ok(Response::new(wire::AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        request: Request<wire::PreStartContainerRequest>,
    ) -> Result<Response<wire::PreStartContainerResponse>, Status> {
        self.prepared.lock().expect("lock").extend(request.into_inner().device_ids);
        Ok(Response::new(wire::PreStartContainerResponse {}))
    }
}

fn options() -> wire::DevicePluginOptions {
    wire::DevicePluginOptions { pre_start_required: true, get_preferred_allocation_available: true }
}

async fn connect(path: PathBuf) -> Channel {
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    Endpoint::from_static("http://test").connect_with_connector(connector).await.expect("connect")
}

fn run(vendor: Vendor, directory: &Path, name: &str) -> JoinHandle<()> {
    let listener = UnixListener::bind(directory.join(name)).expect("bind");
    let server = Server::builder()
        .add_service(DevicePluginServer::new(vendor))
        .serve_with_incoming(UnixListenerStream::new(listener));
    tokio::spawn(async move { server.await.expect("serve") })
}

async fn register(directory: &Path, request: wire::RegisterRequest) -> Result<(), Status> {
    let channel = connect(directory.join(registration::SOCKET)).await;
    RegistrationClient::new(channel).register(request).await.map(|_| ())
}

fn request(endpoint: &str, resource: &str) -> wire::RegisterRequest {
    wire::RegisterRequest {
        version: "v1beta1".into(),
        endpoint: endpoint.into(),
        resource_name: resource.into(),
        options: Some(options()),
    }
}

/// Waits until the inventory satisfies the condition; the timeout is generous.
async fn until(plugins: &Plugins, wanted: impl Fn(&Inventory) -> bool) -> Inventory {
    let mut changed = plugins.subscribe();
    let wait = async {
        loop {
            let inventory = plugins.inventory();
            if wanted(&inventory) {
                return inventory;
            }
            changed.changed().await.expect("plugins");
        }
    };
    let found = tokio::time::timeout(Duration::from_secs(60), wait).await;
    found.unwrap_or_else(|_| panic!("{:?}", plugins.inventory()))
}

fn healthy(inventory: &Inventory) -> usize {
    let works =
        |device: &&agent_node::managers::devices::Device| device.health == DeviceHealth::Healthy;
    inventory.get(RESOURCE).map_or(0, |devices| devices.values().filter(works).count())
}

fn ids(list: &[&str]) -> Ids {
    list.iter().map(|id| (*id).to_owned()).collect()
}

#[tokio::test]
async fn a_device_plugin_registers_allocates_and_disconnects() {
    let dir = tempfile::tempdir().expect("tempdir");
    let plugins = Plugins::new(dir.path().into(), <&Names>::default(), []);
    let served = registration::serve(plugins.clone(), dir.path(), std::future::pending());
    tokio::spawn(served.expect("socket"));
    let (devices, told) = watch::channel(vec![("a", "Healthy", 0), ("b", "Healthy", 1)]);
    let prepared = Arc::new(Mutex::new(Vec::new()));
    let vendor = Vendor { devices: told, prepared: prepared.clone() };
    let server = run(vendor.clone(), dir.path(), "gpu.sock");
    register(dir.path(), request("gpu.sock", RESOURCE)).await.expect("registered");

    let inventory = until(&plugins, |all| healthy(all) == 2).await;
    assert_eq!(inventory[RESOURCE]["b"].nodes, IdSet::from_iter([1]));
    devices.send_replace(vec![("a", "Healthy", 0), ("b", "Unhealthy", 1)]);
    until(&plugins, |all| healthy(all) == 1 && all[RESOURCE].len() == 2).await;

    let ask = DeviceChoice {
        resource: RESOURCE.into(),
        available: ids(&["a", "b"]),
        number: 1,
        ..DeviceChoice::default()
    };
    assert_eq!(plugins.prefer(&ask).await, ["b"]);
    let outfit = plugins.allocate(RESOURCE, &ids(&["a"])).await.expect("outfit");
    assert_eq!(outfit.env, BTreeMap::from([("GPUS".to_owned(), "a".to_owned())]));
    assert_eq!(outfit.mounts, [("/lib/gpu".into(), "/opt/gpu".into(), true)]);
    assert_eq!(outfit.devices, [("/dev/gpu".into(), "/dev/a".into(), "rw".into())]);
    assert_eq!(outfit.annotations["vendor"], "v");
    plugins.prepare(RESOURCE, &ids(&["a"])).await.expect("prepared");
    assert_eq!(*prepared.lock().expect("lock"), ["a"]);
    let refused = plugins.allocate(RESOURCE, &ids(&["broken"])).await.expect_err("refused");
    assert!(refused.to_string().ends_with("out of order"), "{refused}");

    // It dies and returns on another socket: meanwhile its devices are not allocated.
    server.abort();
    drop(devices);
    until(&plugins, |all| healthy(all) == 0 && all[RESOURCE].len() == 2).await;
    let (_devices, told) = watch::channel(vec![("c", "Healthy", 0)]);
    let _server = run(Vendor { devices: told, prepared }, dir.path(), "gpu-2.sock");
    register(dir.path(), request("gpu-2.sock", RESOURCE)).await.expect("registered");
    let inventory = until(&plugins, |all| healthy(all) == 1).await;
    assert_eq!(inventory[RESOURCE].len(), 1, "only what the plugin has now");
}

#[tokio::test]
async fn a_plugin_of_the_registry_needs_no_other_socket() {
    let dir = tempfile::tempdir().expect("tempdir");
    let plugins = Plugins::new("/nowhere".into(), <&Names>::default(), []);
    let (_devices, told) = watch::channel(vec![("a", "Healthy", 0)]);
    let vendor = Vendor { devices: told, prepared: Arc::default() };
    let _server = run(vendor, dir.path(), "own.sock");
    let socket = dir.path().join("own.sock");
    let spoken = ["v1alpha".to_owned(), "v1beta1".to_owned()];
    let refused = plugins.adopt(RESOURCE, socket.clone(), &spoken[..1]).await;
    assert!(refused.expect_err("refused").to_string().contains("not supported"));
    assert!(plugins.adopt("cpu", socket.clone(), &spoken).await.is_err());
    assert!(plugins.adopt(RESOURCE, dir.path().join("none.sock"), &spoken).await.is_err());
    plugins.adopt(RESOURCE, socket, &spoken).await.expect("taken in");
    until(&plugins, |all| healthy(all) == 1).await;
    let ask = DeviceChoice {
        resource: RESOURCE.into(),
        available: ids(&["a"]),
        number: 1,
        ..DeviceChoice::default()
    };
    assert_eq!(plugins.prefer(&ask).await, ["a"], "its options are known");
    assert_eq!(plugins.registrations()[RESOURCE], 1);
}

#[tokio::test]
async fn invalid_plugin_registrations_are_refused() {
    let dir = tempfile::tempdir().expect("tempdir");
    let known = ["example.com/old".to_owned()];
    let plugins = Plugins::new(dir.path().into(), <&Names>::default(), known);
    let served = registration::serve(plugins.clone(), dir.path(), std::future::pending());
    tokio::spawn(served.expect("socket"));
    let native = <&Names>::default().label("gpu");
    let cases = [
        ("gpu.sock", "cpu"),
        ("gpu.sock", native.as_str()),
        ("gpu.sock", "requests.example.com/gpu"),
        ("gpu.sock", "example.com/a/b"),
        ("../gpu.sock", RESOURCE),
        ("", RESOURCE),
    ];
    for (endpoint, resource) in cases {
        let told = register(dir.path(), request(endpoint, resource)).await;
        let code = told.expect_err(resource).code();
        assert_eq!(code, tonic::Code::InvalidArgument, "{endpoint} {resource}");
    }
    let old = wire::RegisterRequest { version: "v1alpha".into(), ..request("g.sock", RESOURCE) };
    assert!(register(dir.path(), old).await.is_err());
    assert_eq!(plugins.inventory().keys().collect::<Vec<_>>(), ["example.com/old"]);
    let gone = plugins.allocate("example.com/old", &ids(&["a"])).await.expect_err("gone");
    assert_eq!(gone.to_string(), "no plugin for example.com/old is running");
}

struct Fixed;

impl resources::AllocationSource for Fixed {
    fn pods(&self) -> Vec<resources::PodAllocation> {
        let grant = Grant {
            cpus: "2-3".parse().expect("set"),
            memory: Some(MemoryGrant {
                nodes: IdSet::from_iter([1]),
                sizes: BTreeMap::from([("memory".to_owned(), 7)]),
            }),
            devices: BTreeMap::from([(RESOURCE.to_owned(), ids(&["a"]))]),
            ..Grant::default()
        };
        vec![resources::PodAllocation {
            name: "p".into(),
            namespace: "ns".into(),
            containers: vec![("c".into(), grant)],
        }]
    }

    fn inventory(&self) -> Inventory {
        let device = |node| agent_node::managers::devices::Device {
            nodes: IdSet::from_iter([node]),
            ..Default::default()
        };
        let devices = [("a", 0), ("b", 1)].map(|(id, node)| (id.to_owned(), device(node)));
        Inventory::from([(RESOURCE.to_owned(), devices.into())])
    }

    fn cpus(&self) -> IdSet {
        "1-3".parse().expect("set")
    }

    fn memory(&self) -> BTreeMap<u32, BTreeMap<String, u64>> {
        BTreeMap::from([(1, BTreeMap::from([("memory".to_owned(), 9)]))])
    }
}

#[tokio::test]
async fn the_pod_resources_api_lists_allocated_and_allocatable_resources() {
    let dir = tempfile::tempdir().expect("tempdir");
    let served = resources::serve(Arc::new(Fixed), dir.path(), std::future::pending());
    tokio::spawn(served.expect("socket"));
    let channel = connect(dir.path().join(resources::SOCKET)).await;
    let mut client = shown::pod_resources_lister_client::PodResourcesListerClient::new(channel);
    let pods = client.list(shown::ListPodResourcesRequest {}).await.expect("list").into_inner();
    let container = &pods.pod_resources[0].containers[0];
    assert_eq!((container.name.as_str(), &container.cpu_ids), ("c", &vec![2, 3]));
    assert_eq!(container.devices[0].device_ids, ["a"]);
    assert_eq!(container.devices[0].topology.as_ref().expect("place").nodes[0].id, 0);
    assert_eq!((container.memory[0].memory_type.as_str(), container.memory[0].size), ("memory", 7));
    let all = client.get_allocatable_resources(shown::AllocatableResourcesRequest {}).await;
    let all = all.expect("all").into_inner();
    assert_eq!((all.devices.len(), all.cpu_ids.len(), all.memory.len()), (2, 3, 1));
}
