//! Certificate requests: those of node agents for themselves are approved, and approved ones are signed.
//!
//! What a request asks for is read by pure code ([`shape`]); who asks may, the API server says; the cluster's authority signs
//! ([`authority`]). Serving certificates are signed and never approved here: that their names and addresses are the node's, only somebody
//! else can know.

pub mod authority;
mod shape;

use std::sync::Arc;
use std::time::Duration;

use proto_api::Time;
use proto_api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use proto_api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use proto_client::{Client, ClientError, ListParams, Reflector, WriteParams};
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use proto_daemon::statusz::TaskStatus;
use tokio::sync::Notify;

use crate::work::now;
use authority::{Authority, SignError};
use shape::{Own, Shape};

/// After a failure everything is looked at again.
const RETRY: Duration = Duration::from_secs(5);

/// Which of the two is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duties {
    /// `csrapproving`.
    pub approves: bool,
    /// `csrsigning`.
    pub signs: bool,
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
    /// Follows the requests.
    pub async fn run(self, page: TaskStatus, drain: DrainWatch) {
        let requests =
            Reflector::whole(self.client.all::<CertificateSigningRequest>(), ListParams::default());
        let (store, changed) = (requests.store(), Arc::new(Notify::new()));
        let poke = changed.clone();
        let keeping = tokio::spawn(requests.run(drain.clone(), move |_| poke.notify_one()));
        let mut failed = false;
        loop {
            // All arms are cancel safe: a change that was not heard of is one of the next look.
            tokio::select! {
                () = drain.asked() => break,
                () = changed.notified() => {}
                () = tokio::time::sleep(RETRY), if failed => {}
            }
            page.started("a certificate request has changed");
            failed = false;
            for (key, request) in store.list() {
                if let Err(error) = self.settle(&request).await {
                    let line = chain(&error);
                    tracing::warn!(request = key.name, error = line, "not settled");
                    page.failed(line);
                    failed = true;
                }
            }
            if !failed {
                page.done("");
            }
        }
        keeping.abort();
    }

    /// Takes a request one step further.
    async fn settle(&self, request: &CertificateSigningRequest) -> Result<(), SettleError> {
        let status = &request.status;
        let has = |kind: &str| status.conditions.iter().any(|condition| condition.type_ == kind);
        if has("Denied") || has("Failed") || !status.certificate.is_empty() {
            return Ok(());
        }
        let names = self.client.names();
        let shape = shape::of(names, request);
        match (has("Approved"), shape) {
            (false, Ok(Some(Shape::NodeClient(own)))) if self.duties.approves => {
                self.approve(request, own).await
            }
            (true, Ok(Some(shape))) if self.duties.signs => self.sign(request, &shape).await,
            (true, Err(why)) if self.duties.signs && self.authority.is_some() => {
                self.refuse(request, why).await
            }
            // Of another signer, or for people to look at.
            _ => Ok(()),
        }
    }

    async fn approve(
        &self,
        request: &CertificateSigningRequest,
        own: Own,
    ) -> Result<(), SettleError> {
        let spec = &request.spec;
        let (subresource, whose) = match own {
            Own::Yes => ("selfnodeclient", "self "),
            Own::No => ("nodeclient", ""),
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
            return Ok(());
        }
        let agent = self.client.names().component("let");
        let message =
            format!("Auto approving {whose}{agent} client certificate after SubjectAccessReview.");
        let mut approved = request.clone();
        approved.status.conditions.push(condition("Approved", "AutoApproved", message));
        let api = self.client.all::<CertificateSigningRequest>();
        settled(api.update_approval(&approved, &params).await)
    }

    async fn sign(
        &self,
        request: &CertificateSigningRequest,
        shape: &Shape,
    ) -> Result<(), SettleError> {
        let Some(authority) = &self.authority else { return Ok(()) };
        let mut signed = request.clone();
        signed.status.certificate = authority.sign(&request.spec, shape, now())?;
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
