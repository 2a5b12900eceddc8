//! The machine's etcd for hosts of orchadm: at the bridge, with certificates of its own.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};
use apiserver_bootstrap::authority::{Authority, Issuance, LEAF_DAYS, Leaf};
use apiserver_bootstrap::certificates;
use kubernetes_server::ports::free_port;
use orch_tests::runner::Skip;
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::hosts::{DIR, NETWORK};

const PROGRAM: &str = "/usr/bin/etcd";

/// An etcd with one member; killed when dropped.
pub struct Etcd {
    child: Child,
    dir: PathBuf,
    /// Where it is reached from the hosts.
    pub url: String,
}

impl Etcd {
    /// Starts one. The bridge of the hosts has to be there.
    pub fn start() -> Result<Self> {
        if !Path::new(PROGRAM).exists() {
            return Err(Skip(format!("needs {PROGRAM}")).into());
        }
        // Where the hosts see it too, and where `Hosts` finds what a killed run left.
        let dir = Path::new(DIR).join("etcd");
        fs::create_dir_all(&dir)?;
        let address = format!("{NETWORK}.1");
        let now = OffsetDateTime::now_utc();
        let authority = Authority::ensure(&dir, "ca", "etcd", now)?;
        for (stem, leaf) in [
            ("server", Leaf::server("etcd", std::slice::from_ref(&address))),
            ("client", Leaf::client("apiserver", &[])),
        ] {
            let issuance = Issuance { leaf: &leaf, authority: &authority, days: LEAF_DAYS, now };
            certificates::ensure(&dir, stem, &issuance)?;
        }
        let port = loop {
            let port = free_port()?;
            // A killed run may have left a listener at the bridge.
            if TcpListener::bind((&*address, port)).is_ok() {
                break port;
            }
        };
        let url = format!("https://{address}:{port}");
        let peer = format!("http://127.0.0.1:{}", free_port()?);
        let file = |name: &str| dir.join(name).display().to_string();
        let log = fs::File::create(Path::new(DIR).join("etcd.log"))?;
        let child = Command::new(PROGRAM)
            .arg("--name=one")
            .arg(format!("--data-dir={}", file("data")))
            .arg(format!("--listen-client-urls={url}"))
            .arg(format!("--advertise-client-urls={url}"))
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--initial-cluster=one={peer}"))
            .arg("--client-cert-auth")
            .arg(format!("--trusted-ca-file={}", file("ca.crt")))
            .arg(format!("--cert-file={}", file("server.crt")))
            .arg(format!("--key-file={}", file("server.key")))
            .env("DIR", &dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start etcd")?;
        Ok(Self { child, dir, url })
    }

    /// The field `etcd` of a ClusterConfiguration, with other URLs besides.
    pub fn configuration(&self, others: &[&str]) -> Value {
        let file = |name: &str| self.dir.join(name);
        let endpoints = [&[self.url.as_str()], others].concat();
        json!({
            "external": {
                "endpoints": endpoints,
                "caFile": file("ca.crt"),
                "certFile": file("client.crt"),
                "keyFile": file("client.key"),
            },
        })
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        // It has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
