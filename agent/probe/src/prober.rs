//! Settings of a probe.

use std::time::Duration;

use crate::lookup::{NameLookups, PodKey};

/// Most bytes of a response body that are kept.
pub const ANSWER_BYTES: usize = 10 << 10;

/// Settings of one probe run.
#[derive(Clone, Copy, Debug)]
pub struct Prober<'a> {
    /// Address of the pod, used if the handler has no host.
    pub ip: &'a str,
    /// Value of the header `User-Agent`.
    pub user_agent: &'a str,
    /// Time after which the probe fails.
    pub timeout: Duration,
    /// Looks up the name of the handler's host, if it has one.
    pub names: &'a NameLookups,
    /// The pod whose probe or hook it is.
    pub pod: PodKey<'a>,
}
