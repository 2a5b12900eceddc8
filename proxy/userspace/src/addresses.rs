//! Assigns Services' addresses to this node, so that packets to them are delivered locally: on a link of their own, by
//! which they are found and removed.

use std::collections::BTreeSet;
use std::net::IpAddr;

use futures_util::TryStreamExt;
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage,
};
use nix::libc;
use proto_daemon::exit::chain;
use rtnetlink::{Error, Handle, LinkDummy, LinkUnspec, LinkVeth};

/// The addresses are not as desired.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// The route netlink socket cannot be opened.
    #[error("cannot open route netlink")]
    Open(#[source] std::io::Error),
    /// Links or addresses cannot be listed.
    #[error("cannot list links and addresses")]
    List(#[source] Box<Error>),
    /// The link cannot be created or deleted.
    #[error("cannot change link {link}")]
    Link {
        /// Its name.
        link: String,
        /// The error.
        #[source]
        source: Box<Error>,
    },
    /// An address cannot be changed; the others were tried.
    #[error("{what} address {address} on link {link}")]
    Address {
        /// `add` or `remove`.
        what: &'static str,
        address: IpAddr,
        /// Name of the link.
        link: String,
        /// The error.
        #[source]
        source: Box<Error>,
    },
}

/// Addresses of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkAddresses {
    /// Those on the link.
    pub services: BTreeSet<IpAddr>,
    /// All others.
    pub node: BTreeSet<IpAddr>,
}

impl LinkAddresses {
    /// Addresses that the link lacks, except those that another link of this node has.
    pub fn missing(&self, wanted: &BTreeSet<IpAddr>) -> Vec<IpAddr> {
        let absent = |a: &&IpAddr| !self.services.contains(a) && !self.node.contains(a);
        wanted.iter().filter(absent).copied().collect()
    }

    /// Addresses that the link should not have.
    pub fn surplus(&self, wanted: &BTreeSet<IpAddr>) -> Vec<IpAddr> {
        self.services.difference(wanted).copied().collect()
    }
}

/// Removes the link of this name with all addresses that an earlier process left; a failure is logged. All, because
/// nothing serves them before the sources are synced, and these never are if an address is another machine's: the API
/// server's, its name server's, or that of a load balancer in between. The connections ended with that process.
pub async fn remove_leftovers(link: &str) {
    let removed = match ServiceAddresses::open(link) {
        Ok(addresses) => addresses.remove_link().await,
        Err(error) => Err(error),
    };
    match removed {
        Ok(true) => tracing::info!(link, "removed the service addresses of an earlier process"),
        Ok(false) => {}
        Err(error) => tracing::warn!(
            link,
            error = %chain(&error),
            "cannot remove the service addresses of an earlier process"
        ),
    }
}

/// The link with the Services' addresses.
#[derive(Debug)]
pub struct ServiceAddresses {
    handle: Handle,
    link: String,
}

impl ServiceAddresses {
    /// For the link of this name, existing or not. The task of route netlink ends when this is dropped.
    pub fn open(link: &str) -> Result<Self, AddressError> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(AddressError::Open)?;
        tokio::spawn(connection);
        Ok(Self { handle, link: link.to_owned() })
    }

    /// All addresses of this node.
    pub async fn find(&self) -> Result<LinkAddresses, AddressError> {
        let index = self.index().await?;
        let mut found = LinkAddresses::default();
        let mut messages = self.handle.address().get().execute();
        while let Some(message) = messages.try_next().await.map_err(listing)? {
            let list = match Some(message.header.index) == index {
                true => &mut found.services,
                false => &mut found.node,
            };
            list.extend(address_of(&message));
        }
        // The kernel assigns one of these to every link.
        found.services.retain(|a| !matches!(a, IpAddr::V6(v6) if v6.is_unicast_link_local()));
        Ok(found)
    }

    /// Adds addresses, creating the link if necessary; returns the first error.
    pub async fn add(&self, addresses: &[IpAddr]) -> Result<(), AddressError> {
        if addresses.is_empty() {
            return Ok(());
        }
        let index = match self.index().await? {
            Some(index) => index,
            None => self.make().await?,
        };
        let mut outcome = Ok(());
        for address in addresses {
            let bits = if address.is_ipv4() { 32 } else { 128 };
            let mut request = self.handle.address().add(index, *address, bits);
            if address.is_ipv6() {
                // No other host has the address on this link: duplicate address detection is not needed.
                let message = request.message_mut();
                message.header.flags |= AddressHeaderFlags::Nodad;
                message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
            }
            let done = request.execute().await;
            outcome = outcome.and(self.describe_failure("add", *address, done, libc::EEXIST));
        }
        outcome
    }

    /// Removes addresses; returns the first error.
    pub async fn remove(&self, addresses: &[IpAddr]) -> Result<(), AddressError> {
        let Some(index) = self.index().await?.filter(|_| !addresses.is_empty()) else {
            return Ok(());
        };
        let all = self.handle.address().get().set_link_index_filter(index).execute();
        let all: Vec<AddressMessage> = all.try_collect().await.map_err(listing)?;
        let mut outcome = Ok(());
        for message in all {
            let Some(address) = address_of(&message).filter(|a| addresses.contains(a)) else {
                continue;
            };
            let done = self.handle.address().del(message).execute().await;
            outcome =
                outcome.and(self.describe_failure("remove", address, done, libc::EADDRNOTAVAIL));
        }
        outcome
    }

    /// Deletes the link with all its addresses; false if it does not exist.
    pub async fn remove_link(&self) -> Result<bool, AddressError> {
        let Some(index) = self.index().await? else { return Ok(false) };
        let failed = |error| self.link_failed(error);
        self.handle.link().del(index).execute().await.map_err(failed)?;
        Ok(true)
    }

    async fn index(&self) -> Result<Option<u32>, AddressError> {
        let mut links = self.handle.link().get().match_name(self.link.clone()).execute();
        match links.try_next().await {
            Ok(link) => Ok(link.map(|link| link.header.index)),
            Err(error) if is(&error, libc::ENODEV) => Ok(None),
            Err(error) => Err(listing(error)),
        }
    }

    /// Creates a dummy link; on kernels without dummy links, a veth pair whose peer is unused.
    async fn make(&self) -> Result<u32, AddressError> {
        let failed = |error| self.link_failed(error);
        let dummy = LinkDummy::new(&self.link).build();
        let made = match self.handle.link().add(dummy).execute().await {
            Err(error) if is(&error, libc::EOPNOTSUPP) => {
                let pair = LinkVeth::new(&self.link, &format!("{}-x", self.link)).build();
                self.handle.link().add(pair).execute().await
            }
            other => other,
        };
        made.or_else(|error| if is(&error, libc::EEXIST) { Ok(()) } else { Err(failed(error)) })?;
        let Some(index) = self.index().await? else { return Err(failed(Error::RequestFailed)) };
        let up = LinkUnspec::new_with_index(index).up().build();
        self.handle.link().set(up).execute().await.map_err(failed)?;
        Ok(index)
    }

    fn link_failed(&self, error: Error) -> AddressError {
        AddressError::Link { link: self.link.clone(), source: Box::new(error) }
    }

    /// `harmless` is the error that means that the change had been made before.
    fn describe_failure(
        &self,
        what: &'static str,
        address: IpAddr,
        done: Result<(), Error>,
        harmless: i32,
    ) -> Result<(), AddressError> {
        match done {
            Err(error) if is(&error, harmless) => Ok(()),
            Err(error) => Err(AddressError::Address {
                what,
                address,
                link: self.link.clone(),
                source: Box::new(error),
            }),
            Ok(()) => Ok(()),
        }
    }
}

fn listing(error: Error) -> AddressError {
    AddressError::List(Box::new(error))
}

fn is(error: &Error, errno: i32) -> bool {
    matches!(error, Error::NetlinkError(e) if e.raw_code() == -errno)
}

/// The local address: on point-to-point links the other attribute is the peer's.
fn address_of(message: &AddressMessage) -> Option<IpAddr> {
    let of = |local: bool| {
        message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Local(address) if local => Some(*address),
            AddressAttribute::Address(address) if !local => Some(*address),
            _ => None,
        })
    };
    of(true).or_else(|| of(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_node_are_left_alone() {
        let set = |list: &[&str]| -> BTreeSet<IpAddr> {
            list.iter().map(|ip| ip.parse().unwrap()).collect()
        };
        let found =
            LinkAddresses { services: set(&["10.96.0.1", "10.96.0.2"]), node: set(&["192.0.2.1"]) };
        let wanted = set(&["10.96.0.2", "10.96.0.3", "192.0.2.1"]);
        assert_eq!(found.missing(&wanted), ["10.96.0.3".parse::<IpAddr>().unwrap()]);
        assert_eq!(found.surplus(&wanted), ["10.96.0.1".parse::<IpAddr>().unwrap()]);
    }
}
