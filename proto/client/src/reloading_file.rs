//! Files that other programs renew: reloaded when they have changed, checked at most once a second. While the new content is invalid the old one is used.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::config::Pem;

/// Interval at which a file is checked.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Largest file: certificates and tokens are smaller.
const LEN_MAX: u64 = 1 << 20;

/// A file, or a text that never changes.
#[derive(Debug)]
pub struct ReloadingFile {
    path: Option<PathBuf>,
    seen: Option<Fingerprint>,
    looked: Option<Instant>,
    content: Arc<[u8]>,
}

/// Changes with every way of renewing a file: a write, a rename over it, a change of a symbolic link in its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fingerprint {
    device: u64,
    inode: u64,
    len: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Fingerprint {
    fn from_metadata(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            len: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl ReloadingFile {
    /// A file that may not exist yet.
    pub fn file(path: PathBuf) -> Self {
        Self { path: Some(path), seen: None, looked: None, content: Arc::default() }
    }

    /// A text that never changes.
    pub fn fixed(content: Vec<u8>) -> Self {
        Self { path: None, seen: None, looked: None, content: content.into() }
    }

    pub(crate) fn pem(pem: &Pem) -> Self {
        match pem {
            Pem::File(path) => Self::file(path.clone()),
            Pem::Data(data) => Self::fixed(data.clone()),
        }
    }

    /// The content, and whether it differs from the last call's. An error only if no content was ever read.
    pub fn current(&mut self, now: Instant) -> std::io::Result<(Arc<[u8]>, Changed)> {
        let Some(path) = &self.path else {
            let changed =
                if self.looked.replace(now).is_none() { Changed::Yes } else { Changed::No };
            return Ok((self.content.clone(), changed));
        };
        if self.looked.is_some_and(|looked| now < looked + LOOK_EVERY) && self.seen.is_some() {
            return Ok((self.content.clone(), Changed::No));
        }
        self.looked = Some(now);
        match read_if_changed(path, self.seen) {
            Ok(None) => Ok((self.content.clone(), Changed::No)),
            Ok(Some((fingerprint, content))) => {
                self.seen = Some(fingerprint);
                let same = *self.content == *content;
                self.content = content.into();
                Ok((self.content.clone(), if same { Changed::No } else { Changed::Yes }))
            }
            Err(cause) if self.seen.is_some() => {
                tracing::warn!(path = %path.display(), error = %cause, "cannot reload a file; its previous content stays in use");
                Ok((self.content.clone(), Changed::No))
            }
            Err(cause) => Err(cause),
        }
    }
}

/// Whether a content is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// It differs from the last one.
    Yes,
    /// It is the last one.
    No,
}

fn read_if_changed(
    path: &PathBuf,
    seen: Option<Fingerprint>,
) -> std::io::Result<Option<(Fingerprint, Vec<u8>)>> {
    use std::io::Read;

    let file = std::fs::File::open(path)?;
    let fingerprint = Fingerprint::from_metadata(&file.metadata()?);
    if seen == Some(fingerprint) {
        return Ok(None);
    }
    let mut content = Vec::new();
    file.take(LEN_MAX).read_to_end(&mut content)?;
    Ok(Some((fingerprint, content)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewed_file_is_noticed_within_a_second_and_a_lost_one_keeps_its_content() {
        let directory = tempfile::tempdir().expect("tempdir");
        let path = directory.path().join("token");
        let mut token = ReloadingFile::file(path.clone());
        let start = Instant::now();
        assert!(token.current(start).is_err());

        std::fs::write(&path, "one").expect("written");
        assert_eq!(token.current(start).expect("read"), (b"one".as_slice().into(), Changed::Yes));
        let other = directory.path().join("new");
        std::fs::write(&other, "two").expect("written");
        std::fs::rename(&other, &path).expect("renamed");
        let soon = start + LOOK_EVERY / 2;
        assert_eq!(token.current(soon).expect("kept"), (b"one".as_slice().into(), Changed::No));
        let later = start + LOOK_EVERY;
        assert_eq!(token.current(later).expect("read"), (b"two".as_slice().into(), Changed::Yes));

        std::fs::remove_file(&path).expect("removed");
        let last = later + LOOK_EVERY;
        assert_eq!(token.current(last).expect("kept"), (b"two".as_slice().into(), Changed::No));
    }

    #[test]
    fn data_is_new_once() {
        let mut pem = ReloadingFile::pem(&Pem::Data(b"x".to_vec()));
        assert_eq!(pem.current(Instant::now()).expect("data").1, Changed::Yes);
        assert_eq!(pem.current(Instant::now()).expect("data").1, Changed::No);
    }
}
