//! Counts differences in groups, and writes what a run has found.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::case::{Answer, Case};
use crate::compare;
use crate::open_api::OpenApi;
use crate::table::{Key, Table};

/// Examples of values that are told of a group.
const EXAMPLES_MAX: usize = 4;

/// What is known of a group of equal differences.
#[derive(Default)]
struct Group {
    count: usize,
    examples: Vec<String>,
    /// What the two servers said, of the first.
    said: [String; 2],
}

/// The tally of a run.
#[derive(Default)]
pub struct Report {
    requests: usize,
    equal: usize,
    explained: usize,
    unexplained: usize,
    /// Requests that were sent and are not compared.
    left: usize,
    /// Requests by what is done: all, equal.
    operations: BTreeMap<&'static str, [usize; 2]>,
    groups: BTreeMap<Key, Group>,
    /// Requests by the line of the table.
    reasons: BTreeMap<usize, (usize, String)>,
}

impl Report {
    /// Counts one case with the answers of both servers. Of owners, what follows a write that only one server has taken is not compared: the objects
    /// are no longer the same.
    pub fn count(&mut self, api: &OpenApi, table: &Table, case: &Case, answers: &[Vec<Answer>; 2]) {
        let (definition, owners) = (case.definition.as_deref(), case.compares_owners());
        let mut has_empty = false;
        for (step, (theirs, ours)) in answers[0].iter().zip(&answers[1]).enumerate() {
            self.requests += 1;
            let counts = self.operations.entry(case.operation).or_default();
            counts[0] += 1;
            let mut found = compare::differences(api, definition, owners, theirs, ours);
            has_empty |= found.iter().any(|what| what.starts_with("empty"));
            if has_empty {
                let which = found.iter_mut().filter(|what| **what == "rewritten only ours");
                which.for_each(|what| what.push_str(", of what is empty"));
            }
            if found.is_empty() {
                self.equal += 1;
                counts[1] += 1;
                continue;
            }
            match self.explain(table, case, step, found, [theirs, ours]) {
                true => self.explained += 1,
                false => self.unexplained += 1,
            }
            if owners && theirs.is_success() != ours.is_success() {
                self.left += case.steps.len() - step - 1;
                return;
            }
        }
    }

    /// Counts the differences of one request; true if all of them have a reason.
    fn explain(
        &mut self,
        table: &Table,
        case: &Case,
        step: usize,
        found: Vec<String>,
        answers: [&Answer; 2],
    ) -> bool {
        let mut is_explained = true;
        for what in found {
            let key = Key {
                resource: case.resource.clone(),
                operation: case.operation.to_owned(),
                field: case.field.clone(),
                what,
            };
            match table.explain(&key) {
                Some((line, reason)) => {
                    let row = self.reasons.entry(line).or_insert((0, reason.to_owned()));
                    row.0 += 1;
                }
                None => {
                    is_explained = false;
                    self.note(key, case, step, answers);
                }
            }
        }
        is_explained
    }

    fn note(&mut self, key: Key, case: &Case, step: usize, answers: [&Answer; 2]) {
        let group = self.groups.entry(key).or_default();
        if group.count == 0 {
            let label = case.steps.get(step).map(|step| step.label()).unwrap_or_default();
            let label = match case.steps.len() {
                1 => label,
                _ => format!("request {}: {label}", step + 1),
            };
            group.said = answers.map(|answer| answer.message.chars().take(400).collect());
            group.examples.push(label);
        }
        group.count += 1;
        if group.examples.len() <= EXAMPLES_MAX {
            group.examples.push(case.value.clone());
        }
    }

    /// Counts a resource that could not be compared.
    pub fn fail(&mut self) {
        self.unexplained += 1;
    }

    /// The number of unexplained requests.
    pub fn unexplained(&self) -> usize {
        self.unexplained
    }

    /// The line that closes a run.
    pub fn summary(&self) -> String {
        format!(
            "{} requests to each server: {} answered alike, {} differ as explained, {} differ without an explanation",
            self.requests, self.equal, self.explained, self.unexplained
        )
    }

    /// Writes the groups without an explanation, each with what was said.
    pub fn write_unexplained(&self, path: &Path) -> Result<()> {
        let mut text = String::new();
        for (key, group) in &self.groups {
            let Key { resource, operation, field, what } = key;
            let examples = group.examples.join(" | ");
            let _ = writeln!(
                text,
                "{resource}\t{operation}\t{field}\t{what}\t{}\t{examples}",
                group.count
            );
            for (whose, said) in ["theirs", "ours"].into_iter().zip(&group.said) {
                if !said.is_empty() {
                    let _ = writeln!(text, "    {whose}: {}", said.replace('\n', " "));
                }
            }
        }
        std::fs::write(path, text).with_context(|| path.display().to_string())
    }

    /// Writes the page of a run.
    pub fn write_page(&self, path: &Path, table: &Table, left_out: &[String]) -> Result<()> {
        let mut text = String::from(
            "# Differential run\n\nWritten by `hack/differential`: the same requests to Kubernetes' kube-apiserver 1.20 and to orch-apiserver (1.25); code, reason, causes (field and reason) and, of successes, the object are compared. Every difference has a row in `differential.tsv`.\n\n",
        );
        let _ = writeln!(
            text,
            "{}.\n\n| operation | requests | alike |\n|---|---|---|",
            self.summary()
        );
        for (operation, [all, equal]) in &self.operations {
            let _ = writeln!(text, "| {operation} | {all} | {equal} |");
        }
        let _ = writeln!(
            text,
            "\nOf applies the object with the owners of its fields is compared, and whether anything was written. {} requests of them are not counted: they follow a write that only one of both servers took.",
            self.left
        );
        text.push_str("\n| row | differences | reason |\n|---|---|---|\n");
        for (line, (count, reason)) in &self.reasons {
            let _ = writeln!(text, "| {line} | {count} | {} |", reason.replace('|', "\\|"));
        }
        let _ = writeln!(text, "\nNot compared: {}.", left_out.join(", "));
        let unused = table.unused();
        if !unused.is_empty() {
            let _ = writeln!(text, "\nRows without use in this run: {unused:?}.");
        }
        std::fs::write(path, text).with_context(|| path.display().to_string())
    }
}
