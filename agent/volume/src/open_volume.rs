//! Opens volumes of pods for measurements of their usage. A process that can write to a volume controls its names, so a measurement uses
//! descriptors from the volume's top directory on.

use std::os::fd::OwnedFd;
use std::path::Path;

use crate::beneath;
use crate::sources::VolumePlugin;

/// Mount directory of a CSI volume, next to its record.
const DRIVEN: &str = "mount";
/// Suffix of the directory of CSI volumes.
const OF_DRIVERS: &str = "~csi";

/// A descriptor of the root of a volume, below which paths are opened without following links.
#[derive(Debug)]
pub struct OpenVolume {
    /// Its top directory.
    pub directory: OwnedFd,
    /// Whether it is a file system of its own instead of a directory of the agent.
    pub own_fs: bool,
}

/// Opens a pod's volume below the agent's directory `root`: one of the given kind, or of any kind. Follows no links; `None` if
/// there is no such volume.
///
/// # Errors
/// Errors of the kernel.
pub fn open_volume(
    root: &Path,
    uid: &str,
    volume: &str,
    plugin: Option<VolumePlugin>,
) -> rustix::io::Result<Option<OpenVolume>> {
    let root = match beneath::open_directory(root) {
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        root => root?,
    };
    let Some(all) = beneath::open_existing(root, &format!("pods/{uid}/volumes"))? else {
        return Ok(None);
    };
    let wanted = plugin.map(|plugin| format!("~{}", plugin.name()));
    for (name, _) in beneath::list_entries(&all)? {
        if wanted.as_ref().is_some_and(|wanted| !name.ends_with(wanted.as_str())) {
            continue;
        }
        let Some(own) = beneath::open_existing(&all, &name)? else { continue };
        let below = match name.ends_with(OF_DRIVERS) {
            true => format!("{volume}/{DRIVEN}"),
            false => volume.to_owned(),
        };
        if let Some(directory) = beneath::open_existing(&own, &below)? {
            let device = |fd: &OwnedFd| rustix::fs::fstat(fd).map(|stat| stat.st_dev);
            let own_fs = device(&own)? != device(&directory)?;
            return Ok(Some(OpenVolume { directory, own_fs }));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn names_in_a_volume_lead_nowhere() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join("pods/u/volumes").join(path);
        std::fs::create_dir_all(at("x~empty-dir/v")).unwrap();
        std::fs::create_dir_all(at("x~csi/driven/mount")).unwrap();
        std::fs::create_dir_all(at("x~csi/half")).unwrap();
        symlink("/", at("x~empty-dir/v/mount")).unwrap();
        symlink("/", at("x~csi/half/mount")).unwrap();
        symlink("/", at("x~empty-dir/link")).unwrap();
        let inode = |volume: &str, plugin| {
            let found = open_volume(root.path(), "u", volume, plugin).ok().flatten();
            found.map(|top| rustix::fs::fstat(&top.directory).unwrap().st_ino)
        };
        let own = |path: &str| {
            use std::os::unix::fs::MetadataExt as _;
            Some(at(path).metadata().unwrap().ino())
        };
        assert_eq!(inode("v", None), own("x~empty-dir/v"), "the volume, not what a pod named so");
        assert_eq!(inode("v", Some(VolumePlugin::EmptyDir)), own("x~empty-dir/v"));
        assert_eq!(inode("driven", None), own("x~csi/driven/mount"));
        assert_eq!(inode("driven", Some(VolumePlugin::EmptyDir)), None);
        assert_eq!(inode("half", None), None, "a link is no mount");
        assert_eq!(inode("link", None), None);
        assert_eq!(inode("../../..", None), None);
        assert_eq!(inode("none", None), None);
    }
}
