//! `orchadm` on two hosts: init on one, join on the other, and all that follows until reset.

mod etcd;
mod hosts;
mod shared_etcd;
mod verbs;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use orch_tests::wait::until;
use proto_api::authentication::v1::TokenRequest;
use proto_api::core::v1::{Node, Pod, ServiceAccount};
use proto_api::names::Names;
use proto_client::config::{Credential, Identity, Pem, file};
use proto_client::{Client, ListParams, request};
use serde_json::{Value, json};

use crate::context::{Context, PATIENCE, shown};
use crate::stolen_credentials;
use hosts::{Host, Hosts};

/// Steps of orchadm wait for certificates and nodes.
const LONG: Duration = Duration::from_secs(180);

pub async fn two_hosts_become_a_cluster_and_are_hosts_again(c: &Context) -> Result<()> {
    let mut cluster = Cluster::start(c, 2).await?;
    let tried = cluster.whole_life().await;
    cluster.end(tried).await
}

pub async fn control_planes_share_an_etcd(c: &Context) -> Result<()> {
    shared_etcd::run(c).await
}

struct Cluster {
    hosts: Hosts,
    names: &'static Names,
    token: String,
    pin: String,
}

impl Cluster {
    /// Hosts that are no cluster yet.
    async fn start(c: &Context, count: u8) -> Result<Self> {
        let hosts = Hosts::start(&c.spec.bin_dir, count).await?;
        Ok(Self { hosts, names: c.names, token: String::new(), pin: String::new() })
    }

    async fn end(self, tried: Result<()>) -> Result<()> {
        if tried.is_err() {
            self.hosts.tell();
        }
        self.hosts.end().await?;
        tried
    }

    async fn whole_life(&mut self) -> Result<()> {
        self.bad_hosts_are_reported().await?;
        self.init().await?;
        self.who_may_not_join().await?;
        self.join().await?;
        self.a_pod_on_each().await?;
        self.credentials_open_only_what_they_are_for().await?;
        self.tokens().await?;
        self.phases_run_alone().await?;
        self.certificates_and_keys().await?;
        self.a_killed_supervisor_is_replaced().await?;
        self.upgrade().await?;
        self.reset().await
    }

    fn naming(&self) -> String {
        let is_kubernetes = self.names.component("adm") == "kubeadm";
        format!("--naming={}", if is_kubernetes { "kubernetes" } else { "orch" })
    }

    fn one(&self) -> &Host {
        &self.hosts.all[0]
    }

    fn admin_file(&self) -> PathBuf {
        let dir = self.names.api_service_name();
        self.one().file(&format!("/etc/{dir}/admin.conf"))
    }

    fn admin(&self) -> Result<Client> {
        Ok(Client::new(&file::load(&self.admin_file(), None)?, self.names, "e2e")?)
    }

    fn registration(host: &Host) -> Value {
        // The disk and the memory are the machine's.
        json!({
            "name": host.name,
            "kubeletExtraArgs": {
                "cgroup-root": format!("/orch-adm/{}", host.name),
                "eviction-hard": "memory.available<100Mi",
                "image-gc-high-threshold": "100",
                "fail-swap-on": "false",
            },
        })
    }

    fn object(&self, kind: &str, mut fields: Value) -> Value {
        let group = self.names.group(&self.names.component("adm"));
        fields["apiVersion"] = format!("{group}/v1beta3").into();
        fields["kind"] = kind.into();
        fields
    }

    /// Every failed check is told at once, with kubeadm's exit code, and nothing is made.
    async fn bad_hosts_are_reported(&self) -> Result<()> {
        let host = self.one();
        let naming = self.naming();
        let (code, _, error) =
            host.adm(&["init", &naming, "--cri-socket=/run/none.sock", "--node-name=A_b"]).await?;
        ensure!(code == 2, "code {code}: {error}");
        for check in ["[ERROR CRI]", "[ERROR Hostname]"] {
            ensure!(error.contains(check), "{check} is missing: {error}");
        }
        let (code, _, error) = host.adm(&["init", &naming, "--service-cidr=x"]).await?;
        ensure!(code == 3 && error.contains("serviceSubnet"), "code {code}: {error}");
        let elsewhere = ["init", &naming, "--apiserver-advertise-address=192.0.2.1"];
        let (code, _, error) = host.adm(&elsewhere).await?;
        ensure!(code == 2 && error.contains("[ERROR AdvertiseAddress]"), "code {code}: {error}");
        let ignored = "--ignore-preflight-errors=all";
        let said = host.adm_ok(&["init", &naming, "--dry-run", ignored]).await?;
        for what in ["pki/ca.key", "orch-apiserver", "Secret", "Nothing was written"] {
            ensure!(said.contains(what), "{what} is missing: {said}");
        }
        let dir = host.file(&format!("/etc/{}", self.names.api_service_name()));
        ensure!(!dir.exists(), "{} was made", dir.display());
        ensure!(!host.file("/var/lib/orchadm").exists(), "there is a record");
        Ok(())
    }

    async fn init(&mut self) -> Result<()> {
        let host = self.one();
        let init = self.object(
            "InitConfiguration",
            json!({
                "nodeRegistration": Self::registration(host),
                "localAPIEndpoint": {"advertiseAddress": host.address},
            }),
        );
        let cluster = self.object(
            "ClusterConfiguration",
            json!({"networking": {"podSubnet": "10.201.0.0/16", "serviceSubnet": "10.97.0.0/16"}}),
        );
        let path = host.write("init.yaml", &format!("{init}\n---\n{cluster}\n"))?;
        let (program, naming) = (host.orchadm(), self.naming());
        let config = format!("--config={path}");
        let line = [&program, "init", &naming, &config, "-o", "json"];
        // Killed in the middle, and repeated.
        let pid = self.hosts.all[0].spawn(&line, "init-killed")?;
        let said = |host: &Host, log: &str, what: &str| match host.said(log).contains(what) {
            true => Ok(()),
            false => Err(host.said(log)),
        };
        until("init is on its way", LONG, async || {
            said(self.one(), "init-killed", "wait-control-plane")
        })
        .await?;
        kill(pid)?;
        self.hosts.all[0].spawn(&line, "init")?;
        self.wait_for_init().await
    }

    async fn wait_for_init(&mut self) -> Result<()> {
        until("init is done", LONG, async || match self.one().said("init") {
            text if text.contains("joinCommand") => Ok(()),
            text => Err(text),
        })
        .await?;
        let text = self.one().said("init");
        let result = text.lines().find(|line| line.contains("joinCommand")).unwrap_or_default();
        let result: Value = serde_json::from_str(result)?;
        self.token = result["token"].as_str().context("a token")?.to_owned();
        self.pin = result["caCertHashes"][0].as_str().context("a pin")?.to_owned();
        Ok(())
    }

    /// Writes the second host's configuration; the flag that names it.
    fn join_file(&self, token: &str, pin: &str, timeout: &str) -> Result<String> {
        let registration = Self::registration(&self.hosts.all[1]);
        self.join_file_of(registration, token, pin, timeout)
    }

    fn join_file_of(
        &self,
        registration: Value,
        token: &str,
        pin: &str,
        timeout: &str,
    ) -> Result<String> {
        let host = &self.hosts.all[1];
        let join = self.object(
            "JoinConfiguration",
            json!({
                "nodeRegistration": registration,
                "discovery": {
                    "bootstrapToken": {
                        "token": token,
                        "apiServerEndpoint": format!("{}:6443", self.one().address),
                        "caCertHashes": [pin],
                    },
                    "timeout": timeout,
                },
            }),
        );
        Ok(format!("--config={}", host.write("join.yaml", &join.to_string())?))
    }

    async fn who_may_not_join(&self) -> Result<()> {
        let naming = self.naming();
        let other = format!("sha256:{}", "0".repeat(64));
        let config = self.join_file(&self.token, &other, "60s")?;
        let join = ["join", naming.as_str(), config.as_str()];
        let (code, _, error) = self.hosts.all[1].adm(&join).await?;
        ensure!(code == 1 && error.contains("not in --discovery-token-ca-cert-hash"), "{error}");

        let token = self.one().adm_ok(&["token", "create", "--ttl=1h"]).await?.trim().to_owned();
        self.one().adm_ok(&["token", "delete", &token]).await?;
        self.join_file(&token, &self.pin, "20s")?;
        let (code, _, error) = self.hosts.all[1].adm(&join).await?;
        ensure!(code == 1 && error.contains("not signed with the token"), "{error}");

        let wrong =
            format!("{}.{}", self.token.split('.').next().unwrap_or_default(), "0".repeat(16));
        self.join_file(&wrong, &self.pin, "60s")?;
        let (code, _, error) = self.hosts.all[1].adm(&join).await?;
        ensure!(code == 1 && error.contains("wrong signature"), "{error}");

        self.join_file(&self.token, &self.pin, "60s")?;
        let said = self.hosts.all[1].adm_ok(&[&join[..], &["--dry-run"]].concat()).await?;
        ensure!(said.contains("orch-proxy") && said.contains("Nothing was written"), "{said}");
        let record = self.hosts.all[1].file("/var/lib/orchadm");
        ensure!(!record.exists(), "{} was made", record.display());

        // An agent that cannot start is not waited for, and says why; the join is continued below.
        let mut registration = Self::registration(&self.hosts.all[1]);
        registration["kubeletExtraArgs"]["no-such-flag"] = "1".into();
        self.join_file_of(registration, &self.token, &self.pin, "60s")?;
        let (code, _, error) = self.hosts.all[1].adm(&join).await?;
        let told = error.contains("keeps exiting") && error.contains("--no-such-flag");
        ensure!(code == 1 && told, "code {code}: {error}");
        Ok(())
    }

    async fn join(&mut self) -> Result<()> {
        let config = self.join_file(&self.token, &self.pin, "60s")?;
        let (program, naming) = (self.one().orchadm(), self.naming());
        let line = [&program, "join", &naming, &config, "-o", "json"];
        self.hosts.all[1].spawn(&line, "join")?;
        until("join is done", LONG, async || match self.hosts.all[1].said("join") {
            text if text.contains("\"node\"") => Ok(()),
            text => Err(text),
        })
        .await?;
        let nodes = self.admin()?.all::<Node>();
        self.nodes_are_ready(&self.admin()?, 2).await?;
        let node = nodes.get(&self.one().name).await?;
        let role = self.names.sub_label("node-role", "control-plane");
        ensure!(node.metadata.labels.contains_key(&role), "no label {role}");
        ensure!(node.spec.taints.iter().any(|taint| taint.key == role), "no taint {role}");
        let left = self.hosts.all[1].file(&format!(
            "/etc/{}/bootstrap-{}.conf",
            self.names.api_service_name(),
            self.names.component("let")
        ));
        ensure!(!left.exists(), "the token stays on the node");
        Ok(())
    }

    async fn nodes_are_ready(&self, client: &Client, expected: usize) -> Result<()> {
        let nodes = client.all::<Node>();
        until(&format!("{expected} nodes are Ready"), LONG, async || {
            let all = nodes.list(&ListParams::default()).await.map_err(|e| e.to_string())?.items;
            let is_ready = |node: &&Node| {
                node.status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
            };
            match all.iter().filter(is_ready).count() {
                count if count == expected => Ok(()),
                count => Err(format!("{count} of {} are", all.len())),
            }
        })
        .await
    }

    async fn a_pod_on_each(&self) -> Result<()> {
        let client = self.admin()?;
        for host in &self.hosts.all {
            self.start_pod(&client, host, "default").await?;
        }
        self.pods_run(&client).await?;
        // Across the hosts, through routes of the proxies.
        let pods = client.within::<Pod>("default");
        let target = pods.get(&format!("on-{}", self.hosts.all[1].name)).await?;
        let address = target.status.pod_ip.clone();
        until("a pod of the other host answers", PATIENCE, async || {
            let line = ["busybox", "ping", "-c", "1", "-W", "1", address.as_str()];
            let mut command = tokio::process::Command::from(self.one().command(&line));
            match command.output().await {
                Ok(output) if output.status.success() => Ok(()),
                Ok(output) => Err(String::from_utf8_lossy(&output.stdout).into_owned()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await
    }

    /// The credentials of the host that has joined, of a pod, of the token, and none, against the control plane's host as the other node.
    async fn credentials_open_only_what_they_are_for(&self) -> Result<()> {
        let host = &self.hosts.all[1];
        let (config, agent) = (self.names.api_service_name(), self.names.component("let"));
        let mut config = file::load(&host.file(&format!("/etc/{config}/{agent}.conf")), None)?;
        // It names the file by its path on the host.
        let pair = host.file(&format!("/var/lib/{agent}/pki/{agent}-client-current.pem"));
        let pair = Pem::Data(std::fs::read(pair)?);
        config.tls.identity = Some(Identity { certificate: pair.clone(), key: pair });
        config.tls.authority = file::load(&self.admin_file(), None)?.tls.authority;
        let target = stolen_credentials::Target {
            names: self.names,
            admin: self.admin()?,
            config,
            own: host.name.clone(),
            other: self.one().name.clone(),
            endpoint_of: self.one().name.clone(),
            ns: "stolen".to_owned(),
            join_token: Some(self.token.clone()),
        };
        stolen_credentials::try_all(&target).await
    }

    /// Starts a pod that stays, on a host.
    async fn start_pod(&self, client: &Client, host: &Host, namespace: &str) -> Result<()> {
        let image = cluster::images::busybox()?;
        cluster::images::import(&host.socket(), &image).await?;
        let label = self.names.label("hostname");
        let manifest = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: on-{name}, namespace: {namespace}}}\nspec:\n  nodeSelector: {{{label}: {name}}}\n  tolerations: [{{operator: Exists}}]\n  terminationGracePeriodSeconds: 0\n  containers:\n  - {{name: c, image: {image}, args: [sleep, \"100000\"]}}\n",
            name = host.name,
            image = cluster::images::BUSYBOX_IMAGE,
        );
        until("the service account is there", PATIENCE, async || {
            let accounts = client.within::<ServiceAccount>(namespace);
            accounts.get("default").await.map(drop).map_err(|e| e.to_string())
        })
        .await?;
        cluster::apply::apply(client, &manifest).await?;
        Ok(())
    }

    async fn pods_run(&self, client: &Client) -> Result<()> {
        let pods = client.within::<Pod>("default");
        for host in &self.hosts.all {
            let name = format!("on-{}", host.name);
            until(&format!("{name} is Ready"), LONG, async || {
                let pod = pods.get(&name).await.map_err(|e| e.to_string())?;
                if cluster::demo::is_pod_ready(&pod) { Ok(()) } else { Err(shown(&pod)) }
            })
            .await?;
        }
        Ok(())
    }

    async fn account_token(&self) -> Result<String> {
        let accounts = self.admin()?.within::<ServiceAccount>("default");
        let made: TokenRequest =
            accounts.create_sub("default", "token", &TokenRequest::default()).await?;
        Ok(made.status.token)
    }

    /// Whether the API server knows who shows this token.
    async fn is_known(&self, token: &str) -> Result<bool> {
        let mut config = file::load(&self.admin_file(), None)?;
        config.tls.identity = None;
        config.credential = Credential::Token(token.to_owned());
        let client = Client::new(&config, self.names, "e2e")?;
        match client.call(request::get("/api".into())).await {
            Ok(_) => Ok(true),
            Err(error) if error.code() == Some(401) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    async fn ready(&self) -> Result<()> {
        until("the API server is ready", LONG, async || {
            let client = self.admin().map_err(|e| format!("{e:#}"))?;
            let answer = client.call(request::get("/readyz".into())).await;
            answer.map(drop).map_err(|e| e.to_string())
        })
        .await
    }

    async fn certificates_and_keys(&self) -> Result<()> {
        let host = self.one();
        let pki = format!("/etc/{}/pki", self.names.api_service_name());
        let read = |name: &str| std::fs::read(host.file(&format!("{pki}/{name}")));
        let (serving, authority) = (read("apiserver.crt")?, read("ca.crt")?);
        let (key, node_key) = (read("apiserver.key")?, self.node_client_key()?);
        let admin = std::fs::read(self.admin_file())?;
        let server = self.pid_of("orch-apiserver")?;
        host.adm_ok(&["certs", "renew", "all", "--restart"]).await?;
        self.ready().await?;
        ensure!(self.pid_of("orch-apiserver")? == server, "the API server was started again");
        ensure!(read("apiserver.crt")? != serving, "the certificate is the old one");
        ensure!(read("ca.crt")? == authority, "the authority has changed");
        ensure!(read("apiserver.key")? != key, "the API server has its old key");
        ensure!(self.node_client_key()? != node_key, "its key for nodes is the old one");
        ensure!(std::fs::read(self.admin_file())? != admin, "admin.conf is the old one");
        let text = host.adm_ok(&["certs", "check-expiration", "-o", "json"]).await?;
        let value: Value = serde_json::from_str(&text)?;
        let left = value["certificates"][0]["residualTime"].as_i64().unwrap_or_default();
        ensure!((31_000_000..31_600_000).contains(&left), "{text}");

        let old = self.account_token().await?;
        host.adm_ok(&["certs", "rotate-sa", "--restart"]).await?;
        let head = |token: &str| token.split('.').next().unwrap_or_default().to_owned();
        let new = until("tokens are signed with the new key", PATIENCE, async || {
            match self.account_token().await {
                Ok(token) if head(&token) != head(&old) => Ok(token),
                Ok(_) => Err("the old key signs".to_owned()),
                Err(error) => Err(format!("{error:#}")),
            }
        })
        .await?;
        ensure!(self.is_known(&old).await?, "a token of the old key is refused");
        ensure!(self.is_known(&new).await?, "a token of the new key is refused");
        host.adm_ok(&["certs", "rotate-sa", "--forget-old", "--restart"]).await?;
        until("a token of the forgotten key is refused", PATIENCE, async || {
            match self.is_known(&old).await {
                Ok(false) => Ok(()),
                Ok(true) => Err("it is accepted".to_owned()),
                Err(error) => Err(format!("{error:#}")),
            }
        })
        .await?;
        ensure!(self.is_known(&new).await?, "a token of the current key is refused");
        ensure!(self.pid_of("orch-apiserver")? == server, "the API server was started again");
        self.pods_run(&self.admin()?).await
    }

    /// The key of the certificate that the API server shows to nodes.
    fn node_client_key(&self) -> Result<Vec<u8>> {
        let stem = apiserver_bootstrap::certificates::node_client_stem(self.names);
        let dir = format!("/etc/{}/pki", self.names.api_service_name());
        Ok(std::fs::read(self.one().file(&format!("{dir}/{stem}.key")))?)
    }

    fn pid_of(&self, program: &str) -> Result<i64> {
        let text = std::fs::read(self.one().file(&format!("/run/orchadm/{program}.json")))?;
        let value: Value = serde_json::from_slice(&text)?;
        value["pid"].as_i64().with_context(|| format!("no process of {program}"))
    }

    async fn a_killed_supervisor_is_replaced(&mut self) -> Result<()> {
        let server = self.pid_of("orch-apiserver")?;
        kill(u32::try_from(self.pid_of("supervisor")?)?)?;
        let program = self.one().orchadm();
        self.hosts.all[0].spawn(&[&program, "run"], "run")?;
        until("the programs are kept", PATIENCE, async || {
            match self.one().said("run").contains("orch-proxy is kept") {
                true => Ok(()),
                false => Err(self.one().said("run")),
            }
        })
        .await?;
        ensure!(self.pid_of("orch-apiserver")? == server, "the API server was started again");
        self.ready().await
    }

    async fn upgrade(&self) -> Result<()> {
        let host = self.one();
        let text = host.adm_ok(&["upgrade", "plan", "-o", "json"]).await?;
        let plan: Value = serde_json::from_str(&text)?;
        ensure!(plan["components"].as_array().is_some_and(|all| all.len() == 5), "{text}");
        let scheduler = self.pid_of("orch-scheduler")?;
        host.adm_ok(&["upgrade", "apply"]).await?;
        ensure!(self.pid_of("orch-scheduler")? != scheduler, "the scheduler was not restarted");
        self.ready().await
    }

    async fn reset(&self) -> Result<()> {
        for host in self.hosts.all.iter().rev() {
            let (code, _, error) = host.adm(&["reset"]).await?;
            ensure!(code == 1 && error.contains("--force"), "nobody was asked: {error}");
            self.reset_one(host).await?;
        }
        Ok(())
    }

    /// Resets a host, which is as it was then; what orchadm warned of.
    async fn reset_one(&self, host: &Host) -> Result<String> {
        let (code, out, error) = host.adm(&["reset", "--force"]).await?;
        ensure!(code == 0, "code {code}: {out}{error}");
        until(&format!("no process is left on {}", host.name), PATIENCE, async || {
            match host.processes() {
                Ok(left) if left.is_empty() => Ok(()),
                Ok(left) => Err(left.join("\n")),
                Err(error) => Err(format!("{error:#}")),
            }
        })
        .await?;
        self.nothing_is_left(host).await?;
        Ok(error)
    }

    async fn nothing_is_left(&self, host: &Host) -> Result<()> {
        let changed = host.changed_files()?;
        ensure!(changed.is_empty(), "{} is not as it was:\n{}", host.name, changed.join("\n"));
        let agent = self.names.component("let");
        let said = async |line: &[&str]| -> Result<String> {
            let output = tokio::process::Command::from(host.command(line)).output().await?;
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let mounts = said(&["cat", "/proc/self/mountinfo"]).await?;
        ensure!(!mounts.contains(&format!("/var/lib/{agent}")), "mounts are left: {mounts}");
        let links = said(&["ip", "-o", "link"]).await?;
        ensure!(!links.contains("cni0") && !links.contains("veth"), "links are left: {links}");
        let tables = said(&["nft", "list", "tables"]).await?;
        ensure!(tables.trim().is_empty(), "tables are left: {tables}");
        let routes = said(&["ip", "route"]).await?;
        ensure!(!routes.contains("10.201."), "routes are left: {routes}");
        let groups = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
        for group in groups.map(|hierarchy| hierarchy.path().join("orch-adm").join(&host.name)) {
            ensure!(!group.join("kubepods").exists(), "{} is left", group.display());
        }
        Ok(())
    }
}

fn kill(pid: u32) -> Result<()> {
    let identity = cluster::processes::ProcessIdentity::from_pid(i32::try_from(pid)?)?;
    match identity.open() {
        Some(process) => Ok(process.signal(Signal::SIGKILL)?),
        None => bail!("process {pid} has ended"),
    }
}
