//! The API server under load, over TLS: durable writes, lists, and many watchers of one collection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use proto_api::core::v1::ConfigMap;
use proto_client::watch::{Observed, watch};
use proto_client::{Api, Client, ListParams, WriteParams, request};
use tokio::task::JoinSet;

use crate::figures::{Figure, Group, KUBERNETES, Unit};

/// Clients at one time, each with a connection of its own.
pub const CLIENTS: usize = 64;
const CREATES: usize = 16_000;
/// Creates of one client.
pub const SERIAL_CREATES: usize = 1_000;
/// Watchers of one collection, one number after the other.
const WATCHERS: [usize; 3] = [10, 100, 1_000];
/// Connections that the watchers share.
const WATCH_CONNECTIONS: usize = 20;
const WATCHED_WRITES: usize = 200;

/// All of it, of a server of that side that runs already, with an empty namespace `default`.
pub async fn load(client: &Client, side: &str) -> Result<()> {
    creates(client, side).await?;
    lists(client, side).await?;
    for watchers in WATCHERS {
        fan_out(client, side, watchers).await?;
    }
    Ok(())
}

/// A config map of about 512 bytes.
pub fn map(name: String) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.name = name;
    map.data.insert("payload".into(), "x".repeat(400));
    map
}

async fn creates(client: &Client, side: &str) -> Result<()> {
    let api = client.within::<ConfigMap>("default");
    let mut samples = Vec::new();
    for n in 0..SERIAL_CREATES {
        let began = Instant::now();
        api.create(&map(format!("serial-{n}")), &WriteParams::default()).await?;
        samples.push(began.elapsed());
    }
    Figure::of_times(Group::Api, "durable create, one client", Unit::Millis, samples)
        .side(side)
        .beside(KUBERNETES)
        .tell()?;
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
    Ok(Figure::new(Group::Api, "durable creates", Unit::PerSecond, rate)
        .at(CLIENTS, "clients")
        .side(side)
        .beside(KUBERNETES)
        .tell()?)
}

async fn lists(client: &Client, side: &str) -> Result<()> {
    for (what, query) in [
        ("list of 17,000 objects", "?resourceVersion=0"),
        ("list of 500 of 17,000 objects", "?limit=500"),
    ] {
        let mut samples = Vec::new();
        for _ in 0..20 {
            let path = format!("/api/v1/namespaces/default/configmaps{query}");
            let began = Instant::now();
            client.call(request::get(path)).await?;
            samples.push(began.elapsed());
        }
        let figure = Figure::of_times(Group::Api, what, Unit::Millis, samples);
        figure.side(side).beside(KUBERNETES).tell()?;
    }
    Ok(())
}

async fn fan_out(client: &Client, side: &str, count: usize) -> Result<()> {
    let namespace = format!("kept-quiet-{count}");
    let received = Arc::new(AtomicUsize::new(0));
    let synced = Arc::new(AtomicUsize::new(0));
    let mut watchers = JoinSet::new();
    let connections: Vec<Client> =
        (0..WATCH_CONNECTIONS).map(|_| client.separate()).collect::<Result<_, _>>()?;
    for number in 0..count {
        let connection = connections.get(number % WATCH_CONNECTIONS).context("a connection")?;
        let api: Api<ConfigMap> = connection.within(&namespace);
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
        &format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}}}\n"),
    )
    .await?;
    while synced.load(Ordering::Relaxed) < count {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let api = client.within::<ConfigMap>(&namespace);
    let began = Instant::now();
    for n in 0..WATCHED_WRITES {
        api.create(&map(format!("w{n}")), &WriteParams::default()).await?;
    }
    let all = count * WATCHED_WRITES;
    while received.load(Ordering::Relaxed) < all && began.elapsed() < Duration::from_secs(60) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let rate = received.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64();
    watchers.shutdown().await;
    Ok(Figure::new(Group::Api, "events to watchers", Unit::PerSecond, rate)
        .at(count, "watchers")
        .side(side)
        .beside(KUBERNETES)
        .tell()?)
}
