//! The connection to one plugin: its list of devices, for as long as it lives.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_node::managers::devices::{Device, Devices, Health};
use proto_grpc::device_plugin::v1beta1 as wire;
use tonic::transport::Channel;
use wire::device_plugin_client::DevicePluginClient;

use crate::plugins::{Plugins, let_go};

/// How long a plugin that is gone may take to come back before its devices are forgotten; the ecosystem's own time.
const COME_BACK: Duration = Duration::from_secs(5 * 60);
/// Most devices of one resource; more are not looked at.
const DEVICES_MAX: usize = 16_384;

/// Follows a plugin's devices until it is gone, and forgets them if it does not come back. Ends early when another registration
/// takes its place.
pub(crate) async fn follow(plugins: Plugins, resource: String, generation: u64, channel: Channel) {
    if let Err(status) = listen(&plugins, &resource, generation, channel).await {
        tracing::warn!(resource, error = status.message(), "device plugin is gone");
    } else {
        tracing::warn!(resource, "device plugin has ended its list");
    }
    plugins.tell(&resource, generation, let_go);
    tokio::time::sleep(COME_BACK).await;
    plugins.tell(&resource, generation, Devices::clear);
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
        let healthy = devices.values().filter(|d| d.health == Health::Healthy).count();
        tracing::debug!(resource, devices = devices.len(), healthy, "devices");
        plugins.tell(resource, generation, |known| *known = devices);
    }
    Ok(())
}

fn read(list: wire::ListAndWatchResponse) -> Devices {
    let read = |device: wire::Device| {
        let health = if device.health == "Healthy" { Health::Healthy } else { Health::Unhealthy };
        let nodes = device.topology.into_iter().flat_map(|topology| topology.nodes);
        let nodes = nodes.filter_map(|node| u32::try_from(node.id).ok()).collect();
        (device.id, Device { health, nodes })
    };
    list.devices.into_iter().take(DEVICES_MAX).map(read).collect::<BTreeMap<_, _>>()
}
