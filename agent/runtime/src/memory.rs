//! A runtime in memory, for hollow nodes: every image can be pulled, every container that does not exit at once runs until it is stopped, and pods have
//! addresses once the node has a range of them. Nothing runs, so that the cost of everything else shows. The tests' runtime is made of the same objects.

mod calls;
pub(crate) mod objects;
pub(crate) mod stream;

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use crate::events::RuntimeEvent;
use crate::runtime::{RuntimeError, RuntimeRefusal};
use objects::Objects;
pub use objects::PodRange;

/// Name of this runtime, as the Node shows it.
pub const NAME: &str = "memory";
/// Buffered events: more than the containers of a full node.
const EVENTS_LEN: usize = 1024;

/// A runtime for hollow nodes and tests: it keeps sandboxes and containers as values and starts no process.
#[derive(Debug)]
pub struct MemoryRuntime {
    objects: Mutex<Objects>,
    happened: mpsc::Sender<RuntimeEvent>,
}

impl MemoryRuntime {
    /// An empty runtime and the exits of its containers. `now` is the wall clock in nanoseconds since 1970. An exit that finds the queue full is lost, as a
    /// real runtime loses events, and found by the next list.
    #[must_use]
    pub fn new(now: fn() -> i64) -> (Self, mpsc::Receiver<RuntimeEvent>) {
        let (happened, receive) = mpsc::channel(EVENTS_LEN);
        let objects = Objects { clock: Some(now), ..Objects::default() };
        (Self { objects: Mutex::new(objects), happened }, receive)
    }

    /// Gives the pods from now on addresses of this range. Without one the network is not ready.
    pub fn set_pod_range(&self, range: PodRange) {
        self.lock().pod_range = Some(range);
    }

    fn lock(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the process of a running container.
    fn end(&self, id: &str, code: i32) {
        let mut objects = self.lock();
        let pod_uid = objects.end_container(id, code);
        let container = objects.containers.get(id).map(|c| c.seen.clone());
        drop(objects);
        if let (Some(pod_uid), Some(container)) = (pod_uid, container) {
            let _ = self.happened.try_send(RuntimeEvent::Container { pod_uid, container });
        }
    }
}

/// A refusal of a call, with its object.
fn refusal(call: &'static str, object: &str) -> impl FnOnce(RuntimeRefusal) -> RuntimeError {
    let object = object.to_owned();
    move |source| RuntimeError::Refused { call, object, source }
}
