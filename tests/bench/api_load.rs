//! The API server under load, over TLS: durable writes, lists, and many watchers of one collection.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use proto_api::core::v1::ConfigMap;
use proto_client::watch::{Observed, watch};
use proto_client::{Api, Client, ListParams, WriteParams, request};
use tokio::task::JoinSet;

use crate::api_server::serve;
use crate::report::Report;

const CLIENTS: usize = 64;
const CREATES: usize = 16_000;
const SERIAL_CREATES: usize = 1_000;
const WATCHERS: usize = 1_000;
/// Connections that the watchers share.
const WATCH_CONNECTIONS: usize = 20;
const WATCHED_WRITES: usize = 200;

/// All rows.
pub async fn measure(bin_dir: &Path, report: &mut Report) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (mut server, client) = serve(bin_dir, dir.path(), "load").await?;
    load(&client, report).await?;
    server.kill().await?;
    Ok(())
}

/// The same for a server that runs already, with an empty namespace `default`.
pub async fn load(client: &Client, report: &mut Report) -> Result<()> {
    creates(client, report).await?;
    lists(client, report).await?;
    fan_out(client, report).await
}

/// A config map of about 512 bytes.
fn map(name: String) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.name = name;
    map.data.insert("payload".into(), "x".repeat(400));
    map
}

async fn creates(client: &Client, report: &mut Report) -> Result<()> {
    let api = client.within::<ConfigMap>("default");
    let mut samples = Vec::new();
    for n in 0..SERIAL_CREATES {
        let began = Instant::now();
        api.create(&map(format!("serial-{n}")), &WriteParams::default()).await?;
        samples.push(began.elapsed());
    }
    report.times("API server: durable create, one client", samples);
    let mut clients = JoinSet::new();
    let began = Instant::now();
    for number in 0..CLIENTS {
        let api: Api<ConfigMap> = client.separate()?.within("default");
        clients.spawn(async move {
            for n in 0..CREATES / CLIENTS {
                api.create(&map(format!("c{number}-{n}")), &WriteParams::default()).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = clients.join_next().await {
        done??;
    }
    let rate = CREATES as f64 / began.elapsed().as_secs_f64();
    let row = format!("{rate:8.0} a second (the clients share the machine)");
    report.text(&format!("API server: durable creates, {CLIENTS} clients"), row);
    Ok(())
}

async fn lists(client: &Client, report: &mut Report) -> Result<()> {
    for (what, query) in [
        ("all 17,000 config maps from memory", "?resourceVersion=0"),
        ("500 of 17,000 config maps", "?limit=500"),
    ] {
        let mut samples = Vec::new();
        let mut size = 0;
        for _ in 0..20 {
            let path = format!("/api/v1/namespaces/default/configmaps{query}");
            let began = Instant::now();
            let answer = client.call(request::get(path)).await?;
            samples.push(began.elapsed());
            size = answer.body.len();
        }
        report.times(&format!("API server: {what}, {:.1} MB", size as f64 / 1e6), samples);
    }
    Ok(())
}

async fn fan_out(client: &Client, report: &mut Report) -> Result<()> {
    let received = Arc::new(AtomicUsize::new(0));
    let synced = Arc::new(AtomicUsize::new(0));
    let mut watchers = JoinSet::new();
    let connections: Vec<Client> =
        (0..WATCH_CONNECTIONS).map(|_| client.separate()).collect::<Result<_, _>>()?;
    for number in 0..WATCHERS {
        let connection = connections.get(number % WATCH_CONNECTIONS).context("a connection")?;
        let api: Api<ConfigMap> = connection.within("kept-quiet");
        let (received, synced) = (received.clone(), synced.clone());
        watchers.spawn(async move {
            watch(&api, &ListParams::default(), |observed| {
                match observed {
                    Observed::Applied(_) => received.fetch_add(1, Ordering::Relaxed),
                    Observed::ListEnded => synced.fetch_add(1, Ordering::Relaxed),
                    _ => 0,
                };
            })
            .await;
        });
    }
    cluster::apply::apply(
        client,
        "apiVersion: v1\nkind: Namespace\nmetadata: {name: kept-quiet}\n",
    )
    .await?;
    while synced.load(Ordering::Relaxed) < WATCHERS {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let api = client.within::<ConfigMap>("kept-quiet");
    let began = Instant::now();
    for n in 0..WATCHED_WRITES {
        api.create(&map(format!("w{n}")), &WriteParams::default()).await?;
    }
    let all = WATCHERS * WATCHED_WRITES;
    while received.load(Ordering::Relaxed) < all && began.elapsed() < Duration::from_secs(60) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let rate = received.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64();
    let row = format!("{rate:8.0} events a second (decoded by clients on the same machine)");
    report.text(&format!("API server: fan-out to {WATCHERS} watchers"), row);
    watchers.shutdown().await;
    Ok(())
}
