//! The API server's encryption configuration: Secrets are encrypted on disk with a key that is made once.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proto_api::names::Names;
use proto_daemon::private_files;
use rand::TryRng as _;
use rand::rngs::SysRng;

use crate::authority::read;
use crate::certificates::FileChange;
use crate::error::BootstrapError;

/// Bytes of the key: AES-GCM with 256 bits.
const KEY_LEN: usize = 32;

/// The file in a directory of keys.
#[must_use]
pub fn file(dir: &Path) -> PathBuf {
    dir.join("encryption.yaml")
}

/// Makes the file with a new key if it is missing. One that is there stays: what its key encrypted is lost without it.
///
/// # Errors
/// The file cannot be read or written, or the system gives no random numbers.
pub fn ensure(dir: &Path, names: &Names) -> Result<FileChange, BootstrapError> {
    let path = file(dir);
    if read(&path)?.is_some() {
        private_files::make_private(&path).map_err(BootstrapError::file(&path))?;
        return Ok(FileChange::Kept);
    }
    let mut key = [0; KEY_LEN];
    SysRng.try_fill_bytes(&mut key).map_err(|error| BootstrapError::System {
        what: "cannot generate random bytes for the encryption key".to_owned(),
        cause: std::io::Error::other(error),
    })?;
    let written = private_files::write_private_atomically(&path, text(names, &key).as_bytes());
    written.map_err(BootstrapError::file(&path))?;
    Ok(FileChange::New)
}

/// What was stored before in clear text is still read.
fn text(names: &Names, key: &[u8]) -> String {
    let (domain, secret) = (names.group_domain(), STANDARD.encode(key));
    format!(
        "apiVersion: apiserver.config.{domain}/v1
kind: EncryptionConfiguration
resources:
- resources:
  - secrets
  providers:
  - aesgcm:
      keys:
      - name: key1
        secret: {secret}
  - identity: {{}}
"
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use proto_api::names::Profile;

    use super::*;

    #[test]
    fn a_key_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let names = Names::new(Profile::Kubernetes);
        assert_eq!(ensure(dir.path(), names).unwrap(), FileChange::New);
        let path = file(dir.path());
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let made = std::fs::read_to_string(&path).unwrap();
        assert_eq!(ensure(dir.path(), names).unwrap(), FileChange::Kept);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), made);
        let tree: serde_json::Value = proto_api::yaml::parse(&made).unwrap();
        assert_eq!(tree["apiVersion"], "apiserver.config.k8s.io/v1");
        let provider = &tree["resources"][0]["providers"][0]["aesgcm"]["keys"][0];
        let secret = STANDARD.decode(provider["secret"].as_str().unwrap()).unwrap();
        assert_eq!(secret.len(), KEY_LEN);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(ensure(dir.path(), names).unwrap(), FileChange::New);
        assert_ne!(std::fs::read_to_string(&path).unwrap(), made, "every key is another one");
    }
}
