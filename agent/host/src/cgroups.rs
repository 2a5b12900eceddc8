//! The pods' cgroups.
//!
//! In cgroup v1 each controller has its own hierarchy, and a cgroup is a directory in each; in v2 it is one directory. On a host
//! with both, v2 is used only if it has the controllers that pods need. Names and limits come from `agent_node::cgroup`; this
//! module writes, reads and removes them.

mod detect;
mod files;

use std::path::{Path, PathBuf};

use agent_node::cgroup::{CgroupLimits, QUOTA_PERIOD_US, huge_page_file_size};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use files::{exists, list, make, read_number, read_value, remove_directory, write};

/// Deepest tree below a cgroup: pod, container, and cgroups that a container creates.
const DEPTH_MAX: usize = 32;

/// The cgroup hierarchies of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroups {
    layout: Layout,
}

/// Mount points of the hierarchies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Version 1: one hierarchy per controller (some are shared).
    V1(V1Trees),
    /// Version 2: one hierarchy.
    V2 {
        /// Its mount point.
        mount: PathBuf,
    },
}

/// Mount points of cgroup v1 by controller; `None` if the host lacks it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct V1Trees {
    pub cpu: Option<PathBuf>,
    pub cpuacct: Option<PathBuf>,
    pub memory: Option<PathBuf>,
    pub pids: Option<PathBuf>,
    pub hugetlb: Option<PathBuf>,
    /// All other hierarchies, including the unified one. Runtimes create directories there, too, which are removed with the pod.
    pub others: Vec<PathBuf>,
}

impl V1Trees {
    /// Hierarchies whose limits are set here.
    fn own(&self) -> [&Option<PathBuf>; 5] {
        [&self.cpu, &self.cpuacct, &self.memory, &self.pids, &self.hugetlb]
    }
}

/// Why a cgroup operation failed.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// The mount table cannot be read.
    #[error("cannot find the cgroup hierarchies")]
    Mounts(#[source] std::io::Error),
    /// No hierarchy has the controllers cpu and memory.
    #[error("no cgroup hierarchy has the controllers cpu and memory")]
    NoTree,
    /// The path of a cgroup is invalid.
    #[error("cgroup {0:?} is not an absolute path of plain names")]
    Path(String),
    /// A directory cannot be created.
    #[error("cannot create cgroup {}", path.display())]
    Make {
        /// The directory.
        path: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// A limit cannot be set.
    #[error("cannot set {} to {value}", path.display())]
    Set {
        /// The file.
        path: PathBuf,
        value: String,
        /// Cause; `EBUSY` if a limit is below the current usage.
        #[source]
        source: std::io::Error,
    },
    /// A directory cannot be removed or read.
    #[error("cannot remove cgroup {}", path.display())]
    Remove {
        /// The directory.
        path: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
}

/// Whether a cgroup was removed, or still has processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Removed, or did not exist.
    Gone,
    /// Killed processes have not exited yet: to be retried after a few milliseconds.
    Busy,
}

/// CPU time and memory of a cgroup, from its files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupUsage {
    /// CPU time since creation in nanoseconds.
    pub cpu_nanos: u64,
    /// Charged memory in bytes.
    pub memory_bytes: u64,
    /// Working set in bytes: charged memory without inactive file pages, as used for eviction.
    pub working_set_bytes: u64,
    /// Anonymous memory in bytes.
    pub rss_bytes: u64,
    /// Number of processes and threads.
    pub tasks: u64,
}

impl Cgroups {
    /// Finds the hierarchies of this host.
    ///
    /// # Errors
    /// The mount table cannot be read, or a required controller is missing.
    pub fn detect() -> Result<Self, CgroupError> {
        detect::layout().map(Self::new)
    }

    /// Uses known hierarchies.
    #[must_use]
    pub fn new(layout: Layout) -> Self {
        Self { layout }
    }

    /// Mount points of the hierarchies.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Creates the cgroup at `place` (a path from the root of the hierarchy) with its parents, or updates its limits. Limits not
    /// in `limits` stay unchanged, except that a missing CPU quota removes the quota.
    ///
    /// # Errors
    /// The first directory or limit that the kernel rejects.
    pub fn make(&self, place: &str, limits: &CgroupLimits) -> Result<(), CgroupError> {
        check_place(place)?;
        match &self.layout {
            Layout::V1(trees) => {
                for tree in trees.own().into_iter().flatten() {
                    make(&below(tree, place))?;
                }
                self.set_v1(trees, place, limits)
            }
            Layout::V2 { mount } => {
                make_v2(mount, place)?;
                set_v2(&below(mount, place), limits)
            }
        }
    }

    /// Whether the cgroup at `place` exists.
    #[must_use]
    pub fn exists(&self, place: &str) -> bool {
        check_place(place).is_ok() && self.roots().any(|root| exists(&below(root, place)))
    }

    /// Kills the processes in a cgroup and removes it with all cgroups below.
    ///
    /// # Errors
    /// The kernel refuses for another reason than exiting processes.
    pub fn remove(&self, place: &str) -> Result<Removal, CgroupError> {
        check_place(place)?;
        let mut outcome = Removal::Gone;
        for root in self.roots() {
            if remove_tree(&below(root, place), 0)? == Removal::Busy {
                outcome = Removal::Busy;
            }
        }
        Ok(outcome)
    }

    /// Usage of the cgroup at `place`; `None` if it does not exist.
    #[must_use]
    pub fn usage(&self, place: &str) -> Option<CgroupUsage> {
        check_place(place).ok()?;
        match &self.layout {
            Layout::V1(trees) => usage_v1(trees, place),
            Layout::V2 { mount } => usage_v2(&below(mount, place)),
        }
    }

    /// Names of the cgroups directly below `place`, for example the pods of a QoS class.
    #[must_use]
    pub fn children(&self, place: &str) -> Vec<String> {
        let mut names: Vec<String> =
            self.roots().flat_map(|root| list(&below(root, place)).unwrap_or_default()).collect();
        names.sort();
        names.dedup();
        names
    }

    fn roots(&self) -> impl Iterator<Item = &Path> {
        let (main, others): (Vec<&PathBuf>, &[PathBuf]) = match &self.layout {
            Layout::V1(trees) => (trees.own().into_iter().flatten().collect(), &trees.others),
            Layout::V2 { mount } => (vec![mount], &[]),
        };
        main.into_iter().chain(others).map(PathBuf::as_path)
    }

    fn set_v1(
        &self,
        trees: &V1Trees,
        place: &str,
        limits: &CgroupLimits,
    ) -> Result<(), CgroupError> {
        let set = |tree: &Option<PathBuf>, file: &str, value: Option<u64>| match (tree, value) {
            (Some(tree), Some(value)) => write(&below(tree, place).join(file), &value.to_string()),
            _ => Ok(()),
        };
        set(&trees.cpu, "cpu.shares", limits.cpu_shares)?;
        if let Some(cpu) = &trees.cpu {
            let (directory, quota) = (below(cpu, place), limits.cpu_quota_us);
            if quota.is_some() {
                let period = limits.cpu_period_us.unwrap_or(QUOTA_PERIOD_US);
                write(&directory.join("cpu.cfs_period_us"), &period.to_string())?;
            }
            let quota = quota.map_or("-1".to_owned(), |quota| quota.to_string());
            write(&directory.join("cpu.cfs_quota_us"), &quota)?;
        }
        set(&trees.memory, "memory.limit_in_bytes", limits.memory_bytes)?;
        set(&trees.pids, "pids.max", limits.pids)?;
        match &trees.hugetlb {
            Some(tree) => set_huge_pages(&below(tree, place), ".limit_in_bytes", limits),
            None => Ok(()),
        }
    }
}

/// Limits every huge page size of the kernel (`hugetlb.2MB.max` in cgroup v2).
fn set_huge_pages(
    directory: &Path,
    suffix: &str,
    limits: &CgroupLimits,
) -> Result<(), CgroupError> {
    let Some(bounds) = &limits.huge_pages else { return Ok(()) };
    for file in files::names(directory) {
        let size = file.strip_prefix("hugetlb.").and_then(|rest| rest.strip_suffix(suffix));
        let Some(size) = size.filter(|size| !size.contains('.')) else { continue };
        let bound = bounds.iter().find(|(bytes, _)| huge_page_file_size(**bytes) == size);
        write(&directory.join(&file), &bound.map_or(0, |(_, limit)| *limit).to_string())?;
    }
    Ok(())
}

fn set_v2(directory: &Path, limits: &CgroupLimits) -> Result<(), CgroupError> {
    let set = |file: &str, value: Option<String>| match value {
        Some(value) => write(&directory.join(file), &value),
        None => Ok(()),
    };
    set("cpu.weight", limits.cpu_weight().map(|weight| weight.to_string()))?;
    let quota = limits.cpu_quota_us.map_or("max".to_owned(), |quota| quota.to_string());
    let period = limits.cpu_period_us.unwrap_or(QUOTA_PERIOD_US);
    set("cpu.max", Some(format!("{quota} {period}")))?;
    set("memory.max", limits.memory_bytes.map(|bytes| bytes.to_string()))?;
    set("pids.max", limits.pids.map(|pids| pids.to_string()))?;
    set_huge_pages(directory, ".max", limits)
}

/// Creates a cgroup of version 2 and enables its controllers on the path, as far as the root has them.
fn make_v2(mount: &Path, place: &str) -> Result<(), CgroupError> {
    let available = read_value(&mount.join("cgroup.controllers")).unwrap_or_default();
    let wanted: Vec<String> = ["cpuset", "cpu", "io", "memory", "hugetlb", "pids"]
        .iter()
        .filter(|wanted| available.split_whitespace().any(|there| there == **wanted))
        .map(|wanted| format!("+{wanted}"))
        .collect();
    let wanted = wanted.join(" ");
    let mut directory = mount.to_path_buf();
    for name in place.split('/').filter(|name| !name.is_empty()) {
        let control = directory.join("cgroup.subtree_control");
        let enabled = read_value(&control).unwrap_or_default();
        let missing = wanted.split_whitespace().any(|one| {
            !enabled.split_whitespace().any(|there| one.strip_prefix('+') == Some(there))
        });
        if missing {
            write(&control, &wanted)?;
        }
        directory.push(name);
        make(&directory)?;
    }
    Ok(())
}

fn usage_v1(trees: &V1Trees, place: &str) -> Option<CgroupUsage> {
    let number =
        |tree: &Option<PathBuf>, file: &str| read_number(&below(tree.as_ref()?, place).join(file));
    let statistics = trees
        .memory
        .as_ref()
        .and_then(|tree| read_value(&below(tree, place).join("memory.stat")))
        .unwrap_or_default();
    let memory_bytes = number(&trees.memory, "memory.usage_in_bytes")?;
    Some(CgroupUsage {
        cpu_nanos: number(&trees.cpuacct, "cpuacct.usage").unwrap_or(0),
        memory_bytes,
        working_set_bytes: memory_bytes
            .saturating_sub(statistic(&statistics, "total_inactive_file")),
        rss_bytes: statistic(&statistics, "total_rss"),
        tasks: number(&trees.pids, "pids.current").unwrap_or(0),
    })
}

fn usage_v2(directory: &Path) -> Option<CgroupUsage> {
    let cpu = read_value(&directory.join("cpu.stat")).unwrap_or_default();
    let statistics = read_value(&directory.join("memory.stat")).unwrap_or_default();
    let memory_bytes = read_number(&directory.join("memory.current"))?;
    Some(CgroupUsage {
        cpu_nanos: statistic(&cpu, "usage_usec").saturating_mul(1000),
        memory_bytes,
        working_set_bytes: memory_bytes.saturating_sub(statistic(&statistics, "inactive_file")),
        rss_bytes: statistic(&statistics, "anon"),
        tasks: read_number(&directory.join("pids.current")).unwrap_or(0),
    })
}

/// The number after `name` in a text with lines of `name number`; 0 if missing.
fn statistic(text: &str, name: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

/// Removes a cgroup directory with those below it after killing their processes.
fn remove_tree(directory: &Path, depth: usize) -> Result<Removal, CgroupError> {
    let failed = |source| CgroupError::Remove { path: directory.into(), source };
    let children = match list(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Removal::Gone),
        children => children.map_err(failed)?,
    };
    if depth > DEPTH_MAX {
        return Err(failed(rustix::io::Errno::LOOP.into()));
    }
    kill_all(directory);
    let mut outcome = Removal::Gone;
    for child in children {
        if remove_tree(&directory.join(child), depth + 1)? == Removal::Busy {
            outcome = Removal::Busy;
        }
    }
    if outcome == Removal::Busy {
        return Ok(outcome);
    }
    remove_directory(directory).map_err(failed)
}

/// Kills the processes of one cgroup: at once with `cgroup.kill` (Linux 5.14, v2), otherwise one by one. A process that forks
/// meanwhile is killed by the next attempt.
fn kill_all(directory: &Path) {
    if std::fs::write(directory.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    let processes = read_value(&directory.join("cgroup.procs")).unwrap_or_default();
    for pid in processes.lines().filter_map(|line| line.trim().parse::<i32>().ok()) {
        // 0 is a process of another PID namespace, and means the own process group in kill(2).
        if pid > 1 {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL); // it may be gone already
        }
    }
}

fn below(root: &Path, place: &str) -> PathBuf {
    root.join(place.trim_start_matches('/'))
}

/// Checks that the path is absolute, below the root and made of plain names.
fn check_place(place: &str) -> Result<(), CgroupError> {
    let mut names = place.split('/').filter(|name| !name.is_empty()).peekable();
    let plain = names.peek().is_some() && names.all(|name| name != "." && name != "..");
    if place.starts_with('/') && plain { Ok(()) } else { Err(CgroupError::Path(place.into())) }
}

#[cfg(test)]
mod tests;
