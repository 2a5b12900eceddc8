//! Hosts for `orchadm`: each has network, mount and host-name namespaces, a root of its own where programs write (`/etc`, `/var/lib`, `/var/log`, `/run`), and
//! its own containerd. A bridge connects them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use cluster::processes::{ProcessIdentity, all_pids};
use nix::sys::signal::Signal;
use orch_tests::wait::until;

use crate::context::PATIENCE;

/// Where the hosts' files lie.
pub const DIR: &str = "/var/tmp/orch-e2e-adm";
const BRIDGE: &str = "orch-adm";
/// Network of the bridge, without the last number.
pub const NETWORK: &str = "172.31.77";
/// The name of the control plane in the hosts' own /etc/hosts, which is their balancer: it leads to the first host at first.
pub const CONTROL_PLANE: &str = "api.adm.test";
/// Directories of a host that are its own.
const OWN_DIRS: [&str; 4] = ["/etc", "/run", "/var/lib", "/var/log"];
/// Directories in them that the runtime fills.
const RUNTIME_DIRS: [&str; 4] =
    ["/run/containerd", "/run/netns", "/var/lib/containerd", "/var/lib/containerd-opt"];
/// The sandbox image that the hosts' containerd is configured with.
const SANDBOX: &str = "orch.local/adm-pause:2";

/// What makes the namespaces that it is started in a host's.
const SET_UP: &str = r#"
set -e
mount --make-rprivate /
hostname "$NAME"
mount --bind "$DIR/etc" /etc
mount --bind "$DIR/lib" /var/lib
mount --bind "$DIR/log" /var/log
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/cgroup
mount --rbind /sys/fs/cgroup /run/cgroup
mount -t sysfs -o nosuid,nodev,noexec sysfs /sys
mount --rbind /run/cgroup /sys/fs/cgroup
umount -l /run/cgroup
rmdir /run/cgroup
mount --make-rshared /
touch /run/held
exec sleep 1000000
"#;

const CONTAINERD: &str = r#"version = 2
oom_score = 0
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "SANDBOX"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd-opt"
"#;

pub struct Host {
    pub name: String,
    pub address: String,
    /// The process that holds its namespaces, and what else was started there.
    holder: Child,
    children: Vec<Child>,
    bin: PathBuf,
    /// Its files before anything was done on it.
    fresh: BTreeSet<String>,
}

/// A command whose namespaces are those of a host.
impl Host {
    /// Makes the host of a number, from 1.
    pub async fn start(number: u8, bin: &Path) -> Result<Self> {
        let name = format!("adm-{number}");
        let dir = Path::new(DIR).join(&name);
        for sub in ["lib", "log"] {
            fs::create_dir_all(dir.join(sub))?;
        }
        let copied = Command::new("cp").args(["-a", "/etc"]).arg(dir.join("etc")).status()?;
        ensure!(copied.success(), "copying /etc: {copied}");
        for made in ["kubernetes", "cni"] {
            let _none = fs::remove_dir_all(dir.join("etc").join(made));
        }
        let names = fs::read_to_string(dir.join("etc/hosts")).unwrap_or_default();
        fs::write(dir.join("etc/hosts"), format!("{names}\n{NETWORK}.11 {CONTROL_PLANE}\n"))?;
        let holder = Command::new("unshare")
            .args(["--net", "--mount", "--uts", "sh", "-c", SET_UP])
            .env("NAME", &name)
            .env("DIR", &dir)
            .stdin(Stdio::null())
            .spawn()?;
        let address = format!("{NETWORK}.{}", 10 + number);
        let (children, fresh) = (Vec::new(), BTreeSet::new());
        let mut host = Self { name, address, holder, children, bin: bin.to_owned(), fresh };
        let held = host.file("/run/held");
        until("the namespaces are made", PATIENCE, async || {
            if held.exists() { Ok(()) } else { Err("they are not") }
        })
        .await?;
        host.plug()?;
        fs::write(dir.join("containerd.toml"), CONTAINERD.replace("SANDBOX", SANDBOX))?;
        let config = dir.join("containerd.toml").display().to_string();
        host.spawn(&["containerd", "--config", &config], "containerd")?;
        let socket = host.socket();
        until("containerd listens", PATIENCE, async || {
            if socket.exists() { Ok(()) } else { Err("it does not") }
        })
        .await?;
        host.fresh = host.files()?;
        Ok(host)
    }

    /// What is on the host now: each path with its kind, files with their length.
    fn files(&self) -> Result<BTreeSet<String>> {
        let mut found = BTreeSet::new();
        let mut next: Vec<String> = OWN_DIRS.map(str::to_owned).to_vec();
        while let Some(dir) = next.pop() {
            let entries = match fs::read_dir(self.file(&dir)) {
                // It has gone since.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                entries => entries.with_context(|| dir.clone())?,
            };
            for entry in entries.flatten() {
                let path = format!("{dir}/{}", entry.file_name().to_string_lossy());
                let Ok(metadata) = entry.metadata() else { continue };
                if RUNTIME_DIRS.contains(&path.as_str()) {
                    continue;
                }
                if metadata.is_dir() {
                    found.insert(format!("{path}/"));
                    next.push(path);
                } else if metadata.is_file() {
                    found.insert(format!("{path} ({} bytes)", metadata.len()));
                } else {
                    found.insert(path);
                }
            }
        }
        Ok(found)
    }

    /// What is on the host that was not there at first, and what is not there any more.
    pub fn changed_files(&self) -> Result<Vec<String>> {
        let now = self.files()?;
        let new = now.difference(&self.fresh).map(|path| format!("new: {path}"));
        Ok(new.chain(self.fresh.difference(&now).map(|path| format!("gone: {path}"))).collect())
    }

    /// Has the name of the control plane lead to the second host.
    pub fn lead_to_second(&self) -> Result<()> {
        let path = self.file("/etc/hosts");
        let names = fs::read_to_string(&path)?;
        let (first, second) = (format!("{NETWORK}.11"), format!("{NETWORK}.12"));
        Ok(fs::write(path, names.replace(&first, &second))?)
    }

    /// Writes a file that the host sees at the same path, and that is not one of its own.
    pub fn write(&self, name: &str, text: &str) -> Result<String> {
        let path = format!("{DIR}/{}-{name}", self.name);
        fs::write(&path, text).with_context(|| path.clone())?;
        Ok(path)
    }

    fn plug(&self) -> Result<()> {
        let (pid, outer) = (self.holder.id().to_string(), format!("o{}", self.name));
        ip(&["link", "add", &outer, "type", "veth", "peer", "name", "eth0", "netns", &pid])?;
        ip(&["link", "set", &outer, "master", BRIDGE, "up"])?;
        let address = format!("{}/24", self.address);
        let gateway = format!("{NETWORK}.1");
        for line in [
            &["ip", "link", "set", "lo", "up"][..],
            &["ip", "address", "add", &address, "dev", "eth0"],
            &["ip", "link", "set", "eth0", "up"],
            &["ip", "route", "add", "default", "via", &gateway],
        ] {
            let status = self.command(line).status()?;
            ensure!(status.success(), "{line:?}: {status}");
        }
        Ok(())
    }

    /// A path of the host as this process sees it.
    pub fn file(&self, path: &str) -> PathBuf {
        Path::new("/proc").join(self.holder.id().to_string()).join("root").join(&path[1..])
    }

    /// containerd's socket.
    pub fn socket(&self) -> PathBuf {
        self.file("/run/containerd/containerd.sock")
    }

    /// A command on the host.
    pub fn command(&self, line: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        let pid = self.holder.id().to_string();
        command.args(["--net", "--mount", "--uts", "--target", &pid]).args(line);
        command.stdin(Stdio::null());
        command
    }

    /// Starts a program that stays; its output goes to a file.
    pub fn spawn(&mut self, line: &[&str], log: &str) -> Result<u32> {
        let log = fs::File::create(Path::new(DIR).join(format!("{}-{log}.log", self.name)))?;
        let child = self.command(line).stdout(log.try_clone()?).stderr(log).spawn()?;
        let pid = child.id();
        self.children.push(child);
        Ok(pid)
    }

    /// What a spawned program has said.
    pub fn said(&self, log: &str) -> String {
        let path = Path::new(DIR).join(format!("{}-{log}.log", self.name));
        fs::read_to_string(path).unwrap_or_default()
    }

    /// The path of orchadm.
    pub fn orchadm(&self) -> String {
        self.bin.join("orchadm").display().to_string()
    }

    /// Runs orchadm to its end: exit code, standard output, standard error.
    pub async fn adm(&self, arguments: &[&str]) -> Result<(i32, String, String)> {
        let program = self.orchadm();
        let line = [&[program.as_str()], arguments].concat();
        let mut command = tokio::process::Command::from(self.command(&line));
        let output = command.kill_on_drop(true).output();
        let output = tokio::time::timeout(Duration::from_secs(300), output).await;
        let output = output.with_context(|| format!("{arguments:?} does not end"))??;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = output.status.code().context("ended by a signal")?;
        Ok((code, text(&output.stdout), text(&output.stderr)))
    }

    /// The same, of a command that must succeed; its standard output.
    pub async fn adm_ok(&self, arguments: &[&str]) -> Result<String> {
        match self.adm(arguments).await? {
            (0, out, _) => Ok(out),
            (code, out, error) => bail!("orchadm {arguments:?}: code {code}; {out}{error}"),
        }
    }

    /// Command lines of the host's processes that are neither its holder's nor containerd's.
    pub fn processes(&self) -> Result<Vec<String>> {
        let own = namespace(self.holder.id())?;
        let mut lines = Vec::new();
        for pid in all_pids()? {
            let pid = u32::try_from(pid)?;
            if namespace(pid).is_ok_and(|found| found == own) {
                let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                let line = String::from_utf8_lossy(&line).replace('\0', " ");
                if !line.starts_with("sleep 1000000") && !line.starts_with("containerd --config") {
                    lines.push(line);
                }
            }
        }
        Ok(lines)
    }

    /// Ends everything of the host.
    async fn end(mut self) -> Result<()> {
        let own = namespace(self.holder.id())?;
        for _ in 0..3000 {
            let mut count = 0;
            for pid in all_pids()? {
                if namespace(u32::try_from(pid)?).is_ok_and(|found| found == own)
                    && let Some(process) =
                        ProcessIdentity::from_pid(pid).ok().and_then(|one| one.open())
                {
                    count += 1;
                    process.signal(Signal::SIGKILL)?;
                }
            }
            for child in &mut self.children {
                let _running = child.try_wait();
            }
            let _running = self.holder.try_wait();
            if count == 0 {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bail!("processes of {} do not end", self.name)
    }
}

fn namespace(pid: u32) -> Result<PathBuf> {
    Ok(fs::read_link(format!("/proc/{pid}/ns/mnt"))?)
}

fn ip(arguments: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(arguments).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "ip {arguments:?}: {said}");
    Ok(())
}

/// Hosts on a bridge.
pub struct Hosts {
    /// Those that were made.
    pub all: Vec<Host>,
}

impl Hosts {
    /// Makes them; what an earlier run left is removed first.
    pub async fn start(bin: &Path, count: u8) -> Result<Self> {
        Self { all: Vec::new() }.end().await?;
        fs::create_dir_all(DIR)?;
        ip(&["link", "add", BRIDGE, "type", "bridge"])?;
        let mut hosts = Self { all: Vec::new() };
        let made = hosts.make(bin, count).await;
        if let Err(error) = made {
            hosts.end().await?;
            return Err(error);
        }
        Ok(hosts)
    }

    async fn make(&mut self, bin: &Path, count: u8) -> Result<()> {
        ip(&["address", "add", &format!("{NETWORK}.1/24"), "dev", BRIDGE])?;
        ip(&["link", "set", BRIDGE, "up"])?;
        for number in 1..=count {
            self.all.push(Host::start(number, bin).await?);
        }
        Ok(())
    }

    /// The last lines of every log.
    pub fn tell(&self) {
        let logs = fs::read_dir(DIR).into_iter().flatten().flatten().map(|entry| entry.path());
        let programs =
            |host: &Host| fs::read_dir(host.file("/var/log/orch")).into_iter().flatten().flatten();
        let of_programs = self.all.iter().flat_map(programs).map(|entry| entry.path());
        for log in logs.chain(of_programs).filter(|log| log.extension().is_some_and(|e| e == "log"))
        {
            println!("--- {}\n{}", log.display(), crate::context::last_lines(&log, 20));
        }
    }

    /// Removes them with everything that they made.
    pub async fn end(self) -> Result<()> {
        for host in self.all {
            host.end().await?;
        }
        // A holder that a killed run left keeps its link: its processes are found by its files.
        for pid in all_pids()? {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let of_ours = format!("DIR={DIR}/");
            let is_ours = environment.split(|b| *b == 0).any(|v| v.starts_with(of_ours.as_bytes()));
            if is_ours
                && let Some(process) =
                    ProcessIdentity::from_pid(pid).ok().and_then(|one| one.open())
            {
                process.signal(Signal::SIGKILL)?;
                process.ended().await?;
            }
        }
        // The kernel removes links of namespaces that ended when it gets to it.
        for link in ["oadm-1", "oadm-2", "oadm-3", BRIDGE] {
            let _none = ip(&["link", "delete", link]);
        }
        remove_cgroups();
        match fs::remove_dir_all(DIR) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// The hosts' cgroups, which are empty by now.
fn remove_cgroups() {
    fn remove(group: &Path) {
        for entry in fs::read_dir(group).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                remove(&entry.path());
            }
        }
        let _busy_or_none = fs::remove_dir(group);
    }
    for hierarchy in fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
        remove(&hierarchy.path().join("orch-adm"));
    }
    remove(Path::new("/sys/fs/cgroup/orch-adm"));
}
