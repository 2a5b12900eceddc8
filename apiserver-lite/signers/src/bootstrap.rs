//! The tokencleaner and bootstrapsigner controllers: expired bootstrap tokens are deleted, and the others sign the ConfigMap `cluster-info`, by
//! which joining nodes verify the cluster. [`tokens`] computes the signatures.

pub mod tokens;

use std::time::Duration;

use apiserver_clock::now;
use proto_api::core::v1::{ConfigMap, Secret};
use proto_client::{Client, ClientError, DeleteParams, ListParams, Reflector, Store, WriteParams};
use proto_daemon::drain::DrainWatch;
use proto_daemon::statusz::TaskStatus;
use proto_daemon::work_queue::{WorkQueue, run_workers};

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
        let queue = WorkQueue::<()>::default();
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
        let tokens: Vec<Token> = secrets.iter().map(|(_, secret)| Token::of(secret)).collect();
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
