//! The registration socket of device plugins.

use std::future::Future;
use std::path::Path;

use proto_grpc::device_plugin::v1beta1 as wire;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use wire::registration_server::{Registration, RegistrationServer};

use crate::{Plugins, socket};

/// Name of the socket in the plugin directory, which plugins expect.
pub const SOCKET: &str = "kubelet.sock";
/// Concurrent requests per connection.
const CONCURRENT_MAX: usize = 4;

/// Serves registrations in `directory` until `stop`.
///
/// # Errors
/// The socket cannot be created, so no plugin can register.
pub fn serve<S: Future<Output = ()> + Send + 'static>(
    plugins: Plugins,
    directory: &Path,
    stop: S,
) -> std::io::Result<impl Future<Output = ()> + Send + use<S>> {
    let listener = socket::listen(&directory.join(SOCKET))?;
    let service = RegistrationServer::new(RegistrationService { plugins });
    let server = Server::builder()
        .concurrency_limit_per_connection(CONCURRENT_MAX)
        .add_service(service)
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stop);
    Ok(async move {
        if let Err(error) = server.await {
            tracing::error!(%error, "registration socket failed: device plugins cannot register");
        }
    })
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
