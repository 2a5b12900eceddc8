//! The csrapproving, csrsigning and csrcleaner controllers: client certificates of kubelets are approved, approved requests are signed, and old
//! ones deleted.
//!
//! A request is decoded once ([`request`]), checked by pure code ([`signer_policy`]) and signed as decoded ([`authority`], with its [`subject`]); the API
//! server authorizes the requester. The CA's files are read again when they have changed ([`authority_files`]). Serving certificates are signed but not
//! approved, because it is not known whether their names and addresses are the node's. Finished and overdue requests are deleted ([`cleanup`]).

pub mod authority;
pub mod authority_files;
mod cleanup;
pub mod request;
mod signer_policy;
pub mod subject;

use std::sync::Arc;
use std::time::Duration;

use apiserver_clock::now;
use proto_api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use proto_api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use proto_api::{ObjectKey, Time};
use proto_client::{Change, Client, ClientError, DeleteParams, ListParams, Reflector, WriteParams};
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use proto_daemon::statusz::TaskStatus;
use proto_daemon::work_queue::{WorkQueue, WorkQueueMetrics, run_workers};

use authority::SignError;
use authority_files::AuthorityFiles;

pub use request::{CertificateRequest, RequestError, RequestedNames};
pub use signer_policy::{ApprovedRequest, Renewal, SignerKind, SignerPolicyError, check_request};

/// Interval of SubjectAccessReviews of a requester that was not allowed.
const REVIEW_INTERVAL: Duration = Duration::from_secs(600);

/// The controllers that run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CsrControllers {
    /// `csrapproving`.
    pub approving: bool,
    /// `csrsigning`.
    pub signing: bool,
    /// `csrcleaner`.
    pub cleaner: bool,
}

/// The controllers of certificate requests.
pub struct Certificates {
    pub client: Client,
    /// The CA; without it nothing is signed.
    pub authority: Option<Arc<AuthorityFiles>>,
    /// The controllers that run.
    pub enabled: CsrControllers,
    /// Where the keys of its queue are counted.
    pub metrics: WorkQueueMetrics,
}

/// Why a reconcile failed; it is retried.
#[derive(Debug, thiserror::Error)]
enum CsrError {
    /// A request to the API server failed.
    #[error("the request to the API server failed")]
    Client(#[from] ClientError),
    /// The certificate cannot be signed.
    #[error("cannot sign the certificate")]
    Sign(#[from] SignError),
    /// The thread that reads the CA's files has ended.
    #[error("cannot read the files of the CA")]
    Read(#[source] tokio::task::JoinError),
}

impl Certificates {
    /// Runs until drained: reconciles one request at a time, on changes and at its cleanup time.
    pub async fn run(self, page: TaskStatus, drain: DrainWatch) {
        let requests =
            Reflector::whole(self.client.all::<CertificateSigningRequest>(), ListParams::default());
        let store = requests.store();
        let queue = WorkQueue::<ObjectKey>::new(self.metrics.clone(), |_| "csrsigning");
        let changed = queue.clone();
        let watching = tokio::spawn(requests.run(drain.clone(), move |change| {
            if let Change::Applied { key, .. } = change {
                changed.add(key);
            }
        }));
        let (this, page) = (Arc::new(self), Arc::new(page));
        let work = move |key: ObjectKey| {
            let (this, request, page) = (this.clone(), store.get(&key), page.clone());
            async move {
                let Some(request) = request else { return Ok(None) };
                page.started("a certificate request");
                let result = this.reconcile(&request).await;
                match &result {
                    Ok(_) => page.done(""),
                    Err(error) => page.failed(chain(error)),
                }
                result
            }
        };
        run_workers(queue, 1, drain, work).await;
        watching.abort();
    }

    /// Plans and executes the next step of a request. Returns when to reconcile it again.
    async fn reconcile(
        &self,
        request: &CertificateSigningRequest,
    ) -> Result<Option<Duration>, CsrError> {
        let mut requeue_after = None;
        if self.enabled.cleaner {
            let left = cleanup::time_left(request, now());
            if left.is_zero() {
                self.remove(request).await?;
                return Ok(None);
            }
            requeue_after = Some(left);
        }
        let status = &request.status;
        let has = |kind: &str| status.conditions.iter().any(|condition| condition.type_ == kind);
        if has("Denied") || has("Failed") || !status.certificate.is_empty() {
            return Ok(requeue_after);
        }
        match (has("Approved"), signer_policy::check_request(self.client.names(), request)) {
            (false, Ok(Some(ApprovedRequest { signer: SignerKind::NodeClient(own), .. })))
                if self.enabled.approving =>
            {
                let approved = self.approve(request, own).await?;
                if !approved {
                    requeue_after = Some(
                        requeue_after.map_or(REVIEW_INTERVAL, |left| left.min(REVIEW_INTERVAL)),
                    );
                }
            }
            (true, Ok(Some(checked))) if self.enabled.signing => {
                self.sign(request, &checked).await?
            }
            (true, Err(why)) if self.enabled.signing && self.authority.is_some() => {
                self.fail(request, why.to_string()).await?;
            }
            // Requests of other signers, and requests that a user has to approve.
            _ => {}
        }
        Ok(requeue_after)
    }

    async fn remove(&self, request: &CertificateSigningRequest) -> Result<(), CsrError> {
        let metadata = &request.metadata;
        let params = DeleteParams { uid: Some(metadata.uid.clone()), ..DeleteParams::default() };
        let api = self.client.all::<CertificateSigningRequest>();
        tracing::info!(
            request = metadata.name,
            uid = metadata.uid,
            "deleting a certificate request that is complete or expired"
        );
        ignore_stale(api.delete(&metadata.name, &params).await)
    }

    /// Approves the request if its user is allowed to. Returns whether it was approved.
    async fn approve(
        &self,
        request: &CertificateSigningRequest,
        own: Renewal,
    ) -> Result<bool, CsrError> {
        let spec = &request.spec;
        let (subresource, whose) = match own {
            Renewal::Yes => ("selfnodeclient", "self "),
            Renewal::No => ("nodeclient", ""),
        };
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    group: self.client.names().group("certificates"),
                    resource: "certificatesigningrequests".to_owned(),
                    verb: "create".to_owned(),
                    subresource: subresource.to_owned(),
                    version: "*".to_owned(),
                    ..ResourceAttributes::default()
                }),
                user: spec.username.clone(),
                uid: spec.uid.clone(),
                groups: spec.groups.clone(),
                extra: spec.extra.clone(),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let params = WriteParams::default();
        let review = self.client.all::<SubjectAccessReview>().create(&review, &params).await?;
        if !review.status.allowed {
            return Ok(false);
        }
        let kubelet = self.client.names().component("let");
        let message = format!(
            "Auto approving {whose}{kubelet} client certificate after SubjectAccessReview."
        );
        let mut approved = request.clone();
        approved.status.conditions.push(condition("Approved", "AutoApproved", message));
        let api = self.client.all::<CertificateSigningRequest>();
        ignore_stale(api.update_approval(&approved, &params).await)?;
        Ok(true)
    }

    async fn sign(
        &self,
        request: &CertificateSigningRequest,
        checked: &ApprovedRequest,
    ) -> Result<(), CsrError> {
        let Some(files) = self.authority.clone() else { return Ok(()) };
        let authority = tokio::task::spawn_blocking(move || files.current()).await;
        let authority = authority.map_err(CsrError::Read)?;
        let mut signed = request.clone();
        signed.status.certificate = authority.sign(&request.spec, checked, now())?;
        self.write_status(&signed).await
    }

    async fn fail(&self, request: &CertificateSigningRequest, why: String) -> Result<(), CsrError> {
        let mut failed = request.clone();
        failed.status.conditions.push(condition("Failed", "SignerValidationFailure", why));
        self.write_status(&failed).await
    }

    async fn write_status(&self, request: &CertificateSigningRequest) -> Result<(), CsrError> {
        let api = self.client.all::<CertificateSigningRequest>();
        ignore_stale(api.update_status(request, &WriteParams::default()).await)
    }
}

/// Ignores a conflict and a deleted object: the watch queues the new state.
fn ignore_stale<T>(written: Result<T, ClientError>) -> Result<(), CsrError> {
    match written {
        Err(error) if error.is_conflict() || error.is_not_found() => Ok(()),
        other => Ok(other.map(|_| ())?),
    }
}

fn condition(kind: &str, reason: &str, message: String) -> CertificateSigningRequestCondition {
    let now: Time = now();
    CertificateSigningRequestCondition {
        type_: kind.to_owned(),
        status: "True".to_owned(),
        reason: reason.to_owned(),
        message,
        last_update_time: now,
        last_transition_time: now,
    }
}

#[cfg(test)]
mod tests;
