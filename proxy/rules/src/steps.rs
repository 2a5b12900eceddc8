//! Counts what work over many ports, endpoints and services costs, for tests: nothing outside of them.

#[cfg(test)]
thread_local! {
    static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts `steps` more: ports, endpoints, elements or slices looked at or moved.
#[cfg(test)]
pub(crate) fn count(steps: usize) {
    STEPS.with(|all| all.set(all.get().saturating_add(steps as u64)));
}

/// Counts nothing.
#[cfg(not(test))]
#[inline]
pub(crate) fn count(_steps: usize) {}

/// The steps that `work` takes on this thread.
#[cfg(test)]
pub(crate) fn count_during(work: impl FnOnce()) -> u64 {
    STEPS.with(|all| all.set(0));
    work();
    STEPS.with(std::cell::Cell::get)
}
