//! Grammar of cron schedules: five fields of numbers, ranges, steps and names, or a macro such as `@hourly`.

/// A field: name in messages, lowest and highest number, and names of numbers starting at the lowest.
struct Field {
    name: &'static str,
    lowest: u32,
    highest: u32,
    names: &'static [&'static str],
}

const FIELDS: [Field; 5] = [
    Field { name: "minute", lowest: 0, highest: 59, names: &[] },
    Field { name: "hour", lowest: 0, highest: 23, names: &[] },
    Field { name: "day of month", lowest: 1, highest: 31, names: &[] },
    Field {
        name: "month",
        lowest: 1,
        highest: 12,
        names: &[
            "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
        ],
    },
    Field {
        name: "day of week",
        lowest: 0,
        highest: 6,
        names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
    },
];

const WORDS: &[&str] =
    &["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];

/// Longest parsed schedule in bytes.
const LEN_MAX: usize = 1024;

/// Checks a schedule; the error says what is wrong.
pub(super) fn check(text: &str) -> Result<(), String> {
    if text.len() > LEN_MAX {
        return Err(format!("must be no more than {LEN_MAX} characters"));
    }
    let text = without_zone(text)?;
    if text.starts_with('@') {
        let known = WORDS.contains(&text) || text.strip_prefix("@every ").is_some_and(is_duration);
        return if known { Ok(()) } else { Err(format!("unrecognized descriptor: {text}")) };
    }
    let fields: Vec<&str> = text.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        return Err(format!(
            "expected exactly 5 fields, found {}: [{}]",
            fields.len(),
            fields.join(" ")
        ));
    }
    FIELDS.iter().zip(fields).try_for_each(|(field, text)| {
        text.split(',').filter(|part| !part.is_empty()).try_for_each(|part| field.check(part))
    })
}

/// The schedule after `TZ=Area/City `, which Kubernetes still accepts.
fn without_zone(text: &str) -> Result<&str, String> {
    if !text.starts_with("TZ=") && !text.starts_with("CRON_TZ=") {
        return Ok(text);
    }
    let (_, rest) = text.split_once(' ').ok_or_else(|| format!("no schedule follows {text}"))?;
    Ok(rest.trim())
}

/// Whether the text is a Go duration such as `1h30m`.
fn is_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (digits, unit) = rest.split_at(number);
        let dots = digits.bytes().filter(|byte| *byte == b'.').count();
        let end = unit.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(unit.len());
        let (unit, next) = unit.split_at(end);
        let known = matches!(unit, "ns" | "us" | "µs" | "μs" | "ms" | "s" | "m" | "h");
        if dots > 1 || digits.len() == dots || !known {
            return false;
        }
        rest = next;
    }
    true
}

impl Field {
    /// Checks `*`, `?`, `3` or `1-5`, each with an optional `/step`.
    fn check(&self, part: &str) -> Result<(), String> {
        let (range, step) = match part.split_once('/') {
            Some((_, step)) if step.contains('/') => {
                return Err(format!("too many slashes: {part}"));
            }
            Some((range, step)) => (range, Some(step)),
            None => (part, None),
        };
        let (start, end) = match range.split_once('-') {
            _ if matches!(range, "*" | "?") => (self.lowest, self.highest),
            Some((_, end)) if end.contains('-') => {
                return Err(format!("too many hyphens: {part}"));
            }
            Some((start, end)) => (self.number(start)?, self.number(end)?),
            None => {
                let start = self.number(range)?;
                (start, if step.is_some() { self.highest } else { start })
            }
        };
        let step = step.map_or(Ok(1), number)?;
        if start < self.lowest {
            let lowest = self.lowest;
            return Err(format!("beginning of range ({start}) below minimum ({lowest}): {part}"));
        }
        if end > self.highest {
            let highest = self.highest;
            return Err(format!("end of range ({end}) above maximum ({highest}): {part}"));
        }
        if start > end {
            return Err(format!(
                "beginning of range ({start}) beyond end of range ({end}): {part}"
            ));
        }
        if step == 0 {
            return Err(format!("step of range should be a positive number: {part}"));
        }
        Ok(())
    }

    fn number(&self, text: &str) -> Result<u32, String> {
        let lower = text.to_ascii_lowercase();
        match self.names.iter().position(|name| *name == lower) {
            Some(at) => Ok(self.lowest.saturating_add(u32::try_from(at).unwrap_or(u32::MAX))),
            None => number(text).map_err(|why| format!("{why} in {}", self.name)),
        }
    }
}

fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("failed to parse int from {text}"))
}
