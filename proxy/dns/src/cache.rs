//! Cache of upstream responses, for their TTL within limits.
//!
//! Bounded without a list of uses: entries are in a young or an old generation; when the young one is full it becomes
//! the old one, and the previous old one is dropped except for entries that were used in the meantime.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};

/// Responses with more records are not cached.
const RECORDS_MAX: usize = 64;

/// Longer responses are not cached. Decoded, a response of many short TXT records takes thirty times its length.
const ANSWER_LEN_MAX: usize = 4096;

/// The parts of a query that the response depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CacheKey {
    /// In lower case.
    pub name: Name,
    /// The type of the records.
    pub kind: RecordType,
    /// DO bit: whether DNSSEC records are wanted.
    pub dnssec_ok: bool,
    /// CD bit: whether the upstream server should not validate.
    pub checking_disabled: bool,
}

/// Bounds of the cache: responses, their bytes, and the longest TTLs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// Number of responses.
    pub entries: usize,
    /// Total length of the responses.
    pub bytes: usize,
    /// Maximum TTL of responses with records.
    pub found: Duration,
    /// Maximum TTL of negative responses.
    pub missing: Duration,
}

impl Default for CacheLimits {
    /// The usual settings of NodeLocal DNSCache.
    fn default() -> Self {
        Self {
            entries: 8192,
            bytes: 4 << 20,
            found: Duration::from_secs(30),
            missing: Duration::from_secs(5),
        }
    }
}

/// Responses of upstream DNS servers, by question, until their TTL ends.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    limits: CacheLimits,
    young: HashMap<CacheKey, Entry>,
    /// Total length of the young generation.
    young_len: usize,
    old: HashMap<CacheKey, Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    message: Arc<Message>,
    /// Encoded length.
    len: usize,
    since: Instant,
    until: Instant,
}

impl Cache {
    /// An empty cache.
    pub fn new(limits: CacheLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Number of responses.
    pub fn len(&self) -> usize {
        self.young.len().saturating_add(self.old.len())
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The response to a query at `now`, with reduced TTLs.
    pub fn get(&mut self, key: &CacheKey, now: Instant) -> Option<Message> {
        let entry = match self.young.get(key) {
            Some(entry) => entry.clone(),
            None => {
                let (key, entry) = self.old.remove_entry(key)?;
                self.insert(key, entry.clone());
                entry
            }
        };
        if now >= entry.until {
            self.young.remove(key);
            self.young_len = self.young_len.saturating_sub(entry.len);
            return None;
        }
        let age = now.saturating_duration_since(entry.since).as_secs();
        let mut message = (*entry.message).clone();
        let age = u32::try_from(age).unwrap_or(u32::MAX);
        for record in message.answers.iter_mut().chain(&mut message.authorities) {
            record.ttl = record.ttl.saturating_sub(age);
        }
        Some(message)
    }

    /// Adds a response received at `now`, if it may be cached.
    pub fn put(&mut self, key: CacheKey, mut message: Message, now: Instant) {
        let Some(time) = lifetime(&message, &self.limits) else { return };
        // A name that is queried every second should not extend the life of other records.
        message.additionals.clear();
        let Ok(len) = message.to_vec().map(|bytes| bytes.len()) else { return };
        let Some(until) = now.checked_add(time) else { return };
        if len <= ANSWER_LEN_MAX {
            self.insert(key, Entry { message: Arc::new(message), len, since: now, until });
        }
    }

    fn insert(&mut self, key: CacheKey, entry: Entry) {
        let is_full = self.young.len() >= self.limits.entries / 2
            || self.young_len.saturating_add(entry.len) > self.limits.bytes / 2;
        if is_full && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
            self.young_len = 0;
        }
        self.young_len = self.young_len.saturating_add(entry.len);
        if let Some(before) = self.young.insert(key, entry) {
            self.young_len = self.young_len.saturating_sub(before.len);
        }
    }
}

/// How long a response may be cached; `None` for failures and negative responses without SOA (RFC 2308).
fn lifetime(message: &Message, limits: &CacheLimits) -> Option<Duration> {
    if message.metadata.truncation
        || message.answers.len().saturating_add(message.authorities.len()) > RECORDS_MAX
    {
        return None;
    }
    let code = message.metadata.response_code;
    let (secs, most) = if code == ResponseCode::NoError && !message.answers.is_empty() {
        (message.answers.iter().map(|record| record.ttl).min()?, limits.found)
    } else if matches!(code, ResponseCode::NoError | ResponseCode::NXDomain) {
        let authority = message.authorities.iter().find_map(|record| match &record.data {
            RData::SOA(soa) => Some(record.ttl.min(soa.minimum)),
            _ => None,
        });
        (authority?, limits.missing)
    } else {
        return None;
    };
    (secs > 0).then(|| Duration::from_secs(secs.into()).min(most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_proto::op::OpCode;
    use hickory_proto::rr::Record;
    use hickory_proto::rr::rdata::SOA;
    use std::net::Ipv4Addr;

    fn key(n: usize) -> CacheKey {
        let name = Name::from_ascii(format!("n{n}.example.")).unwrap();
        CacheKey { name, kind: RecordType::A, dnssec_ok: false, checking_disabled: false }
    }

    fn found(ttl: u32) -> Message {
        let mut message = Message::response(1, OpCode::Query);
        let record = Record::from_rdata(key(0).name, ttl, Ipv4Addr::LOCALHOST.into());
        message.answers = vec![record];
        message
    }

    fn missing(ttl: u32, minimum: u32) -> Message {
        let mut message = Message::error_msg(1, OpCode::Query, ResponseCode::NXDomain);
        let name = key(0).name;
        let soa = SOA::new(name.clone(), name.clone(), 1, 2, 3, 4, minimum);
        message.authorities = vec![Record::from_rdata(name, ttl, RData::SOA(soa))];
        message
    }

    #[test]
    fn answers_age_and_end() {
        let mut cache = Cache::new(CacheLimits::default());
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        cache.put(key(0), found(20), start);
        let ttl = |cache: &mut Cache, secs| {
            cache.get(&key(0), at(secs)).map(|message| message.answers[0].ttl)
        };
        assert_eq!(ttl(&mut cache, 0), Some(20));
        assert_eq!(ttl(&mut cache, 7), Some(13));
        assert_eq!(ttl(&mut cache, 20), None);
        assert!(cache.is_empty());
        // Limited, though the record may live on elsewhere.
        cache.put(key(0), found(3600), start);
        assert_eq!(ttl(&mut cache, 29), Some(3571));
        assert_eq!(ttl(&mut cache, 30), None);
    }

    #[test]
    fn cache_lifetimes_depend_on_the_dns_response() {
        let limits = CacheLimits::default();
        let secs = |message: &Message| lifetime(message, &limits).map(|time| time.as_secs());
        assert_eq!(secs(&found(3)), Some(3));
        assert_eq!(secs(&found(0)), None);
        assert_eq!(secs(&missing(60, 3)), Some(3));
        assert_eq!(secs(&missing(2, 60)), Some(2));
        assert_eq!(secs(&missing(60, 60)), Some(5));
        let mut empty = missing(60, 60);
        empty.authorities.clear();
        assert_eq!(secs(&empty), None);
        let mut failed = found(60);
        failed.metadata.response_code = ResponseCode::ServFail;
        assert_eq!(secs(&failed), None);
        let mut cut = found(60);
        cut.metadata.truncation = true;
        assert_eq!(secs(&cut), None);
    }

    #[test]
    fn the_cache_has_bounded_bytes_and_no_large_responses() {
        let text = |len: usize| {
            let mut message = found(60);
            let texts = vec!["x".repeat(200); len / 200];
            let data = RData::TXT(hickory_proto::rr::rdata::TXT::new(texts));
            message.answers = vec![Record::from_rdata(key(0).name, 60, data)];
            message
        };
        let mut cache = Cache::new(CacheLimits::default());
        let now = Instant::now();
        cache.put(key(0), text(60_000), now);
        assert!(cache.is_empty());
        let kept = |cache: &Cache| {
            let all = cache.young.values().chain(cache.old.values());
            all.map(|entry| entry.len).sum::<usize>()
        };
        for n in 0..3000 {
            cache.put(key(n), text(3800), now);
            assert!(kept(&cache) <= 4 << 20, "{} bytes", kept(&cache));
            assert_eq!(cache.young_len, cache.young.values().map(|entry| entry.len).sum::<usize>());
        }
        assert!(cache.get(&key(2999), now).is_some() && kept(&cache) > 1 << 20);
    }

    #[test]
    fn the_cache_is_bounded_and_drops_the_least_used_entries() {
        let mut cache = Cache::new(CacheLimits { entries: 100, ..CacheLimits::default() });
        let now = Instant::now();
        for n in 0..1000 {
            cache.put(key(n), found(60), now);
            assert!(cache.get(&key(0), now).is_some(), "asked for all the time, gone at {n}");
            assert!(cache.len() <= 100);
        }
        assert!(cache.get(&key(500), now).is_none());
        assert!(cache.get(&key(999), now).is_some());
    }
}
