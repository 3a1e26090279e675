//! A standalone page: tables and charts, no script, nothing to load.

use super::numbers::{count, interval, number, optional, ratio};
use super::{CPU_NOTE, DAEMON_NOTE, WRITES_NOTE, chart, table::writes};
use crate::bootstrap::Interval;
use crate::outcome::{Conditions, Report, Row};
use std::fmt::Write;

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;color:#222;max-width:62rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.2rem;border-bottom:1px solid #ddd}\
table{border-collapse:collapse;width:100%;margin:.6rem 0 1.4rem;font-size:.86rem;font-variant-numeric:tabular-nums}\
th,td{padding:.16rem .5rem;text-align:right;border-bottom:1px solid #eee;white-space:nowrap}\
th:first-child,td:first-child{text-align:left}th{font-weight:600;color:#555}\
tr.ours td{background:#eef5fb}caption{text-align:left;font-weight:600;padding:.2rem 0}\
.wide{overflow-x:auto}.note{color:#555;font-size:.86rem}";

/// The page.
pub fn html(report: &Report) -> String {
    let mut page = String::new();
    // Writing to a string can't fail, here and below.
    let _ = write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Syncline: measurements</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}{}</style></head><body>\n\
         <h1>Syncline: measurements</h1>\n",
        chart::STYLE
    );
    conditions(&mut page, &report.conditions);
    let mut rows = report.rows.as_slice();
    while let Some(first) = rows.first() {
        let length =
            rows.iter().take_while(|row| row.suite == first.suite && row.title == first.title).count();
        let (group, rest) = rows.split_at(length);
        section(&mut page, group);
        rows = rest;
    }
    micro(&mut page, report);
    for failure in &report.failures {
        let _ = writeln!(page, "<p>Not measured: {}</p>", escape(failure));
    }
    page.push_str("</body></html>\n");
    page
}

fn conditions(page: &mut String, conditions: &Conditions) {
    let _ = writeln!(
        page,
        "<p>Syncline {} on Linux {}, {} × {}, {} of {} MiB. {} of everything, in rounds whose order is drawn; {} s of each timed load. \
         Values are medians, the 95&#8239;% those of a bootstrap over the rounds; the thin line in a bar goes from the least to the greatest run. Load average at the start: {}.</p>",
        escape(&conditions.version),
        escape(&conditions.kernel),
        conditions.cpus,
        escape(&conditions.cpu),
        escape(&conditions.device),
        conditions.device_bytes >> 20,
        if conditions.runs == 1 { "One run".to_owned() } else { format!("{} runs", conditions.runs) },
        conditions.seconds,
        number(conditions.load_average),
    );
    let counted = if conditions.counted_by_daemon { DAEMON_NOTE } else { WRITES_NOTE };
    for note in [counted, CPU_NOTE].into_iter().chain(conditions.notes.iter().map(String::as_str)) {
        let _ = writeln!(page, "<p class=\"note\">{}</p>", escape(note));
    }
    for warning in conditions.warnings() {
        let _ = writeln!(page, "<p><b>{}</b></p>", escape(&warning));
    }
}

/// The rows of one workload: a chart for each unit, a table for each row.
fn section(page: &mut String, rows: &[Row]) {
    let first = &rows[0];
    let _ = writeln!(page, "<h2>{}: {}</h2>", first.suite.to_uppercase(), escape(&first.title));
    let _ = writeln!(page, "<p class=\"note\">Load: {}.</p>", escape(&first.engine));
    let mut units: Vec<String> = rows.iter().map(|row| row.unit.text()).collect();
    units.dedup();
    for unit in units {
        let of_unit: Vec<&Row> = rows.iter().filter(|row| row.unit.text() == unit).collect();
        let better = if of_unit[0].unit.more_is_better() { "more is better" } else { "less is better" };
        let _ = writeln!(page, "<p><b>{}</b> ({better})</p>\n{}", escape(&unit), chart::bars(&of_unit));
    }
    for row in rows {
        row_table(page, row);
    }
}

fn row_table(page: &mut String, row: &Row) {
    let against = row.yardstick().map_or("", |column| column.name.as_str());
    let floor = row.floor();
    let beside_floor = floor.map_or_else(String::new, |floor| ratio_heads(&floor.name));
    let _ = write!(
        page,
        "<div class=\"wide\"><table><caption>{}</caption><tr><th></th><th>{}</th><th>min..max</th>{}{beside_floor}<th>p50 µs</th>\
         <th>p99 µs</th><th>flushes</th><th>writes</th><th>bytes/byte</th><th>CPU µs</th></tr>",
        escape(&row.name()),
        escape(&row.unit.text()),
        ratio_heads(against)
    );
    for column in &row.columns {
        let Some(figures) = row.figures(column) else { continue };
        let _ = write!(
            page,
            "<tr{}><td>{}</td><td>{}</td><td>{}..{}</td>{}{}<td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
             <td>{}</td><td>{}</td></tr>",
            if column.peer { "" } else { " class=\"ours\"" },
            escape(&column.name),
            number(figures.value.median),
            number(figures.value.min),
            number(figures.value.max),
            ratio_cells(figures.ratio, figures.ratio_interval),
            floor
                .map_or_else(String::new, |_| ratio_cells(figures.floor_ratio, figures.floor_ratio_interval)),
            optional(figures.p50_us),
            optional(figures.p99_us),
            count(figures.flushes_per_operation),
            writes(&figures),
            figures.bytes_per_byte.map_or_else(|| "–".into(), count),
            number(figures.cpu_us_per_operation),
        );
    }
    let _ = writeln!(
        page,
        "</table></div><p class=\"note\">Latency is that of the {}; flushes, writes and CPU time are for one operation.</p>",
        escape(row.latency_of)
    );
}

/// Heads of the columns of a ratio and its interval.
fn ratio_heads(to: &str) -> String {
    format!("<th>×&#8239;{}</th><th>95&#8239;%</th>", escape(to))
}

fn ratio_cells(of: Option<f64>, within: Option<Interval>) -> String {
    format!("<td>{}</td><td>{}</td>", ratio(of), interval(within))
}

fn micro(page: &mut String, report: &Report) {
    if report.micro.is_empty() {
        return;
    }
    page.push_str(
        "<h2>In the engine</h2><table><tr><th></th><th>ns each</th><th>min..max</th><th>GiB/s</th></tr>",
    );
    for result in &report.micro {
        let speed = result.bytes.map(|bytes| bytes as f64 / result.ns.median / 1.073_741_824);
        let _ = write!(
            page,
            "<tr><td>{}: {}</td><td>{}</td><td>{}..{}</td><td>{}</td></tr>",
            escape(result.name),
            escape(result.operation),
            number(result.ns.median),
            number(result.ns.min),
            number(result.ns.max),
            optional(speed)
        );
    }
    page.push_str("</table>\n");
}

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::tests::{column, row};
    use crate::workload::Unit;

    #[test]
    fn ratios_to_the_floor_stand_beside_those_to_the_best_peer() {
        let mut beside = row(Unit::PerSecond("fsyncs"));
        beside.columns.push(column("null-flush", true, &[400, 400, 400]));
        let page = html(&Report { rows: vec![beside], ..Report::default() });
        assert!(
            page.contains("<th>×&#8239;xfs</th><th>95&#8239;%</th><th>×&#8239;null-flush</th>"),
            "{page}"
        );
        assert!(page.contains("<td>2.00</td><td>–</td><td>0.50</td><td>0.25..0.75</td>"), "{page}");
        let table = &page[page.find("<table").unwrap()..page.find("</table>").unwrap()];
        assert_eq!(table.matches("<td>").count(), 4 * table.matches("<th>").count(), "{table}");
    }

    #[test]
    fn the_page_stands_alone() {
        let conditions = Conditions { notes: vec!["a & b".into()], ..Conditions::default() };
        let rows = vec![row(Unit::PerSecond("fsyncs")), row(Unit::Milliseconds)];
        let page = html(&Report { conditions, rows, ..Report::default() });
        assert!(page.contains("writing &lt;fast&gt;") && page.contains("a &amp; b"), "{page}");
        assert_eq!(page.matches("<div class=\"chart\">").count(), 2, "a chart for each unit");
        assert_eq!(page.matches("<table").count(), 2);
        for reference in ["src=", "href=", "url(", "@import", "<script"] {
            assert!(!page.contains(reference), "{reference}");
        }
        for tag in ["div", "span", "i", "b", "table", "tr", "td", "h2", "p"] {
            let opened =
                page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
        }
    }
}
