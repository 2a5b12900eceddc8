//! pure: the Pod Security Standards, as the admission plugin PodSecurity of Kubernetes 1.25 checks them.
//!
//! [`read_policy`] reads the labels of a namespace, [`find_violations`] compares a pod or a pod template with one level and version,
//! and [`describe_refusal`] and [`describe_warning`] write what the user reads. [`is_significant_update`] says which updates of a pod
//! have to be checked, [`Exemptions`] whom and what no policy applies to, [`tightens_enforcement`] and [`warn_of_pods`] what a change
//! of a namespace's labels means to its pods.
//!
//! ```text
//!  namespace's labels ──▶ Policy { enforce, audit, warn } ──┐ level and version
//!                                                           ▼
//!  metadata and spec of a pod or a template ──────▶ violations: reason, detail ──▶ 403, warning, audit annotation
//! ```

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod checks;
mod exemptions;
mod namespace;
mod pod_view;
mod policy;
mod standards;
mod text;
mod update;
mod violation;

pub use exemptions::{Exemptions, warn_of_exempt_namespace};
pub use namespace::{PODS_CHECKED_MAX, tightens_enforcement, warn_of_pods};
pub use policy::{
    LabelProblem, LevelVersion, NamespacePolicy, PodSecurityLevel, PodSecurityVersion,
    PolicyLabelError, read_policy,
};
pub use standards::find_violations;
pub use update::is_significant_update;
pub use violation::{
    Violation, describe_refusal, describe_violations, describe_warning, list_reasons,
};
