//! The report as JUnit's XML: a test suite for the exploration, and in it a test case for each state that
//! fails, or one that passes.

use super::{Operations, Report, shown, text::entry_text};
use quick_xml::Writer;
use quick_xml::events::{BytesDecl, BytesText, Event};
use std::io;

/// The report as JUnit's XML.
pub fn as_junit(report: &Report<'_>) -> String {
    let mut writer = Writer::new_with_indent(Vec::new(), b' ', 2);
    write(&mut writer, report).expect("memory can be written to");
    let mut xml = String::from_utf8(writer.into_inner()).expect("only text was written");
    xml.push('\n');
    xml
}

fn write(writer: &mut Writer<Vec<u8>>, report: &Report<'_>) -> io::Result<()> {
    let entries = report.entries();
    let operations = Operations::new(report.history);
    let recording = shown(&report.path());
    let class = format!("crashlab.{}", report.on.unwrap_or(report.model.name));
    let (tests, failures) = (entries.len().max(1).to_string(), entries.len().to_string());
    let seconds = format!("{:.3}", report.elapsed.as_secs_f64());
    let counts = [
        ("tests", tests.as_str()),
        ("failures", failures.as_str()),
        ("errors", "0"),
        ("time", seconds.as_str()),
    ];
    let properties = [
        ("model", report.model.name.to_owned()),
        ("filesystem", report.on.unwrap_or("none, but the model").to_owned()),
        ("states", report.states.to_string()),
        ("checked", report.cases.to_string()),
        ("complete", report.is_complete.to_string()),
        ("failing", report.count().to_string()),
    ];
    let case = [("classname", class.as_str()), ("time", seconds.as_str())];
    writer.write_event(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)))?;
    let suites = writer.create_element("testsuites").with_attribute(("name", "crashlab"));
    suites.with_attributes(counts).write_inner_content(|writer| {
        let suite = writer.create_element("testsuite").with_attribute(("name", recording.as_str()));
        suite.with_attributes(counts).write_inner_content(|writer| {
            writer.create_element("properties").write_inner_content(|writer| {
                for (name, value) in &properties {
                    let property = writer.create_element("property").with_attribute(("name", *name));
                    property.with_attribute(("value", value.as_str())).write_empty()?;
                }
                Ok(())
            })?;
            if entries.is_empty() {
                let passed = writer.create_element("testcase").with_attribute(("name", "every power cut"));
                passed.with_attributes(case).write_empty()?;
            }
            for entry in &entries {
                let name = format!("state {}", entry.short_name());
                let message = report.fault(&operations, entry);
                let text = shown(&entry_text(report, &operations, entry));
                let element = writer.create_element("testcase").with_attribute(("name", name.as_str()));
                let mut case = case;
                case[1].1 = "0";
                element.with_attributes(case).write_inner_content(|writer| {
                    let failure =
                        writer.create_element("failure").with_attribute(("message", message.as_str()));
                    let failure = failure.with_attribute(("type", entry.rule().id()));
                    failure.write_text_content(BytesText::new(&text))?;
                    Ok(())
                })?;
            }
            let left_out = match report.count() - entries.len() {
                0 => String::new(),
                more => format!("\n{more} more states fail that are not listed here."),
            };
            let summary = format!("{}{left_out}", report.summary());
            writer.create_element("system-out").write_text_content(BytesText::new(&summary))?;
            Ok(())
        })?;
        Ok(())
    })?;
    Ok(())
}
