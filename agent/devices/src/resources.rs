//! The pod resources API: devices, CPUs and memory of containers, for monitoring agents.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use agent_node::managers::devices::{Devices, Inventory};
use agent_node::managers::{Grant, IdSet};
use proto_grpc::pod_resources::v1 as wire;
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use wire::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};

use crate::socket;

/// Name of the socket, which monitoring agents expect.
pub const SOCKET: &str = "kubelet.sock";

/// The current allocations; queried for every request.
pub trait AllocationSource: Send + Sync + 'static {
    /// The pods of the node.
    fn pods(&self) -> Vec<PodAllocation>;
    /// All devices there are.
    fn inventory(&self) -> Inventory;
    /// CPUs that may be allocated exclusively.
    fn cpus(&self) -> IdSet;
    /// Memory by NUMA node and resource that may be allocated exclusively.
    fn memory(&self) -> BTreeMap<u32, BTreeMap<String, u64>>;
}

/// Devices, CPUs and memory of one pod, as the pod resources API lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodAllocation {
    /// Name of the pod.
    pub name: String,
    pub namespace: String,
    /// Its containers in order, with their exclusive resources.
    pub containers: Vec<(String, Grant)>,
}

/// Serves requests in `directory` until `stop`.
///
/// # Errors
/// The socket cannot be created.
pub fn serve<S: Future<Output = ()> + Send + 'static>(
    shares: Arc<dyn AllocationSource>,
    directory: &Path,
    stop: S,
) -> std::io::Result<impl Future<Output = ()> + Send + use<S>> {
    let service = Routes::new(PodResourcesListerServer::new(Lister { shares }));
    let consequence = "monitoring agents cannot list the resources of pods";
    socket::serve(directory.join(SOCKET), service, stop, consequence)
}

struct Lister {
    shares: Arc<dyn AllocationSource>,
}

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(
        &self,
        _: Request<wire::ListPodResourcesRequest>,
    ) -> Result<Response<wire::ListPodResourcesResponse>, Status> {
        let inventory = self.shares.inventory();
        let container = |(name, grant): (String, Grant)| container(name, &grant, &inventory);
        let pod = |pod: PodAllocation| wire::PodResources {
            name: pod.name,
            namespace: pod.namespace,
            containers: pod.containers.into_iter().map(container).collect(),
        };
        let pod_resources = self.shares.pods().into_iter().map(pod).collect();
        Ok(Response::new(wire::ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<wire::AllocatableResourcesRequest>,
    ) -> Result<Response<wire::AllocatableResourcesResponse>, Status> {
        let inventory = self.shares.inventory();
        let all = |(resource, devices): (&String, &Devices)| {
            of_resource(resource, devices.keys().cloned(), devices)
        };
        let memory = self.shares.memory();
        let memory = memory.iter().flat_map(|(node, sizes)| {
            let nodes = IdSet::from_iter([*node]);
            sizes.iter().map(move |(kind, size)| of_memory(kind, *size, &nodes)).collect::<Vec<_>>()
        });
        Ok(Response::new(wire::AllocatableResourcesResponse {
            devices: inventory.iter().flat_map(all).collect(),
            cpu_ids: ids(&self.shares.cpus()),
            memory: memory.collect(),
        }))
    }
}

fn container(name: String, grant: &Grant, inventory: &Inventory) -> wire::ContainerResources {
    let none = Devices::new();
    let devices = grant.devices.iter().flat_map(|(resource, ids)| {
        of_resource(resource, ids.iter().cloned(), inventory.get(resource).unwrap_or(&none))
    });
    let memory = grant.memory.iter().flat_map(|memory| {
        memory.sizes.iter().map(|(kind, size)| of_memory(kind, *size, &memory.nodes))
    });
    wire::ContainerResources {
        name,
        devices: devices.collect(),
        cpu_ids: ids(&grant.cpus),
        memory: memory.collect(),
    }
}

/// Devices of a resource, one entry per NUMA node.
fn of_resource(
    resource: &str,
    ids: impl Iterator<Item = String>,
    devices: &Devices,
) -> Vec<wire::ContainerDevices> {
    let mut by_place: BTreeMap<IdSet, Vec<String>> = BTreeMap::new();
    for id in ids {
        let place = devices.get(&id).map(|device| device.nodes.clone()).unwrap_or_default();
        by_place.entry(place).or_default().push(id);
    }
    let entry = |(place, device_ids): (IdSet, Vec<String>)| wire::ContainerDevices {
        resource_name: resource.to_owned(),
        device_ids,
        topology: topology(&place),
    };
    by_place.into_iter().map(entry).collect()
}

fn of_memory(kind: &str, size: u64, nodes: &IdSet) -> wire::ContainerMemory {
    wire::ContainerMemory { memory_type: kind.to_owned(), size, topology: topology(nodes) }
}

fn topology(nodes: &IdSet) -> Option<wire::TopologyInfo> {
    let nodes: Vec<_> = nodes.iter().map(|id| wire::NumaNode { id: id.into() }).collect();
    (!nodes.is_empty()).then_some(wire::TopologyInfo { nodes })
}

fn ids(set: &IdSet) -> Vec<i64> {
    set.iter().map(i64::from).collect()
}
