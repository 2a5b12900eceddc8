//! Execution of a plan: its writes one after the other, without those that depend on one that has failed.

use std::time::{Duration, Instant};

use apiserver_controllers::Plan;
use apiserver_controllers::api_writes::Effect;
use proto_client::{Client, ClientError};

use crate::execute_write::execute;

/// How long a plan goes on after its first failure. A webhook that does not answer may take its time with each write, and the key has a worker meanwhile.
const AFTER_FAILURE_MAX: Duration = Duration::from_secs(30);

/// What came of the writes of a plan.
#[derive(Debug, Default)]
pub struct PlanExecution {
    /// What the caches show once they have observed the writes.
    pub effects: Vec<Effect>,
    /// The writes that failed, by their index.
    pub failures: Vec<(usize, ClientError)>,
}

/// Executes the writes in order. `note` gets what came of each that was tried, with its index.
pub async fn execute_plan(
    plan: &Plan,
    client: &Client,
    mut note: impl FnMut(usize, &Result<Option<Effect>, ClientError>) + Send,
) -> PlanExecution {
    let mut execution = PlanExecution::default();
    let mut first_failure: Option<Instant> = None;
    let (mut from, mut last_failed) = (0, None);
    while let Some(nth) = plan.next_write(from, last_failed)
        && let Some(write) = plan.writes.get(nth)
    {
        from = nth.saturating_add(1);
        let done = execute(write, client).await;
        note(nth, &done);
        match done {
            Ok(effect) => execution.effects.extend(effect),
            Err(error) => {
                let since = *first_failure.get_or_insert_with(Instant::now);
                let goes_on = is_refusal(&error) && since.elapsed() < AFTER_FAILURE_MAX;
                execution.failures.push((nth, error));
                last_failed = Some(nth);
                if !goes_on {
                    break;
                }
            }
        }
    }
    execution
}

/// Whether the server has answered this one write, and may answer another one otherwise: it is neither overloaded nor away.
fn is_refusal(error: &ClientError) -> bool {
    // 500 is the answer where a webhook cannot be called, and other objects may not concern it.
    error.code().is_some_and(|code| code == 500 || !error.is_retryable())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use apiserver_controllers::api_writes::{ApiWrite, ObjectKind, WrittenObject};
    use apiserver_workloads::stateful_set::{self, ObservedStatefulSet, StatefulSetFeatures};
    use proto_api::apps::v1::{ControllerRevision, StatefulSet};
    use proto_api::core::v1::{PersistentVolumeClaim, Pod, PodCondition};
    use proto_api::names::{Names, Profile};
    use proto_api::{ObjectKey, Time};
    use proto_client::testing::{StubServer, json_response};
    use serde_json::json;

    use super::*;

    fn plan_of_deletions(kind: ObjectKind) -> Plan {
        let delete = |name: &str| ApiWrite::Delete {
            kind,
            key: ObjectKey::new("ns", name),
            uid: name.to_owned(),
            grace_secs: None,
        };
        Plan::from_writes(["a", "b", "c"].map(delete))
    }

    /// Of deletions at a server that answers those of `a` and `b` with a code: the names in the order of the requests, and of the effects and failures.
    async fn run(kind: ObjectKind, code: u16) -> (String, String, Vec<(usize, Option<u16>)>) {
        let asked = Arc::new(Mutex::new(String::new()));
        let kept = asked.clone();
        let server = StubServer::start(move |request| {
            let name = request.path.rsplit('/').next().unwrap_or_default();
            kept.lock().unwrap().push_str(name);
            let code = if name == "c" { 200 } else { code };
            let status =
                json!({"kind": "Status", "apiVersion": "v1", "reason": "Denied", "code": code});
            Some(json_response(code, &status))
        });
        let client = server.await.client();
        let mut noted = 0;
        let execution = execute_plan(&plan_of_deletions(kind), &client, |_, _| noted += 1).await;
        let PlanExecution { effects, failures } = execution;
        assert_eq!(noted, effects.len() + failures.len());
        let failures = failures.iter().map(|(nth, error)| (*nth, error.code())).collect();
        let asked = asked.lock().unwrap().clone();
        (asked, effects.into_iter().map(|effect| effect.key.name).collect(), failures)
    }

    #[tokio::test]
    async fn pods_do_not_wait_for_the_deletion_of_another() {
        for code in [403, 500] {
            let (asked, deleted, failures) = run(ObjectKind::Pod, code).await;
            assert_eq!((&*asked, &*deleted), ("abc", "c"));
            assert_eq!(failures, [(0, Some(code)), (1, Some(code))], "the first one is first");
        }
        let (asked, deleted, failures) = run(ObjectKind::ReplicaSet, 403).await;
        assert_eq!((&*asked, &*deleted, failures), ("a", "", vec![(0, Some(403))]));
    }

    #[tokio::test]
    async fn a_server_that_is_overloaded_is_not_asked_again() {
        let (asked, deleted, failures) = run(ObjectKind::Pod, 503).await;
        assert_eq!((asked.chars().last(), &*deleted), (Some('a'), ""));
        assert_eq!(failures, [(0, Some(503))]);
    }

    /// A set with a claim for each pod, of which two are ready, and its next plan.
    fn plan_of_set(replicas: i32) -> Plan {
        let mut set = StatefulSet::default();
        set.metadata.name = "web".into();
        set.metadata.namespace = "ns".into();
        set.metadata.uid = "u".into();
        set.metadata.generation = 2;
        set.spec.update_strategy.type_ = "RollingUpdate".into();
        set.spec.template.metadata.labels.insert("app".into(), "web".into());
        let labels = set.spec.template.metadata.labels.clone();
        set.spec.selector.get_or_insert_default().match_labels = labels;
        let mut claim = PersistentVolumeClaim::default();
        claim.metadata.name = "data".into();
        set.spec.volume_claim_templates.push(claim);
        let mut revisions: Vec<Arc<ControllerRevision>> = Vec::new();
        let mut pods: Vec<Arc<Pod>> = Vec::new();
        loop {
            set.spec.replicas = Some(if pods.len() < 2 { 2 } else { replicas });
            let seen = ObservedStatefulSet {
                set: &set,
                pods: &pods,
                revisions: &revisions,
                claim: &|_| None,
                features: StatefulSetFeatures::from_gates(|_| false),
            };
            let names = Names::new(Profile::Kubernetes);
            let plan = stateful_set::plan(names, &seen, Time::from_unix(1000));
            let created = plan.writes.iter().find_map(|write| match write {
                ApiWrite::Create(WrittenObject::ControllerRevision(revision)) => {
                    revisions.push(Arc::new(*revision.clone()));
                    None
                }
                ApiWrite::Create(WrittenObject::Pod(pod)) => Some(*pod.clone()),
                _ => None,
            });
            if pods.len() == 2 {
                return plan;
            }
            let Some(mut pod) = created else { continue };
            pod.metadata.uid.clone_from(&pod.metadata.name);
            pod.status.phase = "Running".into();
            let (type_, status) = ("Ready".into(), "True".into());
            pod.status.conditions = vec![PodCondition { type_, status, ..Default::default() }];
            pods.push(Arc::new(pod));
        }
    }

    /// A quota of two pods, say, or a webhook.
    #[tokio::test]
    async fn the_status_of_a_set_says_what_there_is_although_a_step_is_refused() {
        for (replicas, refused, asked) in [
            (3, "POST pods", "POST persistentvolumeclaims;POST pods;PUT status;"),
            (3, "POST persistentvolumeclaims", "POST persistentvolumeclaims;PUT status;"),
            (1, "DELETE web-1", "DELETE web-1;PUT status;"),
        ] {
            let requests = Arc::new(Mutex::new(String::new()));
            let kept = requests.clone();
            let server = StubServer::start(move |request| {
                let last = request.path.rsplit('/').next().unwrap_or_default();
                let request = format!("{} {last}", request.method);
                kept.lock().unwrap().push_str(&format!("{request};"));
                let code = if request == refused { 403 } else { 200 };
                Some(json_response(code, &json!({"metadata": {"name": "any"}, "code": code})))
            });
            let client = server.await.client();
            let plan = plan_of_set(replicas);
            let failures = execute_plan(&plan, &client, |_, _| {}).await.failures;
            let [(nth, error)] = &failures[..] else { panic!("{failures:?}") };
            assert_eq!(error.code(), Some(403));
            let status = plan.status_of_failure(*nth, error.server_message(), Time::default());
            let status = status.expect("a status");
            execute(&status, &client).await.expect("the server takes it");
            assert_eq!(*requests.lock().unwrap(), asked);
            let ApiWrite::UpdateStatus(WrittenObject::StatefulSet(set)) = status else {
                panic!("{status:?}")
            };
            let status = &set.status;
            assert_eq!(
                (status.replicas, status.ready_replicas, status.updated_replicas),
                (2, 2, 2)
            );
            assert_eq!((status.observed_generation, status.available_replicas), (2, 2));
            assert_eq!(status.current_revision, status.update_revision);
        }
    }
}
