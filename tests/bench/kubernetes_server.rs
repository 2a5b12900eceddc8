//! Kubernetes' own API server with its store, started for comparison: the certificates are those of a server of ours, so that the same client speaks with both.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result};
use proto_api::names::{Names, Profile};
use proto_client::{Client, config, request};
use serde_json::Value;
use tokio::process::{Child, Command};

use crate::api_server::{Served, wait_ready};
use crate::etcd_process;
use crate::figures::{self, KUBERNETES};

/// Starts `bin/kube-apiserver` of `suite` and the machine's etcd, whose data is in `dir`. Both end with what is returned.
///
/// # Errors
/// One of them cannot be started, or does not become ready.
pub async fn serve(suite: &Path, dir: &Path, ours: &Served) -> Result<(Served, Child)> {
    let secure = etcd_process::free_port()?;
    let (etcd, store) = etcd_process::start(&dir.join("etcd"))?;
    let pki = |name: &str| ours.pki.join(name).display().to_string();
    let process = Command::new(suite.join("bin/kube-apiserver"))
        .arg(format!("--etcd-servers={store}"))
        .args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"])
        .arg(format!("--secure-port={secure}"))
        .arg(format!("--tls-cert-file={}", pki("apiserver.crt")))
        .arg(format!("--tls-private-key-file={}", pki("apiserver.key")))
        .arg(format!("--client-ca-file={}", pki("ca.crt")))
        .arg(format!("--service-account-key-file={}", pki("sa.key")))
        .arg(format!("--service-account-signing-key-file={}", pki("sa.key")))
        .arg("--service-account-issuer=https://kubernetes.default.svc.cluster.local")
        .args(["--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=Node,RBAC"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("starting kube-apiserver")?;
    let mut config = config::file::load(&ours.kubeconfig, None)?;
    config.server = format!("https://127.0.0.1:{secure}").parse()?;
    let client = Client::new(&config, Names::new(Profile::Kubernetes), "bench/0")?;
    wait_ready(&client).await.context("kube-apiserver")?;
    let version = client.call(request::get("/version".into())).await?.body;
    let version: Value = serde_json::from_slice(&version)?;
    figures::tell_version(KUBERNETES, version["gitVersion"].as_str().context("no version")?)?;
    let (pki, kubeconfig) = (ours.pki.clone(), ours.kubeconfig.clone());
    Ok((Served { client, process, pki, kubeconfig, side: KUBERNETES }, etcd))
}
