//! How much the files of a pod's projected volumes may come to. What they are made from is bounded by the API, but each object, label
//! and annotation may be shown under any number of paths, and most of the files lie in memory.

use std::cell::Cell;

/// Most bytes of all files of one pod that are made from objects of the API: some twenty objects of the largest size.
pub const POD_BYTES_MAX: usize = 32 << 20;

/// What is left of it.
#[derive(Debug)]
pub struct Budget(Cell<usize>);

/// There is not as much left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the files of the pod's projected volumes are more than {POD_BYTES_MAX} bytes")]
pub struct OverBudget;

impl Default for Budget {
    fn default() -> Self {
        Self(Cell::new(POD_BYTES_MAX))
    }
}

impl Budget {
    /// Takes the bytes of one file. Called before they are copied.
    ///
    /// # Errors
    /// There are not as many left.
    pub fn take(&self, bytes: usize) -> Result<(), OverBudget> {
        self.0.set(self.0.get().checked_sub(bytes).ok_or(OverBudget)?);
        Ok(())
    }
}
