//! API servers on loopback: the flags that ours and Kubernetes' have in common, and Kubernetes' kube-apiserver on an etcd.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use apiserver_bootstrap::poll_until::until;
use proto_client::{Client, request};
use tokio::process::Child;

use crate::etcd::{Durability, Etcd};
use crate::processes::spawn_in;

/// The addresses of Services.
pub const SERVICE_CIDR: &str = "10.96.0.0/16";
/// Longest start of a server.
const START_MAX: Duration = Duration::from_secs(120);

/// What API servers of both projects are started with.
#[derive(Clone, Copy, Debug)]
pub struct ApiServerFlags<'a> {
    pub port: u16,
    /// The address that stands in the Endpoints of `kubernetes`.
    pub advertised: IpAddr,
    pub authorization: &'a str,
    /// Issuer of service account tokens.
    pub issuer: &'a str,
    /// Files of the keys that check and sign service account tokens.
    pub account_keys: (&'a Path, &'a Path),
}

impl ApiServerFlags<'_> {
    /// The flags as words of a command line.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let (public, private) = self.account_keys;
        vec![
            format!("--bind-address={}", Ipv4Addr::LOCALHOST),
            format!("--advertise-address={}", self.advertised),
            format!("--secure-port={}", self.port),
            format!("--service-account-issuer={}", self.issuer),
            format!("--service-account-key-file={}", public.display()),
            format!("--service-account-signing-key-file={}", private.display()),
            format!("--service-cluster-ip-range={SERVICE_CIDR}"),
            format!("--authorization-mode={}", self.authorization),
        ]
    }
}

/// What Kubernetes' server needs.
#[derive(Debug)]
pub struct Wanted<'a> {
    pub kube_apiserver: &'a Path,
    pub etcd: &'a Path,
    /// Working directory of the server; the directory `etcd` in it is that of the store.
    pub directory: &'a Path,
    /// Directory of `kube-apiserver.log` and `etcd.log`.
    pub logs: &'a Path,
    pub durability: Durability,
    /// Flags of the server, without that of its store.
    pub flags: Vec<String>,
}

/// A running kube-apiserver with its etcd. They end with this.
#[derive(Debug)]
pub struct KubernetesServer {
    pub process: Child,
    pub etcd: Etcd,
}

impl KubernetesServer {
    /// Starts both. [`wait_until_ready`] waits for them.
    ///
    /// # Errors
    /// One of them cannot be started.
    pub fn start(wanted: &Wanted<'_>) -> Result<Self> {
        let (data, log) = (wanted.directory.join("etcd"), wanted.logs.join("etcd.log"));
        let etcd = Etcd::start(wanted.etcd, &data, &log, wanted.durability)?;
        let mut argv = vec![wanted.kube_apiserver.display().to_string()];
        argv.push(format!("--etcd-servers={}", etcd.url()));
        argv.extend_from_slice(&wanted.flags);
        let process = spawn_in(wanted.directory, &argv, &log_of(wanted.logs))?;
        Ok(Self { process, etcd })
    }

    /// Ends both, the store last, and waits for their end.
    ///
    /// # Errors
    /// One of them cannot be ended.
    pub async fn stop(mut self) -> Result<()> {
        self.process.kill().await?;
        self.etcd.stop().await
    }
}

/// The log of kube-apiserver in a directory of logs.
#[must_use]
pub fn log_of(logs: &Path) -> PathBuf {
    logs.join("kube-apiserver.log")
}

/// Waits until a server of either project says that it is ready, looking again after each `poll`.
///
/// # Errors
/// It does not become ready.
pub async fn wait_until_ready(client: &Client, poll: Duration) -> Result<()> {
    let ready = until("the API server is ready", START_MAX, poll, async || {
        match client.call(request::get("/readyz".to_owned())).await {
            Ok(answer) if answer.status == 200 => Ok(()),
            Ok(answer) => Err(format!("status {}", answer.status)),
            Err(error) => Err(error.to_string()),
        }
    });
    Ok(ready.await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_name_the_address_the_keys_and_the_authorization() {
        let keys = (Path::new("sa.pub"), Path::new("sa.key"));
        let flags = ApiServerFlags {
            port: 6443,
            advertised: Ipv4Addr::new(10, 98, 0, 1).into(),
            authorization: "Node,RBAC",
            issuer: "https://a",
            account_keys: keys,
        };
        let expected = [
            "--bind-address=127.0.0.1",
            "--advertise-address=10.98.0.1",
            "--secure-port=6443",
            "--service-account-issuer=https://a",
            "--service-account-key-file=sa.pub",
            "--service-account-signing-key-file=sa.key",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=Node,RBAC",
        ];
        assert_eq!(flags.words(), expected);
    }

    /// In the place of both programs is one that writes its arguments.
    #[tokio::test]
    async fn the_server_uses_the_store_that_is_started_with_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let wanted = Wanted {
            kube_apiserver: Path::new("echo"),
            etcd: Path::new("echo"),
            directory: dir.path(),
            logs: dir.path(),
            durability: Durability::Unsynced,
            flags: vec!["--more".to_owned()],
        };
        let server = KubernetesServer::start(&wanted).expect("started");
        let expected = format!("--etcd-servers={} --more\n", server.etcd.url());
        let written = async |log: &Path| {
            until("it writes", START_MAX, Duration::from_millis(2), async || {
                let text = std::fs::read_to_string(log).unwrap_or_default();
                if text.ends_with('\n') { Ok(text) } else { Err(text) }
            })
            .await
            .expect("a line")
        };
        assert_eq!(written(&log_of(dir.path())).await, expected);
        let store = written(&dir.path().join("etcd.log")).await;
        let url = format!("--listen-client-urls={}", server.etcd.url());
        assert!(store.contains(&url) && store.ends_with(" --unsafe-no-fsync\n"), "{store}");
        server.stop().await.expect("stopped");
    }
}
