//! Rules in CEL, the Common Expression Language, as kube-apiserver 1.25 runs them on custom resources.
//!
//! ```text
//!  text ── lexer, parser ──> expression ── checker: types from the schema, cost ──> Program ── eval, within a budget ──> bool
//! ```
//!
//! Every step is bounded: the text, the depth of the expression, the estimated cost when a definition is written, and the cost and memory of
//! each run. Costs are kube-apiserver's: 1 for a step, a tenth for a byte of text that a function walks.

mod ast;
mod checker;
mod cost;
mod eval;
mod functions;
mod lexer;
mod lists;
mod names;
mod parser;
mod program;
pub(crate) mod rules;
pub(crate) mod schema_rules;
mod signatures;
#[cfg(test)]
mod tests;
mod texts;
pub(crate) mod times;
mod types;
mod urls;
mod value;
