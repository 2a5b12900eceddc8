//! Plugin registration: sockets in the registration directory.
//!
//! Each socket's plugin is queried with GetInfo; a CSI driver's capabilities are queried, it is added to the CSINode object, and
//! notified of its registration. A plugin that does not respond is retried while its socket exists, without delaying others.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_host::directory_watch::DirectoryWatch;
use agent_volume::private_dirs;
use futures_util::future::BoxFuture;
use proto_daemon::backoff::Backoff;
use proto_daemon::exit::chain;
use proto_grpc::plugin_registration::v1 as wire;
use proto_grpc::plugin_registration::v1::registration_client::RegistrationClient;
use tokio::task::JoinSet;

use crate::driver::{ASK, CallError, Driver, call, connect, text};
use crate::drivers::Drivers;

/// Plugin type of CSI drivers.
const DRIVER: &str = "CSIPlugin";
/// Delays between attempts to register a plugin.
const RETRY: Backoff =
    Backoff { first: Duration::from_millis(200), longest: Duration::from_secs(30) };
/// Most sockets in the directory; further ones are ignored.
const SOCKETS_MAX: usize = 256;
/// Longest interval between reads of the directory, in case a change notification was missed.
const LOOK_PERIOD: Duration = Duration::from_secs(60);

/// Why a plugin is not registered. The plugin gets the error with NotifyRegistrationStatus; registration is retried while its socket exists.
#[derive(Debug, thiserror::Error)]
pub enum RegistrationError {
    /// It did not answer.
    #[error("GetInfo of the plugin failed")]
    Info(#[source] CallError),
    /// Its name cannot be part of paths and object names.
    #[error("invalid driver name {0:?}")]
    Name(String),
    /// It has no version that the agent speaks.
    #[error("versions {0:?} are not supported, only 1.x")]
    Versions(Vec<String>),
    /// The driver did not answer.
    #[error("cannot query driver {driver}")]
    Capabilities {
        /// Its name.
        driver: String,
        /// Its answer.
        #[source]
        error: CallError,
    },
    /// The driver answered, and is not published.
    #[error("cannot publish driver {driver} in CSINode")]
    NotAnnounced {
        /// Its name.
        driver: String,
        /// Why.
        #[source]
        error: AnnounceError,
    },
    /// A plugin of another type was not taken in.
    #[error(transparent)]
    Other(AnnounceError),
}

/// Why a plugin is not announced.
#[derive(Debug, thiserror::Error)]
pub enum AnnounceError {
    /// The objects of the cluster cannot be read or written; this may pass.
    #[error(transparent)]
    Objects(Box<dyn std::error::Error + Send + Sync>),
    /// The driver would change a label of the node. The driver or the label has to change.
    #[error(
        "driver {driver} reports {key}={reported:?} for the node, whose label is {key}={known:?}"
    )]
    Label {
        driver: String,
        /// Key of the label.
        key: String,
        /// Value of the driver.
        reported: String,
        /// Value of the Node object.
        known: String,
    },
    /// A plugin of another type is refused by what would use it.
    #[error(transparent)]
    Refused(Box<dyn std::error::Error + Send + Sync>),
}

/// Publishes drivers in the cluster.
pub trait DriverAnnouncer: Send + Sync {
    /// A driver was registered.
    fn driver_registered<'a>(
        &'a self,
        driver: &'a Driver,
    ) -> BoxFuture<'a, Result<(), AnnounceError>>;
    /// A driver was removed.
    fn driver_removed<'a>(&'a self, name: &'a str) -> BoxFuture<'a, ()>;
    /// A plugin of another type was found; `None` if its type is not supported.
    fn other_plugin_registered<'a>(
        &'a self,
        _: &'a OtherPlugin,
    ) -> BoxFuture<'a, Option<Result<(), AnnounceError>>> {
        Box::pin(std::future::ready(None))
    }
}

/// A plugin that is not a CSI driver, as it describes itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtherPlugin {
    /// Its type, such as `DevicePlugin`.
    pub kind: String,
    pub name: String,
    /// Path of its socket.
    pub endpoint: PathBuf,
    /// Versions of its API.
    pub versions: Vec<String>,
}

/// Identity of a socket file; a new file of the same name differs.
type Identity = (u64, u64, i64, i64);

enum DriverProbe {
    /// Registration in progress, after this number of failures.
    Registering(u32),
    /// Failed this often; retried at that time.
    Failed(tokio::time::Instant, u32),
    /// A registered driver of that name.
    Driver(String),
    /// A plugin of another type.
    Other,
}

struct RegistrationOutcome {
    path: PathBuf,
    identity: Identity,
    result: Result<Option<String>, RegistrationError>,
}

/// Follows the directory, which is created if missing, until the future is dropped.
pub async fn run(
    dir: PathBuf,
    drivers: Drivers,
    announce: Arc<dyn DriverAnnouncer>,
    change: Duration,
) {
    // A process that can create a socket there would receive secrets of volumes.
    while let Err(error) = private_dirs::make(&dir) {
        tracing::error!(dir = %dir.display(), %error, "plugins are not registered: the registration directory cannot be made private; retrying");
        tokio::time::sleep(LOOK_PERIOD).await;
    }
    let watch = DirectoryWatch::new(&dir, "plugin registration directory");
    let mut known: BTreeMap<PathBuf, (Identity, DriverProbe)> = BTreeMap::new();
    let mut under_way: JoinSet<RegistrationOutcome> = JoinSet::new();
    loop {
        let here = sockets(&dir);
        let all: Vec<PathBuf> = known.keys().cloned().collect();
        for path in all {
            let same =
                known.get(&path).is_some_and(|(identity, _)| here.get(&path) == Some(identity));
            if !same && let Some((_, DriverProbe::Driver(name))) = known.remove(&path) {
                remove_driver(&name, &known, &drivers, &*announce).await;
            }
        }
        let now = tokio::time::Instant::now();
        let mut wake = now + LOOK_PERIOD;
        for (path, identity) in here {
            let failures = match known.get(&path) {
                None => 0,
                Some((_, DriverProbe::Failed(at, failures))) if *at <= now => *failures,
                Some((_, DriverProbe::Failed(at, _))) => {
                    wake = wake.min(*at);
                    continue;
                }
                Some(_) => continue,
            };
            let (drivers, announce) = (drivers.clone(), announce.clone());
            known.insert(path.clone(), (identity, DriverProbe::Registering(failures)));
            under_way.spawn(async move {
                let result = register(&path, &drivers, &*announce, change).await;
                if let Err(error) = &result {
                    tracing::warn!(socket = %path.display(), error = chain(error), failures, "plugin registration failed; retrying");
                }
                RegistrationOutcome { path, identity, result }
            });
        }
        // All branches are cancel safe.
        tokio::select! {
            () = watch.changed() => {}
            () = tokio::time::sleep_until(wake) => {}
            Some(done) = under_way.join_next(), if !under_way.is_empty() => {
                if let Ok(asked) = done {
                    probe_and_register(&mut known, asked);
                }
            }
        }
    }
}

fn probe_and_register(
    known: &mut BTreeMap<PathBuf, (Identity, DriverProbe)>,
    asked: RegistrationOutcome,
) {
    let Some((identity, state)) = known.get_mut(&asked.path) else { return };
    if *identity != asked.identity {
        return;
    }
    *state = match asked.result {
        Ok(Some(name)) => DriverProbe::Driver(name),
        Ok(None) => DriverProbe::Other,
        Err(_) => {
            let failures =
                if let DriverProbe::Registering(failures) = state { *failures + 1 } else { 1 };
            DriverProbe::Failed(tokio::time::Instant::now() + RETRY.delay(failures, 1.0), failures)
        }
    };
}

/// Removes a driver unless another socket serves it too, as during an update of the driver.
async fn remove_driver(
    name: &str,
    known: &BTreeMap<PathBuf, (Identity, DriverProbe)>,
    drivers: &Drivers,
    announce: &dyn DriverAnnouncer,
) {
    let other =
        |(_, state): &(Identity, DriverProbe)| matches!(state, DriverProbe::Driver(n) if n == name);
    if known.values().any(other) {
        return;
    }
    tracing::info!(driver = name, "CSI driver removed");
    drivers.remove(name);
    announce.driver_removed(name).await;
}

/// Queries the plugin at a socket and registers it; returns the driver's name, or `None` for another type.
async fn register(
    socket: &Path,
    drivers: &Drivers,
    announce: &dyn DriverAnnouncer,
    change: Duration,
) -> Result<Option<String>, RegistrationError> {
    let mut client = RegistrationClient::new(connect(socket));
    let info = call(ASK, wire::InfoRequest {}, |r| client.get_info(r)).await;
    let info = info.map_err(RegistrationError::Info)?;
    let result = if info.r#type == DRIVER {
        add_driver(socket, &info, drivers, announce, change).await.map(|()| Some(info.name.clone()))
    } else {
        let other = OtherPlugin {
            endpoint: endpoint(socket, &info),
            kind: info.r#type,
            name: info.name.clone(),
            versions: info.supported_versions,
        };
        match announce.other_plugin_registered(&other).await {
            None => return Ok(None),
            Some(taken) => taken.map(|()| None).map_err(RegistrationError::Other),
        }
    };
    let status = wire::RegistrationStatus {
        plugin_registered: result.is_ok(),
        error: result.as_ref().err().map(|error| chain(error)).unwrap_or_default(),
    };
    let notified = call(ASK, status, |r| client.notify_registration_status(r)).await;
    if let Err(error) = notified {
        tracing::warn!(plugin = info.name, %error, "cannot notify a plugin of its registration");
    }
    result
}

/// Path of the plugin's service: the socket itself, unless the plugin names another.
fn endpoint(socket: &Path, info: &wire::PluginInfo) -> PathBuf {
    let named = if info.endpoint.is_empty() { text(socket) } else { info.endpoint.clone() };
    PathBuf::from(named.strip_prefix("unix://").unwrap_or(&named))
}

async fn add_driver(
    socket: &Path,
    info: &wire::PluginInfo,
    drivers: &Drivers,
    announce: &dyn DriverAnnouncer,
    change: Duration,
) -> Result<(), RegistrationError> {
    check(info)?;
    let endpoint = endpoint(socket, info);
    let driver = Driver::query(&info.name, &endpoint, change).await;
    let name = || info.name.clone();
    let driver =
        driver.map_err(|error| RegistrationError::Capabilities { driver: name(), error })?;
    let announced = announce.driver_registered(&driver).await;
    announced.map_err(|error| RegistrationError::NotAnnounced { driver: name(), error })?;
    tracing::info!(driver = driver.name, node_id = driver.info.node_id, "CSI driver registered");
    drivers.add(driver);
    Ok(())
}

/// A driver's name is used in paths and object names, and its API version has to be supported.
fn check(info: &wire::PluginInfo) -> Result<(), RegistrationError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
    if info.name.is_empty()
        || info.name.len() > 63
        || !info.name.chars().all(plain)
        || info.name.starts_with('.')
    {
        return Err(RegistrationError::Name(info.name.clone()));
    }
    let spoken = |version: &String| {
        version.trim_start_matches('v').split('.').next().is_some_and(|major| major == "1")
    };
    if !info.supported_versions.iter().any(spoken) {
        return Err(RegistrationError::Versions(info.supported_versions.clone()));
    }
    Ok(())
}

/// The sockets in a directory.
fn sockets(dir: &Path) -> BTreeMap<PathBuf, Identity> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let socket = |entry: std::fs::DirEntry| {
        let stat = entry.path().symlink_metadata().ok()?;
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        let identity = (stat.dev(), stat.ino(), stat.ctime(), stat.ctime_nsec());
        (stat.file_type().is_socket() && !hidden).then(|| (entry.path(), identity))
    };
    let all: BTreeSet<_> = entries.filter_map(socket).take(SOCKETS_MAX).collect();
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct NoAnnouncements;

    impl DriverAnnouncer for NoAnnouncements {
        fn driver_registered<'a>(
            &'a self,
            _: &'a Driver,
        ) -> BoxFuture<'a, Result<(), AnnounceError>> {
            Box::pin(std::future::ready(Ok(())))
        }

        fn driver_removed<'a>(&'a self, _: &'a str) -> BoxFuture<'a, ()> {
            Box::pin(std::future::ready(()))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_directory_of_sockets_is_the_agents_own() {
        use std::os::unix::fs::PermissionsExt as _;
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("plugins_registry");
        std::fs::create_dir(&dir).unwrap();
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
        let watched = run(dir.clone(), Drivers::default(), Arc::new(NoAnnouncements), ASK);
        let _ = tokio::time::timeout(Duration::from_millis(1), watched).await;
        assert_eq!(dir.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn names_and_versions_are_checked() {
        let info = |name: &str, versions: &[&str]| wire::PluginInfo {
            r#type: DRIVER.into(),
            name: name.into(),
            endpoint: String::new(),
            supported_versions: versions.iter().map(|v| (*v).into()).collect(),
        };
        for (name, versions, ok) in [
            ("hostpath.csi.x", &["1.0.0"][..], true),
            ("a", &["v1.2", "0.3"], true),
            ("a", &["0.3"], false),
            ("a", &["11.0"], false),
            ("a", &[], false),
            ("", &["1.0"], false),
            ("../x", &["1.0"], false),
            ("..", &["1.0"], false),
            ("a/b", &["1.0"], false),
        ] {
            assert_eq!(check(&info(name, versions)).is_ok(), ok, "{name} {versions:?}");
        }
    }
}
