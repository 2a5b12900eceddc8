//! Priority and fairness of requests: the flow schemas and priority levels of the store, with the seats and queues of the levels.
//!
//! Changes count from the next request on, and within a second for those that wait. What is decided is `apiserver_flow_control`'s.

mod configured;
mod level;
mod metrics;

use std::sync::Arc;
use std::time::Duration;

use apiserver_flow_control::{FlowSchemaUsage, RequestDigest};
use apiserver_store::Store;
use http::HeaderValue;
use proto_api::names::Names;

use crate::auth::{IndexError, StoreIndex};
use crate::record::StoredObject;
use configured::FlowControlObjects;
use level::Schema;

pub use level::{HeldSeat, NotServed};
pub use metrics::FlowMetrics;

/// The flow schemas and priority levels of a server.
pub struct FlowControl(StoreIndex<FlowControlObjects>);

/// A request whose flow schema is known.
pub struct ClassifiedRequest {
    schema: Arc<Schema>,
    flow: u64,
}

impl FlowControl {
    /// Reads the configuration of `store` and follows its changes. All levels together have `seats` seats.
    ///
    /// # Errors
    /// The store cannot be watched.
    pub fn follow(
        store: &Store<StoredObject>,
        seats: u32,
        names: &Names,
        metrics: FlowMetrics,
    ) -> Result<Self, IndexError> {
        StoreIndex::follow(store, FlowControlObjects::new(seats, names, metrics)).map(Self)
    }

    /// The flow schema that takes the request; if the objects cannot be read, as they were read last.
    #[must_use]
    pub fn classify(&self, request: &RequestDigest<'_>) -> ClassifiedRequest {
        self.0.read_last(|configured| {
            let (schema, flow) = configured.table().find(request);
            ClassifiedRequest { schema, flow }
        })
    }

    /// Lets changes count for requests that wait, though no other arrives.
    pub fn catch_up(&self) {
        self.0.read_last(FlowControlObjects::redistribute_seats);
    }

    /// What becomes of a flow schema whose priority level is there.
    #[must_use]
    pub fn usage(&self, schema: &str, level: &str) -> FlowSchemaUsage {
        self.0.read_last(|configured| configured.table().usage(schema, level))
    }
}

impl ClassifiedRequest {
    /// A seat of the priority level, once one is free. If the future is dropped, the request no longer waits.
    ///
    /// # Errors
    /// The level has no seat and no place to wait, or none within `wait_max`.
    pub async fn seat(&self, wait_max: Duration) -> Result<HeldSeat, NotServed> {
        level::seat(&self.schema, self.flow, wait_max).await
    }

    /// Identities of the flow schema and of its level; empty ones are left out.
    #[must_use]
    pub fn uids(&self) -> [Option<HeaderValue>; 2] {
        self.schema.uids()
    }
}

#[cfg(test)]
mod tests;
