//! `orch-proxy cleanup`: deletes the proxy's tables.

use proxy_kernel::CommitError;
use proxy_netfilter::ack::errno;
use proxy_rules::table_swap;
use proxy_rules::transaction::clear_table;

use crate::build_error::BuildError;
use crate::config::Config;
use crate::forwarding_path::NetfilterHandle;
use crate::tables;

/// The tables were not deleted.
#[derive(Debug, thiserror::Error)]
pub enum CleanupError {
    /// The netlink session cannot be opened.
    #[error("cannot prepare the cleanup")]
    Prepare(#[from] BuildError),
    /// A running proxy owns them.
    #[error("table {0} belongs to a running proxy; stop it first")]
    InUse(String),
    /// The kernel refused.
    #[error("cannot delete table {0}")]
    Delete(String, #[source] CommitError),
}

/// Deletes the tables of both families, if they exist.
pub fn clean_up(config: &Config) -> Result<(), CleanupError> {
    let NetfilterHandle { mut session, features } = NetfilterHandle::open(config)?;
    let layout = tables::layout(&features, config);
    let mut batch = session.batch(None);
    for table in table_swap::table_names(&layout.table) {
        layout.families.iter().for_each(|family| clear_table(&table, *family, &mut batch));
    }
    tables::stale_flow_log(&layout).delete_table(&mut batch);
    session.commit(batch).map_err(|error| match error.errno() {
        Some(errno::EPERM) => CleanupError::InUse(config.table.clone()),
        _ => CleanupError::Delete(config.table.clone(), error),
    })
}
