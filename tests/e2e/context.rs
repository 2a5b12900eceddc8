//! The cluster that the cases share, and operations that several of them use.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use cluster::apply::apply;
use cluster::directory::ClusterDirectory;
use cluster::processes::ProcessIdentity;
use cluster::progress::Progress;
use cluster::spec::Spec;
use cluster::{down, supervisor, up};
use http::{Method, Request, header};
use orch_tests::wait::until;
use proto_api::authentication::v1::TokenRequest;
use proto_api::core::v1::{Namespace, Pod, ServiceAccount};
use proto_api::names::Names;
use proto_client::{Client, DeleteParams, SharedToken};
use serde_json::Value;
use tokio::process::Command;

/// How long a condition may take; a loaded machine is slow, not wrong.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Runs a command and prints a last line after it if it succeeds.
const MARKED: &str = r#""$@" || exit; echo '|end'"#;

/// A running cluster.
pub struct Context {
    /// What it is.
    pub spec: Spec,
    pub names: &'static Names,
    /// Its administrator.
    pub client: Client,
    /// The program that holds clusters, for commands inside a node.
    program: PathBuf,
}

impl Context {
    /// Starts a cluster with the demo in a directory of its own.
    pub async fn start(naming: &str) -> Result<Context> {
        let dir = PathBuf::from(format!("/var/tmp/orch-e2e-{naming}"));
        Self::start_in(dir, naming, Vec::new()).await
    }

    /// Starts a cluster with the demo in `dir`, whose agents get more flags.
    pub async fn start_in(dir: PathBuf, naming: &str, agent_flags: Vec<String>) -> Result<Context> {
        let place = ClusterDirectory { dir };
        let naming = Some(naming.to_owned());
        let flags =
            up::Flags { place, nodes: Some(1), naming, agent_flags, ..up::Flags::default() };
        Self::start_as(flags).await
    }

    /// Starts a cluster as flags say.
    pub async fn start_as(flags: up::Flags) -> Result<Context> {
        Self::start_prepared(flags, |_| Ok(())).await
    }

    /// Starts a cluster as flags say, in a directory that something has been put into before.
    pub async fn start_prepared(
        flags: up::Flags,
        prepare: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<Context> {
        let bin_dir = bin_dir()?;
        let dir = flags.place.dir.clone();
        // What a run that was cut off left behind.
        down::down(&dir, &Progress::new()).await?;
        prepare(&dir)?;
        let is_prepared = dir.exists();
        let flags = up::Flags { bin_dir: Some(bin_dir.clone()), is_prepared, ..flags };
        match up::up(&flags, &Progress::new()).await {
            Ok(spec) => {
                let names = up::names(&spec);
                let client = cluster::demo::client(&spec, names)?;
                Ok(Context { spec, names, client, program: bin_dir.join("cluster") })
            }
            Err(e) => {
                keep_logs(&dir);
                down::down(&dir, &Progress::new()).await?;
                Err(e)
            }
        }
    }

    /// Removes the cluster and checks that nothing of it is left; keeps the logs of a failed run.
    pub async fn finish(self, failed: bool) -> Result<()> {
        let bridge = self.spec.bridge();
        let dir = self.spec.dir.clone();
        if failed {
            keep_logs(&dir);
        }
        down::down(&dir, &Progress::new()).await?;
        if dir.exists() {
            bail!("{} is left", dir.display());
        }
        if Path::new("/sys/class/net").join(&bridge).exists() {
            bail!("{bridge} is left");
        }
        let mounts = std::fs::read_to_string("/proc/self/mounts")?;
        if mounts.contains(&dir.display().to_string()) {
            bail!("mounts are left");
        }
        Ok(())
    }

    /// Gives the cluster more nodes by bringing it up once more, the demo included.
    pub async fn grow(&self, nodes: u8) -> Result<()> {
        let flags = up::Flags {
            place: ClusterDirectory { dir: self.spec.dir.clone() },
            nodes: Some(nodes),
            naming: None,
            no_demo: false,
            bin_dir: Some(self.spec.bin_dir.clone()),
            ..up::Flags::default()
        };
        up::up(&flags, &Progress::new()).await.map(drop)
    }

    /// A namespace of its own for a case, empty at the start.
    pub async fn namespace(&self, name: &str) -> Result<String> {
        let manifest = format!("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {name}\n");
        apply(&self.client, &manifest).await?;
        Ok(name.to_owned())
    }

    /// Removes a case's namespace without waiting for it.
    pub async fn discard(&self, namespace: &str) -> Result<()> {
        self.client.all::<Namespace>().delete(namespace, &DeleteParams::default()).await?;
        Ok(())
    }

    /// A client with nothing but a token of a service account.
    pub async fn account(&self, namespace: &str, name: &str) -> Result<Client> {
        let accounts = self.client.within::<ServiceAccount>(namespace);
        let issued: TokenRequest =
            accounts.create_sub(name, "token", &TokenRequest::default()).await?;
        let token = SharedToken::default();
        token.set(&issued.status.token);
        Ok(self.client.anonymous()?.with_token(token))
    }

    /// The status of the answer to a request. `PATCH` is a merge patch, `APPLY` a server-side apply.
    pub async fn status(client: &Client, method: &str, path: &str, body: &Value) -> Result<u16> {
        let text = if body.is_null() { String::new() } else { body.to_string() };
        let (method, media) = match method {
            "PATCH" => (method, "application/merge-patch+json"),
            "APPLY" => ("PATCH", "application/apply-patch+yaml"),
            _ => (method, "application/json"),
        };
        let request = Request::builder()
            .method(Method::from_bytes(method.as_bytes())?)
            .uri(path)
            .header(header::CONTENT_TYPE, media)
            .body(Bytes::from(text))?;
        match client.call(request).await {
            Ok(answer) => Ok(answer.status),
            Err(error) => error.code().with_context(|| format!("{method} {path}: {error}")),
        }
    }

    /// Applies a manifest.
    pub async fn apply(&self, manifest: &str) -> Result<()> {
        apply(&self.client, manifest).await
    }

    /// Waits until `fits` says of a pod that it is as wanted, or what it is instead.
    pub async fn pod_until(
        &self,
        namespace: &str,
        name: &str,
        fits: impl Fn(&Pod) -> Result<(), String>,
    ) -> Result<Pod> {
        let api = self.client.within::<Pod>(namespace);
        until(&format!("pod {namespace}/{name}"), PATIENCE, async || {
            let pod = api.get(name).await.map_err(|e| e.to_string())?;
            fits(&pod).map(|()| pod)
        })
        .await
    }

    /// Waits until a pod is Ready.
    pub async fn pod_ready(&self, namespace: &str, name: &str) -> Result<Pod> {
        let ready = |pod: &Pod| match cluster::demo::is_pod_ready(pod) {
            true => Ok(()),
            false => Err(shown(pod)),
        };
        self.pod_until(namespace, name, ready).await
    }

    /// Runs a command in the namespaces of the first node; its standard output.
    pub async fn on_node(&self, argv: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.program);
        command.arg("exec").arg("--dir").arg(&self.spec.dir).arg("node-1").args(argv);
        output(command).await
    }

    /// Runs a command in a container through the runtime's own client, not through what is tested.
    pub async fn in_container(&self, pod: &Pod, argv: &[&str]) -> Result<String> {
        let status = pod.status.container_statuses.first().context("no container status")?;
        let (_, id) = status.container_id.split_once("://").context("no container id")?;
        let socket = self.spec.containerd_socket("node-1");
        let socket = socket.to_str().context("a socket path in UTF-8")?;
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let exec_id = format!("t{}-{nth}", std::process::id());
        let ctr = ["ctr", "-a", socket, "-n", "k8s.io", "task", "exec", "--exec-id", &exec_id, id];
        self.on_node(&[&ctr, argv].concat()).await
    }

    /// What a command prints in a container that has a shell. The runtime's client may lose the output of a command that ends at once, which the missing last
    /// line shows; it is run again then. Only for commands that change nothing.
    pub async fn read_in_container(&self, pod: &Pod, argv: &[&str]) -> Result<String> {
        let marked = [&["/bin/sh", "-c", MARKED, "sh"], argv].concat();
        until(&format!("all that {argv:?} prints"), PATIENCE, async || {
            match self.in_container(pod, &marked).await {
                Ok(text) => match text.strip_suffix("|end\n") {
                    Some(whole) => Ok(Ok(whole.to_owned())),
                    None => Err(format!("{text:?}")),
                },
                Err(error) => Ok(Err(error)),
            }
        })
        .await?
    }

    /// Runs a program of the host in the network of a pod.
    pub async fn in_pod_network(&self, pod: &Pod, argv: &[&str]) -> Result<String> {
        let node = self.spec.node_cgroup("node-1");
        let pids = cluster::processes::pids_in_cgroup(&[&node, &pod.metadata.uid])?;
        let pid = pids.first().context("the pod has no process")?.to_string();
        let mut command = Command::new("nsenter");
        command.args(["--net", "--target", &pid]).args(argv);
        output(command).await
    }

    /// Kills a program with SIGKILL and waits until its supervisor has started another.
    pub async fn kill(&self, program: &str) -> Result<()> {
        let old = supervisor::find(&self.spec, program)
            .with_context(|| format!("{program} does not run"))?;
        old.signal(nix::sys::signal::Signal::SIGKILL)?;
        old.ended().await?;
        let before: ProcessIdentity = old.identity;
        until(&format!("{program} again"), PATIENCE, async || {
            match supervisor::find(&self.spec, program) {
                Some(new) if new.identity != before => Ok(()),
                _ => Err("not started"),
            }
        })
        .await
    }
}

/// One line about a pod, for errors.
pub fn shown(pod: &Pod) -> String {
    let container = |c: &proto_api::core::v1::ContainerStatus| {
        let waiting =
            c.state.waiting.as_ref().map(|w| format!("waiting {} {}", w.reason, w.message));
        let ended =
            c.state.terminated.as_ref().map(|t| format!("ended {} {}", t.exit_code, t.reason));
        let state = waiting.or(ended).unwrap_or_else(|| "running".to_owned());
        format!("{}: {state}, restarted {}", c.name, c.restart_count)
    };
    let status = &pod.status;
    let all = status.init_container_statuses.iter().chain(&status.container_statuses);
    let containers: Vec<String> = all.map(container).collect();
    format!("{} {} [{}]", status.phase, status.message, containers.join("; "))
}

/// Standard output of a command that must succeed.
pub async fn output(mut command: Command) -> Result<String> {
    let output = command.kill_on_drop(true).output().await.context("starting a command")?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if !output.status.success() {
        bail!("{:?}: {}; {}{}", command, output.status, text(&output.stdout), text(&output.stderr));
    }
    Ok(text(&output.stdout))
}

pub fn bin_dir() -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os("ORCH_BIN_DIR") {
        return Ok(dir.into());
    }
    // <target>/<profile>/deps/e2e-…
    let own = std::env::current_exe()?;
    Ok(own.ancestors().nth(2).context("no target directory")?.to_owned())
}

fn keep_logs(dir: &Path) {
    for entry in std::fs::read_dir(dir.join("logs")).into_iter().flatten().flatten() {
        println!("--- {} (last lines)", entry.path().display());
        println!("{}", last_lines(&entry.path(), 25));
    }
}

/// The end of a log; nothing of one that cannot be read.
pub fn last_lines(log: &Path, count: usize) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines.get(lines.len().saturating_sub(count)..).unwrap_or_default().join("\n")
}
