//! Who is told of each call to the runtime: its name, how long it took and whether it worked. One observer a process, set once before
//! the first call, as a program has one set of metrics.

use std::sync::OnceLock;
use std::time::Duration;

/// A call that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Name of the call, as `RunPodSandbox`.
    pub call: &'static str,
    /// How long it took.
    pub took: Duration,
    /// Whether the runtime did it.
    pub worked: bool,
}

type Observer = Box<dyn Fn(Ended) + Send + Sync>;

static OBSERVER: OnceLock<Observer> = OnceLock::new();

/// Sets the observer. A second one is not taken.
pub fn set(observer: impl Fn(Ended) + Send + Sync + 'static) {
    let _ = OBSERVER.set(Box::new(observer));
}

pub(crate) fn tell(ended: Ended) {
    if let Some(observer) = OBSERVER.get() {
        observer(ended);
    }
}
