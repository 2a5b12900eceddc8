//! What the screen is in: the view, its rows, what is typed, and what keys and news do to it.

use serde_json::Value;

use crate::key::KeyPress;
use crate::log::LogLines;
use crate::page::Window;
use crate::rows::{RowTarget, Rows, ScreenRow, View};
use crate::text;

/// Most characters that are typed into a line.
const TYPED_MAX: usize = 253;
/// Most lines of a page of text.
const PAGE_LINES_MAX: usize = 10_000;
/// Most containers of a pod.
const CONTAINERS_MAX: usize = 100;

/// An action on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// The object in words.
    Describe,
    /// What is wrong with it.
    Why,
    /// The containers of the pod, whose log is to be shown.
    Containers,
}

/// What has to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScreenEffect {
    /// End.
    Quit,
    /// Watch the rows of this view instead of those before. All namespaces if none is named.
    Watch {
        view: View,
        /// Whose objects.
        namespace: Option<String>,
    },
    /// Send this request; the response to an earlier one is ignored.
    Ask(Question, RowTarget),
    /// Follow this log instead of the one before.
    Follow { pod: RowTarget, container: String },
    /// The response to the last request is ignored.
    Forget,
}

/// An update from the server.
#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// A page of a list; the first one replaces all rows.
    Page {
        /// The answer.
        page: Value,
        /// Whether it is the first.
        is_first: bool,
        /// Whether the list has more pages, which are not requested.
        is_cut: bool,
    },
    /// An event of a watch.
    Changed(Value),
    /// The text that answers a question.
    Answer {
        /// What it is about.
        title: String,
        text: String,
    },
    /// The containers of the pod whose log is to be shown.
    Containers(RowTarget, Vec<String>),
    /// A part of the log.
    Log(Vec<u8>),
    LogEnded,
    /// Something that went wrong, or is worth a line.
    Notice(String),
    /// What went wrong is over.
    Recovered,
}

/// A line that is typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InputLine {
    /// What rows must have.
    Filter(String),
    /// Whose objects are shown.
    Namespace(String),
}

/// What lies over the view.
#[derive(Debug, Default)]
pub(crate) enum Overlay {
    #[default]
    Nothing,
    Help,
    Page {
        title: String,
        lines: Vec<String>,
        window: Window,
    },
}

/// The log that is shown.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) pod: RowTarget,
    pub(crate) containers: Vec<String>,
    pub(crate) container: usize,
    pub(crate) lines: LogLines,
    pub(crate) window: Window,
    pub(crate) has_ended: bool,
}

/// What the screen is in.
#[derive(Debug)]
pub struct Screen {
    pub(crate) view: View,
    pub(crate) namespace: Option<String>,
    pub(crate) rows: Rows,
    pub(crate) is_loaded: bool,
    /// Where the cursor is, and on which object.
    pub(crate) at: usize,
    selected: Option<String>,
    pub(crate) filter: String,
    pub(crate) typed: Option<InputLine>,
    pub(crate) over: Overlay,
    pub(crate) log: Option<Log>,
    pub(crate) notice: Option<String>,
    /// Lines between head and foot.
    height: usize,
}

impl Screen {
    /// With the pods of this namespace, or of all.
    pub fn new(namespace: Option<String>) -> Self {
        let rows = Rows::new(View::Pods, namespace.is_none());
        Self {
            view: View::Pods,
            namespace,
            rows,
            is_loaded: false,
            at: 0,
            selected: None,
            filter: String::new(),
            typed: None,
            over: Overlay::Nothing,
            log: None,
            notice: None,
            height: 0,
        }
    }

    /// What has to be watched at first.
    pub fn start(&self) -> ScreenEffect {
        ScreenEffect::Watch { view: self.view, namespace: self.namespace.clone() }
    }

    /// Says how many lines the terminal has.
    pub fn resize(&mut self, lines: u16) {
        self.height = usize::from(lines).saturating_sub(3).max(1);
    }

    /// What a key does.
    pub fn press(&mut self, key: KeyPress) -> Option<ScreenEffect> {
        if key == KeyPress::Interrupt {
            return Some(ScreenEffect::Quit);
        }
        if let Some(typed) = self.typed.take() {
            return self.type_key(typed, key);
        }
        match (&mut self.over, key) {
            (Overlay::Nothing, _) => self.press_in_view(key),
            (_, KeyPress::Char('q') | KeyPress::Escape) => {
                self.over = Overlay::Nothing;
                None
            }
            (Overlay::Help, KeyPress::Char('?')) => {
                self.over = Overlay::Nothing;
                None
            }
            (Overlay::Page { lines, window, .. }, key) => {
                scroll(window, key, lines.len(), self.height, false);
                None
            }
            (Overlay::Help, _) => None,
        }
    }

    fn press_in_view(&mut self, key: KeyPress) -> Option<ScreenEffect> {
        match key {
            KeyPress::Char('q') => return Some(ScreenEffect::Quit),
            KeyPress::Char('?') => self.over = Overlay::Help,
            KeyPress::Char('/') => self.typed = Some(InputLine::Filter(self.filter.clone())),
            KeyPress::Char('n') => {
                let name = self.namespace.clone().unwrap_or_default();
                self.typed = Some(InputLine::Namespace(name));
            }
            KeyPress::Char(digit @ '1'..='4') => {
                let at = digit.to_digit(10).and_then(|number| usize::try_from(number).ok());
                let view = View::ALL.get(at.unwrap_or_default().saturating_sub(1));
                return view.and_then(|view| self.show(*view));
            }
            KeyPress::Tab => return self.show(self.neighbour(1)),
            KeyPress::BackTab => {
                return self.show(self.neighbour(View::ALL.len().saturating_sub(1)));
            }
            KeyPress::Escape if !self.filter.is_empty() => self.set_filter(String::new()),
            KeyPress::Escape => {
                self.notice = None;
                return Some(ScreenEffect::Forget);
            }
            _ if self.view == View::Logs => return self.press_in_log(key),
            KeyPress::Enter | KeyPress::Char('d') => return self.open_question(Question::Describe),
            KeyPress::Char('w') => return self.open_question(Question::Why),
            KeyPress::Char('l') => return self.open_question(Question::Containers),
            key => self.move_cursor(key),
        }
        None
    }

    fn press_in_log(&mut self, key: KeyPress) -> Option<ScreenEffect> {
        let log = self.log.as_mut()?;
        match key {
            KeyPress::Char('c') if log.containers.len() > 1 => {
                let next = log.container.saturating_add(1);
                log.container = next.checked_rem(log.containers.len()).unwrap_or_default();
                log.lines = LogLines::default();
                log.window = Window::at_end();
                log.has_ended = false;
                self.follow()
            }
            KeyPress::Char('w') => Some(ScreenEffect::Ask(Question::Why, log.pod.clone())),
            key => {
                scroll(&mut log.window, key, log.lines.lines().len(), self.height, true);
                None
            }
        }
    }

    fn neighbour(&self, step: usize) -> View {
        let at = View::ALL.iter().position(|view| *view == self.view).unwrap_or_default();
        let next = at.saturating_add(step).checked_rem(View::ALL.len());
        next.and_then(|at| View::ALL.get(at)).copied().unwrap_or(View::Pods)
    }

    /// Another view. What the former showed is given up.
    fn show(&mut self, view: View) -> Option<ScreenEffect> {
        if view == self.view {
            return None;
        }
        self.view = view;
        self.notice = None;
        self.filter.clear();
        if view == View::Logs {
            return self.follow();
        }
        self.watch()
    }

    fn watch(&mut self) -> Option<ScreenEffect> {
        self.rows = Rows::new(self.view, self.namespace.is_none());
        self.is_loaded = false;
        (self.at, self.selected) = (0, None);
        if let Some(log) = &mut self.log {
            log.lines = LogLines::default();
        }
        Some(ScreenEffect::Watch { view: self.view, namespace: self.namespace.clone() })
    }

    /// The log of the pod that was chosen last.
    fn follow(&mut self) -> Option<ScreenEffect> {
        self.rows = Rows::new(View::Logs, false);
        let log = self.log.as_mut()?;
        log.lines = LogLines::default();
        log.window = Window::at_end();
        log.has_ended = false;
        let container = log.containers.get(log.container)?.clone();
        Some(ScreenEffect::Follow { pod: log.pod.clone(), container })
    }

    fn open_question(&mut self, question: Question) -> Option<ScreenEffect> {
        let row = self.selected_row()?.target.clone();
        if question == Question::Containers && row.kind != "Pod" {
            self.notice = Some("logs are those of pods".to_owned());
            return None;
        }
        self.notice = Some("asking ...".to_owned());
        Some(ScreenEffect::Ask(question, row))
    }

    fn selected_row(&self) -> Option<&ScreenRow> {
        self.rows.filter_rows(&self.filter).get(self.at).map(|(_, row)| *row)
    }

    fn move_cursor(&mut self, key: KeyPress) {
        let page = isize::try_from(self.height).unwrap_or(isize::MAX);
        let step = match key {
            KeyPress::Up | KeyPress::Char('k') => -1,
            KeyPress::Down | KeyPress::Char('j') => 1,
            KeyPress::PageUp => page.saturating_neg(),
            KeyPress::PageDown | KeyPress::Char(' ') => page,
            KeyPress::Home | KeyPress::Char('g') => isize::MIN,
            KeyPress::End | KeyPress::Char('G') => isize::MAX,
            _ => return,
        };
        let shown = self.rows.filter_rows(&self.filter);
        let last = shown.len().saturating_sub(1);
        self.at = self.at.saturating_add_signed(step).min(last);
        self.selected = shown.get(self.at).map(|(key, _)| (*key).to_owned());
    }

    /// After the rows have changed: the cursor stays on its object, or else where it was.
    fn find_cursor(&mut self) {
        let shown = self.rows.filter_rows(&self.filter);
        let known = self.selected.as_deref();
        let found = known.and_then(|key| shown.iter().position(|(one, _)| *one == key));
        self.at = found.unwrap_or(self.at).min(shown.len().saturating_sub(1));
        if known.is_some() && found.is_none() {
            self.selected = shown.get(self.at).map(|(key, _)| (*key).to_owned());
        }
    }

    fn set_filter(&mut self, filter: String) {
        self.filter = filter;
        self.find_cursor();
    }

    fn type_key(&mut self, typed: InputLine, key: KeyPress) -> Option<ScreenEffect> {
        let (mut line, is_filter) = match typed {
            InputLine::Filter(line) => (line, true),
            InputLine::Namespace(line) => (line, false),
        };
        match key {
            KeyPress::Escape => {
                if is_filter {
                    self.set_filter(String::new());
                }
                return None;
            }
            KeyPress::Enter if is_filter => return None,
            KeyPress::Enter => return self.enter_namespace(line.trim()),
            KeyPress::Backspace => {
                line.pop();
            }
            // What is typed may be pasted.
            KeyPress::Char(c) if line.chars().count() < TYPED_MAX => {
                line.push_str(&text::line(&c.to_string()));
            }
            _ => {}
        }
        if is_filter {
            self.set_filter(line.clone());
        }
        self.typed =
            Some(if is_filter { InputLine::Filter(line) } else { InputLine::Namespace(line) });
        None
    }

    fn enter_namespace(&mut self, name: &str) -> Option<ScreenEffect> {
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if !name.chars().all(is_name) {
            self.notice = Some(format!("{name:?} is no name of a namespace"));
            return None;
        }
        self.namespace = Some(name.to_owned()).filter(|name| !name.is_empty());
        self.notice = None;
        match self.view {
            View::Pods | View::Events => self.watch(),
            View::Nodes | View::Logs => None,
        }
    }

    /// An update from the server.
    pub fn apply(&mut self, update: Update) -> Option<ScreenEffect> {
        match update {
            Update::Page { page, is_first, is_cut } => {
                if is_first {
                    self.rows = Rows::new(self.view, self.namespace.is_none());
                }
                self.rows.list(&page);
                if is_cut {
                    self.rows.set_partial();
                }
                self.is_loaded = true;
                self.find_cursor();
            }
            Update::Changed(event) => {
                let kind = event.get("type").and_then(Value::as_str).unwrap_or_default();
                if let Some(object) = event.get("object") {
                    self.rows.change(kind, object);
                }
                self.find_cursor();
            }
            Update::Answer { title, text } => {
                let lines = text.lines().take(PAGE_LINES_MAX).map(text::line).collect();
                let title = text::cell(&title);
                self.over = Overlay::Page { title, lines, window: Window::default() };
                self.notice = None;
            }
            Update::Containers(pod, mut containers) => {
                containers.truncate(CONTAINERS_MAX);
                self.log = Some(Log { pod, containers, ..Log::default() });
                return self.show(View::Logs);
            }
            Update::Log(part) => self.take_log(&part),
            Update::LogEnded => {
                if let Some(log) = &mut self.log {
                    log.lines.end();
                    log.has_ended = true;
                }
            }
            Update::Notice(notice) => self.notice = Some(text::cell(&notice)),
            Update::Recovered => self.notice = None,
        }
        None
    }

    fn take_log(&mut self, part: &[u8]) {
        let Some(log) = &mut self.log else { return };
        let dropped = log.lines.dropped();
        log.lines.push(part);
        log.window.lose(log.lines.dropped().saturating_sub(dropped));
    }
}

fn scroll(window: &mut Window, key: KeyPress, count: usize, height: usize, may_follow: bool) {
    let page = isize::try_from(height).unwrap_or(isize::MAX);
    let lines = match key {
        KeyPress::Up | KeyPress::Char('k') => -1,
        KeyPress::Down | KeyPress::Char('j') => 1,
        KeyPress::PageUp | KeyPress::Char('b') => page.saturating_neg(),
        KeyPress::PageDown | KeyPress::Char(' ') => page,
        KeyPress::Home | KeyPress::Char('g') => isize::MIN,
        KeyPress::End | KeyPress::Char('G') => isize::MAX,
        KeyPress::Left => return window.shift(false),
        KeyPress::Right => return window.shift(true),
        _ => return,
    };
    window.scroll(lines, count, height, may_follow);
}
