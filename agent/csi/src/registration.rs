//! Plugins that come and go: sockets in the registration directory.
//!
//! Each socket is asked who it is; a driver is asked what it can do, announced in the cluster, and told that it is registered. One that
//! does not answer is tried again for as long as its socket is there, and holds up no other.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_volume::private;
use futures_util::future::BoxFuture;
use notify::{RecursiveMode, Watcher as _};
use proto_daemon::backoff::Backoff;
use proto_grpc::plugin_registration::v1 as wire;
use proto_grpc::plugin_registration::v1::registration_client::RegistrationClient;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::driver::{ASK, Driver, call, connect, text};
use crate::drivers::Drivers;

/// Type of the plugins that are drivers.
const DRIVER: &str = "CSIPlugin";
/// Between attempts to register a plugin.
const RETRY: Backoff =
    Backoff { first: Duration::from_millis(200), longest: Duration::from_secs(30) };
/// Most sockets that are looked at.
const SOCKETS_MAX: usize = 256;
/// The directory is read so often at least, in case a change was missed.
const LOOK_PERIOD: Duration = Duration::from_secs(60);

/// Who tells the cluster of drivers.
pub trait Announce: Send + Sync {
    /// A driver is there.
    fn came<'a>(&'a self, driver: &'a Driver) -> BoxFuture<'a, Result<(), String>>;
    /// A driver is gone.
    fn went<'a>(&'a self, name: &'a str) -> BoxFuture<'a, ()>;
    /// A plugin of another type is there; `None` when nobody here wants such a one.
    fn other<'a>(&'a self, _: &'a OtherPlugin) -> BoxFuture<'a, Option<Result<(), String>>> {
        Box::pin(std::future::ready(None))
    }
}

/// A plugin that is no driver of volumes, as it says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtherPlugin {
    /// Its type, such as `DevicePlugin`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Where it listens.
    pub endpoint: PathBuf,
    /// Versions of its interface.
    pub versions: Vec<String>,
}

/// A socket: another one under the same name is another.
type Identity = (u64, u64, i64, i64);

enum State {
    /// Being asked, after so many failures.
    Asked(u32),
    /// Did not answer as it should; tried again at that time, after so many failures.
    Failed(tokio::time::Instant, u32),
    /// A driver of that name.
    Driver(String),
    /// Of no interest here.
    Other,
}

struct Asked {
    path: PathBuf,
    identity: Identity,
    result: Result<Option<String>, String>,
}

/// Follows the directory, which is made if need be, until the future is dropped.
pub async fn run(dir: PathBuf, drivers: Drivers, announce: Arc<dyn Announce>, change: Duration) {
    let changed = Arc::new(Notify::new());
    // A process that can create a socket there receives the secrets of volumes.
    while let Err(error) = private::make(&dir) {
        tracing::error!(dir = %dir.display(), %error, "no plugin is taken in: there is no directory of the agent's own for them");
        tokio::time::sleep(LOOK_PERIOD).await;
    }
    // Held for as long as the task runs: dropping it ends the watch.
    let _watcher = watch(&dir, changed.clone());
    let mut known: BTreeMap<PathBuf, (Identity, State)> = BTreeMap::new();
    let mut under_way: JoinSet<Asked> = JoinSet::new();
    loop {
        let here = sockets(&dir);
        let all: Vec<PathBuf> = known.keys().cloned().collect();
        for path in all {
            let same =
                known.get(&path).is_some_and(|(identity, _)| here.get(&path) == Some(identity));
            if !same && let Some((_, State::Driver(name))) = known.remove(&path) {
                leave(&name, &known, &drivers, &*announce).await;
            }
        }
        let now = tokio::time::Instant::now();
        let mut wake = now + LOOK_PERIOD;
        for (path, identity) in here {
            let failures = match known.get(&path) {
                None => 0,
                Some((_, State::Failed(at, failures))) if *at <= now => *failures,
                Some((_, State::Failed(at, _))) => {
                    wake = wake.min(*at);
                    continue;
                }
                Some(_) => continue,
            };
            let (drivers, announce) = (drivers.clone(), announce.clone());
            known.insert(path.clone(), (identity, State::Asked(failures)));
            under_way.spawn(async move {
                let result = register(&path, &drivers, &*announce, change).await;
                if let Err(error) = &result {
                    tracing::warn!(socket = %path.display(), error, failures, "plugin is not registered");
                }
                Asked { path, identity, result }
            });
        }
        // All arms are cancel safe.
        tokio::select! {
            () = changed.notified() => {}
            () = tokio::time::sleep_until(wake) => {}
            Some(done) = under_way.join_next(), if !under_way.is_empty() => {
                if let Ok(asked) = done {
                    take_in(&mut known, asked);
                }
            }
        }
    }
}

fn take_in(known: &mut BTreeMap<PathBuf, (Identity, State)>, asked: Asked) {
    let Some((identity, state)) = known.get_mut(&asked.path) else { return };
    if *identity != asked.identity {
        return;
    }
    *state = match asked.result {
        Ok(Some(name)) => State::Driver(name),
        Ok(None) => State::Other,
        Err(_) => {
            let failures = if let State::Asked(failures) = state { *failures + 1 } else { 1 };
            State::Failed(tokio::time::Instant::now() + RETRY.delay(failures, 1.0), failures)
        }
    };
}

/// Takes a driver out, unless another socket has it too: a newer instance beside the older one.
async fn leave(
    name: &str,
    known: &BTreeMap<PathBuf, (Identity, State)>,
    drivers: &Drivers,
    announce: &dyn Announce,
) {
    let other = |(_, state): &(Identity, State)| matches!(state, State::Driver(n) if n == name);
    if known.values().any(other) {
        return;
    }
    tracing::info!(driver = name, "driver is gone");
    drivers.remove(name);
    announce.went(name).await;
}

/// Asks the plugin behind a socket who it is and takes it in; the driver's name, or `None` for a plugin of another type.
async fn register(
    socket: &Path,
    drivers: &Drivers,
    announce: &dyn Announce,
    change: Duration,
) -> Result<Option<String>, String> {
    let mut client = RegistrationClient::new(connect(socket));
    let info = call(ASK, wire::InfoRequest {}, |r| client.get_info(r)).await;
    let info = info.map_err(|e| format!("ask who it is: {e}"))?;
    let result = if info.r#type == DRIVER {
        take(socket, &info, drivers, announce, change).await.map(|()| Some(info.name.clone()))
    } else {
        let other = OtherPlugin {
            endpoint: endpoint(socket, &info),
            kind: info.r#type,
            name: info.name.clone(),
            versions: info.supported_versions,
        };
        match announce.other(&other).await {
            None => return Ok(None),
            Some(taken) => taken.map(|()| None),
        }
    };
    let status = wire::RegistrationStatus {
        plugin_registered: result.is_ok(),
        error: result.as_ref().err().cloned().unwrap_or_default(),
    };
    let told = call(ASK, status, |r| client.notify_registration_status(r)).await;
    if let Err(error) = told {
        tracing::warn!(plugin = info.name, %error, "plugin was not told");
    }
    result
}

/// Where a plugin listens: at the socket that was found, unless it names another.
fn endpoint(socket: &Path, info: &wire::PluginInfo) -> PathBuf {
    let named = if info.endpoint.is_empty() { text(socket) } else { info.endpoint.clone() };
    PathBuf::from(named.strip_prefix("unix://").unwrap_or(&named))
}

async fn take(
    socket: &Path,
    info: &wire::PluginInfo,
    drivers: &Drivers,
    announce: &dyn Announce,
    change: Duration,
) -> Result<(), String> {
    check(info)?;
    let endpoint = endpoint(socket, info);
    let driver = Driver::ask(&info.name, &endpoint, change).await;
    let driver = driver.map_err(|e| format!("ask driver {} what it can do: {e}", info.name))?;
    announce.came(&driver).await?;
    tracing::info!(driver = driver.name, node_id = driver.info.node_id, "driver is registered");
    drivers.add(driver);
    Ok(())
}

/// A driver's name is part of paths and of objects' names; its version has to be one that is spoken here.
fn check(info: &wire::PluginInfo) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
    if info.name.is_empty()
        || info.name.len() > 63
        || !info.name.chars().all(plain)
        || info.name.starts_with('.')
    {
        return Err(format!("invalid driver name {:?}", info.name));
    }
    let spoken = |version: &String| {
        version.trim_start_matches('v').split('.').next().is_some_and(|major| major == "1")
    };
    if !info.supported_versions.iter().any(spoken) {
        return Err(format!("versions {:?} are not supported, only 1.x", info.supported_versions));
    }
    Ok(())
}

fn watch(dir: &Path, changed: Arc<Notify>) -> Option<notify::RecommendedWatcher> {
    let tell = move |event: notify::Result<notify::Event>| {
        // Our own reading is an access, and must not call for another.
        if !matches!(event, Ok(notify::Event { kind: notify::EventKind::Access(_), .. })) {
            changed.notify_one();
        }
    };
    let watcher = notify::recommended_watcher(tell).and_then(|mut watcher| {
        watcher.watch(dir, RecursiveMode::NonRecursive)?;
        Ok(watcher)
    });
    match watcher {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            tracing::error!(dir = %dir.display(), %error, "plugins are looked for once a minute only");
            None
        }
    }
}

/// The sockets of a directory.
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

    impl Announce for NoAnnouncements {
        fn came<'a>(&'a self, _: &'a Driver) -> BoxFuture<'a, Result<(), String>> {
            Box::pin(std::future::ready(Ok(())))
        }

        fn went<'a>(&'a self, _: &'a str) -> BoxFuture<'a, ()> {
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
