//! Commands that turn block devices into mounted file systems: which programs run, in which order, and what their output means.
//! Pure: a command is a value; its executor returns a [`ProgramOutput`].
//!
//! ```text
//! device ─► probe ─► empty ───────► format ─┐
//!                └─► file system ─► check ─┴─► mount        any other content is left untouched
//! ```

use std::time::Duration;

/// A program of the node with its arguments. Never a shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramRun {
    /// Its name; searched in [`PROGRAM_DIRS`] only.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Exit codes other than 0 that stand for success.
    pub accepted: &'static [i32],
    /// Deadline; a program that has not ended by then is killed.
    pub timeout: Duration,
    /// Whether it ends what other commands of its program wait for, apart from which it is counted.
    pub forced: bool,
    /// Namespace of the pod that it is for, which has a share of what may run; empty for the node.
    pub namespace: String,
}

/// Deadline of a program.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Deadline of a program that unmounts a network file system, as in the kubelet.
const NFS_UNMOUNT_TIMEOUT: Duration = Duration::from_secs(60);

/// Directories of the node's programs.
pub const PROGRAM_DIRS: [&str; 4] = ["/sbin", "/usr/sbin", "/bin", "/usr/bin"];

impl ProgramRun {
    /// A command that succeeds with exit code 0.
    #[must_use]
    pub fn new(program: &str, args: &[&str]) -> Self {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Self {
            program: program.to_owned(),
            args,
            accepted: &[],
            timeout: TIMEOUT,
            forced: false,
            namespace: String::new(),
        }
    }

    /// The same, for a pod in this namespace.
    #[must_use]
    pub fn for_namespace(self, namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), ..self }
    }

    /// The same, with another deadline.
    #[must_use]
    pub fn within(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The same, with additional exit codes for success.
    #[must_use]
    pub fn accept(self, accepted: &'static [i32]) -> Self {
        Self { accepted, ..self }
    }
}

/// The result of a program that succeeded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramOutput {
    /// Its exit code; `None` when a signal ended it.
    pub exit: Option<i32>,
    /// Standard output.
    pub stdout: String,
}

/// The file system of an empty device whose volume does not name one.
pub const FS_TYPE_DEFAULT: &str = "ext4";

/// The content of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// No known signature.
    Nothing,
    /// A file system of this type.
    FileSystem(String),
    /// Something else: a partition table, a RAID member.
    Other(String),
}

/// Probes the content of a device. blkid exits with 2 if it finds none.
#[must_use]
pub fn probe(device: &str) -> ProgramRun {
    ProgramRun::new("blkid", &["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", device])
        .accept(&[2])
}

/// Parses the output of [`probe`]. blkid fails on ambiguous content, so that does not reach this function.
#[must_use]
pub fn parse_probe(output: &ProgramOutput) -> Content {
    if output.exit == Some(2) {
        return Content::Nothing;
    }
    let value = |key: &str| output.stdout.lines().find_map(|line| line.strip_prefix(key));
    match (value("PTTYPE="), value("TYPE=")) {
        (Some(table), _) => Content::Other(format!("partition table {table}")),
        (None, Some(kind)) if is_no_file_system(kind) => Content::Other(kind.to_owned()),
        (None, Some(kind)) => Content::FileSystem(kind.to_owned()),
        (None, None) => Content::Other("something unknown".to_owned()),
    }
}

/// Whether blkid's type names a member of an array or volume group, an encrypted device or swap.
fn is_no_file_system(kind: &str) -> bool {
    kind.ends_with("_member") || kind.starts_with("crypto_") || kind == "swap"
}

/// The step before a device is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskStep {
    /// Make a file system.
    Format(ProgramRun),
    /// Check the existing file system.
    Check(ProgramRun),
    /// Nothing.
    None,
}

/// Why a device is not mounted. It is not touched. The texts are the kubelet's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanMountError {
    /// It is empty, and would have to be formatted.
    #[error("cannot mount unformatted disk {0} as we are manipulating it in read-only mode")]
    ReadOnly(String),
    /// It has another file system.
    #[error("failed to mount the volume as {wanted:?}, it already contains {found}")]
    OtherFileSystem {
        /// The type that is asked for.
        wanted: String,
        /// The type that it has.
        found: String,
    },
    /// It has content that is no file system.
    #[error(
        "failed to mount the volume as {wanted:?}, it already contains unknown data, probably partitions: {found}"
    )]
    OtherContent {
        /// The type that is asked for.
        wanted: String,
        /// What it has.
        found: String,
    },
    /// It is empty, and no program makes such a file system.
    #[error("cannot format: expected ext2, ext3, ext4, xfs or btrfs, not {0:?}")]
    FileSystemType(String),
}

/// Plans the step before a device is mounted as file system type `wanted` (empty for the default), and the type to mount. Only an empty
/// device is ever formatted.
///
/// # Errors
/// It has other content, or is empty and cannot be formatted.
pub fn plan_mount(
    device: &str,
    content: &Content,
    wanted: &str,
    read_only: bool,
) -> Result<(DiskStep, String), PlanMountError> {
    let wanted = if wanted.is_empty() { FS_TYPE_DEFAULT } else { wanted };
    match content {
        Content::Nothing if read_only => Err(PlanMountError::ReadOnly(device.to_owned())),
        Content::Nothing => Ok((DiskStep::Format(format(device, wanted)?), wanted.to_owned())),
        Content::FileSystem(found) if can_mount(found, wanted) => {
            let check = if read_only { None } else { check(device, found) };
            Ok((check.map_or(DiskStep::None, DiskStep::Check), wanted.to_owned()))
        }
        Content::FileSystem(found) => {
            Err(PlanMountError::OtherFileSystem { wanted: wanted.to_owned(), found: found.clone() })
        }
        Content::Other(found) => {
            Err(PlanMountError::OtherContent { wanted: wanted.to_owned(), found: found.clone() })
        }
    }
}

/// Whether the driver of type `wanted` can mount type `found`: later members of the ext family mount earlier ones.
fn can_mount(found: &str, wanted: &str) -> bool {
    let rank = |kind: &str| ["ext2", "ext3", "ext4"].iter().position(|member| *member == kind);
    found == wanted
        || matches!((rank(found), rank(wanted)), (Some(had), Some(reads)) if had <= reads)
}

fn format(device: &str, fs_type: &str) -> Result<ProgramRun, PlanMountError> {
    let program = format!("mkfs.{fs_type}");
    match fs_type {
        // -m0: no blocks reserved for root
        "ext2" | "ext3" | "ext4" => Ok(ProgramRun::new(&program, &["-F", "-m0", device])),
        "xfs" => Ok(ProgramRun::new(&program, &["-f", device])),
        "btrfs" => Ok(ProgramRun::new(&program, &[device])),
        other => Err(PlanMountError::FileSystemType(other.to_owned())),
    }
}

/// fsck exits with 1 if it corrected errors.
fn check(device: &str, fs_type: &str) -> Option<ProgramRun> {
    let program = format!("fsck.{fs_type}");
    let known = matches!(fs_type, "ext2" | "ext3" | "ext4");
    known.then(|| ProgramRun::new(&program, &["-a", device]).accept(&[1]))
}

/// Mounts the file system of a device.
#[must_use]
pub fn mount(device: &str, fs_type: &str, options: &[String], target: &str) -> ProgramRun {
    let mut all = vec!["defaults".to_owned()];
    all.extend_from_slice(options);
    ProgramRun::new("mount", &["-t", fs_type, "-o", &all.join(","), device, target])
}

/// Unmounts a file system. By a program: a thread that unmounts a device that does not answer cannot be killed, and the agent must be.
#[must_use]
pub fn unmount(target: &str) -> ProgramRun {
    ProgramRun::new("umount", &[target])
}

/// Unmounts an NFS file system without contacting its server: `-c` does not resolve the path, `-i` runs no `umount.nfs`. BusyBox has
/// neither option and exits with 1.
#[must_use]
pub fn unmount_nfs(target: &str) -> ProgramRun {
    ProgramRun::new("umount", &["-i", "-c", target]).within(NFS_UNMOUNT_TIMEOUT)
}

/// Unmounts an NFS file system and aborts the requests that wait for its server.
#[must_use]
pub fn force_unmount(target: &str) -> ProgramRun {
    let run = ProgramRun::new("umount", &["-f", target]).within(NFS_UNMOUNT_TIMEOUT);
    ProgramRun { forced: true, ..run }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_empty_device_is_formatted() {
        let answer = |exit, out: &str| ProgramOutput { exit: Some(exit), stdout: out.into() };
        let found = |text: &str| parse_probe(&answer(0, text));
        let fs = |kind: &str| Content::FileSystem(kind.into());
        let other = |kind: &str| Content::Other(kind.into());
        assert_eq!(parse_probe(&answer(2, "")), Content::Nothing);
        assert_eq!(found("DEVNAME=/dev/x\nTYPE=ext4\n"), fs("ext4"));
        assert_eq!(found("DEVNAME=/dev/x\nPTTYPE=gpt\n"), other("partition table gpt"));
        assert_eq!(found("TYPE=vfat\nPTTYPE=dos\n"), other("partition table dos"));
        assert_eq!(found("DEVNAME=/dev/x\n"), other("something unknown"));
        for part in ["LVM2_member", "linux_raid_member", "crypto_LUKS", "swap", "zfs_member"] {
            assert_eq!(found(&format!("TYPE={part}")), other(part));
        }
        let run = |found: &Content, wanted: &str, read_only| {
            plan_mount("/dev/x", found, wanted, read_only)
        };
        let made = |program: &str, args: &[&str]| DiskStep::Format(ProgramRun::new(program, args));
        let cases = [
            (Content::Nothing, "", made("mkfs.ext4", &["-F", "-m0", "/dev/x"]), "ext4"),
            (Content::Nothing, "xfs", made("mkfs.xfs", &["-f", "/dev/x"]), "xfs"),
            (fs("xfs"), "xfs", DiskStep::None, "xfs"),
            (
                fs("ext4"),
                "",
                DiskStep::Check(ProgramRun::new("fsck.ext4", &["-a", "/dev/x"]).accept(&[1])),
                "ext4",
            ),
            (
                fs("ext3"),
                "ext4",
                DiskStep::Check(ProgramRun::new("fsck.ext3", &["-a", "/dev/x"]).accept(&[1])),
                "ext4",
            ),
        ];
        for (found, wanted, expect, kind) in cases {
            assert_eq!(run(&found, wanted, false), Ok((expect, kind.to_owned())), "{found:?}");
        }
        assert_eq!(run(&fs("ext4"), "", true), Ok((DiskStep::None, "ext4".into())));
        for (found, wanted, read_only, why) in [
            (Content::Nothing, "", true, "read-only mode"),
            (Content::Nothing, "tape", false, "expected ext2"),
            (fs("ext4"), "xfs", false, "it already contains ext4"),
            (fs("ext4"), "ext3", false, "it already contains ext4"),
            (other("partition table gpt"), "", false, "probably partitions"),
            (other("LVM2_member"), "", false, "LVM2_member"),
        ] {
            let error = run(&found, wanted, read_only).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let mounted = mount("/dev/x", "ext4", &["ro".into(), "noatime".into()], "/t");
        assert_eq!(mounted.args, ["-t", "ext4", "-o", "defaults,ro,noatime", "/dev/x", "/t"]);
    }
}
