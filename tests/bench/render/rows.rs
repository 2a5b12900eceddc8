//! One run's figures, joined into rows: ours, and beside it those of others.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};

use crate::figures::{Facts, Figure, Group, KUBERNETES, Line, OURS, Size, Unit};

#[derive(Debug)]
pub struct Run {
    /// Where and when.
    pub facts: Facts,
    /// Versions of those that ours was compared with.
    pub versions: BTreeMap<String, String>,
    /// By group, and in it in the order in which they were measured, those of one kind by size.
    pub rows: Vec<Row>,
}

/// What several sides took for the same.
#[derive(Debug)]
pub struct Row {
    /// Its section.
    pub group: Group,
    /// What was measured.
    pub what: String,
    /// With how many of what.
    pub at: Option<Size>,
    /// What is counted.
    pub unit: Unit,
    /// Ours, unless only others can be asked this.
    pub ours: Option<Figure>,
    /// The others; without a figure where this run had no such program.
    pub peers: Vec<Peer>,
}

/// Another side of a row.
#[derive(Debug)]
pub struct Peer {
    /// Who.
    pub name: String,
    /// What it took.
    pub figure: Option<Figure>,
}

impl Run {
    /// Reads the lines of a run.
    pub fn read(data: &str) -> Result<Run> {
        let (mut facts, mut versions, mut rows) = (None, BTreeMap::new(), Vec::<Row>::new());
        for (number, line) in data.lines().enumerate() {
            let line: Line =
                serde_json::from_str(line).with_context(|| format!("line {}", number + 1))?;
            match line {
                Line::Run(run) => {
                    ensure!(facts.replace(run).is_none(), "line {}: another run", number + 1);
                }
                Line::Peer { name, version } => drop(versions.insert(name, version)),
                Line::Figure(figure) => {
                    take(&mut rows, figure).with_context(|| format!("line {}", number + 1))?;
                }
            }
        }
        for row in &mut rows {
            // Kubernetes first; the others as they were measured.
            row.peers.sort_by_key(|peer| peer.name != KUBERNETES);
        }
        // The sizes of what was measured stand together, where the first of them was measured.
        let kind = |row: &Row| (row.group, row.what.clone(), row.unit);
        let firsts: Vec<usize> = rows
            .iter()
            .map(|row| rows.iter().position(|other| kind(other) == kind(row)))
            .map(Option::unwrap_or_default)
            .collect();
        let mut rows: Vec<(usize, Row)> = firsts.into_iter().zip(rows).collect();
        rows.sort_by_key(|(first, row)| (row.group, *first, row.at.as_ref().map(|at| at.count)));
        let rows = rows.into_iter().map(|(_, row)| row).collect();
        Ok(Run { facts: facts.context("no line says which run this is")?, versions, rows })
    }

    /// The sections that it has rows for.
    pub fn groups(&self) -> Vec<Group> {
        let mut groups: Vec<Group> = self.rows.iter().map(|row| row.group).collect();
        groups.dedup();
        groups
    }

    /// Whether it measured clusters of hollow nodes alone.
    pub fn is_of_scale(&self) -> bool {
        self.groups() == [Group::Scale]
    }

    /// The rows of a section.
    pub fn rows(&self, group: Group) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.group == group)
    }
}

impl Row {
    /// Whether a figure belongs into it.
    fn is_of(&self, figure: &Figure) -> bool {
        (self.group, &self.what, &self.at, self.unit)
            == (figure.group, &figure.what, &figure.at, figure.unit)
    }

    /// All its figures, ours first.
    pub fn figures(&self) -> impl Iterator<Item = &Figure> {
        self.ours.iter().chain(self.peers.iter().filter_map(|peer| peer.figure.as_ref()))
    }

    /// How many times better ours is.
    pub fn ratio(&self, peer: &Peer) -> Option<f64> {
        let (ours, theirs) = (self.ours.as_ref()?.median, peer.figure.as_ref()?.median);
        let (above, below) =
            if self.unit.more_is_better() { (ours, theirs) } else { (theirs, ours) };
        (below > 0.0).then(|| above / below)
    }

    /// Whether ours misses its budget.
    pub fn is_over_budget(&self) -> bool {
        let Some(ours) = &self.ours else { return false };
        ours.budget.is_some_and(|budget| match self.unit.more_is_better() {
            true => ours.median < budget,
            false => ours.median > budget,
        })
    }
}

/// Puts a figure into its row.
fn take(rows: &mut Vec<Row>, figure: Figure) -> Result<()> {
    let at = rows.iter().position(|row| row.is_of(&figure)).unwrap_or_else(|| {
        let (group, what, unit) = (figure.group, figure.what.clone(), figure.unit);
        let (at, peers) = (figure.at.clone(), Vec::new());
        rows.push(Row { group, what, at, unit, ours: None, peers });
        rows.len() - 1
    });
    let Some(row) = rows.get_mut(at) else { bail!("no row") };
    for name in &figure.peers {
        if !row.peers.iter().any(|peer| peer.name == *name) {
            row.peers.push(Peer { name: name.clone(), figure: None });
        }
    }
    let before = if figure.side == OURS {
        row.ours.replace(figure)
    } else {
        let known = row.peers.iter_mut().find(|peer| peer.name == figure.side);
        match known {
            Some(peer) => peer.figure.replace(figure),
            None => {
                row.peers.push(Peer { name: figure.side.clone(), figure: Some(figure) });
                None
            }
        }
    };
    ensure!(before.is_none(), "measured twice in one run: {}", row.what);
    Ok(())
}
