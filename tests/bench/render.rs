//! The benchmarks page, made from one run's data alone: `bench render DIR`.

mod charts;
mod numbers;
mod page;
mod readme;
mod rows;
mod scale;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use self::rows::Run;
pub use self::scale::{CONNECTIONS, STREAMS};

/// The run's data in its directory.
const DATA: &str = "figures.jsonl";
/// What the tree has of a run, below its root.
const RESULTS: &str = "tests/results";
const KEPT_DATA: &str = "benchmarks.jsonl";
const PAGE: &str = "benchmarks.md";
const README: &str = "README.md";

/// Which run, and where its page goes.
#[derive(clap::Args)]
pub struct Flags {
    /// The run's directory
    run: PathBuf,
    /// Writes page and charts into this directory, and leaves README.md as it is
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
}

/// Files by name.
type Files = Vec<(String, String)>;

/// Writes the page, its charts and its data into the tree with the figures of README.md, or page and charts into a directory. Clusters of hollow nodes have
/// a page of their own.
pub fn render(flags: &Flags) -> Result<()> {
    let path = flags.run.join(DATA);
    let data = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    let run = Run::read(&data).with_context(|| format!("{}", path.display()))?;
    let files = files(&run)?;
    let Some(dir) = &flags.into else { return replace(root(), &run, &data, &files) };
    write(dir, &files)
}

/// Replaces what the tree has of a run. The README is made first, because a run of single groups is not the tree's, and written last: it quotes the page.
fn replace(root: &Path, run: &Run, data: &str, files: &Files) -> Result<()> {
    let dir = root.join(RESULTS);
    if run.is_of_scale() {
        fs::write(dir.join(scale::KEPT_DATA), data)?;
        return write(&dir, files);
    }
    let readme = root.join(README);
    let quoted = readme::with_figures(&fs::read_to_string(&readme)?, run)?;
    remove_charts(&dir)?;
    fs::write(dir.join(KEPT_DATA), data)?;
    write(&dir, files)?;
    Ok(fs::write(readme, quoted)?)
}

fn write(dir: &Path, files: &Files) -> Result<()> {
    for (name, text) in files {
        fs::write(dir.join(name), text)?;
        println!("{}", dir.join(name).display());
    }
    Ok(())
}

/// The page and its charts.
fn files(run: &Run) -> Result<Files> {
    if run.is_of_scale() {
        return scale::files(run);
    }
    let charts = charts::all(run)?;
    let names: Vec<&str> = charts.iter().map(|(name, _)| name.as_str()).collect();
    let page = page::page(run, &names);
    Ok([(PAGE.to_owned(), page)].into_iter().chain(charts).collect())
}

/// A chart of a group that the new run has not would stay behind.
fn remove_charts(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if charts::is_chart(&name) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
