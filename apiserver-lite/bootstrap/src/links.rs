//! Links of the pods' network.

use futures_util::TryStreamExt as _;

/// Why a link cannot be removed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// There is no socket.
    #[error("cannot open route netlink")]
    Open(#[source] std::io::Error),
    /// The kernel does not say whether it is there.
    #[error("cannot get the link {0}")]
    Get(String, #[source] rtnetlink::Error),
    /// The kernel refuses.
    #[error("cannot remove the link {0}")]
    Remove(String, #[source] rtnetlink::Error),
}

/// Removes a link, and returns whether it was there.
///
/// # Errors
/// The kernel refuses.
pub async fn remove(name: &str) -> Result<bool, LinkError> {
    let (connection, handle, _) = rtnetlink::new_connection().map_err(LinkError::Open)?;
    let driver = tokio::spawn(connection);
    let mut links = handle.link().get().match_name(name.to_owned()).execute();
    let removed = match links.try_next().await {
        Ok(Some(link)) => {
            let removed = handle.link().del(link.header.index).execute().await;
            removed.map_err(|error| LinkError::Remove(name.to_owned(), error))?;
            true
        }
        // No such link.
        Ok(None) | Err(rtnetlink::Error::NetlinkError(_)) => false,
        Err(error) => return Err(LinkError::Get(name.to_owned(), error)),
    };
    driver.abort();
    Ok(removed)
}
