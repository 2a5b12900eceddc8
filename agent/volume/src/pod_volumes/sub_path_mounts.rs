//! Bind mounts of parts of volumes for containers, and their refresh.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use agent_pod::volume_mounts::AllReadOnly;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{PRIVATE, VolumesOnDisk, is_plain};
use crate::mount::subpath_refresh::RefreshMethod;
use crate::mount::{self, BindScope};
use crate::sub_path::{self, SubPath, SubPathError, SubPathFailure};
use crate::{beneath, host_path};

impl VolumesOnDisk {
    /// Bind-mounts a part of a volume for a container and returns the path. A repeated call finds the mount, or replaces it if
    /// the path leads elsewhere by now.
    ///
    /// # Errors
    /// The part leads out of the volume, or cannot be opened, created or mounted.
    /// The part leads out of the volume, or cannot be opened, made or bound.
    pub fn sub_path(&self, uid: &str, want: &SubPath<'_>) -> Result<PathBuf, SubPathError> {
        let failed = |what: &'static str| {
            let (path, volume) = (want.path.to_owned(), want.volume.to_owned());
            move |source| SubPathError { path, volume, what, source }
        };
        if ![uid, want.volume, want.container].into_iter().all(is_plain) {
            return Err(failed("name")(Errno::INVAL.into()));
        }
        let root = match want.on_node {
            Some(kind) => {
                host_path::open(&want.root.to_string_lossy(), kind).map_err(SubPathFailure::from)
            }
            None => self.open_root(want.root).map_err(SubPathFailure::from),
        };
        let root = root.map_err(failed("open the volume"))?;
        let below = |e: Errno| failed("open below the volume")(e.into());
        let part = match (want.path, want.on_node) {
            ("", Some(_)) => root,
            (path, _) if want.follows => {
                let part = sub_path::open(&root, path).map_err(below)?;
                let name = format!("{}.{}", want.container, want.index);
                // The previous instance's mounts are on its name.
                self.unmount_part(uid, want).map_err(|e| failed("unmount")(e.into()))?;
                sub_path::stand_in(&root, part, &name).map_err(below)?
            }
            (path, _) => sub_path::open(root, path).map_err(below)?,
        };
        let extent = match (want.path, want.on_node, want.all_read_only) {
            (_, _, Some(_)) => BindScope::AllReadOnly,
            ("", Some(_), None) => BindScope::All,
            _ => BindScope::One,
        };
        if extent == BindScope::AllReadOnly && self.are_inside(&part) {
            let refused = failed("mount")(SubPathFailure::HoldsAgent);
            return self.give_up(want, refused);
        }
        match self.bind_part(uid, want, &part, extent) {
            Err((_, Errno::NOSYS)) if want.all_read_only == Some(AllReadOnly::IfPossible) => {
                let refused = failed("mount")(Errno::NOSYS.into());
                self.give_up(want, refused)
            }
            done => done.map_err(|(what, error)| failed(what)(error.into())),
        }
    }

    /// Fallback if recursive read-only is optional and not possible: the whole volume, which the runtime mounts read-only at its
    /// top only.
    fn give_up(&self, want: &SubPath<'_>, why: SubPathError) -> Result<PathBuf, SubPathError> {
        if want.all_read_only == Some(AllReadOnly::IfPossible) && want.path.is_empty() {
            tracing::debug!(volume = want.volume, %why, "the kernel cannot mount recursively read-only; only the top mount is read-only");
            return Ok(want.root.to_owned());
        }
        Err(why)
    }

    fn bind_part(
        &self,
        uid: &str,
        want: &SubPath<'_>,
        part: &OwnedFd,
        extent: BindScope,
    ) -> Result<PathBuf, (&'static str, Errno)> {
        let failed = |what: &'static str| move |error: Errno| (what, error);
        let pods = beneath::open_directory(&self.pods).map_err(failed("open the pod"))?;
        let pod = beneath::make_directory(pods, uid, PRIVATE).map_err(failed("open the pod"))?;
        let targets = sub_path::targets(pod, want.volume, want.container);
        let targets = targets.map_err(failed("prepare the mount"))?;
        let index = want.index.to_string();
        let bound = sub_path::bind(part, &targets, &index, extent, want.follows);
        bound.map_err(failed("mount"))?;
        Ok(self.target(uid, want))
    }

    /// Mount point of a part for a container.
    fn target(&self, uid: &str, want: &SubPath<'_>) -> PathBuf {
        let index = want.index.to_string();
        let below = [uid, sub_path::DIRECTORY, want.volume, want.container, &index];
        below.iter().fold(self.pods.clone(), |path, name| path.join(name))
    }

    /// Opens the directory of a container's mount points; `None` if it has none.
    fn targets(&self, uid: &str, want: &SubPath<'_>) -> rustix::io::Result<Option<OwnedFd>> {
        let pods = beneath::open_directory(&self.pods)?;
        let Some(pod) = beneath::open_existing(pods, uid)? else { return Ok(None) };
        sub_path::targets_there(pod, want.volume, want.container)
    }

    fn unmount_part(&self, uid: &str, want: &SubPath<'_>) -> rustix::io::Result<()> {
        match self.targets(uid, want)? {
            Some(targets) => mount::detach(targets, &want.index.to_string()),
            None => Ok(()),
        }
    }

    /// Refreshes a part of a volume in the containers that use it, if it is to be refreshed. A part that no container uses or
    /// that no longer exists is left unchanged. Returns whether anything changed.
    ///
    /// # Errors
    /// The part leads out of the volume, or cannot be opened or mounted.
    pub fn refresh_part(
        &self,
        uid: &str,
        want: &SubPath<'_>,
        how: RefreshMethod,
    ) -> Result<bool, SubPathError> {
        let failed = |what: &'static str| {
            let (path, volume) = (want.path.to_owned(), want.volume.to_owned());
            move |source: Errno| SubPathError { path, volume, what, source: source.into() }
        };
        if ![uid, want.volume, want.container].into_iter().all(is_plain) {
            return Err(failed("name")(Errno::INVAL));
        }
        let targets = self.targets(uid, want).map_err(failed("open the mount"))?;
        let Some(targets) = targets else { return Ok(false) };
        let root = self.open_root(want.root).map_err(failed("open the volume"))?;
        let part = match beneath::open_inside(&root, want.path, OFlags::PATH) {
            Err(Errno::NOENT) => return Ok(false),
            part => part.map_err(failed("open below the volume"))?,
        };
        let index = want.index.to_string();
        sub_path::refresh(&part, &targets, &index, how).map_err(failed("mount"))
    }
}
