//! The control plane of a cluster of hollow nodes: one API server, controller manager and scheduler on loopback, with the arguments of every cluster.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use apiserver_bootstrap::arguments::{self, ApiServerArguments, command_line};
use kubernetes_server::processes::spawn;
use orch_tests::pki::{DOMAIN, Pki};
use proto_api::names::{Names, Profile};
use proto_client::{Client, request};
use tokio::process::Child;

use super::costs::Program;
use crate::api_server::wait_ready;

const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const PORT: u16 = 6443;
const SERVICES: &str = "10.96.0.0/12";
/// Room for the pods of 32,768 nodes.
const PODS: &str = "10.128.0.0/9";
/// The gauge of streams in the API server's metrics.
const STREAMS_GAUGE: &str = "apiserver_current_inflight_requests{request_kind=\"longRunning\"}";
const PROGRAMS: [&str; 3] = ["orch-apiserver", "orch-controller-manager", "orch-scheduler"];

/// A running control plane. Its programs end with it.
pub struct ControlPlane {
    /// An administrator.
    pub client: Client,
    pub names: &'static Names,
    dir: PathBuf,
    pki: Pki,
    running: Vec<(String, Child)>,
}

impl ControlPlane {
    /// Starts it with its store, certificates and logs below `dir`, and waits for the API server.
    pub async fn start(bin_dir: &Path, dir: &Path) -> Result<Self> {
        let names = Names::new(Profile::Orch { domain: "orch.io".to_owned() });
        let pki = Pki::make(dir, names, SocketAddr::new(SERVER, PORT))?;
        std::fs::create_dir(dir.join("logs"))?;
        let (client, _) = pki.admin("bench/0")?;
        let mut plane = Self { client, names, dir: dir.to_owned(), pki, running: Vec::new() };
        plane.run(bin_dir).await?;
        Ok(plane)
    }

    async fn run(&mut self, bin_dir: &Path) -> Result<()> {
        let pki = &self.pki.files;
        let store = self.dir.join("store");
        let server = ApiServerArguments {
            bind: SERVER,
            advertise: SERVER,
            port: PORT,
            store: arguments::ObjectStore::Directory(&store),
            pki,
            service_cidr: SERVICES,
            domain: DOMAIN,
        };
        let manager = self.client_of("controller-manager")?;
        let scheduler = self.client_of("scheduler")?;
        let flags = [
            server.flags(),
            arguments::controller_manager(&manager, pki, PODS),
            arguments::scheduler(&scheduler, pki),
        ];
        for (program, flags) in PROGRAMS.into_iter().zip(flags) {
            let argv = command_line(bin_dir, program, self.names, &flags);
            let child = spawn(&argv, &self.dir.join(format!("logs/{program}.log")))?;
            self.running.push((program.to_owned(), child));
            if program == PROGRAMS[0] {
                wait_ready(&self.client).await?;
            }
        }
        Ok(())
    }

    /// Writes the client configuration of a component.
    pub fn client_of(&self, component: &str) -> Result<PathBuf> {
        self.pki.client_of(component)
    }

    /// Writes the client configuration of a node into a directory.
    pub fn client_of_node(&self, dir: &Path, node: &str) -> Result<()> {
        self.pki.client_of_node(dir, node)
    }

    /// Watches and other streams that the API server keeps open, by its metrics.
    pub async fn open_streams(&self) -> Result<usize> {
        let page = self.client.call(request::get("/metrics".into())).await?.body;
        let page = String::from_utf8_lossy(&page);
        let gauge = page.lines().find_map(|line| line.strip_prefix(STREAMS_GAUGE));
        Ok(gauge.context("no gauge of open streams")?.trim().parse()?)
    }

    /// Sockets that the API server has open: but for a few, connections of clients.
    pub fn open_sockets(&self) -> Result<usize> {
        let (_, server) = self.running.first().context("no API server")?;
        let pid = server.id().context("the API server has ended")?;
        let files = std::fs::read_dir(format!("/proc/{pid}/fd"))?.flatten();
        let targets = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        Ok(targets.filter(|to| to.to_string_lossy().starts_with("socket:")).count())
    }

    pub fn programs(&self) -> Vec<Program> {
        self.running.iter().map(|(name, child)| Program::from_processes(name, [child])).collect()
    }
}
