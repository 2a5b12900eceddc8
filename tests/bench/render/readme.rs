//! The figures that README.md quotes: six rows of the same run.

use anyhow::{Context as _, Result};

use crate::figures::{Group, KUBERNETES};

use super::numbers::{number, ratio};
use super::rows::{Row, Run};

/// What README.md calls it, where it stands, its words there, and its size.
const QUOTED: [(&str, Group, &str, Option<u64>); 6] = [
    ("pod created to Ready, pod network", Group::Node, "pod network: pod created -> Ready", None),
    (
        "pod deleted to object gone, pod network",
        Group::Node,
        "pod network: pod deleted -> gone",
        None,
    ),
    ("durable creates, 64 clients", Group::Api, "durable creates", Some(64)),
    ("list of 17,000 objects", Group::Api, "list of 17,000 objects", None),
    ("events to 1,000 watchers", Group::Api, "events to watchers", Some(1000)),
    ("durable create, one client", Group::Api, "durable create, one client", None),
];
/// The section of README.md.
pub const TITLE: &str = "\n## Figures\n";

/// README.md with its section of figures as the run has them. Fails if the run lacks one.
pub fn with_figures(readme: &str, run: &Run) -> Result<String> {
    let (before, old) = readme.split_once(TITLE).context("README.md has no figures")?;
    let rest = old.find("\n## ").map_or("", |end| &old[end..]);
    Ok(format!("{before}{TITLE}\n{}{rest}", section(run)?))
}

fn section(run: &Run) -> Result<String> {
    let version = run.versions.get(KUBERNETES).map_or("", String::as_str);
    let kubernetes = format!("Kubernetes {version}");
    let mut section = format!(
        "Six rows of the [benchmarks](tests/results/benchmarks.md), which say when, where and beside what they were measured.\n\n\
        | what, median | here | {} | ratio |\n|---|---|---|---|\n",
        kubernetes.trim_end()
    );
    for (name, group, what, size) in QUOTED {
        let found = run.rows(group).find(|row| {
            row.what == what && row.at.as_ref().map(|at| at.count) == size && row.ours.is_some()
        });
        let row = found.with_context(|| format!("this run has no figure of {what:?}"))?;
        section += &quote(name, row);
    }
    Ok(section)
}

/// A row with Kubernetes' figure, if that was measured.
fn quote(name: &str, row: &Row) -> String {
    let unit = match row.unit.name() {
        rate if rate.starts_with('/') => rate.to_owned(),
        unit => format!(" {unit}"),
    };
    let ours = row.ours.as_ref().map_or(String::new(), |ours| number(ours.median) + &unit);
    let peer = row.peers.iter().find(|peer| peer.name == KUBERNETES);
    let theirs = peer.and_then(|peer| peer.figure.as_ref());
    let theirs = theirs.map_or("skipped".to_owned(), |theirs| number(theirs.median) + &unit);
    let better = peer.and_then(|peer| row.ratio(peer)).map_or(String::new(), ratio);
    format!("| {name} | {ours} | {theirs} | {better} |\n")
}
