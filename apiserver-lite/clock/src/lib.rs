//! io: the wall clock of the control plane's programs.

mod wall_clock;

pub use wall_clock::now;
