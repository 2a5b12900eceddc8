use proto_api::apps::v1::{ReplicaSet, StatefulSet};
use proto_api::core::v1::{Pod, PodTemplateSpec, ReplicationController};
use proto_api::names::{Names, Profile};

use super::*;
use crate::{Plan, replica_set, replication_controller};

const NOW: i64 = 100;
const REFUSED: &str = "pods \"web-\" is forbidden: exceeded quota";

fn template() -> PodTemplateSpec {
    let mut template = PodTemplateSpec::default();
    template.metadata.labels.insert("app".into(), "web".into());
    template
}

fn controller() -> ReplicationController {
    let mut controller = ReplicationController::default();
    controller.metadata.uid = "u".into();
    controller.spec.replicas = Some(2);
    controller.spec.selector.insert("app".into(), "web".into());
    controller.spec.template = Some(template());
    controller
}

fn set() -> ReplicaSet {
    let mut set = ReplicaSet::default();
    set.metadata.uid = "u".into();
    set.spec.replicas = Some(2);
    let selector = set.spec.selector.get_or_insert_default();
    selector.match_labels.insert("app".into(), "web".into());
    set.spec.template = template();
    set
}

fn owned(names: &Names, controller: &ReplicationController) -> Pod {
    let plan =
        replication_controller::plan::<Box<Pod>>(names, controller, &[], Time::from_unix(NOW));
    let Some(ApiWrite::Create(WrittenObject::Pod(pod))) = plan.writes.into_iter().next() else {
        unreachable!("the first write makes a pod")
    };
    *pod
}

fn after(plan: Plan, operation: &ReplicaOperation) -> Option<ApiWrite> {
    plan.on_failure?.write(Some(operation), REFUSED.into(), Time::from_unix(NOW))
}

#[test]
fn a_pod_creation_failure_is_reported_once_with_the_current_counts() {
    let names = Names::new(Profile::Kubernetes);
    let mut controller = controller();
    let pods = [Box::new(owned(names, &controller))];
    let plan = |controller: &_| {
        replication_controller::plan(names, controller, &pods, Time::from_unix(NOW))
    };
    let written = after(plan(&controller), &ReplicaOperation::Create).unwrap();
    let ApiWrite::UpdateStatus(WrittenObject::ReplicationController(next)) = written else {
        unreachable!("{written:?}")
    };
    assert_eq!(next.status.replicas, 1);
    let [condition] = &next.status.conditions[..] else { unreachable!("{next:?}") };
    let ReplicationControllerCondition { type_, status, reason, message, .. } = condition;
    assert_eq!(
        [&**type_, status, reason, message],
        ["ReplicaFailure", "True", "FailedCreate", REFUSED]
    );
    assert_eq!(condition.last_transition_time, Time::from_unix(NOW));
    controller.status = next.status;
    assert_eq!(after(plan(&controller), &ReplicaOperation::Create), None, "it is said already");
    controller.status.replicas = 7;
    assert!(after(plan(&controller), &ReplicaOperation::Create).is_some(), "other counts");
}

#[test]
fn the_condition_goes_when_all_pods_could_be_made() {
    let names = Names::new(Profile::Kubernetes);
    let now = Time::from_unix(NOW);
    let plan = |set: &_| replica_set::plan::<Box<Pod>>(names, set, &[], now);
    let mut set = set();
    let written = after(plan(&set), &ReplicaOperation::Delete).unwrap();
    let ApiWrite::UpdateStatus(WrittenObject::ReplicaSet(next)) = written else {
        unreachable!("{written:?}")
    };
    assert_eq!(next.status.conditions[0].reason, "FailedDelete");
    set.status = next.status;
    let writes = plan(&set).writes;
    let Some(ApiWrite::UpdateStatus(WrittenObject::ReplicaSet(next))) = writes.last() else {
        unreachable!("{writes:?}")
    };
    assert!(next.status.conditions.is_empty());
    assert_eq!(writes.len(), 3, "after two pods");
}

#[test]
fn only_pods_count() {
    let names = Names::new(Profile::Kubernetes);
    let plan = replica_set::plan::<Box<Pod>>(names, &set(), &[], Time::from_unix(NOW));
    assert_eq!(plan.on_failure.clone().unwrap().write(None, REFUSED.into(), Time::default()), None);
    assert_eq!(after(plan, &ReplicaOperation::Scale { from: None, to: 1 }), None);
}

#[test]
fn every_failed_step_of_a_stateful_set_leads_to_its_counts() {
    let mut counted = StatefulSet::default();
    counted.status.ready_replicas = 2;
    let (done, failed) = (("", String::new()), ("", String::new()));
    let other = ReplicaOperation::Other { done, failed };
    for operation in [Some(&other), None] {
        let write = |is_changed| {
            FailureStatus::new(counted.clone(), is_changed).write(
                operation,
                REFUSED.into(),
                Time::default(),
            )
        };
        assert_eq!(write(true), Some(ApiWrite::UpdateStatus(counted.clone().into())));
        assert_eq!(write(false), None, "the stored status has them");
    }
}
