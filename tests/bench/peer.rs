//! The same measurements of a cluster of other programs.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use proto_api::names::{Names, Profile};
use proto_client::{Client, config, request};
use serde_json::Value;

use crate::figures::{self, KUBERNETES};
use crate::node::Target;
use crate::{api_load, footprint};

/// Where the other cluster is. It runs on this machine and has one node.
#[derive(clap::Args)]
pub struct Flags {
    /// Its administrator's client configuration
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// Directory in which its node keeps the pods' directories
    #[arg(long, value_name = "DIR")]
    pods_dir: Option<PathBuf>,
    /// An image with a shell that its node has
    #[arg(long, default_value = "docker.io/library/busybox:1.29")]
    image: String,
    /// A program of it and its process id; may be given several times
    #[arg(long = "program", value_name = "NAME=PID", value_parser = program)]
    programs: Vec<(String, i32)>,
}

fn program(text: &str) -> Result<(String, i32)> {
    let (name, pid) = text.split_once('=').context("want NAME=PID")?;
    Ok((name.to_owned(), pid.parse().context("the process id")?))
}

/// Idle footprint first, then pods if there is a node to look at, then the API server under load.
pub async fn measure(flags: Flags) -> Result<()> {
    let config = config::file::load(&flags.kubeconfig, None)?;
    let client = Client::new(&config, Names::new(Profile::Kubernetes), "bench/0")?;
    let version = client.call(request::get("/version".into())).await?.body;
    let version: Value = serde_json::from_slice(&version)?;
    let version = version["gitVersion"].as_str().context("no version")?;
    figures::tell_version(KUBERNETES, version)?;
    if !flags.programs.is_empty() {
        footprint::measure(&flags.programs, KUBERNETES).await?;
    }
    if let Some(pods_dir) = flags.pods_dir {
        let (image, client) = (flags.image, client.clone());
        let target = Target { side: KUBERNETES, client, pods_dir, image, rounds: 10, rotations: 3 };
        target.measure().await?;
    }
    // A server under load may shed it; it is given time to say that it is well.
    for _ in 0..100 {
        if client.call(request::get("/readyz".into())).await.is_ok_and(|a| a.status == 200) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    api_load::load(&client, KUBERNETES).await
}
