//! Opens the store and runs its tasks: following, transactions, barriers and compactions.

use std::{
    sync::{Arc, Mutex, atomic::AtomicU64},
    time::Duration,
};

use apiserver_store::{
    Follower, NotSynced, OnDisk, PrepareRestore, Record, Store, StoreConfig, WriterRequest,
};
use proto_daemon::{exit, panics};
use tokio::{
    sync::{Notify, Semaphore, mpsc, oneshot},
    task::JoinSet,
    time::Instant,
};

use crate::{
    barrier,
    client::{Etcd, EtcdConnectError},
    compaction,
    config::EtcdConfig,
    follow,
    format::{self, PrefixError},
    keys::Keys,
    load::{EtcdLoadError, load},
    shared::Shared,
};

/// Transactions at a time.
const WRITES_MAX: u32 = 256;
/// Time between two attempts to open.
const OPEN_WAIT: Duration = Duration::from_millis(500);

/// Why a store in etcd does not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenEtcdError {
    /// There is no connection.
    #[error("connect to etcd at {servers}")]
    Connect {
        /// Its members.
        servers: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// What is below the prefix is not this server's.
    #[error(transparent)]
    Prefix(#[from] PrefixError),
    /// The records cannot be read.
    #[error(transparent)]
    Load(#[from] EtcdLoadError),
    /// A record cannot be restored.
    #[error(transparent)]
    Store(#[from] apiserver_store::OpenError),
    /// The prefix cannot be one.
    #[error("prefix {0:?} in etcd: expected /NAME, or several of them")]
    BadPrefix(String),
}

/// Opens the store that `etcd` keeps, and follows it until the store is closed. `prepare` is called on each record as it comes from there; the medium in
/// `config` is not used. Called within a runtime, which runs the store's tasks.
///
/// # Errors
/// etcd is not reached in time, has something else below the prefix, or a record that cannot be restored.
pub async fn open<T: Record>(
    etcd: EtcdConfig,
    config: StoreConfig,
    prepare: PrepareRestore<T>,
) -> Result<Store<T>, OpenEtcdError> {
    let is_prefix = etcd.prefix.starts_with('/')
        && !etcd.prefix.trim_end_matches('/').is_empty()
        && !etcd.prefix.contains("//")
        && !etcd.prefix.contains("/.");
    if !is_prefix {
        return Err(OpenEtcdError::BadPrefix(etcd.prefix));
    }
    let keys = Keys::new(&etcd.prefix);
    let (interval, servers) = (etcd.compaction_interval, etcd.servers.join(", "));
    let until = Instant::now() + etcd.patience;
    let (etcd, loaded) = loop {
        let opened = connect_and_load(&etcd, &keys, &config).await;
        match opened {
            Err(error) if is_transient(&error) && Instant::now() < until => {
                tracing::info!(error = exit::chain(&error), "cannot connect to etcd; retried");
                tokio::time::sleep(OPEN_WAIT).await;
            }
            outcome => break outcome?,
        }
    };
    let identity = config.identity.clone();
    let (store, follower, requests) =
        Follower::start(config, prepare, loaded.revision, loaded.records)?;
    let (last, restores) = (Mutex::new(loaded.last), AtomicU64::new(0));
    let doubted = Notify::new();
    let shared = Arc::new(Shared { etcd, keys, identity, follower, last, restores, doubted });
    tracing::info!(servers, revision = %loaded.revision, "loaded all records from etcd");
    tokio::spawn(run(shared, requests, interval));
    Ok(store)
}

async fn connect_and_load(
    config: &EtcdConfig,
    keys: &Keys,
    store: &StoreConfig,
) -> Result<(Etcd, crate::load::Loaded), OpenEtcdError> {
    let connecting = Etcd::connect(config.clone()).await;
    let etcd = connecting.map_err(|source| OpenEtcdError::Connect {
        servers: config.servers.join(", "),
        source: source.into(),
    })?;
    format::check(&etcd, keys, &store.identity).await?;
    let loaded = load(&etcd, keys).await?;
    Ok((etcd, loaded))
}

fn is_transient(error: &OpenEtcdError) -> bool {
    use crate::client::CallError;
    match error {
        OpenEtcdError::Connect { source, .. } => !matches!(
            source.downcast_ref::<EtcdConnectError>(),
            Some(
                EtcdConnectError::Setting(_)
                    | EtcdConnectError::File { .. }
                    | EtcdConnectError::Etcd(CallError::Refused(_))
            )
        ),
        OpenEtcdError::Prefix(PrefixError::Call(error))
        | OpenEtcdError::Load(EtcdLoadError::Call(error)) => {
            matches!(error, CallError::Unknown(_) | CallError::Unsent(_))
        }
        _ => false,
    }
}

/// Answers requests until the store is closed, or until its last clone is dropped.
async fn run<T: Record>(
    shared: Arc<Shared<T>>,
    mut requests: mpsc::Receiver<WriterRequest<T>>,
    interval: Duration,
) {
    let (syncs, to_sync) = mpsc::channel(barrier::WAITING_MAX);
    let mut tasks = JoinSet::new();
    tasks.spawn(follow::run(shared.clone()));
    tasks.spawn(barrier::run(shared.clone(), to_sync));
    tasks.spawn(compaction::run(shared.clone(), interval));
    let turns = Arc::new(Semaphore::new(WRITES_MAX as usize));
    let closer = serve(&shared, &mut requests, &syncs, &turns).await;
    requests.close();
    // Those that are under way are answered.
    let _ = turns.acquire_many(WRITES_MAX).await;
    tasks.shutdown().await;
    drop(shared);
    if let Some(closer) = closer {
        let _ = closer.send(());
    }
}

/// Starts what is asked for; ends with a request to close.
async fn serve<T: Record>(
    shared: &Arc<Shared<T>>,
    requests: &mut mpsc::Receiver<WriterRequest<T>>,
    syncs: &mpsc::Sender<barrier::Waiter>,
    turns: &Arc<Semaphore>,
) -> Option<oneshot::Sender<()>> {
    loop {
        match requests.recv().await? {
            WriterRequest::Sync(at_least, answer) => {
                if let Err(refused) = syncs.try_send((at_least, answer)) {
                    let (_, answer) = refused.into_inner();
                    drop(answer.send(Err(NotSynced("too many requests wait for etcd".into()))));
                }
            }
            WriterRequest::Replace(_, answer) => drop(answer.send(Err(OnDisk))),
            WriterRequest::Close(answer) => return Some(answer),
            WriterRequest::Write(write, answer) => {
                let (shared, turn) = (shared.clone(), turns.clone().acquire_owned().await.ok()?);
                drop(panics::spawn(async move {
                    // The caller may be gone; what is committed stays.
                    let _ = answer.send(shared.write(write).await);
                    drop((shared, turn));
                }));
            }
            WriterRequest::WriteAll(writes, answer) => {
                let (shared, turn) = (shared.clone(), turns.clone().acquire_owned().await.ok()?);
                drop(panics::spawn(async move {
                    let _ = answer.send(shared.write_all(writes).await);
                    drop((shared, turn));
                }));
            }
        }
    }
}
