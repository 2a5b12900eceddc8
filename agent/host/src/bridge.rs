//! The bridge of the node's pods, created before the first pod.
//!
//! The CNI bridge plugin would create it, too, but two pods that start at the same time race, and one of them fails. The plugin
//! does not change a bridge that already has its addresses.

use std::net::IpAddr;

use futures_util::TryStreamExt as _;
use rtnetlink::{Handle, LinkBridge, LinkUnspec};

/// Why the bridge could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    /// The netlink socket could not be opened.
    #[error("cannot open a netlink socket")]
    Socket(#[source] std::io::Error),
    /// The kernel rejected a step.
    #[error("cannot {step} bridge {name}")]
    Step {
        step: &'static str,
        /// Name of the bridge.
        name: String,
        /// Cause.
        #[source]
        source: rtnetlink::Error,
    },
    /// It was created and then did not exist.
    #[error("bridge {0} disappeared before it was configured")]
    Vanished(String),
}

/// Ensures that bridge `name` exists, is up and has `addresses` with their prefix lengths. Needs a tokio runtime.
///
/// # Errors
/// The first step that the kernel rejects.
pub async fn ensure_bridge(name: &str, addresses: &[(IpAddr, u8)]) -> Result<(), BridgeError> {
    let (connection, handle, _) = rtnetlink::new_connection().map_err(BridgeError::Socket)?;
    let driver = tokio::spawn(connection);
    let outcome = ensure_with(&handle, name, addresses).await;
    driver.abort();
    outcome
}

async fn ensure_with(
    handle: &Handle,
    name: &str,
    addresses: &[(IpAddr, u8)],
) -> Result<(), BridgeError> {
    let step = |step| move |source| BridgeError::Step { step, name: name.to_owned(), source };
    if index_of(handle, name).await.is_none() {
        // A hardware address set at creation stays; otherwise the bridge takes the lowest one of its ports.
        let message = LinkBridge::new(name).address(hardware_address(addresses)).build();
        let made = handle.link().add(message).execute().await;
        made.or_else(unless_exists).map_err(step("create"))?;
    }
    let index = index_of(handle, name).await;
    let index = index.ok_or_else(|| BridgeError::Vanished(name.to_owned()))?;
    for (address, prefix_len) in addresses {
        let added = handle.address().add(index, *address, *prefix_len).execute().await;
        added.or_else(unless_exists).map_err(step("add an address to"))?;
    }
    let up = LinkUnspec::new_with_index(index).up().build();
    handle.link().set(up).execute().await.map_err(step("set up"))
}

async fn index_of(handle: &Handle, name: &str) -> Option<u32> {
    let mut links = handle.link().get().match_name(name.to_owned()).execute();
    // A missing link is reported as an error.
    links.try_next().await.ok().flatten().map(|link| link.header.index)
}

fn unless_exists(error: rtnetlink::Error) -> Result<(), rtnetlink::Error> {
    match &error {
        rtnetlink::Error::NetlinkError(e)
            if e.raw_code() == -(nix::errno::Errno::EEXIST as i32) =>
        {
            Ok(())
        }
        _ => Err(error),
    }
}

/// A locally administered address that is the same for the same node, so that neighbour caches stay valid across a restart.
fn hardware_address(addresses: &[(IpAddr, u8)]) -> Vec<u8> {
    let tail = match addresses.first() {
        Some((IpAddr::V4(v4), _)) => v4.octets(),
        Some((IpAddr::V6(v6), _)) => {
            let octets = v6.octets();
            [octets[12], octets[13], octets[14], octets[15]]
        }
        None => [0, 0, 0, 1],
    };
    [vec![0x0a, 0x58], tail.to_vec()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_addresses_are_local_and_unicast() {
        for first in ["10.244.1.1", "fd00:1::1"] {
            let address = hardware_address(&[(first.parse().unwrap(), 24)]);
            assert_eq!((address.len(), address[0] & 3), (6, 2), "{first}");
        }
    }
}
