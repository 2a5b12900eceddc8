//! Exit codes: 0 done, 1 failed while running, 64 (`EX_USAGE`) bad usage or configuration, found
//! before any side effect.

use std::error::Error;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use crate::metrics::BuildInfo;

/// Exit code of bad usage or configuration (`EX_USAGE` of sysexits.h).
pub const USAGE: u8 = 64;

type BoxError = Box<dyn Error + Send + Sync>;

/// Why a program ends without a stop signal.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The flags or the configuration file are invalid; there were no side effects yet.
    #[error("bad usage")]
    Usage(#[source] BoxError),
    /// Something failed while building or running.
    #[error("failed")]
    Run(#[source] BoxError),
}

impl Failure {
    /// Marks `cause` as bad usage or configuration.
    pub fn usage(cause: impl Into<BoxError>) -> Self {
        Self::Usage(cause.into())
    }

    /// Marks `cause` as a failure at run time.
    pub fn run(cause: impl Into<BoxError>) -> Self {
        Self::Run(cause.into())
    }
}

/// Parses the process's flags. Of a repeated flag with one value the last counts, as in Kubernetes. A wrong flag ends with code 64 and a usage text on
/// standard error, `--help` and `--version` with 0.
pub fn parse_flags<F: Parser>(build: BuildInfo) -> Result<F, ExitCode> {
    parse_flags_of(build, std::env::args_os())
}

/// As [`parse_flags`], of these arguments, the program's name first.
pub fn parse_flags_of<F: Parser>(
    build: BuildInfo,
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<F, ExitCode> {
    let mut command = F::command().args_override_self(true);
    let flags = command
        .try_get_matches_from_mut(arguments)
        .and_then(|matches| F::from_arg_matches(&matches));
    flags.map_err(|error| {
        let error = error.with_cmd(&command);
        // A failed write to a closed terminal changes nothing.
        let _ = match error.kind() {
            ErrorKind::DisplayVersion => {
                let command = F::command();
                let program = command.get_name();
                writeln!(io::stdout(), "{program} {} (commit {})", build.version, build.commit)
            }
            _ => error.print(),
        };
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
            _ => ExitCode::from(USAGE),
        }
    })
}

/// Turns the result of a program into its exit code and prints the chain of causes to standard error.
pub fn conclude(program: &str, end: Result<(), Failure>) -> ExitCode {
    let failure = match end {
        Ok(()) => return ExitCode::SUCCESS,
        Err(failure) => failure,
    };
    let (code, cause) = match &failure {
        Failure::Usage(cause) => (USAGE, cause),
        Failure::Run(cause) => (1, cause),
    };
    eprintln!("{program}: {}", chain(cause.as_ref()));
    ExitCode::from(code)
}

/// An error and its causes in one line, outermost first. Causes are printed only here: no `Display` repeats its source.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut line = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        line.push_str(": ");
        line.push_str(&cause.to_string());
        next = cause.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read {path}")]
    struct ReadFailed {
        path: &'static str,
        #[source]
        cause: std::io::Error,
    }

    #[test]
    fn chain_names_each_cause_once() {
        let error = ReadFailed { path: "/a", cause: std::io::Error::other("disk on fire") };
        assert_eq!(chain(&error), "cannot read /a: disk on fire");
    }

    #[derive(Debug, Parser)]
    struct Program {
        #[arg(long)]
        level: Option<u8>,
    }

    #[test]
    fn of_a_repeated_flag_the_last_counts() {
        let parse = |arguments: &[&str]| {
            let arguments = ["program"].iter().chain(arguments).map(OsString::from);
            parse_flags_of::<Program>(crate::build_info!(), arguments)
        };
        let flags = parse(&["--level=1", "--level=2"]).expect("flags");
        assert_eq!(flags.level, Some(2));
        for wrong in ["--level=x", "--no-such-flag"] {
            assert_eq!(parse(&[wrong]).expect_err(wrong), ExitCode::from(64));
        }
        assert_eq!(parse(&["--help"]).expect_err("help"), ExitCode::SUCCESS);
    }

    #[test]
    fn failures_have_their_codes() {
        assert_eq!(conclude("p", Ok(())), ExitCode::SUCCESS);
        assert_eq!(conclude("p", Err(Failure::run("x"))), ExitCode::from(1));
        assert_eq!(conclude("p", Err(Failure::usage("x"))), ExitCode::from(64));
    }
}
