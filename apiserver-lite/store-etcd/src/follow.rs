//! Takes what is committed in etcd into memory: a watch of the prefix, continued after a loss of the connection, or all records read again where the
//! history in between is compacted or etcd was restored.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::{sync::Arc, time::Duration};

use apiserver_store::{Change, Health, OpenError, Record, Revision, Stamp};
use etcd_client::{Event, EventType, Txn, WatchResponse, WatchStream};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use proto_daemon::{
    backoff::{Backoff, Retries},
    exit, panics,
};

use crate::{
    client::CallError,
    format::{self, PrefixError},
    history::History,
    keys::ForeignKey,
    load::{EtcdLoadError, load, record},
    marks::{Mark, last_write, put_mark},
    revisions::{of_etcd, revision},
    shared::Shared,
};

/// How long etcd may take to begin a watch.
const BEGIN: Duration = Duration::from_secs(5);
const RETRY: Backoff =
    Backoff { first: Duration::from_millis(50), longest: Duration::from_secs(2) };

/// Why following ended. It begins again.
#[derive(Debug, thiserror::Error)]
enum FollowError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("{0}")]
    Load(#[from] EtcdLoadError),
    /// A record cannot be read.
    #[error("{}", exit::chain(.0))]
    Record(#[from] OpenError),
    #[error("etcd has ended the watch: {0}")]
    Cancelled(String),
    #[error("a write to etcd has an unknown outcome; the connection is re-established")]
    Doubt,
    #[error(transparent)]
    Key(#[from] ForeignKey),
    /// What is there now is not this server's.
    #[error(transparent)]
    Prefix(#[from] PrefixError),
    #[error(
        "etcd is at revision {found}, and was at {seen}: it was restored, from too long ago to go on. Restore it with --bump-revision, or stop all servers \
         and start them again, and then all their clients"
    )]
    TooOld { found: Revision, seen: Revision },
    #[error("{0}")]
    Panicked(String),
}

/// Follows until the task ends.
pub async fn run<T: Record>(shared: Arc<Shared<T>>) {
    let mut retries = Retries::new(RETRY);
    let mut reload = false;
    loop {
        let following = follow(&shared, &mut retries, reload);
        let error = match panics::isolate(following).await {
            Ok(Ok(never)) => match never {},
            Ok(Err(error)) => error,
            Err(panicked) => FollowError::Panicked(panicked.to_string()),
        };
        // What cannot be read may have been removed since.
        reload = matches!(
            error,
            FollowError::Record(_) | FollowError::Key(_) | FollowError::Panicked(_)
        );
        let reason: Arc<str> = error.to_string().into();
        let before = shared.follower.set_health(Health::Refusing { reason: reason.clone() });
        if !matches!(before, Health::Refusing { reason: said } if said == reason) {
            tracing::warn!(%error, "the watch of etcd failed; writes are rejected until it is restored");
        }
        tokio::time::sleep(retries.next_delay(rand::random())).await;
        if let Err(error) = shared.etcd.reconnect().await {
            tracing::debug!(error = exit::chain(&error), "cannot connect to etcd; retried");
        }
    }
}

enum Never {}

async fn follow<T: Record>(
    shared: &Shared<T>,
    retries: &mut Retries,
    reload: bool,
) -> Result<Never, FollowError> {
    if reload {
        match shared.compare_history().await? {
            History::Other { found, current } => {
                begin_after_restore(shared, &found, current).await?;
            }
            _ => reload_records(shared).await?,
        }
    }
    loop {
        let mut stream = match begin(shared).await? {
            Begun::Watch(stream) => stream,
            Begun::Compacted(to) => {
                catch_up(shared, to).await?;
                continue;
            }
        };
        match shared.compare_history().await? {
            History::Same => {
                retries.reset();
                if shared.follower.set_health(Health::Serving) != Health::Serving {
                    tracing::info!("the watch of etcd is restored");
                }
            }
            History::Compacted => {}
            History::Missed => {
                read_missed(shared).await?;
                continue;
            }
            History::Other { found, current } => {
                begin_after_restore(shared, &found, current).await?;
                continue;
            }
        }
        let compacted_to = take_events(shared, &mut stream).await?;
        catch_up(shared, compacted_to).await?;
    }
}

/// Touches at a time, and most of them: etcd does some thousands a second.
const TOUCHES_AT_ONCE: usize = 128;
const TOUCHES_MAX: u64 = 200_000;

/// Takes over what a restored etcd has. Its revisions are first brought beyond all that clients have seen of this server: with a revision of before
/// nothing can be read or watched then, and none is given out twice.
async fn begin_after_restore<T: Record>(
    shared: &Shared<T>,
    found: &Mark,
    current: Revision,
) -> Result<(), FollowError> {
    format::check_kept(&shared.etcd, &shared.keys, &shared.identity).await?;
    let (seen, last) = (shared.follower.revision(), shared.last_seen());
    let missing = seen.next().0.saturating_sub(current.0);
    if missing > TOUCHES_MAX {
        return Err(FollowError::TooOld { found: current, seen });
    }
    let touches =
        (0..missing).map(|_| shared.etcd.txn(Txn::new().and_then([put_mark(&shared.keys)])));
    let touched = stream::iter(touches).buffer_unordered(TOUCHES_AT_ONCE);
    touched.try_for_each(|_| std::future::ready(Ok(()))).await?;
    shared.note_restore();
    reload_records(shared).await?;
    tracing::error!(
        "etcd was restored to an older state: this server had write {last}, etcd says {found}. What was written in between is lost; all objects are read \
         again at revision {}, and watches end",
        shared.follower.revision()
    );
    Ok(())
}

/// Takes events into memory until the history after them is compacted; to which revision.
async fn take_events<T: Record>(
    shared: &Shared<T>,
    stream: &mut WatchStream,
) -> Result<i64, FollowError> {
    loop {
        let response = tokio::select! {
            response = stream.message() => response.map_err(|error| CallError::from_error(&error))?,
            () = shared.doubted.notified() => return Err(FollowError::Doubt),
        };
        match response {
            Some(response) if response.compact_revision() > 0 => {
                return Ok(response.compact_revision());
            }
            Some(response) if response.canceled() => return Err(cancelled(&response)),
            Some(response) => apply(shared, &response)?,
            None => return Err(FollowError::Cancelled("its stream has ended".to_owned())),
        }
    }
}

/// What became of a new watch. etcd may also say later that its position is compacted.
enum Begun {
    Watch(Box<WatchStream>),
    Compacted(i64),
}

/// Begins a watch after what memory has.
async fn begin<T: Record>(shared: &Shared<T>) -> Result<Begun, FollowError> {
    let from = of_etcd(shared.follower.revision()).saturating_add(1);
    let mut stream = shared.etcd.watch(&shared.keys.root(), from).await?;
    let first = tokio::time::timeout(BEGIN, stream.message()).await;
    let first = first.map_err(|_| {
        CallError::Unknown("etcd did not confirm the watch before the deadline".to_owned())
    })?;
    match first.map_err(|error| CallError::from_error(&error))? {
        Some(response) if response.compact_revision() > 0 => {
            Ok(Begun::Compacted(response.compact_revision()))
        }
        Some(response) if response.canceled() => Err(cancelled(&response)),
        Some(response) if response.created() => Ok(Begun::Watch(Box::new(stream))),
        _ => Err(FollowError::Cancelled("it does not begin".to_owned())),
    }
}

/// Brings memory up to date where the history after it is compacted to a revision.
async fn catch_up<T: Record>(shared: &Shared<T>, compacted_to: i64) -> Result<(), FollowError> {
    let at_compaction = last_write(&shared.etcd, &shared.keys, revision(compacted_to)).await;
    match at_compaction {
        // Compacted again meanwhile: the next watch says to where.
        Err(CallError::Compacted) => Ok(()),
        Err(error) => Err(error.into()),
        // No server had written until then: nothing was missed.
        Ok(last) if last.mark == shared.last_seen() => {
            Ok(shared.follower.apply(revision(compacted_to), Vec::new())?)
        }
        Ok(last) if last.mark.revision < shared.last_seen().revision => {
            begin_after_restore(shared, &last.mark, last.current).await
        }
        Ok(_) => read_missed(shared).await,
    }
}

async fn read_missed<T: Record>(shared: &Shared<T>) -> Result<(), FollowError> {
    let has = shared.follower.revision();
    tracing::warn!(revision = %has, "etcd has compacted the history after this revision; all records are listed again, and watches of clients end");
    reload_records(shared).await
}

async fn reload_records<T: Record>(shared: &Shared<T>) -> Result<(), FollowError> {
    let loaded = load(&shared.etcd, &shared.keys).await?;
    shared.follower.replace(loaded.revision, loaded.records)?;
    shared.set_last_seen(loaded.last);
    Ok(())
}

/// Takes the events of a response into memory. etcd never parts those of a revision.
fn apply<T: Record>(shared: &Shared<T>, response: &WatchResponse) -> Result<(), FollowError> {
    let mut of_revision = Vec::new();
    let (mut at, mut last) = (None, None);
    for event in response.events() {
        let modified = event.kv().map(|kv| revision(kv.mod_revision()));
        if let Some(done) = at.filter(|at| Some(*at) != modified) {
            apply_revision(shared, done, std::mem::take(&mut of_revision), last.take())?;
        }
        at = modified;
        last = mark(shared, event).or(last);
        of_revision.extend(change(shared, event)?);
    }
    match at {
        Some(at) => apply_revision(shared, at, of_revision, last),
        None => Ok(()),
    }
}

/// Takes the changes of a revision into memory, and the mark of their write.
fn apply_revision<T: Record>(
    shared: &Shared<T>,
    at: Revision,
    changes: Vec<Change>,
    mark: Option<Mark>,
) -> Result<(), FollowError> {
    shared.follower.apply(at, changes)?;
    mark.into_iter().for_each(|mark| shared.set_last_seen(mark));
    Ok(())
}

/// The mark of a write, if the event is that of the key which has it.
fn mark<T: Record>(shared: &Shared<T>, event: &Event) -> Option<Mark> {
    let kv = event.kv().filter(|kv| kv.key() == shared.keys.last().as_bytes())?;
    Some(Mark::from_key_value(kv))
}

/// The change of an event; `None` for what the servers keep beside records.
fn change<T: Record>(shared: &Shared<T>, event: &Event) -> Result<Option<Change>, FollowError> {
    let Some(kv) = event.kv() else { return Ok(None) };
    if event.event_type() == EventType::Put {
        return Ok(record(&shared.keys, kv.clone())?);
    }
    let Some(key) = shared.keys.record_of(kv.key())? else { return Ok(None) };
    let Some(current) = shared.follower.current(key) else { return Ok(None) };
    let stamp = Stamp { created: current.stamp.created, modified: revision(kv.mod_revision()) };
    Ok(Some(Change { key: current.key, stamp, value: None }))
}

fn cancelled(response: &WatchResponse) -> FollowError {
    FollowError::Cancelled(response.cancel_reason().to_owned())
}
