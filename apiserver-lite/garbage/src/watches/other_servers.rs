//! The kinds of other API servers, which APIServices name. One that does not answer holds up nothing: its kinds stay as they were, and their objects wait.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use apiserver_controllers::other_servers::{OtherVersion, resources, versions};
use futures_util::{StreamExt, stream};
use proto_client::dynamic::get_json;
use proto_client::request;
use serde_json::Value;

use super::*;
use crate::kinds::KindSource;
use crate::server::ANSWER_MAX;

/// Time between two requests for what other servers serve, as in Kubernetes.
const INTERVAL: Duration = Duration::from_secs(30);
/// Least time between two: many definitions may change at once.
pub(super) const INTERVAL_MIN: Duration = Duration::from_secs(1);
/// Most versions that are read at one time.
const READS_MAX: usize = 4;
/// Most kinds of other servers; further ones are not collected.
const KINDS_MAX: usize = 1_000;
/// Most memory for the ownership of their objects, in bytes.
const HELD_MAX: usize = 256 << 20;

/// The memory that the ownership of objects of other servers takes, in bytes: of one kind, and of all.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldBytes {
    all: Arc<HeldOfAll>,
    kind: Arc<HeldOfKind>,
}

#[derive(Debug, Default)]
struct HeldOfAll {
    bytes: AtomicUsize,
    kinds: Mutex<Vec<Weak<HeldOfKind>>>,
}

#[derive(Debug, Default)]
struct HeldOfKind {
    bytes: AtomicUsize,
    all: Arc<HeldOfAll>,
    too_many: Notify,
}

/// What the kind had is free once its watch has ended.
impl Drop for HeldOfKind {
    fn drop(&mut self) {
        self.all.bytes.fetch_sub(self.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

fn len(ownership: &Ownership) -> usize {
    let owner = |it: &proto_api::meta::v1::OwnerReference| {
        let texts = [&it.api_version, &it.kind, &it.name, &it.uid];
        texts.iter().fold(size_of_val(it), |len, text| len.saturating_add(text.len()))
    };
    // A name and a namespace are keys of the cache.
    let fixed = 512_usize.saturating_add(ownership.uid.len());
    ownership.owners.iter().map(owner).fold(fixed, usize::saturating_add)
}

impl HeldBytes {
    /// The count of another kind.
    pub(super) fn of_kind(&self) -> Self {
        let (bytes, too_many) = Default::default();
        let kind = Arc::new(HeldOfKind { bytes, all: self.all.clone(), too_many });
        let mut kinds = lock(&self.all.kinds);
        kinds.retain(|kind| kind.strong_count() > 0);
        kinds.push(Arc::downgrade(&kind));
        Self { all: self.all.clone(), kind }
    }

    /// Counts what is kept of an object.
    pub(super) fn hold(&self, ownership: Ownership) -> Ownership {
        let len = len(&ownership);
        self.kind.bytes.fetch_add(len, Ordering::Relaxed);
        let before = self.all.bytes.fetch_add(len, Ordering::Relaxed);
        if before.saturating_add(len) > HELD_MAX {
            let kinds: Vec<_> = lock(&self.all.kinds).iter().filter_map(Weak::upgrade).collect();
            let largest = kinds.iter().max_by_key(|kind| kind.bytes.load(Ordering::Relaxed));
            largest.into_iter().for_each(|kind| kind.too_many.notify_one());
        }
        ownership
    }

    /// What was kept of an object is kept no longer.
    pub(super) fn release(&self, old: Option<&Ownership>) {
        let len = old.map(len).unwrap_or_default();
        self.kind.bytes.fetch_sub(len, Ordering::Relaxed);
        self.all.bytes.fetch_sub(len, Ordering::Relaxed);
    }

    /// Returns the memory of the kind once there is too much of all kinds, and most is of this one.
    pub(super) async fn too_many(&self) -> usize {
        self.kind.too_many.notified().await;
        self.kind.bytes.load(Ordering::Relaxed)
    }
}

/// Whether two kinds are versions of one.
fn is_same(one: &CollectedKind, other: &CollectedKind) -> bool {
    (&one.group, &one.plural) == (&other.group, &other.plural)
}

/// What is known of the kinds of other servers.
#[derive(Debug, Default)]
struct OtherKinds {
    /// One version of each.
    served: Vec<CollectedKind>,
    /// The versions that have not been read, with their groups.
    unknown: BTreeSet<(String, String)>,
    /// The versions of available servers that have not been read.
    unread: Vec<String>,
    /// Whether there are other servers.
    has_servers: bool,
    /// How many kinds are too many.
    left_out: usize,
}

impl OtherKinds {
    /// Adds what a version has, or that it could not be read.
    fn add(&mut self, version: &OtherVersion, list: Option<&Value>) {
        self.has_servers = true;
        match list {
            Some(list) => self.add_resources(list, version),
            None => {
                self.unknown.insert((version.group.clone(), version.version.clone()));
                self.unread.extend(version.available.then(|| version.path()));
            }
        }
    }

    /// Adds the resources that the collector can handle. Those that a preferred version has are the same if the server is.
    fn add_resources(&mut self, list: &Value, version: &OtherVersion) {
        let all = resources(list, version).into_iter();
        for other in all.filter(|one| one.has(&["delete", "get", "list", "patch", "watch"])) {
            let (versions, service) = (vec![version.version.clone()], version.service.clone());
            let source = KindSource::OtherServer { versions, service };
            let kind = CollectedKind::new(&other.resource, source);
            let at = self.served.iter().position(|known| is_same(known, &kind));
            match at.and_then(|at| self.served.get_mut(at)).map(|known| &mut known.source) {
                Some(KindSource::OtherServer { versions, service }) => {
                    // A list may name a resource many times.
                    if *service == version.service && !versions.contains(&version.version) {
                        versions.push(version.version.clone());
                    }
                }
                Some(KindSource::BuiltIn | KindSource::Definition { .. }) => {}
                None => self.add_kind(kind),
            }
        }
    }

    fn add_kind(&mut self, kind: CollectedKind) {
        match self.served.len() < KINDS_MAX {
            true => self.served.push(kind),
            false => self.left_out = self.left_out.saturating_add(1),
        }
    }
}

impl Watches {
    /// Starts the watches of kinds that other servers have added, and ends those that a server has no more. Returns when to ask again without a change
    /// of an APIService.
    pub(super) async fn follow_other_servers(&mut self) -> Option<Duration> {
        let found = match self.read_other_servers().await {
            Ok(found) => found,
            Err(error) => {
                let error = chain(&error);
                tracing::debug!(error, "cannot list APIServices; retried");
                return Some(INTERVAL);
            }
        };
        let OtherKinds { mut served, unknown, unread, has_servers, left_out } = found;
        if left_out > 0 {
            tracing::warn!(
                left_out,
                "other API servers have more than {KINDS_MAX} kinds; the others are not garbage collected"
            );
        }
        let is_unknown = |kind: &CollectedKind| {
            unknown.contains(&(kind.group.clone(), kind.version.clone().into_owned()))
        };
        // A kind of this server goes before those of others, and one that was there before a version was out of reach goes on.
        let known: Vec<_> = self.kinds.iter().map(|(_, kind)| kind).collect();
        served.retain(|kind| {
            let stays = |known: &CollectedKind| !known.is_of_other_server() || is_unknown(known);
            !known.iter().any(|known| is_same(known, kind) && stays(known))
        });
        let may_end = |kind: &CollectedKind| kind.is_of_other_server() && !is_unknown(kind);
        self.follow_kinds(served, may_end, None);
        self.restart_ended();
        self.caches.note_unread(unread);
        has_servers.then_some(INTERVAL)
    }

    /// Starts the watches again of kinds that were not found although their servers list them.
    fn restart_ended(&mut self) {
        for (id, kind) in self.kinds.iter().filter(|(_, kind)| kind.is_of_other_server()) {
            let has_ended = self.running.get(&id).is_none_or(JoinHandle::is_finished);
            // One whose cache is gone had too many objects.
            if has_ended && self.caches.has(id) {
                tracing::debug!(group = kind.group, plural = %kind.plural, "the kind was not found before; it is listed again");
                self.start(id, None);
            }
        }
    }

    async fn read_other_servers(&self) -> Result<OtherKinds, ClientError> {
        let services = Dynamic::new(self.client.clone(), api_services(self.client.names()));
        let list = match services.list(&ListParams::default()).await {
            Ok(list) => list,
            // A server without APIServices passes nothing on.
            Err(error) if is_unserved(&error) => return Ok(OtherKinds::default()),
            Err(error) => return Err(error),
        };
        let read = |version: OtherVersion| async {
            let list = self.read_version(&version).await;
            (version, list)
        };
        let all = stream::iter(versions(&list)).map(read).buffered(READS_MAX);
        let add = |mut found: OtherKinds, (version, list): (OtherVersion, Option<Value>)| async move {
            found.add(&version, list.as_ref());
            found
        };
        Ok(all.fold(OtherKinds::default(), add).await)
    }

    /// The resources of a version; none if its server does not say.
    async fn read_version(&self, version: &OtherVersion) -> Option<Value> {
        let path = version.path();
        if !version.available {
            return None;
        }
        let asked = get_json(&self.client, request::get(path.clone()));
        let error = match tokio::time::timeout(ANSWER_MAX, asked).await {
            Ok(Ok(list)) => return Some(list),
            Ok(Err(error)) => chain(&error),
            Err(_) => format!("no answer within {ANSWER_MAX:?}"),
        };
        tracing::debug!(path, error, "cannot read what another API server serves; retried");
        None
    }
}

#[cfg(test)]
mod tests;
