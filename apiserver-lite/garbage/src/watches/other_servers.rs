//! The kinds of other API servers, which APIServices name. One that does not answer holds up nothing: its kinds stay as they were, and their objects wait.

use std::collections::BTreeSet;
use std::time::Duration;

use apiserver_controllers::other_servers::{self, OtherVersion, api_services};
use proto_client::dynamic::{Dynamic, get_json};
use proto_client::{ClientError, ListParams, request};
use proto_daemon::exit::chain;
use serde_json::Value;
use tokio::task::JoinHandle;

use super::{Watches, is_unserved};
use crate::kinds::{CollectedKind, KindSource};

/// Time between two questions for what other servers serve, as in Kubernetes.
const INTERVAL: Duration = Duration::from_secs(30);
/// Longest wait for the answer of one.
const ANSWER_MAX: Duration = Duration::from_millis(if cfg!(test) { 200 } else { 5_000 });

/// Whether two kinds are versions of one.
fn is_same(one: &CollectedKind, other: &CollectedKind) -> bool {
    (&one.group, &one.plural) == (&other.group, &other.plural)
}

/// What is known of the kinds of other servers.
#[derive(Debug, Default)]
struct OtherKinds {
    /// One version of each.
    served: Vec<CollectedKind>,
    /// The groups of which a version has not been read.
    unknown_groups: BTreeSet<String>,
    /// Whether there are other servers.
    has_servers: bool,
}

impl OtherKinds {
    /// Adds the resources of a version that the collector can handle, unless a preferred version has them.
    fn add(&mut self, list: &Value, version: &OtherVersion) {
        let resources = other_servers::resources(list, version).into_iter();
        let handled = resources.filter(|one| one.has(&["delete", "list", "watch"]));
        for other in handled {
            let kind = CollectedKind::new(&other.resource, KindSource::OtherServer);
            if !self.served.iter().any(|known| is_same(known, &kind)) {
                self.served.push(kind);
            }
        }
    }
}

impl Watches {
    /// Starts the watches of kinds that other servers have added, and ends those that a server has no more. Returns when to ask again without a change
    /// of an APIService.
    pub(super) async fn follow_other_servers(&mut self) -> Option<Duration> {
        let found = match self.read_other_servers().await {
            Ok(found) => found,
            Err(error) => {
                let error = chain(&error);
                tracing::debug!(error, "cannot list APIServices; retried");
                return Some(INTERVAL);
            }
        };
        let OtherKinds { mut served, unknown_groups, has_servers } = found;
        // A kind of this server goes before those of others, and one that was there before a version was out of reach goes on.
        let known: Vec<_> = self.kinds.iter().map(|(_, kind)| kind).collect();
        served.retain(|kind| {
            let stays = |known: &CollectedKind| {
                known.source != KindSource::OtherServer || unknown_groups.contains(&known.group)
            };
            !known.iter().any(|known| is_same(known, kind) && stays(known))
        });
        let may_end = |kind: &CollectedKind| {
            kind.source == KindSource::OtherServer && !unknown_groups.contains(&kind.group)
        };
        self.follow_kinds(served, may_end, None);
        self.restart_ended();
        has_servers.then_some(INTERVAL)
    }

    /// Starts the watches again of kinds that were not found although their servers list them.
    fn restart_ended(&mut self) {
        for (id, kind) in self.kinds.iter() {
            let has_ended = self.running.get(&id).is_none_or(JoinHandle::is_finished);
            if kind.source == KindSource::OtherServer && has_ended {
                self.start(id, None);
            }
        }
    }

    async fn read_other_servers(&self) -> Result<OtherKinds, ClientError> {
        let services = Dynamic::new(self.client.clone(), api_services(self.client.names()));
        let mut found = OtherKinds::default();
        let list = match services.list(&ListParams::default()).await {
            Ok(list) => list,
            // A server without APIServices passes nothing on.
            Err(error) if is_unserved(&error) => return Ok(found),
            Err(error) => return Err(error),
        };
        for version in other_servers::versions(&list) {
            found.has_servers = true;
            match self.read_version(&version).await {
                Some(list) => found.add(&list, &version),
                None => drop(found.unknown_groups.insert(version.group)),
            }
        }
        Ok(found)
    }

    /// The resources of a version; none if its server does not say.
    async fn read_version(&self, version: &OtherVersion) -> Option<Value> {
        let path = version.path();
        if !version.available {
            return None;
        }
        let asked = get_json(&self.client, request::get(path.clone()));
        let error = match tokio::time::timeout(ANSWER_MAX, asked).await {
            Ok(Ok(list)) => return Some(list),
            Ok(Err(error)) => chain(&error),
            Err(_) => format!("no answer within {ANSWER_MAX:?}"),
        };
        tracing::debug!(path, error, "cannot read what another API server serves; retried");
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use proto_api::names::{Names, Profile};
    use proto_client::testing::{StubRequest, StubServer, json_response};
    use proto_daemon::drain::Drain;
    use proto_daemon::work_queue::{WorkQueue, WorkQueueMetrics};
    use serde_json::json;

    use super::*;
    use crate::index::Index;
    use crate::kinds::Kinds;
    use crate::watches::KindChangeHandler;

    fn service(group: &str, version: &str, priority: i32, available: bool) -> Value {
        let status = if available { "True" } else { "False" };
        json!({
            "spec": {"group": group, "version": version, "versionPriority": priority,
                "service": {"name": "s", "namespace": "n"}},
            "status": {"conditions": [{"type": "Available", "status": status}]},
        })
    }

    fn resource(name: &str, verbs: &[&str]) -> Value {
        json!({"name": name, "kind": name, "namespaced": true, "verbs": verbs})
    }

    /// What the API server answers, by path. Other paths are refused, those that end with `/strays` with 404 and the others with 503. It never answers a
    /// request below `/apis/slow`.
    type Answers = Arc<Mutex<Vec<(&'static str, Value)>>>;

    /// How often a list of strays was asked for.
    static STRAYS: AtomicUsize = AtomicUsize::new(0);

    async fn start() -> (Watches, Arc<Kinds>, Answers) {
        let answers = Answers::default();
        let of = answers.clone();
        let server = StubServer::start(move |request: &StubRequest| {
            if request.path.starts_with("/apis/slow") {
                return None;
            }
            let is_stray = request.path.ends_with("/strays");
            STRAYS.fetch_add(usize::from(is_stray), Ordering::Relaxed);
            let refused = if is_stray { 404 } else { 503 };
            let answers = of.lock().unwrap();
            let answer = answers.iter().find(|(path, _)| *path == request.path);
            let refusal = json!({"kind": "Status", "code": refused});
            let (code, body) = answer.map_or((refused, &refusal), |(_, body)| (200, body));
            Some(json_response(code, body))
        });
        let client = server.await.client();
        let kinds = Arc::new(Kinds::new(Names::new(Profile::Kubernetes)));
        let queue = WorkQueue::new(WorkQueueMetrics::new().expect("metrics"), |_| "test");
        let index = Arc::new(Mutex::new(Index::default()));
        let taker = Arc::new(KindChangeHandler { index, queue });
        let drain = Drain::default().watch();
        (Watches::new(client, kinds.clone(), taker, drain), kinds, answers)
    }

    fn others(kinds: &Kinds) -> Vec<String> {
        let others = kinds.iter().filter(|(_, kind)| kind.source == KindSource::OtherServer);
        let named =
            others.map(|(_, kind)| format!("{}/{}/{}", kind.group, kind.version, kind.plural));
        let mut named: Vec<String> = named.collect();
        named.sort();
        named
    }

    const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
    const ALL: &[&str] = &["get", "list", "watch", "delete"];

    #[tokio::test]
    async fn kinds_of_other_servers_come_and_go() {
        let (mut watches, kinds, answers) = start().await;
        let set = |all: Vec<(&'static str, Value)>| *answers.lock().unwrap() = all;
        assert_eq!(watches.follow_other_servers().await, Some(INTERVAL), "no list");
        set(vec![(SERVICES, json!({"items": []}))]);
        assert_eq!(watches.follow_other_servers().await, None, "no other server");
        let services = json!({"items": [
            service("e.com", "v1", 20, true), service("e.com", "v1beta1", 10, true),
            service("broken.com", "v1", 10, true), service("down.com", "v1", 10, false)]});
        let v1 =
            json!({"resources": [resource("birds", ALL), resource("reads", &["get", "list"])]});
        let beta = json!({"resources": [resource("birds", ALL), resource("nests", ALL)]});
        let all = vec![
            (SERVICES, services.clone()),
            ("/apis/e.com/v1", v1.clone()),
            ("/apis/e.com/v1beta1", beta.clone()),
            ("/apis/down.com/v1", v1.clone()),
        ];
        set(all.clone());
        assert_eq!(watches.follow_other_servers().await, Some(INTERVAL));
        let both = ["e.com/v1/birds", "e.com/v1beta1/nests"];
        assert_eq!(others(&kinds), both, "each in its preferred version");
        // A version that cannot be read keeps its kinds, and another one does not take its place.
        set(vec![(SERVICES, services.clone()), ("/apis/e.com/v1beta1", beta)]);
        watches.follow_other_servers().await;
        assert_eq!(others(&kinds), both);
        set(Vec::new());
        watches.follow_other_servers().await;
        assert_eq!(others(&kinds), both, "nothing is known");
        // The next one can be read by now, and the first has lost a kind.
        let more = ("/apis/broken.com/v1", json!({"resources": [resource("stones", ALL)]}));
        let less = ("/apis/e.com/v1beta1", json!({"resources": []}));
        set(vec![(SERVICES, services), ("/apis/e.com/v1", v1), less, more]);
        watches.follow_other_servers().await;
        assert_eq!(others(&kinds), ["broken.com/v1/stones", "e.com/v1/birds"]);
        set(vec![(SERVICES, json!({"items": []}))]);
        watches.follow_other_servers().await;
        assert_eq!(others(&kinds), [""; 0]);
    }

    #[tokio::test]
    async fn a_server_that_does_not_answer_holds_up_no_other() {
        let (mut watches, kinds, answers) = start().await;
        *answers.lock().unwrap() = vec![
            (
                SERVICES,
                json!({"items": [service("slow.com", "v1", 10, true), service("e.com", "v1", 10, true)]}),
            ),
            ("/apis/e.com/v1", json!({"resources": [resource("birds", ALL)]})),
        ];
        assert_eq!(watches.follow_other_servers().await, Some(INTERVAL));
        assert_eq!(others(&kinds), ["e.com/v1/birds"]);
    }

    #[tokio::test]
    async fn a_kind_of_this_server_goes_before_those_of_others() {
        let (mut watches, kinds, answers) = start().await;
        let listed = json!({"resources": [resource("deployments", ALL), resource("birds", ALL)]});
        *answers.lock().unwrap() = vec![
            (SERVICES, json!({"items": [service("apps", "v9", 10, true)]})),
            ("/apis/apps/v9", listed),
        ];
        watches.follow_other_servers().await;
        assert_eq!(others(&kinds), ["apps/v9/birds"]);
    }

    #[tokio::test]
    async fn a_kind_that_was_not_found_is_asked_for_again() {
        let (mut watches, _, answers) = start().await;
        *answers.lock().unwrap() = vec![
            (SERVICES, json!({"items": [service("e.com", "v1", 10, true)]})),
            ("/apis/e.com/v1", json!({"resources": [resource("strays", ALL)]})),
        ];
        while STRAYS.load(Ordering::Relaxed) < 2 {
            watches.follow_other_servers().await;
            tokio::task::yield_now().await;
        }
    }
}
