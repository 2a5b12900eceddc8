//! Limits of requests in flight: further ones get a 429. Reads, writes and streams are limited separately, in total and per
//! user; short requests of `system:masters` are exempt. With priority and fairness these are what remains of the limits for
//! requests that have their seat: no user has a level, or the memory, alone.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use apiserver_auth::User;
use apiserver_core::config::RequestLimits;
use apiserver_core::status::ApiError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::labels::RequestKind;
use crate::metrics::InFlight;
use crate::unsent_bytes::{UnsentBytes, UserShare};

/// A user other than an administrator may have one part in this many of the short requests.
const USER_SHARE: usize = 4;
/// Most watches, logs and proxied sessions: a few kilobytes each, several per node of a large cluster.
const STREAMS_MAX: usize = 32_768;
/// Most streams of one user. A controller has a few dozen.
const STREAMS_OF_USER_MAX: usize = 8_192;
/// Most requests of one user that wait for a seat, a quarter of what may wait in a priority level.
const WAITING_OF_USER_MAX: usize = apiserver_flow_control::WAITING_MAX / USER_SHARE;
/// Places of streams that are left to administrators, nodes and the system's own programs: others can take all the rest together.
const STREAMS_OF_SYSTEM: usize = STREAMS_MAX / 16;
/// Bytes of a query for each of which a stream takes a further place: a selector is kept as long as its watch, and takes some twenty times its text.
const QUERY_OF_PLACE: usize = 512;

/// The limits of requests in flight and the permits in use.
pub struct Overload {
    /// `None` where there may be any number.
    reading: Option<Places>,
    changing: Option<Places>,
    streams: Places,
    /// The accounts of its namespace are counted one by one.
    system_namespace: &'static str,
    by_user: Arc<Mutex<HashMap<(RequestClass, String), usize>>>,
    /// What users have not read yet.
    unsent: UnsentBytes,
}

/// The places of a class of requests.
struct Places {
    free: Arc<Semaphore>,
    of_user_max: usize,
}

impl Places {
    fn new(max: usize, of_user_max: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(max)), of_user_max }
    }
}

/// The permit of one request; a stream holds it until its body ends.
pub struct InFlightPermit {
    place: RequestPermit,
    user: Option<UserPermit>,
}

/// A place among the requests of all users; none where there may be any number.
pub struct RequestPermit(#[expect(dead_code, reason = "held")] Option<OwnedSemaphorePermit>);

/// What a stream holds until it ends: its place, its user's share, and its count in the metrics. A session that goes on after the response to an upgrade has
/// it from the extensions of its request.
#[derive(Clone)]
pub struct HeldStream(#[expect(dead_code, reason = "held")] Arc<StreamParts>);

type StreamParts = (RequestPermit, Arc<Option<UserPermit>>, InFlight);

impl HeldStream {
    /// Of these parts.
    pub fn new(place: RequestPermit, share: Arc<Option<UserPermit>>, counted: InFlight) -> Self {
        Self(Arc::new((place, share, counted)))
    }
}

impl InFlightPermit {
    /// The place, and the share of the user. A short request holds its place until its response begins, and counts as its user's until that is written: who
    /// does not read blocks no other user.
    pub fn split(self) -> (RequestPermit, Option<UserPermit>) {
        (self.place, self.user)
    }
}

/// Class of requests with a limit of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum RequestClass {
    Reading,
    Changing,
    Streams,
    /// Those that wait for a seat of their priority level.
    Waiting,
}

/// Counts one request of a user while it exists.
pub struct UserPermit {
    by_user: Arc<Mutex<HashMap<(RequestClass, String), usize>>>,
    key: (RequestClass, String),
    places: usize,
}

impl Drop for UserPermit {
    fn drop(&mut self) {
        let mut by_user = self.by_user.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = by_user.get_mut(&self.key) {
            *count = count.saturating_sub(self.places);
            if *count == 0 {
                by_user.remove(&self.key);
            }
        }
    }
}

impl Overload {
    /// Without any request. Service accounts of one namespace are one user, but for those of `system_namespace`.
    #[must_use]
    pub fn new(limits: &RequestLimits, system_namespace: &'static str) -> Self {
        let places = |max: u32| {
            let max = usize::try_from(max).unwrap_or(Semaphore::MAX_PERMITS);
            let of_user_max = max.div_ceil(USER_SHARE);
            (max > 0).then(|| Places::new(max.min(Semaphore::MAX_PERMITS), of_user_max))
        };
        Self {
            reading: places(limits.reading),
            changing: places(limits.mutating),
            streams: Places::new(STREAMS_MAX, STREAMS_OF_USER_MAX),
            system_namespace,
            by_user: Arc::default(),
            unsent: UnsentBytes::default(),
        }
    }

    /// The name under which what a user takes is counted.
    #[must_use]
    pub fn share_name<'a>(&self, user: &'a str) -> &'a str {
        apiserver_auth::share_name(user, self.system_namespace)
    }

    /// What the user may leave unread.
    #[must_use]
    pub fn unsent(&self, user: &str) -> UserShare {
        self.unsent.share(self.share_name(user))
    }

    /// A permit for a request of `kind` by `user`, with a query of this many bytes.
    ///
    /// # Errors
    /// 429 when the limit of the class or the user is reached.
    pub fn admit(
        &self,
        kind: RequestKind,
        user: &User,
        query_len: usize,
    ) -> Result<InFlightPermit, ApiError> {
        let (class, places) = match kind {
            RequestKind::LongRunning => (RequestClass::Streams, Some(&self.streams)),
            RequestKind::ReadOnly => (RequestClass::Reading, self.reading.as_ref()),
            RequestKind::Mutating => (RequestClass::Changing, self.changing.as_ref()),
        };
        let Some(places) = places else {
            return Ok(InFlightPermit { place: RequestPermit(None), user: None });
        };
        let is_exempt = class != RequestClass::Streams && user.is_in(apiserver_auth::MASTERS);
        let of_request = match class {
            RequestClass::Streams => (query_len / QUERY_OF_PLACE).saturating_add(1),
            RequestClass::Reading | RequestClass::Changing | RequestClass::Waiting => 1,
        };
        let wanted = u32::try_from(of_request).unwrap_or(u32::MAX);
        let left = places.free.available_permits().saturating_sub(of_request);
        if class == RequestClass::Streams && left < STREAMS_OF_SYSTEM && !self.is_of_system(user) {
            return Err(too_many());
        }
        let permit = places.free.clone().try_acquire_many_owned(wanted).ok();
        if is_exempt {
            return Ok(InFlightPermit { place: RequestPermit(permit), user: None });
        }
        let permit = permit.ok_or_else(too_many)?;
        let user_permit = self.acquire_for_user(class, user, of_request, places.of_user_max)?;
        Ok(InFlightPermit { place: RequestPermit(Some(permit)), user: Some(user_permit) })
    }

    /// The share of a user in what may wait for a seat. Administrators do not wait.
    ///
    /// # Errors
    /// 429 if too many requests of the user wait.
    pub fn share_of_waiting(&self, user: &User) -> Result<Option<UserPermit>, ApiError> {
        if user.is_in(apiserver_auth::MASTERS) {
            return Ok(None);
        }
        self.acquire_for_user(RequestClass::Waiting, user, 1, WAITING_OF_USER_MAX).map(Some)
    }

    /// A place for a change whose body is here now; its user has the share already.
    ///
    /// # Errors
    /// 429 when the limit is reached.
    pub fn place_for_change(&self, user: &User) -> Result<RequestPermit, ApiError> {
        let Some(places) = &self.changing else { return Ok(RequestPermit(None)) };
        match places.free.clone().try_acquire_owned() {
            Ok(permit) => Ok(RequestPermit(Some(permit))),
            Err(_) if user.is_in(apiserver_auth::MASTERS) => Ok(RequestPermit(None)),
            Err(_) => Err(too_many()),
        }
    }

    /// Whether a part of the streams is left to the user: an administrator, a node, a program of the system or an account of its namespace.
    fn is_of_system(&self, user: &User) -> bool {
        let account = user.name.strip_prefix("system:serviceaccount:");
        let namespace = account.and_then(|account| account.split_once(':')).map(|(it, _)| it);
        has_reserved_name(user) || namespace == Some(self.system_namespace)
    }

    fn acquire_for_user(
        &self,
        class: RequestClass,
        user: &User,
        places: usize,
        max: usize,
    ) -> Result<UserPermit, ApiError> {
        let key = (class, self.share_name(&user.name).to_owned());
        let mut by_user = self.by_user.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = by_user.get(&key).copied().unwrap_or_default().saturating_add(places);
        if taken > max {
            return Err(too_many());
        }
        by_user.insert(key.clone(), taken);
        Ok(UserPermit { by_user: self.by_user.clone(), key, places })
    }
}

/// Whether what the user has not read, and its large requests, are not bounded: administrators and the system's own programs, but not nodes.
pub fn is_exempt_from_shares(user: &User) -> bool {
    has_reserved_name(user) && !user.name.starts_with("system:node:")
}

/// Whether the user is an administrator, a node or a program of the system: names that no other user has, as `system:` is reserved.
fn has_reserved_name(user: &User) -> bool {
    let given = ["system:serviceaccount:", "system:bootstrap:", "system:anonymous"];
    let is_reserved = user.name.starts_with("system:");
    user.is_in(apiserver_auth::MASTERS)
        || is_reserved && !given.iter().any(|prefix| user.name.starts_with(prefix))
}

/// The 429 of a request that finds no place. The words are Kubernetes'.
pub fn too_many() -> ApiError {
    ApiError::too_many_requests("Too many requests, please try again later.", 1)
}

#[cfg(test)]
mod tests {
    use apiserver_core::config::RequestSharing;

    use super::*;

    /// Most requests that change something.
    const CHANGING_MAX: usize = 200;

    fn overload(sharing: RequestSharing) -> Overload {
        Overload::new(&RequestLimits { reading: 400, mutating: 200, sharing }, "kube-system")
    }

    /// Who has many accounts has many flows, and could fill the queues of a level for all others.
    #[test]
    fn the_accounts_of_a_namespace_share_what_may_wait_for_a_seat() {
        let overload = overload(RequestSharing::Plain);
        let wait = |name: String| overload.share_of_waiting(&User { name, ..User::default() });
        let account = |n: usize| wait(format!("system:serviceaccount:team:x{n}"));
        let waiting: Vec<_> = (0..WAITING_OF_USER_MAX).map(account).collect();
        assert!(waiting.iter().all(Result::is_ok));
        assert_eq!(account(0).err().map(|error| error.code()), Some(429));
        assert!(wait("system:serviceaccount:other:x".into()).is_ok());
        drop(waiting);
        assert!(account(0).is_ok());
    }

    #[test]
    fn zero_switches_a_limit_off() {
        let user = User { name: "a".to_owned(), ..User::default() };
        let sharing = RequestSharing::Plain;
        let overload =
            Overload::new(&RequestLimits { reading: 1, mutating: 0, sharing }, "kube-system");
        let admit = |kind| overload.admit(kind, &user, 0);
        let writes = (0..10).map(|_| admit(RequestKind::Mutating)).collect::<Result<Vec<_>, _>>();
        assert!(writes.is_ok());
        let _one = admit(RequestKind::ReadOnly).unwrap();
        assert!(admit(RequestKind::ReadOnly).is_err());
    }

    #[test]
    fn a_user_has_a_part_of_all_places() {
        for sharing in [RequestSharing::Plain, RequestSharing::Fair] {
            check_parts(sharing);
        }
    }

    fn check_parts(sharing: RequestSharing) {
        let overload = overload(sharing);
        let user = |name: &str| User { name: name.to_owned(), ..User::default() };
        let write = |name: &str| overload.admit(RequestKind::Mutating, &user(name), 0);
        let of_one: Vec<_> = (0..CHANGING_MAX / USER_SHARE).map(|_| write("a").unwrap()).collect();
        let refused = write("a").err().unwrap();
        assert_eq!((refused.code(), refused.retry_after_seconds()), (429, Some(1)));
        assert!(overload.admit(RequestKind::ReadOnly, &user("a"), 0).is_ok());
        assert!(overload.admit(RequestKind::LongRunning, &user("a"), 0).is_ok());
        let others: Vec<_> = ["b", "c", "d"]
            .iter()
            .flat_map(|name| (0..CHANGING_MAX / USER_SHARE).map(|_| write(name).unwrap()))
            .collect();
        assert_eq!(write("e").err().map(|error| error.code()), Some(429), "all are taken");
        assert!(overload.admit(RequestKind::Mutating, &User::server(), 0).is_ok());
        drop(of_one);
        assert!(write("e").is_ok() && write("a").is_ok());
        drop(others);
        assert!(overload.by_user.lock().unwrap().is_empty());
    }

    #[test]
    fn streams_of_one_user_leave_places_to_others() {
        let overload = overload(RequestSharing::Plain);
        let user = |name: &str| User { name: name.to_owned(), ..User::default() };
        let stream = |name: &str| overload.admit(RequestKind::LongRunning, &user(name), 0);
        let of_one: Vec<_> = (0..STREAMS_OF_USER_MAX).map(|_| stream("a").unwrap()).collect();
        assert_eq!(stream("a").err().map(|error| error.code()), Some(429));
        let mut others: Vec<_> = Vec::new();
        for (name, streams) in [
            ("b", STREAMS_OF_USER_MAX),
            ("c", STREAMS_OF_USER_MAX),
            ("d", STREAMS_OF_USER_MAX - STREAMS_OF_SYSTEM),
        ] {
            others.extend((0..streams).map(|_| stream(name).unwrap()));
        }
        assert_eq!(stream("d").err().map(|error| error.code()), Some(429), "all are taken");
        for name in ["e", "system:serviceaccount:team:x", "system:bootstrap:abcdef"] {
            assert_eq!(stream(name).err().map(|error| error.code()), Some(429), "{name}");
        }
        let of_system = "system:serviceaccount:kube-system:coredns";
        for name in ["system:node:a", "system:kube-scheduler", of_system] {
            assert!(stream(name).is_ok(), "{name}");
        }
        assert!(overload.admit(RequestKind::LongRunning, &User::server(), 0).is_ok());
        drop(of_one);
        assert!(stream("e").is_ok() && stream("a").is_ok());
        drop(others);
        assert!(overload.by_user.lock().unwrap().is_empty());
    }

    /// A tenant may act as any account of its namespace, and make any number of them.
    #[test]
    fn accounts_of_one_namespace_have_one_share() {
        let overload = overload(RequestSharing::Plain);
        let admit = |namespace: &str, name: usize| {
            let user = User::service_account(namespace, &format!("x{name}"));
            overload.admit(RequestKind::ReadOnly, &user, 0)
        };
        let of_team: Vec<_> = (0..400).filter_map(|name| admit("team", name).ok()).collect();
        assert_eq!(of_team.len(), 400 / USER_SHARE);
        assert!(admit("other", 0).is_ok());
        let of_system: Vec<_> =
            (0..400).filter_map(|name| admit("kube-system", name).ok()).collect();
        assert_eq!(of_system.len(), 400 - of_team.len());
    }

    /// 8,192 watches of one user, each with a selector of 60 KB, kept 11 GB.
    #[test]
    fn a_stream_takes_places_for_the_length_of_its_query() {
        let overload = overload(RequestSharing::Plain);
        let user = User { name: "a".to_owned(), ..User::default() };
        let admit = |kind, query_len| overload.admit(kind, &user, query_len);
        let stream = |query_len| admit(RequestKind::LongRunning, query_len);
        let long: Vec<_> = std::iter::from_fn(|| stream(63 * QUERY_OF_PLACE).ok()).collect();
        assert_eq!(long.len(), STREAMS_OF_USER_MAX / 64);
        assert_eq!(stream(0).err().map(|error| error.code()), Some(429));
        // Short requests keep nothing.
        let reads =
            (0..10).map(|_| admit(RequestKind::ReadOnly, 1 << 20)).collect::<Result<Vec<_>, _>>();
        assert!(reads.is_ok());
        let others = User { name: "b".to_owned(), ..User::default() };
        let others = (0..STREAMS_OF_USER_MAX)
            .map(|_| overload.admit(RequestKind::LongRunning, &others, 511));
        assert!(others.collect::<Result<Vec<_>, _>>().is_ok());
        drop(long);
        assert!(stream(63 * QUERY_OF_PLACE).is_ok());
        drop(reads);
        assert!(overload.by_user.lock().unwrap().is_empty());
    }
}
