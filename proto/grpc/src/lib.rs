//! gen: gRPC interfaces of the node's plugins, generated from `.proto` files that hold facts only; nothing by hand.
//!
//! Only the container runtime interface so far; CSI, plugin registration, device plugins and pod resources
//! get a module each, beside their `.proto`, when something speaks them.

/// Container runtime interface, version 1: package `runtime.v1`.
pub mod cri {
    #[allow(missing_docs, clippy::all, reason = "generated from cri/v1.proto")]
    pub mod v1 {
        tonic::include_proto!("runtime.v1");
    }
}
