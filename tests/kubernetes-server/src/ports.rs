//! Ports for the servers of a comparison.

use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};

/// What ports are chosen from: below those that the kernel gives to connections and to listeners without a port of their own.
const PORTS: Range<u16> = 20_000..29_000;

/// A port of loopback that nothing listens at. It is still free when a server binds it: the kernel does not choose it for other sockets.
///
/// # Errors
/// All are taken.
pub fn free_port() -> Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Each process begins elsewhere, and gets no port twice before it had all.
    let begin = std::process::id().wrapping_mul(97);
    let count = u32::from(PORTS.end - PORTS.start);
    let next = |_| begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % count;
    let ports = (0..count).map(next).filter_map(|nth| PORTS.clone().nth(nth as usize));
    first_free(ports).context("no port is free")
}

fn first_free(mut ports: impl Iterator<Item = u16>) -> Option<u16> {
    ports.find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ports_differ_and_are_below_those_of_connections() {
        let ports: BTreeSet<u16> = (0..20).map(|_| free_port().expect("a port")).collect();
        assert_eq!(ports.len(), 20, "{ports:?}");
        assert!(ports.iter().all(|port| PORTS.contains(port)), "{ports:?}");
    }

    #[test]
    fn a_port_with_a_listener_is_skipped() {
        let (taken, free) = (free_port().expect("a port"), free_port().expect("a port"));
        let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, taken)).expect("it is free");
        assert_eq!(first_free([taken, free].into_iter()), Some(free));
        assert_eq!(first_free([taken].into_iter()), None);
    }
}
