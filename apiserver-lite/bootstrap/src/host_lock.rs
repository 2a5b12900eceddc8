//! One command at a time changes a host: a second `init` beside one that runs would write the same files, and a `reset` would remove what is being made. Held
//! by a lock on a file, which ends with its process however that ends.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use proto_daemon::private_files;

use crate::error::BootstrapError;
use crate::layout::Layout;
use crate::poll_until::{self, NotYet};
use crate::processes::FileId;

/// How long the command before is waited for: one that was killed holds its lock until the kernel has ended it.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two tries.
const POLL: Duration = Duration::from_millis(50);
/// Most bytes of what the holder writes of itself.
const HOLDER_MAX: u64 = 32;

/// The right to change a host, until it is dropped.
pub struct HostLock {
    path: PathBuf,
    held: Flock<File>,
}

impl HostLock {
    /// Takes the lock of a host, once a command that has it has ended; it is waited for 5 s.
    ///
    /// # Errors
    /// Another command changes the host, or the file cannot be made.
    pub async fn take(layout: &Layout) -> Result<Self, BootstrapError> {
        Self::take_within(&layout.lock(), PATIENCE).await
    }

    async fn take_within(path: &Path, patience: Duration) -> Result<Self, BootstrapError> {
        let tried =
            poll_until::until(
                "no other command does",
                patience,
                POLL,
                async || match Self::try_take(path) {
                    Ok(Ok(lock)) => Ok(Ok(lock)),
                    Ok(Err(busy)) => Err(busy),
                    Err(error) => Ok(Err(error)),
                },
            );
        match tried.await {
            Ok(taken) => taken,
            Err(late) => Err(BootstrapError::Program(late.state)),
        }
    }

    /// The lock, or who has it.
    fn try_take(path: &Path) -> Result<Result<Self, NotYet>, BootstrapError> {
        let file = open_file(path).map_err(BootstrapError::file(path))?;
        let mut held = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(held) => held,
            Err((mut file, nix::errno::Errno::EAGAIN)) => {
                return Ok(Err(NotYet(format!(
                    "{} of orchadm changes this host: let it end first",
                    read_holder(&mut file)
                ))));
            }
            Err((_, error)) => return Err(BootstrapError::file(path)(error.into())),
        };
        // A reset removes the file while it holds it: the lock of a file without a name keeps no other command out.
        if FileId::from_path(path).ok() != FileId::of_file(&held).ok() {
            return Ok(Err(NotYet("a reset of this host ends".to_owned())));
        }
        // Only for the message of others: a full disk keeps no command from its work.
        let _unsaid = held
            .set_len(0)
            .and_then(|()| held.seek(SeekFrom::Start(0)))
            .and_then(|_| held.write_all(format!("process {}", std::process::id()).as_bytes()));
        Ok(Ok(Self { path: path.to_owned(), held }))
    }

    /// Removes the file, after everything else of a host, and gives the lock back.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn remove(self) -> Result<(), BootstrapError> {
        private_files::remove_private(&self.path).map_err(BootstrapError::file(&self.path))?;
        drop(self.held);
        Ok(())
    }
}

fn open_file(path: &Path) -> std::io::Result<File> {
    if let Some(dir) = path.parent() {
        private_files::create_trusted_dir(dir)?;
    }
    match private_files::create_private(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            private_files::open_private(path, OpenOptions::new().write(true))
        }
        made => made,
    }
}

/// Who has the lock, as it has written.
fn read_holder(file: &mut File) -> String {
    let mut text = String::new();
    let read = file.take(HOLDER_MAX).read_to_string(&mut text);
    let is_plain = text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b' ');
    match read {
        Ok(1..) if is_plain => text,
        _ => "another process".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use proto_api::names::{Names, Profile};

    use super::*;

    const SHORT: Duration = Duration::from_millis(100);

    #[tokio::test]
    async fn a_second_command_is_refused_by_name_and_a_later_one_goes_on() {
        let root = tempfile::tempdir().unwrap();
        let path = Layout::new(Names::new(Profile::Kubernetes), root.path()).lock();
        let first = HostLock::take_within(&path, SHORT).await.unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let refused = HostLock::take_within(&path, SHORT).await.err().unwrap().to_string();
        assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
        drop(first);
        let second = HostLock::take_within(&path, SHORT).await.unwrap();
        second.remove().unwrap();
        assert!(!path.exists());
        HostLock::take_within(&path, SHORT).await.unwrap();
    }

    #[tokio::test]
    async fn a_lock_whose_file_was_removed_is_not_taken_for_one() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("lock");
        let of_reset = HostLock::take_within(&path, SHORT).await.unwrap();
        // Opened before the reset has removed it, and locked after.
        let opened = open_file(&path).unwrap();
        of_reset.remove().unwrap();
        let other = Flock::lock(opened, FlockArg::LockExclusiveNonblock).unwrap();
        let next = HostLock::take_within(&path, SHORT).await.unwrap();
        assert_ne!(FileId::of_file(&other).unwrap(), FileId::of_file(&next.held).unwrap());
        std::fs::remove_file(&path).unwrap();
        assert!(HostLock::try_take(&path).unwrap().is_ok());
    }
}
