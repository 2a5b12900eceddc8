//! The metrics registry of a program and its text form (Prometheus 0.0.4), with the metrics that every program has: of its build and its process.

use std::fs;

use nix::unistd::{SysconfVar, sysconf};
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, IntGaugeVec, Opts, Registry, TextEncoder};

/// `Content-Type` of [`Metrics::text`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The build, for `<prefix>_build_info` and `--version`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuildInfo {
    /// Version of the program, as `0.1.0`.
    pub version: &'static str,
    /// Commit it was built from; `unknown` without git.
    pub commit: &'static str,
}

/// The registry of one program. Cheap to clone; all clones are one registry.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
}

impl Metrics {
    /// A registry with `<prefix>_build_info` and `process_*`; `prefix` comes from the naming
    /// profile.
    pub fn new(prefix: &str, build: BuildInfo) -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let info = IntGaugeVec::new(
            Opts::new(format!("{prefix}_build_info"), "What was built; always 1."),
            &["version", "commit"],
        )?;
        info.with_label_values(&[build.version, build.commit]).set(1);
        registry.register(Box::new(info))?;
        registry.register(Box::new(ProcessCollector::new()?))?;
        Ok(Self { registry })
    }

    /// Adds a metric and returns it, as in `let x = metrics.register(IntCounter::new(..)?)?`.
    pub fn register<C: Collector + Clone + 'static>(
        &self,
        metric: C,
    ) -> Result<C, prometheus::Error> {
        self.registry.register(Box::new(metric.clone()))?;
        Ok(metric)
    }

    /// All metrics as text. Empty if a collector violates the format, which its own test shows.
    pub fn text(&self) -> String {
        TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_default()
    }
}

/// `process_*` from /proc/self, read at each scrape.
struct ProcessCollector {
    cpu_seconds: Gauge,
    open_fds: Gauge,
    max_fds: Gauge,
    resident_bytes: Gauge,
    virtual_bytes: Gauge,
    start_seconds: Gauge,
}

impl ProcessCollector {
    fn new() -> Result<Self, prometheus::Error> {
        let gauge = |name, help: &str| Gauge::new(name, help);
        Ok(Self {
            cpu_seconds: gauge(
                "process_cpu_seconds_total",
                "User and system CPU time spent, in seconds.",
            )?,
            open_fds: gauge("process_open_fds", "Open file descriptors.")?,
            max_fds: gauge("process_max_fds", "Limit of open file descriptors.")?,
            resident_bytes: gauge("process_resident_memory_bytes", "Resident memory, in bytes.")?,
            virtual_bytes: gauge("process_virtual_memory_bytes", "Virtual memory, in bytes.")?,
            start_seconds: gauge(
                "process_start_time_seconds",
                "Start of the process, in seconds since 1970.",
            )?,
        })
    }

    fn all(&self) -> [&Gauge; 6] {
        [
            &self.cpu_seconds,
            &self.open_fds,
            &self.max_fds,
            &self.resident_bytes,
            &self.virtual_bytes,
            &self.start_seconds,
        ]
    }
}

impl Collector for ProcessCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.all().into_iter().flat_map(|gauge| gauge.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // A value that cannot be read keeps its last one: a process out of descriptors still answers.
        if let (Ok(stat), Ok(system)) =
            (fs::read_to_string("/proc/self/stat"), fs::read_to_string("/proc/stat"))
            && let Some(usage) = usage(&stat, &system, ticks_per_second(), page_size())
        {
            self.cpu_seconds.set(usage.cpu_seconds);
            self.resident_bytes.set(usage.resident_bytes);
            self.virtual_bytes.set(usage.virtual_bytes);
            self.start_seconds.set(usage.start_seconds);
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            // One of them is the directory being read.
            self.open_fds.set(open.count().saturating_sub(1) as f64);
        }
        if let Some(limit) =
            fs::read_to_string("/proc/self/limits").ok().as_deref().and_then(max_fds)
        {
            self.max_fds.set(limit);
        }
        self.all().into_iter().flat_map(Collector::collect).map(as_counter_if_total).collect()
    }
}

/// By its name a `_total` is a counter for scrapers, although it is set here and not incremented.
fn as_counter_if_total(mut family: MetricFamily) -> MetricFamily {
    if family.name().ends_with("_total") {
        family.set_field_type(prometheus::proto::MetricType::COUNTER);
        for metric in family.mut_metric() {
            let mut counter = prometheus::proto::Counter::default();
            counter.set_value(metric.get_gauge().get_value());
            metric.set_counter(counter);
        }
    }
    family
}

#[derive(Debug, PartialEq)]
struct Usage {
    cpu_seconds: f64,
    resident_bytes: f64,
    virtual_bytes: f64,
    start_seconds: f64,
}

/// Field numbers as in proc_pid_stat(5), where the command's name, in brackets, is field 2.
fn usage(stat: &str, system: &str, ticks: f64, page: f64) -> Option<Usage> {
    let after_name = stat.rsplit_once(')')?.1;
    let fields: Vec<&str> = after_name.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
    let boot =
        system.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse::<f64>().ok()?;
    Some(Usage {
        cpu_seconds: (field(14)? + field(15)?) / ticks,
        start_seconds: boot + field(22)? / ticks,
        virtual_bytes: field(23)?,
        resident_bytes: field(24)? * page,
    })
}

fn max_fds(limits: &str) -> Option<f64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

fn ticks_per_second() -> f64 {
    system_value(SysconfVar::CLK_TCK, 100.0)
}

fn page_size() -> f64 {
    system_value(SysconfVar::PAGE_SIZE, 4096.0)
}

fn system_value(name: SysconfVar, usual: f64) -> f64 {
    sysconf(name).ok().flatten().map_or(usual, |value| value as f64)
}

#[cfg(test)]
mod tests {
    use prometheus::IntCounter;

    use super::*;

    #[test]
    fn fields_of_stat_are_counted_after_the_name() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4 9 0 0 0 250 50 0 0 20 0 4 0 1000 8192 3 18446744073709551615";
        let usage = usage(stat, "cpu 1\nbtime 1700000000\n", 100.0, 4096.0);
        let expected = Usage {
            cpu_seconds: 3.0,
            resident_bytes: 12288.0,
            virtual_bytes: 8192.0,
            start_seconds: 1_700_000_010.0,
        };
        assert_eq!(usage, Some(expected));
        assert_eq!(
            max_fds("Max open files            1024                 4096                 files\n"),
            Some(1024.0)
        );
    }

    #[test]
    fn text_holds_build_process_and_own_metrics() {
        let metrics =
            Metrics::new("orchlet", BuildInfo { version: "0.1.0", commit: "abc" }).expect("new");
        let counter = IntCounter::new("orchlet_things_total", "Things.").expect("valid");
        metrics.register(counter).expect("registered").inc();
        let text = metrics.text();
        for line in [
            "orchlet_build_info{commit=\"abc\",version=\"0.1.0\"} 1\n",
            "# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total ",
            "# TYPE process_resident_memory_bytes gauge\n",
            "orchlet_things_total 1\n",
        ] {
            assert!(text.contains(line), "{line} in:\n{text}");
        }
    }
}
