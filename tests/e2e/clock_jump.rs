//! The clock is set a day forward and back, without an effect on anything that runs.
//!
//! This changes the clock of the machine, so it runs only with `ORCH_OWN_MACHINE=1`, as in a virtual machine.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use orch_tests::runner::Skip;
use orch_tests::wait::until;
use proto_api::coordination::v1::Lease;
use proto_api::core::v1::Pod;
use tokio::process::Command;

use crate::context::{Context, PATIENCE, output, shown};
use crate::faults::{containers, mutations};
use crate::hangs::{another_comes_and_goes, node_says};
use crate::pods::{WAIT, pod};

/// Pods that run on.
const LASTING: [&str; 3] = ["runs", "limited", "probed"];
const DAY: i64 = 86_400;
/// Back beyond where it was, but not beyond the beginning of certificates that are an hour old.
const BACK: i64 = -1800;

pub async fn a_clock_that_is_set_starts_and_ends_nothing(c: &Context) -> Result<()> {
    if std::env::var_os("ORCH_OWN_MACHINE").is_none() {
        let why = "sets the machine's clock; ORCH_OWN_MACHINE=1 where that is nobody else's";
        return Err(Skip(why.into()).into());
    }
    let ns = c.namespace("clock").await?;
    set_out(c, &ns).await?;
    let failed = restarts(c, &ns).await?;
    let mut before = containers(c, &ns).await?;
    before.retain(|_, restarts| *restarts == 0);
    ensure!(before.len() == LASTING.len(), "{before:?}");
    let (mut asked, began) = (mutations(c).await?, Instant::now());
    for (round, (name, by)) in
        [("forward", DAY), ("back", -DAY), ("behind", BACK), ("right", -BACK)].iter().enumerate()
    {
        set(*by).await?;
        let at = now();
        // The heartbeat goes on, in the new time.
        until("the lease is renewed", PATIENCE * 2, async || {
            let leases = c.client.within::<Lease>(c.names.node_lease_namespace());
            let lease = leases.get("node-1").await.map_err(|e| e.to_string())?;
            let renewed =
                lease.spec.renew_time.and_then(|t| t.unix_micros()).unwrap_or_default() / 1_000_000;
            if (renewed - at).abs() < 120 { Ok(()) } else { Err(format!("{renewed} at {at}")) }
        })
        .await
        .with_context(|| format!("clock {name}"))?;
        another_comes_and_goes(c, &ns, &format!("beside-{round}")).await?;
        node_says(c, "True", "").await?;
        for pod in LASTING {
            c.pod_ready(&ns, pod).await.with_context(|| format!("clock {name}"))?;
        }
        // Its back-off of a minute goes by the time that has passed.
        let passed = i32::try_from(began.elapsed().as_secs() / 40)?;
        let again = restarts(c, &ns).await? - failed;
        ensure!(again <= passed + 1, "clock {name}: {again} restarts in {:?}", began.elapsed());
        let after = containers(c, &ns).await?;
        ensure!(
            before.iter().filter(|(id, _)| after.contains_key(*id)).count() == before.len(),
            "clock {name}: {after:?} after {before:?}"
        );
    }
    *asked.entry("RunPodSandbox").or_default() += 4;
    let did = mutations(c).await?;
    ensure!(did.get("RunPodSandbox") == asked.get("RunPodSandbox"), "{did:?} for {asked:?}");
    c.discard(&ns).await
}

/// One that runs, one with a deadline, one with a probe, and one that waits for its back-off.
async fn set_out(c: &Context, ns: &str) -> Result<()> {
    c.apply(&pod(ns, "runs", WAIT)).await?;
    let limited = pod(ns, "limited", WAIT);
    c.apply(&limited.replace("spec:\n", "spec:\n  activeDeadlineSeconds: 3600\n")).await?;
    let probe =
        "    livenessProbe: {exec: {command: [/bin/true]}, periodSeconds: 2, timeoutSeconds: 20}\n";
    c.apply(&(pod(ns, "probed", WAIT) + probe)).await?;
    for name in LASTING {
        c.pod_ready(ns, name).await?;
    }
    c.apply(&pod(ns, "fails", "exit 1")).await?;
    // After the third restart it waits 40 seconds, then 80, whatever the clock says.
    let waits = |pod: &Pod| {
        let status = pod.status.container_statuses.first().ok_or_else(|| shown(pod))?;
        let waiting = status.state.waiting.as_ref().is_some_and(|w| w.reason == "CrashLoopBackOff");
        match waiting && status.restart_count >= 3 {
            true => Ok(()),
            false => Err(shown(pod)),
        }
    };
    let api = c.client.within::<Pod>(ns);
    until("the failing pod waits", PATIENCE * 3, async || {
        waits(&api.get("fails").await.map_err(|e| e.to_string())?)
    })
    .await
}

async fn restarts(c: &Context, ns: &str) -> Result<i32> {
    let pod = c.client.within::<Pod>(ns).get("fails").await?;
    Ok(pod.status.container_statuses.first().map_or(0, |status| status.restart_count))
}

fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

async fn set(by: i64) -> Result<()> {
    let mut command = Command::new("date");
    command.arg("--set").arg(format!("@{}", now() + by));
    output(command).await.map(drop)
}
