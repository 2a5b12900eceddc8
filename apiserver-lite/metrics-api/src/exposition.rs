//! The text format of a node's page: lines of samples with labels, a value and the time of measurement. A node is not trusted: what is malformed is
//! ignored, and sizes are bounded.

use std::time::Duration;

use crate::usage::{PodKey, Scrape};

/// The longest page that is read: 1000 pods with five containers each, with long names.
pub const PAGE_LEN_MAX: usize = 4 << 20;
/// Most samples of a page that are kept.
const SAMPLES_MAX: usize = 20_000;
/// The longest label value that is kept; names are shorter.
const LABEL_LEN_MAX: usize = 253;
/// The longest line.
const LINE_LEN_MAX: usize = 2048;
/// The largest value: 2^63 nanoseconds of CPU time and more memory than there is.
const VALUE_MAX: f64 = 9.2e18;

/// The samples of a page that metrics are made of.
pub fn parse(page: &str) -> Scrape {
    let mut scrape = Scrape::default();
    let lines = page.lines().filter(|line| line.len() <= LINE_LEN_MAX && !line.starts_with('#'));
    lines
        .filter_map(Sample::parse)
        .take(SAMPLES_MAX)
        .for_each(|sample| add_sample(&mut scrape, &sample));
    scrape
}

fn add_sample(scrape: &mut Scrape, sample: &Sample<'_>) {
    let point = match sample.name {
        "node_cpu_usage_seconds_total" | "node_memory_working_set_bytes" => &mut scrape.node,
        "container_cpu_usage_seconds_total"
        | "container_memory_working_set_bytes"
        | "container_start_time_seconds" => {
            let pod = PodKey { namespace: sample.namespace.clone(), name: sample.pod.clone() };
            if pod.namespace.is_empty() || pod.name.is_empty() || sample.container.is_empty() {
                return;
            }
            let containers = scrape.pods.entry(pod).or_default();
            containers.entry(sample.container.clone()).or_default()
        }
        _ => return,
    };
    if sample.name.ends_with("_cpu_usage_seconds_total") {
        point.cpu = nanos(sample.value);
        // The time of the CPU sample is that of the point: rates are made of it.
        point.at = sample.at;
    } else if sample.name.ends_with("_start_time_seconds") {
        point.started = nanos(sample.value);
    } else {
        point.memory = whole(sample.value);
    }
}

/// Seconds as a duration, to the nanosecond.
fn nanos(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds).ok().filter(|length| length.as_secs_f64() < 9.2e9)
}

fn whole(value: f64) -> Option<u64> {
    // In range by the check of the sample.
    Some(value as u64)
}

/// One line.
struct Sample<'a> {
    name: &'a str,
    namespace: String,
    pod: String,
    container: String,
    value: f64,
    /// Since 1970.
    at: Option<Duration>,
}

impl<'a> Sample<'a> {
    /// Reads `name{label="value",...} value [milliseconds]`. `None` for what has another form, and for labels that are too long.
    fn parse(line: &'a str) -> Option<Self> {
        let end = line.find(['{', ' '])?;
        let (name, mut rest) = line.split_at(end);
        let mut sample = Self {
            name,
            namespace: String::new(),
            pod: String::new(),
            container: String::new(),
            value: 0.0,
            at: None,
        };
        if let Some(labels) = rest.strip_prefix('{') {
            rest = sample.labels(labels)?;
        }
        let mut words = rest.split_ascii_whitespace();
        sample.value = words.next()?.parse().ok()?;
        if !(0.0..VALUE_MAX).contains(&sample.value) {
            return None;
        }
        if let Some(millis) = words.next() {
            sample.at = Some(Duration::from_millis(millis.parse().ok()?));
        }
        words.next().is_none().then_some(sample)
    }

    /// Reads labels up to the closing brace. Gives what follows it.
    fn labels(&mut self, mut rest: &'a str) -> Option<&'a str> {
        loop {
            rest = rest.trim_start_matches([' ', ',']);
            if let Some(after) = rest.strip_prefix('}') {
                return Some(after);
            }
            let (label, after) = rest.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            match label.trim() {
                "namespace" => self.namespace = value,
                "pod" => self.pod = value,
                "container" => self.container = value,
                _ => {}
            }
            rest = after;
        }
    }
}

/// Reads text up to its closing quote, with `\\`, `\"` and `\n` resolved. Gives what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, text.get(at.checked_add(1)?..)?)),
            '\\' => value.push(match chars.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
        if value.len() > LABEL_LEN_MAX {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::usage::Measurement;

    const PAGE: &str = r#"# HELP container_cpu_usage_seconds_total [STABLE] Cumulative CPU time consumed, in core-seconds.
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="c",namespace="a",pod="web"} 2.5 1500000000250
container_memory_working_set_bytes{container="c",namespace="a",pod="web"} 1.048576e+06 1500000000250
container_start_time_seconds{container="c",namespace="a",pod="web"} 1499999999.5 1500000000250
container_cpu_usage_seconds_total{container="c",namespace="a",pod="other \"x\\"} NaN 1500000000250
node_cpu_usage_seconds_total 100.25 1500000000250
node_memory_working_set_bytes 20 1500000000250
pod_cpu_usage_seconds_total{namespace="a",pod="web"} 2.5 1500000000250
scrape_error 0
"#;

    #[test]
    fn a_page_of_a_node() {
        let scrape = parse(PAGE);
        let at = Some(Duration::from_millis(1_500_000_000_250));
        let node = Measurement {
            at,
            started: None,
            cpu: Some(Duration::from_millis(100_250)),
            memory: Some(20),
        };
        assert_eq!(scrape.node, node);
        let web = PodKey { namespace: "a".into(), name: "web".into() };
        let c = Measurement {
            at,
            started: Some(Duration::from_millis(1_499_999_999_500)),
            cpu: Some(Duration::from_millis(2500)),
            memory: Some(1 << 20),
        };
        assert_eq!(scrape.pods.keys().collect::<Vec<_>>(), [&web], "others have no valid sample");
        assert_eq!(scrape.pods[&web]["c"], c);
    }

    #[test]
    fn malformed_samples_are_left_out() {
        let long = "x".repeat(LABEL_LEN_MAX + 1);
        for line in [
            "container_cpu_usage_seconds_total{container=\"c\",namespace=\"a\",pod=\"web\"}",
            "container_cpu_usage_seconds_total{container=\"c\",namespace=\"a\",pod=\"web} 1 1",
            "container_cpu_usage_seconds_total{container=\"c\",namespace=\"a\"} 1 1",
            "container_cpu_usage_seconds_total{container=\"c\",namespace=\"a\",pod=\"web\"} -1 1",
            "container_cpu_usage_seconds_total{container=\"c\",namespace=\"a\",pod=\"web\"} 1e30 1",
            "container_cpu_usage_seconds_total{container=\"c\",namespace=\"a\",pod=\"web\"} 1 x",
            "container_cpu_usage_seconds_total{container=\"c\",namespace=\"a\",pod=\"web\"} 1 1 1",
            &format!(
                "container_cpu_usage_seconds_total{{container=\"c\",namespace=\"a\",pod=\"{long}\"}} 1 1"
            ),
        ] {
            assert_eq!(parse(line), Scrape::default(), "{line}");
        }
    }

    #[test]
    fn the_samples_of_a_page_are_bounded() {
        let line = |n: usize| {
            format!(
                "container_memory_working_set_bytes{{container=\"c\",namespace=\"a\",pod=\"p{n}\"}} 1 1\n"
            )
        };
        let page: String = (0..SAMPLES_MAX + 10).map(line).collect();
        assert_eq!(parse(&page).pods.len(), SAMPLES_MAX);
    }

    proptest! {
        #[test]
        fn any_text_is_answered(text in "(node_cpu_usage_seconds_total|[{}\",=a-z0-9. \\\\\n-]){0,60}") {
            let _ = parse(&text);
        }
    }
}
