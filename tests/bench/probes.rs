//! The agent's cost of a thousand probes a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use cluster::images::BUSYBOX_IMAGE;
use cluster::spec::Spec;
use proto_api::core::v1::Pod;
use proto_client::{Client, WriteParams};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::figures::{Figure, Group, Unit};
use crate::workload::{Network, SCRIPT, container, pod};
use crate::{agent_process, bursts, footprint};

/// Pods, containers in each, and probes of each container: a thousand a second together.
const PODS: usize = 50;
const CONTAINERS: usize = 10;
const MEASURED: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(300);
/// Longest head of a request that is read.
const HEAD_MAX: usize = 4096;

/// Counts the requests of many containers' probes at a server of this program, and their cost.
pub async fn measure(spec: &Spec, client: &Client) -> Result<()> {
    let listener = TcpListener::bind((spec.host_address(), 0)).await?;
    let address = listener.local_addr()?;
    let asked = Arc::<AtomicU64>::default();
    let server = tokio::spawn(serve(listener, asked.clone()));
    let api = client.within::<Pod>(bursts::namespace());
    for number in 0..PODS {
        let pod = probed(number, &address.ip().to_string(), address.port())?;
        api.create(&pod, &WriteParams::default()).await?;
    }
    let began = Instant::now();
    let enough = (PODS * CONTAINERS * 2) as f64 * 0.97;
    loop {
        let before = asked.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let rate = (asked.load(Ordering::Relaxed) - before) as f64 / 2.0;
        if rate >= enough {
            break;
        }
        ensure!(began.elapsed() < PATIENCE, "{rate} questions a second in {PATIENCE:?}");
    }
    let pid = agent_process::pid(spec)?;
    let (before, cpu, began) =
        (asked.load(Ordering::Relaxed), footprint::cpu(pid)?, Instant::now());
    tokio::time::sleep(MEASURED).await;
    let took = began.elapsed().as_secs_f64();
    let rate = (asked.load(Ordering::Relaxed) - before) as f64 / took;
    let share = footprint::cpu(pid)?.saturating_sub(cpu).as_secs_f64() / took * 100.0;
    let memory = footprint::Memory::read(pid)?;
    server.abort();
    let (pss, dirty) = memory.megabytes();
    for (what, unit, value) in [
        ("probes", Unit::PerSecond, rate),
        ("orchlet's CPU", Unit::Core, share),
        ("orchlet's CPU for a probe", Unit::Micros, share * 1e4 / rate),
        ("orchlet's PSS", Unit::Megabytes, pss),
        ("orchlet's private dirty memory", Unit::Megabytes, dirty),
    ] {
        let what = format!("{PODS} pods of {CONTAINERS} containers with http probes: {what}");
        Figure::new(Group::Load, what, unit, value).tell()?;
    }
    Ok(())
}

async fn serve(listener: TcpListener, asked: Arc<AtomicU64>) {
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            let asked = asked.clone();
            // Clients that disconnect before the response do not matter to the measurement.
            tokio::spawn(async move { answer(stream, &asked).await.ok() });
        }
    }
}

async fn answer(mut stream: TcpStream, asked: &AtomicU64) -> std::io::Result<()> {
    let mut head = vec![0; HEAD_MAX];
    let mut len = 0;
    while !head[..len].ends_with(b"\r\n\r\n") && len < HEAD_MAX {
        match stream.read(&mut head[len..]).await? {
            0 => return Ok(()),
            read => len += read,
        }
    }
    asked.fetch_add(1, Ordering::Relaxed);
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok").await
}

fn probed(number: usize, host: &str, port: u16) -> Result<Pod> {
    let probe = json!({
        "httpGet": {"host": host, "port": port, "path": "/"},
        "periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 10,
    });
    let container = |n: usize| {
        let mut container = container(&format!("c{n}"), BUSYBOX_IMAGE, SCRIPT);
        container["livenessProbe"] = probe.clone();
        container["readinessProbe"] = probe.clone();
        container
    };
    let containers = (0..CONTAINERS).map(container).collect();
    pod(bursts::namespace(), &format!("probed{number}"), Network::Host, containers, Vec::new())
}
