//! Reports of runtime calls: name, duration and result. A process has one observer, set before the first call.

use std::sync::OnceLock;
use std::time::Duration;

/// Name, duration and result of a completed runtime call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallReport {
    /// Name of the call, such as `RunPodSandbox`.
    pub call: &'static str,
    /// Duration.
    pub took: Duration,
    /// Whether it succeeded.
    pub worked: bool,
}

type Observer = Box<dyn Fn(CallReport) + Send + Sync>;

static OBSERVER: OnceLock<Observer> = OnceLock::new();

/// Sets the observer; later calls have no effect.
pub fn set_observer(observer: impl Fn(CallReport) + Send + Sync + 'static) {
    let _ = OBSERVER.set(Box::new(observer));
}

pub(crate) fn report_call(ended: CallReport) {
    if let Some(observer) = OBSERVER.get() {
        observer(ended);
    }
}
