//! Statistics of a cgroup, read on demand. Parsing is separate from reading and pure.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use crate::cgroups::{Cgroups, Layout, V1Trees};

/// Statistics of one cgroup. `None` if this kernel does not report a value; values that every kernel reports are not optional.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupStats {
    /// Total CPU time in nanoseconds.
    pub cpu_nanos: u64,
    /// CPU time in user mode in nanoseconds.
    pub cpu_user_nanos: u64,
    /// CPU time in kernel mode in nanoseconds.
    pub cpu_system_nanos: u64,
    /// Throttling by the CPU quota.
    pub throttling: Option<Throttling>,
    /// CPU weight on the scale of cgroup v1.
    pub cpu_shares: Option<u64>,
    /// CPU quota and period in microseconds; `None` without a quota.
    pub cpu_quota: Option<(u64, u64)>,
    /// Charged memory in bytes.
    pub memory_bytes: u64,
    /// Working set in bytes: charged memory without inactive file pages.
    pub working_set_bytes: u64,
    /// Anonymous memory in bytes.
    pub rss_bytes: u64,
    /// Page cache in bytes.
    pub cache_bytes: u64,
    /// Mapped file pages in bytes.
    pub mapped_bytes: u64,
    pub swap_bytes: u64,
    /// Peak of charged memory in bytes.
    pub memory_max_seen: Option<u64>,
    /// How often the memory limit was hit.
    pub memory_failures: u64,
    /// Memory limit in bytes; `None` without a limit.
    pub memory_limit: Option<u64>,
    /// Page faults, and major page faults.
    pub page_faults: (u64, u64),
    /// Number of threads.
    pub threads: u64,
    /// Limit on the number of threads.
    pub threads_max: Option<u64>,
    /// I/O of all devices.
    pub io: IoStats,
    /// Number of processes in this cgroup and below.
    pub processes: u64,
    /// Time of creation in seconds since 1970; 0 if unknown.
    pub made: i64,
}

/// Throttling of a cgroup by its CPU quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttling {
    /// Periods in which tasks ran.
    pub periods: u64,
    /// Periods in which the quota was used up.
    pub throttled: u64,
    /// Throttled time in nanoseconds.
    pub nanos: u64,
}

/// Bytes and operations that a cgroup has read and written on block devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoStats {
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    pub reads: u64,
    pub writes: u64,
}

/// Values of cgroup v1 from here on mean unlimited.
const NO_LIMIT: u64 = 1 << 62;
/// Nanoseconds per tick of `cpuacct.stat`; a constant of the kernel's ABI.
const TICK_NANOS: u64 = 10_000_000;
/// Deepest level at which processes are counted.
const DEPTH_MAX: usize = 8;

/// Statistics of the cgroup at `place` (a path from the root of the hierarchy); `None` if it does not exist.
#[must_use]
pub fn read(cgroups: &Cgroups, place: &str) -> Option<CgroupStats> {
    let at = |tree: &Path| tree.join(place.trim_start_matches('/'));
    match cgroups.layout() {
        Layout::V1(trees) => read_v1(trees, &at),
        Layout::V2 { mount } => read_v2(&at(mount)),
    }
}

/// Pid of a process in the cgroup at `place`, to look up the namespaces that its processes share.
#[must_use]
pub fn any_process(cgroups: &Cgroups, place: &str) -> Option<u32> {
    let tree = match cgroups.layout() {
        Layout::V1(trees) => trees.memory.as_ref().or(trees.cpu.as_ref())?,
        Layout::V2 { mount } => mount,
    };
    let procs = text(&tree.join(place.trim_start_matches('/')).join("cgroup.procs"));
    procs.lines().next()?.trim().parse().ok()
}

/// The existing cgroup of a container below that of its pod, among the names that runtimes use.
#[must_use]
pub fn place_of_container(cgroups: &Cgroups, pod: &str, id: &str) -> Option<String> {
    let below = [
        format!("{pod}/{id}"),
        format!("{pod}/cri-containerd-{id}.scope"),
        format!("{pod}/crio-{id}.scope"),
    ];
    below.into_iter().find(|place| cgroups.exists(place))
}

fn read_v1(trees: &V1Trees, at: &dyn Fn(&Path) -> PathBuf) -> Option<CgroupStats> {
    let memory = at(trees.memory.as_ref()?);
    let file = |tree: &Option<PathBuf>, name: &str| {
        tree.as_ref().map(|tree| text(&at(tree).join(name))).unwrap_or_default()
    };
    let one = |tree: &Option<PathBuf>, name: &str| number(&file(tree, name));
    let memory_bytes = number(&text(&memory.join("memory.usage_in_bytes")))?;
    let stat = text(&memory.join("memory.stat"));
    let counted = |name: &str| number_after(&stat, name).unwrap_or(0);
    let acct = file(&trees.cpuacct, "cpuacct.stat");
    let quota = one(&trees.cpu, "cpu.cfs_quota_us").zip(one(&trees.cpu, "cpu.cfs_period_us"));
    let blkio = trees
        .others
        .iter()
        .find(|tree| tree.to_string_lossy().contains("blkio"))
        .map(|tree| at(tree));
    let blkio = |name: &str| blkio.as_ref().map(|tree| text(&tree.join(name))).unwrap_or_default();
    let (bytes, count) = (
        blkio("blkio.throttle.io_service_bytes_recursive"),
        blkio("blkio.throttle.io_serviced_recursive"),
    );
    Some(CgroupStats {
        cpu_nanos: one(&trees.cpuacct, "cpuacct.usage").unwrap_or(0),
        cpu_user_nanos: number_after(&acct, "user").unwrap_or(0).saturating_mul(TICK_NANOS),
        cpu_system_nanos: number_after(&acct, "system").unwrap_or(0).saturating_mul(TICK_NANOS),
        throttling: throttling(&file(&trees.cpu, "cpu.stat"), "throttled_time", 1),
        cpu_shares: one(&trees.cpu, "cpu.shares"),
        cpu_quota: quota,
        memory_bytes,
        working_set_bytes: memory_bytes.saturating_sub(counted("total_inactive_file")),
        rss_bytes: counted("total_rss"),
        cache_bytes: counted("total_cache"),
        mapped_bytes: counted("total_mapped_file"),
        swap_bytes: counted("total_swap"),
        memory_max_seen: number(&text(&memory.join("memory.max_usage_in_bytes"))),
        memory_failures: number(&text(&memory.join("memory.failcnt"))).unwrap_or(0),
        memory_limit: number(&text(&memory.join("memory.limit_in_bytes")))
            .filter(|limit| *limit < NO_LIMIT),
        page_faults: (counted("total_pgfault"), counted("total_pgmajfault")),
        threads: one(&trees.pids, "pids.current").unwrap_or(0),
        threads_max: one(&trees.pids, "pids.max"),
        io: IoStats {
            read_bytes: sum_of_operation(&bytes, "Read"),
            write_bytes: sum_of_operation(&bytes, "Write"),
            reads: sum_of_operation(&count, "Read"),
            writes: sum_of_operation(&count, "Write"),
        },
        processes: processes(&memory, 0),
        made: created_at(&memory),
    })
}

fn read_v2(directory: &Path) -> Option<CgroupStats> {
    let file = |name: &str| text(&directory.join(name));
    let memory_bytes = number(&file("memory.current"))?;
    let (cpu, stat, io) = (file("cpu.stat"), file("memory.stat"), file("io.stat"));
    let micros = |name: &str| number_after(&cpu, name).unwrap_or(0).saturating_mul(1000);
    let counted = |name: &str| number_after(&stat, name).unwrap_or(0);
    let max = file("cpu.max");
    let mut quota = max.split_whitespace().map(|part| part.parse::<u64>().ok());
    Some(CgroupStats {
        cpu_nanos: micros("usage_usec"),
        cpu_user_nanos: micros("user_usec"),
        cpu_system_nanos: micros("system_usec"),
        throttling: throttling(&cpu, "throttled_usec", 1000),
        cpu_shares: number(&file("cpu.weight")).map(shares_of_weight),
        cpu_quota: quota.next().flatten().zip(quota.next().flatten()),
        memory_bytes,
        working_set_bytes: memory_bytes.saturating_sub(counted("inactive_file")),
        rss_bytes: counted("anon"),
        cache_bytes: counted("file"),
        mapped_bytes: counted("file_mapped"),
        swap_bytes: number(&file("memory.swap.current")).unwrap_or(0),
        memory_max_seen: number(&file("memory.peak")),
        memory_failures: number_after(&file("memory.events"), "max").unwrap_or(0),
        memory_limit: number(&file("memory.max")),
        page_faults: (counted("pgfault"), counted("pgmajfault")),
        threads: number(&file("pids.current")).unwrap_or(0),
        threads_max: number(&file("pids.max")),
        io: IoStats {
            read_bytes: sum_of_key(&io, "rbytes="),
            write_bytes: sum_of_key(&io, "wbytes="),
            reads: sum_of_key(&io, "rios="),
            writes: sum_of_key(&io, "wios="),
        },
        processes: processes(directory, 0),
        made: created_at(directory),
    })
}

fn throttling(text: &str, waited: &str, nanos: u64) -> Option<Throttling> {
    Some(Throttling {
        periods: number_after(text, "nr_periods")?,
        throttled: number_after(text, "nr_throttled").unwrap_or(0),
        nanos: number_after(text, waited).unwrap_or(0).saturating_mul(nanos),
    })
}

/// Converts a cgroup v2 weight to the scale of v1.
fn shares_of_weight(weight: u64) -> u64 {
    2 + weight.saturating_sub(1).saturating_mul(262_142) / 9_999
}

fn text(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_default()
}

/// Parses a file with one number; `None` for `max` and `-1`.
fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// The number after `name` in lines of `name number`.
fn number_after(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value?.trim().parse().ok()
}

/// Sum over devices in lines like `8:0 Read 123`.
fn sum_of_operation(text: &str, operation: &str) -> u64 {
    let of_line = |line: &str| {
        let mut parts = line.split_whitespace();
        let (_, what, count) = (parts.next()?, parts.next()?, parts.next()?);
        (what == operation).then(|| count.parse().ok()).flatten()
    };
    text.lines().filter_map(of_line).fold(0, u64::saturating_add)
}

/// Sum over devices in lines like `8:0 rbytes=1 wbytes=2`.
fn sum_of_key(text: &str, key: &str) -> u64 {
    let values = text.split_whitespace().filter_map(|part| part.strip_prefix(key)?.parse().ok());
    values.fold(0, u64::saturating_add)
}

fn processes(directory: &Path, depth: usize) -> u64 {
    let own = text(&directory.join("cgroup.procs")).lines().count() as u64;
    if depth >= DEPTH_MAX {
        return own;
    }
    let below = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let below = below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    below.map(|entry| processes(&entry.path(), depth + 1)).fold(own, u64::saturating_add)
}

fn created_at(directory: &Path) -> i64 {
    let modified = std::fs::metadata(directory).and_then(|metadata| metadata.modified()).ok();
    let since = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.and_then(|since| i64::try_from(since.as_secs()).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("tempdir");
        for (name, content) in files {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().expect("parent")).expect("made");
            std::fs::write(path, content).expect("written");
        }
        root
    }

    #[test]
    fn version_1() {
        let root = tree(&[
            ("memory/p/memory.usage_in_bytes", "1000\n"),
            ("memory/p/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/p/memory.failcnt", "3\n"),
            (
                "memory/p/memory.stat",
                "rss 1\ntotal_cache 400\ntotal_rss 500\ntotal_inactive_file 300\ntotal_pgfault 7\n",
            ),
            ("memory/p/cgroup.procs", "11\n12\n"),
            ("memory/p/c/cgroup.procs", "13\n"),
            ("cpu/p/cpu.stat", "nr_periods 5\nnr_throttled 2\nthrottled_time 900\n"),
            ("cpu/p/cpu.cfs_quota_us", "50000\n"),
            ("cpu/p/cpu.cfs_period_us", "100000\n"),
            ("cpu/p/cpuacct.usage", "12345\n"),
            ("cpu/p/cpuacct.stat", "user 2\nsystem 1\n"),
            (
                "blkio/p/blkio.throttle.io_service_bytes_recursive",
                "8:0 Read 10\n8:0 Write 5\n8:16 Read 1\nTotal 16\n",
            ),
        ]);
        let at = |name: &str| Some(root.path().join(name));
        let trees = V1Trees {
            cpu: at("cpu"),
            cpuacct: at("cpu"),
            memory: at("memory"),
            pids: None,
            hugetlb: None,
            others: vec![root.path().join("blkio")],
        };
        let cgroups = Cgroups::new(Layout::V1(trees));
        let stats = read(&cgroups, "/p").expect("there");
        assert_eq!(
            (stats.cpu_nanos, stats.cpu_user_nanos, stats.cpu_system_nanos),
            (12345, 20_000_000, 10_000_000)
        );
        assert_eq!(
            (stats.memory_bytes, stats.working_set_bytes, stats.rss_bytes, stats.cache_bytes),
            (1000, 700, 500, 400)
        );
        assert_eq!(
            (stats.memory_limit, stats.memory_failures, stats.page_faults),
            (None, 3, (7, 0))
        );
        assert_eq!(stats.throttling, Some(Throttling { periods: 5, throttled: 2, nanos: 900 }));
        assert_eq!((stats.cpu_quota, stats.processes), (Some((50_000, 100_000)), 3));
        assert_eq!((stats.io.read_bytes, stats.io.write_bytes), (11, 5));
        assert_eq!(any_process(&cgroups, "/p"), Some(11));
        assert_eq!(place_of_container(&cgroups, "/p", "c").as_deref(), Some("/p/c"));
        assert_eq!(read(&cgroups, "/none"), None);
    }

    #[test]
    fn version_2() {
        let root = tree(&[
            ("p/memory.current", "1000\n"),
            ("p/memory.max", "max\n"),
            ("p/memory.stat", "anon 500\nfile 400\ninactive_file 300\npgmajfault 2\n"),
            (
                "p/cpu.stat",
                "usage_usec 10\nuser_usec 6\nsystem_usec 4\nnr_periods 1\nnr_throttled 1\nthrottled_usec 2\n",
            ),
            ("p/cpu.max", "max 100000\n"),
            ("p/cpu.weight", "1\n"),
            (
                "p/io.stat",
                "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n8:16 rbytes=10 wbytes=0 rios=1 wios=0\n",
            ),
        ]);
        let cgroups = Cgroups::new(Layout::V2 { mount: root.path().into() });
        let stats = read(&cgroups, "/p").expect("there");
        assert_eq!(
            (stats.cpu_nanos, stats.cpu_user_nanos, stats.working_set_bytes),
            (10_000, 6_000, 700)
        );
        assert_eq!((stats.memory_limit, stats.cpu_quota, stats.cpu_shares), (None, None, Some(2)));
        assert_eq!(stats.io, IoStats { read_bytes: 11, write_bytes: 2, reads: 4, writes: 4 });
        assert_eq!(stats.page_faults, (0, 2));
    }

    #[test]
    fn this_host_counts() {
        let Ok(cgroups) = Cgroups::detect() else {
            println!("SKIPPED this_host_counts: no cgroup tree");
            return;
        };
        if let Some(stats) = read(&cgroups, "/") {
            assert!(stats.memory_bytes > 0);
        }
    }
}
