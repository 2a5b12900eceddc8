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
use crate::announcement::{
    AddressChanges, InterfaceAddresses, Notices, ServerContact, choose_addresses,
    internal_addresses,
};

/// Interval of comparing the kernel's addresses if nothing changed.
const COMPARE_EVERY: Duration = Duration::from_secs(60);
/// Interval of requests to the API server while addresses are announced.
const PROBE_EVERY: Duration = Duration::from_secs(10);
/// Time after which a request has failed.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of the notices of an address.
const NOTICE_EVERY: Duration = Duration::from_secs(1);

/// The desired addresses; `None` until they are known.
pub type DesiredAddresses = watch::Receiver<Option<Arc<BTreeSet<IpAddr>>>>;

/// Whether a watch of Services is open: changes arrive as they happen.
pub type Followed = watch::Receiver<bool>;

/// Receives the addresses that the interfaces have, before one is added and after one is removed.
pub type GuardAssigned = Box<dyn Fn(&BTreeSet<IpAddr>) + Send + Sync>;

/// What the announcer needs of the rest of the proxy.
pub struct AnnouncerInputs {
    pub desired: DesiredAddresses,
    pub followed: Followed,
    pub guard_assigned: GuardAssigned,
}

/// Announces addresses of load balancers.
pub struct Announcer {
    client: Client,
    node_name: String,
    inputs: AnnouncerInputs,
    status: TaskStatus,
    /// The node's addresses as its Node object had them last.
    node: Vec<IpAddr>,
    contact: ServerContact,
    next_probe: Instant,
    notices: Notices,
    guarded: BTreeSet<IpAddr>,
}

impl Announcer {
    /// The announcer of the node called `node_name`.
    pub fn new(
        client: &Client,
        node_name: &str,
        inputs: AnnouncerInputs,
        status: TaskStatus,
    ) -> Self {
        let now = Instant::now();
        Self {
            client: client.clone(),
            node_name: node_name.to_owned(),
            inputs,
            status,
            node: Vec::new(),
            contact: ServerContact::new(now),
            next_probe: now,
            notices: Notices::default(),
            guarded: BTreeSet::new(),
        }
    }

    /// Starts the task, and guards what an earlier process left before: to be called before rules are committed.
    pub async fn start(mut self, drain: &DrainWatch) {
        self.guard_present().await;
        tokio::spawn(self.run(drain.clone()));
    }

    async fn guard_present(&mut self) {
        let listed = async { AddressTable::open()?.addresses().await }.await;
        match listed {
            Ok(found) => self.guard(&assigned_addresses(&found, &AddressChanges::default())),
            Err(error) => {
                tracing::warn!(error = %chain(&error), "cannot list addresses of load balancers that an earlier process left; they are not guarded until they are withdrawn");
            }
        }
    }

    fn guard(&mut self, assigned: &BTreeSet<IpAddr>) {
        if self.guarded != *assigned {
            (self.inputs.guard_assigned)(assigned);
            self.guarded.clone_from(assigned);
        }
    }

    /// Runs until drained, or until what is desired has no source any more.
    async fn run(mut self, drain: DrainWatch) {
        let mut retries = Retries::new(Backoff::LOOP);
        let mut had_some = false;
        loop {
            let desired = self.inputs.desired.borrow_and_update().clone();
            let has_some = desired.as_ref().is_some_and(|desired| !desired.is_empty());
            if has_some && !had_some {
                // The news came from the server.
                self.contact = ServerContact::new(Instant::now());
                self.next_probe = Instant::now();
            }
            had_some = has_some;
            if has_some && self.next_probe <= Instant::now() {
                self.probe().await;
            }
            let now = Instant::now();
            let pause = match choose_addresses(desired.as_deref(), &self.contact, now) {
                // An earlier process's addresses stay until then.
                None => self.contact.deadline().saturating_duration_since(now),
                Some(wanted) => match self.compare(&wanted, desired.as_deref()).await {
                    Ok(()) => {
                        retries.reset();
                        self.pause(has_some)
                    }
                    Err(error) => {
                        tracing::warn!(error = %chain(&error), "cannot announce addresses of load balancers; retried");
                        self.status.failed(chain(&error));
                        retries.next_delay(1.0).min(self.pause(has_some))
                    }
                },
            };
            // All arms are cancel safe.
            tokio::select! {
                () = drain.asked() => return,
                changed = self.inputs.desired.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// How long nothing is to be done.
    fn pause(&self, has_some: bool) -> Duration {
        if !self.notices.is_empty() {
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
        let is_followed = *self.inputs.followed.borrow();
        match found {
            Ok(Ok(node)) => {
                self.node = node.as_ref().map(internal_addresses).unwrap_or_default();
                // An answer alone does not say that a Service has moved to another node.
                if is_followed {
                    self.contact.record_answer(now);
                } else {
                    tracing::warn!(
                        "no watch of Services is open; without one for long, addresses of load balancers are withdrawn"
                    );
                }
            }
            Ok(Err(error)) => {
                tracing::warn!(error = %chain(&error), "cannot read the Node object of this node; without it for long, addresses of load balancers are withdrawn");
            }
            Err(_) => {
                tracing::warn!(timeout = ?PROBE_TIMEOUT, "the API server does not answer; without it for long, addresses of load balancers are withdrawn");
            }
        }
    }

    async fn compare(
        &mut self,
        wanted: &BTreeSet<IpAddr>,
        desired: Option<&BTreeSet<IpAddr>>,
    ) -> Result<(), AddressTableError> {
        self.status.started("load balancers changed, or periodic");
        let is_in_contact = self.contact.may_announce(Instant::now());
        let table = AddressTable::open()?;
        let found = table.addresses().await?;
        let interface = found.interface_of(&self.node);
        let changes = found.plan(wanted, interface);
        for (_, address) in &changes.withdraw {
            tracing::info!(%address, is_in_contact, "withdrawing the address of a load balancer");
        }
        for (_, address) in &changes.announce {
            tracing::info!(%address, "announcing the address of a load balancer");
        }
        self.guard(&assigned_addresses(&found, &changes));
        let outcome = table.apply(&changes).await;
        let now = table.addresses().await?;
        let present = assigned_addresses(&now, &AddressChanges::default());
        self.guard(&present);
        let new = now.announced.difference(&found.announced);
        self.notices.add(new.map(|(_, address)| *address));
        let due = self.notices.take(&present);
        let mut notified = Ok(());
        if let Some(interface) = interface.filter(|_| !due.is_empty()) {
            notified = table.notify(interface, &due).await;
        }
        outcome.and(notified)?;
        let has_none = desired.is_none_or(BTreeSet::is_empty);
        self.status.done(match (interface, has_none, is_in_contact) {
            (_, true, _) => "nothing to announce".to_owned(),
            (_, _, false) => "nothing is announced: the API server is out of reach".to_owned(),
            (None, ..) => {
                "nothing is announced: no interface has an InternalIP of the Node object".to_owned()
            }
            (Some(_), ..) => format!("{} addresses", present.len()),
        });
        Ok(())
    }
}

/// The announced addresses that the interfaces have, and those that they are to have.
fn assigned_addresses(found: &InterfaceAddresses, changes: &AddressChanges) -> BTreeSet<IpAddr> {
    found.announced.iter().chain(&changes.announce).map(|(_, address)| *address).collect()
}
