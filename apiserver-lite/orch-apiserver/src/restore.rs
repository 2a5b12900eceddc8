//! `--restore`: a store made of a backup, before the first start on it.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use apiserver_core::config::{Config, Storage};
use apiserver_store::RestoredStore;
use proto_daemon::private_files;

use crate::app::{STORE, store_identity};
use crate::build_error::BuildError;

/// Makes the store of `config` of the backup `file`.
///
/// # Errors
/// There is a store already, the file is no whole backup of a server of this naming profile, or the disk fails.
pub fn restore(config: &Config, file: &Path) -> Result<RestoredStore, BuildError> {
    let Storage::Directory(dir) = &config.storage else { return Err(BuildError::NoDataDir) };
    let failed = |source| BuildError::Directory { path: dir.clone(), source };
    private_files::create_trusted_dir(dir).map_err(failed)?;
    // A clock before 1970 leaves the gap that does not depend on the time.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let identity = store_identity(config.names);
    let restored = apiserver_store::restore(file, &dir.join(STORE), &identity, now)?;
    tracing::info!(
        objects = restored.records, backup = %restored.backup, revision = %restored.revision, store = %dir.join(STORE).display(),
        "backup restored; start the server without --restore"
    );
    Ok(restored)
}
