//! Bars as SVG: a group for each variant of a workload, a bar for each contestant, with a line from
//! its smallest to its largest run.

use super::numbers::number;
use crate::BenchError;
use crate::outcome::Row;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const WIDTH: u32 = 860;
const LABEL_WIDTH: i32 = 330;
const VALUE_WIDTH: i32 = 90;
const BAR_HEIGHT: i32 = 16;
const GROUP_GAP: i32 = 14;
const TEXT: i32 = 12;
const FONT: &str = "sans-serif";

/// Syncline's colours, from complete to ablated, and those of its peers.
const OURS: [RGBColor; 5] = [
    RGBColor(0, 90, 156),
    RGBColor(46, 134, 193),
    RGBColor(93, 173, 226),
    RGBColor(133, 193, 233),
    RGBColor(174, 214, 241),
];
const THEIRS: [RGBColor; 4] =
    [RGBColor(110, 110, 110), RGBColor(150, 150, 150), RGBColor(185, 120, 60), RGBColor(120, 150, 90)];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// One chart of rows that have the same unit.
pub fn bars(rows: &[&Row]) -> Result<String, BenchError> {
    let bars: usize = rows.iter().map(|row| row.columns.len()).sum();
    let height = bars as i32 * BAR_HEIGHT + rows.len() as i32 * GROUP_GAP + GROUP_GAP;
    let values = rows.iter().flat_map(|row| row.columns.iter().filter_map(|column| row.value(column)));
    let greatest = values.map(|value| value.max).fold(f64::MIN_POSITIVE, f64::max);
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height as u32)).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        let mut y = GROUP_GAP / 2;
        for row in rows {
            y = group(&area, row, y, greatest)? + GROUP_GAP;
        }
        area.present().map_err(failed)?;
    }
    Ok(svg)
}

/// Draws the bars of one row; returns where the next group may begin.
fn group(area: &Area<'_>, row: &Row, top: i32, greatest: f64) -> Result<i32, BenchError> {
    let full = f64::from(WIDTH as i32 - LABEL_WIDTH - VALUE_WIDTH);
    let x = |value: f64| LABEL_WIDTH + (value / greatest * full).round() as i32;
    let label = [row.variant.as_str(), row.phase];
    let label: Vec<_> = label.into_iter().filter(|word| !word.is_empty()).collect();
    let label = if label.is_empty() { row.unit.text() } else { label.join(", ") };
    text(area, &label, (4, top + BAR_HEIGHT / 2), HPos::Left, &BLACK)?;
    let (mut ours, mut theirs) = (OURS.iter().cycle(), THEIRS.iter().cycle());
    for (index, column) in row.columns.iter().enumerate() {
        let y = top + index as i32 * BAR_HEIGHT;
        let middle = y + BAR_HEIGHT / 2;
        let colour = if column.peer { theirs.next() } else { ours.next() }.unwrap_or(&BLACK);
        text(area, &column.name, (LABEL_WIDTH - 6, middle), HPos::Right, &BLACK)?;
        let Some(value) = row.value(column) else { continue };
        let bar = [(LABEL_WIDTH, y + 2), (x(value.median), y + BAR_HEIGHT - 2)];
        area.draw(&Rectangle::new(bar, colour.filled())).map_err(failed)?;
        if value.max > value.min {
            let spread = [(x(value.min), middle), (x(value.max), middle)];
            area.draw(&PathElement::new(spread, BLACK.stroke_width(1))).map_err(failed)?;
        }
        let end = x(value.max.max(value.median)) + 5;
        text(area, &number(value.median), (end, middle), HPos::Left, &RGBColor(60, 60, 60))?;
    }
    Ok(top + row.columns.len() as i32 * BAR_HEIGHT)
}

fn text(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    side: HPos,
    colour: &RGBColor,
) -> Result<(), BenchError> {
    let style = TextStyle::from((FONT, TEXT).into_font()).color(colour).pos(Pos::new(side, VPos::Center));
    area.draw(&Text::new(text.to_owned(), at, style)).map_err(failed)
}

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::Chart(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::tests::row;
    use crate::workload::Unit;

    #[test]
    fn every_contestant_has_a_bar_within_the_picture() {
        let row = row(Unit::PerSecond("fsyncs"));
        let svg = bars(&[&row, &row]).unwrap();
        // The background is a rectangle too.
        assert_eq!(svg.matches("<rect").count(), 1 + 2 * row.columns.len(), "{svg}");
        for name in ["syncline", "ext4", "xfs", "8 jobs"] {
            assert!(svg.contains(name), "{name}: {svg}");
        }
        assert!(svg.trim_end().ends_with("</svg>"));
    }
}
