//! A set of conntrack entries to delete.

use proxy_netfilter::ct::{AddressFamily, FlowFilter};

/// Conntrack entries to delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StaleFlows {
    /// Their family.
    pub family: AddressFamily,
    /// The filter that matches them.
    pub filter: FlowFilter,
}
