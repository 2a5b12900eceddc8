//! `/containerLogs/<namespace>/<pod>/<container>`: a container's log file as the runtime writes it,
//! cut to what a client asked for.

pub mod cri_log;
pub mod follow;
pub mod options;
pub mod rotated_files;

pub use follow::send;
pub use options::LogOptions;
