//! The programs: etcd with Kubernetes' kube-apiserver, and orch-apiserver, each with a directory and ports of its own. They end with the value.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use apiserver_bootstrap::waiting::until;
use proto_api::names::{Names, Profile};
use proto_client::config::{ClientConfig, Credential, TlsSettings, Verification};
use proto_client::{Client, request};
use tempfile::TempDir;
use tokio::process::{Child, Command};

/// Longest start of a server.
const START_MAX: Duration = Duration::from_secs(90);
/// Longest answer.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Where the programs are.
pub struct Programs {
    /// Kubernetes' own kube-apiserver.
    pub kube_apiserver: PathBuf,
    /// etcd, its store.
    pub etcd: PathBuf,
    /// Ours.
    pub orch_apiserver: PathBuf,
}

/// The running servers.
pub struct Servers {
    /// Clients of Kubernetes' server and of ours, with all rights.
    pub clients: [Client; 2],
    children: Vec<Child>,
    dir: TempDir,
}

impl Servers {
    /// Starts the programs and waits until both servers are ready.
    pub async fn start(programs: &Programs) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let token = uuid::Uuid::new_v4().simple().to_string();
        prepare(dir.path(), &token).await?;
        let [etcd, peer, theirs, ours] = free_ports()?;
        let clients = [client(theirs, &token)?, client(ours, &token)?];
        let mut servers = Self { clients, children: Vec::new(), dir };
        let store = format!("http://127.0.0.1:{etcd}");
        servers.spawn(&programs.etcd, "etcd", &etcd_flags(&store, peer))?;
        let mut flags = api_server_flags(theirs, "kube-certificates");
        flags.extend([
            format!("--etcd-servers={store}"),
            "--disable-admission-plugins=ServiceAccount,DefaultStorageClass".to_owned(),
        ]);
        servers.spawn(&programs.kube_apiserver, "kube-apiserver", &flags)?;
        let mut flags = api_server_flags(ours, "orch-certificates");
        flags.extend([
            "--naming=kubernetes".to_owned(),
            "--disable-admission-plugins=ServiceAccount,DefaultStorageClass".to_owned(),
        ]);
        servers.spawn(&programs.orch_apiserver, "orch-apiserver", &flags)?;
        for (at, name) in ["kube-apiserver", "orch-apiserver"].into_iter().enumerate() {
            servers.wait(at, name).await?;
        }
        Ok(servers)
    }

    fn spawn(&mut self, program: &Path, name: &str, flags: &[String]) -> Result<()> {
        let log = std::fs::File::create(self.dir.path().join(format!("{name}.log")))?;
        let child = Command::new(program)
            .args(flags)
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        self.children.push(child);
        Ok(())
    }

    async fn wait(&mut self, at: usize, name: &str) -> Result<()> {
        let client = &self.clients[at];
        let what = format!("{name} is ready");
        let ready = until(&what, START_MAX, Duration::from_millis(200), async || {
            let answer = client.call(request::get("/readyz".to_owned())).await;
            answer.map(drop).map_err(|error| error.to_string())
        });
        ready.await.with_context(|| format!("the end of its log:\n{}", self.log_end(name)))
    }

    fn log_end(&self, name: &str) -> String {
        let path = self.dir.path().join(format!("{name}.log"));
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    /// Ends the programs, the servers before the store, and waits for their end.
    pub async fn stop(mut self) -> Result<()> {
        for mut child in self.children.drain(..).rev() {
            child.kill().await?;
        }
        self.dir.close().context("removing the servers' directory")
    }
}

/// Writes the key of service account tokens and the file of users.
async fn prepare(dir: &Path, token: &str) -> Result<()> {
    std::fs::write(dir.join("tokens.csv"), format!("{token},admin,1,\"system:masters\"\n"))?;
    let made = Command::new("openssl")
        .args(["genrsa", "-out", "service-accounts.key", "2048"])
        .current_dir(dir)
        .output()
        .await
        .context("running openssl")?;
    ensure!(made.status.success(), "openssl: {}", String::from_utf8_lossy(&made.stderr));
    Ok(())
}

/// Ports that were free a moment ago.
fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let mut listeners = Vec::new();
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        *port = listener.local_addr()?.port();
        listeners.push(listener);
    }
    Ok(ports)
}

fn etcd_flags(store: &str, peer: u16) -> Vec<String> {
    let peer = format!("http://127.0.0.1:{peer}");
    vec![
        "--data-dir=etcd".to_owned(),
        format!("--listen-client-urls={store}"),
        format!("--advertise-client-urls={store}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=default={peer}"),
        // What is stored here is thrown away.
        "--unsafe-no-fsync".to_owned(),
    ]
}

fn api_server_flags(port: u16, certificates: &str) -> Vec<String> {
    vec![
        "--bind-address=127.0.0.1".to_owned(),
        "--advertise-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        format!("--cert-dir={certificates}"),
        "--service-account-issuer=https://differential.example.com".to_owned(),
        "--service-account-key-file=service-accounts.key".to_owned(),
        "--service-account-signing-key-file=service-accounts.key".to_owned(),
        "--token-auth-file=tokens.csv".to_owned(),
        "--authorization-mode=RBAC".to_owned(),
        "--allow-privileged=true".to_owned(),
        "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
    ]
}

fn client(port: u16, token: &str) -> Result<Client> {
    let config = ClientConfig {
        server: format!("https://127.0.0.1:{port}").parse()?,
        // The servers make their certificates themselves, in the directory that is removed with them.
        tls: TlsSettings { verification: Verification::Skipped, ..TlsSettings::default() },
        credential: Credential::Token(token.to_owned()),
        namespace: "default".to_owned(),
    };
    Ok(Client::new(&config, Names::new(Profile::Kubernetes), "differential/0.1.0")?
        .with_deadline(ANSWER_MAX))
}
