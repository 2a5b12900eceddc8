//! What one service may cost a node.
//!
//! Ports, addresses, endpoints and blocks of senders multiply: an object of some hundred kilobytes could ask for a
//! billion elements. So each service has a budget; what does not fit is not forwarded, and nobody else notices.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

/// Endpoints that are looked at and elements that are made for one service, in all its ports and families together:
/// 32,768 endpoints with affinity at the cluster address, a node port and a balancer's address of two families fit.
pub const WORK_MAX: usize = 1 << 19;

/// What is left for a service.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    left: usize,
    overdrawn: bool,
}

impl Default for Budget {
    fn default() -> Self {
        Self { left: WORK_MAX, overdrawn: false }
    }
}

impl Budget {
    /// Takes so much; `None`, now and from now on, when there is not so much left.
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

    /// Whether something did not fit.
    pub fn is_overdrawn(&self) -> bool {
        self.overdrawn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_ends_it() {
        let mut budget = Budget::default();
        assert_eq!(budget.charge(WORK_MAX - 1), Some(()));
        assert_eq!((budget.charge(2), budget.charge(1), budget.charge(0)), (None, None, None));
        assert!(budget.is_overdrawn() && !Budget::default().is_overdrawn());
        assert_eq!(Budget::default().charge(usize::MAX), None);
    }
}
