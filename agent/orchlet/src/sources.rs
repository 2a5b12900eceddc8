//! Where pods come from: the API server and a directory of manifests.

pub mod api;
pub mod manifests;
pub mod mirrors;
