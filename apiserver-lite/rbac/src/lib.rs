//! pure: role-based access control, the rules of `rbac.authorization` version `v1`.
//!
//! [`RbacPolicy`] holds the roles and bindings of a cluster and decides requests. Bindings are found by the names of the user and of
//! its groups: a decision costs what the user's own bindings cost, not what the cluster has. [`missing_rules`] compares rules, for
//! users that may grant no more than they have. [`bootstrap_objects`] are the roles and bindings that every cluster starts with.
//!
//! ```text
//!  Role, ClusterRole ──────────────────▶ rules by role ──────────┐
//!  RoleBinding, ClusterRoleBinding ────▶ bindings by subject ────┤
//!                                                                ▼
//!  user, groups, verb, resource ───────────────────────────▶ allowed by which binding
//! ```

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod binding;
mod bootstrap;
mod missing_rules;
mod owned_rules;
mod policy;
mod read;
mod reconcile;
mod rule;

pub use binding::{Binding, BindingSubject, RoleKey};
pub use bootstrap::{BootstrapObject, BootstrapPolicyError, bootstrap_objects, node_rules};
pub use missing_rules::{missing_rules, rules_text, rules_to_add};
pub use owned_rules::ComparisonsExceeded;
pub use policy::{RbacDecision, RbacPolicy, Requester};
pub use read::{is_policy_kind, read_binding, read_rules};
pub use reconcile::{ReconcileStep, reconcile};
pub use rule::{Access, Rule};
