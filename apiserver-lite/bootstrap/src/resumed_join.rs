//! A command that is continued is the same command: half a node of one cluster does not become one of another, nor an API server get another store.

use std::path::Path;

use crate::authority::read;
use crate::client_config;
use crate::cluster_info::FoundCluster;
use crate::error::BootstrapError;
use crate::external_etcd::ExternalEtcd;
use crate::layout::Layout;
use crate::record::HostRecord;

/// Compares the settings with those of an earlier join.
///
/// # Errors
/// They differ.
pub fn check_same_node(
    record: &HostRecord,
    node: &str,
    runtime: &str,
) -> Result<(), BootstrapError> {
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

/// Compares the place of the objects with that of the API server which an earlier run has set up.
///
/// # Errors
/// They differ.
pub fn check_same_store(
    record: &HostRecord,
    etcd: Option<&ExternalEtcd>,
) -> Result<(), BootstrapError> {
    let shown = |members: Option<String>| match members {
        Some(members) => format!("in the etcd at {members}"),
        None => "in the API server's own store".to_owned(),
    };
    let before = record.kept_in_etcd().map(|(members, _)| members);
    let now = etcd.map(|etcd| etcd.endpoints.join(","));
    if record.program("orch-apiserver").is_none() || before == now {
        return Ok(());
    }
    Err(BootstrapError::Invalid(format!(
        "an earlier run on this host keeps the objects {}, and this one {}: give the same, or `orchadm reset` first",
        shown(before),
        shown(now)
    )))
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

#[cfg(test)]
mod tests {
    use proto_api::names::{Names, Profile};

    use super::*;
    use crate::arguments::Program;
    use crate::preflight::Role;

    #[test]
    fn objects_stay_where_the_earlier_run_keeps_them() {
        let record = |flags: &[&str]| {
            let names = Names::new(Profile::Kubernetes);
            let mut record = HostRecord::new(names, Role::ControlPlane, "n", "");
            let argv = flags.iter().map(|flag| (*flag).to_owned()).collect();
            record.put(&Program { name: "orch-apiserver".into(), argv });
            record
        };
        let endpoints = ["http://a:1", "http://b:1"].map(str::to_owned).to_vec();
        let etcd = ExternalEtcd { endpoints, ..ExternalEtcd::default() };
        let (own, external) = (
            record(&["/b/p", "--data-dir=/d"]),
            record(&["/b/p", "--etcd-servers=http://a:1,http://b:1"]),
        );
        check_same_store(&own, None).unwrap();
        check_same_store(&external, Some(&etcd)).unwrap();
        check_same_store(&HostRecord::default(), Some(&etcd)).unwrap();
        let error = check_same_store(&external, None).unwrap_err().to_string();
        assert!(error.contains("http://a:1,http://b:1") && error.contains("own store"), "{error}");
        assert!(check_same_store(&own, Some(&etcd)).is_err());
        assert!(
            check_same_store(&record(&["/b/p", "--etcd-servers=http://c:1"]), Some(&etcd)).is_err()
        );
    }
}
