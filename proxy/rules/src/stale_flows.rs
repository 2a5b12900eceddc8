//! A set of conntrack entries to delete.

use proxy_netfilter::ct::{AddressFamily, FlowFilter, STATUS_SEEN_REPLY};

/// Conntrack entries to delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StaleFlows {
    /// Their family.
    pub family: AddressFamily,
    /// The filter that matches them.
    pub filter: FlowFilter,
}

impl StaleFlows {
    /// Which of them are meant.
    pub fn answer(&self) -> FlowAnswer {
        let mask = self.filter.status.map_or(0, |(_, mask)| mask);
        if mask & STATUS_SEEN_REPLY == 0 { FlowAnswer::Any } else { FlowAnswer::None }
    }
}

/// Whether packets came back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlowAnswer {
    /// None came.
    #[default]
    None,
    /// Some came, or none.
    Any,
}

impl FlowAnswer {
    /// The status bits that are compared with zero.
    pub(crate) fn mask(self) -> u32 {
        match self {
            Self::None => STATUS_SEEN_REPLY,
            Self::Any => 0,
        }
    }
}
