//! The live view.

use std::{io, time::Instant};

use ratatui::{
    DefaultTerminal, Frame,
    crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
    layout::{Constraint, Layout},
    style::{Color, Modifier, Style},
    text::Line,
    widgets::{Row, Table},
};

use super::{
    columns::{HEADER, row},
    rates::{Rate, Sort},
};

/// The terminal, until dropped.
pub(super) struct Screen(DefaultTerminal);

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Sort(Sort),
    /// The terminal has another size, or the key means nothing.
    Redraw,
}

const HELP: &str = "b bytes  p packets  d drops  o out  i in  n name  q quit";

// === impl Screen ===

impl Screen {
    pub(super) fn open() -> io::Result<Self> {
        ratatui::try_init().map(Self)
    }

    pub(super) fn draw(&mut self, rates: &[Rate], sort: Sort) -> io::Result<()> {
        self.0.draw(|frame| draw(frame, rates, sort)).map(drop)
    }

    /// The next key before a time; `None` at that time.
    pub(super) fn key(&mut self, until: Instant) -> io::Result<Option<Key>> {
        if !event::poll(until.saturating_duration_since(Instant::now()))? {
            return Ok(None);
        }
        Ok(Some(match event::read()? {
            Event::Key(key) if key.kind == KeyEventKind::Press => meaning(key),
            _ => Key::Redraw,
        }))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

fn meaning(key: KeyEvent) -> Key {
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Key::Quit,
        KeyCode::Char('q') | KeyCode::Esc => Key::Quit,
        KeyCode::Char('b') => Key::Sort(Sort::Bytes),
        KeyCode::Char('p') => Key::Sort(Sort::Packets),
        KeyCode::Char('d') => Key::Sort(Sort::Drops),
        KeyCode::Char('o') => Key::Sort(Sort::Out),
        KeyCode::Char('i') => Key::Sort(Sort::In),
        KeyCode::Char('n') => Key::Sort(Sort::Pod),
        _ => Key::Redraw,
    }
}

fn draw(frame: &mut Frame<'_>, rates: &[Rate], sort: Sort) {
    let [title, body, help] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)])
            .areas(frame.area());
    let packets: f64 = rates.iter().map(|it| it.egress_packets + it.ingress_packets).sum();
    let count = rates.len();
    frame
        .render_widget(Line::from(format!("{count} interfaces, {packets:.0} packets/s, by {sort:?}")), title);
    let widths = [
        Constraint::Min(20),
        Constraint::Length(8),
        Constraint::Length(10),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(8),
    ];
    let rows = rates.iter().map(|it| {
        let dropping = if it.drops > 0.0 { Style::new().fg(Color::Red) } else { Style::new() };
        Row::new(row(it)).style(dropping)
    });
    let header = Row::new(HEADER).style(Style::new().add_modifier(Modifier::BOLD));
    frame.render_widget(Table::new(rows, widths).header(header), body);
    frame.render_widget(Line::from(HELP), help);
}

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend};

    use super::*;

    #[test]
    fn the_screen_shows_pods_in_order_and_the_keys() {
        let rate = |pod: &str, drops| Rate {
            namespace: "shop".to_owned(),
            pod: pod.to_owned(),
            container_id: String::new(),
            ifname: "eth0".to_owned(),
            egress_packets: 12.0,
            egress_bytes: 3400.0,
            ingress_packets: 1.0,
            ingress_bytes: 60.0,
            drops,
        };
        let mut terminal = Terminal::new(TestBackend::new(90, 6)).unwrap();
        terminal.draw(|frame| draw(frame, &[rate("web-0", 0.0), rate("db-0", 2.0)], Sort::Drops)).unwrap();
        let cells = terminal.backend().buffer().clone();
        let text: String = cells.content.iter().map(|it| it.symbol()).collect();
        for part in ["2 interfaces, 26 packets/s, by Drops", "shop/web-0", "3.4k", HELP] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let red = cells.content.iter().filter(|it| it.fg == Color::Red && it.symbol() != " ").count();
        assert!(red > 0, "a pod that loses packets is red");
    }

    #[test]
    fn keys_choose_the_order_and_end() {
        let key = |code, modifiers| meaning(KeyEvent::new(code, modifiers));
        assert_eq!(key(KeyCode::Char('q'), KeyModifiers::NONE), Key::Quit);
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), Key::Quit);
        assert_eq!(key(KeyCode::Char('d'), KeyModifiers::NONE), Key::Sort(Sort::Drops));
        assert_eq!(key(KeyCode::Char('x'), KeyModifiers::NONE), Key::Redraw);
    }
}
