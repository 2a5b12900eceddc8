//! A Docker daemon in network and mount namespaces of its own: its rules of forwarding do not reach the machine's other clusters.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use cluster::processes::{ProcessIdentity, all_pids};
use nix::sys::signal::Signal;
use orch_tests::runner::Skip;
use orch_tests::wait::until;

use crate::context::PATIENCE;

/// Where everything lies.
pub const DIR: &str = "/var/tmp/orch-e2e-docker";
/// The cgroup of its containers.
const CGROUP: &str = "/orch-e2e-docker";
/// What makes the namespaces that it is started in the daemon's, which writes to /run and /etc; where /etc cannot be an overlay, it writes to the machine's.
const SET_UP: &str = r#"
    ip link set lo up && mount -t tmpfs tmpfs /run || exit 1
    mkdir -p "$DIR/etc" "$DIR/etc-work"
    mount -t overlay -o "lowerdir=/etc,upperdir=$DIR/etc,workdir=$DIR/etc-work" overlay /etc || true
    touch "$DIR/held" && exec sleep 1000000"#;
/// What makes clusters.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../hack/dind");

pub struct Daemon {
    /// Where the programs lie.
    pub bin: PathBuf,
    holder: Child,
    daemon: Option<Child>,
}

impl Daemon {
    /// Starts it; what an earlier run left is removed first.
    ///
    /// # Errors
    /// [`Skip`], where there is no Docker.
    pub async fn start(bin: &Path) -> Result<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        for program in ["dockerd", "docker", "debootstrap"] {
            if !std::env::split_paths(&path).any(|dir| dir.join(program).exists()) {
                return Err(
                    Skip(format!("{program} is missing: Docker nodes are not tested")).into()
                );
            }
        }
        clear().await?;
        fs::create_dir_all(DIR)?;
        let holder = Command::new("unshare")
            .args(["--net", "--mount", "sh", "-c", SET_UP])
            .env("DIR", DIR)
            .stdin(Stdio::null())
            .spawn()?;
        let mut made = Self { bin: bin.to_owned(), holder, daemon: None };
        let started = made.begin().await;
        if let Err(error) = started {
            made.end().await?;
            return Err(error);
        }
        Ok(made)
    }

    async fn begin(&mut self) -> Result<()> {
        let held = self.file("held");
        until("the namespaces are made", PATIENCE, async || {
            if held.exists() { Ok(()) } else { Err("they are not") }
        })
        .await?;
        self.run().await
    }

    /// What stands in front of a command that speaks with it: its socket is a file, which is seen outside its namespaces too.
    pub fn words(&self) -> Vec<String> {
        let bin = self.bin.display();
        [
            "env",
            &format!("DOCKER_HOST=unix://{DIR}/docker.sock"),
            &format!("DOCKER_CONFIG={DIR}/client"),
            &format!("XDG_STATE_HOME={DIR}/state"),
            &format!("ORCH_BIN_DIR={bin}"),
        ]
        .map(str::to_owned)
        .to_vec()
    }

    /// A program where the daemon publishes ports.
    pub fn inside(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--net", "--target", &self.holder.id().to_string()]);
        command.arg(program).stdin(Stdio::null());
        command
    }

    /// A program of the build, in the same place.
    pub fn program(&self, name: &str) -> Command {
        self.inside(self.bin.join(name))
    }

    /// What a shell's line prints that is run in the same place, with this Docker.
    pub fn shell(&self, line: &str) -> Result<String> {
        let words = self.words();
        let (first, rest) = words.split_first().context("words")?;
        printed(self.inside(first).args(rest).args(["sh", "-c", line]))
    }

    /// What `hack/dind` prints.
    pub fn script(&self, arguments: &[&str]) -> Result<String> {
        let words = self.words();
        let (first, rest) = words.split_first().context("words")?;
        printed(Command::new(first).args(rest).arg(SCRIPT).args(arguments))
    }

    /// A file of the case's.
    pub fn file(&self, name: &str) -> PathBuf {
        Path::new(DIR).join(name)
    }

    async fn run(&mut self) -> Result<()> {
        let log =
            fs::OpenOptions::new().create(true).append(true).open(self.file("dockerd.log"))?;
        let daemon = Command::new("nsenter")
            .args(["--net", "--mount", "--target", &self.holder.id().to_string(), "dockerd"])
            .args(["--data-root", &format!("{DIR}/data"), "--exec-root", &format!("{DIR}/exec")])
            .args(["--pidfile", &format!("{DIR}/docker.pid")])
            .args(["--host", &format!("unix://{DIR}/docker.sock")])
            .args(["--exec-opt", "native.cgroupdriver=cgroupfs", "--cgroup-parent", CGROUP])
            .env("DIR", DIR)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        self.daemon = Some(daemon);
        until("Docker answers", PATIENCE, async || match self.docker(&["version"]) {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("{error:#}")),
        })
        .await
        .with_context(|| crate::context::last_lines(&self.file("dockerd.log"), 5))
    }

    /// Ends it and starts it again.
    pub async fn restart(&mut self) -> Result<()> {
        self.stop().await?;
        self.run().await
    }

    async fn stop(&mut self) -> Result<()> {
        let Some(mut daemon) = self.daemon.take() else { return Ok(()) };
        end(i32::try_from(daemon.id())?, Signal::SIGTERM).await?;
        daemon.wait()?;
        Ok(())
    }

    fn docker(&self, arguments: &[&str]) -> Result<String> {
        let words = self.words();
        let (first, rest) = words.split_first().context("words")?;
        printed(Command::new(first).args(rest).arg("docker").args(arguments))
    }

    /// No container, volume, network or cgroup of a cluster.
    pub fn nothing_is_left(&self) -> Result<()> {
        for line in [
            &["ps", "--all", "--quiet"][..],
            &["volume", "ls", "--quiet"],
            &["network", "ls", "--quiet", "--filter", "name=orch-dind"],
        ] {
            let left = self.docker(line)?;
            ensure!(left.trim().is_empty(), "docker {line:?}: {left}");
        }
        ensure!(!self.file("state/orch/dind/e2e").exists(), "files are left");
        for group in cgroups() {
            let all = fs::read_dir(&group).into_iter().flatten().flatten();
            let left: Vec<PathBuf> =
                all.map(|one| one.path()).filter(|path| path.is_dir()).collect();
            ensure!(left.is_empty(), "cgroups are left: {left:?}");
        }
        Ok(())
    }

    /// Ends it, and removes everything.
    pub async fn end(mut self) -> Result<()> {
        self.stop().await?;
        end(i32::try_from(self.holder.id())?, Signal::SIGKILL).await?;
        self.holder.wait()?;
        clear().await
    }
}

/// The standard output of a command that succeeds.
fn printed(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{:?}: {said}", command.get_args());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

async fn end(pid: i32, signal: Signal) -> Result<()> {
    if let Some(process) = ProcessIdentity::from_pid(pid).ok().and_then(|one| one.open()) {
        process.signal(signal)?;
        process.ended().await?;
    }
    Ok(())
}

/// The cgroup of its containers, in each hierarchy.
fn cgroups() -> Vec<PathBuf> {
    let hierarchies = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
    let paths = hierarchies.map(|one| one.path()).chain([PathBuf::from("/sys/fs/cgroup")]);
    paths.map(|path| path.join(&CGROUP[1..])).filter(|path| path.exists()).collect()
}

/// Ends what a run that was cut off has left, the daemon before the namespaces: it ends its containers. Then removes the files.
async fn clear() -> Result<()> {
    let programs = [
        ("sh", Signal::SIGKILL), // a client
        ("dockerd", Signal::SIGTERM),
        ("sleep", Signal::SIGKILL),
    ];
    for (program, signal) in programs {
        for pid in all_pids()? {
            let read = |what: &str| fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
            let of_ours = format!("DIR={DIR}");
            let is_ours = read("environ").split(|byte| *byte == 0).any(|v| v == of_ours.as_bytes());
            if is_ours && read("comm").trim_ascii() == program.as_bytes() {
                end(pid, signal).await?;
            }
        }
    }
    for group in cgroups() {
        fs::remove_dir(&group).with_context(|| group.display().to_string())?;
    }
    match fs::remove_dir_all(DIR) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).context(format!("removing {DIR}"))
        }
        _ => Ok(()),
    }
}
