//! Looks at the pod's part of the runtime, when news may have been lost or an answer was.

use std::time::Duration;

use agent_pod::plan::Action;
use agent_runtime::runtime::PodOnNode;

use super::{Outcome, Worker, name};
use crate::clock;
use crate::pods::in_flight::Key;
use crate::pods::ports::Line;

/// A look at the runtime that failed is tried again after this.
const LOOK_RETRY: Duration = Duration::from_secs(1);

impl Worker {
    /// The runtime may have done all the same what it said had failed, and may not have told what came of it: it is looked at, and until
    /// then nothing counts as over.
    pub(super) fn doubt(&mut self, action: &Action, told: bool) {
        if action.begins() && !told {
            self.unsure = true;
            self.look_again = true;
        }
    }

    /// Looks at the runtime as a whole when news may have been lost and nothing is being changed.
    /// Returns when to try again.
    pub(super) fn look(&mut self) -> Option<Duration> {
        if !self.look_again || self.busy.has(&Key::Look) || self.busy.changes_runtime() {
            return None;
        }
        if clock::boot() < self.look_not_before {
            return Some(self.look_not_before);
        }
        self.look_again = false;
        let (runtime, uid, epoch) =
            (self.parts.runtime.clone(), self.pod().metadata.uid.clone(), self.epoch);
        self.spawn(Key::Look, None, async move {
            let looked = runtime.pod(&uid).await;
            Outcome::Looked(epoch, looked.map_err(|e| proto_daemon::exit::chain(&e)))
        });
        None
    }

    pub(super) fn looked(&mut self, epoch: u64, result: Result<PodOnNode, Line>) {
        match result {
            Ok(on_node) if epoch == self.epoch && !self.busy.changes_runtime() => {
                self.seen.sandboxes = on_node.sandboxes;
                if !self.seen.cgroup && !self.seen.sandboxes.is_empty() {
                    self.seen.cgroup = self.parts.place.adopt_cgroup(&self.pod());
                }
                self.seen.containers = self.with_messages(on_node.containers);
                self.unsure = false;
            }
            // Something changed meanwhile: what was seen is old.
            Ok(_) => self.look_again = true,
            Err(line) => {
                tracing::warn!(pod = %name(&self.pod()), error = line, "cannot look at the pod");
                self.look_again = true;
                self.look_not_before = clock::boot().saturating_add(LOOK_RETRY);
            }
        }
    }
}
