//! CEL, the Common Expression Language: texts to checked programs.
//!
//! ```text
//!  text ── lexer, parser ──> expression ── checker: types, cost ──> Program ── eval, within a budget ──> value
//! ```
//!
//! Every step is bounded: the text, the depth and the parts of the expression, the estimated cost, and the cost of each run. Estimates are
//! kube-apiserver's: they decide which definitions can be created. Runs count close to it: 1 for a step, a tenth for a byte of text that a function
//! walks; here `&&`, `||` and `?` cost a step as well, and so do 1,000 bytes that are only counted, copied or compared.

pub(crate) mod ast;
mod checker;
pub(crate) mod cost;
mod estimate;
mod lexer;
pub(crate) mod names;
mod parser;
pub(crate) mod program;
pub(crate) mod signatures;
pub(crate) mod types;

pub(crate) use checker::TYPE_NAMES;
