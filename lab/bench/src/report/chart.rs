//! Bars as HTML: a group for each variant of a workload, a bar for each contestant, with a line
//! from its smallest to its largest run. They are laid out by the page's style, so that their
//! text has the size of the page's own on every screen.

use super::html::escape;
use super::numbers::number;
use crate::outcome::Row;
use std::fmt::Write;

/// Style of the charts.
pub const STYLE: &str = "\
.chart{margin:.4rem 0 1.4rem}.chart p{margin:.8rem 0 .2rem;font-weight:600;font-size:.9rem}\
.bar{display:grid;grid-template-columns:minmax(5.5rem,24%) 1fr 4rem;gap:.6rem;align-items:center;font-size:.9rem}\
.bar>:first-child{text-align:right;overflow-wrap:anywhere;line-height:1.2}.bar>:last-child{font-variant-numeric:tabular-nums}\
.track{position:relative;height:.95rem}.track i{position:absolute;left:0;top:0;bottom:0}\
.track b{position:absolute;top:50%;height:1px;background:#000}";

/// Syncline's colours, from complete to ablated, and those of its peers.
const OURS: [&str; 5] = ["#005a9c", "#2e86c1", "#5dade2", "#85c1e9", "#aed6f1"];
const THEIRS: [&str; 4] = ["#6e6e6e", "#969696", "#b9783c", "#78965a"];

/// One chart of rows that have the same unit.
pub fn bars(rows: &[&Row]) -> String {
    let values = rows.iter().flat_map(|row| row.columns.iter().filter_map(|column| row.value(column)));
    let greatest = values.map(|value| value.max).fold(f64::MIN_POSITIVE, f64::max);
    let mut chart = String::from("<div class=\"chart\">");
    for row in rows {
        group(&mut chart, row, greatest);
    }
    chart + "</div>\n"
}

/// Adds the bars of one row.
fn group(chart: &mut String, row: &Row, greatest: f64) {
    let label = row.label();
    if !label.is_empty() {
        let _ = write!(chart, "<p>{}</p>", escape(&label));
    }
    let percent = |value: f64| value / greatest * 100.0;
    let (mut ours, mut theirs) = (OURS.iter().cycle(), THEIRS.iter().cycle());
    for column in &row.columns {
        let colour = if column.peer { theirs.next() } else { ours.next() }.unwrap_or(&OURS[0]);
        let Some(value) = row.value(column) else { continue };
        let _ = write!(
            chart,
            "<div class=\"bar\"><span>{}</span><span class=\"track\">\
             <i style=\"width:{:.2}%;background:{colour}\"></i>",
            escape(&column.name),
            percent(value.median)
        );
        if value.max > value.min {
            let (left, width) = (percent(value.min), percent(value.max - value.min));
            let _ = write!(chart, "<b style=\"left:{left:.2}%;width:{width:.2}%\"></b>");
        }
        let _ = write!(chart, "</span><span>{}</span></div>", number(value.median));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::tests::row;
    use crate::workload::Unit;

    #[test]
    fn every_contestant_has_a_bar_within_the_picture() {
        let row = row(Unit::PerSecond("fsyncs"));
        let chart = bars(&[&row, &row]);
        assert_eq!(chart.matches("<i ").count(), 2 * row.columns.len(), "{chart}");
        for name in ["syncline", "ext4", "xfs", "8 jobs"] {
            assert!(chart.contains(name), "{name}: {chart}");
        }
        let widths = chart.split("width:").skip(1).map(|rest| rest.split('%').next().unwrap());
        let widths: Vec<f64> = widths.map(|width| width.parse().unwrap()).collect();
        assert!(widths.iter().all(|width| (0.0..=100.0).contains(width)), "{widths:?}");
    }
}
