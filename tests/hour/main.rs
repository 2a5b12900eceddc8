//! Runs a new user's first hour against a cluster (`hack/hour`).

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use orch_tests::hour;

/// Asks a cluster a hundred everyday questions with kubectl and compares the answers with Kubernetes' own.
#[derive(Debug, Parser)]
struct Flags {
    /// The client configuration of the cluster's administrator.
    #[arg(long)]
    kubeconfig: PathBuf,
    /// The cluster runs Kubernetes' own programs: write down what it answers.
    #[arg(long)]
    record: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode> {
    let flags = Flags::parse();
    let scratch = tempfile::tempdir()?;
    if flags.record {
        let count = hour::record(&flags.kubeconfig, scratch.path()).await?;
        println!("{count} answers recorded");
        return Ok(ExitCode::SUCCESS);
    }
    let report = hour::check(&flags.kubeconfig, scratch.path()).await?;
    report.findings.iter().for_each(|finding| println!("{finding}"));
    println!(
        "{} answered as Kubernetes answers, {} differ and say why, {} differ",
        report.equal,
        report.explained,
        report.findings.len()
    );
    Ok(if report.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
