//! Issues a certificate for a key: creates or finds the CertificateSigningRequest and waits for it.

use std::time::Duration;

use futures_util::future::BoxFuture;
use proto_api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestStatus};
use proto_client::{Client, ClientError, DeleteParams, WriteParams};
use proto_daemon::exit::chain;

use super::certificate_spec::{CertificateSpec, is_for};
use super::store::Store;
use super::unix_time::unix_now;

/// Poll interval of a pending request.
const LOOK: Duration = Duration::from_secs(2);
/// How long a request may stay unsigned before it is replaced, as in Kubernetes' kubelet.
const PATIENCE: Duration = Duration::from_secs(15 * 60);

/// Where requests are approved and signed.
pub trait Authority: Send + Sync {
    /// Creates a request, or returns the existing one of that name.
    fn create_request<'a>(
        &'a self,
        request: &'a CertificateSigningRequest,
    ) -> BoxFuture<'a, Result<(), ClientError>>;
    /// The status of a request; `None` if it was removed.
    fn read_status<'a>(
        &'a self,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<CertificateSigningRequestStatus>, ClientError>>;
    /// Deletes a request.
    fn drop<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), ClientError>>;
}

impl Authority for Client {
    fn create_request<'a>(
        &'a self,
        request: &'a CertificateSigningRequest,
    ) -> BoxFuture<'a, Result<(), ClientError>> {
        Box::pin(async move {
            let made = self
                .all::<CertificateSigningRequest>()
                .create(request, &WriteParams::default())
                .await;
            match made {
                Err(error) if error.code() == Some(409) => Ok(()),
                other => other.map(|_| ()),
            }
        })
    }

    fn read_status<'a>(
        &'a self,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<CertificateSigningRequestStatus>, ClientError>> {
        Box::pin(async move {
            let found = self.all::<CertificateSigningRequest>().find(name).await?;
            Ok(found.map(|request| request.status))
        })
    }

    fn drop<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), ClientError>> {
        Box::pin(async move {
            self.all::<CertificateSigningRequest>().delete(name, &DeleteParams::default()).await
        })
    }
}

/// Why a certificate was not issued. Every attempt may be repeated; which is said where it is not the same again.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// The key or the certificate cannot be read or written.
    #[error("cannot read or write the key and certificate {pair}")]
    Store {
        /// Name of the pair.
        pair: String,
        /// Why.
        #[source]
        error: std::io::Error,
    },
    /// The request cannot be made from the key.
    #[error(transparent)]
    Encode(#[from] rcgen::Error),
    /// The API server does not take or show the request.
    #[error(transparent)]
    Server(#[from] ClientError),
    /// The request was removed before it was signed; the next attempt creates it again.
    #[error("certificate request {0} was deleted before it was signed")]
    Removed(String),
    /// The request is of no use any more; the next attempt has another key and name.
    #[error("certificate request {name}: {why}")]
    Ended {
        /// Name of the request.
        name: String,
        /// How it ended.
        why: RequestEnd,
    },
}

/// How a request ended without a usable certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestEnd {
    /// The certificate has another key or subject than the request.
    #[error("the certificate is for another key or subject")]
    Foreign,
    /// It was denied or it failed, with the condition's reason and message.
    #[error("{0}")]
    Refused(String),
    /// No certificate was issued within the time limit.
    #[error("it was not signed before the deadline")]
    Unsigned,
}

/// A certificate to request: its requirements, its files and the authority.
pub struct IssueOrder<'a> {
    /// Store of key and certificate.
    pub store: &'a Store,
    /// Its requirements.
    pub wanted: &'a CertificateSpec,
    /// Where it is requested.
    pub authority: &'a dyn Authority,
}

/// The state of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RequestOutcome {
    Waiting,
    Signed(Vec<u8>),
    /// Denied or failed: a new request is needed.
    Refused(String),
}

/// Pure.
fn outcome_of(status: CertificateSigningRequestStatus) -> RequestOutcome {
    let has = |kind: &str| {
        status
            .conditions
            .iter()
            .find(|condition| condition.type_ == kind && condition.status != "False")
    };
    for kind in ["Denied", "Failed"] {
        if let Some(condition) = has(kind) {
            return RequestOutcome::Refused(
                format!("{kind}: {} {}", condition.reason, condition.message).trim_end().to_owned(),
            );
        }
    }
    // A certificate without approval was not issued by a signer.
    if has("Approved").is_some() && !status.certificate.is_empty() {
        return RequestOutcome::Signed(status.certificate);
    }
    RequestOutcome::Waiting
}

impl IssueOrder<'_> {
    /// Gets the certificate issued and installs it. May wait for manual approval.
    ///
    /// # Errors
    /// There is no certificate yet; the caller retries.
    pub async fn issue(&self) -> Result<(), IssueError> {
        let of_store = |error| IssueError::Store { pair: self.store.pair().to_owned(), error };
        let key = self.store.pending_key().map_err(of_store)?;
        let request = self.wanted.request(&key)?;
        let name = &request.metadata.name;
        self.authority.create_request(&request).await?;
        let why = match self.wait(name).await? {
            RequestOutcome::Signed(certificate)
                if is_for(&certificate, &key) && self.wanted.is_met_by(&certificate) =>
            {
                let installed = self.store.install(&certificate, &key.serialize_pem(), unix_now());
                return installed.map_err(of_store);
            }
            RequestOutcome::Signed(_) => RequestEnd::Foreign,
            RequestOutcome::Refused(why) => RequestEnd::Refused(why),
            RequestOutcome::Waiting => RequestEnd::Unsigned,
        };
        self.give_up(name).await;
        Err(IssueError::Ended { name: name.clone(), why })
    }

    async fn wait(&self, name: &str) -> Result<RequestOutcome, IssueError> {
        let until = tokio::time::Instant::now() + PATIENCE;
        loop {
            let status = self.authority.read_status(name).await?;
            // Old requests are garbage collected: it is requested again.
            let status = status.ok_or_else(|| IssueError::Removed(name.to_owned()))?;
            match outcome_of(status) {
                RequestOutcome::Waiting if tokio::time::Instant::now() < until => {
                    tokio::time::sleep(LOOK).await
                }
                fate => return Ok(fate),
            }
        }
    }

    /// A new attempt needs a new key, from which the request's name is derived.
    async fn give_up(&self, name: &str) {
        // It may be deleted already, or deleting may be forbidden: it is garbage collected in time.
        if let Err(error) = self.authority.drop(name).await {
            tracing::debug!(
                request = name,
                error = chain(&error),
                "cannot delete an unusable certificate request; it is garbage collected later"
            );
        }
        if let Err(error) = self.store.forget_pending_key() {
            tracing::warn!(%error, "cannot remove the key of a rejected request; it is used again");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use proto_api::certificates::v1::CertificateSigningRequestCondition;

    use super::super::certificate_spec::tests::{client, signed};
    use super::*;

    /// What the authority does with each request in order; afterwards it signs.
    #[derive(Clone, Copy, PartialEq)]
    enum Does {
        Signs,
        Denies,
        SignsAnother,
        Nothing,
        SignsUnapproved,
    }

    #[derive(Default)]
    struct InMemory {
        requests: Mutex<BTreeMap<String, CertificateSigningRequest>>,
        does: Mutex<Vec<Does>>,
        asked: Mutex<Vec<String>>,
    }

    impl InMemory {
        fn that(does: &[Does]) -> Self {
            Self { does: Mutex::new(does.to_vec()), ..Self::default() }
        }

        fn settle(&self, request: &mut CertificateSigningRequest) {
            let mut does = self.does.lock().expect("lock");
            let next = if does.is_empty() { Does::Signs } else { does.remove(0) };
            let condition = |kind: &str| CertificateSigningRequestCondition {
                type_: kind.into(),
                status: "True".into(),
                ..Default::default()
            };
            match next {
                Does::Nothing => return,
                Does::Denies => request.status.conditions.push(condition("Denied")),
                Does::SignsUnapproved => {}
                _ => request.status.conditions.push(condition("Approved")),
            }
            request.status.certificate = match next {
                Does::SignsAnother => {
                    let key = rcgen::KeyPair::generate().expect("key");
                    signed(&client().request(&key).expect("request"))
                }
                _ => signed(request),
            };
        }
    }

    impl Authority for InMemory {
        fn create_request<'a>(
            &'a self,
            request: &'a CertificateSigningRequest,
        ) -> BoxFuture<'a, Result<(), ClientError>> {
            Box::pin(async {
                let name = request.metadata.name.clone();
                self.asked.lock().expect("lock").push(name.clone());
                let mut requests = self.requests.lock().expect("lock");
                requests.entry(name).or_insert_with(|| {
                    let mut request = request.clone();
                    self.settle(&mut request);
                    request
                });
                Ok(())
            })
        }

        fn read_status<'a>(
            &'a self,
            name: &'a str,
        ) -> BoxFuture<'a, Result<Option<CertificateSigningRequestStatus>, ClientError>> {
            Box::pin(async {
                Ok(self
                    .requests
                    .lock()
                    .expect("lock")
                    .get(name)
                    .map(|request| request.status.clone()))
            })
        }

        fn drop<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), ClientError>> {
            Box::pin(async {
                self.requests.lock().expect("lock").remove(name);
                Ok(())
            })
        }
    }

    async fn issue(store: &Store, authority: &InMemory) -> Result<(), IssueError> {
        IssueOrder { store, wanted: &client(), authority }.issue().await
    }

    fn store(directory: &tempfile::TempDir) -> Store {
        Store::new(directory.path().to_owned(), "p".into())
    }

    #[tokio::test(start_paused = true)]
    async fn a_signed_request_is_put_in_force() {
        let directory = tempfile::tempdir().expect("tempdir");
        let store = store(&directory);
        issue(&store, &InMemory::default()).await.expect("issued");
        let pair = store.current().expect("read").expect("there");
        assert!(client().is_met_by(&pair));
        let key = rcgen::KeyPair::from_pem(
            std::str::from_utf8(&pair)
                .expect("PEM")
                .split_at(
                    std::str::from_utf8(&pair)
                        .expect("PEM")
                        .find("-----BEGIN PRIVATE")
                        .expect("a key"),
                )
                .1,
        )
        .expect("a key");
        assert!(is_for(&pair, &key));
    }

    #[tokio::test(start_paused = true)]
    async fn a_restart_asks_for_the_same_object() {
        let directory = tempfile::tempdir().expect("tempdir");
        let store = store(&directory);
        let authority = InMemory::that(&[Does::Nothing]);
        // Aborted while it waits, as by a crash.
        let cut = tokio::time::timeout(Duration::from_secs(60), issue(&store, &authority)).await;
        assert!(cut.is_err());
        for request in authority.requests.lock().expect("lock").values_mut() {
            authority.settle(request);
        }
        issue(&store, &authority).await.expect("issued");
        let asked = authority.asked.lock().expect("lock");
        assert_eq!((asked.len(), &asked[0]), (2, &asked[1]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_certificate_is_requested_again_with_a_new_key() {
        for does in [Does::Denies, Does::SignsAnother, Does::Nothing, Does::SignsUnapproved] {
            let directory = tempfile::tempdir().expect("tempdir");
            let store = store(&directory);
            let authority = InMemory::that(&[does]);
            issue(&store, &authority).await.expect_err("refused");
            assert_eq!(store.current().expect("read"), None);
            issue(&store, &authority).await.expect("issued");
            let asked = authority.asked.lock().expect("lock");
            assert!(asked.len() == 2 && asked[0] != asked[1]);
        }
    }
}
