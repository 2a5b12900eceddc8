//! A node's namespaces: a small process holds them; what runs on the node enters through it.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use apiserver_bootstrap::supervise::detach;
use nix::mount::{MsFlags, mount};
use proto_daemon::mountinfo;

use crate::processes::{ProcessHandle, ProcessIdentity};
use crate::spec::{Node, Spec};
use crate::{network, sys};

/// Directories that each node has for itself; the programs find them at their usual places.
const PRIVATE_DIRS: [&str; 3] = ["/var/log/pods", "/var/log/containers", "/var/lib/cni"];

/// Record of the directories made on the host.
const MADE: &str = "host-directories.json";

/// The running holder of a node, if there is one.
pub fn find(spec: &Spec, node: &str) -> Option<ProcessHandle> {
    let bytes = fs::read(record(spec, node)).ok()?;
    serde_json::from_slice::<ProcessIdentity>(&bytes).ok()?.open()
}

/// Makes a command run in the namespaces of a node that is up.
pub fn enter(spec: &Spec, node: &str, command: &mut Command) -> Result<()> {
    let holder = find(spec, node).with_context(|| format!("node {node} is not running"))?;
    sys::run_in_namespaces_of(command, holder.try_clone_fd()?);
    Ok(())
}

/// Makes sure that the node's namespaces exist and are connected; gives their holder.
pub async fn ensure(spec: &Spec, node: &Node) -> Result<ProcessHandle> {
    if let Some(holder) = find(spec, &node.name) {
        return Ok(holder);
    }
    make_mount_points(spec)?;
    for dir in PRIVATE_DIRS {
        fs::create_dir_all(private_dir(&spec.node_dir(&node.name), dir))?;
    }
    let holder = start_holder(spec, node)?;
    crate::files::write_file(&record(spec, &node.name), &serde_json::to_vec(&holder.identity)?)?;
    network::plug(spec, node, holder.identity.pid).await?;
    let mut configure = Command::new(spec.bin_dir.join("cluster"));
    configure.args(["node-network", &node.address.to_string(), &spec.host_address().to_string()]);
    sys::run_in_namespaces_of(&mut configure, holder.try_clone_fd()?);
    let status = configure.status().context("cannot configure the node's network")?;
    if !status.success() {
        bail!("cannot configure the network of {}: {status}", node.name);
    }
    Ok(holder)
}

/// The host may lack the directories over which the nodes mount their own: those that we make are remembered.
fn make_mount_points(spec: &Spec) -> Result<()> {
    let mut made = made_mount_points(&spec.dir);
    for dir in PRIVATE_DIRS.map(Path::new) {
        for missing in dir.ancestors().take_while(|dir| !dir.exists()) {
            made.push(missing.to_owned());
        }
        // Remembered before it is made: a crash between the two forgets nothing.
        crate::files::write_file(&spec.dir.join(MADE), &serde_json::to_vec(&made)?)?;
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    Ok(())
}

fn made_mount_points(dir: &Path) -> Vec<PathBuf> {
    let recorded = fs::read(dir.join(MADE)).ok();
    recorded.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// Removes the directories that the cluster in `dir` made on the host, those that others use by now apart.
pub fn remove_mount_points(dir: &Path) {
    let covered = mount_points_of_all();
    for made in made_mount_points(dir) {
        // A directory that is removed here takes with it what another cluster has mounted over it (rmdir(2), since Linux 3.18).
        if !covered.contains(&made) {
            // Not empty: another program uses it.
            let _in_use = fs::remove_dir(made);
        }
    }
}

/// Mount points of all processes, each by the path in its own namespace.
fn mount_points_of_all() -> BTreeSet<PathBuf> {
    let mut seen = BTreeSet::new();
    let mut points = BTreeSet::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(namespace) = fs::read_link(process.path().join("ns/mnt")) else { continue };
        if seen.insert(namespace) {
            let mounts = mountinfo::read_of(&process.path()).unwrap_or_default();
            points.extend(mounts.into_iter().map(|mount| mount.point));
        }
    }
    points
}

fn start_holder(spec: &Spec, node: &Node) -> Result<ProcessHandle> {
    let mut command = Command::new(spec.bin_dir.join("cluster"));
    command.arg("hold").arg(spec.node_dir(&node.name)).arg(&node.name);
    // It outlives its starter: a pipe or terminal of the starter must not stay open with it.
    let log = format!("holder-{}", node.name);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(crate::files::open_log(&spec.log(&log))?);
    detach(&mut command);
    sys::run_in_new_namespaces(&mut command);
    let mut child = command.spawn().context("cannot start the node's holder")?;
    let mut answer = String::new();
    child.stdout.take().context("no pipe")?.read_to_string(&mut answer)?;
    if answer != "held" {
        let log = spec.log(&log);
        bail!("the holder of {} ended early: {:?}; see {}", node.name, child.wait(), log.display());
    }
    let pid = i32::try_from(child.id()).context("a pid beyond i32")?;
    ProcessIdentity::from_pid(pid)?
        .open()
        .with_context(|| format!("the holder of {} is gone", node.name))
}

/// Body of the holder process: makes the namespaces it was started in a node's, says so, and sleeps for ever.
pub fn hold(node_dir: &Path, node: &str) -> Result<()> {
    // Nothing mounted on the node reaches the host.
    let flags = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, flags, None::<&str>)
        .context("cannot make mounts private")?;
    mount(Some("tmpfs"), "/run", Some("tmpfs"), MsFlags::empty(), Some("mode=755"))
        .context("cannot mount /run")?;
    for dir in PRIVATE_DIRS {
        let own = private_dir(node_dir, dir);
        mount(Some(&own), dir, None::<&str>, MsFlags::MS_BIND, None::<&str>)
            .with_context(|| format!("cannot mount {dir}"))?;
    }
    mount_own_sys_net()?;
    // Inside, propagation works as pods may ask for. Last: unmounting above would propagate too.
    let flags = MsFlags::MS_REC | MsFlags::MS_SHARED;
    mount(None::<&str>, "/", None::<&str>, flags, None::<&str>)
        .context("cannot share mounts on the node")?;
    nix::unistd::sethostname(node).context("cannot set the host name")?;
    use std::io::Write;
    let mut stdout = std::io::stdout();
    stdout.write_all(b"held")?;
    stdout.flush()?;
    // Closing stdout signals the parent that set-up is complete.
    nix::unistd::close(1).context("cannot close stdout")?;
    loop {
        nix::unistd::pause();
    }
}

/// `/sys` shows the network of the namespace that mounted it: mount it again, and keep the host's cgroups below it.
fn mount_own_sys_net() -> Result<()> {
    let cgroups = Path::new("/sys/fs/cgroup");
    let keep = Path::new("/run/cgroup");
    fs::create_dir_all(keep)?;
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(cgroups), keep, None::<&str>, flags, None::<&str>)
        .context("cannot keep the cgroups")?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("sysfs"), "/sys", Some("sysfs"), flags, None::<&str>)
        .context("cannot mount /sys")?;
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(keep), cgroups, None::<&str>, flags, None::<&str>)
        .context("cannot mount the cgroups")?;
    nix::mount::umount2(keep, nix::mount::MntFlags::MNT_DETACH)
        .context("cannot unmount /run/cgroup")?;
    fs::remove_dir(keep).context("cannot remove /run/cgroup")
}

fn record(spec: &Spec, node: &str) -> PathBuf {
    spec.node_dir(node).join("holder.json")
}

fn private_dir(node_dir: &Path, dir: &str) -> PathBuf {
    node_dir.join("private").join(dir.trim_start_matches('/').replace('/', "-"))
}
