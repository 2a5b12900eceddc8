//! The machine shuts down: pods end in the order of their importance before it does.
//!
//! ```text
//!   session service ─ "a shutdown comes" ─┐                     ┌─► node not ready, no pod is admitted
//!   (asked to wait while a lock is held)  ├─► end pods, group ──┤
//!   SIGTERM where there is no service ────┘   after group       └─► the lock is let go: the shutdown goes on
//! ```
//!
//! With a session service SIGTERM only ends the agent, and pods run on. Where there is none (containers as nodes, other init systems)
//! SIGTERM is all the word there is, and it ends pods too, if a grace period is configured.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use agent_host::dbus::BusError;
use agent_host::logind::{Inhibitor, Logind};
use agent_node::shutdown::{Groups, TERMINATED_MESSAGE, TERMINATED_REASON};
use agent_pod::desired::Verdict;
use proto_client::events::EventKind;
use proto_daemon::exit::chain;
use proto_daemon::statusz::TaskStatus;

use crate::node_events::NodeEvents;
use crate::pods::pod_context::Parts;

/// Between two tries to reach the session service.
const RETRY: Duration = Duration::from_secs(30);
/// How long the last statuses may take to reach the API server after the last pod has ended.
const TELL_WITHIN: Duration = Duration::from_secs(1);
/// What the service is told of us.
const WHO: &str = "orchlet";
const WHY: &str = "pods are ended before the machine shuts down";

/// Ends pods before the machine does.
pub struct Shutdown {
    parts: Arc<Parts>,
    groups: Groups,
    events: NodeEvents,
    /// Socket of the machine's bus.
    bus: PathBuf,
    /// Where the service is told to wait long enough.
    drop_in: PathBuf,
    /// Whether it is known that no service tells us of shutdowns.
    alone: AtomicBool,
}

impl Shutdown {
    /// For pods in `groups`; `bus` is the machine's bus, `drop_in` a file of the session service's configuration.
    pub fn new(
        parts: Arc<Parts>,
        groups: Groups,
        events: NodeEvents,
        (bus, drop_in): (&Path, &Path),
    ) -> Self {
        let (bus, drop_in) = (bus.to_owned(), drop_in.to_owned());
        Self { parts, groups, events, bus, drop_in, alone: AtomicBool::new(false) }
    }

    /// Follows the session service for as long as the agent runs.
    pub async fn follow(&self, page: TaskStatus) {
        let mut warned = false;
        loop {
            page.started("session service");
            let Err(error) = self.session(&page).await;
            self.alone.store(true, Ordering::Relaxed);
            let line = chain(&error);
            if !warned {
                tracing::warn!(error = line, "no session service: SIGTERM is taken for a shutdown");
                warned = true;
            }
            page.failed(line);
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn session(&self, page: &TaskStatus) -> Result<std::convert::Infallible, BusError> {
        let mut logind = Logind::connect(&self.bus).await?;
        self.wait_long_enough(&mut logind).await?;
        loop {
            let lock = logind.inhibit(WHO, WHY).await?;
            self.alone.store(false, Ordering::Relaxed);
            page.done("waiting for the word");
            self.turn(&mut logind, lock).await?;
        }
    }

    /// One shutdown, until it was called off.
    async fn turn(&self, logind: &mut Logind, lock: Inhibitor) -> Result<(), BusError> {
        while !logind.shutdown().await? {}
        self.end_pods().await;
        drop(lock);
        while logind.shutdown().await? {}
        tracing::info!("the shutdown was called off");
        self.parts.strain.send_modify(|strain| strain.shutting_down = false);
        Ok(())
    }

    /// Sees to it that the service waits for as long as pods may take.
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
            Err(error) => tracing::warn!(path = %self.drop_in.display(), %error, "not written"),
        }
        let granted = logind.delay_max().await?;
        if granted < wanted {
            tracing::warn!(?granted, ?wanted, "the session service waits less than pods may take");
        }
        Ok(())
    }

    /// Ends pods on SIGTERM where nobody else tells of a shutdown.
    pub async fn on_sigterm(&self) {
        if !self.groups.is_empty() && self.alone.load(Ordering::Relaxed) {
            self.end_pods().await;
        }
    }

    /// Ends all pods, group after group, each group for as long as it may take.
    pub async fn end_pods(&self) {
        tracing::info!("the machine shuts down: pods are ended");
        let message = "Shutdown manager detected shutdown event";
        self.events.tell(EventKind::Normal, "Shutdown", message);
        self.parts.strain.send_modify(|strain| strain.shutting_down = true);
        self.parts.metrics.acts.shutdown_began();
        let pods = self.parts.current_pods();
        for round in self.groups.plan(pods.iter().map(|known| &*known.pod)) {
            let mut uids = Vec::new();
            for (uid, grace) in round.pods {
                let verdict = Verdict {
                    reason: TERMINATED_REASON.to_owned(),
                    message: TERMINATED_MESSAGE.to_owned(),
                    grace: Some(grace),
                };
                self.parts.end(&uid, verdict);
                uids.push(uid);
            }
            let deadline = crate::clock::after(round.within);
            if !self.parts.ended(&uids, deadline).await {
                tracing::warn!(within = ?round.within, "not all pods of a group have ended in time");
            }
        }
        self.parts.metrics.acts.shutdown_ended();
        tokio::time::sleep(TELL_WITHIN).await;
    }
}
