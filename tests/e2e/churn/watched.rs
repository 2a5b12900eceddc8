//! What a watch shows of the pods while the agent is killed: nothing may flip.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use proto_api::core::v1::Pod;
use proto_client::ListParams;
use proto_client::watch::{Observed, watch};
use tokio::task::JoinHandle;

use crate::context::Context;

/// Follows the pods of a namespace.
pub struct Watched {
    task: JoinHandle<()>,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    last: BTreeMap<String, Pod>,
    changes: usize,
    wrong: Vec<String>,
}

impl Watched {
    /// Starts to follow; what is shown first is what later states are compared with.
    pub fn follow(c: &Context, namespace: &str) -> Result<Watched> {
        let seen = Arc::<Mutex<Seen>>::default();
        let (api, writer) = (c.client.separate()?.within::<Pod>(namespace), seen.clone());
        let task = tokio::spawn(async move {
            watch(&api, &ListParams::default(), |observed| {
                let mut seen = writer.lock().unwrap_or_else(PoisonError::into_inner);
                match observed {
                    Observed::Listed(pod) | Observed::Applied(pod) => seen.take(pod),
                    Observed::Deleted(pod) => drop(seen.last.remove(&pod.metadata.uid)),
                    Observed::ListBegan
                    | Observed::ListEnded
                    | Observed::WatchBegan
                    | Observed::WatchEnded => {}
                }
            })
            .await;
        });
        Ok(Watched { task, seen })
    }

    /// How many states were seen, and what was wrong with them.
    pub fn end(self) -> (usize, Vec<String>) {
        self.task.abort();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        (seen.changes, std::mem::take(&mut seen.wrong))
    }
}

impl Seen {
    fn take(&mut self, pod: Pod) {
        self.changes += 1;
        if let Some(before) = self.last.get(&pod.metadata.uid) {
            self.wrong.extend(compare(before, &pod));
        }
        self.last.insert(pod.metadata.uid.clone(), pod);
    }
}

fn rank(phase: &str) -> u8 {
    match phase {
        "Succeeded" | "Failed" => 2,
        "Running" => 1,
        _ => 0,
    }
}

/// What must not happen between two states of a pod.
fn compare(before: &Pod, after: &Pod) -> Vec<String> {
    let name = &after.metadata.name;
    let mut wrong = Vec::new();
    if rank(&before.status.phase) > rank(&after.status.phase) {
        wrong.push(format!("{name}: {} after {}", after.status.phase, before.status.phase));
    }
    let crashes = name.contains("crashes");
    let ends = after.metadata.deletion_timestamp.is_some() || rank(&after.status.phase) == 2;
    let ready = cluster::demo::is_pod_ready;
    if ready(before) && !ready(after) && !ends && !crashes {
        wrong.push(format!("{name} was ready and is not: {:?}", after.status.conditions));
    }
    for was in &before.status.container_statuses {
        let Some(is) = after.status.container_statuses.iter().find(|is| is.name == was.name) else {
            wrong.push(format!("{name}: {} is not shown any more", was.name));
            continue;
        };
        if is.restart_count < was.restart_count {
            wrong
                .push(format!("{name}: {} restarts after {}", is.restart_count, was.restart_count));
        }
        if is.restart_count > 0 && !crashes {
            wrong.push(format!("{name}: {} was restarted: {is:?}", is.name));
        }
    }
    wrong
}
