//! An etcd of its own for a test, or the members of one. Shared with the tests of the API server.

use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const PROGRAM: &str = "/usr/bin/etcd";
const CLIENT: &str = "/usr/bin/etcdctl";
/// What its ports are chosen from.
const PORTS: Range<u16> = 20_000..29_000;

/// Longer than a member takes to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A member of an etcd; killed when dropped.
pub struct EtcdProcess {
    child: Option<Child>,
    directory: tempfile::TempDir,
    name: String,
    client: u16,
    peer: u16,
    /// Names and peer URLs of all members.
    members: String,
    tls: Option<TlsPaths>,
    flags: &'static [&'static str],
}

/// The files of an etcd that asks its clients for certificates.
#[derive(Clone)]
pub struct TlsPaths {
    pub authority: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl EtcdProcess {
    /// Starts one with a single member; `None`, which is printed, where there is no etcd.
    pub fn start(test: &str) -> Option<Self> {
        Self::start_with(test, None)
    }

    pub fn start_with(test: &str, tls: Option<TlsPaths>) -> Option<Self> {
        Self::start_members(test, 1, tls, &[])?.pop()
    }

    /// Starts all members of one, with these flags besides those of all tests.
    pub fn start_members(
        test: &str,
        count: usize,
        tls: Option<TlsPaths>,
        flags: &'static [&'static str],
    ) -> Option<Vec<Self>> {
        if !Path::new(PROGRAM).exists() || !Path::new(CLIENT).exists() {
            eprintln!("SKIPPED {test}: needs {PROGRAM} and {CLIENT}");
            return None;
        }
        let ports: Vec<_> = (0..count).map(|nth| (format!("m{nth}"), free_port())).collect();
        let members = ports.iter().map(|(name, peer)| format!("{name}={}", peer_url(*peer)));
        let members = members.collect::<Vec<_>>().join(",");
        let start = |(name, peer)| {
            let directory = tempfile::tempdir().expect("directory");
            let (members, tls) = (members.clone(), tls.clone());
            let client = free_port();
            let mut process =
                Self { child: None, directory, name, client, peer, members, tls, flags };
            process.restart();
            process
        };
        let all: Vec<Self> = ports.into_iter().map(start).collect();
        // A member serves clients once it is in the cluster: a test begins with all of them.
        if count > 1 {
            all.iter().for_each(Self::wait_until_served);
        }
        Some(all)
    }

    /// Waits until it takes connections of clients.
    fn wait_until_served(&self) {
        let end = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", self.client)).is_err() {
            assert!(Instant::now() < end, "etcd {} does not serve", self.name);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.client)
    }

    pub fn port(&self) -> u16 {
        self.client
    }

    /// Whether it was started, and not killed since.
    pub fn runs(&self) -> bool {
        self.child.is_some()
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// Starts it again with its data.
    pub fn restart(&mut self) {
        assert!(self.child.is_none(), "it runs");
        let (client, peer) = (self.url(), peer_url(self.peer));
        let log = std::fs::File::create(self.directory.path().join("log")).expect("log");
        let mut command = Command::new(PROGRAM);
        command
            .arg(format!("--name={}", self.name))
            .arg(format!("--data-dir={}", self.data().display()))
            .arg(format!("--listen-client-urls={client}"))
            .arg(format!("--advertise-client-urls={client}"))
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--initial-cluster={}", self.members))
            .args(self.flags);
        if let Some(tls) = &self.tls {
            command
                .arg("--client-cert-auth")
                .arg(format!("--trusted-ca-file={}", tls.authority.display()))
                .arg(format!("--cert-file={}", tls.certificate.display()))
                .arg(format!("--key-file={}", tls.key.display()));
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        self.child = Some(child.expect("etcd starts"));
    }

    /// Ends it as a crash does.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Sends it a signal, such as `-STOP`.
    pub fn signal(&self, signal: &str) {
        let id = self.child.as_ref().expect("it runs").id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().expect("kill").success());
    }

    /// Saves what it has.
    pub fn save(&self, file: &Path) {
        self.control(["snapshot", "save"], file, &[]);
    }

    /// Puts what was saved in the place of what it has, which is killed if it runs. It is not started again.
    pub fn restore(&mut self, file: &Path) {
        self.kill();
        std::fs::remove_dir_all(self.data()).expect("removed");
        let more = [
            format!("--name={}", self.name),
            format!("--data-dir={}", self.data().display()),
            format!("--initial-advertise-peer-urls={}", peer_url(self.peer)),
            format!("--initial-cluster={}", self.members),
        ];
        self.control(["snapshot", "restore"], file, &more);
    }

    fn control(&self, verb: [&str; 2], file: &Path, more: &[String]) {
        let mut command = Command::new(CLIENT);
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", self.url()));
        let output = command.args(verb).arg(file).args(more).output().expect("etcdctl");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for EtcdProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

fn peer_url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

/// A port that nothing listens on, below those that the kernel gives to connections and to listeners of other tests: it is still free when etcd binds it.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Of each process others first.
    let begin = std::process::id().wrapping_mul(97);
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let mut ports = std::iter::repeat_with(|| {
        let nth = begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        PORTS.start + u16::try_from(nth % u32::from(PORTS.end - PORTS.start)).expect("a port")
    });
    ports.by_ref().take(PORTS.len()).find(is_free).expect("a free port")
}
