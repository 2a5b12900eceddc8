//! Pure: what the command-line client prints of objects. Objects are JSON trees; the time is an argument.
//!
//! - [`PrintFormat`]: what `-o` says, and objects in that form. [`json`], [`proto_api::yaml`]: whole objects.
//! - [`columns`]: rows in aligned columns; [`table`]: the server's tables; [`custom_columns`]: those of the command line.
//! - [`jsonpath`]: the template language, also for sorting ([`sort`]); [`go_template`]: templates of Go.
//! - [`describe`]: objects in words; [`schema`]: the fields of kinds. [`tree`]: owners and dependents; [`state`]: what of an object is ready;
//!   [`why`]: what is wrong with it; [`timeline`]: how a pod started.
//! - [`terminal`]: what a server's text may not do; [`tone`]: the colours of states.

pub mod age;
pub mod columns;
pub mod custom_columns;
pub mod describe;
pub mod go_template;
pub mod json;
pub mod jsonpath;
pub mod objects;
mod output_format;
pub mod rules;
pub mod schema;
pub mod sort;
pub mod state;
pub mod table;
pub mod terminal;
pub mod timeline;
pub mod tone;
pub mod tree;
pub mod why;

pub use output_format::{FormError, PrintFormat, RenderError};
