//! What is known of other API servers besides their APIServices, and where a request for one of them goes.

pub mod user_headers;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use apiserver_core::aggregation::ApiService;
use apiserver_core::server::Server;
use apiserver_core::service_endpoints::endpoints_of;
use apiserver_core::status::ApiError;
use apiserver_schema::openapi::OtherApi;
use serde_json::Value;

use crate::node_proxy::{DialScope, ProxyTarget, Scheme, Trust};
use crate::other_documents::OtherDocuments;

/// What is known of other API servers besides their APIServices.
#[derive(Default)]
pub struct Aggregation {
    /// Counts requests, so that endpoints take turns.
    turns: AtomicUsize,
    /// The resources of group versions, by name of the APIService.
    resources: RwLock<HashMap<String, Arc<Value>>>,
    /// What they publish of them in OpenAPI, by name of the APIService.
    open_api: RwLock<BTreeMap<String, Arc<OtherApi>>>,
    /// Their v3 documents that are under way.
    pub documents: OtherDocuments,
}

impl Aggregation {
    /// The `APIResourceList` that the other server answered last.
    #[must_use]
    pub fn resources(&self, name: &str) -> Option<Arc<Value>> {
        self.resources.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// Keeps the list of an APIService; `None` forgets it.
    pub fn set_resources(&self, name: &str, list: Option<Value>) {
        let mut lists = self.resources.write().unwrap_or_else(PoisonError::into_inner);
        match list {
            Some(list) => drop(lists.insert(name.to_owned(), Arc::new(list))),
            None => drop(lists.remove(name)),
        }
    }

    /// Forgets the lists of other APIServices.
    pub fn retain(&self, is_there: impl Fn(&str) -> bool) {
        let mut lists = self.resources.write().unwrap_or_else(PoisonError::into_inner);
        lists.retain(|name, _| is_there(name));
    }

    /// What other servers publish in OpenAPI, by name of their APIService.
    #[must_use]
    pub fn open_api(&self) -> Vec<Arc<OtherApi>> {
        let all = self.open_api.read().unwrap_or_else(PoisonError::into_inner);
        all.values().cloned().collect()
    }

    /// The hash by which a server lists the v3 document of an APIService, if it is known.
    #[must_use]
    pub fn v3_hash(&self, name: &str) -> Option<String> {
        let all = self.open_api.read().unwrap_or_else(PoisonError::into_inner);
        all.get(name).and_then(|of| of.v3_hash.clone())
    }

    /// Changes what other servers publish in OpenAPI.
    pub fn change_open_api<T>(
        &self,
        change: impl FnOnce(&mut BTreeMap<String, Arc<OtherApi>>) -> T,
    ) -> T {
        change(&mut self.open_api.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Where a request for this path goes.
    ///
    /// # Errors
    /// The Service does not exist, or has no endpoint.
    pub fn target(
        &self,
        core: &Server,
        service: &ApiService,
        path: &str,
    ) -> Result<ProxyTarget, ApiError> {
        let no_service = || ApiError::unavailable(UNAVAILABLE.to_owned());
        let backend = service.backend.as_ref().ok_or_else(no_service)?;
        let port = backend.port.to_string();
        let mut endpoints = endpoints_of(core, &backend.namespace, &backend.name, &port)?;
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        let at = turn.checked_rem(endpoints.len()).ok_or_else(no_service)?;
        let (host, port) = endpoints.swap_remove(at);
        Ok(ProxyTarget {
            scheme: Scheme::Https,
            trust: Trust::ApiServer(Box::new(backend.clone())),
            scope: DialScope::Routable,
            host,
            port,
            path: path.to_owned(),
        })
    }
}

/// The words of Kubernetes.
pub const UNAVAILABLE: &str = "service unavailable";
