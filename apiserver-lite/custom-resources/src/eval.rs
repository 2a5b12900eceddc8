//! Runs programs on the values of objects, which are read in place, within a budget.

mod functions;
mod lists;
mod run;
mod texts;
mod urls;
mod value;

pub(crate) use run::Run;
pub(crate) use value::{Fail, Val};
