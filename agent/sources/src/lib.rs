//! io: where pods and the objects that they refer to come from: the API server and manifests.

pub mod api;
pub mod manifests;
pub mod mirrors;
pub mod object_cache;
