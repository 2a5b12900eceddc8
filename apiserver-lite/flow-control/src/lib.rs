//! pure: API priority and fairness, as in Kubernetes 1.25 (`flowcontrol.apiserver`): which flow schema takes a request, how many seats a priority level
//! has, and who waits for one in which order.
//!
//! A request has one seat while it is served. What it took counts once it has ended, as in Kubernetes; how large a list is does not.
//!
//! ```text
//!  user, groups, verb, resource ──▶ FlowSchemas ──▶ schema ──▶ level, flow
//!                                                                │
//!  shares of all levels, seats of the server ──▶ divide ──▶ FairQueue ──▶ executes now, waits in a queue, or is rejected
//!                                                                ▲
//!                                            a request ends, is cancelled; the level changes
//! ```

// Numbers come from API objects and from other programs.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod built_in;
mod dangling;
mod fair_queue;
mod flow_schema;
mod level;
mod objects;
mod read;
mod reconcile;
mod schemas;
mod shuffle_sharding;

pub use built_in::{BuiltInObject, built_in_objects};
pub use dangling::{DANGLING, Dangling, FlowSchemaUsage, dangling};
pub use fair_queue::{Arrival, QueuePlace, QueueSet, Rejection, Seat, WAITING_MAX};
pub use flow_schema::{
    DigestTarget, Distinguisher, FlowSchema, FlowSchemaRule, PathRule, RequestDigest, ResourceRule,
    Subject,
};
pub use level::{Limit, LimitResponse, PriorityLevel, Queuing, divide};
pub use objects::{CATCH_ALL, EXEMPT, FLOW_SCHEMAS, GROUP, PRIORITY_LEVELS, VERSION};
pub use read::{InvalidLevel, read_flow_schema, read_priority_level};
pub use reconcile::{is_auto_updated, is_obsolete, reconcile};
pub use schemas::{FLOW_SCHEMAS_MAX, FlowSchemas};
