//! io: the commands that change objects and those that stream, one file each: `run(session, args, output)`. What they write is decided by `orchctl-plans`;
//! connections with containers are those of `orchctl-streams`.

mod file_selection;
mod local;
mod pods;
mod poll;
mod raw;
mod record;
mod requests;
mod results;
mod targets;
#[cfg(test)]
mod testing;

pub mod apply;
pub mod auth;
pub mod certificate;
pub mod cp;
pub mod create;
pub mod debug;
pub mod delete;
pub mod diff;
pub mod drain;
pub mod edit;
pub mod exec;
pub mod expose;
pub mod label;
pub mod overrides;
pub mod patch;
pub mod port_forward;
pub mod proxy;
pub mod replace;
pub mod rollout;
pub mod run;
pub mod scale;
pub mod set;
pub mod taint;
