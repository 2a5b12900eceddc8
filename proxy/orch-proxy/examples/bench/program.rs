//! Programs under test, ours or kube-proxy: started with an API server in this process.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use proxy_kernel::{Session, Socket};

/// A change that takes longer is lost.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Address of the health server.
pub const HEALTH_ADDRESS: &str = "127.0.0.1:10256";

/// A program and its arguments.
pub struct Program {
    path: PathBuf,
    words: Vec<String>,
    is_ours: bool,
}

impl Program {
    /// This build's program, if it exists.
    pub fn ours() -> Option<Self> {
        let own = std::env::current_exe().unwrap();
        let path = own.parent().and_then(Path::parent).unwrap().join("orch-proxy");
        let words = ["--naming=kubernetes", "--nft-table=orch-proxy"];
        let words = words.map(str::to_owned).into();
        path.exists().then_some(Self { path, words, is_ours: true })
    }

    /// kube-proxy, with additional flags.
    pub fn theirs(path: PathBuf, flags: &[String]) -> Self {
        let words = ["--proxy-mode=iptables", "--v=0"].map(str::to_owned);
        Self { path, words: [&words[..], flags].concat(), is_ours: false }
    }

    /// With additional arguments.
    pub fn with(mut self, words: &[&str]) -> Self {
        self.words.extend(words.iter().map(|word| (*word).to_owned()));
        self
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn command(&self, kubeconfig: &Path) -> Command {
        let mut command = Command::new(&self.path);
        command
            .args(&self.words)
            .args(["--hostname-override=node", "--conntrack-max-per-core=0"])
            .args([
                "--conntrack-tcp-timeout-established=0s",
                "--conntrack-tcp-timeout-close-wait=0s",
            ])
            .arg("--metrics-bind-address=127.0.0.1:10249")
            .arg(format!("--healthz-bind-address={HEALTH_ADDRESS}"))
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    pub fn start(&self, kubeconfig: &Path) -> Child {
        self.command(kubeconfig).spawn().unwrap()
    }

    /// Kills it and deletes its tables: ours with `cleanup`, because owned tables cannot be flushed, kube-proxy's by
    /// flushing the ruleset.
    pub fn end(&self, mut child: Child, kubeconfig: &Path) {
        child.kill().unwrap();
        child.wait().unwrap();
        if self.is_ours {
            let cleaned = self.command(kubeconfig).arg("cleanup").status();
            assert!(cleaned.is_ok_and(|status| status.success()), "clean up");
        } else {
            crate::sys::run(&["nft", "flush", "ruleset"]);
        }
    }
}

/// When the ruleset last changed, or now; waits until it has not changed for `long`.
pub fn quiet(session: &mut Session<Socket>, long: Duration) -> Instant {
    let now = Instant::now();
    last_change(session, long).unwrap_or(now)
}

/// When the ruleset last changed, if it did; waits until it has not changed for `long`.
pub fn last_change(session: &mut Session<Socket>, long: Duration) -> Option<Instant> {
    let (mut generation, mut since) = (session.generation().unwrap(), Instant::now());
    let mut last = None;
    while since.elapsed() < long {
        std::thread::sleep(Duration::from_micros(500));
        let now = session.generation().unwrap();
        if now != generation {
            (generation, since) = (now, Instant::now());
            last = Some(since);
        }
    }
    last
}

/// Memory of a process in millions of bytes, see proc_pid_smaps(5).
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Proportional set size: a page that n processes share counts as an n-th of a page.
    pub pss: f64,
    /// Pages that only this process has and that no file holds.
    pub private_dirty: f64,
}

/// Memory of a process; zero if it has ended.
pub fn memory_mb(process: u32) -> Memory {
    let rollup =
        std::fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap_or_default();
    let field = |name: &str| {
        let line = rollup.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|line| line.split_whitespace().next());
        kib.and_then(|kib| kib.parse::<f64>().ok()).unwrap_or_default() * 1024.0 / 1e6
    };
    Memory { pss: field("Pss:"), private_dirty: field("Private_Dirty:") }
}

/// CPU time of a process and its terminated children.
pub fn processor_time(process: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields).unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(4).filter_map(|n| n.parse::<u64>().ok());
    // USER_HZ is 100.
    Duration::from_millis(ticks.sum::<u64>() * 10)
}
