//! The page of a fixture run, its charts, and that the tree's page and README.md show the same figures.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use roxmltree::Document;

use crate::figures::{Figure, Group, Size, Unit};

use super::rows::Run;
use super::{
    DATA, KEPT_DATA, PAGE, README, RESULTS, charts, files, numbers, readme, replace, root,
};

/// Largest chart.
const CHART_BYTES_MAX: usize = 40_000;

fn fixture() -> PathBuf {
    root().join("tests/bench/fixture")
}

fn read(path: PathBuf) -> String {
    fs::read_to_string(&path).unwrap_or_default()
}

fn fixture_data() -> String {
    read(fixture().join(DATA))
}

#[test]
fn a_run_has_its_page() {
    let run = Run::read(&fixture_data()).expect("a run");
    let files = files(&run).expect("a page");
    let page = &files[0].1;
    let actual = std::env::temp_dir().join("orch-bench-page.md");
    if *page != read(fixture().join(PAGE)) {
        fs::write(&actual, page).expect("a temporary file");
    }
    assert!(
        *page == read(fixture().join(PAGE)),
        "another page than tests/bench/fixture/{PAGE}: {}",
        actual.display()
    );
    let again = self::files(&Run::read(&fixture_data()).expect("a run")).expect("a page");
    assert_eq!(files, again, "the same run has the same page");
}

#[test]
fn a_chart_has_a_mark_for_each_figure() {
    let run = Run::read(&fixture_data()).expect("a run");
    let charts = charts::all(&run).expect("charts");
    let (mut marks, mut words) = (0, Vec::new());
    for (name, svg) in &charts {
        let document = Document::parse(svg).expect("an SVG");
        assert_eq!(document.root_element().tag_name().name(), "svg");
        assert!(svg.len() < CHART_BYTES_MAX, "{name}: {} bytes", svg.len());
        marks += document.descendants().filter(|node| node.has_tag_name("circle")).count();
        words.extend(document.descendants().filter_map(|node| node.text()).map(str::to_owned));
    }
    for row in run.rows.iter().filter(|row| row.figures().next().is_some()) {
        let is_named = words.iter().any(|text| text.trim().starts_with(&row.what));
        assert!(is_named, "no chart names {}", row.what);
    }
    let figures = run.rows.iter().flat_map(super::rows::Row::figures).count();
    assert_eq!(marks, figures);
}

#[test]
fn the_readme_quotes_a_run() {
    let run = Run::read(&fixture_data()).expect("a run");
    let before = "# x\n\n## Figures\n\nold\n\n## What is missing\n\nmuch\n";
    let readme = readme::with_figures(before, &run).expect("figures");
    assert!(readme.contains("| pod created to Ready, pod network | 78.0 ms | 1,143 ms | 15 |\n"));
    assert!(readme.contains("| durable creates, 64 clients | 27,900/s | 4,145/s | 6.7 |\n"));
    assert!(readme.ends_with("|\n\n## What is missing\n\nmuch\n") && !readme.contains("old"));
    assert_eq!(readme::with_figures(&readme, &run).expect("figures"), readme);
    let partial: Vec<String> =
        fixture_data().lines().filter(|line| !line.contains("17,000")).map(str::to_owned).collect();
    let partial = Run::read(&partial.join("\n")).expect("a run");
    assert!(readme::with_figures(before, &partial).is_err(), "a run of some groups");
}

/// Until the tree has a run's data, its page is of older runs, and README.md quotes that.
#[test]
fn the_tree_shows_one_run() {
    let results = root().join(RESULTS);
    let (readme, page) = (read(root().join(README)), read(results.join(PAGE)));
    let data = read(results.join(KEPT_DATA));
    if data.is_empty() {
        check_quoted(&readme, &page).expect("README.md quotes the page");
        println!(
            "SKIPPED: the tree has no run of hack/bench ({RESULTS}/{KEPT_DATA}): its page is of older figures"
        );
        return;
    }
    let run = Run::read(&data).expect("a run");
    let quoted = readme::with_figures(&readme, &run).expect("figures");
    assert!(quoted == readme, "README.md has figures of another run: hack/bench render");
    for (name, text) in files(&run).expect("a page") {
        assert!(text.len() < CHART_BYTES_MAX || name == PAGE, "{name}: {} bytes", text.len());
        assert!(read(results.join(&name)) == text, "{name} is of another run: hack/bench render");
    }
}

/// Fails unless both figures of each row of README.md stand in one line of a page.
fn check_quoted(readme: &str, page: &str) -> Result<()> {
    let (_, section) = readme.split_once(readme::TITLE).context("README.md has no figures")?;
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows: Vec<&str> = section.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    ensure!(!rows.is_empty(), "README.md has no rows");
    for row in rows {
        let cells: Vec<&str> = row.split('|').collect();
        let [_, _, ours, theirs, ..] = cells[..] else { bail!("README.md has a short row: {row}") };
        let quoted = [numbers(ours), numbers(theirs)].concat();
        let mut lines = page.lines().map(numbers);
        let stands = lines.any(|line| quoted.iter().all(|number| line.contains(number)));
        ensure!(stands, "no line of the page has both figures of README.md's: {row}");
    }
    Ok(())
}

/// The numbers in a text.
fn numbers(text: &str) -> Vec<&str> {
    let words = text.split(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | ',')));
    let words = words.map(|word| word.trim_matches(['.', ',']));
    words.filter(|word| !word.is_empty()).collect()
}

#[test]
fn a_figure_is_quoted_with_both_numbers() {
    let row = "| a | 1.5 ms | 1,143 ms | 15 |\n";
    let readme = format!("x\n## Figures\n\n| what | here |\n|---|---|\n{}", row.repeat(6));
    assert!(check_quoted(&readme, "| b | 1.5 ms | 90 | 1,143 ms |").is_ok());
    assert!(check_quoted(&readme, "| b | 1.5 ms |\n| c | 1,143 ms |").is_err());
    assert!(check_quoted(&readme, "| b | 11.5 ms | 1,143 ms |").is_err());
    let short = format!("{readme}| a short row\n");
    assert!(check_quoted(&short, "| b | 1.5 ms | 90 | 1,143 ms |").is_err());
}

#[test]
fn samples_have_a_median_and_a_spread() {
    let of = |count: u32| {
        let samples = (1..=count).rev().map(f64::from).collect();
        Figure::from_samples(Group::Api, "x", Unit::Millis, samples)
    };
    let many = of(100);
    let spread = many.spread.expect("many samples");
    assert_eq!((many.median, spread.p10, spread.p90, spread.p99), (51.0, 11.0, 91.0, Some(100.0)));
    assert_eq!(of(15).spread.expect("some samples").p99, None);
    assert_eq!((of(1).median, of(1).spread), (1.0, None));
}

#[test]
fn a_figure_without_a_number_is_refused() {
    let none = Figure::from_samples(Group::Api, "watched writes", Unit::Millis, Vec::new());
    let nothing = Figure::new(Group::Api, "writes a second", Unit::PerSecond, 1.0 / 0.0);
    for (figure, name) in [(none, "watched writes"), (nothing, "writes a second")] {
        let error = figure.tell().expect_err("not a number");
        assert!(error.to_string().contains(name), "{error}");
    }
    let null = fixture_data().replacen("\"median\":70.0", "\"median\":null", 1);
    assert!(Run::read(&null).is_err(), "a run with a figure that is no number");
}

#[test]
fn the_same_words_in_two_groups_are_two_kinds_of_rows() {
    let mut lines: Vec<String> = fixture_data().lines().take(1).map(str::to_owned).collect();
    for (group, what) in [("plane", "start"), ("proxy", "stop"), ("proxy", "start")] {
        lines.push(format!(
            r#"{{"figure":{{"group":"{group}","what":"{what}","side":"ours","unit":"ms","median":1.0}}}}"#
        ));
    }
    let run = Run::read(&lines.join("\n")).expect("a run");
    let proxy: Vec<&str> = run.rows(Group::Proxy).map(|row| row.what.as_str()).collect();
    assert_eq!(proxy, ["stop", "start"], "in the order in which they were measured");
}

#[test]
fn the_readme_changes_only_with_the_page() {
    let root = tempfile::tempdir().expect("a directory");
    let readme = root.path().join(README);
    let before = "# x\n\n## Figures\n\nold\n";
    fs::write(&readme, before).expect("written");
    let run = Run::read(&fixture_data()).expect("a run");
    let files = files(&run).expect("a page");
    assert!(replace(root.path(), &run, "", &files).is_err(), "nowhere to write the page");
    assert_eq!(read(readme.clone()), before);
    fs::create_dir_all(root.path().join(RESULTS)).expect("a directory");
    replace(root.path(), &run, "", &files).expect("replaced");
    assert!(read(readme).contains("78.0 ms"));
}

#[test]
fn figures_measured_twice_are_refused() {
    let data = fixture_data();
    let last = data.lines().last().expect("a line");
    let error = Run::read(&format!("{data}{last}\n")).expect_err("a figure again");
    assert!(format!("{error:#}").contains("measured twice"), "{error:#}");
    assert!(Run::read("").is_err(), "nothing says which run");
}

#[test]
fn numbers_have_three_digits_that_count() {
    for (value, text) in [
        (0.0, "0"),
        (0.0123, "0.012"),
        (0.104, "0.10"),
        (1.466, "1.47"),
        (78.04, "78.0"),
        (1143.2, "1,143"),
        (27_912.4, "27,900"),
        (868_012.0, "868,000"),
        (-1500.0, "-1,500"),
    ] {
        assert_eq!(numbers::number(value), text);
    }
    assert_eq!(numbers::ratio(14.66), "15");
    assert_eq!(numbers::ratio(0.893), "0.89");
    assert_eq!(numbers::shortened("endpoints replaced", 18), "endpoints replaced");
    assert_eq!(numbers::shortened("endpoints replaced", 11), "endpoints…");
    assert_eq!(numbers::tick(10.0), "10");
    assert_eq!(numbers::tick(100.0), "100");
    let one = |count| numbers::size(&Size { of: "clients".to_owned(), count });
    assert_eq!((one(1), one(1000)), ("1 client".to_owned(), "1,000 clients".to_owned()));
}

#[test]
fn the_script_refuses_wrong_arguments_before_it_begins_a_run() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("run");
    let script = |arguments: &[&str]| {
        let mut command = Command::new(root().join("hack/bench"));
        command.args(arguments).env("OUT", &out).output().expect("hack/bench")
    };
    let help = script(&["--help"]);
    assert!(help.status.success());
    assert!(String::from_utf8_lossy(&help.stdout).contains("Groups: node bursts"), "{help:?}");
    for arguments in [
        &["no-such"][..],
        &["--only"],
        &[","],
        &["node,no-such"],
        &["node,api", "-x"],
        &["engine", "-x"],
    ] {
        let refused = script(arguments);
        assert_eq!(refused.status.code(), Some(1), "{arguments:?}: {refused:?}");
        assert!(
            String::from_utf8_lossy(&refused.stderr).starts_with("hack/bench: "),
            "{refused:?}"
        );
    }
    assert!(!out.exists(), "a run was begun");
}
