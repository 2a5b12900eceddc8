//! The files of the CA, which are read again when they have changed: a CA is rotated without a restart, as in Kubernetes.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ring::digest::{Context, Digest, SHA256};

use super::authority::{CertificateAuthority, CertificateAuthorityError};

/// `--cluster-signing-cert-file` and its key, with the CA that was read from them last.
pub struct AuthorityFiles {
    certificate: PathBuf,
    key: PathBuf,
    /// Maximum validity of a certificate.
    life_max: Duration,
    read: Mutex<ReadAuthority>,
}

/// What was read, and of which contents.
struct ReadAuthority {
    authority: Arc<CertificateAuthority>,
    contents: Digest,
}

impl AuthorityFiles {
    /// Reads both files.
    ///
    /// # Errors
    /// They cannot be read, or are no CA and its key.
    pub fn open(
        certificate: &Path,
        key: &Path,
        life_max: Duration,
    ) -> Result<Self, CertificateAuthorityError> {
        let texts = (read(certificate)?, read(key)?);
        let authority = CertificateAuthority::new(&texts.0, &texts.1, life_max)?;
        let contents = digest(&texts);
        let read = Mutex::new(ReadAuthority { authority: Arc::new(authority), contents });
        Ok(Self { certificate: certificate.to_owned(), key: key.to_owned(), life_max, read })
    }

    /// The CA as the files have it now. While they are unusable, for example because only one of them is replaced yet, it is the one before. Reads files:
    /// for a thread that may block.
    pub fn current(&self) -> Arc<CertificateAuthority> {
        let mut known = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = self.refresh(&mut known) {
            tracing::warn!(
                file = %self.certificate.display(),
                error = proto_daemon::exit::chain(&error),
                "cannot use the changed CA of certificate requests; signing with the one before"
            );
        }
        known.authority.clone()
    }

    fn refresh(&self, known: &mut ReadAuthority) -> Result<(), CertificateAuthorityError> {
        let texts = (read(&self.certificate)?, read(&self.key)?);
        let contents = digest(&texts);
        if contents.as_ref() == known.contents.as_ref() {
            return Ok(());
        }
        let authority = CertificateAuthority::new(&texts.0, &texts.1, self.life_max)?;
        *known = ReadAuthority { authority: Arc::new(authority), contents };
        tracing::info!(
            file = %self.certificate.display(),
            "certificate requests are signed with another CA: its files have changed"
        );
        Ok(())
    }
}

fn read(path: &Path) -> Result<String, CertificateAuthorityError> {
    std::fs::read_to_string(path)
        .map_err(|cause| CertificateAuthorityError::Read(path.display().to_string(), cause))
}

fn digest((certificate, key): &(String, String)) -> Digest {
    let mut context = Context::new(&SHA256);
    // The length of the first says where the second begins.
    context.update(&certificate.len().to_be_bytes());
    context.update(certificate.as_bytes());
    context.update(key.as_bytes());
    context.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::authority::tests::pair;

    const LIFE: Duration = Duration::from_secs(3600);

    /// kubeadm makes RSA keys.
    #[test]
    fn an_rsa_key_matches_its_certificate() {
        let text = include_str!("../../../token/testdata/rsa.key");
        let key = apiserver_token::pkcs8_from_pem(text.as_bytes()).expect("a key");
        let key = rcgen::KeyPair::try_from(key).expect("a key");
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("signed").pem();
        assert!(CertificateAuthority::new(&certificate, text, LIFE).is_ok());
    }

    #[test]
    fn a_changed_pair_is_used_and_half_a_pair_is_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let (certificate, key) = (dir.path().join("ca.crt"), dir.path().join("ca.key"));
        let write = |path: &Path, text: &str| std::fs::write(path, text).expect("written");
        let (first, second) = (pair(), pair());
        write(&certificate, &first.0);
        assert!(AuthorityFiles::open(&certificate, &key, LIFE).is_err(), "no key");
        write(&key, &second.1);
        assert!(AuthorityFiles::open(&certificate, &key, LIFE).is_err(), "another's key");
        write(&key, &first.1);
        let files = AuthorityFiles::open(&certificate, &key, LIFE).expect("a pair");
        let before = files.current();
        assert!(Arc::ptr_eq(&before, &files.current()), "nothing has changed");
        write(&certificate, &second.0);
        assert!(Arc::ptr_eq(&before, &files.current()), "half a pair");
        std::fs::remove_file(&key).expect("removed");
        assert!(Arc::ptr_eq(&before, &files.current()), "no key");
        write(&key, &second.1);
        let after = files.current();
        assert!(!Arc::ptr_eq(&before, &after), "another pair");
        assert!(Arc::ptr_eq(&after, &files.current()), "nothing has changed since");
    }
}
