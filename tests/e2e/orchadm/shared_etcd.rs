//! Control planes on one external etcd: the first is made of a printed and migrated configuration with a given authority, the second joins with certificates
//! that were copied, a node joins by the phases of join; then the first is reset, and the cluster lives on.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use apiserver_bootstrap::authority::Authority;
use apiserver_bootstrap::cluster_info;
use nix::sys::signal::Signal;
use orch_tests::wait::until;
use proto_api::core::v1::{Endpoints, Pod};
use proto_api::yaml;
use proto_client::Client;
use proto_client::config::file;
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::etcd::Etcd;
use super::hosts::{CONTROL_PLANE, Host};
use super::{Cluster, LONG};
use crate::context::{Context, shown};

/// A server that has gone counts as one until its lease has ended, and so does a leader.
const TAKEOVER: Duration = Duration::from_secs(300);
/// The files that are copied to a control plane that joins.
const COPIED: [&str; 6] =
    ["ca.crt", "ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "sa.key", "sa.pub"];

pub async fn run(c: &Context) -> Result<()> {
    let mut cluster = Cluster::start(c, 3).await?;
    let tried = match Etcd::start() {
        Ok(etcd) => live(&mut cluster, &etcd).await,
        Err(error) => Err(error),
    };
    cluster.end(tried).await
}

async fn live(cluster: &mut Cluster, etcd: &Etcd) -> Result<()> {
    cluster.first_control_plane(etcd).await?;
    cluster.second_control_plane().await?;
    cluster.node_by_phases().await?;
    cluster.nodes_are_ready(&cluster.second_admin()?, 3).await?;
    cluster.the_first_control_plane_goes().await?;
    for host in [&cluster.hosts.all[2], &cluster.hosts.all[1]] {
        cluster.reset_one(host).await?;
    }
    Ok(())
}

impl Cluster {
    fn pki(&self, host: &Host, name: &str) -> std::path::PathBuf {
        host.file(&format!("/etc/{}/pki/{name}", self.names.api_service_name()))
    }

    /// The administrator at the second control plane.
    fn second_admin(&self) -> Result<Client> {
        let host = &self.hosts.all[1];
        let path = host.file(&format!("/etc/{}/admin.conf", self.names.api_service_name()));
        let mut config = file::load(&path, None)?;
        config.server = format!("https://{}:6443", host.address).parse()?;
        Ok(Client::new(&config, self.names, "e2e")?)
    }

    async fn first_control_plane(&mut self, etcd: &Etcd) -> Result<()> {
        let (host, naming) = (self.one(), self.naming());
        // The authority is given, and a phase alone makes what it is named for.
        let dir = self.pki(host, "");
        fs::create_dir_all(&dir)?;
        Authority::ensure(&dir, "ca", "given", OffsetDateTime::now_utc())?;
        let given = fs::read_to_string(dir.join("ca.crt"))?;
        host.adm_ok(&["init", "phase", "certs", "front-proxy-ca", &naming]).await?;
        let mut made: Vec<String> = fs::read_dir(&dir)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<Result<_>>()?;
        made.sort();
        ensure!(
            made == ["ca.crt", "ca.key", "front-proxy-ca.crt", "front-proxy-ca.key"],
            "{made:?}"
        );

        let unreached = format!("https://{}:1", host.address);
        let config = self.configuration(&etcd.configuration(&[&unreached])).await?;
        let (code, _, error) = host.adm(&["init", &naming, &config]).await?;
        let named = error.contains("[ERROR ExternalEtcdVersion]") && error.contains(&unreached);
        ensure!(code == 2 && named && !error.contains(&etcd.url), "code {code}: {error}");

        let config = self.configuration(&etcd.configuration(&[])).await?;
        let program = self.one().orchadm();
        self.hosts.all[0].spawn(&[&program, "init", &naming, &config, "-o", "json"], "init")?;
        self.wait_for_init().await?;
        let host = self.one();
        let kept = fs::read_to_string(self.pki(host, "ca.crt"))?;
        ensure!(kept == given, "the given authority was replaced");
        let pins = cluster_info::pins(std::path::Path::new("ca.crt"), &given)?;
        ensure!(pins == [self.pin.clone()], "{pins:?} are not {}", self.pin);
        ensure!(!host.file("/var/lib/orch-apiserver").exists(), "it has a store of its own");
        // A phase alone keeps the etcd.
        let record = host.file("/var/lib/orchadm/programs.json");
        let before = fs::read_to_string(&record)?;
        ensure!(before.contains(&format!("--etcd-servers={}", etcd.url)), "{before}");
        ensure!(before.contains("--leader-elect=true"), "{before}");
        host.adm_ok(&["init", "phase", "control-plane"]).await?;
        let after = fs::read_to_string(&record)?;
        ensure!(after == before, "the programs have changed from {before} to {after}");
        Ok(())
    }

    /// The configuration that orchadm prints, changed where it must be, in the older version, and migrated; the flag that names it.
    async fn configuration(&self, etcd: &Value) -> Result<String> {
        let (host, naming) = (self.one(), self.naming());
        let printed = host.adm_ok(&["config", "print", "init-defaults", &naming]).await?;
        let mut documents = yaml::parse_all(&printed)?;
        for document in &mut documents {
            let version = document["apiVersion"].as_str().context("a version")?.to_owned();
            document["apiVersion"] = version.replace("v1beta3", "v1beta2").into();
            if document["kind"] == "InitConfiguration" {
                document["localAPIEndpoint"]["advertiseAddress"] = host.address.as_str().into();
                let registration = Self::registration(host);
                document["nodeRegistration"]["name"] = registration["name"].clone();
                document["nodeRegistration"]["kubeletExtraArgs"] =
                    registration["kubeletExtraArgs"].clone();
            } else {
                document["etcd"] = etcd.clone();
                document["controlPlaneEndpoint"] = CONTROL_PLANE.into();
                document["networking"]["podSubnet"] = "10.201.0.0/16".into();
                document["networking"]["serviceSubnet"] = "10.97.0.0/16".into();
            }
        }
        let texts: Vec<String> = documents.iter().map(yaml::to_string).collect();
        let old = host.write("old.yaml", &texts.join("---\n"))?;
        let (code, _, error) = host.adm(&["config", "validate", "--config", &old, &naming]).await?;
        ensure!(code == 3 && error.contains("config migrate"), "code {code}: {error}");
        let new = host.write("new.yaml", "")?;
        let migrate = ["config", "migrate", "--old-config", &old, "--new-config", &new, &naming];
        host.adm_ok(&migrate).await?;
        host.adm_ok(&["config", "validate", "--config", &new, &naming]).await?;
        Ok(format!("--config={new}"))
    }

    async fn second_control_plane(&mut self) -> Result<()> {
        let (host, naming) = (&self.hosts.all[1], self.naming());
        let server = format!("{}:6443", self.one().address);
        let pin = format!("--discovery-token-ca-cert-hash={}", self.pin);
        let token = format!("--token={}", self.token);
        let ignored = "--ignore-preflight-errors=all";
        let line = ["join", &server, &naming, &token, &pin, "--control-plane", ignored];
        let (code, _, error) = host.adm(&line).await?;
        ensure!(code == 1 && error.contains("has no ca.crt, "), "code {code}: {error}");
        fs::create_dir_all(self.pki(host, ""))?;
        for name in COPIED {
            let to = self.pki(host, name);
            fs::copy(self.pki(self.one(), name), &to)?;
            fs::set_permissions(&to, fs::Permissions::from_mode(0o600))?;
        }
        let said = host.adm_ok(&[&line[..], &["--dry-run"]].concat()).await?;
        let flags = ["--etcd-servers=https://", "pki/apiserver.key", "Nothing was written"];
        ensure!(flags.iter().all(|what| said.contains(what)), "{said}");
        ensure!(!said.contains("ConfigMap"), "it would make what is there: {said}");

        let join = self.object(
            "JoinConfiguration",
            json!({
                "nodeRegistration": Self::registration(host),
                "controlPlane": {"localAPIEndpoint": {"advertiseAddress": host.address}},
                "discovery": {
                    "bootstrapToken": {
                        "token": self.token,
                        "apiServerEndpoint": server,
                        "caCertHashes": [self.pin],
                    },
                },
            }),
        );
        let config = format!("--config={}", host.write("join.yaml", &join.to_string())?);
        let program = host.orchadm();
        self.hosts.all[1].spawn(&[&program, "join", &naming, &config, "-o", "json"], "join")?;
        until("the second control plane has joined", LONG, async || {
            match self.hosts.all[1].said("join") {
                text if text.contains("adminConfig") => Ok(()),
                text => Err(text),
            }
        })
        .await?;
        self.servers_are(&[0, 1]).await?;
        self.hosts.all[1].lead_to_second()?;
        self.hosts.all[2].lead_to_second()
    }

    /// Waits until the Service of the API server leads to those of these hosts.
    async fn servers_are(&self, hosts: &[usize]) -> Result<()> {
        let expected: Vec<&str> =
            hosts.iter().map(|nth| self.hosts.all[*nth].address.as_str()).collect();
        let endpoints = self.second_admin()?.within::<Endpoints>("default");
        until(&format!("the API servers are {expected:?}"), TAKEOVER, async || {
            let found = endpoints.get(self.names.api_service_name()).await;
            let found = found.map_err(|error| error.to_string())?;
            let subsets = found.subsets.iter().flat_map(|subset| &subset.addresses);
            let mut found: Vec<&str> = subsets.map(|address| address.ip.as_str()).collect();
            found.sort_unstable();
            if found == expected { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await
    }

    /// A node joins by a file that describes the cluster, a phase at a time.
    async fn node_by_phases(&mut self) -> Result<()> {
        let (host, naming) = (&self.hosts.all[2], self.naming());
        let admin = fs::read_to_string(self.admin_file())?;
        let mut described = yaml::parse_all(&admin)?.pop().context("a client configuration")?;
        described["clusters"][0]["name"] = "".into();
        for field in ["users", "contexts"] {
            described[field] = json!([]);
        }
        described["current-context"] = "".into();
        let path = host.write("cluster.yaml", &described.to_string())?;
        let (by_file, token) =
            (format!("--discovery-file={path}"), format!("--tls-bootstrap-token={}", self.token));
        let ignored = "--ignore-preflight-errors=all";
        let line = ["join", &naming, &by_file, &token, ignored, "--dry-run"];
        let said = host.adm_ok(&line).await?;
        ensure!(said.contains(CONTROL_PLANE) && said.contains("Nothing was written"), "{said}");

        let join = self.object(
            "JoinConfiguration",
            json!({
                "nodeRegistration": Self::registration(host),
                "discovery": {"file": {"kubeConfigPath": path}, "tlsBootstrapToken": self.token},
            }),
        );
        let config = format!("--config={}", host.write("join.yaml", &join.to_string())?);
        let phase = |name: &'static str| ["join", "phase", name, &naming, &config];
        host.adm_ok(&phase("preflight")).await?;
        ensure!(!host.file("/var/lib/orchadm").exists(), "the phase preflight has written");
        host.adm_ok(&phase("kubelet-start")).await?;
        let (program, node) = (host.orchadm(), self.node_config());
        ensure!(!host.file(&node).exists(), "{node} is there before orchlet has run");
        let run = [program.as_str(), "run"];
        let pid = self.hosts.all[2].spawn(&run, "run")?;
        until("orchlet has its certificate", LONG, async || {
            if self.hosts.all[2].file(&node).exists() { Ok(()) } else { Err("it has not") }
        })
        .await?;
        self.hosts.all[2].adm_ok(&phase("addon")).await?;
        // `run` keeps what was recorded when it was started.
        let identity = cluster::processes::ProcessIdentity::from_pid(i32::try_from(pid)?)?;
        let process = identity.open().context("`orchadm run` has ended")?;
        process.signal(Signal::SIGTERM)?;
        until("`orchadm run` has ended", LONG, async || {
            let found = self.hosts.all[2].processes().map_err(|error| format!("{error:#}"))?;
            if found.iter().any(|line| line.ends_with(" run ")) {
                Err(found.join("\n"))
            } else {
                Ok(())
            }
        })
        .await?;
        self.hosts.all[2].spawn(&run, "run")?;
        until("orch-proxy runs", LONG, async || {
            let found = self.hosts.all[2].processes().map_err(|error| format!("{error:#}"))?;
            if found.iter().any(|line| line.contains("orch-proxy")) {
                Ok(())
            } else {
                Err(found.join("\n"))
            }
        })
        .await
    }

    fn node_config(&self) -> String {
        format!("/etc/{}/{}.conf", self.names.api_service_name(), self.names.component("let"))
    }

    /// After the reset of the first control plane its objects are there, and controllers and scheduler of the second lead.
    async fn the_first_control_plane_goes(&self) -> Result<()> {
        let warned = self.reset_one(self.one()).await?;
        ensure!(warned.contains("external etcd") && warned.contains("/registry/"), "{warned}");
        let client = self.second_admin()?;
        self.servers_are(&[1]).await?;
        let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: later}\n";
        cluster::apply::apply(&client, namespace).await?;
        let host = &self.hosts.all[2];
        // It waits for the account that a controller makes.
        self.start_pod(&client, host, "later").await?;
        let pods = client.within::<Pod>("later");
        let name = format!("on-{}", host.name);
        until(&format!("{name} is Ready"), TAKEOVER, async || {
            let pod = pods.get(&name).await.map_err(|error| error.to_string())?;
            if cluster::demo::is_pod_ready(&pod) { Ok(()) } else { Err(shown(&pod)) }
        })
        .await?;
        let list = self.hosts.all[1].adm_ok(&["token", "list"]).await?;
        ensure!(list.contains(&self.token), "{list}");
        Ok(())
    }
}
