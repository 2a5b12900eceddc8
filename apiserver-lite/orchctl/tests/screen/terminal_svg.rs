//! A terminal as a picture: text with sequences of colours becomes SVG, in the looks of `hack/record`.

use std::fmt::Write as _;

const CHAR_WIDTH: f64 = 7.85;
const LINE_HEIGHT: usize = 17;
const MARGIN: usize = 16;
const FRONT: &str = "#d5d8df";
const BACK: &str = "#16181d";

/// How a run of characters looks.
#[derive(Clone, Copy, Default, PartialEq)]
struct Look {
    bold: bool,
    dim: bool,
    reversed: bool,
    colour: Option<&'static str>,
}

impl Look {
    /// Takes in the numbers of a sequence. Colours come by their short numbers or as `38;5;N`.
    fn apply(&mut self, numbers: &str) {
        let numbers: Vec<&str> = numbers.split(';').collect();
        let mut rest = numbers.as_slice();
        while let [number, after @ ..] = rest {
            rest = after;
            match (*number, after) {
                ("38", ["5", colour, after @ ..]) => {
                    self.colour = colour_of(colour);
                    rest = after;
                }
                ("48", ["5", _, after @ ..]) => rest = after,
                ("" | "0", _) => *self = Self::default(),
                ("1", _) => self.bold = true,
                ("2", _) => self.dim = true,
                ("22", _) => (self.bold, self.dim) = (false, false),
                ("7", _) => self.reversed = true,
                ("27", _) => self.reversed = false,
                ("39", _) => self.colour = None,
                (short, _) => {
                    if let Some(colour) = short.strip_prefix('3') {
                        self.colour = colour_of(colour);
                    }
                }
            }
        }
    }
}

/// A colour of the terminal.
fn colour_of(number: &str) -> Option<&'static str> {
    match number {
        "1" => Some("#ff8a80"),
        "5" => Some("#d3a4f9"),
        _ => None,
    }
}

/// The runs of a line, each with its column.
fn runs(line: &str, look: &mut Look) -> Vec<(usize, Look, String)> {
    let mut runs: Vec<(usize, Look, String)> = Vec::new();
    let (mut column, mut chars) = (0, line.chars());
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            let sequence: String =
                chars.by_ref().take_while(|c| !c.is_ascii_alphabetic()).collect();
            look.apply(sequence.trim_start_matches('['));
            continue;
        }
        match runs.last_mut() {
            Some((_, last, text)) if last == look => text.push(c),
            _ => runs.push((column, *look, c.to_string())),
        }
        column += 1;
    }
    runs
}

/// The picture of terminals of this width, one below the other. Empty lines at the end of one are left out.
pub(crate) fn draw(texts: &[&str], width: u16) -> String {
    let pixels = (f64::from(width) * CHAR_WIDTH) as usize + 2 * MARGIN;
    let mut screens = String::new();
    let mut top = 0;
    for text in texts {
        if top > 0 {
            top += MARGIN;
        }
        let lines: Vec<&str> = text.trim_end().lines().collect();
        let height = lines.len() * LINE_HEIGHT + 2 * MARGIN;
        let _ = writeln!(
            screens,
            "<rect y=\"{top}\" width=\"100%\" height=\"{height}\" rx=\"8\" fill=\"{BACK}\"/>"
        );
        draw_lines(&lines, top + MARGIN, &mut screens);
        top += height;
    }
    // `white-space`, because Chromium does not let a group's `xml:space` reach its texts.
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{pixels}\" height=\"{top}\" viewBox=\"0 0 {pixels} {top}\">\n\
         <g font-family=\"ui-monospace, DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"13\" xml:space=\"preserve\">\n\
         <style>text {{ white-space: pre }}</style>\n\
         {screens}</g>\n</svg>\n"
    )
}

fn draw_lines(lines: &[&str], top: usize, out: &mut String) {
    let mut look = Look::default();
    for (at, line) in lines.iter().enumerate() {
        let bottom = top + (at + 1) * LINE_HEIGHT - 4;
        for (column, look, text) in runs(line, &mut look) {
            let (left, wide) = (
                MARGIN as f64 + column as f64 * CHAR_WIDTH,
                text.chars().count() as f64 * CHAR_WIDTH,
            );
            let colour = look.colour.unwrap_or(FRONT);
            if look.reversed {
                let top = bottom + 4 - LINE_HEIGHT;
                let _ = writeln!(
                    out,
                    "<rect x=\"{left:.1}\" y=\"{top}\" width=\"{wide:.1}\" height=\"{LINE_HEIGHT}\" fill=\"{colour}\"/>"
                );
            }
            if text.trim().is_empty() {
                continue;
            }
            let fill = if look.reversed { BACK } else { colour };
            let weight = if look.bold { " font-weight=\"bold\"" } else { "" };
            let faint = if look.dim { " opacity=\"0.65\"" } else { "" };
            let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            let _ = writeln!(
                out,
                "<text x=\"{left:.1}\" y=\"{bottom}\" textLength=\"{wide:.1}\" fill=\"{fill}\"{weight}{faint}>{text}</text>"
            );
        }
    }
}

#[test]
fn colours_become_runs_of_text() {
    let picture =
        draw(&["a\u{1b}[7m b<\u{1b}[0m\n\u{1b}[1;31mr\u{1b}[38;5;1med\u{1b}[0m\n\n", "x"], 10);
    assert!(picture.contains(">a</text>") && picture.contains("> b&lt;</text>"), "{picture}");
    assert_eq!(picture.matches("<rect").count(), 3);
    assert!(picture.contains("text { white-space: pre }"), "spaces are kept: {picture}");
    assert!(picture.contains("height=\"66\" rx"), "two lines and margins: {picture}");
    assert!(picture.contains("fill=\"#ff8a80\" font-weight=\"bold\">red</text>"), "{picture}");
}
