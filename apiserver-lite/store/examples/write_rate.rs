//! Measures the rate of durable writes, also for `hack/bench`: `write_rate [directory [seconds]]`.
//!
//! For 1, 16, 64 and 256 clients, each creating records of 1 KiB one after the other: writes per second and latency. They depend on
//! the file system of the directory; the lower bound is an append and `fdatasync` of the same size.

#[path = "../../../tests/bench/figures.rs"]
mod figures;

use std::{
    error::Error,
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use apiserver_store::{Medium, Store, StoreConfig, StoreIdentity, Write};
use bytes::Bytes;

use figures::{Figure, Group, Unit};

const VALUE_LEN: usize = 1024;
/// What the lower bound is measured by as well.
const WRITE: &str = "a durable write";

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let directory = args.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let seconds: u64 = args.next().map_or(Ok(3), |text| text.parse())?;
    let path = directory.join(format!("write-rate-{}", std::process::id()));
    floor(&path)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    for clients in [1, 16, 64, 256] {
        let identity = StoreIdentity { profile: "orch".into(), domain: "example.org".into() };
        let start = Instant::now();
        let store = Store::open(StoreConfig::new(Medium::Directory(path.clone()), identity))?;
        let opened = start.elapsed();
        runtime.block_on(run(&store, clients, Duration::from_secs(seconds)))?;
        runtime.block_on(store.close());
        if clients == 1 {
            Figure::of_times(Group::Store, "opened empty", Unit::Millis, [opened]).tell()?;
        }
        std::fs::remove_dir_all(&path)?;
    }
    Ok(())
}

/// Cost of one synced append without the store.
fn floor(path: &Path) -> Result<(), Box<dyn Error>> {
    let mut file = File::create(path)?;
    let mut latencies = Vec::new();
    for _ in 0..1000 {
        let start = Instant::now();
        file.write_all(&[7; VALUE_LEN])?;
        file.sync_data()?;
        latencies.push(start.elapsed());
    }
    std::fs::remove_file(path)?;
    let figure = Figure::of_times(Group::Store, WRITE, Unit::Millis, latencies);
    Ok(figure.at(1_u64, "clients").side("append and fdatasync").tell()?)
}

async fn run(store: &Store<Bytes>, clients: usize, length: Duration) -> Result<(), Box<dyn Error>> {
    let value = Bytes::from(vec![7; VALUE_LEN]);
    let end = Instant::now() + length;
    let names = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let tasks: Vec<_> = (0..clients)
        .map(|client| {
            let (store, value, names) = (store.clone(), value.clone(), names.clone());
            tokio::spawn(async move {
                let mut latencies = Vec::new();
                while Instant::now() < end {
                    let name = names.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    // Names of objects do not sort by age: the keys are spread.
                    let spread = name.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    let key = format!("configmaps/ns-{client}/{spread:016x}");
                    let start = Instant::now();
                    store.write(Write::create(key, value.clone())).await?;
                    latencies.push(start.elapsed());
                }
                Ok::<_, apiserver_store::WriteError<Bytes>>(latencies)
            })
        })
        .collect();
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await?.map_err(|error| error.to_string())?);
    }
    let rate = latencies.len() as f64 / length.as_secs_f64();
    let rate = Figure::new(Group::Store, "durable writes", Unit::PerSecond, rate);
    rate.at(clients, "clients").tell()?;
    let latency = Figure::of_times(Group::Store, WRITE, Unit::Millis, latencies);
    Ok(latency.at(clients, "clients").tell()?)
}
