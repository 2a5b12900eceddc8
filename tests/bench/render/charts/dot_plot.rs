//! A row of marks for each thing that was measured, those of one unit on one logarithmic axis.

use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use crate::figures::Unit;

use super::super::numbers::{number, shortened, size, tick};
use super::super::rows::Row;
use super::{Area, GRID, INK, LEGEND, Sides, TEXT, WIDTH, decades, text};

/// Heights of a row, and of the numbers below an axis.
const ROW: u32 = 19;
const AXIS: u32 = 22;
/// Where the axis begins and ends.
const LEFT: u32 = 460;
const RIGHT: u32 = 76;
/// Characters of a name that have room on its left.
const NAME_MAX: usize = 88;
const RADIUS: i32 = 4;

/// The chart of rows of one group.
pub fn draw(rows: &[&Row]) -> Result<String> {
    let mut units: Vec<Unit> = Vec::new();
    for row in rows {
        if !units.contains(&row.unit) {
            units.push(row.unit);
        }
    }
    let height = |unit: Unit| {
        let count = rows.iter().filter(|row| row.unit == unit).count();
        u32::try_from(count).unwrap_or(u32::MAX) * ROW + AXIS
    };
    let sides = Sides::from_rows(rows);
    let mut svg = String::new();
    {
        let size = (WIDTH, LEGEND + units.iter().map(|unit| height(*unit)).sum::<u32>());
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE)?;
        let (legend, mut rest) = root.split_vertically(LEGEND);
        sides.legend(&legend)?;
        for unit in units {
            let (area, below) = rest.split_vertically(height(unit));
            let rows: Vec<&Row> = rows.iter().copied().filter(|row| row.unit == unit).collect();
            panel(&area, unit, &rows, &sides)?;
            rest = below;
        }
        root.present()?;
    }
    Ok(svg)
}

fn panel(area: &Area<'_>, unit: Unit, rows: &[&Row], sides: &Sides<'_>) -> Result<()> {
    let (low, high) = decades(rows.iter().flat_map(|row| row.figures()).map(|f| f.median));
    let whole = rows.len() as f64;
    let mut chart = ChartBuilder::on(area)
        .margin_left(LEFT)
        .margin_right(RIGHT)
        .x_label_area_size(AXIS)
        .build_cartesian_2d((low..high).log_scale(), 0.0..whole)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(GRID)
        .x_labels(8)
        .x_label_formatter(&|value| format!("{} {}", tick(*value), unit.name()))
        .label_style((super::FONT, TEXT - 2).into_font().color(&INK))
        .draw()?;
    for (at, row) in rows.iter().enumerate() {
        let y = whole - at as f64 - 0.5;
        let place = |value: f64| (value.clamp(low, high), y);
        let mut figures = row.figures().map(|figure| figure.median);
        let first = figures.next().unwrap_or(low);
        let (least, most) =
            figures.fold((first, first), |(least, most), v| (least.min(v), most.max(v)));
        chart.draw_series([PathElement::new(vec![place(least), place(most)], GRID)])?;
        if let Some(ours) = &row.ours
            && let Some(spread) = ours.spread
        {
            let style = sides.color(&ours.side).stroke_width(1);
            let whole = vec![place(spread.p10), place(spread.p90)];
            chart.draw_series([PathElement::new(whole, style)])?;
        }
        // Ours lies above the others.
        let mut figures: Vec<_> = row.figures().collect();
        figures.reverse();
        for figure in figures {
            let mark = Circle::new(place(figure.median), RADIUS, sides.style(&figure.side));
            chart.draw_series([mark])?;
        }
        let top = i32::try_from(ROW)? * i32::try_from(at)? + i32::try_from(ROW / 2)?;
        let at = row.at.as_ref().map_or(String::new(), |at| format!(", {}", size(at)));
        let room = NAME_MAX.saturating_sub(at.chars().count());
        let name = shortened(&row.what, room) + &at;
        text(area, &name, (i32::try_from(LEFT)? - 10, top), HPos::Right, INK)?;
        if let Some(ours) = &row.ours {
            let x = i32::try_from(WIDTH - RIGHT)? + 10;
            text(area, &number(ours.median), (x, top), HPos::Left, sides.color(&ours.side))?;
        }
    }
    Ok(())
}
