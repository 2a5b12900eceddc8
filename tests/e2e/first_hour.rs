//! A new user's first commands: `hack/up` in a pipe, whose cluster is not accessible to other users.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use cluster::progress::Progress;
use cluster::spec::Spec;
use cluster::{demo, down};
use orch_tests::hour;
use orch_tests::wait::until;
use proto_api::core::v1::Namespace;
use proto_client::{ListParams, request};
use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

use crate::context::{Context, PATIENCE, output};

pub async fn a_cluster_comes_up_in_a_pipe_and_is_closed_to_others(c: &Context) -> Result<()> {
    let dir = PathBuf::from("/var/tmp/orch-e2e-pipe");
    down::down(&dir, &Progress::new()).await?;
    let tried = first_minutes(&c.spec.bin_dir, &dir).await;
    let removed = removed(&c.spec.bin_dir, &dir).await;
    tried.and(removed)
}

async fn first_minutes(bin_dir: &Path, dir: &Path) -> Result<()> {
    // A descriptor beyond the standard ones is what shells give to `> >(tee log)`.
    let line = format!(
        "exec 7>&1; '{}' up --dir '{}' 2>&1 | cat",
        bin_dir.join("cluster").display(),
        dir.display()
    );
    let mut shell = Command::new("bash");
    shell.args(["-c", &line]).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let shell = shell.spawn().context("bash")?;
    // Ends when the last descriptor of the pipe is closed, by whatever process has it.
    let said =
        timeout(PATIENCE * 2, shell.wait_with_output()).await.context("the pipe stays open")?;
    let said = String::from_utf8_lossy(&said?.stdout).into_owned();
    let spec = Spec::load(dir)?.with_context(|| format!("no cluster: {said}"))?;
    let export = format!("export KUBECONFIG={}", spec.client_config("admin").display());
    ensure!(said.contains(&export) && said.contains("\nkubectl "), "said {said}");
    ensure!(spec.naming == "kubernetes", "named {}", spec.naming);
    closed_files(&spec)?;
    healthy_components(&spec).await?;
    refused_requests(&spec, bin_dir).await
}

/// The API server finds the other programs of the control plane.
async fn healthy_components(spec: &Spec) -> Result<()> {
    let client = demo::client(spec, spec.names())?;
    until("the components are healthy", PATIENCE, async || {
        let path = "/api/v1/componentstatuses".to_owned();
        let answer = client.call(request::get(path)).await.map_err(|e| e.to_string())?;
        let list: Value = serde_json::from_slice(&answer.body).map_err(|e| e.to_string())?;
        let healthy = list["items"].as_array().into_iter().flatten();
        let healthy = healthy.filter(|item| item["conditions"][0]["status"] == "True");
        if healthy.count() == 3 { Ok(()) } else { Err(list.to_string()) }
    })
    .await
}

/// The directory, and what lies directly in it and with the keys.
fn closed_files(spec: &Spec) -> Result<()> {
    for place in [spec.dir.clone(), spec.pki(), spec.dir.join("processes"), spec.dir.join("logs")] {
        ensure!(mode(&place)? == 0o700, "{}: {:o}", place.display(), mode(&place)?);
        for entry in std::fs::read_dir(&place)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                let (path, mode) = (entry.path(), mode(&entry.path())?);
                // Certificates and public keys are nobody's secret, as with kubeadm.
                let is_public = path.extension().is_some_and(|kind| kind == "crt" || kind == "pub");
                ensure!(
                    mode == 0o600 || is_public && mode == 0o644,
                    "{}: {mode:o}",
                    path.display()
                );
            }
        }
    }
    Ok(())
}

fn mode(path: &Path) -> Result<u32> {
    Ok(std::fs::metadata(path)?.permissions().mode() & 0o777)
}

/// Who shows nothing, and another node's certificate, get nothing from the API and from nodes.
async fn refused_requests(spec: &Spec, bin_dir: &Path) -> Result<()> {
    let api = spec.api_url();
    let node = format!("https://{}:10250", spec.api_address());
    let code = async |user: &str, url: String| -> Result<String> {
        let mut curl = Command::new(bin_dir.join("cluster"));
        curl.args(["exec", "--dir"]).arg(&spec.dir);
        curl.args(["node-1", "curl", "-sk", "-m", "10", "-o", "/dev/null", "-w", "%{http_code}"]);
        if !user.is_empty() {
            let file = |end: &str| spec.pki().join(format!("{user}.{end}"));
            curl.arg("--cert").arg(file("crt")).arg("--key").arg(file("key"));
        }
        curl.arg(&url);
        output(curl).await.with_context(|| url)
    };
    for (user, url, expected) in [
        ("", format!("{api}/readyz"), "200"),
        ("", format!("{api}/api/v1/secrets"), "403"),
        ("", format!("{api}/version"), "200"),
        ("", format!("{node}/pods"), "401"),
        ("orchlet-node-1", format!("{node}/pods"), "403"),
        ("orchlet-node-1", format!("{api}/api/v1/nodes/node-1/proxy/pods"), "403"),
        ("orchlet-node-1", format!("{api}/api/v1/nodes/node-1"), "200"),
        ("apiserver-node-client", format!("{node}/pods"), "200"),
        ("admin", format!("{api}/api/v1/nodes/node-1/proxy/pods"), "200"),
    ] {
        let got = code(user, url.clone()).await?;
        ensure!(got == expected, "{url} as {user:?}: {got}, expected {expected}");
    }
    Ok(())
}

/// Everyday commands of kubectl, answered as Kubernetes' own programs answered them, or otherwise for a reason that is written down.
pub async fn everyday_commands_are_answered_as_kubernetes_answers(c: &Context) -> Result<()> {
    nothing_is_ending(c).await?;
    let scratch = tempfile::tempdir()?;
    let report = hour::check(&c.spec.client_config("admin"), scratch.path()).await?;
    ensure!(report.findings.is_empty(), "{}", report.findings.join("\n"));
    ensure!(report.equal >= 100, "{} of {}", report.equal, report.equal + report.explained);
    Ok(())
}

/// Waits for the namespaces of earlier cases, which are listed until they are empty.
pub async fn nothing_is_ending(c: &Context) -> Result<()> {
    let namespaces = c.client.all::<Namespace>();
    until("no namespace is being deleted", PATIENCE, async || {
        let mut all = match namespaces.list(&ListParams::default()).await {
            Ok(list) => list.items,
            Err(error) => return Err(error.to_string()),
        };
        all.retain(|namespace| namespace.metadata.deletion_timestamp.is_some());
        if all.is_empty() { Ok(()) } else { Err(format!("{all:?}")) }
    })
    .await
}

/// `down` leaves no file, link, cgroup or process of the cluster.
async fn removed(bin_dir: &Path, dir: &Path) -> Result<()> {
    let spec = Spec::load(dir)?;
    let mut command = Command::new(bin_dir.join("cluster"));
    command.arg("down").arg("--dir").arg(dir);
    output(command).await?;
    ensure!(!dir.exists(), "{} is left", dir.display());
    let Some(spec) = spec else { return Ok(()) };
    ensure!(!Path::new("/sys/class/net").join(spec.bridge()).exists(), "the bridge is left");
    let group = spec.node_cgroup("node-1");
    ensure!(!Path::new("/sys/fs/cgroup/memory").join(&group[1..]).exists(), "{group} is left");
    let dir = dir.display().to_string();
    for pid in cluster::processes::all_pids()? {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        ensure!(!line.contains(&dir), "process {pid} is left: {line}");
    }
    Ok(())
}
