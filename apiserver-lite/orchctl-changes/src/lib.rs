//! io: the commands that change objects and those that stream, one file each: `run(session, args, output)`. What they write is decided by `orchctl-plans`;
//! connections with containers are those of `orchctl-streams`.

mod requests;
mod results;
mod targets;
mod waits;

pub mod apply;
pub mod create;
pub mod delete;
pub mod label;
pub mod patch;
pub mod replace;
pub mod rollout;
pub mod scale;
