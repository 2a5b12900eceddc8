//! Certificate requests: those of node agents for themselves are approved, and approved ones are signed.
//!
//! What a request asks for is read once ([`request`]), checked by pure code ([`signer_policy`]) and signed as it was read ([`authority`]); who asks
//! may, the API server says. Serving certificates are signed and never approved here: whether their names and addresses are the node's is
//! not known here. What is settled or has waited too long is deleted ([`cleanup`]).

pub mod authority;
mod cleanup;
mod request;
mod signer_policy;

use std::sync::Arc;
use std::time::Duration;

use proto_api::Time;
use proto_api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use proto_api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use proto_client::{
    Change, Client, ClientError, DeleteParams, ListParams, ObjectKey, Reflector, WriteParams,
};
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use proto_daemon::statusz::TaskStatus;
use proto_daemon::work_queue::{WorkQueue, run_workers};

use crate::reconcile::now;
use authority::{Authority, SignError};
use signer_policy::{ApprovedRequest, Renewal, SignerKind};

/// Whether the user may have an approval is asked again after this.
const ASK_AGAIN: Duration = Duration::from_secs(600);

/// Which of these is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duties {
    /// `csrapproving`.
    pub approves: bool,
    /// `csrsigning`.
    pub signs: bool,
    /// `csrcleaner`.
    pub cleans: bool,
}

/// Approves and signs until drained.
pub struct Certificates {
    /// The API server.
    pub client: Client,
    /// The cluster's authority; without it nothing is signed.
    pub authority: Option<Arc<Authority>>,
    /// What is done.
    pub duties: Duties,
}

/// Why a request is not settled; it is looked at again.
#[derive(Debug, thiserror::Error)]
enum SettleError {
    /// The server did not do what was asked.
    #[error("write")]
    Client(#[from] ClientError),
    /// The certificate cannot be made.
    #[error("sign")]
    Sign(#[from] SignError),
}

impl Certificates {
    /// Follows the requests: one at a time, each when it changes and when its time has come.
    pub async fn run(self, page: TaskStatus, drain: DrainWatch) {
        let requests =
            Reflector::whole(self.client.all::<CertificateSigningRequest>(), ListParams::default());
        let store = requests.store();
        let queue = WorkQueue::<ObjectKey>::default();
        let changed = queue.clone();
        let keeping = tokio::spawn(requests.run(drain.clone(), move |change| {
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
                let settled = this.settle(&request).await;
                match &settled {
                    Ok(_) => page.done(""),
                    Err(error) => page.failed(chain(error)),
                }
                settled
            }
        };
        run_workers(queue, 1, drain, work).await;
        keeping.abort();
    }

    /// Takes a request one step further; when to look again.
    async fn settle(
        &self,
        request: &CertificateSigningRequest,
    ) -> Result<Option<Duration>, SettleError> {
        let mut again_in = None;
        if self.duties.cleans {
            let left = cleanup::time_left(request, now());
            if left.is_zero() {
                self.remove(request).await?;
                return Ok(None);
            }
            again_in = Some(left);
        }
        let status = &request.status;
        let has = |kind: &str| status.conditions.iter().any(|condition| condition.type_ == kind);
        if has("Denied") || has("Failed") || !status.certificate.is_empty() {
            return Ok(again_in);
        }
        match (has("Approved"), signer_policy::check_request(self.client.names(), request)) {
            (false, Ok(Some(ApprovedRequest { signer: SignerKind::NodeClient(own), .. })))
                if self.duties.approves =>
            {
                let approved = self.approve(request, own).await?;
                if !approved {
                    again_in = Some(again_in.map_or(ASK_AGAIN, |left| left.min(ASK_AGAIN)));
                }
            }
            (true, Ok(Some(checked))) if self.duties.signs => self.sign(request, &checked).await?,
            (true, Err(why)) if self.duties.signs && self.authority.is_some() => {
                self.refuse(request, why).await?;
            }
            // Of another signer, or for people to look at.
            _ => {}
        }
        Ok(again_in)
    }

    async fn remove(&self, request: &CertificateSigningRequest) -> Result<(), SettleError> {
        let metadata = &request.metadata;
        let params = DeleteParams { uid: Some(metadata.uid.clone()), ..DeleteParams::default() };
        let api = self.client.all::<CertificateSigningRequest>();
        tracing::info!(request = metadata.name, "deleting a certificate request of no more use");
        settled(api.delete(&metadata.name, &params).await)
    }

    /// Approves it if the user who made it may have that; whether so.
    async fn approve(
        &self,
        request: &CertificateSigningRequest,
        own: Renewal,
    ) -> Result<bool, SettleError> {
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
        let answer = self.client.all::<SubjectAccessReview>().create(&review, &params).await?;
        if !answer.status.allowed {
            return Ok(false);
        }
        let agent = self.client.names().component("let");
        let message =
            format!("Auto approving {whose}{agent} client certificate after SubjectAccessReview.");
        let mut approved = request.clone();
        approved.status.conditions.push(condition("Approved", "AutoApproved", message));
        let api = self.client.all::<CertificateSigningRequest>();
        settled(api.update_approval(&approved, &params).await)?;
        Ok(true)
    }

    async fn sign(
        &self,
        request: &CertificateSigningRequest,
        checked: &ApprovedRequest,
    ) -> Result<(), SettleError> {
        let Some(authority) = &self.authority else { return Ok(()) };
        let mut signed = request.clone();
        signed.status.certificate = authority.sign(&request.spec, checked, now())?;
        self.write_status(&signed).await
    }

    async fn refuse(
        &self,
        request: &CertificateSigningRequest,
        why: String,
    ) -> Result<(), SettleError> {
        let mut failed = request.clone();
        failed.status.conditions.push(condition("Failed", "SignerValidationFailure", why));
        self.write_status(&failed).await
    }

    async fn write_status(&self, request: &CertificateSigningRequest) -> Result<(), SettleError> {
        let api = self.client.all::<CertificateSigningRequest>();
        settled(api.update_status(request, &WriteParams::default()).await)
    }
}

/// Somebody was faster, or it is gone: the change of that brings it back.
fn settled<T>(written: Result<T, ClientError>) -> Result<(), SettleError> {
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
