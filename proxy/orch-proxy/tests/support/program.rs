//! The program as a process, killed when its value is dropped, also when a test fails.

#![allow(dead_code, reason = "each test binary uses what it needs")]

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::{api, sys};

/// Distinguishes the files of the programs of one process.
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A running program.
pub struct Program {
    child: Child,
    /// Address of its metrics server.
    pub metrics: SocketAddr,
    files: [PathBuf; 2],
}

impl Program {
    /// Starts it with an API server, as the node `node`.
    pub fn start(api: SocketAddr, flags: &[&str]) -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = |what: &str| {
            let name = format!("orch-proxy-{what}-{}-{number}", std::process::id());
            std::env::temp_dir().join(name)
        };
        let files = [path("kubeconfig"), path("log")];
        std::fs::write(&files[0], api::kubeconfig(api)).unwrap();
        let metrics = free_address();
        let mut command = Command::new(env!("CARGO_BIN_EXE_orch-proxy"));
        let command = command
            .args(["--naming=kubernetes", "--hostname-override=node"])
            .args(["--conntrack-max-per-core=0", "--healthz-bind-address=127.0.0.1:0"])
            .arg(format!("--metrics-bind-address={metrics}"))
            .arg(format!("--kubeconfig={}", files[0].display()))
            .args(flags)
            .stdout(Stdio::null())
            .stderr(File::create(&files[1]).unwrap());
        let child = sys::die_with_us(command).spawn().unwrap();
        Self { child, metrics, files }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.files[1]).unwrap_or_default()
    }

    /// Kills it, as `kill -9` does.
    pub fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.end();
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// A free address, in the network namespace of the calling thread. Its port is below those of connections and of listeners without a port of their own: it
/// is still free when the program binds it.
fn free_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    let next = |_| SocketAddr::from(([127, 0, 0, 1], NEXT.fetch_add(1, Ordering::Relaxed)));
    let is_free = |address: &SocketAddr| TcpListener::bind(address).is_ok();
    (0..1000).map(next).find(is_free).unwrap()
}

/// Status and body of a page, once it is served.
pub fn get(at: SocketAddr, path: &str) -> (u16, String) {
    let started = Instant::now();
    let mut stream = loop {
        match TcpStream::connect(at) {
            Ok(stream) => break stream,
            Err(error) => {
                assert!(started.elapsed() < Duration::from_secs(60), "{at}{path}: {error}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    };
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}
