//! The files that `--report` writes.

use crate::programs::{Program, why_not};
use roxmltree::{Document, Node};
use std::fs;
use std::process::{Command, Stdio};

/// All elements of this name.
fn named<'a>(document: &'a Document<'_>, name: &str) -> Vec<Node<'a, 'a>> {
    document.descendants().filter(|node| node.has_tag_name(name)).collect()
}

/// A document, which must be well-formed: of the characters that XML allows, too.
fn parsed(xml: &str) -> Document<'_> {
    let is_allowed =
        |c: char| matches!(c, '\t' | '\n' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
    assert!(xml.chars().all(is_allowed), "{xml:?}");
    Document::parse(xml).unwrap_or_else(|error| panic!("{error}: {xml}"))
}

const REPORTS: [&str; 8] =
    ["--report", "r.json", "--report", "r.xml", "--report", "r.sarif", "--report", "r.html"];

#[test]
fn a_planted_bug_is_in_each_report() {
    if let Some(reason) = why_not() {
        eprintln!("skipped: {reason}");
        return;
    }
    let program = Program::record("planted", "wrong-file");
    let check = program.check();
    let words = ["explore", "--check", &check, "--seconds", "3600", "--keep-going"];
    let output = program.crashlab(&words).args(REPORTS).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();

    let json = program.json("r.json");
    let (state, lost) = (json["first"]["state"].as_str().unwrap(), &json["first"]["events"][0]);
    assert!(text.contains(&format!("State {state} fails")), "{text}");
    assert_eq!(lost["fate"], "lost");
    let what = lost["what"].as_str().unwrap();
    assert!(what.starts_with("write data"), "{what}");
    let failing = json["failing"].as_array().unwrap().len();
    assert!(failing > 1, "{json:#}");

    let xml = program.read("r.xml");
    let xml = parsed(&xml);
    let suite = named(&xml, "testsuite")[0];
    assert_eq!(suite.attribute("tests"), Some(&*failing.to_string()));
    let failures = named(&xml, "failure");
    assert_eq!((named(&xml, "testcase").len(), failures.len()), (failing, failing));
    assert_eq!(failures[0].attribute("type"), Some("crashlab/lost-change"));
    assert!(failures[0].attribute("message").unwrap().contains(what), "{failures:?}");
    let text = failures[0].text().unwrap();
    assert!(text.contains("Missing: fsync of data after #"), "{text}");
    assert!(text.contains("was stored, and is not in its place"), "{text}");

    let sarif = program.json("r.sarif");
    let (run, results) = (&sarif["runs"][0], sarif["runs"][0]["results"].as_array().unwrap());
    assert_eq!((sarif["version"].as_str(), results.len()), (Some("2.1.0"), failing));
    let rules = run["tool"]["driver"]["rules"].as_array().unwrap();
    for result in results {
        assert_eq!(result["ruleId"], rules[result["ruleIndex"].as_u64().unwrap() as usize]["id"]);
        assert_eq!(result["level"], "error");
        let flow = result["codeFlows"][0]["threadFlows"][0]["locations"].as_array().unwrap();
        assert!(!flow.is_empty() && flow.iter().all(|step| step["executionOrder"].is_u64()), "{result:#}");
    }
    let first = &results[0];
    assert_eq!(first["ruleId"], "crashlab/lost-change");
    assert!(first["message"]["text"].as_str().unwrap().contains("Missing: fsync of data after #"));
    let page = program.read("r.html");
    let cut = page.find("the power fails here").unwrap();
    let row = format!("<li class=\"lost\"><b>lost</b><span class=\"n\">#{}</span>", lost["event"]);
    assert!(page.find(&row).is_some_and(|at| at < cut), "{row}: {page}");
    assert!(page[..cut].contains("<code>add fsync of data here</code>"), "{page}");
    assert!(page[cut..].contains("<li class=\"later\"><b>not yet</b>"), "{page}");
    assert!(
        page.contains("was stored, and is not in its place") && page.contains("<th><code>data</code></th>"),
        "{page}"
    );
    assert!(page.contains("Other states that fail"), "{page}");

    let shown = program.crashlab(&["show", "r.crashlab", "--state", state]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let (before, after) = shown.split_once("-------- the power fails here --------\n").unwrap();
    let is_lost = |line: &&str| line.starts_with("LOST") && line.ends_with(what);
    assert_eq!(before.lines().filter(is_lost).count(), 1, "{shown}");
    assert!(after.lines().all(|line| line.starts_with("not yet")), "{shown}");

    let place = &first["locations"][0]["logicalLocations"][0]["fullyQualifiedName"];
    assert_eq!(place, &format!("#{} {what}", lost["event"]));
}

#[test]
fn a_program_without_a_failing_state_passes_in_each_report() {
    if let Some(reason) = why_not() {
        eprintln!("skipped: {reason}");
        return;
    }
    let program = Program::record("correct", "atomic-replace");
    let check = program.check();
    let words = ["explore", "--check", &check, "--seconds", "1"];
    let output = program.crashlab(&words).args(REPORTS).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let json = program.json("r.json");
    assert_eq!((json["failing"].as_array().unwrap().len(), json["first"].is_null()), (0, true));
    let xml = program.read("r.xml");
    let xml = parsed(&xml);
    let suite = named(&xml, "testsuite")[0];
    assert_eq!((suite.attribute("tests"), suite.attribute("failures")), (Some("1"), Some("0")));
    assert_eq!((named(&xml, "testcase").len(), named(&xml, "failure").len()), (1, 0));
    let page = program.read("r.html");
    assert!(page.contains("<h1>No state fails") && !page.contains("the power fails here"), "{page}");
    let sarif = program.json("r.sarif");
    assert_eq!(sarif["runs"][0]["results"].as_array().unwrap().len(), 0);
}

#[test]
fn a_report_of_another_kind_or_in_no_folder_is_refused_before_the_exploration() {
    if let Some(reason) = why_not() {
        eprintln!("skipped: {reason}");
        return;
    }
    let program = Program::record("planted", "no-fsync");
    let mark = program.folder.path().join("checked");
    let check = format!("touch '{}'; exit 1", mark.display());
    let explore = |report: &str| {
        let words = ["explore", "--check", &check, "--report", report];
        program.crashlab(&words).output().unwrap()
    };
    for (report, reason) in
        [("r.txt", ".json, .xml (JUnit), .sarif or .html"), ("missing/r.json", "missing/r.json")]
    {
        let refused = explore(report);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(
            (refused.status.code(), refused.stdout.len(), mark.exists()),
            (Some(2), 0, false),
            "{said}"
        );
        assert!(said.contains(reason), "{said}");
    }
}

/// Names, printed lines and what a checker says are bytes of strangers.
#[test]
fn hostile_bytes_do_not_leave_their_place() {
    if let Some(reason) = why_not() {
        eprintln!("skipped: {reason}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let hostile = r#"</pre></script><script>alert(1)</script>"'&amp;]]>--><!--"#;
    let script = format!(
        r#"name=$(printf '%s\001\033[31m\377\342\200\256\357\277\276\n.' '{}'); name=${{name%.}}
        echo x >"$(printf %s "$name" | tr / _)"; printf '%s\r\n' "$name""#,
        hostile.replace('\'', r"'\''")
    );
    let crashlab = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_crashlab"));
        command.args(words).current_dir(folder.path()).stdin(Stdio::null()).output().unwrap()
    };
    let recorded = crashlab(&["record", "-o", "r.crashlab", "--", "sh", "-c", &script]);
    assert!(recorded.status.success(), "{recorded:?}");
    let check = r#"ls -A; cat "$CRASHLAB_ACKED"; printf '\001\033[31m\377\342\200\256\357\277\276\n';
        test -s * || test ! -s "$CRASHLAB_ACKED""#;
    let words = ["explore", "--check", check, "--seconds", "3600", "--keep-going"];
    let output = crashlab(&[&words[..], &REPORTS[..]].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    let xml = read("r.xml");
    let xml = parsed(&xml);
    let text = named(&xml, "failure")[0].text().unwrap();
    assert!(text.contains(hostile), "{text}");
    let sarif: serde_json::Value = serde_json::from_str(&read("r.sarif")).unwrap();
    assert!(sarif["runs"][0]["results"][0]["message"]["text"].as_str().unwrap().contains(hostile));
    let page = read("r.html");
    // The page's own script, and no other.
    assert_eq!((page.matches("<script").count(), page.matches("</pre></script>").count()), (1, 0), "{page}");
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;&quot;'&amp;amp;"), "{page}");
    let is_obeyed = |c: char| c.is_control() && c != '\n' || matches!(c, '\u{202e}' | '\u{fffe}');
    assert!(!page.contains(is_obeyed), "{page:?}");
    let json: serde_json::Value = serde_json::from_str(&read("r.json")).unwrap();
    assert!(json["first"]["output"].as_str().unwrap().contains(hostile));
}

#[test]
fn recordings_without_an_end_and_checkers_that_refuse_the_beginning_are_told() {
    if let Some(reason) = why_not() {
        eprintln!("skipped: {reason}");
        return;
    }
    let program = Program::record("correct", "atomic-replace");
    let whole = fs::read(program.folder.path().join("r.crashlab")).unwrap();
    let explored = |bytes: &[u8]| {
        fs::write(program.folder.path().join("cut.crashlab"), bytes).unwrap();
        let words = ["explore", "cut.crashlab", "--check", "true", "--seconds", "3600"];
        program.crashlab(&words).output().unwrap()
    };
    let header = explored(&whole[..12]);
    assert_eq!(header.status.code(), Some(3), "{header:?}");
    let said = String::from_utf8_lossy(&header.stderr);
    assert!(said.contains("is cut off before the program changed anything; record again"), "{said}");
    let most = explored(&whole[..whole.len() - 1]);
    assert_eq!(most.status.code(), Some(0), "{most:?}");
    assert!(String::from_utf8_lossy(&most.stderr).contains("lacks the end of the program"), "{most:?}");

    let folder = tempfile::tempdir().unwrap();
    let crashlab = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_crashlab"));
        command.args(words).current_dir(folder.path()).stdin(Stdio::null()).output().unwrap()
    };
    assert!(crashlab(&["record", "-o", "r.crashlab", "--", "sh", "-c", "echo x >file"]).status.success());
    let refused = crashlab(&["explore", "--check", "test -e file", "--seconds", "3600"]);
    let said = String::from_utf8_lossy(&refused.stdout);
    assert!(said.contains("The checker refuses the files as they were before the program began"), "{said}");
}
