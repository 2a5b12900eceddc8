//! Detection of cgroup hierarchies from the mount table.

use std::path::Path;

use proto_daemon::mountinfo::{self, Mount};

use super::files::read_value;
use super::{CgroupError, Layout, V1Trees};

/// Controllers of cgroup v1 whose limits are set here.
const OWN: [&str; 5] = ["cpu", "cpuacct", "memory", "pids", "hugetlb"];

pub(super) fn layout() -> Result<Layout, CgroupError> {
    let mounts = mountinfo::read().map_err(CgroupError::Mounts)?;
    from_mounts(mounts.iter(), |mount| {
        read_value(&mount.join("cgroup.controllers")).unwrap_or_default()
    })
}

/// Adds a hierarchy whose limits are not set here, once per mount point.
fn other(v1: &mut V1Trees, at: &Path) {
    if !v1.others.iter().any(|known| known == at) {
        v1.others.push(at.to_owned());
    }
}

/// `controllers` returns the controllers of a v2 hierarchy.
pub(super) fn from_mounts<'a>(
    mounts: impl Iterator<Item = &'a Mount>,
    controllers: impl Fn(&Path) -> String,
) -> Result<Layout, CgroupError> {
    let mut v1 = V1Trees::default();
    for mount in mounts {
        let at = &mount.point;
        match mount.kind.as_slice() {
            b"cgroup2" => {
                let has = controllers(at);
                let has = |wanted: &str| has.split_whitespace().any(|there| there == wanted);
                if has("cpu") && has("memory") {
                    return Ok(Layout::V2 { mount: at.clone() });
                }
                other(&mut v1, at);
            }
            b"cgroup" => {
                let has = |controller: &str| mount.has_option(controller);
                let mut used = false;
                for (controller, place) in [
                    ("cpu", &mut v1.cpu),
                    ("cpuacct", &mut v1.cpuacct),
                    ("memory", &mut v1.memory),
                    ("pids", &mut v1.pids),
                    ("hugetlb", &mut v1.hugetlb),
                ] {
                    if has(controller) && place.is_none() {
                        *place = Some(at.clone());
                        used = true;
                    }
                }
                // A second mount of a known hierarchy.
                let known = OWN.iter().any(|ours| has(ours));
                if !used && !known {
                    other(&mut v1, at);
                }
            }
            _ => {}
        }
    }
    if v1.cpu.is_some() && v1.memory.is_some() {
        Ok(Layout::V1(v1))
    } else {
        Err(CgroupError::NoTree)
    }
}
