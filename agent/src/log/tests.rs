//! What reaches the log, in which form.

use std::{
    io,
    sync::{Arc, Mutex},
};

use super::*;

/// A writer whose text the test reads.
#[derive(Debug, Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Page {
    fn lines(&self) -> Vec<String> {
        let bytes = self.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
    }
}

impl io::Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn logged(is_json: bool, filter: &str, work: impl FnOnce(&Control)) -> Vec<String> {
    let page = Page::default();
    let writer = page.clone();
    let filter = Filter::new(filter).unwrap().unwrap();
    let (log, control) = build(is_json, false, move || writer.clone(), filter);
    tracing::subscriber::with_default(log, || work(&control));
    page.lines()
}

#[test]
fn a_line_of_json_has_message_level_time_and_fields_at_its_top() {
    let lines = logged(true, "info", |_| tracing::warn!(key = "net/0123/eth0", code = 11, "cannot \"plug\""));
    let line: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!(line["message"], "cannot \"plug\"");
    assert_eq!(
        (&line["level"], &line["key"], &line["code"]),
        (&"WARN".into(), &"net/0123/eth0".into(), &11.into())
    );
    assert!(line["timestamp"].as_str().unwrap().ends_with('Z'), "{line}");
    assert_eq!(lines.len(), 1);
}

#[test]
fn a_line_of_text_has_no_colours_beyond_a_terminal() {
    let lines = logged(false, "info", |_| tracing::info!(pod = "shop/web-0", "attached"));
    assert!(lines[0].contains(" INFO ") && lines[0].ends_with("attached pod=\"shop/web-0\""), "{lines:?}");
    assert!(!lines[0].contains('\u{1b}'), "{lines:?}");
}

#[test]
fn the_filter_changes_while_the_log_runs_and_goes_back_to_the_configured_one() {
    let lines = logged(false, "info", |control| {
        tracing::debug!("one");
        let before = control.set(Filter::new("debug").unwrap());
        assert_eq!((before.as_str(), control.current().as_str()), ("info", "debug"));
        tracing::debug!("two");
        assert_eq!(control.set(None).as_str(), "debug");
        tracing::debug!("three");
    });
    assert!(lines.len() == 1 && lines[0].ends_with("two"), "{lines:?}");
}

#[test]
fn the_lines_that_were_logged_are_kept() {
    let lines = logged(true, "info", |control| {
        tracing::warn!(code = 11, "kept");
        tracing::debug!("not logged");
        assert!(control.recent().contains("\"kept\"") && control.recent().lines().count() == 1);
    });
    assert_eq!(lines.len(), 1);
}

#[test]
fn a_second_toggle_undoes_the_first() {
    let lines = logged(false, "warn", |control| {
        control.toggle();
        tracing::debug!("seen");
        control.toggle();
        tracing::debug!("unseen");
        assert_eq!(control.current().as_str(), "warn");
    });
    assert!(lines.iter().any(|it| it.ends_with("seen")), "{lines:?}");
    assert!(!lines.iter().any(|it| it.ends_with("unseen")), "{lines:?}");
}

#[test]
fn a_loop_of_failures_logs_a_bounded_number_of_lines() {
    for is_json in [false, true] {
        let lines = logged(is_json, "info", |_| {
            for _ in 0..5000 {
                tracing::error!("failed again");
            }
            tracing::error!("another place");
        });
        let (same, others): (Vec<_>, Vec<_>) = lines.iter().partition(|it| it.contains("failed again"));
        // A test that takes seconds sees one more line a second, each with a note.
        assert!((1000..1100).contains(&same.len()), "{}", same.len());
        assert!(others.iter().any(|it| it.contains("another place")), "{others:?}");
    }
}

#[test]
fn a_blank_filter_is_none_and_a_misspelt_one_is_refused() {
    assert_eq!(Filter::new(" "), Ok(None));
    assert!(Filter::new("ferrule_agent=debgu").is_err());
}
