//! The programs: etcd with Kubernetes' kube-apiserver, and orch-apiserver, each with a directory and ports of its own. They end with the value.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kubernetes_server::api_server::{
    ApiServerFlags, KubernetesServer, Wanted, log_of, wait_until_ready,
};
use kubernetes_server::etcd::Durability;
use kubernetes_server::ports::free_port;
use kubernetes_server::processes::{log_end, spawn_in};
use proto_api::names::{Names, Profile};
use proto_client::Client;
use proto_client::config::{ClientConfig, Credential, TlsSettings, Verification};
use tempfile::TempDir;
use tokio::process::{Child, Command};

/// Between two looks whether a server is ready.
const POLL: Duration = Duration::from_millis(200);
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
    kubernetes: KubernetesServer,
    ours: Child,
    dir: TempDir,
}

impl Servers {
    /// Starts the programs and waits until both servers are ready.
    pub async fn start(programs: &Programs) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let token = uuid::Uuid::new_v4().simple().to_string();
        prepare(dir.path(), &token).await?;
        let ports = [free_port()?, free_port()?];
        let clients = [client(ports[0], &token)?, client(ports[1], &token)?];
        let kubernetes = KubernetesServer::start(&Wanted {
            kube_apiserver: &programs.kube_apiserver,
            etcd: &programs.etcd,
            directory: dir.path(),
            logs: dir.path(),
            durability: Durability::Unsynced,
            flags: api_server_flags(ports[0], "kube-certificates"),
        })?;
        let mut argv = vec![programs.orch_apiserver.display().to_string()];
        argv.extend(api_server_flags(ports[1], "orch-certificates"));
        argv.push("--naming=kubernetes".to_owned());
        let our_log = dir.path().join("orch-apiserver.log");
        let ours = spawn_in(dir.path(), &argv, &our_log)?;
        for (client, log) in clients.iter().zip([log_of(dir.path()), our_log]) {
            wait_until_ready(client, POLL).await.with_context(|| log_end(&log))?;
        }
        Ok(Self { clients, kubernetes, ours, dir })
    }

    /// Ends the programs, the servers before the store, and waits for their end.
    pub async fn stop(mut self) -> Result<()> {
        self.ours.kill().await?;
        self.kubernetes.stop().await?;
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

fn api_server_flags(port: u16, certificates: &str) -> Vec<String> {
    let account_key = Path::new("service-accounts.key");
    let flags = ApiServerFlags {
        port,
        advertised: Ipv4Addr::LOCALHOST.into(),
        authorization: "RBAC",
        issuer: "https://differential.example.com",
        account_keys: (account_key, account_key),
    };
    let mut flags = flags.words();
    flags.extend([
        format!("--cert-dir={certificates}"),
        "--token-auth-file=tokens.csv".to_owned(),
        "--allow-privileged=true".to_owned(),
        "--disable-admission-plugins=ServiceAccount,DefaultStorageClass".to_owned(),
    ]);
    flags
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
