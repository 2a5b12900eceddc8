//! Why something of a cluster could not be made; each error names the file or object.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// A file or directory cannot be read or written.
    #[error("{path}")]
    File {
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: std::io::Error,
    },
    /// A key or certificate cannot be made.
    #[error("cannot make the certificate or key {name}")]
    Make {
        name: String,
        /// Why.
        #[source]
        cause: rcgen::Error,
    },
    /// A file exists and is not what it should be.
    #[error("{path}: {problem}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it and what to do.
        problem: String,
    },
    /// The system refuses.
    #[error("{what}")]
    System {
        /// What was being done, with the object.
        what: String,
        /// What the system said.
        #[source]
        cause: std::io::Error,
    },
    /// Another program failed.
    #[error("{0}")]
    Program(String),
    /// A reset of the host has ended while another one waited.
    #[error(
        "this host is reset already: another `orchadm reset` has done it meanwhile, and this one has removed nothing"
    )]
    AlreadyReset,
    /// Something given by the user is wrong.
    #[error("{0}")]
    Invalid(String),
    /// The API server refused or did not answer.
    #[error("{object}")]
    Api {
        /// What was being done, with the object.
        object: String,
        /// Why.
        #[source]
        cause: Box<proto_client::ClientError>,
    },
}

impl BootstrapError {
    /// Whether a file or directory has no place on its disk.
    pub fn is_full_disk(&self) -> bool {
        let kinds = [ErrorKind::StorageFull, ErrorKind::QuotaExceeded];
        matches!(self, Self::File { cause, .. } if kinds.contains(&cause.kind()))
    }

    pub(crate) fn file(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        |cause| Self::File { path, cause }
    }

    pub(crate) fn system<E: Into<std::io::Error>>(
        what: impl Into<String>,
    ) -> impl FnOnce(E) -> Self {
        let what = what.into();
        |cause| Self::System { what, cause: cause.into() }
    }

    pub(crate) fn make(name: &str) -> impl FnOnce(rcgen::Error) -> Self {
        let name = name.to_owned();
        |cause| Self::Make { name, cause }
    }

    pub(crate) fn unusable(path: &Path, problem: impl Into<String>) -> Self {
        Self::Unusable { path: path.to_owned(), problem: problem.into() }
    }

    /// For `map_err` of a request, which is described.
    pub fn api(object: impl Into<String>) -> impl FnOnce(proto_client::ClientError) -> Self {
        let object = object.into();
        |cause| Self::Api { object, cause: Box::new(cause) }
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;

    #[test]
    fn only_a_full_disk_is_one() {
        let of = |errno: Errno| BootstrapError::file(Path::new("/run/x"))(errno.into());
        assert!(of(Errno::ENOSPC).is_full_disk() && of(Errno::EDQUOT).is_full_disk());
        assert!(!of(Errno::EACCES).is_full_disk());
        assert!(!BootstrapError::system("x")(Errno::ENOSPC).is_full_disk());
    }
}
