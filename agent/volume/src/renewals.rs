//! Renewal times of a pod's tokens, stored next to its volumes for the next start of the agent: `<root>/pods/<uid>/tokens.json`.
//! Contains times, audiences and lifetimes, never a token.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::beneath;
use crate::pod_volumes::VolumesOnDisk;
use crate::sources::TokenWant;
use crate::token::TokenRenewal;

const FILE: &str = "tokens.json";
const FILE_NEW: &str = ".tokens.json.new";
/// Longest file that is read, in bytes.
const LEN_MAX: u64 = 256 << 10;

/// A token in a pod's volumes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldToken {
    audience: String,
    /// Requested lifetime in seconds.
    expiration_secs: i64,
    /// Time of issue in seconds since 1970 by the API server's clock; distinguishes a token from its successor.
    pub issued_at: i64,
    /// Time of renewal.
    pub renewal: TokenRenewal,
}

impl HeldToken {
    /// A token issued for `want`.
    #[must_use]
    pub fn new(want: &TokenWant, issued_at: i64, renewal: TokenRenewal) -> Self {
        let audience = want.audience.clone();
        Self { audience, expiration_secs: want.expiration_secs, issued_at, renewal }
    }

    /// Whether it was issued for `want`.
    #[must_use]
    pub fn is_for(&self, want: &TokenWant) -> bool {
        self.audience == want.audience && self.expiration_secs == want.expiration_secs
    }
}

/// Content of the file. Times since boot are valid only for the same boot.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct RenewalRecord {
    boot: String,
    tokens: Vec<HeldToken>,
}

impl VolumesOnDisk {
    /// The stored renewals of a pod for the boot with the id `boot`; empty if they cannot be read.
    #[must_use]
    pub fn renewals(&self, uid: &str, boot: &str) -> Vec<HeldToken> {
        let record = self.open_pod(uid).ok().flatten().and_then(|pod| read(&pod));
        record.filter(|record| record.boot == boot).map(|record| record.tokens).unwrap_or_default()
    }

    /// Stores the renewals of a pod's tokens if they changed. To be called after the tokens were written: a record of an older
    /// token merely renews the newer one too early.
    ///
    /// # Errors
    /// Errors of the kernel; the file is unchanged.
    /// What the kernel says; the file is as it was then.
    pub fn write_renewals(
        &self,
        uid: &str,
        boot: &str,
        tokens: Vec<HeldToken>,
    ) -> rustix::io::Result<()> {
        let Some(pod) = self.open_pod(uid)? else { return Ok(()) };
        let record = RenewalRecord { boot: boot.to_owned(), tokens };
        if read(&pod).as_ref() == Some(&record) {
            return Ok(());
        }
        let text = serde_json::to_vec(&record).map_err(|_| Errno::INVAL)?;
        beneath::remove(&pod, FILE_NEW)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let file = beneath::open(&pod, FILE_NEW, flags, Mode::from_raw_mode(0o600))?;
        let written = std::fs::File::from(file).write_all(&text);
        written.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        rustix::fs::renameat(&pod, FILE_NEW, &pod, FILE)
    }
}

fn read(pod: &OwnedFd) -> Option<RenewalRecord> {
    let file = beneath::open(pod, FILE, OFlags::RDONLY, Mode::empty()).ok()?;
    let mut text = Vec::new();
    std::fs::File::from(file).take(LEN_MAX).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proto_api::names::{Names, Profile};

    use super::*;

    #[test]
    fn token_renewal_records_are_of_this_boot_and_deleted_with_the_pod() {
        let root = tempfile::tempdir().unwrap();
        let pods = VolumesOnDisk::new(root.path(), Names::new(Profile::Kubernetes));
        let want = TokenWant { audience: "vault".into(), expiration_secs: 600 };
        let renewal = TokenRenewal { boot: Duration::from_millis(1500), unix: 99 };
        let held = vec![HeldToken::new(&want, 7, renewal)];
        pods.write_renewals("u", "b", held.clone()).unwrap();
        assert!(pods.renewals("u", "b").is_empty(), "nothing is made for a pod that is not there");
        std::fs::create_dir_all(root.path().join("pods/u")).unwrap();
        std::fs::write(root.path().join("pods/u/.tokens.json.new"), "half").unwrap();
        pods.write_renewals("u", "b", held.clone()).unwrap();
        assert_eq!(pods.renewals("u", "b"), held);
        assert!(held[0].is_for(&want));
        assert!(pods.renewals("u", "another").is_empty());
        std::fs::write(root.path().join("pods/u/tokens.json"), "{").unwrap();
        assert!(pods.renewals("u", "b").is_empty(), "a damaged file says nothing");
        pods.tear_down("u").unwrap();
        assert!(!root.path().join("pods/u").exists());
    }
}
