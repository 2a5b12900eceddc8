//! bin: what `hack/reference` and `hack/package` make of the programs besides the programs: pages of reference, manual pages, completions of shells, units
//! of systemd. All of it comes from what each program prints of itself (`proto_daemon::reference`).

mod command;
mod man_pages;
mod pages;
mod programs;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};

use programs::{PAGES, PROGRAMS, Program};

/// Makes references, manual pages, completions and units of built programs.
#[derive(Parser)]
#[command(name = "packaging")]
struct Flags {
    /// Directory of the programs
    #[arg(long, value_name = "DIR", global = true, default_value = "target/debug")]
    bin_dir: PathBuf,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Write the pages of reference below the root of the repository
    Pages {
        /// The root of the repository
        root: PathBuf,
        /// Write nothing; exit with 1 and say which pages are not what the programs say
        #[arg(long)]
        check: bool,
    },
    /// Write manual pages, completions and the unit of a program as they lie in a package
    Files {
        /// The program
        program: String,
        /// Directory that stands for the root of the host
        root: PathBuf,
        /// Date of manual pages, as 2026-01-02
        #[arg(long)]
        date: String,
    },
}

fn main() -> ExitCode {
    match run(&Flags::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("packaging: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(flags: &Flags) -> Result<ExitCode> {
    match &flags.verb {
        Verb::Pages { root, check } => write_pages(&flags.bin_dir, root, *check),
        Verb::Files { program, root, date } => {
            let program = Program::find_program(program)?;
            let reference = program.read_reference(&flags.bin_dir)?;
            man_pages::write(program, &reference, date, root)?;
            command::write_completions(program.name, &reference, root)?;
            write_unit(program, root)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn write_pages(bin_dir: &Path, root: &Path, check: bool) -> Result<ExitCode> {
    let mut differs = false;
    for page in PAGES {
        let of_page = PROGRAMS.iter().filter(|program| program.page == page.path);
        let references =
            of_page.map(|program| program.read_reference(bin_dir)).collect::<Result<Vec<_>>>()?;
        let text = pages::text(page.title, &references);
        let path = root.join(page.path);
        if !check {
            write(&path, &text)?;
        } else if std::fs::read_to_string(&path).unwrap_or_default() != text {
            eprintln!("{} is not what the programs say: run hack/reference", page.path);
            differs = true;
        }
    }
    Ok(if differs { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn write_unit(program: &Program, root: &Path) -> Result<()> {
    if !program.is_daemon {
        return Ok(());
    }
    let unit = apiserver_bootstrap::units::packaged(program.name);
    write(&root.join(format!("lib/systemd/system/{}.service", program.name)), &unit)?;
    write(&root.join(format!("etc/default/{}", program.name)), &programs::defaults(program))
}

/// Writes a file, with its directories.
fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
