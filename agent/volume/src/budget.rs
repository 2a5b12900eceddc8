//! Budget for the files of a pod's projected volumes. The API bounds their sources, but each object, label and annotation may
//! appear under any number of paths, and most of the files are in memory.

use std::cell::Cell;

/// Most bytes of all projected files of one pod: about twenty objects of maximum size.
pub const POD_BYTES_MAX: usize = 32 << 20;

/// Most files that they are made from; one that replaces another counts too.
pub const POD_FILES_MAX: usize = 50_000;

/// What the projected files of a pod may still take.
#[derive(Debug)]
pub struct Budget {
    bytes: Cell<usize>,
    files: Cell<usize>,
}

/// The budget is exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OverBudget {
    #[error("the files of the pod's projected volumes are more than {POD_BYTES_MAX} bytes")]
    Bytes,
    #[error("the pod's projected volumes have more than {POD_FILES_MAX} files")]
    Files,
}

impl Default for Budget {
    fn default() -> Self {
        Self { bytes: Cell::new(POD_BYTES_MAX), files: Cell::new(POD_FILES_MAX) }
    }
}

impl Budget {
    /// Reserves one file of this many bytes. Called before they are copied.
    ///
    /// # Errors
    /// The remaining budget is smaller.
    pub fn reserve(&self, bytes: usize) -> Result<(), OverBudget> {
        proto_api::count_steps!(1);
        self.files.set(self.files.get().checked_sub(1).ok_or(OverBudget::Files)?);
        self.bytes.set(self.bytes.get().checked_sub(bytes).ok_or(OverBudget::Bytes)?);
        Ok(())
    }
}
