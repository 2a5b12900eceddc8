use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use super::*;
use crate::mount::subpath_refresh::RefreshMethod;

fn root(path: &Path) -> OwnedFd {
    beneath::open_directory(path).unwrap()
}

/// A whole volume, for the mount with that index.
fn of_all(root: &Path, index: usize, on_node: Option<HostPathKind>) -> SubPath<'_> {
    let (volume, container, path) = ("v", "c", "");
    SubPath { volume, root, container, index, path, on_node, all_read_only: None, follows: false }
}

fn identity(fd: &OwnedFd) -> u64 {
    rustix::fs::fstat(fd).unwrap().st_ino
}

#[test]
fn sub_paths_within_the_volume_are_opened() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir_all(at("..1/deep")).unwrap();
    std::fs::write(at("..1/deep/f"), "").unwrap();
    symlink("..1", at("..data")).unwrap();
    symlink("..data/deep", at("deep")).unwrap();
    let inode = |name: &str| at(name).metadata().unwrap().ino();
    for path in ["deep/f", "./deep//f", "deep/./f"] {
        assert_eq!(identity(&open(root(dir.path()), path).unwrap()), inode("..1/deep/f"), "{path}");
    }
    assert_eq!(identity(&open(root(dir.path()), "").unwrap()), inode("."));
}

#[test]
fn sub_paths_that_leave_the_volume_are_refused() {
    let outside = tempfile::tempdir().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir(at("in")).unwrap();
    symlink(outside.path(), at("absolute")).unwrap();
    symlink("/proc/self/root", at("magic")).unwrap();
    symlink("../..", at("in/up")).unwrap();
    let back = format!("../../{}", dir.path().file_name().unwrap().to_str().unwrap());
    symlink(back, at("in/up-and-back")).unwrap();
    symlink("loop", at("loop")).unwrap();
    std::fs::write(at("file"), "").unwrap();
    let cases = [
        "..",
        "in/../..",
        "/",
        "/etc",
        "absolute",
        "absolute/made",
        "magic",
        "magic/etc",
        "in/up",
        "in/up/made",
        "in/up-and-back/in",
        "loop",
        "file/made",
    ];
    for path in cases {
        assert!(open(root(dir.path()), path).is_err(), "{path}");
    }
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0, "nothing was made outside");
}

#[test]
fn missing_sub_path_directories_have_the_mode_of_the_volume() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o2777)).unwrap();
    let made = open(root(dir.path()), "a/b/c").unwrap();
    let stat = dir.path().join("a/b/c").metadata().unwrap();
    assert_eq!(identity(&made), stat.ino());
    assert_eq!(stat.mode() & 0o7777, 0o2777);
    // A dangling link must not create its target elsewhere.
    symlink("nowhere", dir.path().join("dangling")).unwrap();
    assert!(open(root(dir.path()), "dangling").is_err());
    assert!(!dir.path().join("nowhere").exists());
}

#[test]
fn read_only_goes_all_the_way_down() {
    use agent_pod::volume_mounts::AllReadOnly;
    use proto_api::names::{Names, Profile};
    let (agent, volume) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    if volume.path().metadata().unwrap().uid() != 0 {
        eprintln!("SKIPPED read_only_goes_all_the_way_down: needs root");
        return;
    }
    std::fs::create_dir_all(agent.path().join("pods/u")).unwrap();
    let tmpfs =
        mount::Tmpfs { size_bytes: None, mode: 0o755, swap: mount::Swap::Allowed, exec: false };
    mount::tmpfs_on(root(volume.path()), "below", tmpfs, |_| Ok::<(), Errno>(())).unwrap();
    let pods = crate::VolumesOnDisk::new(agent.path(), Names::new(Profile::Kubernetes));
    let give = |root: &Path, index, all_read_only| {
        let on_node = Some(HostPathKind::Directory);
        let part = SubPath { all_read_only, ..of_all(root, index, on_node) };
        pods.sub_path("u", &part)
    };
    let bound = give(volume.path(), 0, Some(AllReadOnly::Enabled)).unwrap();
    let plain = give(volume.path(), 1, None).unwrap();
    let write = |at: &Path| std::fs::write(at.join("f"), "x").map_err(|e| e.raw_os_error());
    let read_only = Err(Some(Errno::ROFS.raw_os_error()));
    let frozen = [write(&bound), write(&bound.join("below"))];
    let free = [write(&plain), write(&plain.join("below")), write(&volume.path().join("below"))];
    // The parent contains the agent's directory and is not copied.
    let above = agent.path().parent().unwrap();
    let refused = give(above, 2, Some(AllReadOnly::Enabled)).map_err(|e| e.source.to_string());
    let given = give(above, 2, Some(AllReadOnly::IfPossible)).unwrap();
    pods.tear_down("u").unwrap();
    mount::unmount(root(volume.path()), "below").unwrap();
    assert_eq!(frozen, [read_only, read_only]);
    assert_eq!(free, [Ok(()); 3]);
    assert!(refused.unwrap_err().contains("the agent's directory"));
    assert_eq!(given, above);
}

/// A stand-in for a container: a mount namespace with a mount of `from` that receives propagated mounts.
struct Container {
    shell: std::process::Child,
    says: std::io::BufReader<std::process::ChildStdout>,
}

impl Container {
    fn start(from: &Path, to: &Path) -> Self {
        use std::process::{Command, Stdio};
        let script = "mount --bind $0 $1 && mount --make-rslave $1 && while read line; do \
                      echo $(cat $1) $(grep -c \" $1 \" /proc/self/mountinfo); done";
        let mut shell = Command::new("unshare")
            .args(["--mount", "--propagation", "slave", "sh", "-c", script])
            .args([from, to])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = std::io::BufReader::new(shell.stdout.take().unwrap());
        Self { shell, says }
    }

    /// The text it reads, and the number of mounts there.
    fn sees(&mut self) -> String {
        use std::io::{BufRead as _, Write as _};
        writeln!(self.shell.stdin.as_mut().unwrap()).unwrap();
        let mut line = String::new();
        self.says.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

#[test]
fn a_part_that_follows_is_new_in_containers_that_run() {
    use proto_api::names::{Names, Profile};
    let (agent, volume) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    if volume.path().metadata().unwrap().uid() != 0 {
        eprintln!("SKIPPED a_part_that_follows_is_new_in_containers_that_run: needs root");
        return;
    }
    std::fs::create_dir_all(agent.path().join("pods/u")).unwrap();
    let pods = crate::VolumesOnDisk::new(agent.path(), Names::new(Profile::Kubernetes));
    // Like the files of a projected volume: a new file replaces the old one.
    let write = |text: &str| {
        std::fs::write(volume.path().join("next"), text).unwrap();
        std::fs::rename(volume.path().join("next"), volume.path().join("f")).unwrap();
    };
    let part = SubPath { path: "f", follows: true, ..of_all(volume.path(), 0, None) };
    write("one");
    let renew = |how| pods.refresh_part("u", &part, how).unwrap();
    assert!(!renew(RefreshMethod::OnTop), "nobody has it");
    let bound = pods.sub_path("u", &part).unwrap();
    let inside = agent.path().join("inside");
    std::fs::write(&inside, "").unwrap();
    let mut first = Container::start(&bound, &inside);
    let mut seen = vec![first.sees()];
    let [top, instead] = [RefreshMethod::OnTop, RefreshMethod::Instead];
    for (text, how) in [("two", top), ("three", instead), ("four", instead)] {
        write(text);
        assert!(renew(how));
        assert!(!renew(how), "it is the same");
        seen.push(first.sees());
    }
    // A file removed from the volume stays in the container.
    std::fs::remove_file(volume.path().join("f")).unwrap();
    assert!(!renew(instead));
    seen.push(first.sees());
    // The next instance starts with the current file and is refreshed, too.
    write("five");
    pods.sub_path("u", &part).unwrap();
    let mut second = Container::start(&bound, &inside);
    assert_eq!(second.sees(), "five 1");
    let mut of_second = Vec::new();
    for (text, how) in [("six", top), ("seven", instead)] {
        write(text);
        assert!(renew(how));
        of_second.push(second.sees());
    }
    // An instance that starts after a refresh keeps what it starts with, without an error.
    pods.sub_path("u", &part).unwrap();
    write("eight");
    assert!(renew(top));
    let mut third = Container::start(&bound, &inside);
    let of_third = third.sees();
    write("nine");
    assert!(!renew(top));
    assert_eq!((of_third.as_str(), third.sees().as_str()), ("eight 1", "eight 1"));
    drop((first, second, third));
    pods.tear_down("u").unwrap();
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!table.contains(&*agent.path().to_string_lossy()), "{table}");
    assert_eq!(seen, ["one 1", "two 2", "three 2", "four 2", "four 2"]);
    assert_eq!(of_second, ["six 2", "seven 2"]);
}
