//! The connection to one device plugin: its list of devices while it runs.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_node::managers::devices::{Device, DeviceHealth, Devices};
use proto_grpc::device_plugin::v1beta1 as wire;
use tonic::transport::Channel;
use wire::device_plugin_client::DevicePluginClient;

use super::{Plugins, mark_unhealthy};

/// How long the devices of a plugin that disconnected are kept, as in the kubelet.
const COME_BACK: Duration = Duration::from_secs(5 * 60);
/// Most devices of one resource; further ones are ignored.
const DEVICES_MAX: usize = 16_384;

/// Follows a plugin's devices until it disconnects, and drops them if it does not return. Ends early when another registration
/// replaces it.
pub(super) async fn follow(plugins: Plugins, resource: String, generation: u64, channel: Channel) {
    if let Err(status) = listen(&plugins, &resource, generation, channel).await {
        tracing::warn!(
            resource,
            error = status.message(),
            "device plugin disconnected; its devices are unhealthy until it registers again"
        );
    } else {
        tracing::warn!(
            resource,
            "device plugin closed its device list; its devices are unhealthy until it registers again"
        );
    }
    plugins.update_devices(&resource, generation, mark_unhealthy);
    tokio::time::sleep(COME_BACK).await;
    plugins.update_devices(&resource, generation, Devices::clear);
}

async fn listen(
    plugins: &Plugins,
    resource: &str,
    generation: u64,
    channel: Channel,
) -> Result<(), tonic::Status> {
    let mut client = DevicePluginClient::new(channel);
    let mut lists = client.list_and_watch(wire::Empty {}).await?.into_inner();
    while let Some(list) = lists.message().await? {
        let devices = read(list);
        let healthy = devices.values().filter(|d| d.health == DeviceHealth::Healthy).count();
        tracing::debug!(resource, devices = devices.len(), healthy, "device list received");
        plugins.update_devices(resource, generation, |known| *known = devices);
    }
    Ok(())
}

fn read(list: wire::ListAndWatchResponse) -> Devices {
    let read = |device: wire::Device| {
        let health = if device.health == "Healthy" {
            DeviceHealth::Healthy
        } else {
            DeviceHealth::Unhealthy
        };
        let nodes = device.topology.into_iter().flat_map(|topology| topology.nodes);
        let nodes = nodes.filter_map(|node| u32::try_from(node.id).ok()).collect();
        (device.id, Device { health, nodes })
    };
    list.devices.into_iter().take(DEVICES_MAX).map(read).collect::<BTreeMap<_, _>>()
}
