//! The API server alone: time from its start until it is ready, and the same load for ours and for Kubernetes' own.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use kubernetes_server::api_server::wait_until_ready;
use kubernetes_server::etcd::{self, Durability, Etcd};
use kubernetes_server::ports::free_port;
use proto_api::names::{Names, Profile};
use proto_client::{Client, config, request};
use tokio::process::{Child, Command};

use crate::figures::{self, Figure, Group, OURS, OURS_ON_ETCD, Unit};
use crate::{api_kinds, api_load, api_webhook, kube_apiserver};

const ROUNDS: usize = 15;

/// What stands beside ours.
#[derive(clap::Args)]
pub struct Wanted {
    /// Kubernetes' own server and etcd: a directory with bin/kube-apiserver
    #[arg(long, value_name = "DIR")]
    suite: Option<PathBuf>,
    /// Ours on the machine's etcd as well
    #[arg(long)]
    on_etcd: bool,
}

/// A server that is measured. It ends with this.
pub struct Served {
    /// An administrator's.
    pub client: Client,
    /// The server's.
    pub process: Child,
    /// Directory of its certificates.
    pub pki: PathBuf,
    /// The client configuration of an administrator.
    pub kubeconfig: PathBuf,
    /// Whose it is.
    pub side: &'static str,
}

/// All about the API server.
pub async fn measure(bin_dir: &Path, wanted: &Wanted) -> Result<()> {
    start(bin_dir).await?;
    let dir = tempfile::tempdir()?;
    let mut ours = serve(bin_dir, dir.path(), "load").await?;
    load(&ours).await?;
    ours.process.kill().await?;
    if wanted.on_etcd {
        load_on_etcd(bin_dir, dir.path()).await?;
    }
    let Some(suite) = &wanted.suite else { return Ok(()) };
    let (mut peer, etcd) = kube_apiserver::serve(suite, dir.path(), &ours).await?;
    load(&peer).await?;
    peer.process.kill().await?;
    etcd.stop().await
}

/// The same of ours with its objects in etcd.
async fn load_on_etcd(bin_dir: &Path, dir: &Path) -> Result<()> {
    figures::tell_version(OURS_ON_ETCD, &etcd::version().await?)?;
    let (data, log) = (dir.join("own-etcd"), dir.join("own-etcd.log"));
    let etcd = Etcd::start(Path::new("etcd"), &data, &log, Durability::Synced)?;
    let server = serve_with(bin_dir, dir, &format!("--etcd-servers={}", etcd.url())).await?;
    let mut ours = Served { side: OURS_ON_ETCD, ..server };
    load(&ours).await?;
    ours.process.kill().await?;
    etcd.stop().await
}

async fn load(server: &Served) -> Result<()> {
    wait_for_namespace(&server.client).await?;
    api_load::load(&server.client, server.side).await?;
    api_kinds::measure(server).await?;
    api_webhook::measure(server).await
}

/// Waits for the namespace of the load, which Kubernetes' server makes some time after it is ready.
async fn wait_for_namespace(client: &Client) -> Result<()> {
    for _ in 0..10_000 {
        let found = client.call(request::get("/api/v1/namespaces/default".to_owned())).await;
        if found.is_ok_and(|answer| answer.status == 200) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    bail!("the server does not make the namespace default")
}

/// An API server of one's own on loopback, with its store and certificates in `dir`.
pub async fn serve(bin_dir: &Path, dir: &Path, store: &str) -> Result<Served> {
    serve_with(bin_dir, dir, &format!("--data-dir={}", dir.join(store).display())).await
}

/// The same; a flag says where it keeps its objects.
async fn serve_with(bin_dir: &Path, dir: &Path, storage: &str) -> Result<Served> {
    let names = Names::new(Profile::Kubernetes);
    let port = free_port()?;
    let (kubeconfig, pki) = (dir.join("admin.conf"), dir.join("pki"));
    let process = Command::new(bin_dir.join("orch-apiserver"))
        .args(["--naming=kubernetes", "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"])
        .arg(format!("--secure-port={port}"))
        .arg(storage)
        .arg(format!("--cert-dir={}", pki.display()))
        .arg(format!("--write-kubeconfig={}", kubeconfig.display()))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("starting orch-apiserver")?;
    wait_port((Ipv4Addr::LOCALHOST, port).into()).await?;
    // Written after the port is taken; in later rounds it names the port of the round before until then.
    let config = loop {
        let written = config::file::load(&kubeconfig, None).ok();
        match written.filter(|config| config.server.port_u16() == Some(port)) {
            Some(config) => break config,
            None => tokio::time::sleep(Duration::from_micros(500)).await,
        }
    };
    let client = Client::new(&config, names, "bench/0")?;
    wait_ready(&client).await?;
    Ok(Served { client, process, pki, kubeconfig, side: OURS })
}

/// From exec to the first `/readyz` that says so, with an empty store and existing certificates.
async fn start(bin_dir: &Path) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut samples = Vec::new();
    for round in 0..=ROUNDS {
        let began = Instant::now();
        let mut server = serve(bin_dir, dir.path(), &format!("store-{round}")).await?;
        // The first round makes the certificates.
        if round > 0 {
            samples.push(began.elapsed());
        }
        server.process.kill().await?;
    }
    Ok(Figure::of_times(Group::Api, "start to ready, empty store", Unit::Millis, samples).tell()?)
}

async fn wait_port(address: SocketAddr) -> Result<()> {
    for _ in 0..20_000 {
        if tokio::net::TcpStream::connect(address).await.is_ok() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
    bail!("orch-apiserver does not listen")
}

/// Waits until a server says that it is ready, with few looks that come late.
pub async fn wait_ready(client: &Client) -> Result<()> {
    wait_until_ready(client, Duration::from_millis(1)).await
}
