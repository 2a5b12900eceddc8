//! Keeps the announced addresses equal to the desired ones, and compares them once a minute. They stay when the process ends.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proto_api::core::v1::Node;
use proto_client::Client;
use proto_daemon::backoff::{Backoff, Retries};
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use proto_daemon::statusz::TaskStatus;
use tokio::sync::watch;

use crate::address_table::{AddressTable, AddressTableError};
use crate::announcement::{ServerContact, internal_addresses};

/// Interval of comparing the kernel's addresses if nothing changed.
const COMPARE_EVERY: Duration = Duration::from_secs(60);
/// Interval of requests to the API server while addresses are announced.
const PROBE_EVERY: Duration = Duration::from_secs(10);
/// Time after which a request has failed.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Notices to the neighbours after a take-over, one a second: frames may be lost.
const NOTICES: u8 = 3;
const NOTICE_EVERY: Duration = Duration::from_secs(1);

/// The desired addresses; `None` until they are known.
pub type DesiredAddresses = watch::Receiver<Option<Arc<BTreeSet<IpAddr>>>>;

/// Announces addresses of load balancers.
pub struct Announcer {
    client: Client,
    node_name: String,
    desired: DesiredAddresses,
    status: TaskStatus,
    /// The node's addresses as its Node object had them last.
    node: Vec<IpAddr>,
    contact: ServerContact,
    next_probe: Instant,
    notices_left: u8,
}

impl Announcer {
    /// The announcer of the node called `node_name`.
    pub fn new(
        client: &Client,
        node_name: &str,
        desired: DesiredAddresses,
        status: TaskStatus,
    ) -> Self {
        let now = Instant::now();
        Self {
            client: client.clone(),
            node_name: node_name.to_owned(),
            desired,
            status,
            node: Vec::new(),
            contact: ServerContact::new(now),
            next_probe: now,
            notices_left: 0,
        }
    }

    /// Runs until drained, or until what is desired has no source any more.
    pub async fn run(mut self, drain: DrainWatch) {
        let mut retries = Retries::new(Backoff::LOOP);
        let mut had_some = false;
        loop {
            let desired = self.desired.borrow_and_update().clone();
            let mut pause = COMPARE_EVERY;
            if let Some(desired) = desired {
                if !had_some && !desired.is_empty() {
                    // The news came from the server.
                    self.contact = ServerContact::new(Instant::now());
                    self.next_probe = Instant::now();
                }
                had_some = !desired.is_empty();
                if had_some && self.next_probe <= Instant::now() {
                    self.probe().await;
                }
                self.status.started("load balancers changed, or periodic");
                pause = match self.compare(&desired).await {
                    Ok(()) => {
                        retries.reset();
                        self.pause(had_some)
                    }
                    Err(error) => {
                        tracing::warn!(error = %chain(&error), "cannot announce addresses of load balancers; retried");
                        self.status.failed(chain(&error));
                        retries.next_delay(1.0).min(self.pause(had_some))
                    }
                };
            }
            // All arms are cancel safe.
            tokio::select! {
                () = drain.asked() => return,
                changed = self.desired.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// How long nothing is to be done.
    fn pause(&self, has_some: bool) -> Duration {
        if self.notices_left > 0 {
            return NOTICE_EVERY;
        }
        if !has_some {
            return COMPARE_EVERY;
        }
        let now = Instant::now();
        let deadline = self.contact.deadline();
        let next = if deadline > now { self.next_probe.min(deadline) } else { self.next_probe };
        next.saturating_duration_since(now)
    }

    /// Reads the Node object: the server is in reach, and these are the node's addresses.
    async fn probe(&mut self) {
        let nodes = self.client.all::<Node>();
        let found = tokio::time::timeout(PROBE_TIMEOUT, nodes.find(&self.node_name)).await;
        let now = Instant::now();
        self.next_probe = now.checked_add(PROBE_EVERY).unwrap_or(now);
        match found {
            Ok(Ok(node)) => {
                self.contact.record_answer(now);
                self.node = node.as_ref().map(internal_addresses).unwrap_or_default();
            }
            Ok(Err(error)) => {
                tracing::warn!(error = %chain(&error), "cannot read the Node object of this node; without it for long, addresses of load balancers are withdrawn");
            }
            Err(_) => {
                tracing::warn!(timeout = ?PROBE_TIMEOUT, "the API server does not answer; without it for long, addresses of load balancers are withdrawn");
            }
        }
    }

    async fn compare(&mut self, desired: &BTreeSet<IpAddr>) -> Result<(), AddressTableError> {
        let nothing = BTreeSet::new();
        let is_in_contact = self.contact.may_announce(Instant::now());
        let wanted = if is_in_contact { desired } else { &nothing };
        let table = AddressTable::open()?;
        let found = table.addresses().await?;
        let interface = found.interface_of(&self.node);
        let changes = found.plan(wanted, interface);
        for (_, address) in &changes.withdraw {
            tracing::info!(%address, is_in_contact, "withdrawing the address of a load balancer");
        }
        for (_, address) in &changes.announce {
            tracing::info!(%address, "announcing the address of a load balancer");
            self.notices_left = NOTICES;
        }
        let outcome = table.apply(&changes).await;
        let announced: Vec<IpAddr> =
            wanted.iter().filter(|address| !changes.conflicts.contains(address)).copied().collect();
        let mut notified = Ok(());
        if let Some(interface) = interface.filter(|_| self.notices_left > 0) {
            self.notices_left = self.notices_left.saturating_sub(1);
            notified = table.notify(interface, &announced).await;
        }
        outcome.and(notified)?;
        self.status.done(match (interface, desired.is_empty(), is_in_contact) {
            (_, true, _) => "nothing to announce".to_owned(),
            (_, _, false) => "nothing is announced: the API server is out of reach".to_owned(),
            (None, ..) => {
                "nothing is announced: no interface has an InternalIP of the Node object".to_owned()
            }
            (Some(_), ..) => format!("{} addresses", announced.len()),
        });
        Ok(())
    }
}
