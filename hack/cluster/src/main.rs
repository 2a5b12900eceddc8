//! The program behind `hack/up` and `hack/down`.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match cluster::commands::run(cluster::commands::Command::parse()) {
        Ok(code) => code,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}
