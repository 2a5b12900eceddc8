//! Limits what one Service may cost a node.
//!
//! Ports, addresses, endpoints and source ranges multiply: an object of some hundred kilobytes could need a billion
//! elements. So each Service has a budget, and so have those of a namespace together; what exceeds it is not forwarded,
//! without effect on other Services or namespaces.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

/// Endpoints examined and elements created for one Service, over all its ports and families: 32,768 endpoints with
/// session affinity at the cluster IP, a node port and a load balancer's address of both families fit.
pub const WORK_MAX: usize = 1 << 19;
/// The same for all Services of a namespace: 100,000 Services with 15 endpoints each fit. A quarter of a gigabyte in the kernel.
pub const NAMESPACE_WORK_MAX: usize = 1 << 22;

/// The rest of a Service's budget.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    max: usize,
    left: usize,
    overdrawn: bool,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(WORK_MAX)
    }
}

impl Budget {
    /// A budget of `max`.
    pub fn new(max: usize) -> Self {
        Self { max, left: max, overdrawn: false }
    }

    /// What was charged.
    pub fn used(&self) -> usize {
        self.max.saturating_sub(self.left)
    }

    /// Charges `work`; `None`, now and for every later call, if it exceeds the rest.
    pub fn charge(&mut self, work: usize) -> Option<()> {
        match self.left.checked_sub(work) {
            Some(left) if !self.overdrawn => {
                self.left = left;
                Some(())
            }
            _ => {
                self.overdrawn = true;
                None
            }
        }
    }

    /// Whether a charge was refused.
    pub fn is_overdrawn(&self) -> bool {
        self.overdrawn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charge_beyond_the_budget_ends_it() {
        let mut budget = Budget::default();
        assert_eq!(budget.charge(WORK_MAX - 1), Some(()));
        assert_eq!((budget.charge(2), budget.charge(1), budget.charge(0)), (None, None, None));
        assert!(budget.is_overdrawn() && !Budget::default().is_overdrawn());
        assert_eq!((Budget::default().charge(usize::MAX), budget.used()), (None, WORK_MAX - 1));
    }
}
