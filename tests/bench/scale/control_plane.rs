//! The control plane of a cluster of hollow nodes: one API server, controller manager and scheduler on loopback, with the arguments of every cluster.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result};
use apiserver_bootstrap::arguments::{self, ApiServer, PkiFiles, command_line};
use apiserver_bootstrap::authority::{Authority, Issuance, LEAF_DAYS, Leaf};
use apiserver_bootstrap::certificates::{self, AUTHORITY};
use apiserver_bootstrap::client_config::{self, AuthorityAt, Cluster, Identity};
use apiserver_bootstrap::service_account_keys;
use proto_api::names::{Names, Profile};
use proto_client::{Client, config, request};
use time::OffsetDateTime;
use tokio::process::{Child, Command};

use super::costs::Program;
use crate::api_server::wait_ready;

const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const PORT: u16 = 6443;
const SERVICES: &str = "10.96.0.0/12";
/// Room for the pods of 32,768 nodes.
const PODS: &str = "10.128.0.0/9";
const DOMAIN: &str = "cluster.local";
/// The gauge of streams in the API server's metrics.
const STREAMS_GAUGE: &str = "apiserver_current_inflight_requests{request_kind=\"longRunning\"}";
const PROGRAMS: [&str; 3] = ["orch-apiserver", "orch-controller-manager", "orch-scheduler"];

/// A running control plane. Its programs end with it.
pub struct ControlPlane {
    /// An administrator.
    pub client: Client,
    pub names: &'static Names,
    dir: PathBuf,
    authority: Authority,
    running: Vec<(String, Child)>,
}

impl ControlPlane {
    /// Starts it with its store, certificates and logs below `dir`, and waits for the API server.
    pub async fn start(bin_dir: &Path, dir: &Path) -> Result<Self> {
        let names = Names::new(Profile::Orch { domain: "orch.io".to_owned() });
        let pki = PkiFiles::new(names, &dir.join("pki"));
        for made in [&pki.dir, &dir.join("clients"), &dir.join("logs")] {
            std::fs::create_dir(made)?;
        }
        let authority = Authority::ensure(&pki.dir, AUTHORITY, "orch-ca", now())?;
        service_account_keys::ensure(&pki.dir)?;
        let served = certificates::served_names(names, DOMAIN, &[]);
        let server = Leaf::server("apiserver", &served);
        let node_client = Leaf::client(&names.user(certificates::NODE_CLIENT), &[]);
        for (stem, leaf) in [("apiserver", &server), (&pki.node_client_stem, &node_client)] {
            let issuance = Issuance { leaf, authority: &authority, days: LEAF_DAYS, now: now() };
            certificates::ensure(&pki.dir, stem, &issuance)?;
        }
        let admin = dir.join("clients/admin.conf");
        write_client(&authority, &admin, &Leaf::client("admin", &["system:masters"]))?;
        let client = Client::new(&config::file::load(&admin, None)?, names, "bench/0")?;
        let dir = dir.to_owned();
        let mut plane = Self { client, names, dir, authority, running: Vec::new() };
        plane.run(bin_dir, &pki).await?;
        Ok(plane)
    }

    async fn run(&mut self, bin_dir: &Path, pki: &PkiFiles) -> Result<()> {
        let store = self.dir.join("store");
        let server = ApiServer {
            bind: SERVER,
            advertise: SERVER,
            port: PORT,
            store: &store,
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
        let path = self.dir.join(format!("clients/{component}.conf"));
        write_client(&self.authority, &path, &Leaf::client(&self.names.user(component), &[]))?;
        Ok(path)
    }

    /// Writes the client configuration of a node into a directory.
    pub fn client_of_node(&self, dir: &Path, node: &str) -> Result<()> {
        let leaf = Leaf::client(&format!("system:node:{node}"), &["system:nodes"]);
        write_client(&self.authority, &dir.join(format!("{node}.conf")), &leaf)
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
        self.running.iter().map(|(name, child)| Program::of(name, [child])).collect()
    }
}

/// Starts a program, which is killed when its handle is dropped.
pub fn spawn(argv: &[String], log: &Path) -> Result<Child> {
    let (program, arguments) = argv.split_first().context("no program")?;
    let log = File::options().create(true).append(true).open(log)?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    command.kill_on_drop(true).spawn().with_context(|| format!("starting {program}"))
}

fn write_client(authority: &Authority, path: &Path, leaf: &Leaf) -> Result<()> {
    let issuance = Issuance { leaf, authority, days: LEAF_DAYS, now: now() };
    let pair = issuance.issue()?;
    let server = format!("https://{SERVER}:{PORT}");
    let authority = AuthorityAt::Embedded(authority.certificate());
    let cluster = Cluster { name: "hollow", server: &server, authority };
    let text = client_config::text(&cluster, &leaf.common_name, &Identity::Embedded(&pair));
    Ok(client_config::write(path, &text)?)
}

fn now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}
