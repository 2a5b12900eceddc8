//! Budget for the work on the environments of a pod. What overwrites an earlier variable, or is skipped, takes time, but no bytes of an environment.

/// Most keys and variables that the environments of a pod are made from; an object that several containers read counts for each.
pub const STEPS_MAX: usize = 50_000;
/// Bytes of a name or value that count as a further one.
const STEP_LEN: usize = 1024;

/// The steps that are left to the environments of a pod.
#[derive(Debug)]
pub struct StepBudget(usize);

impl Default for StepBudget {
    fn default() -> Self {
        Self(STEPS_MAX)
    }
}

impl StepBudget {
    /// Spends the steps of one key or variable with this many bytes; `None` if fewer are left.
    pub(super) fn spend(&mut self, bytes: usize) -> Option<()> {
        proto_api::count_steps!(1);
        let steps = bytes.checked_div(STEP_LEN)?.saturating_add(1);
        self.0 = self.0.checked_sub(steps)?;
        Some(())
    }
}
