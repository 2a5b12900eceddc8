//! io: the commands of the command-line client that read, one file each: `run(session, args, output)`.

pub mod api_resources;
pub mod api_versions;
pub mod auth;
pub mod cluster_info;
pub mod completion;
pub mod config;
pub mod describe;
pub mod events;
pub mod explain;
pub mod get;
pub mod logs;
pub mod plugins;
pub mod print_flags;
pub mod time;
pub mod timeline;
pub mod top;
pub mod trace;
pub mod tree;
pub mod ui;
pub mod version;
pub mod wait;
pub mod why;
