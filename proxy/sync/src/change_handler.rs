//! Changes of Services and EndpointSlices as the forwarding receives them.

use std::sync::Arc;
use std::time::SystemTime;

use proxy_rules::model::{LocalService, LocalSlice, ServiceId};
use proxy_userspace::Forwarder;

/// Receives changes in order. Must not block.
pub trait ChangeHandler: Send + Sync {
    /// A Service as it is now; `None` if it does not exist.
    fn service_changed(&self, id: &ServiceId, service: Option<Arc<LocalService>>);

    /// An EndpointSlice as it is now, `None` if it does not exist, and as it was before.
    fn slice_changed(
        &self,
        name: &str,
        old: Option<&Arc<LocalSlice>>,
        new: Option<Arc<LocalSlice>>,
    );

    /// The same name in memory that is kept already, to keep it once.
    fn intern_service_id(&self, id: ServiceId) -> ServiceId {
        id
    }

    /// The trigger time of the next EndpointSlice.
    fn slice_triggered(&self, _at: SystemTime) {}

    /// One more of the two sources is synced.
    fn source_complete(&self);
}

impl ChangeHandler for Forwarder {
    fn service_changed(&self, id: &ServiceId, service: Option<Arc<LocalService>>) {
        Forwarder::service_changed(self, id, service);
    }

    fn slice_changed(
        &self,
        name: &str,
        old: Option<&Arc<LocalSlice>>,
        new: Option<Arc<LocalSlice>>,
    ) {
        Forwarder::slice_changed(self, name, old.map(|old| &**old), new);
    }

    fn source_complete(&self) {
        Forwarder::source_complete(self);
    }
}
