//! Lookups of the names of hosts, for probes and hooks that do not go to the pod's address.
//!
//! The C library looks a name up in a blocking call that cannot be stopped: if the name servers do not answer, it takes its thread
//! for half a minute. A lookup therefore has a thread of its own, which no other work of the agent waits for. Lookups in flight are
//! bounded for the node, a namespace and a pod, and a name has one lookup at a time, however many probes wait for it.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};

/// Lookups in flight on the node; each has a thread.
const ON_NODE_MAX: usize = 4;
/// Lookups in flight that pods of one namespace started.
const IN_NAMESPACE_MAX: usize = 2;
/// Lookups in flight that one pod started.
const OF_POD_MAX: usize = 1;
/// Longest wait for lookups in flight to end; at most half the timeout of what needs the lookup.
const START_WAIT_MAX: Duration = Duration::from_secs(10);
/// Longest name in DNS.
const NAME_LEN_MAX: usize = 253;
/// Most addresses of a name that are tried.
const ADDRESSES_MAX: usize = 16;
/// Stack of a lookup's thread; the C library and its name service modules need a fraction of it.
const STACK_BYTES: usize = 512 << 10;

/// A pod, as far as it has a share of what all probes use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodKey<'a> {
    pub namespace: &'a str,
    pub uid: &'a str,
}

/// The lookups of one node. Cheap to clone.
#[derive(Clone)]
pub struct NameLookups(Arc<Shared>);

struct Shared {
    resolve: Box<Resolve>,
    /// Lookups in flight, by name.
    in_flight: Mutex<BTreeMap<String, Lookup>>,
    ended: Notify,
}

/// The blocking call that looks a name up.
type Resolve = dyn Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// Result of a lookup. The addresses have no port.
type Answer = Result<Arc<[SocketAddr]>, Arc<io::Error>>;

/// A lookup in flight.
struct Lookup {
    /// Namespace and uid of the pod that started it.
    pod: (String, String),
    answer: watch::Receiver<Option<Answer>>,
}

/// Why a name has no address.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LookupError {
    /// The name cannot exist.
    #[error("lookup {0:.300}: no such host")]
    Name(String),
    /// No lookup was started.
    #[error(
        "lookup {name}: not started, since other lookups of the pod, its namespace or the node have not ended within {waited:?}"
    )]
    NotStarted { name: String, waited: Duration },
    /// The system has no thread for it.
    #[error("lookup {0}: cannot start a thread")]
    Thread(String),
    /// The lookup failed.
    #[error("lookup {name}: {error}")]
    Failed { name: String, error: Arc<io::Error> },
}

impl Default for NameLookups {
    fn default() -> Self {
        Self::with(|name| Ok((name, 0).to_socket_addrs()?.take(ADDRESSES_MAX).collect()))
    }
}

impl fmt::Debug for NameLookups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let in_flight: Vec<String> = self.0.lock().keys().cloned().collect();
        f.debug_tuple("NameLookups").field(&in_flight).finish()
    }
}

impl NameLookups {
    fn with(resolve: impl Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static) -> Self {
        let (in_flight, ended) = (Mutex::default(), Notify::new());
        Self(Arc::new(Shared { resolve: Box::new(resolve), in_flight, ended }))
    }

    /// The addresses of a host. An address needs no lookup. Cancel safe: a lookup in flight goes on without its callers.
    pub(crate) async fn addresses(
        &self,
        host: &str,
        port: u16,
        pod: PodKey<'_>,
        timeout: Duration,
    ) -> Result<Vec<SocketAddr>, LookupError> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, port)]);
        }
        if host.is_empty() || host.len() > NAME_LEN_MAX {
            return Err(LookupError::Name(host.to_owned()));
        }
        let name = host.to_ascii_lowercase();
        let waited = timeout.checked_div(2).unwrap_or_default().min(START_WAIT_MAX);
        let started = tokio::time::timeout(waited, self.join_or_start(&name, pod)).await;
        let mut answer = match started {
            Ok(answer) => answer,
            Err(_) => return Err(LookupError::NotStarted { name, waited }),
        };
        let answer = match answer.wait_for(Option::is_some).await {
            Ok(answer) => answer.clone(),
            Err(_) => None,
        };
        match answer {
            Some(Ok(found)) => Ok(found.iter().map(|at| with_port(*at, port)).collect()),
            Some(Err(error)) => Err(LookupError::Failed { name, error }),
            None => Err(LookupError::Thread(name)),
        }
    }

    /// Joins the lookup of this name that is in flight, or starts one as soon as the bounds permit.
    async fn join_or_start(&self, name: &str, pod: PodKey<'_>) -> watch::Receiver<Option<Answer>> {
        loop {
            // Created before the attempt, so that an end in between is not missed.
            let ended = self.0.ended.notified();
            if let Some(answer) = self.try_join_or_start(name, pod) {
                return answer;
            }
            ended.await;
        }
    }

    fn try_join_or_start(
        &self,
        name: &str,
        pod: PodKey<'_>,
    ) -> Option<watch::Receiver<Option<Answer>>> {
        let mut in_flight = self.0.lock();
        if let Some(lookup) = in_flight.get(name) {
            return Some(lookup.answer.clone());
        }
        let of_namespace = in_flight.values().filter(|lookup| lookup.pod.0 == pod.namespace);
        let of_pod = of_namespace.clone().filter(|lookup| lookup.pod.1 == pod.uid);
        let has_room = in_flight.len() < ON_NODE_MAX
            && of_namespace.count() < IN_NAMESPACE_MAX
            && of_pod.count() < OF_POD_MAX;
        if !has_room {
            return None;
        }
        let (sender, answer) = watch::channel(None);
        let pod = (pod.namespace.to_owned(), pod.uid.to_owned());
        in_flight.insert(name.to_owned(), Lookup { pod, answer: answer.clone() });
        drop(in_flight);
        let running =
            RunningLookup { shared: self.0.clone(), name: name.to_owned(), answer: sender };
        // Without a thread the lookup is dropped here, which ends it without an answer.
        let _ = std::thread::Builder::new()
            .name("lookup".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || running.run());
        Some(answer)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Lookup>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lookup on its thread. It counts as in flight until it is dropped.
struct RunningLookup {
    shared: Arc<Shared>,
    name: String,
    answer: watch::Sender<Option<Answer>>,
}

impl RunningLookup {
    fn run(self) {
        let found = (self.shared.resolve)(&self.name);
        self.answer.send_replace(Some(found.map(Arc::from).map_err(Arc::new)));
    }
}

impl Drop for RunningLookup {
    fn drop(&mut self) {
        self.shared.lock().remove(&self.name);
        self.shared.ended.notify_waiters();
    }
}

fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

#[cfg(test)]
mod tests;
