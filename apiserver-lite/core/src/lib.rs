//! io: what an API server decides, without HTTP: authentication and authorization, what a verb does to an object of any kind, and what
//! single kinds have of their own. Objects lie in `apiserver_store`; their rules are `apiserver_schema`'s.
//!
//! ```text
//!  request ─▶ auth ─▶ context ─▶ verbs ─▶ admission, registry ─▶ store
//!                                  ▲                              │
//!                       subresources                              ▼ record
//! ```

mod admission;
pub mod aggregation;
pub mod api_service_lifecycle;
pub mod auth;
pub mod backup;
pub mod config;
pub mod context;
pub mod conversion;
pub mod definition_lifecycle;
pub mod definitions;
pub mod deprecation;
pub mod dial_policy;
pub mod field_ownership;
pub mod flow_control;
pub mod flow_control_lifecycle;
pub mod idle_records;
mod internal_requests;
pub mod key;
pub mod options;
pub mod quota_turns;
mod random_suffix;
mod reconcile_loop;
pub mod record;
pub mod registry;
pub mod request;
pub mod request_notes;
pub mod saved_states;
pub mod server;
pub mod server_addresses;
pub mod service_endpoints;
mod service_values;
pub mod services;
pub mod state_requests;
pub mod status;
pub mod subresources;
pub mod times;
pub mod verbs;
pub mod versions;
pub mod webhook_call;
pub mod webhooks;
