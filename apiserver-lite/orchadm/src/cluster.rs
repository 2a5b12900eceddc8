//! The cluster's API as its administrator and as a node see it.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use apiserver_bootstrap::poll_until::{self, NotYet};
use proto_api::names::Names;
use proto_client::{Client, ClientConfig, config, request};

/// Between two looks.
const POLL: Duration = Duration::from_millis(250);

/// A client with the rights of a client configuration.
///
/// # Errors
/// The file cannot be used.
pub fn client(path: &Path, names: &'static Names) -> Result<Client> {
    client_from(&config::file::load(path, None)?, names)
}

/// The same, towards another address of the server.
///
/// # Errors
/// The file cannot be used.
pub fn client_at(path: &Path, server: &str, names: &'static Names) -> Result<Client> {
    let mut config = config::file::load(path, None)?;
    config.server = server.parse().with_context(|| format!("the server {server}"))?;
    client_from(&config, names)
}

/// A client of a configuration.
///
/// # Errors
/// Its certificates cannot be used.
pub fn client_from(config: &ClientConfig, names: &'static Names) -> Result<Client> {
    let agent = concat!("orchadm/", env!("CARGO_PKG_VERSION"));
    let client = Client::new(config, names, agent)?;
    Ok(client.with_deadline(Duration::from_secs(10)))
}

/// Waits until the API server says that it is ready.
///
/// # Errors
/// It does not within `patience`.
pub async fn wait_ready(client: &Client, patience: Duration) -> Result<()> {
    until("the API server is ready", patience, async || ready(client).await).await
}

/// Whether the API server says that it is ready, or what it says.
///
/// # Errors
/// It is not.
pub async fn ready(client: &Client) -> Result<(), NotYet> {
    client.call(request::get("/readyz".into())).await.map(drop).map_err(chain)
}

/// An error with its causes in a line, as what was seen last.
pub fn chain(error: impl std::error::Error + 'static) -> NotYet {
    NotYet(proto_daemon::exit::chain(&error))
}

/// Looks until `look` gives `Ok`; the last `Err` says what was seen instead.
///
/// # Errors
/// It does not within `patience`.
pub async fn until<T>(
    what: &str,
    patience: Duration,
    look: impl AsyncFnMut() -> Result<T, NotYet>,
) -> Result<T> {
    Ok(poll_until::until(what, patience, POLL, look).await?)
}
