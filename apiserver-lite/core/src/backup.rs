//! Backups of the store, one at a time, into the directory `backups` of the data directory. The client chooses no path, and gets none of the content.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use apiserver_store::{BackupError, BackupSummary};
use proto_daemon::exit::chain;
use proto_daemon::{panics, private_files};
use time::OffsetDateTime;

use crate::config::Storage;
use crate::server::Server;
use crate::status::ApiError;

/// Most backups that the directory may have: the disk is the store's as well.
const BACKUPS_MAX: usize = 64;

/// Writes a backup of all objects as they are at one revision, encrypted as on disk, and says what it has.
///
/// # Errors
/// 400 without a data directory, 429 while another backup is written, 507 when there are too many, 500 when it cannot be written.
pub async fn back_up(server: Arc<Server>, now: OffsetDateTime) -> Result<BackupSummary, ApiError> {
    let Storage::Directory(data) = &server.config.storage else {
        return Err(ApiError::bad_request(match &server.config.storage {
            Storage::Etcd(_) => {
                "the objects are stored in etcd: back up etcd instead (etcdctl snapshot save)"
            }
            _ => "this server has no --data-dir: its objects are in memory only",
        }));
    };
    let directory = data.join("backups");
    let Ok(turn) = server.backup_turn.clone().try_lock_owned() else {
        return Err(ApiError::too_many_requests("another backup is being written", 1));
    };
    let writing = panics::spawn_blocking(move || {
        let _turn = turn;
        write(&server, &directory, now)
    });
    let made = writing.await.map_err(ApiError::internal)??;
    tracing::info!(path = %made.path.display(), revision = %made.revision, objects = made.records, "wrote a backup of the store");
    Ok(made)
}

fn write(
    server: &Server,
    directory: &Path,
    now: OffsetDateTime,
) -> Result<BackupSummary, ApiError> {
    let failed = |source| {
        let path = directory.to_owned();
        ApiError::internal(chain(&BackupError::File { path, source }))
    };
    private_files::create_private_dir(directory).map_err(failed)?;
    let there = directory.read_dir().map_err(failed)?.count();
    if there >= BACKUPS_MAX {
        let text = format!(
            "{} has {there} backups, which is the most: move old ones elsewhere",
            directory.display()
        );
        return Err(ApiError::new(507, "InsufficientStorage", text));
    }
    let path = directory.join(file_name(now));
    let made = server.store.backup(&path, |record| record.backup_value(&server.engine));
    made.map_err(|error| ApiError::internal(chain(&error)))
}

/// Sorts by time.
fn file_name(now: OffsetDateTime) -> PathBuf {
    let (year, month, day) = (now.year(), u8::from(now.month()), now.day());
    let (hour, minute, second) = (now.hour(), now.minute(), now.second());
    let micros = now.microsecond();
    PathBuf::from(format!(
        "{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}.{micros:06}Z.backup"
    ))
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn names_of_backups_sort_by_time() {
        let name = |at| file_name(at).display().to_string();
        let first = name(datetime!(2026-01-02 03:04:05.006 UTC));
        assert_eq!(first, "20260102T030405.006000Z.backup");
        assert!(first < name(datetime!(2026-01-02 03:04:05.007 UTC)));
    }

    #[tokio::test]
    async fn objects_in_memory_have_no_backup() {
        use proto_api::names::{Names, Profile};
        let server = Arc::new(Server::for_tests(Names::new(Profile::Kubernetes)));
        let error = back_up(server, OffsetDateTime::UNIX_EPOCH).await.unwrap_err();
        assert_eq!(error.code(), 400);
    }
}
