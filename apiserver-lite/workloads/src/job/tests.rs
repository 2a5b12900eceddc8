//! Single plans of jobs.

use std::collections::BTreeMap;

use apiserver_controllers::api_writes::WrittenObject;
use proto_api::batch::v1::{
    PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyOnPodConditionsPattern,
    PodFailurePolicyRule,
};
use proto_api::core::v1::{Container, ContainerStatus, PodCondition};
use proto_api::meta::v1::LabelSelector;
use proto_api::names::Profile;

use super::*;
use crate::simulation::{World, enlarge, run_in_bursts};

pub(super) fn names() -> &'static Names {
    Names::new(Profile::Kubernetes)
}

/// A job as the server stores it.
pub(super) fn job(parallelism: i32, completions: Option<i32>) -> Job {
    let mut job = Job::default();
    job.metadata.name = "work".into();
    job.metadata.namespace = "ns".into();
    let labels = BTreeMap::from([("controller-uid".to_owned(), "u".to_owned())]);
    job.spec.parallelism = Some(parallelism);
    job.spec.completions = completions;
    job.spec.backoff_limit = Some(6);
    job.spec.selector = Some(LabelSelector { match_labels: labels.clone(), ..Default::default() });
    job.spec.template.metadata.labels = labels;
    job.spec.template.spec.restart_policy = "Never".into();
    job.spec.template.spec.containers = vec![Container { name: "c".into(), ..Default::default() }];
    job
}

pub(super) fn indexed(parallelism: i32, completions: i32) -> Job {
    let mut job = job(parallelism, Some(completions));
    job.spec.completion_mode = Some("Indexed".into());
    job
}

pub(super) fn world(job: Job) -> World {
    let mut world = World::at(1000);
    world.put(job);
    world
}

pub(super) fn planned(seen: &World) -> Plan {
    planned_with(seen, &mut UncountedJobs::default())
}

fn planned_with(seen: &World, uncounted: &mut UncountedJobs) -> Plan {
    match stored(seen) {
        Some(job) => {
            let observed = ObservedJob { job: &job, pods: &seen.pods() };
            plan(names(), &observed, uncounted, seen.time())
        }
        None => Plan::default(),
    }
}

pub(super) fn stored(world: &World) -> Option<Job> {
    world.get(ObjectKind::Job, "work")
}

/// Plans and executes until nothing is planned.
pub(super) fn settle(world: &mut World) {
    for _ in 0..50 {
        let plan = planned(world);
        if plan.writes.is_empty() {
            return;
        }
        world.run(&plan, usize::MAX);
    }
    panic!("the plans do not end: {:?}", planned(world));
}

/// Ends a pod.
pub(super) fn end(world: &mut World, name: &str, phase: &str) {
    world.edit::<Pod>(ObjectKind::Pod, name, |pod| pod.spec.node_name = "node".into());
    world.set_state(name, phase, false);
    world.end_pod(name);
}

fn active(world: &World) -> Vec<Arc<Pod>> {
    let mut pods = world.pods();
    pods.retain(|pod| !has_ended(pod) && !is_terminating(pod));
    pods
}

fn status(world: &World) -> JobStatus {
    stored(world).expect("the job").status
}

fn conditions(world: &World) -> Vec<String> {
    let conditions = status(world).conditions;
    conditions.iter().map(|c| format!("{} {} {}", c.type_, c.status, c.reason)).collect()
}

/// Ends all active pods, and lets the delays of failures pass.
fn end_all(world: &mut World, phase: &str) {
    for pod in active(world) {
        end(world, &pod.metadata.name, phase);
    }
    world.now += 400;
    settle(world);
}

#[test]
fn pods_run_until_enough_have_succeeded() {
    let mut world = world(job(2, Some(3)));
    settle(&mut world);
    let pods = active(&world);
    assert_eq!((pods.len(), status(&world).active), (2, 2));
    assert_eq!(pods[0].metadata.finalizers, ["batch.kubernetes.io/job-tracking"]);
    assert!(pods[0].metadata.name.starts_with("work-"));
    assert_eq!(status(&world).start_time, Some(Time::from_unix(1000)));
    end_all(&mut world, "Succeeded");
    assert_eq!((active(&world).len(), status(&world).succeeded), (1, 2));
    let ended: Vec<_> = world.pods().into_iter().filter(|pod| has_ended(pod)).collect();
    assert!(ended.iter().all(|pod| pod.metadata.finalizers.is_empty()), "they are counted");
    end_all(&mut world, "Succeeded");
    let done = status(&world);
    assert_eq!((done.active, done.succeeded, done.failed), (0, 3, 0));
    assert_eq!(conditions(&world), ["Complete True "]);
    assert_eq!(done.completion_time, Some(Time::from_unix(1800)));
    assert!(world.pods().iter().all(|pod| pod.metadata.finalizers.is_empty()));
}

#[test]
fn without_completions_the_first_success_lets_the_others_end() {
    let mut world = world(job(3, None));
    settle(&mut world);
    let first = active(&world)[0].metadata.name.clone();
    end(&mut world, &first, "Succeeded");
    settle(&mut world);
    assert_eq!(active(&world).len(), 2);
    assert!(conditions(&world).is_empty());
    end_all(&mut world, "Succeeded");
    assert_eq!((status(&world).succeeded, conditions(&world)), (3, vec!["Complete True ".into()]));
}

#[test]
fn failures_are_retried_later_and_later_until_the_limit() {
    let mut limited = job(1, Some(1));
    limited.spec.backoff_limit = Some(2);
    let mut world = world(limited);
    settle(&mut world);
    let mut delays = Vec::new();
    for _ in 0..2 {
        let pod = active(&world)[0].clone();
        let now = world.now;
        world.edit::<Pod>(ObjectKind::Pod, &pod.metadata.name, |pod| {
            let mut status = ContainerStatus::default();
            status.state.terminated.get_or_insert_default().finished_at = Time::from_unix(now);
            pod.status.container_statuses = vec![status];
        });
        end(&mut world, &pod.metadata.name, "Failed");
        settle(&mut world);
        assert!(active(&world).is_empty());
        let delay = planned(&world).requeue_after.expect("a delay").as_secs();
        delays.push(delay);
        world.now += i64::try_from(delay).expect("a time");
        settle(&mut world);
    }
    assert_eq!(delays, [10, 20]);
    end_all(&mut world, "Failed");
    assert_eq!(conditions(&world), ["Failed True BackoffLimitExceeded"]);
    assert_eq!((status(&world).failed, active(&world).len()), (3, 0));
    let message = &status(&world).conditions[0].message;
    assert_eq!(message, "Job has reached the specified backoff limit");
}

#[test]
fn restarts_in_pods_count_too() {
    let mut restarting = job(1, Some(1));
    restarting.spec.template.spec.restart_policy = "OnFailure".into();
    restarting.spec.backoff_limit = Some(2);
    let mut world = world(restarting);
    settle(&mut world);
    let name = active(&world)[0].metadata.name.clone();
    let restarts = |world: &mut World, count: i32| {
        world.edit::<Pod>(ObjectKind::Pod, &name, |pod| {
            let status = ContainerStatus { restart_count: count, ..ContainerStatus::default() };
            pod.status.container_statuses = vec![status];
            pod.status.phase = "Running".into();
        });
        settle(world);
    };
    restarts(&mut world, 1);
    assert!(conditions(&world).is_empty());
    restarts(&mut world, 2);
    assert_eq!(conditions(&world), ["Failed True BackoffLimitExceeded"]);
    assert!(active(&world).is_empty());
}

#[test]
fn a_job_that_cannot_delete_its_pods_counts_all_the_same() {
    let mut first = job(2, Some(4));
    first.spec.backoff_limit = Some(0);
    let mut world = world(first);
    settle(&mut world);
    let name = active(&world)[0].metadata.name.clone();
    end(&mut world, &name, "Failed");
    let is_deletion = |write: &ApiWrite| matches!(write, ApiWrite::Delete { .. });
    for _ in 0..3 {
        world.run_refused(&planned(&world), usize::MAX, is_deletion);
    }
    let stuck = status(&world);
    let noted = stuck.uncounted_terminated_pods.expect("the field");
    assert_eq!((stuck.active, noted.failed.len(), stuck.conditions.len()), (1, 1, 0));
    settle(&mut world);
    assert_eq!(conditions(&world), ["Failed True BackoffLimitExceeded"]);
    assert_eq!(status(&world).failed, 2);
}

#[test]
fn a_complete_job_that_cannot_delete_a_pod_counts_all_the_same() {
    let mut world = world(job(2, Some(2)));
    settle(&mut world);
    world.edit::<Job>(ObjectKind::Job, "work", |job| job.spec.completions = Some(1));
    let name = active(&world)[0].metadata.name.clone();
    end(&mut world, &name, "Succeeded");
    let is_deletion = |write: &ApiWrite| matches!(write, ApiWrite::Delete { .. });
    for _ in 0..3 {
        world.run_refused(&planned(&world), usize::MAX, is_deletion);
    }
    let stuck = status(&world);
    let noted = stuck.uncounted_terminated_pods.expect("the field");
    assert_eq!((stuck.active, noted.succeeded.len(), stuck.conditions.len()), (1, 1, 0));
    settle(&mut world);
    assert_eq!((status(&world).succeeded, conditions(&world)), (1, vec!["Complete True ".into()]));
}

#[test]
fn a_pod_that_keeps_its_finalizer_holds_up_no_other() {
    let mut world = world(job(3, Some(6)));
    settle(&mut world);
    let held = active(&world)[0].metadata.name.clone();
    let refuses = |write: &ApiWrite| match write {
        ApiWrite::Patch { kind: ObjectKind::Pod, key, .. } => key.name == held,
        _ => false,
    };
    let tracked = |world: &World| {
        let pods = world.pods();
        let tracked = pods.iter().filter(|pod| is_tracked(names(), pod) && has_ended(pod));
        tracked.map(|pod| pod.metadata.name.clone()).collect::<Vec<_>>()
    };
    for round in 0..2 {
        for pod in active(&world) {
            end(&mut world, &pod.metadata.name, "Succeeded");
        }
        for _ in 0..3 {
            world.run_refused(&planned(&world), usize::MAX, refuses);
        }
        assert_eq!(tracked(&world), [held.as_str()], "round {round}");
    }
    // The job has ended.
    assert_eq!(conditions(&world), ["Complete True "]);
    settle(&mut world);
    assert_eq!(tracked(&world), [""; 0]);
}

#[test]
fn a_deadline_fails_the_job_and_resuming_restarts_the_deadline() {
    let mut dated = job(1, Some(1));
    dated.spec.active_deadline_seconds = Some(100);
    let mut world = world(dated);
    settle(&mut world);
    assert_eq!(planned(&world).requeue_after, Some(Duration::from_secs(100)));
    world.now += 90;
    let suspend = |world: &mut World, is: bool| {
        world.edit::<Job>(ObjectKind::Job, "work", |job| job.spec.suspend = Some(is));
        settle(world);
    };
    suspend(&mut world, true);
    assert!(active(&world).is_empty());
    assert_eq!(conditions(&world), ["Suspended True JobSuspended"]);
    assert_eq!(status(&world).failed, 0, "it was no failure");
    world.now += 1000;
    settle(&mut world);
    suspend(&mut world, false);
    assert_eq!(conditions(&world), ["Suspended False JobResumed"]);
    assert_eq!(active(&world).len(), 1);
    world.now += 100;
    settle(&mut world);
    assert_eq!(conditions(&world), ["Suspended False JobResumed", "Failed True DeadlineExceeded"]);
    assert!(active(&world).is_empty());
}

#[test]
fn pods_of_indexed_jobs_have_their_completion_index() {
    let mut world = world(indexed(2, 3));
    settle(&mut world);
    let pods = active(&world);
    let index =
        |pod: &Pod| pod.metadata.annotations["batch.kubernetes.io/job-completion-index"].clone();
    let mut seen: Vec<String> = pods.iter().map(|pod| index(pod)).collect();
    seen.sort();
    assert_eq!(seen, ["0", "1"]);
    let pod = pods.iter().find(|pod| index(pod) == "1").expect("the second");
    assert_eq!((&*pod.metadata.generate_name, &*pod.spec.hostname), ("work-1-", "work-1"));
    let variable = &pod.spec.containers[0].env[0];
    let source = variable.value_from.as_ref().and_then(|source| source.field_ref.as_ref());
    assert_eq!(variable.name, "JOB_COMPLETION_INDEX");
    let path = "metadata.annotations['batch.kubernetes.io/job-completion-index']";
    assert_eq!(source.map(|source| &*source.field_path), Some(path));
    end(&mut world, &pod.metadata.name, "Succeeded");
    settle(&mut world);
    assert_eq!((&*status(&world).completed_indexes, status(&world).succeeded), ("1", 1));
    let mut seen: Vec<String> = active(&world).iter().map(|pod| index(pod)).collect();
    seen.sort();
    assert_eq!(seen, ["0", "2"]);
    end_all(&mut world, "Succeeded");
    assert_eq!((&*status(&world).completed_indexes, status(&world).succeeded), ("0-2", 3));
    assert_eq!(conditions(&world), ["Complete True "]);
}

#[test]
fn intervals_are_written_as_in_kubernetes() {
    for (text, len) in [("", 0), ("0", 1), ("0,1", 2), ("0-2", 3), ("0,2-4,7", 5), ("1,3,5,6", 4)] {
        let intervals = Intervals::parse(text, 10);
        assert_eq!((intervals.len(), intervals.to_string()), (len, text.to_owned()));
    }
    assert_eq!(Intervals::parse("0-2000000000,x,3-1", 4).to_string(), "0-3");
}

#[test]
fn a_large_indexed_job_runs_no_index_again() {
    let mut world = world(indexed(3, 150_000));
    world.edit::<Job>(ObjectKind::Job, "work", |job| {
        job.status.start_time = Some(Time::from_unix(900));
        job.status.uncounted_terminated_pods = Some(Default::default());
        job.status.completed_indexes = "0-99999,100001-149997".into();
    });
    settle(&mut world);
    let left = ["100000", "149998", "149999"];
    let created = active(&world).into_iter().map(|pod| pod.metadata.annotations.clone());
    let mut indexes: Vec<String> = created.filter_map(|all| all.into_values().next()).collect();
    indexes.sort();
    assert_eq!((indexes, status(&world).succeeded), (left.map(str::to_owned).to_vec(), 149_997));
    end_all(&mut world, "Succeeded");
    assert_eq!((&*status(&world).completed_indexes, active(&world).len()), ("0-149999", 0));
    assert_eq!(conditions(&world), ["Complete True "]);
}

#[test]
fn pods_of_a_deleted_job_lose_their_finalizer() {
    let mut world = world(job(1, Some(1)));
    settle(&mut world);
    let (pod, job) = (active(&world)[0].clone(), stored(&world).expect("the job"));
    assert_eq!(plan_orphan(names(), &pod, Some(&job)), Plan::default());
    let mut other = job.clone();
    other.metadata.uid = "another".into();
    for job in [None, Some(&other)] {
        let plan = plan_orphan(names(), &pod, job);
        let [ApiWrite::Patch { patch, .. }] = &plan.writes[..] else { panic!("{plan:?}") };
        assert_eq!(patch["metadata"]["finalizers"], json!([]));
    }
    let mut free = (*pod).clone();
    free.metadata.finalizers.clear();
    assert_eq!(plan_orphan(names(), &free, None), Plan::default());
}

#[test]
fn finished_jobs_go_after_their_time() {
    let mut ttl = job(1, Some(0));
    ttl.spec.ttl_seconds_after_finished = Some(60);
    let mut world = world(ttl);
    assert_eq!(plan_expiry(&stored(&world).expect("it"), world.time()), Plan::default());
    settle(&mut world);
    assert_eq!(conditions(&world), ["Complete True "]);
    let plan = plan_expiry(&stored(&world).expect("it"), Time::from_unix(1010));
    assert_eq!((plan.writes.len(), plan.requeue_after), (0, Some(Duration::from_secs(50))));
    let plan = plan_expiry(&stored(&world).expect("it"), Time::from_unix(1060));
    assert!(matches!(&plan.writes[..], [ApiWrite::DeleteTree { propagation: "Foreground", .. }]));
}

#[test]
fn an_orphan_is_adopted_with_the_finalizer_and_a_stray_is_released_without() {
    let mut world = world(job(1, Some(1)));
    settle(&mut world);
    let name = active(&world)[0].metadata.name.clone();
    world.edit::<Pod>(ObjectKind::Pod, &name, |pod| {
        pod.metadata.owner_references.clear();
        pod.metadata.finalizers.clear();
    });
    settle(&mut world);
    let pod = world.get::<Pod>(ObjectKind::Pod, &name).expect("the pod");
    assert_eq!((pod.metadata.owner_references.len(), pod.metadata.finalizers.len()), (1, 1));
    world.edit::<Pod>(ObjectKind::Pod, &name, |pod| pod.metadata.labels.clear());
    settle(&mut world);
    let pod = world.get::<Pod>(ObjectKind::Pod, &name).expect("the pod");
    assert!(pod.metadata.owner_references.is_empty() && pod.metadata.finalizers.is_empty());
    assert_eq!(active(&world).len(), 2, "the stray and its successor");
}

#[test]
fn events_report_the_end_of_a_job() {
    let mut world = world(job(1, Some(0)));
    let plan = planned(&world);
    assert_eq!(
        (&*plan.reports[0].reason, &*plan.reports[0].message),
        ("Completed", "Job completed")
    );
    world.edit::<Job>(ObjectKind::Job, "work", |job| job.spec.completion_mode = Some("x".into()));
    assert_eq!(planned(&world).reports[0].reason, "UnknownCompletionMode");
    let created = |write: &ApiWrite| matches!(write, ApiWrite::Create(WrittenObject::Pod(_)));
    assert!(!planned(&world).writes.iter().any(created));
}

pub(super) fn on_exit_codes(action: &str, operator: &str, values: &[i32]) -> PodFailurePolicyRule {
    let codes = PodFailurePolicyOnExitCodesRequirement {
        container_name: None,
        operator: operator.into(),
        values: values.to_vec(),
    };
    PodFailurePolicyRule {
        action: action.into(),
        on_exit_codes: Some(codes),
        ..PodFailurePolicyRule::default()
    }
}

/// A job of one pod with a policy: code 3 is ignored, a disruption too, codes above fail the job, 5 and 6 of container `c` count.
fn with_policy() -> Job {
    let mut job = job(1, Some(1));
    job.spec.backoff_limit = Some(1);
    let mut counted = on_exit_codes("Count", "In", &[5, 6]);
    counted.on_exit_codes.get_or_insert_default().container_name = Some("c".into());
    let disruption = PodFailurePolicyOnPodConditionsPattern {
        type_: "DisruptionTarget".into(),
        status: "True".into(),
    };
    let disrupted = PodFailurePolicyRule {
        action: "Ignore".into(),
        on_pod_conditions: vec![disruption],
        ..PodFailurePolicyRule::default()
    };
    let rules = vec![
        on_exit_codes("Ignore", "In", &[3]),
        disrupted,
        counted,
        on_exit_codes("FailJob", "NotIn", &[7]),
    ];
    job.spec.pod_failure_policy.get_or_insert_default().rules = rules;
    job
}

/// Lets the active pod fail in `container` with `code`.
fn fail(world: &mut World, container: &str, code: i32, condition: Option<&str>) {
    let name = active(world)[0].metadata.name.clone();
    end(world, &name, "Failed");
    world.edit::<Pod>(ObjectKind::Pod, &name, |pod| {
        let mut status = ContainerStatus { name: container.into(), ..Default::default() };
        status.state.terminated.get_or_insert_default().exit_code = code;
        pod.status.container_statuses = vec![status];
        pod.status.conditions.extend(condition.map(|kind| PodCondition {
            type_: kind.into(),
            status: "True".into(),
            ..PodCondition::default()
        }));
    });
    settle(world);
}

#[test]
fn failures_that_the_policy_ignores_are_not_counted_and_delay_nothing() {
    let mut world = world(with_policy());
    settle(&mut world);
    for _ in 0..3 {
        fail(&mut world, "c", 3, None);
        fail(&mut world, "c", 9, Some("DisruptionTarget"));
        assert_eq!((status(&world).failed, active(&world).len()), (0, 1));
    }
    assert!(
        world
            .pods()
            .iter()
            .filter(|pod| has_ended(pod))
            .all(|pod| pod.metadata.finalizers.is_empty())
    );
    // What a rule counts, and what no rule matches.
    fail(&mut world, "c", 5, None);
    assert_eq!((status(&world).failed, active(&world).len()), (1, 0));
    world.now += 400;
    settle(&mut world);
    fail(&mut world, "c", 7, None);
    assert_eq!(conditions(&world), ["Failed True BackoffLimitExceeded"]);
}

#[test]
fn a_rule_of_the_policy_ends_the_job() {
    for (container, code) in [("c", 4), ("d", 5)] {
        let mut world = world(with_policy());
        settle(&mut world);
        fail(&mut world, container, code, None);
        let told = ["FailureTarget True PodFailurePolicy", "Failed True PodFailurePolicy"];
        assert_eq!(conditions(&world), told);
        let message = &status(&world).conditions[1].message;
        let expected = format!("Container {container} for pod ns/");
        assert!(message.starts_with(&expected), "{message}");
        let expected = format!(" failed with exit code {code} matching FailJob rule at index 3");
        assert!(message.ends_with(&expected), "{message}");
        assert_eq!((status(&world).failed, active(&world).len()), (1, 0));
    }
    // Containers that ended well say nothing.
    let mut world = world(with_policy());
    settle(&mut world);
    fail(&mut world, "c", 0, None);
    assert_eq!((status(&world).failed, conditions(&world).len()), (1, 0));
}

/// A server that drops the field by which pods are counted, and a controller that works with it. Gives the events of the job.
fn run_without_counts(world: &mut World, uncounted: &mut UncountedJobs) -> Vec<String> {
    let mut reasons = Vec::new();
    for _ in 0..50 {
        let plan = planned_with(world, uncounted);
        assert!(plan.requeue_after.is_none_or(|wait| !wait.is_zero()), "it pauses");
        world.run(&plan, usize::MAX);
        world.edit::<Job>(ObjectKind::Job, "work", |job| {
            job.status.uncounted_terminated_pods = None;
        });
        reasons.extend(plan.reports.iter().map(|report| report.reason.to_string()));
        for pod in active(world) {
            end(world, &pod.metadata.name, "Succeeded");
        }
        world.now += 1;
    }
    reasons
}

/// Each pod that has ended would lose its finalizer without being counted, and another be made.
#[test]
fn a_job_whose_pods_the_server_does_not_let_us_count_is_left_alone() {
    for completions in [None, Some(5)] {
        let mut world = world(job(2, completions));
        let mut uncounted = UncountedJobs::default();
        assert_eq!(run_without_counts(&mut world, &mut uncounted), ["UncountablePods"]);
        let pods = world.pods();
        assert_eq!(pods.len(), 2, "those of the first plan");
        assert!(pods.iter().all(|pod| is_tracked(names(), pod)));
        assert_eq!(planned_with(&world, &mut uncounted).writes, []);
        world.now += 600;
        let plan = planned_with(&world, &mut uncounted);
        assert_eq!(plan.writes.len(), 1, "the server may be a newer one by now");
        assert_eq!(plan.reports, []);
        // Its deletion does not wait for counts.
        world.edit::<Job>(ObjectKind::Job, "work", |job| {
            job.metadata.deletion_timestamp = Some(Time::from_unix(1));
        });
        settle(&mut world);
        assert!(world.pods().iter().all(|pod| !is_tracked(names(), pod)));
    }
}

/// A job that has begun under a controller which counted pods without finalizers.
#[test]
fn a_job_of_an_older_controller_goes_on_once_its_status_has_the_field() {
    let mut world = world(job(1, Some(3)));
    world.edit::<Job>(ObjectKind::Job, "work", |job| {
        job.status.start_time = Some(Time::from_unix(900));
        job.status.succeeded = 2;
    });
    let mut uncounted = UncountedJobs::default();
    let first = planned_with(&world, &mut uncounted);
    assert!(matches!(&first.writes[..], [ApiWrite::UpdateStatus(_)]), "nothing but the field");
    // The write fails: the next is a second later.
    let waiting = planned_with(&world, &mut uncounted);
    assert_eq!((waiting.writes.len(), waiting.requeue_after), (0, Some(Duration::from_secs(1))));
    world.now += 1;
    let second = planned_with(&world, &mut uncounted);
    assert_eq!((second.writes.len(), second.reports.len()), (1, 0));
    world.run(&second, usize::MAX);
    for _ in 0..5 {
        let plan = planned_with(&world, &mut uncounted);
        assert!(plan.reports.is_empty());
        world.run(&plan, usize::MAX);
    }
    assert_eq!(active(&world).len(), 1);
    end_all(&mut world, "Succeeded");
    assert_eq!((status(&world).succeeded, conditions(&world).len()), (3, 1));
}

#[test]
fn large_pods_are_created_by_several_plans() {
    for mut large in [job(7, Some(7)), indexed(7, 7)] {
        enlarge(&mut large.spec.template.metadata);
        let mut world = world(large);
        let bursts = run_in_bursts(&mut world, planned);
        assert_eq!(bursts.into_iter().filter(|pods| *pods > 0).collect::<Vec<_>>(), [3, 3, 1]);
        assert_eq!((world.pods().len(), status(&world).active), (7, 7));
    }
}
