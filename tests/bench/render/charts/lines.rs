//! What changes with a size: a small panel for each thing that was measured, a line for each side.

use anyhow::Result;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use crate::figures::{Figure, Unit};

use super::super::numbers::{count, shortened, tick};
use super::super::rows::Row;
use super::{Area, GRID, INK, LEGEND, Sides, TEXT, WIDTH, decades, text};

/// Panels beside each other.
const COLUMNS: usize = 2;
/// Height of a panel, of its title, of the sizes below it, and width of the numbers on its left.
const HEIGHT: u32 = 150;
const TITLE: u32 = 24;
const SIZES: u32 = 22;
const NUMBERS: u32 = 84;
/// Characters of a title that have room.
const TITLE_MAX: usize = 84;
const RADIUS: i32 = 4;

/// Rows of the same words and unit.
struct Panel<'a> {
    what: &'a str,
    unit: Unit,
    of: &'a str,
    rows: Vec<&'a Row>,
}

/// The chart of rows of one group, all of which have a size.
pub fn draw(rows: &[&Row]) -> Result<String> {
    let panels = panels(rows);
    let sides = Sides::from_rows(rows);
    let lines = panels.len().div_ceil(COLUMNS);
    let mut svg = String::new();
    {
        let height = LEGEND + HEIGHT * u32::try_from(lines)?;
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE)?;
        let (legend, rest) = root.split_vertically(LEGEND);
        sides.legend(&legend)?;
        for (area, panel) in rest.split_evenly((lines, COLUMNS)).iter().zip(&panels) {
            panel.draw(area, &sides)?;
        }
        root.present()?;
    }
    Ok(svg)
}

fn panels<'a>(rows: &[&'a Row]) -> Vec<Panel<'a>> {
    let mut panels: Vec<Panel<'a>> = Vec::new();
    for row in rows {
        let Some(at) = &row.at else { continue };
        let known =
            panels.iter_mut().find(|p| (p.what, p.unit, p.of) == (&row.what, row.unit, &at.of));
        match known {
            Some(panel) => panel.rows.push(row),
            None => {
                let (what, unit, of) = (row.what.as_str(), row.unit, at.of.as_str());
                panels.push(Panel { what, unit, of, rows: vec![row] });
            }
        }
    }
    panels
}

impl Panel<'_> {
    fn figures(&self) -> impl Iterator<Item = &Figure> {
        self.rows.iter().flat_map(|row| row.figures())
    }

    /// Sizes, each as far from the next as any other.
    fn sizes(&self) -> Vec<u64> {
        let mut sizes: Vec<u64> =
            self.rows.iter().filter_map(|row| row.at.as_ref()).map(|at| at.count).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// From zero where the figures are of one order, else in decades.
    fn draw(&self, area: &Area<'_>, sides: &Sides<'_>) -> Result<()> {
        let unit = format!(", {}", self.unit.name());
        let title = shortened(self.what, TITLE_MAX.saturating_sub(unit.chars().count())) + &unit;
        text(area, &title, (12, i32::try_from(TITLE / 2)?), HPos::Left, INK)?;
        let values = || self.figures().map(|figure| figure.median);
        let (least, most) =
            values().fold((f64::INFINITY, 0.0_f64), |(a, b), v| (a.min(v), b.max(v)));
        if least * 10.0 > most {
            return self.plot(area, sides, 0.0..most * 1.15);
        }
        let (low, high) = decades(values());
        self.plot(area, sides, (low..high).log_scale())
    }

    fn plot<Y>(&self, area: &Area<'_>, sides: &Sides<'_>, axis: Y) -> Result<()>
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: ValueFormatter<f64>,
    {
        let sizes = self.sizes();
        let mut chart = ChartBuilder::on(area)
            .margin_top(TITLE)
            .margin_right(24)
            .x_label_area_size(SIZES)
            .y_label_area_size(NUMBERS)
            .build_cartesian_2d(-0.25..sizes.len() as f64 - 0.75, axis)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(GRID)
            .y_labels(4)
            .y_label_formatter(&|value| tick(*value))
            .label_style((super::FONT, TEXT - 2).into_font().color(&INK))
            .draw()?;
        let low = chart.y_range().start;
        let place = |figure: &Figure| {
            let size = figure.at.as_ref().map_or(0, |at| at.count);
            let x = sizes.iter().position(|known| *known == size).unwrap_or_default();
            (x as f64, figure.median.max(low))
        };
        // Ours lies above the others.
        for side in sides.0.iter().rev() {
            let mut line: Vec<(f64, f64)> =
                self.figures().filter(|figure| figure.side == *side).map(place).collect();
            line.sort_by(|one, other| one.0.total_cmp(&other.0));
            let marks =
                line.clone().into_iter().map(|at| Circle::new(at, RADIUS, sides.style(side)));
            if line.len() > 1 {
                let style = sides.color(side).stroke_width(2);
                chart.draw_series([PathElement::new(line, style)])?;
            }
            chart.draw_series(marks)?;
        }
        let (left, top) = area.get_base_pixel();
        for (at, size) in sizes.iter().enumerate() {
            let (x, y) = chart.backend_coord(&(at as f64, low));
            let last = if at + 1 == sizes.len() { format!(" {}", self.of) } else { String::new() };
            let words = format!("{}{last}", count(*size));
            text(area, &words, (x - left, y - top + 11), HPos::Center, INK)?;
        }
        Ok(())
    }
}
