//! pure: admission webhooks: what MutatingWebhookConfigurations and ValidatingWebhookConfigurations say, as in Kubernetes 1.25, with the match conditions
//! of 1.28.
//!
//! ```text
//!  configuration ──▶ webhooks ──┐
//!                               ▼
//!  request, objects ──▶ does a webhook apply, and in which version of the resource
//!                               ▼
//!                        AdmissionReview ──▶ (the call, which is not here) ──▶ answer: allowed, patch, warnings, annotations
//!                               ▼
//!                        which mutating webhooks are called again, and the Status that a client gets for a denial or a failure
//! ```

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod answer;
mod conditions;
mod configuration;
mod matching;
mod reinvocation;
mod rejection_status;
mod review;
mod rules;

pub use answer::{ANSWER_LEN_MAX, Answer, AnswerError, ExpectedReview, read_answer};
pub use apiserver_custom_resources::{
    AccessAnswer, AccessInput, AccessQuestion, AccessResource, AccessSubject,
};
pub use conditions::{ConditionInput, MatchConditions, MatchResult, check_conditions};
pub use configuration::{
    AdmissionReviewVersion, FailurePolicy, MatchPolicy, Phase, ReinvocationPolicy, Selectors,
    Webhook, WebhookEndpoint, read_webhooks,
};
pub use matching::{Mismatch, Objects};
pub use reinvocation::Reinvocation;
pub use rejection_status::{call_failure, changes_nothing_text, denial, dry_run_refusal};
pub use review::{KindRef, Review, UserInfo};
pub use rules::{AdmissionAttributes, MatchedVersion, ResourceRef, WebhookOperation, WebhookRule};
