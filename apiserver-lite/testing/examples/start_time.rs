//! How long a server takes until it has answered its first request: in this process, and as a process if its program is named.
//! `cargo run --release -p apiserver-testing --example start_time [target/release/orch-apiserver]`

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement")]

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use apiserver_testing::Cluster;
use bytes::Bytes;
use http::Request;
use proto_api::names::{Names, Profile};
use proto_client::Client;
use proto_client::config::file;

const ROUNDS: usize = 50;

async fn ask(client: &Client) {
    let get = Request::get("/api/v1/namespaces/default").body(Bytes::new()).unwrap();
    client.call(get).await.unwrap();
}

fn tell(what: &str, mut took: Vec<Duration>) {
    took.sort_unstable();
    let at = |part: usize| took[(took.len() - 1) * part / 100].as_secs_f64() * 1000.0;
    println!("{what:<60} median {:>7.2} ms, p90 {:>7.2} ms", at(50), at(90));
}

async fn in_process() -> Duration {
    let began = Instant::now();
    let cluster = Cluster::start().await.unwrap();
    ask(&cluster.client().unwrap()).await;
    let took = began.elapsed();
    cluster.stop().await;
    took
}

async fn as_process(program: &Path) -> Duration {
    let began = Instant::now();
    let mut command = Command::new(program);
    command.arg("--ephemeral").stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let path = line.split(' ').next().and_then(|part| part.strip_prefix("KUBECONFIG=")).unwrap();
    let config = file::load(Path::new(path), None).unwrap();
    ask(&Client::new(&config, Names::new(Profile::Kubernetes), "start_time").unwrap()).await;
    let took = began.elapsed();
    child.kill().unwrap();
    child.wait().unwrap();
    took
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        took.push(in_process().await);
    }
    tell("Cluster::start to the first answer", took);
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        let cluster = Cluster::start().await.unwrap();
        let began = Instant::now();
        cluster.restore("start").await.unwrap();
        took.push(began.elapsed());
        cluster.stop().await;
    }
    tell("Cluster::restore", took);
    let Some(program) = std::env::args_os().nth(1) else { return };
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        took.push(as_process(Path::new(&program)).await);
    }
    tell("start of orch-apiserver --ephemeral to the first answer", took);
}
