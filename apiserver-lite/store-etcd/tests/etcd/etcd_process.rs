//! An etcd of its own for a test. Shared with the tests of the API server.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const PROGRAM: &str = "/usr/bin/etcd";

/// An etcd with one member; killed when dropped.
pub struct EtcdProcess {
    child: Option<Child>,
    directory: tempfile::TempDir,
    client: u16,
    peer: u16,
    tls: Option<TlsPaths>,
}

/// The files of an etcd that asks its clients for certificates.
#[derive(Clone)]
pub struct TlsPaths {
    pub authority: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl EtcdProcess {
    /// Starts one; `None`, which is printed, where there is no etcd.
    pub fn start(test: &str) -> Option<Self> {
        Self::start_with(test, None)
    }

    pub fn start_with(test: &str, tls: Option<TlsPaths>) -> Option<Self> {
        if !Path::new(PROGRAM).exists() {
            eprintln!("SKIPPED {test}: needs {PROGRAM}");
            return None;
        }
        let directory = tempfile::tempdir().expect("directory");
        let mut process =
            Self { child: None, directory, client: free_port(), peer: free_port(), tls };
        process.restart();
        Some(process)
    }

    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.client)
    }

    pub fn port(&self) -> u16 {
        self.client
    }

    /// Starts it again with its data.
    pub fn restart(&mut self) {
        assert!(self.child.is_none(), "it runs");
        let (client, peer) = (self.url(), format!("http://127.0.0.1:{}", self.peer));
        let log = std::fs::File::create(self.directory.path().join("log")).expect("log");
        let mut command = Command::new(PROGRAM);
        command
            .arg("--name=one")
            .arg(format!("--data-dir={}", self.directory.path().join("data").display()))
            .arg(format!("--listen-client-urls={client}"))
            .arg(format!("--advertise-client-urls={client}"))
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--initial-cluster=one={peer}"));
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
}

impl Drop for EtcdProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("bound").port()
}
