//! gen: gRPC interfaces of the node's runtime and plugins, generated from `.proto` files with names, types and numbers only.

/// Container runtime interface, version 1: package `runtime.v1`.
pub mod cri {
    #[allow(
        missing_docs,
        clippy::all,
        clippy::too_many_lines,
        reason = "generated from cri/v1.proto"
    )]
    pub mod v1 {
        tonic::include_proto!("runtime.v1");
    }
}

/// Container storage interface, version 1: package `csi.v1`.
pub mod csi {
    #[allow(
        missing_docs,
        clippy::all,
        clippy::too_many_lines,
        reason = "generated from csi/v1.proto"
    )]
    pub mod v1 {
        tonic::include_proto!("csi.v1");
    }
}

/// Plugin registration, version 1: package `pluginregistration`.
pub mod plugin_registration {
    #[allow(
        missing_docs,
        clippy::all,
        clippy::too_many_lines,
        reason = "generated from plugin_registration/v1.proto"
    )]
    pub mod v1 {
        tonic::include_proto!("pluginregistration");
    }
}

/// Device plugins, version 1beta1: package `v1beta1`.
pub mod device_plugin {
    #[allow(
        missing_docs,
        clippy::all,
        clippy::too_many_lines,
        reason = "generated from device_plugin/v1beta1.proto"
    )]
    pub mod v1beta1 {
        tonic::include_proto!("v1beta1");
    }
}

/// Pod resources, version 1: package `v1`.
pub mod pod_resources {
    #[allow(
        missing_docs,
        clippy::all,
        clippy::too_many_lines,
        reason = "generated from pod_resources/v1.proto"
    )]
    pub mod v1 {
        tonic::include_proto!("v1");
    }
}
