//! An API server of either project on loopback, and the programs of either project that work with it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use apiserver_bootstrap::arguments::{self, ApiServerArguments, command_line};
use kubernetes_server::api_server::{
    ApiServerFlags, KubernetesServer, SERVICE_CIDR, Wanted, wait_until_ready,
};
use kubernetes_server::etcd::{Durability, Etcd};
use kubernetes_server::processes::{log_end, spawn};
use orch_tests::pki::{DOMAIN, Pki};
use proto_api::names::{Names, Profile};
use proto_client::Client;
use tokio::process::{Child, Command};

use crate::Programs;

const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const PORT: u16 = 6443;
/// An address of this namespace that may stand in Endpoints.
const ADVERTISED: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 98, 0, 1));
const PODS: &str = "10.244.0.0/16";
/// Between two looks whether a server is ready.
const POLL: Duration = Duration::from_millis(20);
/// Requests a second of Kubernetes' clients: no limit that is felt. Ours have none.
const RATE: &str = "5000";
/// What programs of release 1.20 ask for and release 1.25 has in v1 only.
const OLD_VERSIONS: &str = "policy/v1beta1,batch/v1beta1,discovery.k8s.io/v1beta1";

/// The project that a program is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// This one.
    Ours,
    /// Kubernetes.
    Theirs,
}

impl Side {
    /// A program's name.
    pub fn program(self, role: &str) -> String {
        format!("{self}-{role}")
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Ours { "orch" } else { "kube" })
    }
}

/// A running API server. It ends with this.
pub struct Plane {
    /// An administrator.
    pub client: Client,
    side: Side,
    programs: Programs,
    pki: Pki,
    dir: PathBuf,
    server: Child,
    _etcd: Option<Etcd>,
}

impl Plane {
    /// Starts one in a new directory, and waits until it is ready.
    pub async fn start(side: Side, programs: &Programs, dir: &Path) -> Result<Self> {
        std::fs::create_dir(dir)?;
        let names = Names::new(Profile::Kubernetes);
        let pki = Pki::make(dir, names, SocketAddr::new(SERVER, PORT))?;
        std::fs::create_dir(dir.join("logs"))?;
        let (client, _) = pki.admin("side-by-side/0")?;
        let programs = programs.clone();
        let (server, etcd) = match side {
            Side::Ours => {
                let log = dir.join("logs/orch-apiserver.log");
                (spawn(&our_server(&programs, &pki, dir, names), &log)?, None)
            }
            Side::Theirs => {
                let started = their_server(programs.theirs()?, &pki, dir)?;
                (started.process, Some(started.etcd))
            }
        };
        let plane = Self { client, side, programs, pki, dir: dir.to_owned(), server, _etcd: etcd };
        let ready = wait_until_ready(&plane.client, POLL).await;
        ready.with_context(|| plane.end_of_log(&side.program("apiserver")))?;
        Ok(plane)
    }

    /// Ends the API server. The next one listens at the same address.
    pub async fn end(mut self) -> Result<()> {
        Ok(self.server.kill().await?)
    }

    /// The process of the API server.
    pub fn server(&self) -> &Child {
        &self.server
    }

    pub fn start_scheduler(&self, side: Side) -> Result<Child> {
        let config = self.pki.client_of("scheduler")?;
        let flags = match side {
            Side::Ours => arguments::scheduler(&config, &self.pki.files),
            Side::Theirs => self.their_flags(&config),
        };
        self.spawn(side, "scheduler", flags)
    }

    pub fn start_controller_manager(&self, side: Side) -> Result<Child> {
        let config = self.pki.client_of("controller-manager")?;
        let mut flags = arguments::controller_manager(&config, &self.pki.files, PODS);
        if side == Side::Theirs {
            let own = self.their_flags(&config);
            flags.retain(|(flag, _)| own.iter().all(|(other, _)| other != flag));
            flags.extend(own);
        } else if self.side == Side::Theirs {
            // A server older than 1.24 lets no pod in before its account has a token in a Secret.
            flags.push(("feature-gates", "LegacyServiceAccountTokenNoAutoGeneration=false".into()));
        }
        self.spawn(side, "controller-manager", flags)
    }

    /// Starts nodes without a runtime, `hollow-0` and so on: ours, since Kubernetes has none that runs alone.
    pub fn start_hollow_nodes(&self, count: usize) -> Result<Child> {
        let clients = self.dir.join("clients/nodes");
        std::fs::create_dir(&clients)?;
        for node in 0..count {
            self.pki.client_of_node(&clients, &format!("hollow-{node}"))?;
        }
        let flags = vec![
            ("runtime", "memory".to_owned()),
            ("hollow-nodes", count.to_string()),
            ("hostname-override", "hollow".to_owned()),
            ("kubeconfig", clients.display().to_string()),
            ("root-dir", self.dir.join("nodes").display().to_string()),
            ("node-ip", ADVERTISED.to_string()),
            ("healthz-port", "0".to_owned()),
            ("fail-swap-on", "false".to_owned()),
        ];
        let argv = command_line(&self.programs.ours, "orchlet", self.client.names(), &flags);
        spawn(&argv, &self.dir.join("logs/orchlet.log"))
    }

    /// What Kubernetes' clients have in common.
    fn their_flags(&self, config: &Path) -> arguments::Flags {
        let config = config.display().to_string();
        vec![
            ("kubeconfig", config.clone()),
            ("authentication-kubeconfig", config.clone()),
            ("authorization-kubeconfig", config),
            ("authentication-skip-lookup", "true".into()),
            ("leader-elect", "false".into()),
            ("bind-address", SERVER.to_string()),
            ("port", "0".into()),
            ("kube-api-qps", RATE.into()),
            ("kube-api-burst", RATE.into()),
        ]
    }

    fn spawn(&self, side: Side, role: &str, flags: arguments::Flags) -> Result<Child> {
        let name = side.program(role);
        let argv = match side {
            Side::Ours => command_line(&self.programs.ours, &name, self.client.names(), &flags),
            Side::Theirs => plain_line(self.programs.theirs()?, &name, &flags),
        };
        spawn(&argv, &self.dir.join(format!("logs/{name}.log")))
    }

    /// How a program's log ends.
    pub fn end_of_log(&self, name: &str) -> String {
        log_end(&self.dir.join(format!("logs/{name}.log")))
    }
}

fn plain_line(dir: &Path, name: &str, flags: &arguments::Flags) -> Vec<String> {
    let flags = flags.iter().map(|(flag, value)| format!("--{flag}={value}"));
    [dir.join(name).display().to_string()].into_iter().chain(flags).collect()
}

fn our_server(programs: &Programs, pki: &Pki, dir: &Path, names: &'static Names) -> Vec<String> {
    let store = dir.join("store");
    let server = ApiServerArguments {
        bind: SERVER,
        advertise: ADVERTISED,
        port: PORT,
        store: arguments::ObjectStore::Directory(&store),
        pki: &pki.files,
        service_cidr: SERVICE_CIDR,
        domain: DOMAIN,
    };
    let mut flags = server.flags();
    flags.push(("runtime-config", OLD_VERSIONS.into()));
    command_line(&programs.ours, "orch-apiserver", names, &flags)
}

fn their_server(programs: &Path, pki: &Pki, dir: &Path) -> Result<KubernetesServer> {
    let files = &pki.files;
    let file = |name: &str| files.dir.join(name).display().to_string();
    let issuer = format!("https://kubernetes.default.svc.{DOMAIN}");
    let flags = ApiServerFlags {
        port: PORT,
        advertised: ADVERTISED,
        authorization: "Node,RBAC",
        issuer: &issuer,
        account_keys: (&files.account_public_keys, &files.account_key),
    };
    let mut flags = flags.words();
    flags.extend([
        format!("--client-ca-file={}", file("ca.crt")),
        format!("--tls-cert-file={}", file("apiserver.crt")),
        format!("--tls-private-key-file={}", file("apiserver.key")),
        "--allow-privileged=true".to_owned(),
        "--max-requests-inflight=3000".to_owned(),
        "--max-mutating-requests-inflight=1000".to_owned(),
    ]);
    KubernetesServer::start(&Wanted {
        kube_apiserver: &programs.join("kube-apiserver"),
        etcd: Path::new("etcd"),
        directory: dir,
        logs: &dir.join("logs"),
        // Ours waits for the disk with each write, etcd here does not.
        durability: Durability::Unsynced,
        flags,
    })
}

/// Gives the network namespace of this process its loopback device and the address that a server announces.
pub async fn prepare_network() -> Result<()> {
    let address = format!("{ADVERTISED}/32");
    let steps: [&[&str]; 2] =
        [&["link", "set", "lo", "up"], &["addr", "replace", &address, "dev", "lo"]];
    for step in steps {
        let done = Command::new("ip").args(step).status().await?;
        if !done.success() {
            bail!("ip {}: {done}; run this in a network namespace of its own", step.join(" "));
        }
    }
    Ok(())
}
