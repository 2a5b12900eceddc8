//! Block devices that become file systems: which programs of the node are run for that, in which order, and what their answers mean.
//! Pure: a program to run is a value, and whoever runs it brings back an [`Answer`].
//!
//! ```text
//! device ─► probe ─► nothing on it ─► format ─┐
//!                └─► its file system ─► check ┴─► mount        anything else on it is somebody's data: never touched
//! ```

/// A program of the node with what it is told. Never a shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Its name; it is looked for in [`PROGRAM_DIRS`] only.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Exits beside 0 that mean that all is well.
    pub fine: &'static [i32],
}

/// Where programs of the node are, by their absolute paths.
pub const PROGRAM_DIRS: [&str; 4] = ["/sbin", "/usr/sbin", "/bin", "/usr/bin"];

impl Run {
    /// A program that works when it exits with 0.
    #[must_use]
    pub fn new(program: &str, args: &[&str]) -> Self {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Self { program: program.to_owned(), args, fine: &[] }
    }

    /// The same, with more exits that are fine.
    #[must_use]
    pub fn or(self, fine: &'static [i32]) -> Self {
        Self { fine, ..self }
    }
}

/// What a program said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Its exit code; `None` when a signal ended it.
    pub exit: Option<i32>,
    /// Standard output.
    pub out: String,
}

/// File system that is made when nothing says which.
pub const FS_TYPE_DEFAULT: &str = "ext4";

/// What is on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing that is known.
    Nothing,
    /// A file system of this type.
    FileSystem(String),
    /// Something else: a table of partitions, a part of an array.
    Other(String),
}

/// Asks what is on a device. It exits with 2 when it finds nothing.
#[must_use]
pub fn probe(device: &str) -> Run {
    Run::new("blkid", &["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", device]).or(&[2])
}

/// What the answer to [`probe`] says. One that finds several things on a device does not exit well, and is an error before this.
#[must_use]
pub fn content(answer: &Answer) -> Content {
    if answer.exit == Some(2) {
        return Content::Nothing;
    }
    let value = |key: &str| answer.out.lines().find_map(|line| line.strip_prefix(key));
    match (value("PTTYPE="), value("TYPE=")) {
        (Some(table), _) => Content::Other(format!("partition table {table}")),
        (None, Some(kind)) if is_part_of_more(kind) => Content::Other(kind.to_owned()),
        (None, Some(kind)) => Content::FileSystem(kind.to_owned()),
        (None, None) => Content::Other("something unknown".to_owned()),
    }
}

/// Names that stand for a piece of something larger, for an encrypted device or for swap.
fn is_part_of_more(kind: &str) -> bool {
    kind.ends_with("_member") || kind.starts_with("crypto_") || kind == "swap"
}

/// What is to be done with a device before it is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A file system is made on it.
    Format(Run),
    /// The file system that is there is checked.
    Check(Run),
    /// Nothing.
    None,
}

/// What is to be done with a device that should bear a file system of type `wanted` (the default when empty), and the type that it has
/// afterwards. Nothing but an empty device is ever written to.
///
/// # Errors
/// It has something else on it, or nothing and may not be written to.
pub fn step(
    device: &str,
    content: &Content,
    wanted: &str,
    read_only: bool,
) -> Result<(Step, String), String> {
    let wanted = if wanted.is_empty() { FS_TYPE_DEFAULT } else { wanted };
    match content {
        Content::Nothing if read_only => Err(format!(
            "cannot mount unformatted disk {device} as we are manipulating it in read-only mode"
        )),
        Content::Nothing => Ok((Step::Format(format(device, wanted)?), wanted.to_owned())),
        Content::FileSystem(found) if is_served_by(found, wanted) => {
            let check = if read_only { None } else { check(device, found) };
            Ok((check.map_or(Step::None, Step::Check), wanted.to_owned()))
        }
        Content::FileSystem(found) => {
            Err(format!("failed to mount the volume as {wanted:?}, it already contains {found}"))
        }
        Content::Other(found) => Err(format!(
            "failed to mount the volume as {wanted:?}, it already contains unknown data, probably partitions: {found}"
        )),
    }
}

/// The members of one family read those before them.
fn is_served_by(found: &str, wanted: &str) -> bool {
    let rank = |kind: &str| ["ext2", "ext3", "ext4"].iter().position(|member| *member == kind);
    found == wanted
        || matches!((rank(found), rank(wanted)), (Some(had), Some(reads)) if had <= reads)
}

fn format(device: &str, fs_type: &str) -> Result<Run, String> {
    let program = format!("mkfs.{fs_type}");
    match fs_type {
        // -m0: nothing is kept back for root
        "ext2" | "ext3" | "ext4" => Ok(Run::new(&program, &["-F", "-m0", device])),
        "xfs" => Ok(Run::new(&program, &["-f", device])),
        "btrfs" => Ok(Run::new(&program, &[device])),
        other => Err(format!("file systems of type {other:?} are not made by this node agent")),
    }
}

/// Exit 1: errors were found and put right.
fn check(device: &str, fs_type: &str) -> Option<Run> {
    let program = format!("fsck.{fs_type}");
    let known = matches!(fs_type, "ext2" | "ext3" | "ext4");
    known.then(|| Run::new(&program, &["-a", device]).or(&[1]))
}

/// Mounts what is on a device.
#[must_use]
pub fn mount(device: &str, fs_type: &str, options: &[String], target: &str) -> Run {
    let mut all = vec!["defaults".to_owned()];
    all.extend_from_slice(options);
    Run::new("mount", &["-t", fs_type, "-o", &all.join(","), device, target])
}

/// Unmounts it again. By a program, since nobody can kill whoever unmounts a disk that does not answer, and an agent has to be killed.
#[must_use]
pub fn unmount(target: &str) -> Run {
    Run::new("umount", &[target])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_empty_device_is_written_to() {
        let answer = |exit, out: &str| Answer { exit: Some(exit), out: out.into() };
        let found = |text: &str| content(&answer(0, text));
        let fs = |kind: &str| Content::FileSystem(kind.into());
        let other = |kind: &str| Content::Other(kind.into());
        assert_eq!(content(&answer(2, "")), Content::Nothing);
        assert_eq!(found("DEVNAME=/dev/x\nTYPE=ext4\n"), fs("ext4"));
        assert_eq!(found("DEVNAME=/dev/x\nPTTYPE=gpt\n"), other("partition table gpt"));
        assert_eq!(found("TYPE=vfat\nPTTYPE=dos\n"), other("partition table dos"));
        assert_eq!(found("DEVNAME=/dev/x\n"), other("something unknown"));
        for part in ["LVM2_member", "linux_raid_member", "crypto_LUKS", "swap", "zfs_member"] {
            assert_eq!(found(&format!("TYPE={part}")), other(part));
        }
        let run =
            |found: &Content, wanted: &str, read_only| step("/dev/x", found, wanted, read_only);
        let made = |program: &str, args: &[&str]| Step::Format(Run::new(program, args));
        let cases = [
            (Content::Nothing, "", made("mkfs.ext4", &["-F", "-m0", "/dev/x"]), "ext4"),
            (Content::Nothing, "xfs", made("mkfs.xfs", &["-f", "/dev/x"]), "xfs"),
            (fs("xfs"), "xfs", Step::None, "xfs"),
            (
                fs("ext4"),
                "",
                Step::Check(Run::new("fsck.ext4", &["-a", "/dev/x"]).or(&[1])),
                "ext4",
            ),
            (
                fs("ext3"),
                "ext4",
                Step::Check(Run::new("fsck.ext3", &["-a", "/dev/x"]).or(&[1])),
                "ext4",
            ),
        ];
        for (found, wanted, expect, kind) in cases {
            assert_eq!(run(&found, wanted, false), Ok((expect, kind.to_owned())), "{found:?}");
        }
        assert_eq!(run(&fs("ext4"), "", true), Ok((Step::None, "ext4".into())));
        for (found, wanted, read_only, why) in [
            (Content::Nothing, "", true, "read-only mode"),
            (Content::Nothing, "tape", false, "are not made by this node agent"),
            (fs("ext4"), "xfs", false, "it already contains ext4"),
            (fs("ext4"), "ext3", false, "it already contains ext4"),
            (other("partition table gpt"), "", false, "probably partitions"),
            (other("LVM2_member"), "", false, "LVM2_member"),
        ] {
            let told = run(&found, wanted, read_only).unwrap_err();
            assert!(told.contains(why), "{told}");
        }
        let mounted = mount("/dev/x", "ext4", &["ro".into(), "noatime".into()], "/t");
        assert_eq!(mounted.args, ["-t", "ext4", "-o", "defaults,ro,noatime", "/dev/x", "/t"]);
    }
}
