//! Kubernetes' own API server with its store, started for comparison: the certificates are those of a server of ours, so that the same client speaks with both.

use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context as _, Result};
use apiserver_bootstrap::service_account_keys;
use kubernetes_server::api_server::{ApiServerFlags, KubernetesServer, Wanted};
use kubernetes_server::etcd::{Durability, Etcd};
use kubernetes_server::ports::free_port;
use proto_api::names::{Names, Profile};
use proto_client::{Client, config, request};
use serde_json::Value;

use crate::api_server::{Served, wait_ready};
use crate::figures::{self, KUBERNETES};

/// Starts `bin/kube-apiserver` of `suite` and the machine's etcd, whose data is in `dir`. Both end with what is returned.
///
/// # Errors
/// One of them cannot be started, or does not become ready.
pub async fn serve(suite: &Path, dir: &Path, ours: &Served) -> Result<(Served, Etcd)> {
    let port = free_port()?;
    // It reads public keys from a file of public keys only.
    service_account_keys::ensure(&ours.pki)?;
    let (public_keys, account_key) = (ours.pki.join("sa.pub"), ours.pki.join("sa.key"));
    let flags = ApiServerFlags {
        port,
        advertised: Ipv4Addr::LOCALHOST.into(),
        authorization: "Node,RBAC",
        issuer: "https://kubernetes.default.svc.cluster.local",
        account_keys: (&public_keys, &account_key),
    };
    let mut flags = flags.words();
    let pki = |name: &str| ours.pki.join(name).display().to_string();
    flags.extend([
        format!("--tls-cert-file={}", pki("apiserver.crt")),
        format!("--tls-private-key-file={}", pki("apiserver.key")),
        format!("--client-ca-file={}", pki("ca.crt")),
    ]);
    let started = KubernetesServer::start(&Wanted {
        kube_apiserver: &suite.join("bin/kube-apiserver"),
        etcd: Path::new("etcd"),
        directory: dir,
        logs: dir,
        // As ours, it waits for the disk.
        durability: Durability::Synced,
        flags,
    })?;
    let mut config = config::file::load(&ours.kubeconfig, None)?;
    config.server = format!("https://127.0.0.1:{port}").parse()?;
    let client = Client::new(&config, Names::new(Profile::Kubernetes), "bench/0")?;
    wait_ready(&client).await.context("kube-apiserver")?;
    let version = client.call(request::get("/version".into())).await?.body;
    let version: Value = serde_json::from_slice(&version)?;
    figures::tell_version(KUBERNETES, version["gitVersion"].as_str().context("no version")?)?;
    let (pki, kubeconfig) = (ours.pki.clone(), ours.kubeconfig.clone());
    let KubernetesServer { process, etcd } = started;
    Ok((Served { client, process, pki, kubeconfig, side: KUBERNETES }, etcd))
}
