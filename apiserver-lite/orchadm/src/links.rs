//! Links of the pods' network.

use anyhow::{Context as _, Result};
use futures_util::TryStreamExt as _;

/// Removes a link; one that does not exist is fine.
///
/// # Errors
/// The kernel refuses.
pub async fn remove(name: &str) -> Result<bool> {
    let (connection, handle, _) = rtnetlink::new_connection().context("cannot open netlink")?;
    let driver = tokio::spawn(connection);
    let mut links = handle.link().get().match_name(name.to_owned()).execute();
    let removed = match links.try_next().await {
        Ok(Some(link)) => {
            let index = link.header.index;
            let removed = handle.link().del(index).execute().await;
            removed.with_context(|| format!("cannot remove the link {name}"))?;
            true
        }
        // No such link.
        Ok(None) | Err(rtnetlink::Error::NetlinkError(_)) => false,
        Err(error) => return Err(error).with_context(|| format!("cannot get the link {name}")),
    };
    driver.abort();
    Ok(removed)
}
