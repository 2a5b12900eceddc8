//! The screen as cells of a terminal: a line of views, what is shown, a line at the foot. Only attributes and colours that are readable on dark and on light.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table};

use crate::page::Window;
use crate::rows::{RowStyle, View};
use crate::screen::{InputLine, Log, Overlay, Screen};

/// Spaces between columns.
const GAP: u16 = 2;
/// Widest column but the last.
const COLUMN_WIDTH_MAX: usize = 48;

/// What the keys do.
const HELP: &[(&str, &str)] = &[
    ("1 2 3 4, tab", "nodes, pods, events, logs"),
    ("up down, j k", "move; also page up and down, home and end, g G"),
    ("left right", "move a long text to the side"),
    ("enter, d", "describe the object, or the object of an event"),
    ("w", "why: what is wrong with it"),
    ("l", "the log of a pod; c: its next container"),
    ("/", "show only rows with a text; escape ends it"),
    ("n", "choose a namespace; empty for all"),
    ("?", "this page"),
    ("q, escape", "close a page; q in a view ends the program, as does control-c"),
];

/// Draws the screen. `colours` is false where the user wants none.
pub fn draw(screen: &Screen, frame: &mut Frame<'_>, now: i64, colours: bool) {
    let area = frame.area();
    if area.width == 0 || area.height == 0 {
        return;
    }
    let line = |at: u16| Rect { y: area.y.saturating_add(at), height: 1, ..area };
    frame.render_widget(Paragraph::new(head(screen, colours)), line(0));
    if area.height > 1 {
        let foot = foot(screen, colours);
        frame.render_widget(Paragraph::new(foot), line(area.height.saturating_sub(1)));
    }
    if area.height < 3 {
        return;
    }
    let body = Rect { y: area.y.saturating_add(1), height: area.height.saturating_sub(2), ..area };
    match &screen.over {
        Overlay::Help => draw_help(frame, body),
        Overlay::Page { title, lines, window } => {
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            draw_lines(frame, body, title, &lines, *window);
        }
        Overlay::Nothing if screen.view == View::Logs => draw_log(screen.log.as_ref(), frame, body),
        Overlay::Nothing => draw_rows(screen, frame, body, now, colours),
    }
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn reversed() -> Style {
    Style::new().add_modifier(Modifier::REVERSED)
}

fn style_of(tone: RowStyle, colours: bool) -> Style {
    match tone {
        RowStyle::Plain => Style::new(),
        RowStyle::Attention if colours => Style::new().fg(Color::Magenta),
        RowStyle::Alarm if colours => Style::new().fg(Color::Red),
        RowStyle::Attention | RowStyle::Alarm => bold(),
    }
}

/// The views, and whose objects are shown.
fn head(screen: &Screen, colours: bool) -> Line<'static> {
    let mut spans = Vec::new();
    for (at, view) in View::ALL.into_iter().enumerate() {
        let style = if view == screen.view { reversed() } else { Style::new() };
        spans.push(Span::styled(format!(" {} {} ", at.saturating_add(1), view.name()), style));
    }
    let namespace = screen.namespace.as_deref().unwrap_or("all namespaces");
    spans.push(Span::raw(format!("  {namespace}")));
    if screen.view != View::Logs && screen.is_loaded {
        let more = if screen.rows.is_partial() { " of more" } else { "" };
        spans.push(Span::raw(format!("  {}{more}", screen.rows.count())));
        let failing = if screen.view == View::Events { "warnings" } else { "failing" };
        for (tone, words) in [(RowStyle::Alarm, failing), (RowStyle::Attention, "not ready")] {
            let count = screen.rows.count_of(tone);
            if count > 0 {
                spans.push(Span::styled(format!("  {count} {words}"), style_of(tone, colours)));
            }
        }
    }
    if !screen.filter.is_empty() {
        spans.push(Span::styled(format!("  /{}", screen.filter), bold()));
    }
    Line::from(spans)
}

/// What is typed, what went wrong, or some of the keys.
fn foot(screen: &Screen, colours: bool) -> Line<'static> {
    match &screen.typed {
        Some(InputLine::Filter(line)) => return typed_line("/", line),
        Some(InputLine::Namespace(line)) => return typed_line("namespace (empty: all): ", line),
        None => {}
    }
    if let Some(notice) = &screen.notice {
        return Line::styled(notice.clone(), style_of(RowStyle::Alarm, colours));
    }
    let keys = match (&screen.over, screen.view) {
        (Overlay::Help, _) => "q close",
        (Overlay::Page { .. }, _) => "arrows move  q close",
        (_, View::Logs) => "arrows move  G follow  c container  tab view  ? help  q quit",
        (_, View::Nodes) => "enter describe  / filter  tab view  ? help  q quit",
        _ => "enter describe  w why  l log  / filter  n namespace  tab view  ? help  q quit",
    };
    Line::styled(keys, Style::new().add_modifier(Modifier::DIM))
}

fn typed_line(prompt: &'static str, line: &str) -> Line<'static> {
    Line::from(vec![
        Span::styled(prompt, bold()),
        Span::raw(line.to_owned()),
        Span::styled(" ", reversed()),
    ])
}

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let width = HELP.iter().map(|(keys, _)| keys.len()).max().unwrap_or_default();
    let line = |(keys, what): &(&'static str, &'static str)| {
        let keys = Span::styled(format!("{keys:width$}"), bold());
        Line::from(vec![keys, Span::raw("  "), Span::raw(*what)])
    };
    let lines: Vec<Line<'_>> = HELP.iter().map(line).collect();
    frame.render_widget(Paragraph::new(lines), area);
}

fn draw_log(log: Option<&Log>, frame: &mut Frame<'_>, area: Rect) {
    let Some(log) = log else {
        let text = "no log chosen: press l on a pod (view 2)";
        frame.render_widget(Paragraph::new(text), area);
        return;
    };
    let container = log.containers.get(log.container).map_or("", String::as_str);
    let mut title = format!("{}/{} {container}", log.pod.namespace, log.pod.name);
    if log.containers.len() > 1 {
        let at = log.container.saturating_add(1);
        title.push_str(&format!(" ({at} of {})", log.containers.len()));
    }
    title.push_str(match (log.has_ended, log.window.follows) {
        (true, _) => " - ended",
        (false, true) => " - following",
        (false, false) => "",
    });
    let lines: Vec<&str> = log.lines.lines().iter().map(String::as_str).collect();
    draw_lines(frame, area, &crate::text::cell(&title), &lines, log.window);
}

/// A title, and the part of the lines that the window shows.
fn draw_lines(frame: &mut Frame<'_>, area: Rect, title: &str, lines: &[&str], window: Window) {
    let height = usize::from(area.height).saturating_sub(1);
    let first = window.first(lines.len(), height);
    let mut shown = vec![Line::styled(title.to_owned(), bold())];
    let part = lines.iter().skip(first).take(height);
    shown.extend(part.map(|line| Line::raw(line.chars().skip(window.left).collect::<String>())));
    frame.render_widget(Paragraph::new(shown), area);
}

fn draw_rows(screen: &Screen, frame: &mut Frame<'_>, area: Rect, now: i64, colours: bool) {
    let all = screen.rows.filter_rows(&screen.filter);
    if all.is_empty() {
        let text = match (screen.is_loaded, screen.filter.is_empty()) {
            (false, _) => "loading ...",
            (true, true) => "nothing here",
            (true, false) => "no row has this text",
        };
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let height = usize::from(area.height).saturating_sub(1).max(1);
    let top = first_shown(screen.at, all.len(), height);
    let shown: Vec<(Vec<String>, RowStyle)> = all
        .iter()
        .skip(top)
        .take(height)
        .map(|(_, row)| (row.cells(now).collect(), row.tone))
        .collect();
    let heads = screen.rows.heads();
    let widths = widths(heads, shown.iter().map(|(cells, _)| cells.as_slice()));
    let selected = screen.at.saturating_sub(top);
    let lines = shown.into_iter().enumerate().map(|(at, (cells, tone))| {
        let style = style_of(tone, colours);
        let style = if at == selected { style.add_modifier(Modifier::REVERSED) } else { style };
        Row::new(cells.into_iter().map(Cell::from)).style(style)
    });
    let head = Row::new(heads.iter().map(|head| Cell::from(head.as_str()))).style(bold());
    let table = Table::new(lines, widths).header(head).column_spacing(GAP);
    frame.render_widget(table, area);
}

/// The row at the top, so that the cursor is shown: pages do not overlap.
fn first_shown(at: usize, count: usize, height: usize) -> usize {
    let page = at.checked_div(height).unwrap_or_default().saturating_mul(height);
    page.min(count.saturating_sub(height))
}

/// Columns are as wide as what is shown of them; the last one takes the rest.
fn widths<'a>(heads: &[String], rows: impl Iterator<Item = &'a [String]>) -> Vec<Constraint> {
    let mut widths: Vec<usize> = heads.iter().map(|head| Span::raw(head).width()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = Span::raw(cell).width().max(*width).min(COLUMN_WIDTH_MAX);
        }
    }
    let last = widths.len().saturating_sub(1);
    let constraint = |(at, width): (usize, usize)| {
        let width = u16::try_from(width).unwrap_or(u16::MAX);
        if at == last { Constraint::Min(width.min(1)) } else { Constraint::Length(width) }
    };
    widths.into_iter().enumerate().map(constraint).collect()
}
