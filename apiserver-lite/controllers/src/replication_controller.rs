//! The replicationcontroller controller: like replica sets, with a map as the selector.

use proto_api::core::v1::{
    Pod, PodTemplateSpec, ReplicationController, ReplicationControllerStatus,
};
use proto_api::names::Names;
use proto_api::selectors::Selector;
use proto_api::{Kind, Time};

use crate::Plan;
use crate::api_writes::ApiWrite;
use crate::replica_failure::{FailureStatus, REPLICA_FAILURE};
use crate::replicas::{self, CountsByNode, DesiredPods};

/// Plans pods and status. `pods` are those of the controller, and all that it selects.
pub fn plan<P: AsRef<Pod>>(
    names: &Names,
    controller: &ReplicationController,
    pods: &[P],
    now: Time,
) -> Plan {
    let none = PodTemplateSpec::default();
    let template = controller.spec.template.as_ref().unwrap_or(&none);
    let asked = DesiredPods {
        metadata: &controller.metadata,
        about: proto_api::event_report::reference(controller, names),
        api_version: names
            .api_version(ReplicationController::GROUP, ReplicationController::VERSION),
        kind: ReplicationController::KIND,
        selector: Selector::from_map(&controller.spec.selector),
        replicas: controller.spec.replicas,
        min_ready_seconds: controller.spec.min_ready_seconds,
        template,
        beside: &CountsByNode::new(),
    };
    // An empty selector would select every pod.
    if controller.spec.selector.is_empty() {
        return Plan::default();
    }
    let (mut plan, counts) = replicas::plan(names, &asked, pods, now);
    let status = ReplicationControllerStatus {
        replicas: counts.replicas,
        fully_labeled_replicas: counts.labelled,
        ready_replicas: counts.ready,
        available_replicas: counts.available,
        observed_generation: controller.metadata.generation,
        conditions: controller.status.conditions.clone(),
    };
    let mut next = ReplicationController { status, ..controller.clone() };
    if !plan.events.is_empty() {
        plan.on_failure = Some(FailureStatus::new(next.clone(), next.status != controller.status));
    }
    next.status.conditions.retain(|condition| condition.type_ != REPLICA_FAILURE);
    if next.status != controller.status {
        plan.writes.push(ApiWrite::UpdateStatus(next.into()));
    }
    plan
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proto_api::names::Profile;

    use super::*;
    use crate::api_writes::WrittenObject;

    #[test]
    fn pods_are_made_and_belong_to_it() {
        let names = Names::new(Profile::Kubernetes);
        let mut controller = ReplicationController::default();
        controller.metadata.name = "web".into();
        controller.metadata.uid = "u".into();
        controller.spec.replicas = Some(2);
        let none: [Arc<Pod>; 0] = [];
        let planned = |controller: &_| plan(names, controller, &none, Time::from_unix(1)).writes;
        assert!(planned(&controller).is_empty(), "it selects nothing");
        controller.spec.selector.insert("app".into(), "web".into());
        let mut template = PodTemplateSpec::default();
        controller.spec.template = Some(template.clone());
        assert!(
            !planned(&controller).iter().any(|write| matches!(write, ApiWrite::Create(_))),
            "it would not take them for its own"
        );
        template.metadata.labels.insert("app".into(), "web".into());
        controller.spec.template = Some(template);
        let writes = planned(&controller);
        let [ApiWrite::Create(WrittenObject::Pod(pod)), ApiWrite::Create(_)] = &writes[..] else {
            unreachable!("two pods: {writes:?}")
        };
        let owner = &pod.metadata.owner_references[0];
        assert_eq!((&*owner.api_version, &*owner.kind), ("v1", "ReplicationController"));
        assert_eq!(pod.metadata.generate_name, "web-");
    }
}
