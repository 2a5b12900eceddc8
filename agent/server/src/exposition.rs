//! The Prometheus text format for metrics that are generated on request. Pure.

use std::fmt::Write as _;

/// Names and values of the labels of a sample.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

/// Builds a metrics page in the Prometheus text format.
#[derive(Debug, Default)]
pub struct Exposition(String);

impl Exposition {
    /// Adds the HELP and TYPE lines of a metric. Writing to a String cannot fail.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Adds a sample, with its time if it was not measured on request.
    pub fn sample(&mut self, name: &str, labels: Labels<'_>, value: f64, at_nanos: Option<i64>) {
        self.0.push_str(name);
        let mut before = '{';
        for (label, value) in labels {
            let _ = write!(self.0, "{before}{label}=\"");
            escape(&mut self.0, value);
            self.0.push('"');
            before = ',';
        }
        if before == ',' {
            self.0.push('}');
        }
        let _ = match at_nanos {
            Some(at) => writeln!(self.0, " {value} {}", at.div_euclid(1_000_000)),
            None => writeln!(self.0, " {value}"),
        };
    }

    pub fn into_text(self) -> String {
        self.0
    }
}

fn escape(into: &mut String, value: &str) {
    for letter in value.chars() {
        match letter {
            '\\' => into.push_str("\\\\"),
            '"' => into.push_str("\\\""),
            '\n' => into.push_str("\\n"),
            other => into.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut text = Exposition::default();
        text.family("x", "gauge", "X.");
        text.sample("x", &[("a", "1\"2\\3\n"), ("b", "é")], 1.5, Some(2_000_000));
        text.sample("x", &[], 2.0, None);
        assert_eq!(
            text.into_text(),
            "# HELP x X.\n# TYPE x gauge\nx{a=\"1\\\"2\\\\3\\n\",b=\"é\"} 1.5 2\nx 2\n"
        );
    }
}
