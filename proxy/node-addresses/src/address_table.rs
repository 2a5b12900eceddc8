//! The kernel's addresses of this node. The announced ones are /32 or /128 on the interface of the node's address, so that the kernel answers ARP and
//! neighbour solicitations for them. They are deprecated: no connection of the node has one as its source.
//!
//! They are recognised by their protocol (`IFA_PROTO`), since kernel 5.18; before, those of IPv4 by their label.

use std::net::IpAddr;

use futures_util::TryStreamExt;
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressMessage, AddressProtocol, CacheInfo,
};
use netlink_packet_route::link::LinkAttribute;
use nix::libc;
use rtnetlink::{Error, Handle};

use crate::announcement::{AddressChanges, InterfaceAddresses};
use crate::frames::{self, HardwareAddress};
use crate::sys;

/// Protocol of the announced addresses, the same as that of pod routes: a number that no other program has registered.
const OURS: AddressProtocol = AddressProtocol::Other(78);
/// End of the label of announced IPv4 addresses, after the name of the interface.
const LABEL_END: &str = ":lb";
/// Longest label.
const LABEL_LEN_MAX: usize = 15;

/// Addresses cannot be listed or changed.
#[derive(Debug, thiserror::Error)]
pub enum AddressTableError {
    /// The route netlink socket cannot be opened.
    #[error("cannot open route netlink")]
    Open(#[source] std::io::Error),
    /// Interfaces or addresses cannot be listed.
    #[error("cannot list interfaces and addresses")]
    List(#[source] Box<Error>),
    /// An address cannot be changed; the others were tried.
    #[error("cannot {what} the address {address} of a load balancer")]
    Change {
        /// `announce` or `withdraw`.
        what: &'static str,
        address: IpAddr,
        #[source]
        source: Box<Error>,
    },
    /// An address is not announced.
    #[error(
        "the address {0} of a load balancer is an address of this node: it is in a range from which it must not be allocated"
    )]
    Conflict(IpAddr),
    /// An address was removed again.
    #[error(
        "the kernel does not mark the address {0}, so that it could not be removed later: it needs Linux 5.18"
    )]
    Unmarked(IpAddr),
    /// The neighbours were not notified.
    #[error("cannot send gratuitous ARP or neighbour advertisements, which need CAP_NET_RAW")]
    Notify(#[source] std::io::Error),
}

/// The kernel's addresses.
#[derive(Debug)]
pub struct AddressTable {
    handle: Handle,
}

/// What is needed of an interface.
#[derive(Debug, Default)]
struct Interface {
    name: String,
    hardware_address: Option<HardwareAddress>,
}

impl AddressTable {
    /// Opens route netlink; its task ends when the value is dropped.
    ///
    /// # Errors
    /// The socket cannot be opened.
    pub fn open() -> Result<Self, AddressTableError> {
        let (connection, handle, _) =
            rtnetlink::new_connection().map_err(AddressTableError::Open)?;
        tokio::spawn(connection);
        Ok(Self { handle })
    }

    /// The addresses of all interfaces.
    ///
    /// # Errors
    /// The kernel does not list them.
    pub async fn addresses(&self) -> Result<InterfaceAddresses, AddressTableError> {
        let mut found = InterfaceAddresses::default();
        for message in self.messages().await? {
            let (index, Some(address)) = (message.header.index, address_of(&message)) else {
                continue;
            };
            match is_announced(&message) {
                true => drop(found.announced.insert((index, address))),
                false => drop(found.others.insert(address, index)),
            }
        }
        Ok(found)
    }

    async fn messages(&self) -> Result<Vec<AddressMessage>, AddressTableError> {
        self.handle.address().get().execute().try_collect().await.map_err(listing)
    }

    /// Makes all changes that the kernel accepts, removals first; returns the first error.
    ///
    /// # Errors
    /// An address could not be changed.
    pub async fn apply(&self, changes: &AddressChanges) -> Result<(), AddressTableError> {
        let mut outcome = self.withdraw(&changes.withdraw).await;
        for (index, address) in &changes.announce {
            let name = self.interface(*index).await?.name;
            outcome = outcome.and(self.announce(*index, *address, &name).await);
        }
        if !changes.announce.is_empty() {
            outcome = outcome.and(self.remove_unmarked(&changes.announce).await);
        }
        let conflict = changes.conflicts.first();
        outcome.and(conflict.map_or(Ok(()), |address| Err(AddressTableError::Conflict(*address))))
    }

    async fn withdraw(&self, addresses: &[(u32, IpAddr)]) -> Result<(), AddressTableError> {
        if addresses.is_empty() {
            return Ok(());
        }
        self.remove(addresses, is_announced).await
    }

    /// Removes addresses whose messages match.
    async fn remove(
        &self,
        addresses: &[(u32, IpAddr)],
        matches: fn(&AddressMessage) -> bool,
    ) -> Result<(), AddressTableError> {
        let mut outcome = Ok(());
        for message in self.messages().await? {
            let Some(address) = address_of(&message) else { continue };
            if !addresses.contains(&(message.header.index, address)) || !matches(&message) {
                continue;
            }
            let done = self.handle.address().del(message).execute().await;
            outcome = outcome.and(describe("withdraw", address, done, libc::EADDRNOTAVAIL));
        }
        outcome
    }

    async fn announce(
        &self,
        index: u32,
        address: IpAddr,
        interface: &str,
    ) -> Result<(), AddressTableError> {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let mut request = self.handle.address().add(index, address, bits);
        let mut lifetimes = CacheInfo::default();
        lifetimes.ifa_valid = u32::MAX;
        let attributes = &mut request.message_mut().attributes;
        attributes.push(AddressAttribute::CacheInfo(lifetimes));
        attributes.push(AddressAttribute::Protocol(OURS));
        let label = format!("{interface}{LABEL_END}");
        if address.is_ipv6() {
            // Duplicate address detection would fail while another node still answers for the address, and then for good.
            let flags = AddressFlags::Nodad | AddressFlags::Noprefixroute;
            attributes.push(AddressAttribute::Flags(flags));
        } else if label.len() <= LABEL_LEN_MAX {
            attributes.push(AddressAttribute::Label(label));
        }
        describe("announce", address, request.execute().await, libc::EEXIST)
    }

    /// Removes those of new addresses that could not be recognised later.
    async fn remove_unmarked(&self, new: &[(u32, IpAddr)]) -> Result<(), AddressTableError> {
        let found = self.addresses().await?;
        let is_unmarked =
            |(index, address): &&(u32, IpAddr)| found.others.get(address) == Some(index);
        let unmarked: Vec<(u32, IpAddr)> = new.iter().filter(is_unmarked).copied().collect();
        let Some((_, first)) = unmarked.first() else { return Ok(()) };
        self.remove(&unmarked, |message| !is_announced(message)).await?;
        Err(AddressTableError::Unmarked(*first))
    }

    async fn interface(&self, index: u32) -> Result<Interface, AddressTableError> {
        let mut links = self.handle.link().get().match_index(index).execute();
        let mut interface = Interface::default();
        let Some(link) = links.try_next().await.map_err(listing)? else { return Ok(interface) };
        for attribute in link.attributes {
            match attribute {
                LinkAttribute::IfName(name) => interface.name = name,
                LinkAttribute::Address(bytes) => {
                    interface.hardware_address = bytes.as_slice().try_into().ok();
                }
                _ => {}
            }
        }
        Ok(interface)
    }

    /// Sends the neighbours of an interface notices of addresses. An interface without a hardware address has none.
    ///
    /// # Errors
    /// A notice cannot be sent.
    pub async fn notify(&self, index: u32, addresses: &[IpAddr]) -> Result<(), AddressTableError> {
        let Some(from) = self.interface(index).await?.hardware_address else { return Ok(()) };
        let send = || {
            let socket = sys::packet_socket()?;
            let mut frames = addresses.iter().map(|address| frames::frame(*address, from));
            frames.try_for_each(|frame| sys::send_frame(&socket, index, &frame))
        };
        send().map_err(AddressTableError::Notify)
    }
}

/// Removes every address that a proxy has announced. Gives their number.
///
/// # Errors
/// An address could not be removed.
pub async fn withdraw_all() -> Result<usize, AddressTableError> {
    let table = AddressTable::open()?;
    let changes = table.addresses().await?.plan(&Default::default(), None);
    table.apply(&changes).await?;
    Ok(changes.withdraw.len())
}

fn is_announced(message: &AddressMessage) -> bool {
    let has = |matches: fn(&AddressAttribute) -> bool| message.attributes.iter().any(matches);
    let is_marked = has(|attribute| matches!(attribute, AddressAttribute::Protocol(OURS)));
    let is_labelled = has(
        |attribute| matches!(attribute, AddressAttribute::Label(label) if label.ends_with(LABEL_END)),
    );
    let is_deprecated = has(
        |attribute| matches!(attribute, AddressAttribute::Flags(flags) if flags.contains(AddressFlags::Deprecated)),
    );
    is_marked || is_labelled && is_deprecated && message.header.prefix_len == 32
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

fn listing(error: Error) -> AddressTableError {
    AddressTableError::List(Box::new(error))
}

/// `harmless` is the error that means that the change had been made before.
fn describe(
    what: &'static str,
    address: IpAddr,
    done: Result<(), Error>,
    harmless: i32,
) -> Result<(), AddressTableError> {
    match done {
        Err(Error::NetlinkError(error)) if error.raw_code().checked_neg() == Some(harmless) => {
            Ok(())
        }
        Err(error) => Err(AddressTableError::Change { what, address, source: Box::new(error) }),
        Ok(()) => Ok(()),
    }
}
