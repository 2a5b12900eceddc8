//! An API server of either project on loopback, and the programs of either project that work with it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use apiserver_bootstrap::arguments::{self, ApiServer, command_line};
use orch_tests::pki::{DOMAIN, Pki};
use orch_tests::processes::spawn;
use proto_api::names::{Names, Profile};
use proto_client::{Client, request};
use tokio::process::{Child, Command};

use crate::Programs;

const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const PORT: u16 = 6443;
/// An address of this namespace that may stand in Endpoints.
const ADVERTISED: &str = "10.98.0.1";
const SERVICES: &str = "10.96.0.0/16";
const PODS: &str = "10.244.0.0/16";
const ETCD: &str = "http://127.0.0.1:2379";
/// How long a program may take until it is ready.
const PATIENCE: Duration = Duration::from_secs(120);
/// Requests a second of Kubernetes' clients: no limit that is felt. Ours have none.
const RATE: &str = "5000";

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
    _etcd: Option<Child>,
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
        let log = dir.join("logs").join(side.program("apiserver.log"));
        let (server, etcd) = match side {
            Side::Ours => (spawn(&our_server(&programs, &pki, dir, names), &log)?, None),
            Side::Theirs => {
                let etcd = spawn(&etcd(dir), &dir.join("logs/etcd.log"))?;
                (spawn(&their_server(programs.theirs()?, &pki), &log)?, Some(etcd))
            }
        };
        let mut plane =
            Self { client, side, programs, pki, dir: dir.to_owned(), server, _etcd: etcd };
        plane.wait_ready().await?;
        Ok(plane)
    }

    async fn wait_ready(&mut self) -> Result<()> {
        let client = self.client.clone();
        let ready = orch_tests::wait::until("the API server", PATIENCE, async || {
            match client.call(request::get("/readyz".into())).await {
                Ok(answer) if answer.status == 200 => Ok(()),
                Ok(answer) => Err(format!("status {}", answer.status)),
                Err(error) => Err(error.to_string()),
            }
        });
        ready.await.with_context(|| self.end_of_log(&self.side.program("apiserver")))
    }

    /// The process of the API server.
    pub fn server(&self) -> &Child {
        &self.server
    }

    pub fn start_scheduler(&self, side: Side) -> Result<Child> {
        let config = self.pki.client_of("scheduler")?;
        let flags = match side {
            Side::Ours => arguments::scheduler(&config, &self.pki.files),
            Side::Theirs => {
                let mut flags = self.their_flags(&config);
                if self.side == Side::Ours {
                    // It asks for policy/v1beta1, which ended with 1.25, and waits for ever.
                    flags.push(("feature-gates", "PodDisruptionBudget=false".into()));
                }
                flags
            }
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
            ("node-ip", ADVERTISED.to_owned()),
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
        let log = std::fs::read_to_string(self.dir.join(format!("logs/{name}.log")));
        let log = log.unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(5).collect();
        let lines: Vec<&str> = lines.into_iter().rev().collect();
        format!("{name}: its log ends with\n{}", lines.join("\n"))
    }
}

fn plain_line(dir: &Path, name: &str, flags: &arguments::Flags) -> Vec<String> {
    let flags = flags.iter().map(|(flag, value)| format!("--{flag}={value}"));
    [dir.join(name).display().to_string()].into_iter().chain(flags).collect()
}

fn our_server(programs: &Programs, pki: &Pki, dir: &Path, names: &'static Names) -> Vec<String> {
    let store = dir.join("store");
    let server = ApiServer {
        bind: SERVER,
        advertise: SERVER,
        port: PORT,
        store: &store,
        pki: &pki.files,
        service_cidr: SERVICES,
        domain: DOMAIN,
    };
    command_line(&programs.ours, "orch-apiserver", names, &server.flags())
}

fn etcd(dir: &Path) -> Vec<String> {
    let data = dir.join("etcd").display().to_string();
    // Ours waits for the disk with each write, etcd here does not.
    let words = ["etcd", "--unsafe-no-fsync", "--listen-client-urls", ETCD];
    let more = ["--advertise-client-urls", ETCD, "--data-dir", &data];
    words.into_iter().chain(more).map(str::to_owned).collect()
}

fn their_server(dir: &Path, pki: &Pki) -> Vec<String> {
    let files = &pki.files;
    let file = |name: &str| files.dir.join(name).display().to_string();
    let flags = vec![
        ("etcd-servers", ETCD.to_owned()),
        ("bind-address", SERVER.to_string()),
        ("advertise-address", ADVERTISED.to_owned()),
        ("secure-port", PORT.to_string()),
        ("client-ca-file", file("ca.crt")),
        ("tls-cert-file", file("apiserver.crt")),
        ("tls-private-key-file", file("apiserver.key")),
        ("service-account-issuer", format!("https://kubernetes.default.svc.{DOMAIN}")),
        ("service-account-key-file", files.account_public_keys.display().to_string()),
        ("service-account-signing-key-file", files.account_key.display().to_string()),
        ("service-cluster-ip-range", SERVICES.to_owned()),
        ("authorization-mode", "Node,RBAC".to_owned()),
        ("allow-privileged", "true".to_owned()),
        ("max-requests-inflight", "3000".to_owned()),
        ("max-mutating-requests-inflight", "1000".to_owned()),
    ];
    plain_line(dir, "kube-apiserver", &flags)
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
