//! Where pods are placed, as far as it needs a whole cluster: a pod of higher priority gets the place of another.

use anyhow::{Context as _, Result, ensure};
use orch_tests::wait::until;
use proto_api::core::v1::{Node, Pod};
use proto_api::scheduling::v1::PriorityClass;
use proto_client::{DeleteParams, WriteParams};

use crate::context::{Context, PATIENCE};
use crate::csi::event;
use crate::pods::{WAIT, pod};

pub async fn a_pod_of_higher_priority_gets_the_place(c: &Context) -> Result<()> {
    let ns = c.namespace("priority").await?;
    let mut class = PriorityClass { value: 1_000, ..PriorityClass::default() };
    class.metadata.name = format!("{ns}-high");
    let classes = c.client.all::<PriorityClass>();
    classes.create(&class, &WriteParams::default()).await?;
    let node = c.client.all::<Node>().get("node-1").await?;
    let cpu = node.status.allocatable.get("cpu").context("no cpu")?.as_milli();
    let on_node = |name: &str, part: i64, more: &str| {
        let label = c.names.label("hostname");
        let spec = format!("spec:\n  nodeSelector: {{{label}: node-1}}\n{more}");
        let asks = format!("    resources: {{requests: {{cpu: {}m}}}}\n", cpu * part / 10);
        pod(&ns, name, WAIT).replace("spec:\n", &spec) + &asks
    };
    c.apply(&on_node("low", 6, "")).await?;
    c.pod_ready(&ns, "low").await?;
    // One that may not preempt waits.
    let mut patient = PriorityClass { value: 1_000, ..PriorityClass::default() };
    patient.metadata.name = format!("{ns}-patient");
    patient.preemption_policy = Some("Never".to_owned());
    classes.create(&patient, &WriteParams::default()).await?;
    let of_class =
        |class: &PriorityClass| format!("  priorityClassName: {}\n", class.metadata.name);
    c.apply(&on_node("patient", 6, &of_class(&patient))).await?;
    event(c, &ns, "FailedScheduling", "not eligible due to preemptionPolicy=Never").await?;
    c.client.within::<Pod>(&ns).delete("patient", &DeleteParams::default()).await?;
    c.apply(&on_node("high", 6, &of_class(&class))).await?;
    let high = c.pod_ready(&ns, "high").await?;
    ensure!(high.spec.node_name == "node-1", "{}", high.spec.node_name);
    let pods = c.client.within::<Pod>(&ns);
    until("the other pod is gone", PATIENCE, async || match pods.find("low").await {
        Ok(None) => Ok(()),
        other => Err(format!("{:?}", other.map(|found| found.is_some()))),
    })
    .await?;
    event(c, &ns, "Preempted", &format!("Preempted by {ns}/high on node node-1")).await?;
    for class in [&class, &patient] {
        classes.delete(&class.metadata.name, &DeleteParams::default()).await?;
    }
    c.discard(&ns).await
}
