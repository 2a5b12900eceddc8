//! The keys of load balancers whose addresses a change affects.

use std::sync::Arc;

use apiserver_controller_io::informers::Informers;
use apiserver_controllers::load_balancer_addresses::{follows_endpoints, has_surplus_addresses};
use proto_api::ObjectKey;
use proto_api::core::v1::{Node, Service};
use proto_api::discovery::v1::EndpointSlice;

use super::ReconcileKey;

pub(super) fn keys_of_service(
    informers: &Informers,
    key: &ObjectKey,
    new: Option<&Arc<Service>>,
) -> impl Iterator<Item = ReconcileKey> + use<> {
    let new = new.map(|new| &**new);
    let affected = informers.address_users().service_changed(informers.names, key, new);
    affected.into_iter().map(ReconcileKey::LoadBalancer)
}

pub(super) fn keys_of_node(
    informers: &Informers,
    key: &ObjectKey,
    new: Option<&Arc<Node>>,
    old: Option<&Arc<Node>>,
) -> impl Iterator<Item = ReconcileKey> + use<> {
    let (new, old) = (new.map(|new| &**new), old.map(|old| &**old));
    if new.is_some_and(has_surplus_addresses) && !old.is_some_and(has_surplus_addresses) {
        tracing::warn!(node = %key.name, "a node lists many addresses; load balancers may get those beyond the first few");
    }
    let affected = informers.address_users().node_changed(informers.names, &key.name, new, old);
    affected.into_iter().map(ReconcileKey::LoadBalancer)
}

/// The Service of a slice, if its endpoints decide which node announces its addresses.
pub(super) fn key_of_slice(informers: &Informers, slice: &EndpointSlice) -> Option<ReconcileKey> {
    let metadata = &slice.metadata;
    let service = metadata.labels.get(&informers.names.label("service-name"))?;
    let key = ObjectKey::new(&metadata.namespace, service);
    let service = informers.services.get(&key)?;
    follows_endpoints(informers.names, &service).then_some(ReconcileKey::LoadBalancer(key))
}
