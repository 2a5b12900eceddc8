//! A CSI driver for tests, whose volumes are directories of the host: it stages, publishes, expands and reports statistics and topology, records its calls
//! in a file, and fails as a file of faults says. With a client configuration it is its own provisioner, attacher and resizer ([`cluster`]).
//!
//! ```text
//! <dir>/csi.sock          its service           <dir>/volumes/<id>/   a volume
//! <dir>/calls             one JSON line a call  <dir>/volumes/<id>.size
//! <dir>/faults            lines of `<call> fail <text>`, `<call> hang` or `<call> exit`
//! <registry>/<name>-reg.sock   plugin registration
//! ```

mod cluster;
mod faults;
mod node;
mod store;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::Parser;
use proto_grpc::csi::v1::identity_server::{Identity, IdentityServer};
use proto_grpc::csi::v1::node_server::NodeServer;
use proto_grpc::csi::v1::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
    GetPluginInfoResponse, ProbeRequest, ProbeResponse,
};
use proto_grpc::plugin_registration::v1::registration_server::{Registration, RegistrationServer};
use proto_grpc::plugin_registration::v1::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::node::HostNode;
use crate::store::Store;

/// A driver of volumes that are directories of the host, for tests.
#[derive(Clone, Debug, Parser)]
pub struct Flags {
    /// Where volumes, calls and faults are.
    #[arg(long)]
    pub dir: PathBuf,
    /// The agent's directory for plugins.
    #[arg(long)]
    pub registry: PathBuf,
    /// Name of the driver.
    #[arg(long, default_value = "hostdir.csi.test")]
    pub name: String,
    /// The name of the node.
    #[arg(long, default_value = "node-1")]
    pub node_id: String,
    /// Leave staging out.
    #[arg(long)]
    pub no_stage: bool,
    /// Client configuration of the cluster whose claims it serves; without it, it is a node's driver only.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// How the cluster names things.
    #[arg(long, default_value = "kubernetes")]
    pub naming: String,
    /// Most volumes on the node.
    #[arg(long, default_value_t = 16)]
    pub volumes_max: i64,
}

struct Known {
    flags: Flags,
    store: Arc<Store>,
}

#[tonic::async_trait]
impl Registration for Known {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: self.flags.name.clone(),
            endpoint: self.flags.dir.join("csi.sock").to_string_lossy().into_owned(),
            supported_versions: vec!["1.0.0".to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        let told =
            serde_json::json!({"registered": status.plugin_registered, "error": status.error});
        self.store.note("NotifyRegistrationStatus", &told);
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl Identity for Known {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        let name = self.flags.name.clone();
        let vendor_version = env!("CARGO_PKG_VERSION").to_owned();
        Ok(Response::new(GetPluginInfoResponse { name, vendor_version, ..Default::default() }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        Ok(Response::new(GetPluginCapabilitiesResponse {}))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}

fn listen(path: &Path) -> Result<UnixListenerStream> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let listener =
        UnixListener::bind(path).with_context(|| format!("listen on {}", path.display()))?;
    Ok(UnixListenerStream::new(listener))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let flags = Flags::parse();
    std::fs::create_dir_all(flags.dir.join("volumes"))?;
    let store = Arc::new(Store::new(&flags.dir));
    let known = || Known { flags: flags.clone(), store: store.clone() };
    let own = listen(&flags.dir.join("csi.sock"))?;
    let service = Server::builder()
        .add_service(IdentityServer::new(known()))
        .add_service(NodeServer::new(HostNode::new(flags.clone(), store.clone())))
        .serve_with_incoming(own);
    // Known to the agent only when it can be asked.
    let register = listen(&flags.registry.join(format!("{}-reg.sock", flags.name)))?;
    let registration = Server::builder()
        .add_service(RegistrationServer::new(known()))
        .serve_with_incoming(register);
    let served = cluster::serve(&flags, store.clone());
    let transport = async {
        tokio::try_join!(service, registration)?;
        anyhow::Ok(())
    };
    tokio::try_join!(transport, served)?;
    Ok(())
}
