//! Where a proxy listens: a port of a loopback address, or a socket that its user alone can connect to.

use std::fs::Permissions;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use orchctl_client::CommandError;
use proto_daemon::private_files;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::sleep;

/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where a proxy listens.
pub(super) enum Listener {
    /// A port.
    Tcp(TcpListener),
    /// A socket in a file.
    Unix {
        /// The socket.
        listener: UnixListener,
        /// Its file, which goes with it.
        path: PathBuf,
        /// The user that may connect.
        uid: u32,
    },
}

/// A connection.
pub(super) enum Accepted {
    /// To the port.
    Tcp(TcpStream),
    /// To the socket.
    Unix(UnixStream),
}

impl Listener {
    pub(super) async fn tcp(address: IpAddr, port: u16) -> Result<Self, CommandError> {
        let bound = TcpListener::bind((address, port)).await;
        bound.map(Self::Tcp).map_err(|error| {
            CommandError::with_text(format!("unable to listen on {address} port {port}: {error}"))
        })
    }

    /// Replaces the socket of an earlier proxy; any other file is left alone.
    pub(super) fn unix(path: &Path) -> Result<Self, CommandError> {
        let listen = || -> io::Result<Self> {
            let is_socket = |found: std::fs::Metadata| found.file_type().is_socket();
            if std::fs::symlink_metadata(path).is_ok_and(is_socket) {
                private_files::remove_private(path)?;
            }
            let listener = UnixListener::bind(path)?;
            std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
            let uid = std::fs::symlink_metadata(path)?.uid();
            Ok(Self::Unix { listener, path: path.to_owned(), uid })
        };
        listen().map_err(|error| {
            CommandError::with_text(format!("unable to listen on {}: {error}", path.display()))
        })
    }

    /// The address as text.
    pub(super) fn address(&self) -> String {
        match self {
            Self::Tcp(listener) => {
                listener.local_addr().map(|address| address.to_string()).unwrap_or_default()
            }
            Self::Unix { path, .. } => path.display().to_string(),
        }
    }

    /// The next connection of a user that may connect.
    pub(super) async fn accept(&self) -> Accepted {
        loop {
            let accepted = match self {
                Self::Tcp(listener) => {
                    listener.accept().await.map(|(stream, _)| Some(Accepted::Tcp(stream)))
                }
                Self::Unix { listener, uid, .. } => {
                    listener.accept().await.map(|(stream, _)| accept_user(stream, *uid))
                }
            };
            match accepted {
                Ok(Some(stream)) => return stream,
                Ok(None) => {}
                Err(_) => sleep(ACCEPT_PAUSE).await,
            }
        }
    }
}

impl Accepted {
    /// The address of the peer; a peer on a socket in a file has none.
    pub(super) fn peer_address(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(stream) => stream.peer_addr().ok().map(|address| address.ip()),
            Self::Unix(_) => None,
        }
    }
}

/// Before the mode of its file is set, others may connect to a socket.
fn accept_user(stream: UnixStream, uid: u32) -> Option<Accepted> {
    let peer = stream.peer_cred().ok()?.uid();
    (peer == uid || peer == 0).then_some(Accepted::Unix(stream))
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix { path, .. } = self {
            // If it stays, the next proxy replaces it.
            let _ = private_files::remove_private(path);
        }
    }
}

impl AsyncRead for Accepted {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Self::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
