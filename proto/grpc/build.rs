//! Generates the code of the interfaces from their `.proto` files.

fn main() -> std::io::Result<()> {
    for proto in ["cri/v1.proto", "csi/v1.proto", "plugin_registration/v1.proto"] {
        println!("cargo::rerun-if-changed={proto}");
    }
    tonic_prost_build::configure()
        .build_server(false)
        .build_transport(false)
        .compile_protos(&["cri/v1.proto"], &["cri"])?;
    // The servers are for the driver that tests use.
    tonic_prost_build::configure()
        .build_transport(false)
        // they carry secrets, which no log may show
        .skip_debug([
            "csi.v1.NodeStageVolumeRequest",
            "csi.v1.NodePublishVolumeRequest",
            "csi.v1.NodeExpandVolumeRequest",
        ])
        .compile_protos(&["csi/v1.proto", "plugin_registration/v1.proto"], &["."])
}
