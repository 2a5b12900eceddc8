//! Pod sources: the API server and manifests.

pub mod api;
pub mod manifests;
pub mod mirrors;
