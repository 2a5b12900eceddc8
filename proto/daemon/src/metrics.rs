//! The metrics registry of a program and its text form (Prometheus 0.0.4), with the metrics that every program has: of its build and its process.

use std::fmt;
use std::fs;
use std::sync::{Arc, Mutex, PoisonError};

use procfs::FromRead as _;
use procfs::process::{LimitValue, Limits, Stat};
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, IntGaugeVec, Opts, Registry, TextEncoder};
use serde::{Deserialize, Serialize};

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

/// The [`BuildInfo`] of the crate that calls it: its version, and the commit that `hack/lib.sh` passes to the compiler.
#[macro_export]
macro_rules! build_info {
    () => {
        $crate::metrics::BuildInfo {
            version: env!("CARGO_PKG_VERSION"),
            commit: match option_env!("ORCH_COMMIT") {
                Some(commit) => commit,
                None => "unknown",
            },
        }
    };
}

/// The registry of one program. Cheap to clone; all clones are one registry.
#[derive(Clone)]
pub struct Metrics {
    registry: Registry,
    /// What is registered: the registry itself omits metrics without values.
    collectors: Arc<Mutex<Vec<Box<dyn Collector>>>>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("registry", &self.registry).finish_non_exhaustive()
    }
}

/// What is to be known of a metric, whether it has a value or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricDescription {
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: String,
    /// Names of its labels.
    pub labels: Vec<String>,
    /// What it counts.
    pub help: String,
}

impl Metrics {
    /// A registry with `<prefix>_build_info` and `process_*`; `prefix` comes from the naming
    /// profile.
    pub fn new(prefix: &str, build: BuildInfo) -> Result<Self, prometheus::Error> {
        let metrics = Self { registry: Registry::new(), collectors: Arc::default() };
        let info = IntGaugeVec::new(
            Opts::new(format!("{prefix}_build_info"), "What was built; always 1."),
            &["version", "commit"],
        )?;
        info.with_label_values(&[build.version, build.commit]).set(1);
        metrics.register(info)?;
        metrics.register(ProcessCollector::new()?)?;
        Ok(metrics)
    }

    /// Adds a metric and returns it, as in `let x = metrics.register(IntCounter::new(..)?)?`.
    pub fn register<C: Collector + Clone + 'static>(
        &self,
        metric: C,
    ) -> Result<C, prometheus::Error> {
        self.registry.register(Box::new(metric.clone()))?;
        let mut collectors = self.collectors.lock().unwrap_or_else(PoisonError::into_inner);
        collectors.push(Box::new(metric.clone()));
        Ok(metric)
    }

    /// What is registered, in the order of names.
    pub fn described(&self) -> Vec<MetricDescription> {
        let collectors = self.collectors.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = collectors.iter().flat_map(|of| describe(of.as_ref())).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// All metrics as text. Empty if a collector violates the format, which its own test shows.
    pub fn text(&self) -> String {
        TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_default()
    }
}

/// The metrics of a collector.
fn describe(collector: &dyn Collector) -> Vec<MetricDescription> {
    let families = collector.collect();
    let kind = |name: &str| {
        let family = families.iter().find(|family| family.name() == name);
        let kind = family.map(|family| format!("{:?}", family.get_field_type()));
        kind.unwrap_or_else(|| "untyped".to_owned()).to_lowercase()
    };
    let of = |desc: &&Desc| MetricDescription {
        name: desc.fq_name.clone(),
        kind: kind(&desc.fq_name),
        labels: desc.variable_labels.clone(),
        help: desc.help.clone(),
    };
    collector.desc().iter().map(of).collect()
}

/// `process_*` from /proc/self, read at each scrape.
#[derive(Clone)]
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
        if let Ok(stat) = Stat::from_file("/proc/self/stat") {
            let seconds = |ticks: u64| ticks as f64 / procfs::ticks_per_second() as f64;
            self.cpu_seconds.set(seconds(stat.utime.saturating_add(stat.stime)));
            self.resident_bytes.set(stat.rss.saturating_mul(procfs::page_size()) as f64);
            self.virtual_bytes.set(stat.vsize as f64);
            if self.start_seconds.get() == 0.0
                && let Ok(boot) = procfs::boot_time_secs()
            {
                // Once: the boot time that the kernel gives moves with the wall clock, and a start that moves reads as a restart.
                self.start_seconds.set(boot as f64 + seconds(stat.starttime));
            }
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            // One of them is the directory being read.
            self.open_fds.set(open.count().saturating_sub(1) as f64);
        }
        if let Ok(limits) = Limits::from_file("/proc/self/limits") {
            self.max_fds.set(match limits.max_open_files.soft_limit {
                LimitValue::Value(limit) => limit as f64,
                LimitValue::Unlimited => f64::INFINITY,
            });
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

#[cfg(test)]
mod tests {
    use prometheus::IntCounter;

    use super::*;

    #[test]
    fn the_process_is_measured() {
        let block = std::hint::black_box(vec![1_u8; 8 << 20]);
        let process = ProcessCollector::new().expect("new");
        process.collect();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let age = now.expect("after 1970").as_secs_f64() - process.start_seconds.get();
        assert!((-2.0..86_400.0).contains(&age), "{age} s");
        let started = process.start_seconds.get();
        let began = std::time::Instant::now();
        // On a busy machine this takes longer than the time that it counts.
        while process.cpu_seconds.get() < 0.02 && began.elapsed().as_secs() < 120 {
            (0..100_000).for_each(|_| std::hint::spin_loop());
            process.collect();
        }
        assert_eq!(process.start_seconds.get(), started);
        // The limit of any machine: all tests of this program, since it was started.
        let cpu = process.cpu_seconds.get();
        assert!((0.02..3600.0).contains(&cpu), "{cpu} s");
        assert!(process.resident_bytes.get() > block.len() as f64);
        assert!(process.virtual_bytes.get() >= process.resident_bytes.get());
        let fds = process.open_fds.get();
        assert!(fds >= 3.0 && fds <= process.max_fds.get(), "{fds} of {}", process.max_fds.get());
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
