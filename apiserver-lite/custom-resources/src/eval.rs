//! Runs programs on the values of objects, which are read in place, within a budget.

mod access;
mod addresses;
mod fields;
mod formats;
mod functions;
mod lists;
mod quantities;
mod run;
mod texts;
mod urls;
mod value;

pub use access::{AccessAnswer, AccessInput, AccessQuestion, AccessResource, AccessSubject};
pub(crate) use run::Run;
pub(crate) use value::{Fail, Val};
