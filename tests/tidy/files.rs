//! Files and directories are created in one place, [`proto_daemon::private_files`]: with private modes from their creation on, atomically, with unique
//! temporary names. Other places are listed here with their reasons.

use crate::{check, is_generated, is_test, production, sources};

/// Where the ways to make files are at home.
const HOME: &str = "proto/daemon/src/private_files.rs";

/// Ways to make a file or directory, or to open one so that it may be made.
const WAYS: &[&str] = &[
    "File::create",
    "fs::write(",
    "OpenOptions::new()",
    "File::options()",
    "DirBuilder",
    "create_dir",
    "fs::copy(",
    "OFlags::CREATE",
    "OFlag::O_CREAT",
    "mkdirat(",
];

/// Files that go other ways, each with what may stand there and the reason why it holds no secret or is closed all the same.
const OTHERS: &[(&str, &str, &str)] = &[
    // What is the kernel's.
    ("agent/host/src/kernel_log.rs", "OpenOptions", "the kernel's log, only read"),
    ("agent/host/src/machine.rs", "fs::write(", "the kernel's own file in /proc"),
    ("agent/host/src/cgroups.rs", "fs::write(", "the kernel's own file of a cgroup"),
    ("agent/host/src/cgroups/files.rs", "fs::", "cgroups and the kernel's files in them"),
    ("agent/host/src/stall.rs", "OpenOptions", "the kernel's file of a pressure"),
    ("proxy/kernel/src/sysctl.rs", "fs::write(", "the kernel's own file in /proc"),
    ("proxy/orch-proxy/src/host.rs", "fs::write(", "the kernel's own files in /proc and /sys"),
    // What is opened and never made.
    (
        "agent/workers/src/termination_message.rs",
        "File::options()",
        "read of what a container wrote",
    ),
    // What containers see, made beneath an open descriptor.
    ("agent/volume/src/beneath.rs", "mkdirat(", "the one way to make a directory by descriptor"),
    ("agent/volume/src/tree.rs", "OFlags::CREATE", "payloads: closed until they have their owner"),
    ("agent/volume/src/tree.rs", "mkdirat(", "directories of payloads, with modes of the pod's"),
    ("agent/volume/src/renewals.rs", "OFlags::CREATE", "0600 and O_EXCL, by descriptor"),
    ("agent/volume/src/shared_mounts.rs", "OFlags::CREATE", "0600 and O_EXCL, by descriptor"),
    ("agent/volume/src/sub_path.rs", "OFlags::CREATE", "an empty file to mount on"),
    ("agent/volume/src/sub_path.rs", "mkdirat(", "a directory of the pod's volume, with its mode"),
    ("agent/logs/src/log_files.rs", "OFlags::CREATE", "O_EXCL, by descriptor"),
    ("agent/volume/src/host_path.rs", "OFlags::CREATE", "what a pod asks for on its node"),
    ("agent/volume/src/host_path.rs", "mkdirat(", "what a pod asks for on its node"),
    // What other programs of the node read.
    (
        "agent/workers/src/execute_action.rs",
        "create_dir",
        "directories of logs, which collectors read",
    ),
    ("agent/logs/src/log_links.rs", "create_dir", "the directory of links to logs"),
    ("agent/orchlet/src/shutdown.rs", "fs::", "a drop-in of the session service, read by all"),
    ("agent/runtime/src/import.rs", "File::options()", "O_EXCL, and without a name at once"),
    // What must not be there before.
    ("apiserver-lite/orchctl-changes/src/diff/external.rs", "DirBuilder", "0700, and new"),
    // What a user asks for in so many words.
    ("proxy/orch-proxy/src/main.rs", "fs::write(", "a file that the command line names"),
    ("hack/packaging/src/main.rs", "fs::write(", "what a package holds is read by all"),
    ("hack/packaging/src/main.rs", "create_dir", "directories of a package, read by all"),
    // Programs that do not depend on the daemon's crate.
    ("hack/cluster/src/files.rs", "", "the same rules for clusters on a developer's machine"),
    ("hack/cluster/src/namespaces.rs", "create_dir", "mount points below a closed directory"),
];

#[test]
fn files_are_made_in_one_place() {
    let mut offenders = Vec::new();
    let mut used = vec![false; OTHERS.len()];
    for (path, source) in sources() {
        // Simulations, benches and scripts of the build leave nothing on a node.
        let elsewhere =
            ["/simulated.rs", "build.rs", "/test_support.rs"].iter().any(|end| path.ends_with(end));
        if path == HOME || elsewhere || is_test(&path) || is_generated(&path) {
            continue;
        }
        for (number, line) in production(&source).lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let imports = code.trim_start().starts_with("use ");
            // How it is opened is said to the one place.
            let told = code.contains("private_files::open_private(");
            if imports || told || !WAYS.iter().any(|way| code.contains(way)) {
                continue;
            }
            let listed =
                OTHERS.iter().position(|(f, snippet, _)| *f == path && code.contains(snippet));
            match listed {
                Some(at) => used[at] = true,
                None => offenders.push(format!("{path}:{}", number + 1)),
            }
        }
    }
    check("files and directories are made by proto/daemon/src/private_files.rs", offenders);
    let unused = OTHERS.iter().zip(used).filter(|(_, used)| !used);
    check(
        "what is listed as made otherwise is made so",
        unused.map(|((file, snippet, _), _)| format!("{file}: {snippet}")).collect(),
    );
}

/// Who reads the kernel's table of mounts.
const MOUNTS_READ: &[&str] = &[
    "proto/daemon/src/mountinfo.rs",
    // A program that does not depend on the daemon's crate.
    "hack/cluster/src/namespaces.rs",
];

#[test]
fn the_table_of_mounts_has_one_parser() {
    let reads = |(path, source): &(String, String)| {
        let mut code = production(source).lines().map(|l| l.split("//").next().unwrap_or_default());
        let reads = code.any(|code| code.contains("mountinfo\"") || code.contains("MountInfo"));
        reads && !is_test(path) && !MOUNTS_READ.contains(&path.as_str())
    };
    check(
        "the table of mounts is read by proto/daemon/src/mountinfo.rs",
        sources().iter().filter(|s| reads(s)).map(|s| s.0.clone()).collect(),
    );
}
