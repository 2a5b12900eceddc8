//! Relists the pod's sandboxes and containers after events or the result of a call may have been
//! lost.

use std::time::Duration;

use agent_clock as clock;
use agent_interfaces::ErrorText;
use agent_pod::plan::Action;
use agent_runtime::runtime::PodOnNode;

use super::{OperationResult, Worker, name};
use crate::in_flight::OperationKey;

/// Pause before a failed relist is repeated.
const LOOK_RETRY: Duration = Duration::from_secs(1);

impl Worker {
    /// A call that failed without showing the object's state may have taken effect nevertheless:
    /// the pod is relisted, and until then nothing counts as ended.
    pub(super) fn mark_uncertain(&mut self, action: &Action, told: bool) {
        if action.begins() && !told {
            self.is_uncertain = true;
            self.relist_again = true;
        }
    }

    /// Relists the pod when events may have been lost and no operation changes the runtime. Returns
    /// when to try again.
    pub(super) fn start_relist(&mut self) -> Option<Duration> {
        if !self.relist_again
            || self.in_flight.has(&OperationKey::Relist)
            || self.in_flight.changes_runtime()
        {
            return None;
        }
        if clock::boot() < self.relist_not_before {
            return Some(self.relist_not_before);
        }
        self.relist_again = false;
        let (runtime, uid, epoch) =
            (self.shared.runtime.clone(), self.pod().metadata.uid.clone(), self.epoch);
        self.spawn(OperationKey::Relist, None, async move {
            let looked = runtime.pod(&uid).await;
            OperationResult::Relisted(epoch, looked.map_err(|e| proto_daemon::exit::chain(&e)))
        });
        None
    }

    pub(super) fn apply_relist(&mut self, epoch: u64, result: Result<PodOnNode, ErrorText>) {
        match result {
            Ok(on_node) if epoch == self.epoch && !self.in_flight.changes_runtime() => {
                self.seen.sandboxes = on_node.sandboxes;
                if !self.seen.cgroup && !self.seen.sandboxes.is_empty() {
                    self.seen.cgroup = self.shared.cgroups.adopt_cgroup(&self.pod());
                }
                self.seen.containers = self.with_termination_messages(on_node.containers);
                self.is_uncertain = false;
            }
            // Something changed meanwhile, so the result is outdated.
            Ok(_) => self.relist_again = true,
            Err(line) => {
                tracing::warn!(pod = %name(&self.pod()), error = line, "cannot list the pod's containers; retried in a second");
                self.relist_again = true;
                self.relist_not_before = clock::boot().saturating_add(LOOK_RETRY);
            }
        }
    }
}
