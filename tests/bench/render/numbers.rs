//! Numbers as people read them: three digits that count, thousands apart.

use crate::figures::Size;

/// A figure on the page and in charts.
pub fn number(value: f64) -> String {
    let value = if value.abs() >= 10_000.0 { to_three_digits(value) } else { value };
    let places = match value.abs() {
        0.0 => 0,
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 0.1 => 2,
        _ => 3,
    };
    grouped(&format!("{value:.places$}"))
}

/// A number at an axis, without zeros at its end.
pub fn tick(value: f64) -> String {
    let text = number(value);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// A whole number.
pub fn count(value: u64) -> String {
    grouped(&value.to_string())
}

/// How many of what: `64 clients`, `1 client`.
pub fn size(size: &Size) -> String {
    let of = if size.count == 1 { size.of.trim_end_matches('s') } else { &size.of };
    format!("{} {of}", count(size.count))
}

/// A text that has room, or its beginning and `…`.
pub fn shortened(text: &str, chars: usize) -> String {
    if text.chars().count() <= chars {
        return text.to_owned();
    }
    let kept: String = text.chars().take(chars.saturating_sub(1)).collect();
    kept.trim_end_matches([' ', ',']).to_owned() + "…"
}

/// How many times better; two or three digits that count.
pub fn ratio(value: f64) -> String {
    let value = if value >= 1000.0 { to_three_digits(value) } else { value };
    let places = match value {
        size if size >= 10.0 => 0,
        size if size >= 1.0 => 1,
        _ => 2,
    };
    grouped(&format!("{value:.places$}"))
}

fn to_three_digits(value: f64) -> f64 {
    let step = 10_f64.powf(value.abs().log10().floor() - 2.0);
    (value / step).round() * step
}

/// With commas between thousands.
fn grouped(number: &str) -> String {
    let (whole, rest) = number.split_at(number.find('.').unwrap_or(number.len()));
    let mut text = String::new();
    for (at, digit) in whole.char_indices() {
        if at > 0 && (whole.len() - at) % 3 == 0 && !text.ends_with('-') {
            text.push(',');
        }
        text.push(digit);
    }
    text + rest
}
