//! Budget for the files of a pod's projected volumes. The API bounds their sources, but each object, label and annotation may
//! appear under any number of paths, and most of the files are in memory.

use std::cell::Cell;

/// Most bytes of all projected files of one pod: about twenty objects of maximum size.
pub const POD_BYTES_MAX: usize = 32 << 20;

/// The bytes that the projected files of a pod may still take.
#[derive(Debug)]
pub struct Budget(Cell<usize>);

/// The budget is exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the files of the pod's projected volumes are more than {POD_BYTES_MAX} bytes")]
pub struct OverBudget;

impl Default for Budget {
    fn default() -> Self {
        Self(Cell::new(POD_BYTES_MAX))
    }
}

impl Budget {
    /// Reserves the bytes of one file. Called before they are copied.
    ///
    /// # Errors
    /// The remaining budget is smaller.
    pub fn reserve(&self, bytes: usize) -> Result<(), OverBudget> {
        self.0.set(self.0.get().checked_sub(bytes).ok_or(OverBudget)?);
        Ok(())
    }
}
