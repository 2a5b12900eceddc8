//! Opens volumes of pods for those who only measure them. Whoever can write to a volume decides what its names lead to: from its top
//! on, a measurement follows descriptors.

use std::os::fd::OwnedFd;
use std::path::Path;

use crate::beneath;
use crate::sources::Plugin;

/// Where a driver's volume is mounted, below its record.
const DRIVEN: &str = "mount";
/// End of the name of the directory of drivers' volumes.
const OF_DRIVERS: &str = "~csi";

/// The top of a volume, open.
#[derive(Debug)]
pub struct Top {
    /// Its directory.
    pub directory: OwnedFd,
    /// Whether it is a file system of its own, not a directory of the agent's.
    pub own_fs: bool,
}

/// Opens the top of a pod's volume below the agent's directory `root`: of one kind, or of whichever there is. No link is followed on the
/// way; `None` when there is no such volume.
///
/// # Errors
/// What the kernel says.
pub fn top(
    root: &Path,
    uid: &str,
    volume: &str,
    plugin: Option<Plugin>,
) -> rustix::io::Result<Option<Top>> {
    let root = match beneath::open_directory(root) {
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        root => root?,
    };
    let Some(all) = beneath::directory(root, &format!("pods/{uid}/volumes"))? else {
        return Ok(None);
    };
    let wanted = plugin.map(|plugin| format!("~{}", plugin.name()));
    for (name, _) in beneath::entries(&all)? {
        if wanted.as_ref().is_some_and(|wanted| !name.ends_with(wanted.as_str())) {
            continue;
        }
        let Some(own) = beneath::directory(&all, &name)? else { continue };
        let below = match name.ends_with(OF_DRIVERS) {
            true => format!("{volume}/{DRIVEN}"),
            false => volume.to_owned(),
        };
        if let Some(directory) = beneath::directory(&own, &below)? {
            let device = |fd: &OwnedFd| rustix::fs::fstat(fd).map(|stat| stat.st_dev);
            let own_fs = device(&own)? != device(&directory)?;
            return Ok(Some(Top { directory, own_fs }));
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
            let found = top(root.path(), "u", volume, plugin).ok().flatten();
            found.map(|top| rustix::fs::fstat(&top.directory).unwrap().st_ino)
        };
        let own = |path: &str| {
            use std::os::unix::fs::MetadataExt as _;
            Some(at(path).metadata().unwrap().ino())
        };
        assert_eq!(inode("v", None), own("x~empty-dir/v"), "the volume, not what a pod named so");
        assert_eq!(inode("v", Some(Plugin::EmptyDir)), own("x~empty-dir/v"));
        assert_eq!(inode("driven", None), own("x~csi/driven/mount"));
        assert_eq!(inode("driven", Some(Plugin::EmptyDir)), None);
        assert_eq!(inode("half", None), None, "a link is no mount");
        assert_eq!(inode("link", None), None);
        assert_eq!(inode("../../..", None), None);
        assert_eq!(inode("none", None), None);
    }
}
