//! The page of clusters of hollow nodes: what each more node costs, and how far that goes.

use std::fmt::Write as _;

use anyhow::Result;

use crate::figures::{Group, Unit};

use super::numbers::{count, number, tick};
use super::page::table;
use super::rows::{Row, Run};
use super::{Files, charts};

/// What the tree keeps of such a run.
pub const KEPT_DATA: &str = "scale.jsonl";
const PAGE: &str = "scale.md";
/// Numbers of nodes that the page looks at.
const FAR: [u64; 3] = [1_000, 5_000, 10_000];
/// Costs that grow faster than this power of the number of nodes are named.
const STEEP: f64 = 1.25;
/// Streams that orch-apiserver keeps open (`STREAMS_MAX` in apiserver-lite/http/src/overload.rs).
const STREAMS_MAX: u64 = 32_768;
/// Connections that it has open (`Bounds` in apiserver-lite/http/src/serve.rs).
const CONNECTIONS_MAX: u64 = 8192;
const PROGRAMS: [&str; 5] =
    ["orch-apiserver", "orch-controller-manager", "orch-scheduler", "orch-proxy", "hollow nodes"];
const SETTLED: &str = "all pods running";
const STARTING: &str = "while all pods start";

/// The page and its charts.
pub fn files(run: &Run) -> Result<Files> {
    let rows: Vec<&Row> = run.rows(Group::Scale).collect();
    let is_time = |row: &&&Row| PROGRAMS.iter().all(|program| !row.what.starts_with(program));
    let is_cost = |row: &&&Row| {
        !is_time(row) && (row.what.ends_with(SETTLED) || row.what.ends_with(STARTING))
    };
    let costs: Vec<&Row> = rows.iter().filter(is_cost).copied().collect();
    let times: Vec<&Row> = rows.iter().filter(is_time).copied().collect();
    let charts = charts::by_size(&[("scale-costs.svg", &costs), ("scale-times.svg", &times)])?;
    Ok([(PAGE.to_owned(), page(run))].into_iter().chain(charts).collect())
}

fn page(run: &Run) -> String {
    let facts = &run.facts;
    let mut page = format!(
        "# Scale\n\n\
         One run of `hack/bench scale`: {}, commit {}, {}.\n\
         Machine: {}; {}. All programs of a cluster share it: API server, controller manager, scheduler, one orch-proxy, and the hollow nodes, which are\n\
         orchlet with the runtime in memory. Each has the watches, leases, status writes and connections of a node. `hack/bench render DIR` makes this page\n\
         from [the run's data]({KEPT_DATA}).\n\n\
         ## What each more node costs\n\n\
         ![costs by nodes](scale-costs.svg)\n\n\
         Lines through the sizes of this run, by least squares, each node with its pods and its share of the Services. Beyond the largest size they are\n\
         extrapolations. What does not grow between these sizes has none. The hollow nodes are one row: a node has one orchlet, and its own cost is the column \"each node\".\n\n",
        facts.date, facts.commit, facts.build, facts.machine, facts.kernel,
    );
    let fits: Vec<Fit> = fits(run);
    page += &costs(&fits);
    page += &walls(run, &fits);
    let _ = write!(page, "\n## How long it takes\n\n![times by nodes](scale-times.svg)\n\n");
    page += &steep(run);
    let rows = run.rows(Group::Scale).collect();
    let _ = write!(page, "\n## All figures\n\n{}", table(rows));
    page
}

/// A line through the figures of several sizes.
struct Fit<'a> {
    what: &'a str,
    unit: Unit,
    fixed: f64,
    each: f64,
    largest: u64,
}

impl Fit<'_> {
    /// `None` for fewer than two sizes.
    fn from_rows<'a>(rows: &[&'a Row]) -> Option<Fit<'a>> {
        let points = points(rows);
        let n = points.len() as f64;
        let (x, y) = points.iter().fold((0.0, 0.0), |(x, y), point| (x + point.0, y + point.1));
        let (x, y) = (x / n, y / n);
        let above: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
        let below: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
        let first = rows.first().filter(|_| below > 0.0)?;
        let each = above / below;
        let largest = rows.iter().filter_map(|row| row.at.as_ref()).map(|at| at.count).max()?;
        Some(Fit { what: &first.what, unit: first.unit, fixed: y - each * x, each, largest })
    }

    fn at(&self, nodes: u64) -> f64 {
        self.fixed + self.each * nodes as f64
    }

    /// How many nodes reach a limit.
    fn reaches(&self, limit: f64) -> Option<f64> {
        (self.each > 0.0).then(|| (limit - self.fixed) / self.each)
    }
}

fn points(rows: &[&Row]) -> Vec<(f64, f64)> {
    let point = |row: &&Row| Some((row.at.as_ref()?.count as f64, row.ours.as_ref()?.median));
    rows.iter().filter_map(point).collect()
}

/// The rows of one figure, by size.
fn rows_of<'a>(run: &'a Run, what: &str) -> Vec<&'a Row> {
    run.rows(Group::Scale).filter(|row| row.what == what).collect()
}

/// The costs of all programs.
fn fits(run: &Run) -> Vec<Fit<'_>> {
    let kinds = [("PSS", SETTLED), ("CPU", SETTLED), ("CPU time", STARTING)];
    let names = kinds.iter().flat_map(|(what, when)| {
        PROGRAMS.iter().map(move |program| format!("{program}: {what}, {when}"))
    });
    let names = names.chain([STREAMS, CONNECTIONS].map(str::to_owned));
    names.filter_map(|what| Fit::from_rows(&rows_of(run, &what))).collect()
}

/// The figure of open streams.
pub const STREAMS: &str = "API streams open at rest";
/// The figure of open connections.
pub const CONNECTIONS: &str = "API connections open at rest";

fn costs(fits: &[Fit<'_>]) -> String {
    if fits.is_empty() {
        return "This run has one size: there is no line.\n".to_owned();
    }
    let titles: Vec<String> = FAR.iter().map(|nodes| format!("{} nodes", count(*nodes))).collect();
    let mut table = format!(
        "| what | unit | without nodes | each node | {} |\n|---|---|---|---|---|---|---|\n",
        titles.join(" | ")
    );
    for fit in fits {
        let grows = fit.each > 0.0;
        let at = |nodes: &u64| if grows { number(fit.at(*nodes)) } else { "no growth".to_owned() };
        let far: Vec<String> = FAR.iter().map(at).collect();
        let (fixed, each) = (number(fit.fixed), number(fit.each));
        let far = far.join(" | ");
        let _ =
            writeln!(table, "| {} | {} | {fixed} | {each} | {far} |", fit.what, fit.unit.name());
    }
    table
}

/// Something that ends, how many nodes reach it, and what moves it.
struct Wall {
    what: String,
    nodes: f64,
    moved_by: &'static str,
}

/// What is reached first if everything goes on as measured.
fn walls(run: &Run, fits: &[Fit<'_>]) -> String {
    let mut walls: Vec<Wall> = fits.iter().filter_map(|fit| wall(run, fit)).collect();
    walls.extend(memory_wall(run));
    if walls.is_empty() {
        return String::new();
    }
    walls.sort_by(|one, other| one.nodes.total_cmp(&other.nodes));
    let mut text = "\n## Where the walls are\n\n\
        Numbers of nodes at which a program would have used up what it has, if the lines above went on. The first of them is the wall; what no figure shows\n\
        (disks, networks, other objects) may come before.\n\n\
        | what ends | at nodes | what moves it |\n|---|---|---|\n"
        .to_owned();
    for wall in walls {
        let nodes = number(wall.nodes.max(0.0).floor());
        let _ = writeln!(text, "| {} | {nodes} | {} |", wall.what, wall.moved_by);
    }
    let largest = fits.iter().map(|fit| fit.largest).max().unwrap_or_default();
    let _ = writeln!(text, "\nThe largest cluster of this run had {} nodes.", count(largest));
    text
}

/// The control plane with the machine for itself.
fn memory_wall(run: &Run) -> Option<Wall> {
    let nodes = of_all(run, &PROGRAMS[..3], "PSS")?.reaches(memory_mb(&run.facts.machine)?)?;
    Some(Wall {
        what: "memory of this machine, control plane alone".to_owned(),
        nodes,
        moved_by: "a machine with more memory; fewer bytes for each object in the caches",
    })
}

fn wall(run: &Run, fit: &Fit<'_>) -> Option<Wall> {
    let of = |limit: f64, what: String, moved_by| {
        fit.reaches(limit).map(|nodes| Wall { what, nodes, moved_by })
    };
    if fit.what == STREAMS {
        let what = format!("{} streams that orch-apiserver keeps open", count(STREAMS_MAX));
        let moved_by =
            "the constant; pods of fewer namespaces on a node, which watches a ConfigMap of each";
        return of(STREAMS_MAX as f64, what, moved_by);
    }
    if fit.what == CONNECTIONS {
        let what = format!("{} connections that orch-apiserver has open", count(CONNECTIONS_MAX));
        let moved_by = "the constant; the lease of a node over the connection of the rest";
        return of(CONNECTIONS_MAX as f64, what, moved_by);
    }
    if fit.unit != Unit::Core || fit.what.starts_with("hollow") {
        return None;
    }
    let program = fit.what.split(':').next().unwrap_or_default();
    let (cores, moved_by) = match program {
        "orch-apiserver" => (
            processors(&run.facts.machine)?,
            "more processors, which it uses; nodes that renew their leases less often",
        ),
        "orch-proxy" => (1.0, "fewer changes of endpoints; an idle one does nothing"),
        _ => (1.0, "work that grows with what changed instead of with what there is"),
    };
    let all = if cores > 1.0 { format!("{} cores", tick(cores)) } else { "one core".to_owned() };
    of(cores * 100.0, format!("{all} of {program} at rest"), moved_by)
}

/// The line of several programs together.
fn of_all<'a>(run: &'a Run, programs: &[&str], what: &str) -> Option<Fit<'a>> {
    let each =
        programs.iter().map(|p| Fit::from_rows(&rows_of(run, &format!("{p}: {what}, {SETTLED}"))));
    let each: Option<Vec<Fit<'a>>> = each.collect();
    each?.into_iter().reduce(|one, other| Fit {
        fixed: one.fixed + other.fixed,
        each: one.each + other.each,
        ..one
    })
}

/// What grows faster than the number of nodes.
fn steep(run: &Run) -> String {
    let mut seen: Vec<&str> = Vec::new();
    let mut text = String::new();
    for row in run.rows(Group::Scale).filter(|row| !matches!(row.unit, Unit::PerSecond)) {
        if seen.contains(&row.what.as_str()) {
            continue;
        }
        seen.push(&row.what);
        let Some(power) = power(&points(&rows_of(run, &row.what))) else { continue };
        if power > STEEP {
            let _ = writeln!(text, "- {}: nodes to the power of {}", row.what, number(power));
        }
    }
    if text.is_empty() {
        return "Nothing grows faster than the number of nodes.\n".to_owned();
    }
    format!(
        "What grows faster than the number of nodes, between the smallest and the largest size:\n\n{text}"
    )
}

/// How steep the figures of the smallest and the largest size are in logarithms.
fn power(points: &[(f64, f64)]) -> Option<f64> {
    let (first, last) = (points.first()?, points.last()?);
    let is_useful = first.1 > 0.0 && last.1 > 0.0 && last.0 > first.0;
    is_useful.then(|| (last.1 / first.1).ln() / (last.0 / first.0).ln())
}

/// Memory of the machine, in MB, of the facts of a run (`2 processors, ..., 23.7 GB`).
fn memory_mb(machine: &str) -> Option<f64> {
    let (before, _) = machine.rsplit_once(" GB")?;
    let gigabytes: f64 = before.rsplit(' ').next()?.parse().ok()?;
    Some(gigabytes * 1000.0)
}

fn processors(machine: &str) -> Option<f64> {
    machine.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of two sizes, in which everything grows as its name says.
    fn run() -> Run {
        let mut data = r#"{"run":{"date":"d","commit":"c","build":"b","machine":"2 processors, invented, 4.0 GB","kernel":"k","runtime":"r"}}"#.to_owned();
        let mut add = |what: &str, unit: &str, figures: [f64; 2]| {
            for (nodes, median) in [100, 200].into_iter().zip(figures) {
                let _ = write!(
                    data,
                    "\n{{\"figure\":{{\"group\":\"scale\",\"what\":\"{what}\",\"side\":\"ours\",\"unit\":\"{unit}\",\
                     \"median\":{median},\"at\":{{\"of\":\"nodes\",\"count\":{nodes}}}}}}}"
                );
            }
        };
        for program in PROGRAMS {
            add(&format!("{program}: PSS, {SETTLED}"), "MB", [50.0, 80.0]);
        }
        add(&format!("orch-apiserver: CPU, {SETTLED}"), "% of a core", [10.0, 20.0]);
        add(&format!("orch-scheduler: CPU, {SETTLED}"), "% of a core", [1.0, 1.0]);
        add(STREAMS, "count", [500.0, 1000.0]);
        add(CONNECTIONS, "count", [310.0, 610.0]);
        add("pods: created to Running", "ms", [1000.0, 4000.0]);
        Run::read(&data).expect("a run")
    }

    #[test]
    fn lines_are_extended_and_walls_stand_in_order() {
        let page = page(&run());
        for line in [
            "| orch-apiserver: PSS, all pods running | MB | 20.0 | 0.30 | 320 | 1,520 | 3,020 |",
            // three programs of 20 MB and 0.3 MB a node in 4,000 MB
            "| memory of this machine, control plane alone | 4,377 |",
            "| 2 cores of orch-apiserver at rest | 2,000 |",
            "| 32,768 streams that orch-apiserver keeps open | 6,553 |",
            // three of a node and ten others
            "| 8,192 connections that orch-apiserver has open | 2,727 |",
            "- pods: created to Running: nodes to the power of 2.00",
            "The largest cluster of this run had 200 nodes.",
        ] {
            assert!(page.contains(line), "{line} is not in {page}");
        }
        let at = |what: &str| page.find(what).expect("a wall");
        assert!(at("cores of orch-apiserver") < at("memory of this"), "the first wall first");
        assert!(!page.contains("core of orch-scheduler"), "what does not grow has no wall");
    }

    #[test]
    fn a_run_of_one_size_has_no_line() {
        let mut one = run();
        one.rows.retain(|row| row.at.as_ref().is_some_and(|at| at.count == 100));
        let page = page(&one);
        assert!(page.contains("This run has one size"), "{page}");
        assert!(!page.contains("Where the walls are"), "{page}");
    }
}
