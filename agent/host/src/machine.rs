//! Facts about the machine from /proc, /sys and /etc.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use agent_node::status::Capacity;
use procfs::{Current as _, Meminfo};
use rustix::io::Errno;

/// Why a fact about the machine is not available.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// A file in /proc cannot be read.
    #[error("cannot read /proc/{file}")]
    Proc {
        file: &'static str,
        /// Cause.
        #[source]
        source: procfs::ProcError,
    },
    /// The size of a file system cannot be read.
    #[error("cannot read the size of the file system of {}", path.display())]
    Disk {
        /// The directory.
        path: PathBuf,
        /// Cause.
        #[source]
        source: Errno,
    },
}

/// Names and versions of the machine; unknown ones are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Host name in lower case.
    pub hostname: String,
    /// Content of /etc/machine-id.
    pub machine_id: String,
    /// UUID of the firmware, otherwise the machine id.
    pub system_uuid: String,
    /// Random id of the current boot.
    pub boot_id: String,
    /// Kernel release.
    pub kernel_version: String,
    /// Name and version of the distribution.
    pub os_image: String,
    /// Architecture in Go's spelling: `amd64`, `arm64`, ...
    pub architecture: &'static str,
}

/// Usage of the whole machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineUsage {
    /// CPU time of all CPUs since boot in nanoseconds, without idle and I/O wait.
    pub cpu_nanos: u64,
    /// Available memory in bytes (`MemAvailable`).
    pub memory_available_bytes: u64,
    pub memory_total_bytes: u64,
    /// Swap space in bytes.
    pub swap_total_bytes: u64,
    /// Processes and threads.
    pub tasks: u64,
    /// Limit on their number.
    pub tasks_max: u64,
}

/// Space in a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskRoom {
    /// Size in bytes.
    pub total_bytes: u64,
    /// Bytes available to unprivileged users.
    pub available_bytes: u64,
    /// Total number of inodes.
    pub inodes: u64,
    /// Number of free inodes.
    pub inodes_free: u64,
}

/// Capacity of the machine. `root` is the agent's directory, whose file system counts as the node's disk; `pods` is the maximum
/// number of pods.
///
/// # Errors
/// /proc or the file system cannot be read.
pub fn capacity(root: &Path, pods: u32) -> Result<Capacity, MachineError> {
    let memory = meminfo()?;
    Ok(Capacity {
        cpus: cpus(),
        memory_bytes: memory.mem_total,
        disk_bytes: disk_room(root)?.total_bytes,
        huge_pages: huge_pages(Path::new("/sys/kernel/mm/hugepages")),
        pods,
    })
}

/// Processes that the kernel has ended since the boot because memory ran out, of the machine or of a cgroup; `None` if it does not count them
/// (Linux 4.13 does).
#[must_use]
pub fn oom_kills() -> Option<u64> {
    let counters = procfs::vmstat().ok()?;
    u64::try_from(*counters.get("oom_kill")?).ok()
}

/// Names and versions of the machine.
#[must_use]
pub fn identity() -> Identity {
    let uname = rustix::system::uname();
    let machine_id = first_line("/etc/machine-id");
    let firmware = first_line("/sys/class/dmi/id/product_uuid");
    let os_release = std::fs::read_to_string("/etc/os-release")
        .or_else(|_| std::fs::read_to_string("/usr/lib/os-release"));
    Identity {
        hostname: uname.nodename().to_string_lossy().to_lowercase(),
        system_uuid: if firmware.is_empty() { machine_id.clone() } else { firmware },
        machine_id,
        boot_id: first_line("/proc/sys/kernel/random/boot_id"),
        kernel_version: uname.release().to_string_lossy().into_owned(),
        os_image: os_image(&os_release.unwrap_or_default()),
        architecture: match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "powerpc64" => "ppc64le",
            other => other,
        },
    }
}

/// Whether AppArmor is enabled in the kernel.
#[must_use]
pub fn has_apparmor() -> bool {
    first_line("/sys/module/apparmor/parameters/enabled") == "Y"
}

/// Whether SELinux is enabled in the kernel.
#[must_use]
pub fn has_selinux() -> bool {
    Path::new("/sys/fs/selinux/enforce").exists()
}

/// Current usage of the machine.
///
/// # Errors
/// /proc cannot be read.
pub fn usage() -> Result<MachineUsage, MachineError> {
    let memory = meminfo()?;
    let stat = procfs::CurrentSI::current()
        .map_err(|source| MachineError::Proc { file: "stat", source })
        .map(|stat: procfs::KernelStats| stat.total)?;
    let ticks =
        [stat.user, stat.nice, stat.system, stat.irq.unwrap_or(0), stat.softirq.unwrap_or(0)]
            .into_iter()
            .fold(0, u64::saturating_add);
    let load = procfs::LoadAverage::current()
        .map_err(|source| MachineError::Proc { file: "loadavg", source })?;
    let tasks_max = first_line("/proc/sys/kernel/pid_max").parse().unwrap_or(0);
    let threads_max = first_line("/proc/sys/kernel/threads-max").parse().unwrap_or(tasks_max);
    Ok(MachineUsage {
        cpu_nanos: ticks
            .saturating_mul(1_000_000_000)
            .checked_div(procfs::ticks_per_second())
            .unwrap_or_default(),
        memory_available_bytes: memory.mem_available.unwrap_or(memory.mem_free),
        memory_total_bytes: memory.mem_total,
        swap_total_bytes: memory.swap_total,
        tasks: u64::from(load.max),
        tasks_max: tasks_max.min(threads_max),
    })
}

/// Space in the file system of a path.
///
/// # Errors
/// Errors of the kernel.
pub fn disk_room(path: &Path) -> Result<DiskRoom, MachineError> {
    let stat = rustix::fs::statvfs(path);
    stat.map(room).map_err(|source| MachineError::Disk { path: path.into(), source })
}

/// Space in the file system of an open directory.
///
/// # Errors
/// Errors of the kernel.
pub fn open_disk_room(directory: impl std::os::fd::AsFd) -> rustix::io::Result<DiskRoom> {
    rustix::fs::fstatvfs(directory).map(room)
}

fn room(stat: rustix::fs::StatVfs) -> DiskRoom {
    DiskRoom {
        total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
        available_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        inodes: stat.f_files,
        inodes_free: stat.f_ffree,
    }
}

/// Sets this process's `oom_score_adj`. Lowering it needs CAP_SYS_RESOURCE.
///
/// # Errors
/// Errors of the kernel.
pub fn set_oom_score_adj(score: i16) -> std::io::Result<()> {
    std::fs::write("/proc/self/oom_score_adj", score.to_string())
}

fn meminfo() -> Result<Meminfo, MachineError> {
    Meminfo::current().map_err(|source| MachineError::Proc { file: "meminfo", source })
}

/// Number of online CPUs, regardless of this process's affinity.
fn cpus() -> u32 {
    let online = count_list(&first_line("/sys/devices/system/cpu/online"));
    match online {
        Some(count) if count > 0 => count,
        _ => {
            std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(1))
        }
    }
}

/// Number of elements in a kernel list such as `0-3,5`.
fn count_list(list: &str) -> Option<u32> {
    list.split(',').try_fold(0_u32, |count, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        count.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

/// Reserved bytes by page size in bytes, from directories `hugepages-<size>kB`.
pub(crate) fn huge_pages(directory: &Path) -> BTreeMap<u64, u64> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let size: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let pages = std::fs::read_to_string(entry.path().join("nr_hugepages")).ok()?;
            let pages: u64 = pages.trim().parse().ok()?;
            let bytes = size.checked_mul(1024)?;
            Some((bytes, bytes.saturating_mul(pages)))
        })
        .collect()
}

fn os_image(os_release: &str) -> String {
    let value = |key: &str| {
        os_release.lines().find_map(|line| {
            let value = line.strip_prefix(key)?.strip_prefix('=')?;
            Some(value.trim_matches('"').to_owned())
        })
    };
    value("PRETTY_NAME").or_else(|| value("NAME")).unwrap_or_else(|| "Linux".to_owned())
}

fn first_line(path: impl AsRef<Path>) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_counted() {
        for (list, count) in
            [("0", Some(1)), ("0-3", Some(4)), ("0-1,4,6-7", Some(5)), ("", None), ("3-1", None)]
        {
            assert_eq!(count_list(list), count, "{list}");
        }
    }

    #[test]
    fn the_image_is_the_pretty_name() {
        let debian = "NAME=\"Debian GNU/Linux\"\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n";
        assert_eq!(os_image(debian), "Debian GNU/Linux 12 (bookworm)");
        assert_eq!(os_image("NAME=Alpine\n"), "Alpine");
        assert_eq!(os_image(""), "Linux");
    }

    #[test]
    fn huge_pages_by_size() {
        let dir = tempfile::tempdir().unwrap();
        for (size, pages) in [("2048", "3"), ("1048576", "0")] {
            let path = dir.path().join(format!("hugepages-{size}kB"));
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("nr_hugepages"), format!("{pages}\n")).unwrap();
        }
        assert_eq!(huge_pages(dir.path()), [(2 << 20, 6 << 20), (1 << 30, 0)].into());
        assert_eq!(huge_pages(Path::new("/nonexistent")), BTreeMap::new());
    }

    #[test]
    fn this_machine_has_something() {
        let capacity = capacity(Path::new("/"), 110).unwrap();
        assert!(capacity.cpus > 0 && capacity.memory_bytes > 0 && capacity.disk_bytes > 0);
        let usage = usage().unwrap();
        assert!(usage.memory_available_bytes <= usage.memory_total_bytes);
        assert!(usage.cpu_nanos > 0 && usage.tasks > 0 && usage.tasks_max > 0);
        let identity = identity();
        assert!(!identity.hostname.is_empty() && !identity.kernel_version.is_empty());
    }
}
