//! Files of volumes that were given to containers alone and follow their volume: whether each may be shown anew now, and how.
//!
//! ```text
//!   Given ──started──► Runs ──shown on top──► Raised ──shown instead──┐
//!     ▲ (its container is made anew)            ▲─────────────────────┘
//! ```
//!
//! What lies on top when a container starts stays with it for good. So nothing is shown between the making of a container and its
//! start, and the first after the start comes on top. One that nothing is known of, after a start of the agent, runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use agent_pod::volume_mounts::{VolumeOnHost, follows};
use agent_volume::PodVolumes;
use agent_volume::mount::subpath_refresh::Renewal;
use agent_volume::sub_path::SubPath;
use proto_api::core::v1::{Container, Pod};
use proto_daemon::exit::chain;

use crate::pods::ports::Line;

/// Where each of them is. Calls that show something take turns.
#[derive(Debug, Default)]
pub struct SubPathRefresher(Mutex<BTreeMap<Key, State>>);

/// Uid of the pod, container, number of its mount.
type Key = (String, String, usize);

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Its container is made and has not started; what should have been shown meanwhile.
    Given(Option<Missed>),
    /// Its container runs, with what lies on top now.
    Runs,
    /// The same, with something on top of that.
    Raised,
}

/// A part as it should be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Missed {
    volume: String,
    root: PathBuf,
    path: String,
}

impl SubPathRefresher {
    /// A container is made and is given this part.
    pub fn given(&self, uid: &str, container: &str, index: usize) {
        self.lock().insert((uid.into(), container.into(), index), State::Given(None));
    }

    /// A container has started: what it has missed is shown. Blocks.
    ///
    /// # Errors
    /// Something cannot be shown.
    pub fn started(&self, on_disk: &PodVolumes, uid: &str, container: &str) -> Result<(), Line> {
        let mut states = self.lock();
        let own = |key: &Key| key.0 == uid && key.1 == container;
        for (key, state) in states.iter_mut().filter(|(key, _)| own(key)) {
            let State::Given(missed) = std::mem::replace(state, State::Runs) else { continue };
            if let Some(Missed { volume, root, path }) = missed {
                show(on_disk, key, state, part(&volume, &root, container, key.2, &path))?;
            }
        }
        Ok(())
    }

    /// Shows the containers of a pod what those parts of a volume are now that they were given. Blocks.
    ///
    /// # Errors
    /// Something cannot be shown.
    pub fn refresh(
        &self,
        on_disk: &PodVolumes,
        pod: &Pod,
        volume: &str,
        there: &VolumeOnHost,
    ) -> Result<(), Line> {
        let root = Path::new(&there.path);
        let all = pod.spec.init_containers.iter().chain(&pod.spec.containers);
        for (container, index, path) in all.flat_map(|c| parts_of(c, volume, there)) {
            let key = (pod.metadata.uid.clone(), container.to_owned(), index);
            let mut states = self.lock();
            let state = states.entry(key.clone()).or_insert(State::Runs);
            if let State::Given(missed) = state {
                let (volume, root) = (volume.to_owned(), root.to_owned());
                *missed = Some(Missed { volume, root, path: path.to_owned() });
                continue;
            }
            show(on_disk, &key, state, part(volume, root, container, index, path))?;
        }
        Ok(())
    }

    /// Nothing of a pod is left.
    pub fn forget(&self, uid: &str) {
        self.lock().retain(|key, _| key.0 != uid);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, State>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The mounts of a container that follow this volume: number and path.
fn parts_of<'a>(
    container: &'a Container,
    volume: &'a str,
    there: &'a VolumeOnHost,
) -> impl Iterator<Item = (&'a str, usize, &'a str)> {
    let mounts = container.volume_mounts.iter().enumerate();
    let own = mounts.filter(move |(_, mount)| mount.name == volume && follows(mount, there));
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

fn show(on_disk: &PodVolumes, key: &Key, state: &mut State, part: SubPath<'_>) -> Result<(), Line> {
    let how = if *state == State::Raised { Renewal::Instead } else { Renewal::OnTop };
    if on_disk.renew_part(&key.0, &part, how).map_err(|e| chain(&e))? {
        *state = State::Raised;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proto_api::core::v1::VolumeMount;
    use proto_api::names::{Names, Profile};

    use super::*;

    #[test]
    fn nothing_is_shown_between_making_and_start_and_the_first_after_it_stays() {
        let dir = tempfile::tempdir().unwrap();
        let on_disk = PodVolumes::new(dir.path(), Names::new(Profile::Kubernetes));
        std::fs::create_dir_all(dir.path().join("pods/u")).unwrap();
        let following = SubPathRefresher::default();
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
        let refresh = || following.refresh(&on_disk, &pod, "v", &there);
        let state = || following.lock().values().cloned().collect::<Vec<_>>();
        // Found running by a new agent.
        refresh().unwrap();
        assert_eq!(state(), [State::Runs]);
        following.given("u", "c", 0);
        refresh().unwrap();
        let missed = Missed { volume: "v".into(), root, path: "f".into() };
        assert_eq!(state(), [State::Given(Some(missed))]);
        following.started(&on_disk, "u", "other").unwrap();
        assert!(matches!(state()[..], [State::Given(_)]));
        following.started(&on_disk, "u", "c").unwrap();
        assert_eq!(state(), [State::Runs], "nothing was bound that could be shown anew");
        following.forget("u");
        assert_eq!(state(), []);
    }
}
