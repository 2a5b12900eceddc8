//! The desired forwarding as a proxy that starts now would have it, for `trace` and `diff`.

use std::sync::Arc;
use std::time::Duration;

use proto_api::core::v1::{Node, Service};
use proto_api::discovery::v1::EndpointSlice;
use proto_client::{Client, ClientError, ListParams};
use proxy_rules::Dataplane;
use proxy_rules::layout::Layout;
use proxy_rules::localise::{is_forwarded, localise_service, localise_slice};
use proxy_rules::model::{LocalService, LocalSlice, Locality, Protocol, ServiceId};

use crate::build_error::BuildError;
use crate::config::Config;
use crate::{dns, local_node, startup};

/// Timeout of each list.
const PATIENCE: Duration = Duration::from_secs(30);

/// Services and EndpointSlices were not listed.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The client cannot be built.
    #[error("cannot create a client of the API server")]
    Client(#[source] Box<BuildError>),
    /// The list failed.
    #[error("cannot list {0}")]
    List(&'static str, #[source] Box<ClientError>),
    /// The list timed out.
    #[error("cannot list {0}: the API server did not answer in time")]
    Late(&'static str),
}

/// Services and EndpointSlices as seen from this node.
#[derive(Debug)]
pub struct Model {
    /// The configuration with detected values.
    pub config: Config,
    zone: Option<Box<str>>,
    services: Vec<(ServiceId, Arc<LocalService>)>,
    slices: Vec<(String, Arc<LocalSlice>)>,
}

impl Model {
    /// Lists from the API server.
    pub async fn fetch(config: &Config) -> Result<Self, ModelError> {
        let settle = |error: BuildError| ModelError::Client(Box::new(error));
        let client = startup::client(config).map_err(settle)?;
        let config = startup::with_node_blocks(&client, config.clone()).await.map_err(settle)?;
        let config = startup::with_protected(&client, config).await;
        let names = config.names;
        let services = all::<Service>(&client, "services").await?;
        let slices = all::<EndpointSlice>(&client, "endpoint slices").await?;
        let node = client.all::<Node>().find(&config.node_name).await;
        let node = node.map_err(|error| ModelError::List("this node", Box::new(error)))?;
        let own = config.dns.is_some().then(|| dns::service_id(names));
        let services = services.iter().filter(|service| is_forwarded(&service.metadata, names));
        let services = services.filter_map(|service| {
            let id = ServiceId::new(&service.metadata.namespace, &service.metadata.name);
            Some((id, Arc::new(localise_service(service, names)?)))
        });
        let slices = slices.iter().filter(|slice| is_forwarded(&slice.metadata, names));
        let slices = slices.filter_map(|slice| {
            let local = localise_slice(slice, names, &config.node_name)?;
            let elsewhere = own.as_ref() == Some(&local.service);
            (!elsewhere).then(|| (slice.metadata.name.clone(), Arc::new(local)))
        });
        let (services, mut slices) = (services.collect(), slices.collect::<Vec<_>>());
        slices.extend(dns::own_slices(&config).await);
        let zone = node.and_then(|node| local_node::zone(&node, names));
        Ok(Self { zone, services, slices, config })
    }

    /// The dataplane that a proxy that starts now would load.
    pub fn plane(&self, layout: Layout) -> Dataplane {
        let mut plane = Dataplane::new(layout);
        plane.zone_changed(self.zone.as_deref());
        for (name, slice) in &self.slices {
            plane.slice_changed(name, None, Some(slice.clone()));
        }
        for (id, service) in &self.services {
            plane.service_changed(id, Some(service.clone()));
        }
        drop(plane.load());
        plane
    }

    /// Describes the Services with this frontend and their endpoints. `is_local` is true for addresses of this node.
    pub fn explain(
        &self,
        protocol: Protocol,
        to: std::net::SocketAddr,
        is_local: &dyn Fn(std::net::IpAddr) -> bool,
    ) -> Vec<String> {
        let mut lines = Vec::new();
        for (id, service) in &self.services {
            for port in service.ports.iter().filter(|port| port.protocol == protocol) {
                let lists = [
                    (&service.cluster_ips, "cluster IP", service.internal),
                    (&service.external_ips, "external address", service.external),
                    (&service.load_balancer_ips, "load balancer's address", service.external),
                ];
                let at =
                    |list: &[std::net::IpAddr]| port.port == to.port() && list.contains(&to.ip());
                let by_address = lists.iter().filter(|(list, ..)| at(list));
                let by_port = port.node_port == Some(to.port()) && is_local(to.ip());
                let by_port = by_port.then_some(("node port", service.external));
                let found = by_address.map(|(_, kind, policy)| (*kind, *policy)).chain(by_port);
                for (kind, policy) in found {
                    lines.push(format!(
                        "Service {id}, port {:?}: {kind}, policy {policy:?}, choice {:?}",
                        port.name, service.choice
                    ));
                    lines.extend(self.endpoints(id, &port.name, protocol));
                }
            }
        }
        if lines.is_empty() {
            let known = self.services.iter().find(|(_, s)| s.cluster_ips.contains(&to.ip()));
            lines.push(match known {
                Some((id, _)) => format!("Service {id} has the address, but not this port"),
                None => "no Service".to_owned(),
            });
        }
        lines
    }

    /// Whether a Service has this node port.
    pub fn has_node_port(&self, protocol: Protocol, number: u16) -> bool {
        let mut ports = self.services.iter().flat_map(|(_, service)| &service.ports);
        ports.any(|port| port.protocol == protocol && port.node_port == Some(number))
    }

    fn endpoints(&self, id: &ServiceId, port: &str, protocol: Protocol) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, slice) in self.slices.iter().filter(|(_, slice)| slice.service == *id) {
            let ports = slice.ports.iter().filter(|p| *p.name == *port && p.protocol == protocol);
            for number in ports.map(|port| port.port) {
                lines.extend(slice.endpoints.iter().map(|endpoint| {
                    let place = if endpoint.place == Locality::Here { "here" } else { "elsewhere" };
                    let (address, state) = (endpoint.address, endpoint.state);
                    format!("  {address} port {number}: {state:?}, {place} ({name})")
                }));
            }
        }
        if lines.is_empty() { vec!["  no endpoints".to_owned()] } else { lines }
    }
}

async fn all<T: proto_api::Resource>(
    client: &Client,
    what: &'static str,
) -> Result<Vec<T>, ModelError> {
    let params = ListParams::default();
    let api = client.all::<T>();
    let listed = tokio::time::timeout(PATIENCE, api.list(&params)).await;
    let listed = listed.map_err(|_| ModelError::Late(what))?;
    Ok(listed.map_err(|error| ModelError::List(what, Box::new(error)))?.items)
}
