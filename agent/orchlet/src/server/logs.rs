//! `/containerLogs/<namespace>/<pod>/<container>`: a container's log file, filtered as the client
//! requested.

pub mod cri_log;
pub mod follow;
pub mod options;
pub mod rotated_files;

pub use follow::send;
pub use options::LogOptions;
