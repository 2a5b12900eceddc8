//! The frontends as listeners: one task each, told where to lead by a channel, so that a change of endpoints touches
//! no socket.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Instant;

use proto_daemon::drain::DrainWatch;
use proxy_rules::model::Protocol;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::balance::Balance;
use crate::datagrams;
use crate::forwarder::Limits;
use crate::metrics::ForwardMetrics;
use crate::places::Places;
use crate::plan::{Changes, Frontend, Inside, Stem, Target};
use crate::{sockets, streams};

/// What all listeners share.
#[derive(Debug)]
pub struct Shared {
    /// Bounds and times.
    pub limits: Limits,
    /// Room for connections and sessions, of all frontends together.
    pub room: Places,
    /// What is counted.
    pub metrics: ForwardMetrics,
    /// Held by each connection: the program waits for them for a while when it ends.
    pub drain: DrainWatch,
    inside: RwLock<Arc<Inside>>,
}

impl Shared {
    /// Nothing is known of who is inside the cluster yet.
    pub fn new(limits: Limits, metrics: ForwardMetrics, drain: DrainWatch) -> Self {
        // Few files, few places: a client's part shrinks with them.
        let each = limits.each.min(limits.connections.div_ceil(4));
        let room = Places::new(limits.connections, each);
        Self { limits, room, metrics, drain, inside: RwLock::default() }
    }

    /// From now on these are inside.
    pub fn set_inside(&self, inside: Inside) {
        *self.inside.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(inside);
    }

    fn is_inside(&self, client: IpAddr) -> bool {
        let inside = self.inside.read().unwrap_or_else(PoisonError::into_inner).clone();
        inside.contains(client)
    }
}

/// Where a listener leads.
#[derive(Clone, Debug)]
pub struct Lead {
    /// The endpoints.
    pub target: Arc<Target>,
    balance: Arc<Mutex<Balance>>,
}

impl Lead {
    /// An endpoint for a client; `tried` are those that did not answer it.
    pub fn pick(
        &self,
        shared: &Shared,
        client: IpAddr,
        tried: &[SocketAddr],
    ) -> Option<SocketAddr> {
        let client = client.to_canonical();
        let backends = self.target.backends(client, shared.is_inside(client));
        let mut balance = self.balance.lock().unwrap_or_else(PoisonError::into_inner);
        balance.pick(backends, self.target.choice, client, tried, Instant::now())
    }
}

/// The listeners.
#[derive(Debug)]
pub struct Ports {
    shared: Arc<Shared>,
    open: HashMap<Frontend, Port>,
    balances: HashMap<Stem, Weak<Mutex<Balance>>>,
}

/// One listener; closed when dropped. Its connections go on, its sessions end.
#[derive(Debug)]
struct Port {
    lead: watch::Sender<Lead>,
    task: AbortHandle,
}

impl Drop for Port {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Ports {
    /// None yet.
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared, open: HashMap::new(), balances: HashMap::new() }
    }

    /// Number of listeners.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Makes every change that can be made; returns those that cannot, with the reason.
    pub fn apply(&mut self, changes: Changes) -> Vec<(Frontend, Arc<Target>, std::io::Error)> {
        for frontend in &changes.close {
            self.open.remove(frontend);
        }
        let mut failed = Vec::new();
        for (frontend, target) in changes.open {
            let lead = Lead { balance: self.balance(&target.stem), target: target.clone() };
            if let Some(port) = self.open.get(&frontend) {
                port.lead.send_replace(lead);
                continue;
            }
            if self.open.len() >= self.shared.limits.frontends {
                let bound = format!("{} frontends are open already", self.open.len());
                failed.push((frontend, target, std::io::Error::other(bound)));
                continue;
            }
            match self.listen(frontend, lead) {
                Ok(port) => drop(self.open.insert(frontend, port)),
                Err(error) => failed.push((frontend, target, error)),
            }
        }
        self.balances.retain(|_, balance| balance.strong_count() > 0);
        failed
    }

    fn balance(&mut self, stem: &Stem) -> Arc<Mutex<Balance>> {
        let known = self.balances.get(stem).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let new = Arc::new(Mutex::new(Balance::default()));
            self.balances.insert(stem.clone(), Arc::downgrade(&new));
            new
        })
    }

    fn listen(&self, frontend: Frontend, lead: Lead) -> std::io::Result<Port> {
        let (lead, receiver) = watch::channel(lead);
        let shared = self.shared.clone();
        let Frontend { protocol, at } = frontend;
        let task = match protocol {
            Protocol::Tcp | Protocol::Sctp => {
                let listener = sockets::listen(protocol, at)?;
                tokio::spawn(streams::forward(listener, protocol, receiver, shared))
            }
            Protocol::Udp => {
                let socket = Arc::new(sockets::datagrams(at)?);
                tokio::spawn(datagrams::forward(socket, receiver, shared))
            }
        };
        Ok(Port { lead, task: task.abort_handle() })
    }
}
