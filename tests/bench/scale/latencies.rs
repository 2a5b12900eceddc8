//! What a client waits that asks the API server for a few things again and again, on a thread of its own, while the cluster does what it does.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use proto_api::core::v1::ConfigMap;
use proto_client::{Client, WriteParams, request};
use serde_json::json;

use super::NODES;
use super::control_plane::ControlPlane;
use crate::figures::{Figure, Group, Unit};

/// Between two rounds of requests.
const PAUSE: Duration = Duration::from_millis(50);

/// What is asked, with the times of the answers.
type Samples = BTreeMap<&'static str, Vec<Duration>>;

/// The client. It ends with it.
pub struct Latencies {
    samples: Arc<Mutex<Samples>>,
    failures: Arc<AtomicUsize>,
    stops: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Latencies {
    /// Begins to ask, over a connection of its own.
    pub fn start(plane: &ControlPlane) -> Result<Self> {
        let (samples, failures) = (Arc::<Mutex<Samples>>::default(), Arc::<AtomicUsize>::default());
        let stops = Arc::<AtomicBool>::default();
        let client = plane.client.separate()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (kept, failed, stop) = (samples.clone(), failures.clone(), stops.clone());
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                for round in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    ask(&client, round, &kept, &failed).await;
                    tokio::time::sleep(PAUSE).await;
                }
            });
        });
        Ok(Self { samples, failures, stops, thread: Some(thread) })
    }

    /// What was measured since the last time.
    pub fn take(&self) -> Samples {
        std::mem::take(&mut *self.samples.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A figure of each thing asked for since the last time, and of the requests that failed.
    pub fn tell(&self, when: &str, nodes: usize) -> Result<()> {
        for (what, samples) in self.take() {
            let figure = Figure::of_times(
                Group::Scale,
                format!("API, {when}: {what}"),
                Unit::Millis,
                samples,
            );
            figure.at(nodes, NODES).tell()?;
        }
        let failures = self.failures.swap(0, Ordering::Relaxed) as f64;
        let what = format!("API, {when}: requests that failed");
        Ok(Figure::new(Group::Scale, what, Unit::Count, failures).at(nodes, NODES).tell()?)
    }
}

impl Drop for Latencies {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// One round: a Node, a page of Pods, and a ConfigMap written.
async fn ask(client: &Client, round: usize, kept: &Mutex<Samples>, failed: &AtomicUsize) {
    let take = |what: &'static str, began: Instant, is_ok: bool| {
        if is_ok {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.entry(what).or_default().push(began.elapsed());
        } else {
            failed.fetch_add(1, Ordering::Relaxed);
        }
    };
    for (what, path) in [
        ("get one object", "/api/v1/namespaces/default"),
        ("list of at most 500 Pods", "/api/v1/pods?limit=500"),
    ] {
        let began = Instant::now();
        take(what, began, client.call(request::get(path.into())).await.is_ok());
    }
    let maps = client.within::<ConfigMap>("default");
    let map: Result<ConfigMap, _> = serde_json::from_value(json!({
        "metadata": {"name": format!("asked-{round}")},
        "data": {"payload": "x".repeat(400)},
    }));
    let Ok(map) = map else { return };
    let began = Instant::now();
    take("durable create", began, maps.create(&map, &WriteParams::default()).await.is_ok());
}
