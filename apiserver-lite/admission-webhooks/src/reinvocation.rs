//! Which mutating webhooks are called a second time: those with the policy `IfNeeded`, when the object was changed after their call. There is no third time.

use std::collections::BTreeSet;

use crate::configuration::ReinvocationPolicy;

/// What is known of one request. Webhooks are numbered in the order of their calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reinvocation {
    /// Called since the last change, with the policy `IfNeeded`.
    called: BTreeSet<usize>,
    /// To be called again.
    due: BTreeSet<usize>,
}

impl Reinvocation {
    /// Records a call, and whether it changed the object.
    pub fn called(&mut self, webhook: usize, policy: ReinvocationPolicy, changed: bool) {
        if changed {
            self.changed();
        }
        if policy == ReinvocationPolicy::IfNeeded {
            self.called.insert(webhook);
        }
    }

    /// Records that something else than a webhook changed the object.
    pub fn changed(&mut self) {
        self.due.append(&mut self.called);
    }

    /// Whether a webhook is called in the second round.
    #[must_use]
    pub fn is_due(&self, webhook: usize) -> bool {
        self.due.contains(&webhook)
    }
}

#[cfg(test)]
mod tests {
    use super::ReinvocationPolicy::{IfNeeded, Never};
    use super::*;

    #[test]
    fn a_webhook_is_due_when_the_object_changed_after_its_call() {
        let mut state = Reinvocation::default();
        let due = |state: &Reinvocation| (0..4).filter(|at| state.is_due(*at)).collect::<Vec<_>>();
        state.called(0, IfNeeded, true);
        assert_eq!(due(&state), [0; 0], "its own change is none");
        state.called(1, Never, true);
        state.called(2, IfNeeded, false);
        assert_eq!(due(&state), [0]);
        // The second round: one that was called last is due when an earlier one changes the object again.
        state.called(0, IfNeeded, true);
        assert_eq!(due(&state), [0, 2]);
    }

    #[test]
    fn changes_of_built_in_steps_count() {
        let mut state = Reinvocation::default();
        state.called(0, IfNeeded, true);
        state.called(1, Never, false);
        state.changed();
        assert!(state.is_due(0) && !state.is_due(1));
    }
}
