//! The registration socket of device plugins.

use std::future::Future;
use std::path::Path;

use proto_grpc::device_plugin::v1beta1 as wire;
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use wire::registration_server::{Registration, RegistrationServer};

use crate::{Plugins, socket};

/// Name of the socket in the plugin directory, which plugins expect.
pub const SOCKET: &str = "kubelet.sock";

/// Serves registrations in `directory` until `stop`.
///
/// # Errors
/// The socket cannot be created, so no plugin can register.
pub fn serve<S: Future<Output = ()> + Send + 'static>(
    plugins: Plugins,
    directory: &Path,
    stop: S,
) -> std::io::Result<impl Future<Output = ()> + Send + use<S>> {
    let service = Routes::new(RegistrationServer::new(RegistrationService { plugins }));
    let consequence = "device plugins cannot register";
    socket::serve(directory.join(SOCKET), service, stop, consequence)
}

struct RegistrationService {
    plugins: Plugins,
}

#[tonic::async_trait]
impl Registration for RegistrationService {
    async fn register(
        &self,
        request: Request<wire::RegisterRequest>,
    ) -> Result<Response<wire::Empty>, Status> {
        match self.plugins.register(request.into_inner()) {
            Ok(()) => Ok(Response::new(wire::Empty {})),
            Err(error) => {
                tracing::warn!(%error, "device plugin registration rejected");
                Err(Status::invalid_argument(error.to_string()))
            }
        }
    }
}
