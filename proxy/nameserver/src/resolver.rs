//! From a question to its answer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{Name, Record};
use proto_daemon::exit::chain;
use proxy_dns::Outcome;
use proxy_dns::cache::{Cache, Key, Limits};
use proxy_dns::message::{Request, answer, dnssec_ok, foreign_answer, own_answer, question};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::metrics::NameMetrics;
use crate::shared::SharedZone;
use crate::upstream::Upstreams;

/// How long a question waits for the zone to be complete: a little less than askers wait.
const START_PATIENCE: Duration = Duration::from_secs(4);
/// Questions to other servers that are on the way at once.
const FLIGHTS_MAX: usize = 1024;

/// Answers questions.
#[derive(Debug)]
pub struct Resolver {
    zone: Arc<SharedZone>,
    upstreams: RwLock<Arc<Upstreams>>,
    cache: Mutex<Cache>,
    flights: Mutex<HashMap<Key, watch::Receiver<Landed>>>,
    /// Counts answers, so that each begins with another address.
    turn: AtomicUsize,
    metrics: NameMetrics,
}

/// What a question to other servers came to: nothing yet, an answer, or none.
type Landed = Option<Option<Arc<Message>>>;

impl Resolver {
    /// A resolver for a zone and for what `upstreams` know.
    pub fn new(zone: Arc<SharedZone>, upstreams: Upstreams, metrics: NameMetrics) -> Self {
        Self {
            zone,
            upstreams: RwLock::new(Arc::new(upstreams)),
            cache: Mutex::new(Cache::new(Limits::default())),
            flights: Mutex::default(),
            turn: AtomicUsize::new(0),
            metrics,
        }
    }

    /// What is counted.
    pub fn metrics(&self) -> &NameMetrics {
        &self.metrics
    }

    /// From now on others are asked: the node's own configuration has changed. The same ones keep their health.
    pub fn use_upstreams(&self, upstreams: Upstreams) {
        let mut current = self.upstreams.write().unwrap_or_else(PoisonError::into_inner);
        if current.addresses() != upstreams.addresses() {
            tracing::info!(servers = ?upstreams.addresses(), "other names are asked for there");
            *current = Arc::new(upstreams);
        }
    }

    /// The answer to a question, if it can be given without waiting.
    pub fn at_once(&self, request: &Request) -> Option<Message> {
        if !self.zone.is_complete() {
            return None;
        }
        let outcome = self.outcome(request);
        match outcome {
            Outcome::Answered(reply) => Some(own_answer(&request.message, reply)),
            Outcome::Elsewhere => self.kept(request, &request.query.name, Vec::new()),
            Outcome::Continues { records, target } => self.kept(request, &target, records),
        }
    }

    /// The answer to a question, whatever it takes; bounded in time.
    pub async fn in_time(&self, request: &Request) -> Message {
        if timeout(START_PATIENCE, self.zone.complete()).await.is_err() {
            // Saying that a name does not exist would be believed.
            return answer(&request.message, ResponseCode::ServFail);
        }
        match self.outcome(request) {
            Outcome::Answered(reply) => own_answer(&request.message, reply),
            Outcome::Elsewhere => self.forward(request, &request.query.name, Vec::new()).await,
            Outcome::Continues { records, target } => self.forward(request, &target, records).await,
        }
    }

    fn outcome(&self, request: &Request) -> Outcome {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        self.zone.read().ask(&request.query, turn)
    }

    /// The answer of others, if it is kept.
    fn kept(&self, request: &Request, name: &Name, first: Vec<Record>) -> Option<Message> {
        let kept = self.cache().get(&key(request, name), Instant::now())?;
        self.metrics.cache_hits.inc();
        Some(foreign_answer(&request.message, first, &kept))
    }

    async fn forward(&self, request: &Request, name: &Name, first: Vec<Record>) -> Message {
        if let Some(message) = self.kept(request, name, first.clone()) {
            return message;
        }
        self.metrics.cache_misses.inc();
        match self.ask_others(request, name).await {
            Some(theirs) => foreign_answer(&request.message, first, &theirs),
            None => {
                let mut failed = answer(&request.message, ResponseCode::ServFail);
                failed.answers = first;
                failed
            }
        }
    }

    /// Asks other servers, once for all who ask the same at the same time.
    async fn ask_others(&self, request: &Request, name: &Name) -> Option<Arc<Message>> {
        let key = key(request, name);
        let flight = {
            let mut flights = self.flights();
            match flights.get(&key) {
                Some(landed) => Err(landed.clone()),
                None if flights.len() >= FLIGHTS_MAX => {
                    self.metrics.turned_away.with_label_values(&["busy"]).inc();
                    return None;
                }
                None => {
                    let (land, landed) = watch::channel(None);
                    flights.insert(key.clone(), landed);
                    Ok(Flight { resolver: self, key, land })
                }
            }
        };
        match flight {
            Ok(flight) => flight.fly(request, name).await,
            Err(mut landed) => {
                // Whoever flies may be called off; then there is no answer for anybody.
                let landed = landed.wait_for(Option::is_some).await.ok()?;
                landed.clone().flatten()
            }
        }
    }

    fn upstreams(&self) -> Arc<Upstreams> {
        self.upstreams.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn flights(&self) -> MutexGuard<'_, HashMap<Key, watch::Receiver<Landed>>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A question to other servers on the way; off the list when it ends, however it ends.
struct Flight<'a> {
    resolver: &'a Resolver,
    key: Key,
    land: watch::Sender<Landed>,
}

impl Flight<'_> {
    async fn fly(self, request: &Request, name: &Name) -> Option<Arc<Message>> {
        let upstreams = self.resolver.upstreams();
        let answer = match upstreams.ask(|id| question(id, name, request)).await {
            Ok(message) => {
                let now = Instant::now();
                self.resolver.cache().put(self.key.clone(), message.clone(), now);
                Some(Arc::new(message))
            }
            Err(error) => {
                self.resolver.metrics.forward_failures.inc();
                tracing::debug!(%name, error = %chain(&error), "nobody answers");
                None
            }
        };
        self.land.send_replace(Some(answer.clone()));
        answer
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.resolver.flights().remove(&self.key);
    }
}

fn key(request: &Request, name: &Name) -> Key {
    Key {
        name: name.to_lowercase(),
        kind: request.query.query_type,
        dnssec_ok: dnssec_ok(&request.message),
        checking_disabled: request.message.metadata.checking_disabled,
    }
}
