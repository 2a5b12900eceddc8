//! Generates the client code of the CRI messages in `cri/v1.proto`.

fn main() -> std::io::Result<()> {
    println!("cargo::rerun-if-changed=cri/v1.proto");
    tonic_prost_build::configure()
        .build_server(false)
        .build_transport(false)
        .compile_protos(&["cri/v1.proto"], &["cri"])
}
