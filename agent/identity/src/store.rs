//! Certificates with their keys on disk, as in Kubernetes' kubelet: `<pair>-<time>.pem` holds both,
//! `<pair>-current.pem` links to the current one. The link is switched by a rename, so that a
//! complete pair is always available.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use proto_api::Time;
use proto_daemon::private_files;
use rcgen::KeyPair;

/// Certificates kept in addition to the current one.
const OLD_MAX: usize = 3;
/// Largest file that is read.
const LEN_MAX: u64 = 1 << 20;

/// The certificates of one purpose.
#[derive(Clone, Debug)]
pub struct Store {
    directory: PathBuf,
    pair: String,
}

impl Store {
    /// The pair of this name in a directory, which may not exist yet.
    pub fn new(directory: PathBuf, pair: String) -> Self {
        Self { directory, pair }
    }

    /// The name of the pair.
    pub fn pair(&self) -> &str {
        &self.pair
    }

    /// Path of the current certificate and key, whether or not it exists.
    pub fn current_path(&self) -> PathBuf {
        self.at("-current.pem")
    }

    /// The current pair.
    ///
    /// # Errors
    /// It exists and cannot be read.
    pub fn current(&self) -> io::Result<Option<Vec<u8>>> {
        read(&self.current_path())
    }

    /// The key of the pending request, created if missing. It is on disk before it is used.
    ///
    /// # Errors
    /// It cannot be read or written.
    pub fn pending_key(&self) -> io::Result<KeyPair> {
        if let Some(found) = read(&self.pending_path())? {
            match KeyPair::from_pem(&String::from_utf8_lossy(&found)) {
                Ok(key) => return Ok(key),
                Err(error) => {
                    tracing::warn!(%error, path = %self.pending_path().display(), "the pending key is invalid; a new one is created")
                }
            }
        }
        let key = KeyPair::generate().map_err(io::Error::other)?;
        self.write(&self.pending_path(), key.serialize_pem().as_bytes())?;
        Ok(key)
    }

    /// Removes the key of the pending request after a denial or a certificate for another key.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn forget_pending_key(&self) -> io::Result<()> {
        private_files::remove_private(&self.pending_path())
    }

    /// Installs a certificate with its key.
    ///
    /// # Errors
    /// Writing fails; the current pair stays.
    pub fn install(&self, certificate: &[u8], key_pem: &str, now_unix: i64) -> io::Result<()> {
        let content = [certificate.trim_ascii_end(), b"\n", key_pem.as_bytes()].concat();
        let stamp = Time::from_unix(now_unix).to_string().replace(['T', ':'], "-");
        let path = self.at(&format!("-{}.pem", stamp.trim_end_matches('Z')));
        self.write(&path, &content)?;
        let link = self.at("-current.tmp");
        let _ = std::fs::remove_file(&link); // one that a crash left
        symlink(path.file_name().unwrap_or_default(), &link)?;
        std::fs::rename(&link, self.current_path())?;
        std::fs::File::open(&self.directory)?.sync_all()?;
        self.forget_pending_key()?;
        self.remove_old(&path);
        Ok(())
    }

    /// Files that cannot be removed are removed at the next renewal.
    fn remove_old(&self, current: &Path) {
        let entries = std::fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let is_one = |name: &str| {
            let stamp = name
                .strip_prefix(&self.pair)
                .and_then(|rest| rest.strip_prefix('-')?.strip_suffix(".pem"));
            stamp.is_some_and(|stamp| stamp.starts_with(|letter: char| letter.is_ascii_digit()))
        };
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut old: Vec<_> =
            names.filter(|name| is_one(name)).map(|name| self.directory.join(name)).collect();
        old.retain(|path| path != current);
        old.sort();
        let over = old.len().saturating_sub(OLD_MAX);
        for path in old.iter().take(over) {
            let _ = std::fs::remove_file(path);
        }
    }

    fn pending_path(&self) -> PathBuf {
        self.at(".key.tmp")
    }

    fn at(&self, end: &str) -> PathBuf {
        self.directory.join(format!("{}{end}", self.pair))
    }

    fn write(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        // A configured directory may be shared; the agent's own one is private.
        private_files::create_trusted_dir(&self.directory)?;
        private_files::write_private_atomically(path, content)
    }
}

/// Reads a private file, if it exists.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match private_files::open_private(path, &mut OpenOptions::new()) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut content = Vec::new();
    file.take(LEN_MAX).read_to_end(&mut content)?;
    Ok(Some(content))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_kept_until_its_certificate_is_there() {
        let directory = tempfile::tempdir().expect("tempdir");
        let store = Store::new(directory.path().join("pki"), "agent-client".into());
        assert_eq!(store.current().expect("read"), None);
        let key = store.pending_key().expect("made");
        let again = store.pending_key().expect("read");
        assert_eq!(key.serialize_pem(), again.serialize_pem());
        let mode = |name: &str| {
            std::fs::metadata(directory.path().join("pki").join(name))
                .expect("there")
                .permissions()
                .mode()
                & 0o777
        };
        assert_eq!((mode("agent-client.key.tmp"), mode("")), (0o600, 0o700));
        store.install(b"CERT\n", "KEY\n", 1_704_207_845).expect("put");
        assert_eq!(store.current().expect("read").as_deref(), Some(b"CERT\nKEY\n".as_slice()));
        let pair = "agent-client-2024-01-02-15-04-05.pem";
        assert_eq!(mode(pair), 0o600);
        // A file that was copied there.
        let open = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(directory.path().join("pki").join(pair), open).expect("opened");
        store.current().expect("read");
        assert_eq!(mode(pair), 0o600);
        assert!(store.pending_key().expect("made").serialize_pem() != key.serialize_pem());
    }

    #[test]
    fn the_link_is_switched_and_old_pairs_go() {
        let directory = tempfile::tempdir().expect("tempdir");
        let store = Store::new(directory.path().to_owned(), "agent-server".into());
        for round in 0..6 {
            store
                .install(format!("CERT {round}").as_bytes(), "KEY", 1_704_207_845 + round)
                .expect("put");
        }
        let link = std::fs::read_link(store.current_path()).expect("a link");
        assert_eq!(link, PathBuf::from("agent-server-2024-01-02-15-04-10.pem"));
        assert_eq!(store.current().expect("read").as_deref(), Some(b"CERT 5\nKEY".as_slice()));
        let files = std::fs::read_dir(directory.path()).expect("read").count();
        assert_eq!(files, OLD_MAX + 2, "the old ones, the one in force and its link");
    }

    #[test]
    fn temporary_files_of_a_crash_do_not_block_new_certificates() {
        let directory = tempfile::tempdir().expect("tempdir");
        let store = Store::new(directory.path().to_owned(), "p".into());
        for left in ["p-current.tmp", "p.key.tmp.new", "p.key.tmp", "p-2024-01-02-15-04-05.pem.new"]
        {
            std::fs::write(directory.path().join(left), "half").expect("written");
        }
        store.pending_key().expect("the pending key is invalid; a new one is created");
        store.install(b"CERT", "KEY", 1_704_207_845).expect("put");
        assert_eq!(store.current().expect("read").as_deref(), Some(b"CERT\nKEY".as_slice()));
    }
}
