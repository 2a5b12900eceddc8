//! Leases: a node's heartbeat, and the lock of leader election.
//!
//! [`Claimant::claim`], which is pure, decides what to write; [`keep`] writes it periodically, in a task and preferably over a separate connection. Another
//! holder counts as dead when its lease has not changed for its duration as observed here; clocks are never compared.

use std::time::Duration;

use proto_api::MicroTime;
use proto_api::coordination::v1::{Lease, LeaseSpec};
use proto_api::meta::v1::{ObjectMeta, OwnerReference};
use proto_daemon::backoff::Backoff;
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use proto_daemon::statusz::TaskStatus;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::api::Api;
use crate::error::ClientError;
use crate::params::WriteParams;

/// Longest duration of another holder's lease that counts, seconds.
pub const DURATION_SECS_MAX: u64 = 3600;

/// A holder and its lease.
#[derive(Clone, Debug, PartialEq)]
pub struct Holder {
    /// Name of the lease; for a node its name.
    pub lease: String,
    /// The name of the holder.
    pub identity: String,
    /// Duration in seconds: after it without renewal others may acquire the lease. It is renewed four times as often.
    pub duration_secs: u16,
    /// The owner of the lease object, a node for example.
    pub owner: Option<OwnerReference>,
}

/// What is known of a lease.
#[derive(Clone, Debug, Default)]
pub struct Claimant {
    lease: Option<Lease>,
    /// When the lease was last seen to change.
    changed: Option<Instant>,
    /// Whether it may have changed, so that it has to be read before the next claim.
    stale: bool,
}

/// What to do with a lease.
#[derive(Clone, Debug, PartialEq)]
pub enum Claim {
    /// It does not exist: create this one.
    Create(Box<Lease>),
    /// It is held by this instance or free: replace it by this one.
    Update(Box<Lease>),
    /// Another holds it.
    Wait { holder: String },
}

impl Claimant {
    /// Records the lease as the server has it; `None` if it does not exist.
    pub fn observe_lease(&mut self, lease: Option<Lease>, now: Instant) {
        if self.lease != lease || self.changed.is_none() {
            self.changed = Some(now);
        }
        self.lease = lease;
        self.stale = false;
    }

    /// What `me` should write. `wall` is the wall-clock time, which is written for information only.
    pub fn claim(&self, me: &Holder, wall: MicroTime, now: Instant) -> Claim {
        let fresh = || LeaseSpec {
            holder_identity: Some(me.identity.clone()),
            lease_duration_seconds: Some(i32::from(me.duration_secs)),
            acquire_time: Some(wall),
            renew_time: Some(wall),
            lease_transitions: Some(0),
        };
        let Some(lease) = &self.lease else {
            let metadata = ObjectMeta {
                name: me.lease.clone(),
                owner_references: me.owner.iter().cloned().collect(),
                ..ObjectMeta::default()
            };
            return Claim::Create(Box::new(Lease { metadata, spec: fresh() }));
        };
        let spec = &lease.spec;
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        let mut next = lease.clone();
        if holder == me.identity {
            next.metadata.owner_references = owned_by(next.metadata.owner_references, me);
            next.spec.renew_time = Some(wall);
            next.spec.lease_duration_seconds = Some(i32::from(me.duration_secs));
            return Claim::Update(Box::new(next));
        }
        if !holder.is_empty() && !self.is_expired(spec, now) {
            return Claim::Wait { holder: holder.to_owned() };
        }
        let transitions = spec.lease_transitions.unwrap_or(0).max(0).saturating_add(1);
        next.spec = LeaseSpec { lease_transitions: Some(transitions), ..fresh() };
        Claim::Update(Box::new(next))
    }

    /// The duration that the holder wrote, bounded: no lease is held for ever without renewal.
    fn is_expired(&self, spec: &LeaseSpec, now: Instant) -> bool {
        let secs = u64::try_from(spec.lease_duration_seconds.unwrap_or(0)).unwrap_or(0);
        let life = Duration::from_secs(secs.min(DURATION_SECS_MAX));
        self.changed.is_some_and(|changed| now.saturating_duration_since(changed) >= life)
    }

    /// Whether `me` held the lease when it was last seen.
    pub(crate) fn is_held_by(&self, me: &Holder) -> bool {
        let holder = self.lease.as_ref().and_then(|lease| lease.spec.holder_identity.as_deref());
        !self.stale && holder == Some(me.identity.as_str())
    }

    /// It may have changed: it is read before the next claim. The time of the last observed change is kept.
    pub(crate) fn forget(&mut self) {
        self.stale = true;
    }

    /// The version that was last seen.
    #[cfg(test)]
    pub(crate) fn version(&self) -> Option<&str> {
        self.lease.as_ref().map(|lease| lease.metadata.resource_version.as_str())
    }

    /// The lease without its holder `me`, so that another can acquire it at once; `None` if `me` does not hold it.
    pub(crate) fn released(&self, me: &Holder, wall: MicroTime) -> Option<Lease> {
        let mut lease = self.lease.clone().filter(|_| self.is_held_by(me))?;
        lease.spec.holder_identity = Some(String::new());
        lease.spec.lease_duration_seconds = Some(1);
        lease.spec.renew_time = Some(wall);
        Some(lease)
    }
}

/// `references` with the holder's owner in place of an earlier object of its name: a Node that was deleted and registered again is another owner.
fn owned_by(mut references: Vec<OwnerReference>, me: &Holder) -> Vec<OwnerReference> {
    let Some(owner) = &me.owner else { return references };
    let named = |other: &OwnerReference| (&other.kind, &other.name) == (&owner.kind, &owner.name);
    for reference in references.iter_mut().filter(|reference| named(reference)) {
        reference.uid.clone_from(&owner.uid);
    }
    references
}

/// Whether this instance holds the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// It holds the lease and renewed it in time.
    Yes,
    /// Another instance holds it, or this is unknown.
    No,
}

/// Claims and renews the lease until drained, and reports each change to `held`. The lease then expires: another instance waits for that, a restarted one
/// continues. `me` may change meanwhile: its owner, if that was made again.
pub async fn keep(
    api: Api<Lease>,
    me: watch::Receiver<Holder>,
    status: TaskStatus,
    held: watch::Sender<Held>,
    drain: DrainWatch,
) {
    // Cancel safe: an interrupted renewal is repeated by the next start.
    tokio::select! {
        () = drain.asked() => {}
        () = renew_forever(api, me, status, held) => {}
    }
}

async fn renew_forever(
    api: Api<Lease>,
    holder: watch::Receiver<Holder>,
    status: TaskStatus,
    held: watch::Sender<Held>,
) {
    let mut me = holder.borrow().clone();
    let every = Duration::from_secs(u64::from(me.duration_secs.max(4))) / 4;
    let backoff = Backoff { first: Duration::from_millis(200), longest: every };
    // One late response must not consume the time of the next renewal.
    let api = Api::new(api.client().with_deadline(every), api.collection().namespace.as_deref());
    let mut claimant = Claimant::default();
    let mut renewed = Instant::now();
    let mut failures = 0;
    loop {
        status.started("renew");
        me.clone_from(&holder.borrow());
        match renew(&api, &me, &mut claimant).await {
            Ok(Claim::Wait { holder }) => {
                failures = 0;
                tell(&held, Held::No);
                status.done(format!("held by {holder}"));
            }
            Ok(_) => {
                failures = 0;
                renewed = Instant::now();
                tell(&held, Held::Yes);
                status.done("renewed");
            }
            Err(error) => {
                failures += 1;
                if renewed.elapsed() >= Duration::from_secs(u64::from(me.duration_secs)) {
                    tell(&held, Held::No);
                }
                if matches!(error, ClientError::Deadline { .. }) {
                    // The connection may be one that swallows everything: the next try gets
                    // another.
                    api.client().reconnect();
                }
                let cause = chain(&error);
                tracing::warn!(
                    lease = me.lease,
                    failures,
                    error = cause,
                    "cannot renew the node's lease; retried"
                );
                status.failed(cause);
            }
        }
        let pause = if failures == 0 { every } else { backoff.delay(failures, rand::random()) };
        sleep(pause).await;
    }
}

/// One claim. Reads the lease only if it is unknown or another write came first.
async fn renew(
    api: &Api<Lease>,
    me: &Holder,
    claimant: &mut Claimant,
) -> Result<Claim, ClientError> {
    if !claimant.is_held_by(me) {
        let lease = api.find(&me.lease).await?;
        claimant.observe_lease(lease, Instant::now());
    }
    let claim = claimant.claim(me, wall_clock(), Instant::now());
    let written = match &claim {
        Claim::Wait { .. } => return Ok(claim),
        Claim::Create(lease) => api.create(lease, &WriteParams::default()).await,
        Claim::Update(lease) => api.update(lease, &WriteParams::default()).await,
    };
    match written {
        Ok(lease) => {
            claimant.observe_lease(Some(lease), Instant::now());
            Ok(claim)
        }
        Err(error) => {
            if error.is_conflict() || error.is_not_found() || error.is_already_exists() {
                // Another write came first: it is read before the next claim.
                claimant.forget();
            }
            Err(error)
        }
    }
}

fn tell(held: &watch::Sender<Held>, now: Held) {
    held.send_if_modified(|before| {
        let changed = *before != now;
        *before = now;
        changed
    });
}

/// The wall-clock time.
pub(crate) fn wall_clock() -> MicroTime {
    let since =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    MicroTime::from_unix_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use proto_daemon::drain::{Drain, DrainOutcome};
    use proto_daemon::statusz::StatusBoard;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{Server, skip};

    fn me() -> Holder {
        Holder { lease: "n1".into(), identity: "me".into(), duration_secs: 40, owner: None }
    }

    fn lease(holder: &str, renewed: i64) -> Lease {
        let spec = LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(40),
            renew_time: Some(MicroTime::from_unix_micros(renewed)),
            lease_transitions: Some(3),
            ..LeaseSpec::default()
        };
        Lease { spec, ..Lease::default() }
    }

    #[test]
    fn a_lease_is_created_renewed_or_waited_for() {
        let (start, wall) = (Instant::now(), MicroTime::from_unix_micros(7));
        let mut claimant = Claimant::default();
        claimant.observe_lease(None, start);
        let Claim::Create(created) = claimant.claim(&me(), wall, start) else { panic!("create") };
        assert_eq!((created.metadata.name.as_str(), created.spec.renew_time), ("n1", Some(wall)));

        claimant.observe_lease(Some(lease("me", 1)), start);
        let Claim::Update(renewed) = claimant.claim(&me(), wall, start) else { panic!("renew") };
        assert_eq!(
            (renewed.spec.renew_time, renewed.spec.lease_transitions),
            (Some(wall), Some(3))
        );

        claimant.observe_lease(Some(lease("you", 2)), start);
        assert_eq!(claimant.claim(&me(), wall, start), Claim::Wait { holder: "you".into() });
    }

    #[test]
    fn a_lease_is_owned_by_the_object_that_is_there_now() {
        let (start, wall) = (Instant::now(), MicroTime::from_unix_micros(7));
        let node = |name: &str, uid: &str| OwnerReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: name.into(),
            uid: uid.into(),
            ..OwnerReference::default()
        };
        let me = Holder { owner: Some(node("n1", "new")), ..me() };
        let mut claimant = Claimant::default();
        claimant.observe_lease(None, start);
        let Claim::Create(created) = claimant.claim(&me, wall, start) else { panic!("create") };
        assert_eq!(created.metadata.owner_references, [node("n1", "new")]);
        let mut held = lease("me", 1);
        held.metadata.owner_references = vec![node("n1", "old"), node("n2", "other")];
        claimant.observe_lease(Some(held), start);
        let Claim::Update(renewed) = claimant.claim(&me, wall, start) else { panic!("renew") };
        let owners = [node("n1", "new"), node("n2", "other")];
        assert_eq!(renewed.metadata.owner_references, owners);
    }

    #[test]
    fn another_s_lease_is_taken_only_after_it_stood_still() {
        let (start, wall) = (Instant::now(), MicroTime::from_unix_micros(7));
        let at = |secs| start + Duration::from_secs(secs);
        let mut claimant = Claimant::default();
        claimant.observe_lease(Some(lease("you", 1)), start);
        claimant.observe_lease(Some(lease("you", 2)), at(30));
        claimant.observe_lease(Some(lease("you", 2)), at(60));
        assert!(matches!(claimant.claim(&me(), wall, at(69)), Claim::Wait { .. }));
        let Claim::Update(taken) = claimant.claim(&me(), wall, at(70)) else { panic!("take") };
        assert_eq!(taken.spec.holder_identity.as_deref(), Some("me"));
        assert_eq!((taken.spec.lease_transitions, taken.spec.acquire_time), (Some(4), Some(wall)));
    }

    #[test]
    fn a_lease_with_extreme_numbers_is_taken_all_the_same() {
        let (start, wall) = (Instant::now(), MicroTime::from_unix_micros(7));
        for number in [i32::MIN, -1, 0, i32::MAX] {
            let mut theirs = lease("you", 1);
            theirs.spec.lease_duration_seconds = Some(number);
            theirs.spec.lease_transitions = Some(number);
            theirs.spec.renew_time = Some(MicroTime::from_unix_micros(i64::MAX));
            let mut claimant = Claimant::default();
            claimant.observe_lease(Some(theirs), start);
            let later = start + Duration::from_secs(DURATION_SECS_MAX);
            let Claim::Update(taken) = claimant.claim(&me(), wall, later) else { panic!("take") };
            assert!(taken.spec.lease_transitions >= Some(1), "{number}");
        }
    }

    #[tokio::test]
    async fn creates_then_renews_what_it_wrote_and_reads_again_after_a_conflict() {
        let mut server = Server::plain().await;
        let api = server.client().within::<Lease>("leases");
        let (drain, board) = (Drain::default(), StatusBoard::default());
        let (held, mut changes) = watch::channel(Held::No);
        tokio::spawn(keep(api, watch::channel(me()).1, board.task("lease"), held, drain.watch()));

        let path = "/apis/coordination.k8s.io/v1/namespaces/leases/leases";
        let asked = server.asked().await;
        assert_eq!(asked.line, format!("GET {path}/n1"));
        asked.refuse(404, "NotFound");
        let asked = server.asked().await;
        assert_eq!(asked.line, format!("POST {path}"));
        let body = |version: &str| -> Value {
            json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
                "metadata": {"name": "n1", "namespace": "leases", "resourceVersion": version},
                "spec": {"holderIdentity": "me", "leaseDurationSeconds": 40}})
        };
        asked.reply(201, &body("1"));
        changes.wait_for(|held| *held == Held::Yes).await.expect("held");
        skip(Duration::from_secs(10)).await;
        let asked = server.asked().await;
        assert_eq!(asked.line, format!("PUT {path}/n1"), "no read before a renewal");
        asked.refuse(409, "Conflict");
        let asked = server.asked().await;
        assert_eq!(asked.line, format!("GET {path}/n1"));
        asked.reply(200, &body("5"));
        server.asked().await.reply(200, &body("6"));
        assert_eq!(*changes.borrow(), Held::Yes);
        assert_eq!(drain.drain(Duration::from_secs(30)).await, DrainOutcome::Finished);
    }
}
