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
    for (nth, write) in plan.writes.iter().enumerate() {
        let last_failed = execution.failures.last().map(|(failed, _)| *failed);
        if last_failed.is_some_and(|failed| !plan.is_made_after(failed, nth)) {
            continue;
        }
        let done = execute(write, client).await;
        note(nth, &done);
        match done {
            Ok(effect) => execution.effects.extend(effect),
            Err(error) => {
                let since = *first_failure.get_or_insert_with(Instant::now);
                let goes_on = is_refusal(&error) && since.elapsed() < AFTER_FAILURE_MAX;
                execution.failures.push((nth, error));
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

    use apiserver_controllers::api_writes::{ApiWrite, ObjectKind};
    use proto_api::ObjectKey;
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
}
