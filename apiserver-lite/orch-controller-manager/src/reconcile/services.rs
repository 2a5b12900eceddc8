//! Endpoints and EndpointSlices. They are deleted with their Service: one that the cache lacks is read from the server first, because it comes to the cache by
//! a watch of its own, and Endpoints may be a user's. And the addresses of load balancers.

use std::sync::Arc;
use std::time::Duration;

use apiserver_controllers::endpoint_slices::{self, Manager, SliceContext};
use apiserver_controllers::load_balancer_addresses::Surroundings;
use apiserver_controllers::{Plan, endpoints, mirror};
use proto_api::ObjectKey;
use proto_api::core::v1::Service;
use proto_client::Client;

use super::{ReconcileError, Reconciler};
use crate::keys::ReconcileKey;

impl Reconciler {
    /// A Service, from the cache, or from the server if objects of it exist that are deleted without it.
    async fn find_service(
        &self,
        client: &Client,
        key: &ObjectKey,
        has_objects: bool,
    ) -> Result<Option<Arc<Service>>, ReconcileError> {
        let cached = self.informers.services.get(key);
        if cached.is_some() || !has_objects {
            return Ok(cached);
        }
        Ok(client.within::<Service>(&key.namespace).find(&key.name).await?.map(Arc::new))
    }

    /// Plans the Endpoints of a Service.
    pub(super) async fn plan_endpoints(
        &self,
        client: &Client,
        key: &ObjectKey,
    ) -> Result<Plan, ReconcileError> {
        let informers = &self.informers;
        let existing = informers.endpoints.get(key);
        let service = self.find_service(client, key, existing.is_some()).await?;
        let pods = informers.pods_of_service(service.as_deref());
        Ok(endpoints::plan(informers.names, service.as_deref(), &pods, existing.as_deref()))
    }

    /// Plans the slices of a Service that one of the two controllers has created.
    pub(super) async fn plan_slices(
        &self,
        client: &Client,
        key: &ObjectKey,
        manager: Manager,
    ) -> Result<Plan, ReconcileError> {
        let (informers, names) = (&self.informers, self.informers.names);
        let is_own = endpoint_slices::has_origin(names, manager, &key.name);
        let slices = informers.slices.matching(&key.namespace, is_own);
        let service = self.find_service(client, key, !slices.is_empty()).await?;
        let node = |name: &str| informers.nodes.get(&ObjectKey::new("", name));
        let context =
            SliceContext { names, node: &node, endpoints_max: self.settings.endpoints_max };
        Ok(match manager {
            Manager::Selector => {
                let pods = informers.pods_of_service(service.as_deref());
                endpoint_slices::plan(&context, service.as_deref(), &pods, &slices)
            }
            Manager::Mirror => {
                let endpoints = informers.endpoints.get(key);
                mirror::plan(&context, service.as_deref(), endpoints.as_deref(), &slices)
            }
        })
    }

    /// Assigns addresses to a load balancer and a node that announces them.
    pub(super) async fn assign_addresses(
        &self,
        reconcile_key: &ReconcileKey,
        key: &ObjectKey,
    ) -> Result<Option<Duration>, ReconcileError> {
        let informers = &self.informers;
        let Some(ranges) = &self.settings.load_balancer_ranges else { return Ok(None) };
        let Some(service) = informers.services.get(key) else { return Ok(None) };
        let around = Surroundings {
            names: informers.names,
            ranges,
            nodes: &informers.nodes.objects(),
            slices: &informers.slices.within(&key.namespace),
        };
        // Other plans do not wait for the server: they know of this one.
        let planned = informers.address_users().plan(&around, &service);
        let requeue = self.apply(reconcile_key, planned.plan).await?;
        planned.shortage.map_or(Ok(requeue), |shortage| Err(shortage.into()))
    }
}
