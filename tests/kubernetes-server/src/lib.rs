//! Kubernetes' own API server with its etcd, started on loopback beside ours: for benchmarks, `hack/side-by-side` and `hack/differential`. A program ends
//! when what was returned for it is dropped.

pub mod api_server;
pub mod etcd;
pub mod ports;
pub mod processes;
