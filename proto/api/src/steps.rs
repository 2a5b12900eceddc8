//! Counts steps of work, so that tests can bound the cost of an operation without a clock.
//!
//! Code calls [`count_steps!`](crate::count_steps), which counts only in the unit tests of the crate that calls it.

use std::cell::Cell;

thread_local! {
    static STEPS: Cell<u64> = const { Cell::new(0) };
}

/// Adds `steps` to the count of this thread: entries visited or moved.
pub fn count(steps: usize) {
    STEPS.with(|all| all.set(all.get().saturating_add(steps as u64)));
}

/// The steps that `work` takes on this thread.
pub fn count_during(work: impl FnOnce()) -> u64 {
    STEPS.with(|all| all.set(0));
    work();
    STEPS.with(Cell::get)
}

/// Counts steps in unit tests of the calling crate; elsewhere it does nothing.
#[macro_export]
macro_rules! count_steps {
    ($steps:expr) => {
        // `cfg!` is evaluated in the calling crate.
        if cfg!(test) {
            $crate::steps::count($steps);
        }
    };
}

#[cfg(test)]
mod tests {
    #[test]
    fn steps_of_one_piece_of_work_are_counted() {
        crate::count_steps!(7);
        let steps = super::count_during(|| {
            crate::count_steps!(1);
            crate::count_steps!(2);
        });
        assert_eq!(steps, 3);
    }
}
