//! Resolves queries.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{Name, Record};
use proto_daemon::exit::chain;
use proxy_dns::Resolution;
use proxy_dns::cache::{Cache, CacheKey, CacheLimits};
use proxy_dns::message::{Request, answer, dnssec_ok, foreign_answer, own_answer, question};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::client_limiter::{ClientLimiter, ClientPermit};
use crate::metrics::NameMetrics;
use crate::shared_zone::SharedZone;
use crate::upstream::Upstreams;

/// How long a query waits for the zone to be synced: a little less than clients wait.
const START_PATIENCE: Duration = Duration::from_secs(4);
/// Concurrent upstream queries.
const IN_FLIGHT_MAX: usize = 1024;
/// The same for those that one client began.
const IN_FLIGHT_EACH_MAX: usize = IN_FLIGHT_MAX / 8;

/// Resolves queries from the zone, the cache and upstream servers.
#[derive(Debug)]
pub struct Resolver {
    zone: Arc<SharedZone>,
    upstreams: RwLock<Arc<Upstreams>>,
    cache: Mutex<Cache>,
    in_flight: Mutex<HashMap<CacheKey, watch::Receiver<QueryResult>>>,
    limiter: ClientLimiter,
    /// Counts responses, to rotate addresses.
    turn: AtomicUsize,
    metrics: NameMetrics,
}

/// Result of an upstream query: pending, a response, or a failure.
type QueryResult = Option<Option<Arc<Message>>>;

impl Resolver {
    /// For a zone and upstream servers.
    pub fn new(zone: Arc<SharedZone>, upstreams: Upstreams, metrics: NameMetrics) -> Self {
        Self {
            zone,
            upstreams: RwLock::new(Arc::new(upstreams)),
            cache: Mutex::new(Cache::new(CacheLimits::default())),
            in_flight: Mutex::default(),
            limiter: ClientLimiter::new(IN_FLIGHT_MAX, IN_FLIGHT_EACH_MAX),
            turn: AtomicUsize::new(0),
            metrics,
        }
    }

    pub fn metrics(&self) -> &NameMetrics {
        &self.metrics
    }

    /// Replaces the upstream servers. Servers that stay keep their state.
    pub fn use_upstreams(&self, upstreams: Upstreams) {
        let mut current = self.upstreams.write().unwrap_or_else(PoisonError::into_inner);
        if current.addresses() != upstreams.addresses() {
            tracing::info!(servers = ?upstreams.addresses(), "upstream DNS servers changed");
            *current = Arc::new(upstreams);
        }
    }

    /// The response to a query, if it needs no waiting.
    pub fn answer_now(&self, request: &Request) -> Option<Message> {
        if !self.zone.is_complete() {
            return None;
        }
        let resolution = self.resolution(request);
        match resolution {
            Resolution::Answered(reply) => Some(own_answer(&request.message, reply)),
            Resolution::Elsewhere => {
                self.answer_from_cache(request, &request.query.name, Vec::new())
            }
            Resolution::Continues { records, target } => {
                self.answer_from_cache(request, &target, records)
            }
        }
    }

    /// The response to a query of `client`, within a bounded time.
    pub async fn answer_within_limits(&self, request: &Request, client: IpAddr) -> Message {
        if timeout(START_PATIENCE, self.zone.complete()).await.is_err() {
            // NXDOMAIN would be believed and cached.
            return answer(&request.message, ResponseCode::ServFail);
        }
        match self.resolution(request) {
            Resolution::Answered(reply) => own_answer(&request.message, reply),
            Resolution::Elsewhere => {
                self.forward(request, client, &request.query.name, Vec::new()).await
            }
            Resolution::Continues { records, target } => {
                self.forward(request, client, &target, records).await
            }
        }
    }

    fn resolution(&self, request: &Request) -> Resolution {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        self.zone.read().resolve_query(&request.query, turn)
    }

    /// A cached upstream response.
    fn answer_from_cache(
        &self,
        request: &Request,
        name: &Name,
        first: Vec<Record>,
    ) -> Option<Message> {
        let answer_from_cache = self.cache().get(&key(request, name), Instant::now())?;
        self.metrics.cache_hits.inc();
        Some(foreign_answer(&request.message, first, &answer_from_cache))
    }

    async fn forward(
        &self,
        request: &Request,
        client: IpAddr,
        name: &Name,
        first: Vec<Record>,
    ) -> Message {
        if let Some(message) = self.answer_from_cache(request, name, first.clone()) {
            return message;
        }
        self.metrics.cache_misses.inc();
        match self.query_upstreams(request, client, name).await {
            Some(theirs) => foreign_answer(&request.message, first, &theirs),
            None => {
                let mut failed = answer(&request.message, ResponseCode::ServFail);
                failed.answers = first;
                failed
            }
        }
    }

    /// Sends a query upstream, once for all clients with the same query in flight.
    async fn query_upstreams(
        &self,
        request: &Request,
        client: IpAddr,
        name: &Name,
    ) -> Option<Arc<Message>> {
        let key = key(request, name);
        let in_flight = {
            let mut in_flight = self.in_flight();
            match in_flight.get(&key) {
                Some(result) => Err(result.clone()),
                None => {
                    let Some(permit) = self.limiter.admit(client) else {
                        self.metrics.turned_away.with_label_values(&["busy"]).inc();
                        return None;
                    };
                    let (result_sender, result) = watch::channel(None);
                    in_flight.insert(key.clone(), result);
                    Ok(InFlightQuery { resolver: self, key, result_sender, _permit: permit })
                }
            }
        };
        match in_flight {
            Ok(in_flight) => in_flight.send_and_publish(request, name).await,
            Err(mut result) => {
                // The task may be aborted; then there is no response.
                let result = result.wait_for(Option::is_some).await.ok()?;
                result.clone().flatten()
            }
        }
    }

    fn upstreams(&self) -> Arc<Upstreams> {
        self.upstreams.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn in_flight(&self) -> MutexGuard<'_, HashMap<CacheKey, watch::Receiver<QueryResult>>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An upstream query under way; unregistered when dropped.
struct InFlightQuery<'a> {
    resolver: &'a Resolver,
    key: CacheKey,
    result_sender: watch::Sender<QueryResult>,
    _permit: ClientPermit,
}

impl InFlightQuery<'_> {
    async fn send_and_publish(self, request: &Request, name: &Name) -> Option<Arc<Message>> {
        let upstreams = self.resolver.upstreams();
        let answer = match upstreams.query_server(|id| question(id, name, request)).await {
            Ok(message) => {
                let now = Instant::now();
                self.resolver.cache().put(self.key.clone(), message.clone(), now);
                Some(Arc::new(message))
            }
            Err(error) => {
                self.resolver.metrics.forward_failures.inc();
                tracing::debug!(
                    %name,
                    error = %chain(&error),
                    "no upstream DNS server answered; the client gets SERVFAIL"
                );
                None
            }
        };
        self.result_sender.send_replace(Some(answer.clone()));
        answer
    }
}

impl Drop for InFlightQuery<'_> {
    fn drop(&mut self) {
        self.resolver.in_flight().remove(&self.key);
    }
}

fn key(request: &Request, name: &Name) -> CacheKey {
    CacheKey {
        name: name.to_lowercase(),
        kind: request.query.query_type,
        dnssec_ok: dnssec_ok(&request.message),
        checking_disabled: request.message.metadata.checking_disabled,
    }
}
