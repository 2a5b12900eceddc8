//! A join that is continued is the same join: half a node of one cluster does not become one of another.

use std::path::Path;

use crate::authority::read;
use crate::client_config;
use crate::cluster_info::FoundCluster;
use crate::error::BootstrapError;
use crate::layout::Layout;
use crate::record::Record;

/// Compares the settings with those of an earlier join.
///
/// # Errors
/// They differ.
pub fn check_same_node(record: &Record, node: &str, runtime: &str) -> Result<(), BootstrapError> {
    for (what, before, now) in [
        ("node name", record.node.as_str(), node),
        ("container runtime", record.runtime.as_str(), runtime),
    ] {
        if before != now {
            return Err(BootstrapError::Invalid(format!(
                "an earlier join of this host used the {what} {before:?}, and this one {now:?}: give the same, or `orchadm reset` first"
            )));
        }
    }
    Ok(())
}

/// Compares the cluster with the one that an earlier join found, by its server and its authority.
///
/// # Errors
/// They differ, or what the earlier join left cannot be read.
pub fn check_same_cluster(
    layout: &Layout,
    authority: &Path,
    found: &FoundCluster,
) -> Result<(), BootstrapError> {
    if read(authority)?.is_some_and(|known| known != found.authority) {
        return Err(BootstrapError::Invalid(format!(
            "{} is the authority of another cluster than {}: give the server and the hash of the earlier join, or `orchadm reset` first",
            authority.display(),
            found.server
        )));
    }
    for path in [&layout.bootstrap_node, &layout.node] {
        if read(path)?.is_none() {
            continue;
        }
        let known = client_config::load(path)?.server.to_string();
        if known.trim_end_matches('/') != found.server.trim_end_matches('/') {
            return Err(BootstrapError::Invalid(format!(
                "{} is for the server {known}, and this join is for {}: give the same, or `orchadm reset` first",
                path.display(),
                found.server
            )));
        }
    }
    Ok(())
}
