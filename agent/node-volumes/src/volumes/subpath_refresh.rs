//! Files that containers mount by `subPath` and that follow changes of their volume: when the mount of each may be replaced, and how.
//!
//! ```text
//!   Created ──container starts──► Running ──mount on top──► Covered ──replace the top──┐
//!     ▲ (its container is created again)                      ▲────────────────────────┘
//! ```
//!
//! The mount that is on top when a container starts stays visible to it for good. So nothing is mounted between the creation and the start
//! of a container, and the first refresh after the start is mounted on top. After a start of the agent an unknown container counts as
//! running.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use agent_pod::volume_mounts::{VolumeOnHost, is_refreshed};
use agent_volume::VolumesOnDisk;
use agent_volume::mount::subpath_refresh::RefreshMethod;
use agent_volume::sub_path::{SubPath, SubPathError};
use proto_api::core::v1::{Container, Pod};

/// The state of each such mount. One refresh at a time.
#[derive(Debug, Default)]
pub struct SubPathRefresher(Mutex<BTreeMap<Key, State>>);

/// Pod uid, container name, index of the mount.
type Key = (String, String, usize);

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// The container is created and has not started; the refresh that waits for the start.
    Created(Option<Pending>),
    /// The container runs with the first mount.
    Running,
    /// The container runs, and a refresh is mounted on top of the first mount.
    Covered,
}

/// A refresh that waits for the start of its container.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pending {
    volume: String,
    root: PathBuf,
    path: String,
}

impl SubPathRefresher {
    /// Notes that a container is created with this mount.
    pub fn container_created(&self, uid: &str, container: &str, index: usize) {
        self.lock().insert((uid.into(), container.into(), index), State::Created(None));
    }

    /// Notes that a container has started and applies its pending refreshes. Blocks.
    ///
    /// # Errors
    /// A file cannot be mounted.
    pub fn container_started(
        &self,
        on_disk: &VolumesOnDisk,
        uid: &str,
        container: &str,
    ) -> Result<(), SubPathError> {
        let mut states = self.lock();
        let own = |key: &Key| key.0 == uid && key.1 == container;
        for (key, state) in states.iter_mut().filter(|(key, _)| own(key)) {
            let State::Created(pending) = std::mem::replace(state, State::Running) else {
                continue;
            };
            if let Some(Pending { volume, root, path }) = pending {
                mount(on_disk, key, state, part(&volume, &root, container, key.2, &path))?;
            }
        }
        Ok(())
    }

    /// Mounts the current files of a volume over those that the containers of a pod have. Blocks.
    ///
    /// # Errors
    /// A file cannot be mounted.
    pub fn refresh(
        &self,
        on_disk: &VolumesOnDisk,
        pod: &Pod,
        volume: &str,
        there: &VolumeOnHost,
    ) -> Result<(), SubPathError> {
        let root = Path::new(&there.path);
        let all = pod.spec.init_containers.iter().chain(&pod.spec.containers);
        for (container, index, path) in all.flat_map(|c| following_mounts(c, volume, there)) {
            let key = (pod.metadata.uid.clone(), container.to_owned(), index);
            let mut states = self.lock();
            let state = states.entry(key.clone()).or_insert(State::Running);
            if let State::Created(pending) = state {
                let (volume, root) = (volume.to_owned(), root.to_owned());
                *pending = Some(Pending { volume, root, path: path.to_owned() });
                continue;
            }
            mount(on_disk, &key, state, part(volume, root, container, index, path))?;
        }
        Ok(())
    }

    /// Drops the state of a pod.
    pub fn forget(&self, uid: &str) {
        self.lock().retain(|key, _| key.0 != uid);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, State>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The mounts of a container that follow this volume: index and path.
fn following_mounts<'a>(
    container: &'a Container,
    volume: &'a str,
    there: &'a VolumeOnHost,
) -> impl Iterator<Item = (&'a str, usize, &'a str)> {
    let mounts = container.volume_mounts.iter().enumerate();
    let own = mounts.filter(move |(_, mount)| mount.name == volume && is_refreshed(mount, there));
    own.map(|(index, mount)| (container.name.as_str(), index, mount.sub_path.as_str()))
}

fn part<'a>(
    volume: &'a str,
    root: &'a Path,
    container: &'a str,
    index: usize,
    path: &'a str,
) -> SubPath<'a> {
    let (on_node, all_read_only) = (None, None);
    SubPath { volume, root, container, index, path, on_node, all_read_only, follows: true }
}

fn mount(
    on_disk: &VolumesOnDisk,
    key: &Key,
    state: &mut State,
    part: SubPath<'_>,
) -> Result<(), SubPathError> {
    let how = if *state == State::Covered { RefreshMethod::Instead } else { RefreshMethod::OnTop };
    if on_disk.refresh_part(&key.0, &part, how)? {
        *state = State::Covered;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proto_api::core::v1::VolumeMount;
    use proto_api::names::{Names, Profile};

    use super::*;

    #[test]
    fn nothing_is_mounted_between_creation_and_start() {
        let dir = tempfile::tempdir().unwrap();
        let on_disk = VolumesOnDisk::new(dir.path(), Names::new(Profile::Kubernetes));
        std::fs::create_dir_all(dir.path().join("pods/u")).unwrap();
        let refresher = SubPathRefresher::default();
        let mount =
            VolumeMount { name: "v".into(), sub_path: "f".into(), ..VolumeMount::default() };
        let container =
            Container { name: "c".into(), volume_mounts: vec![mount], ..Container::default() };
        let mut pod = Pod::default();
        pod.metadata.uid = "u".into();
        pod.spec.containers.push(container);
        let root = dir.path().join("volume");
        let path = root.to_string_lossy().into_owned();
        let there = VolumeOnHost { path: path.clone(), follows: true, ..VolumeOnHost::default() };
        let refresh = || refresher.refresh(&on_disk, &pod, "v", &there);
        let state = || refresher.lock().values().cloned().collect::<Vec<_>>();
        // After a start of the agent.
        refresh().unwrap();
        assert_eq!(state(), [State::Running]);
        refresher.container_created("u", "c", 0);
        refresh().unwrap();
        let pending = Pending { volume: "v".into(), root, path: "f".into() };
        assert_eq!(state(), [State::Created(Some(pending))]);
        refresher.container_started(&on_disk, "u", "other").unwrap();
        assert!(matches!(state()[..], [State::Created(_)]));
        refresher.container_started(&on_disk, "u", "c").unwrap();
        assert_eq!(state(), [State::Running], "no mount exists that could be covered");
        refresher.forget("u");
        assert_eq!(state(), []);
    }
}
