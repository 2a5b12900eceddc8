//! The printed table.

use std::fmt;
use std::time::Duration;

/// Rows in the order in which they were measured.
#[derive(Debug, Default)]
pub struct Report {
    rows: Vec<(String, String)>,
}

impl Report {
    /// A row with the median, 90th percentile and number of samples.
    pub fn times(&mut self, what: &str, samples: Vec<Duration>) {
        self.percentiles(what, samples, 90);
    }

    /// A row with the median, 99th percentile and number of samples.
    pub fn far_times(&mut self, what: &str, samples: Vec<Duration>) {
        self.percentiles(what, samples, 99);
    }

    fn percentiles(&mut self, what: &str, mut samples: Vec<Duration>, far: usize) {
        samples.sort();
        let at = |percent: usize| {
            let index = (samples.len() * percent / 100).min(samples.len().saturating_sub(1));
            samples.get(index).map_or(0.0, |sample| sample.as_secs_f64() * 1e3)
        };
        let (middle, far_at) = (at(50), at(far));
        let row = format!("p50 {middle:8.2} ms   p{far} {far_at:8.2} ms   n {}", samples.len());
        self.text(what, row);
    }

    /// A row of any other kind.
    pub fn text(&mut self, what: &str, value: String) {
        eprintln!("{what:<58} {value}");
        self.rows.push((what.to_owned(), value));
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f)?;
        for (what, value) in &self.rows {
            writeln!(f, "{what:<58} {value}")?;
        }
        Ok(())
    }
}
