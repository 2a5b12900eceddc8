//! The tokencleaner and bootstrapsigner controllers: expired bootstrap tokens are deleted, and the others sign the ConfigMap `cluster-info`, by
//! which joining nodes verify the cluster. [`tokens`] computes the signatures.

pub mod tokens;

use std::time::Duration;

use apiserver_clock::now;
use proto_api::core::v1::{ConfigMap, Secret};
use proto_client::{Client, ClientError, DeleteParams, ListParams, Reflector, Store, WriteParams};
use proto_daemon::drain::DrainWatch;
use proto_daemon::statusz::TaskStatus;
use proto_daemon::work_queue::{WorkQueue, WorkQueueMetrics, run_workers};

use tokens::Token;

/// The signed ConfigMap, in the public namespace.
pub const CLUSTER_INFO: &str = "cluster-info";

/// The controllers that run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenControllers {
    /// `tokencleaner`.
    pub cleaner: bool,
    /// `bootstrapsigner`.
    pub signer: bool,
}

/// The controllers of bootstrap tokens.
pub struct Bootstrap {
    /// Reads into the caches.
    pub reader: Client,
    /// Deletes tokens.
    pub cleaner: Client,
    /// Writes signatures.
    pub signer: Client,
    /// The controllers that run.
    pub enabled: TokenControllers,
    /// Where the keys of its queue are counted.
    pub metrics: WorkQueueMetrics,
}

/// The caches of tokens and of the ConfigMap.
struct Caches {
    secrets: Store<Secret>,
    infos: Store<ConfigMap>,
}

impl Bootstrap {
    /// Runs until drained.
    pub async fn run(self, page: TaskStatus, drain: DrainWatch) {
        if !self.enabled.cleaner && !self.enabled.signer {
            return;
        }
        let names = self.reader.names();
        let field_selector = format!("type={}", names.sub_label("bootstrap", "token"));
        let tokens = ListParams { field_selector, ..ListParams::default() };
        let secrets = self.reader.within::<Secret>(names.system_namespace());
        let secrets = Reflector::whole(secrets, tokens);
        let infos = self.reader.within::<ConfigMap>(names.public_namespace());
        let infos = Reflector::whole(infos, ListParams::name(CLUSTER_INFO));
        let caches = Caches { secrets: secrets.store(), infos: infos.store() };
        // A single key: the signatures depend on all tokens, which are few.
        let queue = WorkQueue::<()>::new(self.metrics.clone(), |()| "bootstrapsigner");
        let (one, other) = (queue.clone(), queue.clone());
        let watching = [
            tokio::spawn(secrets.run(drain.clone(), move |_| one.add(()))),
            tokio::spawn(infos.run(drain.clone(), move |_| other.add(()))),
        ];
        let this = std::sync::Arc::new((self, caches, page));
        let work = move |()| {
            let this = this.clone();
            async move {
                let (bootstrap, caches, page) = &*this;
                page.started("bootstrap tokens");
                let done = bootstrap.reconcile(caches).await;
                match &done {
                    Ok(_) => page.done(""),
                    Err(error) => page.failed(proto_daemon::exit::chain(error)),
                }
                done
            }
        };
        run_workers(queue, 1, drain, work).await;
        watching.iter().for_each(tokio::task::JoinHandle::abort);
    }

    async fn reconcile(&self, caches: &Caches) -> Result<Option<Duration>, ClientError> {
        caches.secrets.synced().await;
        let secrets = caches.secrets.list();
        let tokens: Vec<Token> =
            secrets.iter().map(|(_, secret)| Token::from_secret(secret)).collect();
        let mut next: Option<Duration> = None;
        for token in &tokens {
            match token.time_to_expiry(now()) {
                Some(left) if left.is_zero() && self.enabled.cleaner => self.remove(token).await?,
                Some(left) if !left.is_zero() => {
                    next = Some(next.map_or(left, |earlier| earlier.min(left)));
                }
                _ => {}
            }
        }
        if self.enabled.signer {
            caches.infos.synced().await;
            for (key, info) in caches.infos.list() {
                let changes = tokens::signatures(&info, &tokens, now());
                if changes.is_empty() {
                    continue;
                }
                let mut signed = ConfigMap::clone(&info);
                for (name, signature) in changes {
                    match signature {
                        Some(signature) => drop(signed.data.insert(name, signature)),
                        None => drop(signed.data.remove(&name)),
                    }
                }
                let api = self.signer.within::<ConfigMap>(&key.namespace);
                ignore_stale(api.update(&signed, &WriteParams::default()).await)?;
            }
        }
        Ok(next)
    }

    async fn remove(&self, token: &Token) -> Result<(), ClientError> {
        let name = &token.secret_name;
        tracing::info!(secret = name, uid = token.uid, "deleting an expired bootstrap token");
        let params = DeleteParams { uid: Some(token.uid.clone()), ..DeleteParams::default() };
        let api = self.cleaner.within::<Secret>(self.cleaner.names().system_namespace());
        ignore_stale(api.delete(name, &params).await)
    }
}

/// Ignores a conflict and a deleted object: the watch queues the new state.
fn ignore_stale<T>(written: Result<T, ClientError>) -> Result<(), ClientError> {
    match written {
        Err(error) if error.is_conflict() || error.is_not_found() => Ok(()),
        other => other.map(|_| ()),
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use proto_api::names::{Names, Profile};
    use proto_api::object::{from_protobuf_envelope, to_json_value};
    use proto_client::testing::{StubServer, json_response};
    use proto_daemon::drain::Drain;
    use proto_daemon::statusz::StatusBoard;
    use serde_json::{Value, json};
    use tokio::sync::mpsc;

    use super::*;

    /// A token whose Secret has the uid `uid`; its texts are base64.
    fn token(id: &str, uid: &str, expiration: &str) -> Value {
        let data = json!({
            "token-id": STANDARD.encode(id),
            "token-secret": STANDARD.encode("0123456789abcdef"),
            "usage-bootstrap-signing": STANDARD.encode("true"),
            "expiration": STANDARD.encode(expiration),
        });
        let name = format!("bootstrap-token-{id}");
        let metadata = json!({"name": name, "namespace": "kube-system", "uid": uid});
        json!({"metadata": metadata, "type": "bootstrap.kubernetes.io/token", "data": data})
    }

    /// What the controllers write, as `METHOD path` and body, until they have signed.
    async fn written(enabled: TokenControllers) -> Vec<(String, Value)> {
        let names = Names::new(Profile::Kubernetes);
        let (write, mut writes) = mpsc::unbounded_channel();
        let server = StubServer::start(move |request| {
            let items = match request.path.as_str() {
                "/api/v1/namespaces/kube-system/secrets" => json!([
                    token("aaaaaa", "u-valid", "2999-01-01T00:00:00Z"),
                    token("bbbbbb", "u-expired", "2000-01-01T00:00:00Z"),
                ]),
                "/api/v1/namespaces/kube-public/configmaps" => json!([{
                    "metadata": {"name": CLUSTER_INFO, "namespace": "kube-public"},
                    "data": {"kubeconfig": "a"},
                }]),
                _ => {
                    let body = match from_protobuf_envelope::<ConfigMap>(&request.body, names) {
                        Ok(map) => to_json_value(&map, names).expect("JSON"),
                        Err(_) => serde_json::from_slice(&request.body).expect("JSON"),
                    };
                    let line = format!("{} {}", request.method, request.path);
                    write.send((line, body.clone())).expect("the test reads");
                    return Some(json_response(200, &body));
                }
            };
            let is_watch = request.query.contains("watch=");
            let list = json!({"metadata": {"resourceVersion": "1"}, "items": items});
            (!is_watch).then(|| json_response(200, &list))
        })
        .await;
        let drain = Drain::default();
        let (reader, cleaner, signer) = (server.client(), server.client(), server.client());
        let page = StatusBoard::default().task("tokens");
        let metrics = WorkQueueMetrics::new().expect("metrics");
        let bootstrap = Bootstrap { reader, cleaner, signer, enabled, metrics };
        let running = tokio::spawn(bootstrap.run(page, drain.watch()));
        let mut all = Vec::new();
        while !all.iter().any(|(line, _): &(String, Value)| line.starts_with("PUT ")) {
            all.push(writes.recv().await.expect("the server runs"));
        }
        running.abort();
        all
    }

    #[tokio::test]
    async fn the_cleaner_deletes_expired_tokens_and_no_others() {
        let signed = "PUT /api/v1/namespaces/kube-public/configmaps/cluster-info";
        let all = written(TokenControllers { cleaner: true, signer: true }).await;
        let lines: Vec<&str> = all.iter().map(|(line, _)| line.as_str()).collect();
        let deleted = "DELETE /api/v1/namespaces/kube-system/secrets/bootstrap-token-bbbbbb";
        assert_eq!(lines, [deleted, signed]);
        let (_, options) = all.first().expect("a deletion");
        assert_eq!(options["preconditions"]["uid"], "u-expired");
        let (_, info) = all.last().expect("a signed map");
        assert!(info["data"]["jws-kubeconfig-aaaaaa"].is_string(), "{info}");
        assert!(info["data"]["jws-kubeconfig-bbbbbb"].is_null(), "{info}");
        let alone = written(TokenControllers { cleaner: false, signer: true }).await;
        let lines: Vec<&str> = alone.iter().map(|(line, _)| line.as_str()).collect();
        assert_eq!(lines, [signed], "without the cleaner nothing is deleted");
    }
}
