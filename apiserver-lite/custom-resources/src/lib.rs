//! Pure: CustomResourceDefinitions and the objects of the kinds that they define; everything that is decided without a server.
//!
//! A stored definition is a tree. [`default_definition`] and [`validate_definition`] are for writes of it; [`read_definition`] makes the typed
//! [`Definition`], whose versions have a [`Structural`] schema each. The schema prunes, defaults and validates objects, and publishes itself.
//!
//! ```text
//!  tree of a definition ── read ──> Definition ── versions ──> Structural ──> prune, default, validate, open_api_v2, open_api_v3
//!                                       │                └──> columns, scale paths
//!                                       └── accept_names ──> accepted names and conditions
//! ```
//!
//! Objects are whole trees, with `apiVersion`, `kind` and `metadata` at the root. Rules (`x-kubernetes-validations`) are in CEL: they are
//! parsed and type-checked with their cost estimated when a definition is written, and run within a budget.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod accepted_names;
mod approval;
mod cel;
mod check;
mod columns;
mod conversion;
mod default;
mod definition;
mod errors;
mod eval;
mod expression;
mod field_path;
mod formats;
mod json_path;
mod node;
mod open_api;
mod packed;
mod pattern;
mod prune;
mod read;
mod rules;
mod scale;
mod structural;
#[cfg(test)]
mod testing;
mod times;
mod validate;

pub use accepted_names::{AcceptedNames, Condition, NamesDecision, OtherDefinition, accept_names};
pub use approval::{approval_condition, validate_approval};
pub use check::{default_definition, validate_definition};
pub use columns::{Column, cells};
pub use conversion::{ConversionReviewError, check_review, conversion_review};
pub use definition::{
    Conversion, ConversionWebhook, Definition, DefinitionVersion, Names, Scope, Subresources,
    WebhookTarget, read_definition,
};
pub use eval::{AccessAnswer, AccessInput, AccessQuestion, AccessResource, AccessSubject};
pub use expression::{EvaluationError, Expression, ExpressionCompiler, ExpressionError, ValueType};
pub use field_path::{FieldPathError, SchemaFieldPath};
pub use json_path::JsonPath;
pub use read::DefinitionReadError;
pub use scale::ScalePaths;
pub use structural::{ListKind, Structural};
