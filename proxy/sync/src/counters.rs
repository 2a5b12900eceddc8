//! Connections to each Service, as a metric: the kernel counts them in set elements, a task reads the counters
//! periodically.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use prometheus::{IntCounterVec, Opts};
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use proto_daemon::metrics::Metrics;
use proto_daemon::panics::spawn_blocking;
use proto_daemon::statusz::TaskStatus;
use proxy_kernel::{QueryError, Session, Socket};
use proxy_rules::counters::Counted;
use proxy_rules::layout::Map;

use crate::desired::DesiredForwarding;

/// Interval of reading the counters, which dumps all of them.
const READ_EVERY: Duration = Duration::from_secs(10);
const LABELS: [&str; 5] = ["namespace", "service", "protocol", "address", "port"];

/// The metric, and the counters as last read.
pub struct ServiceCounters {
    connections: IntCounterVec,
    last: HashMap<Counted, (u64, [String; 5])>,
}

/// The counters were not read.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("cannot open a netlink socket to netfilter")]
    Open(#[from] proxy_kernel::OpenError),
    #[error("cannot read the service counters")]
    Query(#[from] QueryError),
}

impl ServiceCounters {
    /// Registers the metric with `prefix`.
    pub fn register(metrics: &Metrics, prefix: &str) -> Result<Self, prometheus::Error> {
        let help = "Connections to the addresses and node ports of Services.";
        let options = Opts::new(format!("{prefix}_service_connections_total"), help);
        let connections = metrics.register(IntCounterVec::new(options, &LABELS)?)?;
        Ok(Self { connections, last: HashMap::new() })
    }

    /// Reads the counters periodically until drained.
    pub async fn run(
        mut self,
        desired: Arc<DesiredForwarding>,
        status: TaskStatus,
        drain: DrainWatch,
    ) {
        loop {
            status.started("periodic");
            let desired = desired.clone();
            // Dumping and comparing a large table takes long.
            let read = spawn_blocking(move || {
                let counted = read(&desired).map(|counted| {
                    let len = counted.len();
                    self.take(&desired, counted);
                    len
                });
                (self, counted)
            });
            match read.await {
                Ok((counters, Ok(len))) => {
                    self = counters;
                    status.done(format!("{len} counters"));
                }
                Ok((counters, Err(error))) => {
                    self = counters;
                    status.failed(chain(&error));
                }
                Err(error) => return status.failed(chain(&error)),
            }
            // Both arms are cancel safe.
            tokio::select! {
                () = drain.asked() => return,
                () = tokio::time::sleep(READ_EVERY) => {}
            }
        }
    }

    /// Adds the increments. A counter below its last value was reset by a load.
    fn take(&mut self, desired: &DesiredForwarding, counted: Vec<(Counted, u64)>) {
        let mut now = HashMap::with_capacity(counted.len());
        for (frontend, count) in counted {
            let service = frontend.service(&desired.plane()).cloned();
            let Some(service) = service else { continue };
            let labels = [
                service.namespace().to_owned(),
                service.name().to_owned(),
                format!("{:?}", frontend.protocol).to_uppercase(),
                frontend.address.map_or_else(|| "node".to_owned(), |address| address.to_string()),
                frontend.port.to_string(),
            ];
            let before = match self.last.get(&frontend) {
                Some((before, known)) if *known == labels => *before,
                _ => 0,
            };
            let came = count.checked_sub(before).unwrap_or(count);
            self.connections.with_label_values(&labels.each_ref().map(String::as_str)).inc_by(came);
            now.insert(frontend, (count, labels));
        }
        let before = std::mem::replace(&mut self.last, now);
        // By labels: the node ports of both families have the same.
        let known: HashSet<&[String; 5]> = self.last.values().map(|(_, labels)| labels).collect();
        for (_, labels) in before.values().filter(|(_, labels)| !known.contains(labels)) {
            // Removed already if both families had it.
            let _ = self.connections.remove_label_values(&labels.each_ref().map(String::as_str));
        }
    }
}

fn read(desired: &DesiredForwarding) -> Result<Vec<(Counted, u64)>, ReadError> {
    let layout = desired.plane().layout().clone();
    let mut session = Session::new(Socket::open()?);
    let mut counted = Vec::new();
    for family in &layout.families {
        for map in [Map::Counted, Map::NodePortCounted] {
            let elements = session.elements(*family, &layout.table, map.name())?;
            counted.extend(elements.iter().filter_map(|e| Counted::read(*family, map, e)));
        }
    }
    Ok(counted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_daemon::metrics::BuildInfo;
    use proxy_netfilter::nft::Family;
    use proxy_netfilter::nft::numbers::TableFlags;
    use proxy_rules::Dataplane;
    use proxy_rules::layout::Layout;
    use proxy_rules::model::{LocalPort, LocalService, Protocol, ServiceId, Settings};

    fn desired(service: Option<&str>) -> DesiredForwarding {
        let mut plane = Dataplane::new(Layout {
            table: "t".into(),
            flags: TableFlags::NONE,
            families: vec![Family::Ip],
            settings: Settings::default(),
        });
        if let Some(name) = service {
            let port =
                LocalPort { name: "".into(), protocol: Protocol::Tcp, port: 80, node_port: None };
            let service = LocalService {
                cluster_ips: [[10, 96, 0, 1].into()].into(),
                ports: [port].into(),
                ..LocalService::default()
            };
            plane.service_changed(&ServiceId::new("ns", name), Some(Arc::new(service)));
        }
        plane.load();
        DesiredForwarding::new(plane)
    }

    #[test]
    fn counts_add_up_across_restarts_of_the_kernels_counters() {
        let build = BuildInfo { version: "0", commit: "0" };
        let metrics = Metrics::new("x", build).unwrap();
        let mut counters = ServiceCounters::register(&metrics, "x").unwrap();
        let frontend = Counted {
            family: Family::Ip,
            address: Some([10, 96, 0, 1].into()),
            protocol: Protocol::Tcp,
            port: 80,
        };
        let expected_line = |service: &str, count: u64| {
            format!(
                "x_service_connections_total{{address=\"10.96.0.1\",namespace=\"ns\",port=\"80\",\
                 protocol=\"TCP\",service=\"{service}\"}} {count}\n"
            )
        };
        // Five, then seven in total, then two after a load.
        for (kernel, sum) in [(5, 5), (7, 7), (2, 9)] {
            counters.take(&desired(Some("web")), vec![(frontend, kernel)]);
            assert!(metrics.text().contains(&expected_line("web", sum)), "{}", metrics.text());
        }
        // The address belongs to another Service now, which has its own series.
        counters.take(&desired(Some("other")), vec![(frontend, 3)]);
        assert!(metrics.text().contains(&expected_line("other", 3)), "{}", metrics.text());
        assert!(!metrics.text().contains("service=\"web\""), "{}", metrics.text());
        counters.take(&desired(None), vec![(frontend, 4)]);
        assert!(!metrics.text().contains("x_service_connections_total{"), "{}", metrics.text());
    }
}
