//! Takes what is committed in etcd into memory: a watch of the prefix, continued after a loss of the connection, or all records read anew where the
//! history in between is compacted.

use std::{sync::Arc, time::Duration};

use apiserver_store::{Change, Health, OpenError, Record, Revision, Stamp};
use etcd_client::{Event, EventType, WatchResponse, WatchStream};
use proto_daemon::{
    backoff::{Backoff, Retries},
    exit, panics,
};

use crate::{
    barrier::{LastWrite, last_write},
    client::CallError,
    load::{LoadError, load, of_etcd, record, revision},
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
    Load(#[from] LoadError),
    /// A record cannot be read.
    #[error("{}", exit::chain(.0))]
    Record(#[from] OpenError),
    #[error("etcd has ended the watch: {0}")]
    Cancelled(String),
    #[error("the connection to etcd is in doubt")]
    Doubt,
    #[error("etcd has the key {0:?}, which no record has: remove it")]
    Key(String),
    #[error(
        "this is another etcd than before: cluster {found:x} instead of {expected:x}. Start the server again"
    )]
    OtherCluster { found: u64, expected: u64 },
    #[error(
        "etcd is at revision {found}, and was at {expected}: its data is older than before. Start the server again"
    )]
    WentBack { found: Revision, expected: Revision },
    #[error("{0}")]
    Panicked(String),
}

/// Follows until the task ends.
pub async fn run<T: Record>(shared: Arc<Shared<T>>) {
    let mut retries = Retries::new(RETRY);
    let mut anew = false;
    loop {
        let following = follow(&shared, &mut retries, anew);
        let error = match panics::isolate(following).await {
            Ok(Ok(never)) => match never {},
            Ok(Err(error)) => error,
            Err(panicked) => FollowError::Panicked(panicked.to_string()),
        };
        // What cannot be read may have been removed since.
        anew = matches!(
            error,
            FollowError::Record(_) | FollowError::Key(_) | FollowError::Panicked(_)
        );
        let reason: Arc<str> = error.to_string().into();
        let before = shared.follower.set_health(Health::Refusing { reason: reason.clone() });
        if !matches!(before, Health::Refusing { reason: said } if said == reason) {
            tracing::warn!(%error, "etcd is not followed; tried again until it is");
        }
        tokio::time::sleep(retries.next_delay(rand::random())).await;
        if let Err(error) = shared.etcd.reconnect().await {
            tracing::debug!(error = exit::chain(&error), "etcd is not reached");
        }
    }
}

enum Never {}

async fn follow<T: Record>(
    shared: &Shared<T>,
    retries: &mut Retries,
    anew: bool,
) -> Result<Never, FollowError> {
    check(shared, &last_write(&shared.etcd, &shared.keys, 0).await?)?;
    if anew {
        read_anew(shared).await?;
    }
    loop {
        let mut stream = match begin(shared).await? {
            Begun::Watch(stream) => stream,
            Begun::Compacted(to) => {
                catch_up(shared, to).await?;
                continue;
            }
        };
        retries.reset();
        if shared.follower.set_health(Health::Serving) != Health::Serving {
            tracing::info!("etcd is followed again");
        }
        let compacted_to = take_events(shared, &mut stream).await?;
        catch_up(shared, compacted_to).await?;
    }
}

/// Takes events into memory until the history after them is compacted; to which revision.
async fn take_events<T: Record>(
    shared: &Shared<T>,
    stream: &mut WatchStream,
) -> Result<i64, FollowError> {
    loop {
        let response = tokio::select! {
            response = stream.message() => response.map_err(|error| CallError::of(&error))?,
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

/// Whether it is the etcd that memory is of.
fn check<T: Record>(shared: &Shared<T>, last: &LastWrite) -> Result<(), FollowError> {
    if last.cluster != shared.cluster {
        let (found, expected) = (last.cluster, shared.cluster);
        return Err(FollowError::OtherCluster { found, expected });
    }
    let expected = shared.follower.revision();
    if last.current < expected {
        return Err(FollowError::WentBack { found: last.current, expected });
    }
    Ok(())
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
    let first = first.map_err(|_| CallError::Unknown("the watch does not begin".to_owned()))?;
    match first.map_err(|error| CallError::of(&error))? {
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
    let has = shared.follower.revision();
    let at_compaction = last_write(&shared.etcd, &shared.keys, compacted_to).await;
    match at_compaction {
        // Compacted again meanwhile: the next watch says to where.
        Err(CallError::Compacted) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(last) if last.written <= has => {
            // No server had written until then: nothing was missed.
            check(shared, &last)?;
            Ok(shared.follower.apply(revision(compacted_to), Vec::new())?)
        }
        Ok(_) => {
            tracing::warn!(revision = %has, "the history of etcd after this revision is compacted; all records are read anew, and watches end");
            read_anew(shared).await
        }
    }
}

async fn read_anew<T: Record>(shared: &Shared<T>) -> Result<(), FollowError> {
    let loaded = load(&shared.etcd, &shared.keys).await?;
    shared.follower.replace(loaded.revision, loaded.records)?;
    Ok(())
}

/// Takes the events of a response into memory. etcd never parts those of a revision.
fn apply<T: Record>(shared: &Shared<T>, response: &WatchResponse) -> Result<(), FollowError> {
    let mut of_revision = Vec::new();
    let mut at = None;
    for event in response.events() {
        let modified = event.kv().map(|kv| revision(kv.mod_revision()));
        if let Some(done) = at.filter(|at| Some(*at) != modified) {
            shared.follower.apply(done, std::mem::take(&mut of_revision))?;
        }
        at = modified;
        of_revision.extend(change(shared, event)?);
    }
    match at {
        Some(at) => Ok(shared.follower.apply(at, of_revision)?),
        None => Ok(()),
    }
}

/// The change of an event; `None` for what the servers keep beside records.
fn change<T: Record>(shared: &Shared<T>, event: &Event) -> Result<Option<Change>, FollowError> {
    let Some(kv) = event.kv() else { return Ok(None) };
    if event.event_type() == EventType::Put {
        return record(&shared.keys, kv.clone()).map_err(FollowError::Key);
    }
    let Some(key) = shared.keys.record_of(kv.key()).map_err(FollowError::Key)? else {
        return Ok(None);
    };
    let Some(current) = shared.follower.current(key) else { return Ok(None) };
    let stamp = Stamp { created: current.stamp.created, modified: revision(kv.mod_revision()) };
    Ok(Some(Change { key: current.key, stamp, value: None }))
}

fn cancelled(response: &WatchResponse) -> FollowError {
    FollowError::Cancelled(response.cancel_reason().to_owned())
}
