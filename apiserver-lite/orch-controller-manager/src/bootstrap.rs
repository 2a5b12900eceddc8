//! Bootstrap tokens: expired ones are deleted (`tokencleaner`), and what a joining machine is to believe of the cluster is signed with the
//! others (`bootstrapsigner`). What is to be done is decided by [`tokens`].

mod tokens;

use std::time::Duration;

use proto_api::core::v1::{ConfigMap, Secret};
use proto_client::{
    Client, ClientError, DeleteParams, ListParams, Patch, Reflector, Store, WriteParams,
};
use proto_daemon::drain::DrainWatch;
use proto_daemon::statusz::TaskStatus;
use proto_daemon::work_queue::{WorkQueue, run_workers};
use serde_json::json;

use crate::reconcile::now;
use tokens::Token;

/// The config map that is signed, in the namespace that everybody may read.
const CLUSTER_INFO: &str = "cluster-info";

/// Which of the two is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duties {
    /// `tokencleaner`.
    pub cleans: bool,
    /// `bootstrapsigner`.
    pub signs: bool,
}

/// Deletes and signs until drained.
pub struct Bootstrap {
    /// The API server.
    pub client: Client,
    /// What is done.
    pub duties: Duties,
}

/// What there is.
struct Shown {
    secrets: Store<Secret>,
    infos: Store<ConfigMap>,
}

impl Bootstrap {
    /// Follows the tokens and the config map.
    pub async fn run(self, page: TaskStatus, drain: DrainWatch) {
        if !self.duties.cleans && !self.duties.signs {
            return;
        }
        let names = self.client.names();
        let field_selector = format!("type={}", names.sub_label("bootstrap", "token"));
        let tokens = ListParams { field_selector, ..ListParams::default() };
        let secrets = self.client.within::<Secret>(names.system_namespace());
        let secrets = Reflector::whole(secrets, tokens);
        let infos = self.client.within::<ConfigMap>(names.public_namespace());
        let infos = Reflector::whole(infos, ListParams::name(CLUSTER_INFO));
        let shown = Shown { secrets: secrets.store(), infos: infos.store() };
        // One key: what is to be done follows from all of them together, and they are few.
        let queue = WorkQueue::<()>::default();
        let (one, other) = (queue.clone(), queue.clone());
        let keeping = [
            tokio::spawn(secrets.run(drain.clone(), move |_| one.add(()))),
            tokio::spawn(infos.run(drain.clone(), move |_| other.add(()))),
        ];
        let this = std::sync::Arc::new((self, shown, page));
        let work = move |()| {
            let this = this.clone();
            async move {
                let (bootstrap, shown, page) = &*this;
                page.started("bootstrap tokens");
                let done = bootstrap.look(shown).await;
                match &done {
                    Ok(_) => page.done(""),
                    Err(error) => page.failed(proto_daemon::exit::chain(error)),
                }
                done
            }
        };
        run_workers(queue, 1, drain, work).await;
        keeping.iter().for_each(tokio::task::JoinHandle::abort);
    }

    async fn look(&self, shown: &Shown) -> Result<Option<Duration>, ClientError> {
        shown.secrets.synced().await;
        let secrets = shown.secrets.list();
        let tokens: Vec<Token> = secrets.iter().map(|(_, secret)| Token::of(secret)).collect();
        let mut next: Option<Duration> = None;
        for token in &tokens {
            match token.left(now()) {
                Some(left) if left.is_zero() && self.duties.cleans => self.remove(token).await?,
                Some(left) if !left.is_zero() => {
                    next = Some(next.map_or(left, |earlier| earlier.min(left)));
                }
                _ => {}
            }
        }
        if self.duties.signs {
            shown.infos.synced().await;
            for (key, info) in shown.infos.list() {
                let changes = tokens::signatures(&info, &tokens, now());
                if changes.is_empty() {
                    continue;
                }
                let version = &info.metadata.resource_version;
                let patch = json!({"metadata": {"resourceVersion": version}, "data": changes});
                let api = self.client.within::<ConfigMap>(&key.namespace);
                let params = WriteParams::default();
                settled(api.patch(&key.name, &Patch::Merge(patch), &params).await)?;
            }
        }
        Ok(next)
    }

    async fn remove(&self, token: &Token) -> Result<(), ClientError> {
        let name = &token.secret_name;
        tracing::info!(secret = name, "deleting an expired bootstrap token");
        let params = DeleteParams { uid: Some(token.uid.clone()), ..DeleteParams::default() };
        let api = self.client.within::<Secret>(self.client.names().system_namespace());
        settled(api.delete(name, &params).await)
    }
}

/// Another was faster, or it is gone: the change of that brings it back.
fn settled<T>(written: Result<T, ClientError>) -> Result<(), ClientError> {
    match written {
        Err(error) if error.is_conflict() || error.is_not_found() => Ok(()),
        other => other.map(|_| ()),
    }
}
