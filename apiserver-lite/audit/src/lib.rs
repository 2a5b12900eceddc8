//! pure: the audit log of the API server, as audit.k8s.io/v1 of Kubernetes 1.25 defines it: what is recorded of which request ([`Policy`]), and what the
//! events look like.
//!
//! ```text
//!  PolicyFile ──▶ Policy ──┐
//!                          ▼
//!  user, verb, resource ─▶ Decision: level, stages ─▶ Trail ◀── objects, annotations, status, while the request runs
//!                                                       └──▶ one event a stage, as JSON
//! ```
//!
//! Writing them is `apiserver-audit-log`'s.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod event;
mod policy;
mod policy_file;
mod settings;
mod source_ips;
mod stage;
mod trail;

pub use event::{AuditUserInfo, ObjectIdentity, ObjectReference, RequestHead, response_status};
pub use policy::{AuditAttributes, AuditedResource, Policy, RequestAuditConfig};
pub use policy_file::{GroupResources, PolicyFault, PolicyFile, PolicyRule};
pub use settings::{
    AuditSettings, BatchSettings, LogPath, LogSettings, Mode, Throttle, WebhookSettings,
};
pub use source_ips::source_ips;
pub use stage::{Level, Stage, Stages};
pub use trail::{OFF, Trail, is_audit_id};
