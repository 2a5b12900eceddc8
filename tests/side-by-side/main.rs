//! Runs Kubernetes' own scheduler and controllers beside ours: the same objects, the same API servers. `hack/side-by-side` builds and runs it.

mod controllers;
mod plane;
mod scheduler;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;

/// Runs Kubernetes' programs beside ours, in the network namespace of this process, which has to be its own.
#[derive(Parser)]
struct Flags {
    #[command(subcommand)]
    what: What,

    /// Directory with Kubernetes' programs in bin/; without it ours run alone
    #[arg(long, value_name = "DIR", global = true)]
    suite: Option<PathBuf>,

    /// Directory with our programs [default: where this program is]
    #[arg(long, value_name = "DIR", global = true)]
    bin_dir: Option<PathBuf>,

    /// The report's file; without it the report is only printed
    #[arg(long, value_name = "FILE", global = true)]
    out: Option<PathBuf>,

    /// Keeps stores and logs
    #[arg(long, global = true)]
    keep: bool,
}

#[derive(clap::Subcommand)]
enum What {
    /// Both schedulers place the same pods on the same nodes.
    Scheduler(scheduler::Wanted),
    /// Both controller managers work on the same objects.
    Controllers(controllers::Wanted),
}

/// Where the programs of both projects are.
#[derive(Clone)]
struct Programs {
    ours: PathBuf,
    theirs: Option<PathBuf>,
}

impl Programs {
    fn theirs(&self) -> Result<&Path> {
        self.theirs.as_deref().context("--suite: Kubernetes' programs are needed here")
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let flags = Flags::parse();
    let own = std::env::current_exe()?;
    let ours = flags.bin_dir.or_else(|| own.parent().map(Path::to_owned));
    let programs = Programs {
        ours: ours.context("no directory of programs")?,
        theirs: flags.suite.map(|suite| suite.join("bin")),
    };
    plane::prepare_network().await?;
    let mut dir = tempfile::Builder::new().prefix("orch-side-by-side-").tempdir_in("/var/tmp")?;
    dir.disable_cleanup(flags.keep);
    // Cancel safe: the programs end with their handles.
    let report = tokio::select! {
        signal = proto_daemon::drain::stop_signal() => anyhow::bail!("ended by {}", signal?),
        report = run(&flags.what, &programs, dir.path()) => report?,
    };
    println!("{}", report.text);
    if let Some(out) = flags.out {
        std::fs::write(&out, &report.text).with_context(|| format!("writing {}", out.display()))?;
    }
    ensure!(report.faults == 0, "{} faults, see above", report.faults);
    Ok(())
}

async fn run(what: &What, programs: &Programs, dir: &Path) -> Result<Report> {
    match what {
        What::Scheduler(wanted) => scheduler::run(wanted, programs, dir).await,
        What::Controllers(wanted) => controllers::run(wanted, programs, dir).await,
    }
}

/// What a comparison found.
struct Report {
    text: String,
    /// Where ours are not as they should be.
    faults: usize,
}
