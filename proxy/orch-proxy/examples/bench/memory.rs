//! Kernel memory of the tables, by a memory cgroup with this process.

use std::fs;
use std::path::{Path, PathBuf};

/// A cgroup v1 memory group with this process in it.
pub struct Group {
    dir: PathBuf,
    parent: PathBuf,
}

impl Group {
    /// `None` without such a hierarchy, or without access to it.
    pub fn enter() -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let memory = |line: &str| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            controllers.split(',').any(|one| one == "memory").then(|| path.to_owned())
        };
        let path = own.lines().find_map(memory)?;
        let parent = Path::new("/sys/fs/cgroup/memory").join(path.trim_start_matches('/'));
        let dir = parent.join(format!("orch-bench-{}", std::process::id()));
        fs::create_dir(&dir).ok()?;
        let group = Self { dir, parent };
        group.move_to(&group.dir).then_some(group)
    }

    fn move_to(&self, dir: &Path) -> bool {
        fs::write(dir.join("cgroup.procs"), std::process::id().to_string()).is_ok()
    }

    /// Kernel memory of the group.
    pub fn kernel_bytes(&self) -> Option<u64> {
        let text = fs::read_to_string(self.dir.join("memory.kmem.usage_in_bytes")).ok()?;
        text.trim().parse().ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.move_to(&self.parent);
        // Best effort: an empty group is harmless.
        let _ = fs::remove_dir(&self.dir);
    }
}
