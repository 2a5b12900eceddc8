//! Unix sockets of servers and clients.

use std::fs;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use hyper_util::rt::TokioIo;
use proto_daemon::private_files;
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::service::Routes;
use tonic::transport::{Channel, Endpoint, Server};

/// Concurrent requests per connection.
const CONCURRENT_MAX: usize = 4;

/// Serves a gRPC service on a new socket until `stop`. `consequence` is logged if serving fails.
///
/// # Errors
/// The socket cannot be created.
pub(crate) fn serve<S: Future<Output = ()> + Send + 'static>(
    path: PathBuf,
    service: Routes,
    stop: S,
    consequence: &'static str,
) -> std::io::Result<impl Future<Output = ()> + Send + use<S>> {
    let listener = listen(&path)?;
    let server = Server::builder()
        .concurrency_limit_per_connection(CONCURRENT_MAX)
        .add_routes(service)
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stop);
    Ok(async move {
        if let Err(error) = server.await {
            tracing::error!(path = %path.display(), %error, "gRPC socket failed: {consequence}");
        }
    })
}

/// Listens on a new socket that only root can use; replaces the socket of an earlier process. Plugins that watch the directory
/// see the new one.
///
/// # Errors
/// The directory or the socket cannot be created.
fn listen(path: &Path) -> std::io::Result<UnixListener> {
    if let Some(directory) = path.parent() {
        private_files::create_private_dir(directory)?;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // The directory is private, so no other user can connect before the mode is set.
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// A client of the socket that connects with the first call and reconnects.
pub(crate) fn call(path: PathBuf) -> Channel {
    // A placeholder: the connector below opens the socket instead.
    Endpoint::from_static("http://plugin").connect_with_connector_lazy(tower::service_fn(
        move |_| {
            let path = path.clone();
            async move { Ok::<_, Error>(TokioIo::new(UnixStream::connect(path).await?)) }
        },
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, chown};

    use super::*;

    #[tokio::test]
    async fn plugin_sockets_are_accessible_to_their_owner_only() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("plugins");
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        let socket = directory.join("agent.sock");
        drop(listen(&socket).unwrap());
        drop(listen(&socket).unwrap());
        assert_eq!((mode(&directory), mode(&socket)), (0o700, 0o600));
        if directory.metadata().unwrap().uid() != 0 {
            eprintln!(
                "SKIPPED plugin_sockets_are_accessible_to_their_owner_only, foreign owners: needs root"
            );
            return;
        }
        chown(&directory, Some(1), None).unwrap();
        assert_eq!(listen(&socket).unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
}
