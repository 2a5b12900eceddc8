//! Graceful node shutdown: terminates pods in the order of their priority before the machine shuts
//! down.
//!
//! ```text
//!   logind ─ "a shutdown comes" ─┐                     ┌─► node not ready, no pod is admitted
//!   (asked to wait while a lock is held)  ├─► end pods, group ──┤
//!   SIGTERM where there is no service ────┘   after group       └─► the lock is released: the shutdown continues
//! ```
//!
//! With logind, SIGTERM only ends the agent, and containers keep running. Without it (containers as
//! nodes, other init systems) SIGTERM is the only sign of a shutdown, and terminates pods too if a
//! grace period is configured. A logind that was reached once and is lost, as while an upgrade
//! restarts it or the bus, is not absent: an upgrade restarts the agent as well.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use agent_host::dbus::BusError;
use agent_host::logind::{Inhibitor, Logind};
use agent_node::shutdown::{ShutdownGroups, TERMINATED_MESSAGE, TERMINATED_REASON};
use agent_pod::desired::Disruption;
use agent_telemetry::node_events::NodeEvents;
use agent_workers::pod_context::PodContext;
use proto_api::event_report::EventKind;
use proto_daemon::exit::chain;
use proto_daemon::statusz::TaskStatus;

/// Pause between attempts to reach logind where there seems to be none.
const RETRY: Duration = Duration::from_secs(30);
/// Pause between attempts to reach it again, during which a shutdown is not noticed.
const RECONNECT: Duration = Duration::from_secs(2);
/// How long the last statuses may take to reach the API server.
const TELL_WITHIN: Duration = Duration::from_secs(1);
/// The inhibitor lock's holder and reason, shown by `systemd-inhibit`.
const WHO: &str = "orchlet";
const WHY: &str = "pods are terminated before the machine shuts down";

/// Terminates pods before the machine shuts down.
pub struct Shutdown {
    shared: Arc<PodContext>,
    groups: ShutdownGroups,
    events: NodeEvents,
    /// Socket of the system bus.
    bus: PathBuf,
    /// Drop-in that raises logind's `InhibitDelayMaxSec`.
    drop_in: PathBuf,
    presence: LogindPresence,
}

/// Whether this machine has logind, as far as this process has seen.
#[derive(Debug, Default)]
struct LogindPresence {
    was_reached: AtomicBool,
    is_connected: AtomicBool,
    has_failed: AtomicBool,
}

impl LogindPresence {
    fn record_reached(&self) {
        self.was_reached.store(true, Ordering::Relaxed);
        self.is_connected.store(true, Ordering::Relaxed);
    }

    /// Returns whether a connection was lost.
    fn record_failed(&self) -> bool {
        self.has_failed.store(true, Ordering::Relaxed);
        self.is_connected.swap(false, Ordering::Relaxed)
    }

    /// Whether connecting has failed and never succeeded.
    fn is_absent(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed) && !self.was_reached.load(Ordering::Relaxed)
    }
}

impl Shutdown {
    /// Terminates pods by `groups`; `bus` is the system bus socket, `drop_in` a file of logind's
    /// configuration.
    pub fn new(
        shared: Arc<PodContext>,
        groups: ShutdownGroups,
        events: NodeEvents,
        (bus, drop_in): (&Path, &Path),
    ) -> Self {
        let (bus, drop_in) = (bus.to_owned(), drop_in.to_owned());
        Self { shared, groups, events, bus, drop_in, presence: LogindPresence::default() }
    }

    /// Follows logind for as long as the agent runs.
    pub async fn follow(&self, page: TaskStatus) {
        let mut warned = false;
        loop {
            page.started("session service");
            let Err(error) = self.session(&page).await;
            let is_lost = self.presence.record_failed();
            let is_absent = self.presence.is_absent();
            let line = chain(&error);
            if is_lost {
                tracing::warn!(
                    error = line,
                    "the connection to logind was lost; until it is back no shutdown is noticed"
                );
            } else if is_absent && !warned {
                tracing::warn!(
                    error = line,
                    "cannot reach logind; SIGTERM is handled as a shutdown of the machine"
                );
                warned = true;
            }
            page.failed(line);
            tokio::time::sleep(if is_absent { RETRY } else { RECONNECT }).await;
        }
    }

    async fn session(&self, page: &TaskStatus) -> Result<std::convert::Infallible, BusError> {
        let mut logind = Logind::connect(&self.bus).await?;
        self.wait_long_enough(&mut logind).await?;
        loop {
            let lock = logind.inhibit(WHO, WHY).await?;
            self.presence.record_reached();
            page.done("waiting for a shutdown");
            self.turn(&mut logind, lock).await?;
        }
    }

    /// Handles one shutdown until it is cancelled.
    async fn turn(&self, logind: &mut Logind, lock: Inhibitor) -> Result<(), BusError> {
        while !logind.shutdown().await? {}
        self.end_pods().await;
        drop(lock);
        while logind.shutdown().await? {}
        tracing::info!("the machine's shutdown was cancelled; pods are admitted again");
        self.shared.node_pressure.send_modify(|node_pressure| node_pressure.shutting_down = false);
        Ok(())
    }

    /// Raises logind's delay to the time that terminating all pods may take.
    async fn wait_long_enough(&self, logind: &mut Logind) -> Result<(), BusError> {
        let wanted = self.groups.total();
        if logind.delay_max().await? >= wanted {
            return Ok(());
        }
        let secs = wanted.as_secs().saturating_add(u64::from(wanted.subsec_nanos() > 0));
        let written =
            self.drop_in.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| {
                std::fs::write(&self.drop_in, format!("[Login]\nInhibitDelayMaxSec={secs}\n"))
            });
        match written {
            Ok(()) => logind.reload().await?,
            Err(error) => {
                tracing::warn!(path = %self.drop_in.display(), %error, "cannot write the logind drop-in; the shutdown may not wait for all pods")
            }
        }
        let granted = logind.delay_max().await?;
        if granted < wanted {
            tracing::warn!(
                ?granted,
                ?wanted,
                "logind delays the shutdown for less than the configured grace periods"
            );
        }
        Ok(())
    }

    /// Terminates pods on SIGTERM if logind is absent.
    pub async fn on_sigterm(&self) {
        if !self.groups.is_empty() && self.presence.is_absent() {
            self.end_pods().await;
        }
    }

    /// Terminates all pods, one priority group after the other, each within its grace period.
    pub async fn end_pods(&self) {
        tracing::info!("the machine shuts down; pods are terminated by priority");
        let message = "Shutdown manager detected shutdown event";
        self.events.record_event(EventKind::Normal, "Shutdown", message);
        self.shared.node_pressure.send_modify(|node_pressure| node_pressure.shutting_down = true);
        self.shared.metrics.operations.record_shutdown_start();
        let pods = self.shared.pods.current_pods();
        for round in self.groups.plan(pods.iter().map(|known| &*known.pod)) {
            let mut uids = Vec::new();
            for (uid, grace) in round.pods {
                let verdict = Disruption {
                    reason: TERMINATED_REASON.to_owned(),
                    message: TERMINATED_MESSAGE.to_owned(),
                    grace: Some(grace),
                };
                self.shared.pods.end_pod(&uid, verdict);
                uids.push(uid);
            }
            let deadline = agent_clock::after(round.within);
            if !self.shared.pods.wait_until_ended(&uids, deadline).await {
                tracing::warn!(within = ?round.within, "not all pods of a priority group have ended within its grace period; the next group follows");
            }
        }
        self.shared.metrics.operations.record_shutdown_end();
        tokio::time::sleep(TELL_WITHIN).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logind_that_is_lost_is_not_absent() {
        let presence = LogindPresence::default();
        assert!(!presence.is_absent(), "not known yet");
        assert!(!presence.record_failed());
        assert!(presence.is_absent(), "a machine without it");
        presence.record_reached();
        assert!(!presence.is_absent(), "it came later");
        assert!(presence.record_failed(), "lost, as while it is restarted");
        assert!(!presence.is_absent() && !presence.record_failed());
    }
}
