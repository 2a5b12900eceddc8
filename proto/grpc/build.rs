//! Generates the code of the interfaces from their `.proto` files.

fn main() -> std::io::Result<()> {
    const SERVED: [&str; 2] = ["device_plugin/v1beta1.proto", "pod_resources/v1.proto"];
    const CALLED: [&str; 3] = ["cri/v1.proto", "csi/v1.proto", "plugin_registration/v1.proto"];
    for proto in SERVED.iter().chain(&CALLED) {
        println!("cargo::rerun-if-changed={proto}");
    }
    tonic_prost_build::configure()
        .build_server(false)
        .build_transport(false)
        .compile_protos(&["cri/v1.proto"], &["cri"])?;
    tonic_prost_build::configure().build_transport(false).compile_protos(&SERVED, &["."])?;
    // The servers are for the CSI driver of tests.
    tonic_prost_build::configure()
        .build_transport(false)
        // they have secrets, which must not be logged
        .skip_debug([
            "csi.v1.NodeStageVolumeRequest",
            "csi.v1.NodePublishVolumeRequest",
            "csi.v1.NodeExpandVolumeRequest",
        ])
        .compile_protos(&["csi/v1.proto", "plugin_registration/v1.proto"], &["."])
}
