//! Reports OOM kills of the whole machine as Node events. Containers that exceed their own limit
//! show it in their pods.

use std::path::Path;

use agent_host::kernel_log::{KERNEL_LOG, KernelLog};
use agent_node::oom::parse_victim;
use agent_telemetry::node_events::NodeEvents;
use proto_api::event_report::EventKind;
use proto_daemon::statusz::TaskStatus;

/// Follows the kernel log until it cannot be read.
pub async fn run(events: NodeEvents, page: TaskStatus) {
    let mut log = match KernelLog::open(Path::new(KERNEL_LOG)) {
        Ok(log) => log,
        Err(error) => {
            tracing::info!(%error, "cannot open {KERNEL_LOG}; OOM kills of the machine are not reported");
            return page.failed(format!("{KERNEL_LOG}: {error}"));
        }
    };
    page.done("following");
    loop {
        match log.next().await {
            Ok(record) => {
                if let Some(found) = parse_victim(&record) {
                    let (process, pid) = (found.process, found.pid);
                    let message =
                        format!("System OOM encountered, victim process: {process}, pid: {pid}");
                    events.record_event(EventKind::Warning, "SystemOOM", message);
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot read {KERNEL_LOG} any more; OOM kills of the machine are no longer reported");
                return page.failed(format!("{KERNEL_LOG}: {error}"));
            }
        }
    }
}
