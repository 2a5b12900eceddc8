//! Tells users of the node when the kernel has killed something because the whole machine was out of memory. Containers at their own
//! bound show it in their pods.

use std::path::Path;

use agent_host::kernel_log::{KERNEL_LOG, KernelLog};
use agent_node::oom::victim;
use proto_client::events::EventKind;
use proto_daemon::statusz::TaskStatus;

use crate::node_events::NodeEvents;

/// Follows the kernel's log for as long as it can be read.
pub async fn run(events: NodeEvents, page: TaskStatus) {
    let mut log = match KernelLog::open(Path::new(KERNEL_LOG)) {
        Ok(log) => log,
        Err(error) => {
            tracing::info!(%error, "{KERNEL_LOG} is not read: the machine's want of memory is not told");
            return page.failed(format!("{KERNEL_LOG}: {error}"));
        }
    };
    page.done("following");
    loop {
        match log.next().await {
            Ok(record) => {
                if let Some(found) = victim(&record) {
                    let (process, pid) = (found.process, found.pid);
                    let message =
                        format!("System OOM encountered, victim process: {process}, pid: {pid}");
                    events.tell(EventKind::Warning, "SystemOOM", message);
                }
            }
            Err(error) => {
                tracing::warn!(%error, "{KERNEL_LOG} cannot be read any more");
                return page.failed(format!("{KERNEL_LOG}: {error}"));
            }
        }
    }
}
