//! A node that is cut off, then stopped, then replaced by another: how long the Service still leads to it, and who notices.

use anyhow::{Context as _, Result, ensure};
use orch_tests::wait::until;
use proto_api::{MicroTime, Time};
use serde_json::Value;

use super::daemon::Daemon;
use super::traffic::{Answer, Traffic, now};
use super::{Cluster, LONG};

/// How much later than the end of its lease a Service may lead to a lost node at most, in seconds: a loaded machine is slow. It takes one or two.
const ROOM: u64 = 40;

/// When things happened, as seconds of the machine's clock.
#[derive(Debug)]
struct Loss {
    /// The node was cut off.
    cut: u64,
    lease_end: u64,
    /// Its condition Ready became Unknown.
    found: u64,
}

impl Cluster {
    /// While connections are opened from the other nodes and from outside: those that fail are all of the time in which the node's lease holds. Pods leave the
    /// node; that it is stopped and replaced makes no connection fail.
    pub(super) async fn lose_a_node(&self, daemon: &Daemon) -> Result<()> {
        let [others @ .., lost] = self.nodes.as_slice() else { anyhow::bail!("no node") };
        let traffic = Traffic::start(self, daemon, others).await?;
        let cut = now()?;
        self.run_docker(&["network", "disconnect", "orch-dind-e2e", lost])?;
        self.pods_leave(daemon, lost).await?;
        // The proxies know it a moment later, and then what had no answer goes on elsewhere.
        traffic.more().await?;
        let over = now()? + 1;
        traffic.more().await?;
        let loss = self.loss(daemon, lost, cut)?;
        judge(&loss, &traffic.answers()?)?;
        traffic.is_undisturbed(over, "once pods had left the node that was cut off")?;

        self.run_docker(&["stop", lost])?;
        traffic.more().await?;
        // Another machine in the place of the lost one.
        self.docker.remove_node(lost)?;
        let added = self.docker.add_node()?;
        ensure!(added == *lost, "{added}");
        self.pods_reach_each_other(daemon, "after a node was replaced").await?;
        traffic.more().await?;
        traffic.is_undisturbed(over, "while the node was stopped and replaced")?;
        traffic.end().await
    }

    async fn pods_leave(&self, daemon: &Daemon, lost: &str) -> Result<()> {
        until("pods have left the lost node", LONG, async || {
            let places = self.ready_pods(daemon).map_err(|error| format!("{error:#}"))?;
            let mobile = places.iter().filter(|place| place.pod.starts_with("mobile-")).count();
            match places.iter().all(|place| place.node != lost) && mobile == 3 {
                true => Ok(()),
                false => Err(format!("{mobile} pods are Ready")),
            }
        })
        .await
    }

    fn loss(&self, daemon: &Daemon, lost: &str, cut: u64) -> Result<Loss> {
        let get = |words: &[&str]| -> Result<Value> {
            let text = self.orchctl(daemon, &[&["get", "-o", "json"], words].concat())?;
            Ok(serde_json::from_str(&text)?)
        };
        let lease = get(&["lease", "-n", "kube-node-lease", lost])?;
        let renewed: MicroTime = serde_json::from_value(lease["spec"]["renewTime"].clone())?;
        let length = lease["spec"]["leaseDurationSeconds"].as_u64().context("a length")?;
        let node = get(&["node", lost])?;
        let conditions = node["status"]["conditions"].as_array().context("conditions")?;
        let ready = conditions.iter().find(|c| c["type"] == "Ready").context("no Ready")?;
        ensure!(ready["status"] == "Unknown", "{ready}");
        let found: Time = serde_json::from_value(ready["lastTransitionTime"].clone())?;
        let renewed = renewed.to_seconds().unix().context("no time of renewal")?;
        let found = found.unix().context("no time of transition")?;
        Ok(Loss { cut, lease_end: u64::try_from(renewed)? + length, found: u64::try_from(found)? })
    }
}

/// What failed after the node was cut off led to it, and that ended with its lease.
fn judge(loss: &Loss, answers: &[Answer]) -> Result<()> {
    let failed: Vec<&Answer> = answers.iter().filter(|answer| answer.is_failed()).collect();
    let early: Vec<&&Answer> = failed.iter().filter(|answer| answer.at + 4 < loss.cut).collect();
    ensure!(early.is_empty(), "connections failed before the node was cut off: {early:?}");
    // Else nothing was measured: a third of the endpoints are on the node.
    let last = failed.iter().map(|answer| answer.at).max().context("no connection failed")?;
    let after =
        |at: u64| i64::try_from(at).unwrap_or(i64::MAX) - i64::try_from(loss.cut).unwrap_or(0);
    println!(
        "    a node was cut off: its lease ended after {} s, it was found after {} s, the last connection to it was opened after {} s ({} failed)",
        after(loss.lease_end),
        after(loss.found),
        after(last),
        failed.len()
    );
    ensure!(
        last <= loss.lease_end + ROOM,
        "the Service leads to the lost node at {last}: {loss:?}"
    );
    Ok(())
}
