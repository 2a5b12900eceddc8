//! Listeners of the frontends: one task each, which receives its endpoints by a channel, so that a change of endpoints
//! does not reopen a socket.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use proxy_rules::model::Protocol;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::backend_picker::BackendPicker;
use crate::balance::Balance;
use crate::datagrams;
use crate::forwarder_state::Shared;
use crate::plan::{Frontend, FrontendBackends, ListenerChanges, ServicePort};
use crate::{sockets, streams};

/// The open listeners, by frontend.
#[derive(Debug)]
pub struct Ports {
    shared: Arc<Shared>,
    open: HashMap<Frontend, Port>,
    balances: HashMap<ServicePort, Weak<Mutex<Balance>>>,
}

/// One listener; closed when dropped. Its connections continue, its sessions end.
#[derive(Debug)]
struct Port {
    picker: watch::Sender<BackendPicker>,
    task: AbortHandle,
}

impl Drop for Port {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Ports {
    /// No listeners.
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

    /// Applies all changes that are possible; returns the failed ones with their errors.
    pub fn apply(
        &mut self,
        changes: ListenerChanges,
    ) -> Vec<(Frontend, Arc<FrontendBackends>, std::io::Error)> {
        for frontend in &changes.close {
            self.open.remove(frontend);
            self.shared.listening.closed(frontend);
        }
        let mut failed = Vec::new();
        for (frontend, target) in changes.open {
            let picker = BackendPicker {
                balance: self.balance(&target.service_port),
                target: target.clone(),
            };
            if let Some(port) = self.open.get(&frontend) {
                port.picker.send_replace(picker);
                continue;
            }
            if self.open.len() >= self.shared.limits.frontends {
                let bound = format!("{} frontends are open already", self.open.len());
                failed.push((frontend, target, std::io::Error::other(bound)));
                continue;
            }
            self.shared.listening.opened(frontend);
            match self.listen(frontend, picker) {
                Ok(port) => drop(self.open.insert(frontend, port)),
                Err(error) => {
                    self.shared.listening.closed(&frontend);
                    failed.push((frontend, target, error));
                }
            }
        }
        self.balances.retain(|_, balance| balance.strong_count() > 0);
        failed
    }

    fn balance(&mut self, service_port: &ServicePort) -> Arc<Mutex<Balance>> {
        let known = self.balances.get(service_port).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let new = Arc::new(Mutex::new(Balance::default()));
            self.balances.insert(service_port.clone(), Arc::downgrade(&new));
            new
        })
    }

    fn listen(&self, frontend: Frontend, picker: BackendPicker) -> std::io::Result<Port> {
        let (picker, receiver) = watch::channel(picker);
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
        Ok(Port { picker, task: task.abort_handle() })
    }
}
