//! The proxy's tables on this kernel: their layout, and the table of stale flows next to them.

use proxy_kernel::KernelFeatures;
use proxy_netfilter::nft::numbers::TableFlags;
use proxy_rules::layout::{FAMILIES, Layout};
use proxy_rules::stale_flow_log::StaleFlowLog;

use crate::config::Config;

/// NFLOG group for packets of stale flows; high, so that it does not collide with groups that other software uses.
const STALE_FLOW_GROUP: u16 = 0x4f50;

/// The layout of the tables on this kernel.
pub fn layout(features: &KernelFeatures, config: &Config) -> Layout {
    if features.families.len() < FAMILIES.len() || features.owner_flags == TableFlags::NONE {
        tracing::info!(
            ?features,
            "this kernel lacks an address family or table ownership; forwarding without it"
        );
    }
    Layout {
        table: config.table.clone(),
        flags: features.owner_flags,
        families: features.families.clone(),
        settings: config.settings.clone(),
    }
}

/// The stale flow log of tables with this layout.
pub fn stale_flow_log(layout: &Layout) -> StaleFlowLog {
    StaleFlowLog::new(&layout.table, layout.flags, &layout.families, STALE_FLOW_GROUP)
}
