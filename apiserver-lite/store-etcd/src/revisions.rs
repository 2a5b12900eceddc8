//! Revisions as etcd counts them, and as the store does.

use apiserver_store::Revision;

/// etcd's revisions are never negative.
pub fn revision(of_etcd: i64) -> Revision {
    Revision(u64::try_from(of_etcd).unwrap_or(0))
}

/// As etcd counts.
pub fn of_etcd(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}
