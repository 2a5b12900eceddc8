//! The start of a daemon, and its end.

use std::process::ExitCode;

use clap::Parser;

use crate::exit::{Failure, conclude, parse_flags};
use crate::metrics::BuildInfo;
use crate::panics;
use crate::reference::{self, Reference};

/// Runs a daemon: answers for its reference if that is what it is asked for (`describe` adds what the reference has besides flags), or parses its flags and
/// does `work`. Panics are reported from here on.
pub fn run<F: Parser>(
    program: &str,
    build: BuildInfo,
    describe: impl FnOnce(&mut Reference) -> Result<(), Failure>,
    work: impl FnOnce(F) -> Result<(), Failure>,
) -> ExitCode {
    panics::install();
    if let Some(code) = reference::answer::<F>(build.version, describe) {
        return code;
    }
    match parse_flags(build) {
        Ok(flags) => conclude(program, work(flags)),
        Err(code) => code,
    }
}
