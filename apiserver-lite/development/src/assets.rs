//! A directory for harnesses that look for the programs of a control plane by their names (`KUBEBUILDER_ASSETS`): links to this program, and to kubectl if
//! there is one.

use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use proto_daemon::private_files;

/// The names under which this program acts as another.
pub const KUBE_APISERVER: &str = "kube-apiserver";
/// See [`KUBE_APISERVER`].
pub const ETCD: &str = "etcd";
const KUBECTL: &str = "kubectl";

/// A link cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum AssetsError {
    /// The system refuses it.
    #[error("cannot create {path}")]
    Path {
        /// What was to be made.
        path: PathBuf,
        /// What it said.
        #[source]
        source: io::Error,
    },
    /// A program lies there, which is not replaced.
    #[error("{0} exists and is not a symbolic link: remove it or choose another directory")]
    Taken(PathBuf),
}

/// Makes the links in `dir` to `program`, and to a kubectl of `path` (`$PATH`). Links that are there are replaced. Returns the directory's absolute path.
///
/// # Errors
/// [`AssetsError`] with the path.
pub fn link(dir: &Path, program: &Path, path: Option<&OsStr>) -> Result<PathBuf, AssetsError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| AssetsError::Path { path, source }
    };
    private_files::create_missing_dir(dir).map_err(failed(dir))?;
    let dir = dir.canonicalize().map_err(failed(dir))?;
    let mut links = vec![(ETCD, program.to_owned()), (KUBE_APISERVER, program.to_owned())];
    links.extend(find_kubectl(path, &dir).map(|found| (KUBECTL, found)));
    for (name, target) in links {
        let link = dir.join(name);
        match link.symlink_metadata() {
            Ok(there) if !there.is_symlink() => return Err(AssetsError::Taken(link)),
            Ok(_) => std::fs::remove_file(&link).map_err(failed(&link))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(AssetsError::Path { path: link, source }),
        }
        symlink(target, &link).map_err(failed(&link))?;
    }
    Ok(dir)
}

fn find_kubectl(path: Option<&OsStr>, except: &Path) -> Option<PathBuf> {
    let mut directories = std::env::split_paths(path?).filter(|dir| dir.is_absolute());
    directories.find_map(|dir| {
        let found = dir.join(KUBECTL);
        (dir.as_path() != except && found.is_file()).then_some(found)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn links_are_created_and_replaced_and_programs_are_kept() {
        let root = tempfile::tempdir().unwrap();
        let (dir, bin) = (root.path().join("a/assets"), root.path().join("bin"));
        fs::create_dir(&bin).unwrap();
        fs::create_dir(root.path().join("a")).unwrap();
        fs::write(bin.join("kubectl"), "").unwrap();
        for program in ["one", "two"] {
            let program = root.path().join(program);
            let made = link(&dir, &program, Some(bin.as_os_str())).unwrap();
            assert_eq!(made, dir.canonicalize().unwrap());
            for name in [ETCD, KUBE_APISERVER] {
                assert_eq!(fs::read_link(dir.join(name)).unwrap(), program);
            }
            assert_eq!(fs::read_link(dir.join("kubectl")).unwrap(), bin.join("kubectl"));
        }
        fs::remove_file(dir.join(ETCD)).unwrap();
        fs::write(dir.join(ETCD), "a program").unwrap();
        let refused = link(&dir, Path::new("/x"), None).unwrap_err();
        assert!(matches!(refused, AssetsError::Taken(path) if path.ends_with("assets/etcd")));
        assert_eq!(fs::read_to_string(dir.join(ETCD)).unwrap(), "a program");
    }
}
