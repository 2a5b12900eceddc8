//! Whose turn it is to charge the quotas of a namespace.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};

use tokio::sync::{Mutex, MutexGuard};

const LOCKS: usize = 64;

/// Writes that charge quotas take turns by namespace: each needs the amounts that the one before it leaves. Namespaces share a fixed number
/// of locks.
#[derive(Debug)]
pub struct QuotaTurns(Vec<Mutex<()>>);

impl Default for QuotaTurns {
    fn default() -> Self {
        Self((0..LOCKS).map(|_| Mutex::default()).collect())
    }
}

impl QuotaTurns {
    /// Waits for the turn of a write in `namespace`; it ends when the guard is dropped.
    pub async fn take(&self, namespace: &str) -> Option<MutexGuard<'_, ()>> {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(namespace);
        let at = usize::try_from(hash.checked_rem(LOCKS as u64).unwrap_or(0)).unwrap_or(0);
        Some(self.0.get(at)?.lock().await)
    }
}
