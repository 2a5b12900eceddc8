//! io: the commands of the command-line client, one file each: `run(session, args, output)`.

pub mod api_resources;
pub mod api_versions;
pub mod get;
pub mod print_flags;
pub mod time;
pub mod version;
