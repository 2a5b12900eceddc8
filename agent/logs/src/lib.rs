//! io: logs of containers: read in their CRI format, followed, rotated, and linked where log
//! collectors look for them. Whatever a pod may write is opened beneath a descriptor, links not
//! followed ([`log_files`]).

pub mod cri_log;
pub mod follow;
mod last_lines;
pub mod log_files;
pub mod log_links;
pub mod options;
pub mod rotated_files;
pub mod rotation;
mod search_budget;
pub mod system_logs;

pub use follow::send;
pub use options::LogOptions;
