//! The page: a section a group, a row for what was measured, a number a cell.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::figures::{Figure, Group, Spread};

use super::numbers::{number, ratio, size};
use super::rows::{Peer, Row, Run};
use super::{KEPT_DATA, charts};

/// The Markdown page of a run, with those charts.
pub fn page(run: &Run, charts: &[&str]) -> String {
    let mut page = head(run);
    for group in run.groups() {
        let (title, about) = section(group);
        let _ = write!(page, "\n## {title}\n\n{about}\n");
        for chart in charts.iter().filter(|chart| charts::is_of(chart, group)) {
            let _ = write!(page, "\n![{title}]({chart})\n");
        }
        let _ = write!(page, "\n{}", table(run.rows(group).collect()));
    }
    page
}

/// Title of a section, and what its figures have in common.
fn section(group: Group) -> (&'static str, &'static str) {
    match group {
        Group::Node => (
            "One pod at a time",
            "A cluster of one node. \"runtime calls alone\" are the calls that an agent has to make, made directly, without an agent: the floor.",
        ),
        Group::Idle => (
            "An idle node",
            "Means of half a minute, after the pods above have come and gone. PSS is the proportional set size; private dirty pages are those of no file and no other process. What PSS has beyond them is the programs' code, which the kernel takes back when it needs memory; where a budget of PSS is missed, it is by code.",
        ),
        Group::Bursts => (
            "Bursts of pods",
            "Each side in turn on the same node. The runtime's calls are made at the number of pods at a time that was best. A share is the median of the rounds' shares of that.",
        ),
        Group::Load => ("orchlet with more to do", "A node of up to 300 pods."),
        Group::Volumes => (
            "From a write to a file",
            "\"a watch and a rename\" is the least work: the same event received, one file replaced.",
        ),
        Group::Api => (
            "orch-apiserver",
            "TLS, Protobuf, objects of some 512 bytes; the clients share the processors. Creates are durable before they are answered; Kubernetes' store in this comparison need not wait for the disk.",
        ),
        Group::Store => {
            ("The store alone", "Values of 1 KiB; the floor is an append and `fdatasync`.")
        }
        Group::Engine => ("The object engine and access decisions alone", "One core."),
        Group::Plane => (
            "From Services to the kernel",
            "orch-proxy's model and one transaction, three endpoints a Service, cluster IPs. The others are kube-proxy's layouts of nf_tables, programmed by `nft`.",
        ),
        Group::Proxy => (
            "orch-proxy at an API server",
            "The program, from bytes on its watch's socket to the kernel's commit. Three endpoints a Service unless it says otherwise.",
        ),
        Group::Packets => (
            "What packets pay",
            "Through a Service, or past all Services, as a multiple of the same packet over a node without Services in the same round. CPU time of client, node and server for packets, time for `connect`.",
        ),
        Group::Stale => (
            "Flows to endpoints that are gone",
            "Among as many conntrack entries as the kernel tracks, at most a million.",
        ),
        Group::Scale => ("Clusters of hollow nodes", "Their page is [scale.md](scale.md)."),
    }
}

fn head(run: &Run) -> String {
    let facts = &run.facts;
    let mut head = format!(
        "# Benchmarks\n\n\
         One run of `hack/bench`: {}, commit {}, {}.\n\
         Machine: {}; {}; {}.\n\n\
         Figures are medians, p10 to p99 percentiles of their samples. A ratio above 1 is in favour of ours: the other's figure over ours, or ours over the\n\
         other's where more is better. Budgets are ours: the most, or the least where more is better. `hack/bench render DIR` makes this page, its charts and\n\
         the figures of the README from [the run's data]({KEPT_DATA}).\n\n\
         | compared with | version | rows | skipped |\n|---|---|---|---|\n",
        facts.date, facts.commit, facts.build, facts.machine, facts.kernel, facts.runtime
    );
    let mut sides: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for peer in run.rows.iter().flat_map(|row| &row.peers) {
        let (rows, skipped) = sides.entry(&peer.name).or_default();
        *rows += usize::from(peer.figure.is_some());
        *skipped += usize::from(peer.figure.is_none());
    }
    for (side, (rows, skipped)) in sides {
        let version = run.versions.get(side).map_or(String::new(), |version| format!("{version} "));
        let _ = writeln!(head, "| {side} | {version}| {rows} | {skipped} |");
    }
    head
}

/// A column, and what a row has there for one of its peers. Ours stands in the first of a row's lines only.
struct Column {
    title: &'static str,
    cell: fn(&Row, Option<&Peer>) -> String,
    is_ours: bool,
}

const COLUMNS: [Column; 11] = [
    Column { title: "what", cell: |row, _| row.what.clone(), is_ours: true },
    Column { title: "with", cell: |row, _| with(row), is_ours: true },
    Column { title: "unit", cell: |row, _| row.unit.name().to_owned(), is_ours: true },
    Column {
        title: "ours",
        cell: |row, _| row.ours.as_ref().map_or(String::new(), |ours| number(ours.median)),
        is_ours: true,
    },
    Column { title: "p10", cell: |row, _| spread(&row.ours, |s| Some(s.p10)), is_ours: true },
    Column { title: "p90", cell: |row, _| spread(&row.ours, |s| Some(s.p90)), is_ours: true },
    Column { title: "p99", cell: |row, _| spread(&row.ours, |s| s.p99), is_ours: true },
    Column { title: "budget", cell: |row, _| budget(row), is_ours: true },
    Column {
        title: "compared with",
        cell: |_, peer| peer.map_or(String::new(), |peer| peer.name.clone()),
        is_ours: false,
    },
    Column {
        title: "its figure",
        cell: |_, peer| match peer {
            Some(Peer { figure: Some(figure), .. }) => number(figure.median),
            Some(_) => "skipped".to_owned(),
            None => String::new(),
        },
        is_ours: false,
    },
    Column {
        title: "ratio",
        cell: |row, peer| peer.and_then(|peer| row.ratio(peer)).map_or(String::new(), ratio),
        is_ours: false,
    },
];

fn with(row: &Row) -> String {
    row.at.as_ref().map_or(String::new(), size)
}

fn spread(ours: &Option<Figure>, field: fn(Spread) -> Option<f64>) -> String {
    let value = ours.as_ref().and_then(|ours| field(ours.spread?));
    value.map_or(String::new(), number)
}

fn budget(row: &Row) -> String {
    let missed = if row.is_over_budget() { ", missed" } else { "" };
    let budget = row.ours.as_ref().and_then(|ours| ours.budget);
    budget.map_or(String::new(), |budget| format!("{}{missed}", number(budget)))
}

/// The rows of a section, with the columns that any of them uses.
pub fn table(rows: Vec<&Row>) -> String {
    let mut lines: Vec<Vec<String>> = Vec::new();
    for row in rows {
        let alone = [None];
        let peers: Vec<Option<&Peer>> = row.peers.iter().map(Some).collect();
        let peers = if peers.is_empty() { &alone[..] } else { &peers };
        for (at, peer) in peers.iter().enumerate() {
            let cell = |column: &Column| match at > 0 && column.is_ours {
                true => String::new(),
                false => (column.cell)(row, *peer),
            };
            lines.push(COLUMNS.iter().map(cell).collect());
        }
    }
    let is_used =
        |at: &usize| lines.iter().any(|line| line.get(*at).is_some_and(|c| !c.is_empty()));
    let used: Vec<usize> = (0..COLUMNS.len()).filter(is_used).collect();
    let pick = |cells: &[&str]| -> String {
        let cell = |at: &usize| match cells.get(*at).copied().unwrap_or_default() {
            "" => "| ".to_owned(),
            text => format!("| {text} "),
        };
        used.iter().map(cell).collect::<String>() + "|\n"
    };
    let mut table = pick(&COLUMNS.map(|column| column.title));
    table += &format!("|{}\n", "---|".repeat(used.len()));
    for cells in &lines {
        table += &pick(&cells.iter().map(String::as_str).collect::<Vec<_>>());
    }
    table
}
