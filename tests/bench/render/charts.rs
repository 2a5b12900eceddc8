//! The charts of a page: for each group a row of marks for what was measured, and lines over what was varied. Ours is filled, others are hollow.

mod dot_plot;
mod lines;

use anyhow::Result;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::figures::{Group, KUBE_PROXY, KUBERNETES, OURS};

use super::Files;
use super::rows::{Row, Run};

/// What the names of all charts begin and end with.
const PREFIX: &str = "benchmarks-";
const SUFFIX: &str = ".svg";
const WIDTH: u32 = 900;
/// Heights of the legend and of a line of text.
const LEGEND: u32 = 28;
const TEXT: i32 = 12;
const FONT: &str = "sans-serif";
/// Of ours, of Kubernetes' programs, and of the others in the order in which a chart meets them: blue, vermilion, green, purple, grey, which the colour-blind
/// tell apart.
const COLORS: [RGBColor; 5] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(170, 80, 140),
    RGBColor(100, 100, 100),
];
const THEIRS: [&str; 2] = [KUBERNETES, KUBE_PROXY];
const INK: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(225, 225, 225);

/// A drawing in pixels.
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The charts of all groups, by file name.
pub fn all(run: &Run) -> Result<Files> {
    let mut charts = Vec::new();
    for group in run.groups() {
        let (varied, fixed): (Vec<&Row>, Vec<&Row>) = run
            .rows(group)
            .filter(|row| row.figures().next().is_some())
            .partition(|row| run.rows(group).any(|other| is_another_size(row, other)));
        if !fixed.is_empty() {
            charts.push((name(group, ""), dot_plot::draw(&fixed)?));
        }
        if !varied.is_empty() {
            charts.push((name(group, "-by-size"), lines::draw(&varied)?));
        }
    }
    Ok(charts)
}

/// Charts of rows over their sizes, by these names.
pub fn by_size(named: &[(&str, &[&Row])]) -> Result<Files> {
    let drawn = named.iter().filter(|(_, rows)| !rows.is_empty());
    drawn.map(|(name, rows)| Ok(((*name).to_owned(), lines::draw(rows)?))).collect()
}

fn is_another_size(row: &Row, other: &Row) -> bool {
    let are_sized = row.at.is_some() && other.at.is_some();
    are_sized && (&row.what, row.unit) == (&other.what, other.unit) && row.at != other.at
}

/// Whether a file is a chart.
pub fn is_chart(name: &str) -> bool {
    name.starts_with(PREFIX) && name.ends_with(SUFFIX)
}

/// Whether a file is a chart of a group.
pub fn is_of(file: &str, group: Group) -> bool {
    ["", "-by-size"].iter().any(|kind| name(group, kind) == file)
}

fn name(group: Group, kind: &str) -> String {
    format!("{PREFIX}{}{kind}{SUFFIX}", format!("{group:?}").to_lowercase())
}

/// The sides of a chart, ours first.
struct Sides<'a>(Vec<&'a str>);

impl<'a> Sides<'a> {
    fn from_rows(rows: &[&'a Row]) -> Sides<'a> {
        let mut sides = vec![OURS];
        for figure in rows.iter().flat_map(|row| row.figures()) {
            if !sides.contains(&figure.side.as_str()) {
                sides.push(&figure.side);
            }
        }
        Sides(sides)
    }

    fn color(&self, side: &str) -> RGBColor {
        let mut others = self.0.iter().filter(|side| **side != OURS && !THEIRS.contains(side));
        let at = match side {
            OURS => 0,
            KUBERNETES | KUBE_PROXY => 1,
            _ => 2 + others.position(|known| *known == side).unwrap_or_default(),
        };
        COLORS[at % COLORS.len()]
    }

    /// Filled for ours.
    fn style(&self, side: &str) -> ShapeStyle {
        ShapeStyle { color: self.color(side).into(), filled: side == OURS, stroke_width: 2 }
    }

    /// The names of the sides in their colours, with squares: circles are figures.
    fn legend(&self, area: &Area<'_>) -> Result<()> {
        let mut x = 12;
        for side in &self.0 {
            area.draw(&Rectangle::new([(x, 9), (x + 10, 19)], self.style(side)))?;
            text(area, side, (x + 16, 14), HPos::Left, self.color(side))?;
            x += 40 + i32::try_from(side.len()).unwrap_or(0) * 7;
        }
        Ok(())
    }
}

/// Text beside a point, in the middle of its height.
fn text(area: &Area<'_>, words: &str, at: (i32, i32), side: HPos, color: RGBColor) -> Result<()> {
    let style = (FONT, TEXT).into_font().color(&color).pos(Pos::new(side, VPos::Center));
    area.draw(&Text::new(words.to_owned(), at, style))?;
    Ok(())
}

/// From where to where an axis goes that shows all values: whole decades, at least one. What is not above zero lies at its beginning.
fn decades(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
    for value in values.filter(|value| *value > 0.0) {
        (least, most) = (least.min(value), most.max(value));
    }
    if least > most {
        return (0.1, 1.0);
    }
    let (low, high) = (least.log10().floor(), most.log10().ceil());
    (10_f64.powf(low), 10_f64.powf(if high > low { high } else { low + 1.0 }))
}
