//! Pulls of images with credentials, shared between pods, and limited in number and rate.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent_node::image_gc::ImageUses;
use agent_node::image_name::ImageName;
use agent_node::keyring::Login;
use agent_runtime::runtime::RegistryLogin;
use agent_runtime::{ImageRuntime, PodReader, Runtime};
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use proto_api::core::v1::Pod;
use proto_daemon::panics;
use proto_daemon::rate::Rate;

use crate::credentials::CredentialSources;
use crate::pull_queue::{KEPT_FROM_OTHERS, PullOrigin, PullSlots, Rank};
use crate::pull_stall::Watch;
use agent_clock as clock;
use agent_interfaces::PodObjects;

/// Pulls and removes images. Pods that want the same image with the same credentials share a pull.
pub struct Images {
    pub(crate) runtime: Arc<dyn ImageRuntime>,
    /// Says which images have containers.
    pub(crate) pods: Arc<dyn PodReader>,
    logins: CredentialSources,
    slots: PullSlots,
    /// How long a pull may make no progress before it is cancelled.
    standstill: Duration,
    fetching: Fetching,
    rate: Mutex<Rate>,
    under_way: Mutex<BTreeMap<PullKey, (Pull, Rank)>>,
    pub(crate) uses: Mutex<ImageUses>,
    /// The runtime's image filesystem once known; it does not change while the runtime runs.
    pub(crate) filesystem: Mutex<Option<PathBuf>>,
    /// Full names of imported images, which are kept as long as their archive.
    pub(crate) imported: Mutex<BTreeSet<String>>,
}

/// An image with credentials: pods share a pull only if both are equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PullKey {
    image: String,
    logins: Vec<Login>,
}

type Pull = Shared<BoxFuture<'static, Result<String, PullError>>>;

/// The pods of the node, as far as their images matter.
pub trait PodImages: Send + Sync {
    /// Images that pods of the node need, as named in their specs, and the sandbox image.
    fn image_names(&self) -> Vec<String>;
    /// Wakes all pods, since one may have waited for an image that is present now.
    fn wake_pods(&self);
}

/// Why an image could not be pulled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullError {
    /// Reason of the waiting container.
    pub reason: &'static str,
    /// The message for users.
    pub message: String,
}

/// Why a pull with one login failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum FetchError {
    /// In the words of the runtime.
    #[error("{0}")]
    Runtime(String),
    #[error("pull of {image:?} was cancelled: no progress for {after}")]
    Stalled { image: String, after: String },
}

/// Limits of pulls.
#[derive(Clone, Copy, Debug)]
pub struct PullBounds {
    /// Concurrent pulls.
    pub parallel: usize,
    /// Pulls started per second in the long run; 0 is unlimited.
    pub qps: u32,
    /// Pulls that may start at once.
    pub burst: u32,
    /// How long one may make no progress before it is cancelled.
    pub standstill: Duration,
}

impl Images {
    /// `logins` are tried in their order; the pulls keep to `bounds`.
    pub fn new(
        runtime: Arc<dyn Runtime>,
        logins: CredentialSources,
        bounds: PullBounds,
    ) -> Arc<Self> {
        Arc::new(Self {
            pods: runtime.clone(),
            runtime,
            logins,
            slots: PullSlots::new(bounds.parallel),
            standstill: bounds.standstill,
            fetching: Fetching::default(),
            rate: Mutex::new(Rate::new(bounds.qps, bounds.burst)),
            under_way: Mutex::default(),
            uses: Mutex::default(),
            filesystem: Mutex::default(),
            imported: Mutex::default(),
        })
    }

    /// Pulls an image for a pod and returns its id. A pull in flight is shared, and continues after
    /// its caller is cancelled, so that the next caller finds it further on.
    ///
    /// # Errors
    /// The reason and message that the waiting container shows.
    pub async fn pull(
        self: &Arc<Self>,
        image: &str,
        pod: &Pod,
        objects: &PodObjects,
    ) -> Result<String, PullError> {
        let name = parse(image)?;
        let logins = self.logins.find(&name.repository, pod, objects).await;
        let wanted = PullKey { image: image.to_owned(), logins };
        let priority = pod.spec.priority.unwrap_or(0);
        let pull = {
            let mut under_way = lock(&self.under_way);
            match under_way.get(&wanted) {
                Some((pull, rank)) => {
                    rank.raise(priority);
                    pull.clone()
                }
                None => {
                    let rank = Rank::new(priority);
                    let (registry, namespace) = (name.registry(), &pod.metadata.namespace);
                    let origin =
                        PullOrigin { registry: registry.to_owned(), namespace: namespace.clone() };
                    let pull = self.begin(wanted.clone(), origin, rank.clone());
                    under_way.insert(wanted, (pull.clone(), rank));
                    pull
                }
            }
        };
        pull.await
    }

    /// Number of running and waiting pulls.
    pub fn pulls(&self) -> usize {
        lock(&self.under_way).len()
    }

    fn begin(self: &Arc<Self>, wanted: PullKey, origin: PullOrigin, rank: Rank) -> Pull {
        let images = self.clone();
        let task = panics::spawn(async move {
            let under_way = UnderWay { images: &images, wanted };
            let slot = images.slots.take(origin, rank).await;
            tokio::select! {
                biased;
                fetched = images.fetch(&under_way.wanted) => fetched,
                () = slot.is_needed_by_others() => Err(PullError::overlong(&under_way.wanted.image)),
            }
        });
        async move {
            task.await.unwrap_or_else(|error| {
                Err(PullError::failed(format!("the pull panicked: {error}")))
            })
        }
        .boxed()
        .shared()
    }

    async fn fetch(&self, wanted: &PullKey) -> Result<String, PullError> {
        let pause = lock(&self.rate).take(clock::boot());
        tokio::time::sleep(pause).await;
        let mut errors = Vec::new();
        let logins = wanted.logins.iter().take(LOGINS_MAX);
        let logins = logins.map(|login| Some(registry_login(login)));
        let anonymous = wanted.logins.is_empty().then_some(None);
        for login in logins.chain(anonymous) {
            match self.watched(&wanted.image, login.as_ref()).await {
                Ok(id) => return Ok(id),
                Err(error) => errors.push(error),
            }
        }
        errors.dedup();
        let texts: Vec<String> = errors.iter().map(FetchError::to_string).collect();
        Err(PullError::failed(texts.join("; ")))
    }

    /// Runs one pull and cancels it if it makes no progress.
    async fn watched(
        &self,
        image: &str,
        login: Option<&RegistryLogin>,
    ) -> Result<String, FetchError> {
        // If the runtime does not report progress, the next check asks again.
        let arrivals = || async { self.runtime.pull_progress().await.unwrap_or_default() };
        let mut watch = Watch::new(self.standstill, arrivals().await);
        let (turn, mut waited) = (self.fetching.begin(), Duration::ZERO);
        let pull = self.runtime.pull_image(image, login);
        tokio::pin!(pull);
        loop {
            // Cancel safe: the pull is polled again.
            tokio::select! {
                biased;
                pulled = &mut pull => return pulled.map_err(|error| FetchError::Runtime(error.message())),
                () = tokio::time::sleep(watch.pause()) => {
                    waited = waited.saturating_add(watch.pause());
                }
            }
            let stands = watch.is_stalled(arrivals().await, self.fetching.number(), waited);
            if stands && turn.is_first() {
                let after = proto_daemon::go_duration::format(self.standstill);
                return Err(FetchError::Stalled { image: image.to_owned(), after });
            }
        }
    }

    /// Whether an image was imported from the import directory.
    pub fn is_imported(&self, image: &str) -> bool {
        let name = ImageName::parse(image).map(|name| name.full());
        name.is_ok_and(|name| lock(&self.imported).contains(&name))
    }

    /// Full names of images that are being pulled or were imported.
    pub(crate) fn list_protected(&self) -> BTreeSet<String> {
        let pulled: Vec<String> =
            lock(&self.under_way).keys().map(|wanted| wanted.image.clone()).collect();
        let pulled = pulled.iter().filter_map(|image| Some(ImageName::parse(image).ok()?.full()));
        pulled.chain(lock(&self.imported).iter().cloned()).collect()
    }
}

/// Keeps a pull in the list until it ends or panics; the next caller then starts a new one.
struct UnderWay<'a> {
    images: &'a Images,
    wanted: PullKey,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        lock(&self.images.under_way).remove(&self.wanted);
    }
}

/// The pulls running in the runtime, in order of their start.
#[derive(Debug, Default)]
struct Fetching {
    begun: AtomicU64,
    turns: Mutex<BTreeSet<u64>>,
}

/// One of them.
struct FetchGuard<'a> {
    all: &'a Fetching,
    number: u64,
}

impl Fetching {
    fn begin(&self) -> FetchGuard<'_> {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        lock(&self.turns).insert(number);
        FetchGuard { all: self, number }
    }

    fn number(&self) -> usize {
        lock(&self.turns).len()
    }
}

impl FetchGuard<'_> {
    fn is_first(&self) -> bool {
        lock(&self.all.turns).first() == Some(&self.number)
    }
}

impl Drop for FetchGuard<'_> {
    fn drop(&mut self) {
        lock(&self.all.turns).remove(&self.number);
    }
}

impl PullError {
    fn overlong(image: &str) -> Self {
        let after = proto_daemon::go_duration::format(KEPT_FROM_OTHERS);
        Self::failed(format!(
            "pull of {image:?} was cancelled: it ran for more than {after} and other pulls wait; it goes on when it is retried"
        ))
    }

    fn failed(mut message: String) -> Self {
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES));
        Self { reason: "ErrImagePull", message }
    }
}

/// Parses an image reference.
///
/// # Errors
/// `InvalidImageName`, as the waiting container shows it.
pub fn parse(image: &str) -> Result<ImageName, PullError> {
    ImageName::parse(image).map_err(|error| PullError {
        reason: "InvalidImageName",
        message: format!(
            "Failed to apply default image tag {image:?}: couldn't parse image reference {image:?}: {error}"
        ),
    })
}

fn registry_login(login: &Login) -> RegistryLogin {
    RegistryLogin {
        username: login.username.clone(),
        password: login.password.clone(),
        // The registry was chosen here; the runtime may use mirrors.
        server: String::new(),
        identity_token: login.identity_token.clone(),
        registry_token: login.registry_token.clone(),
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Most logins tried for one pull, which holds a slot meanwhile; a pod's secrets may hold
/// thousands.
const LOGINS_MAX: usize = 64;
/// Longest message of a failed pull; registries choose their text, once per login.
const MESSAGE_BYTES: usize = 4096;

#[cfg(test)]
mod tests;
