//! The flags of evictions of failed nodes, kube-controller-manager's.

use std::time::Duration;

use apiserver_controllers::node_lifecycle::{EvictionRates, GracePeriods};
use clap::Args;
use proto_daemon::flags::FlagError;
use proto_daemon::go_duration;

/// When nodes count as failed, and how fast the nodes of a zone are evicted one after the other.
#[derive(Args, Clone, Copy, Debug)]
pub struct EvictionFlags {
    /// How long a node's kubelet may be silent before the node is marked as unknown.
    #[arg(long, value_name = "DURATION", default_value = "40s", value_parser = go_duration::parse)]
    pub node_monitor_grace_period: Duration,

    /// The same for a node that has never reported its condition Ready.
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = go_duration::parse)]
    pub node_startup_grace_period: Duration,

    /// How long pods stay on a failed node with --enable-taint-manager=false. With the taint manager their tolerations say so.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = go_duration::parse)]
    pub pod_eviction_timeout: Duration,

    /// Failed nodes of a zone whose pods are evicted, each second; 0 evicts none.
    #[arg(long, value_name = "RATE", default_value_t = 0.1, value_parser = rate)]
    pub node_eviction_rate: f64,

    /// The same for a zone that has failed, see --unhealthy-zone-threshold; it is 0 for one that is not large.
    #[arg(long, value_name = "RATE", default_value_t = 0.01, value_parser = rate)]
    pub secondary_node_eviction_rate: f64,

    /// A zone is large if it has more nodes.
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    pub large_cluster_size_threshold: u32,

    /// Share of a zone's nodes, at least 3, that are not ready when the zone has failed.
    #[arg(long, value_name = "RATIO", default_value_t = 0.55, value_parser = share)]
    pub unhealthy_zone_threshold: f64,
}

impl EvictionFlags {
    /// How long kubelets may be silent.
    pub fn grace(&self) -> GracePeriods {
        GracePeriods {
            running: self.node_monitor_grace_period,
            starting: self.node_startup_grace_period,
        }
    }

    /// The rates for the node lifecycle controller.
    pub fn rates(&self) -> EvictionRates {
        EvictionRates {
            healthy: self.node_eviction_rate,
            failing: self.secondary_node_eviction_rate,
            small_zone: self.large_cluster_size_threshold,
            failed_share: self.unhealthy_zone_threshold,
        }
    }
}

fn rate(text: &str) -> Result<f64, FlagError> {
    parse(text, f64::MAX, "expected a rate of at least 0")
}

fn share(text: &str) -> Result<f64, FlagError> {
    parse(text, 1.0, "expected a ratio from 0 to 1")
}

fn parse(text: &str, most: f64, expected: &str) -> Result<f64, FlagError> {
    let number = text.parse::<f64>().map_err(|error| FlagError::new(error.to_string()))?;
    match (0.0..=most).contains(&number) {
        true => Ok(number),
        false => Err(FlagError::new(expected)),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        flags: EvictionFlags,
    }

    fn rates(args: &[&str]) -> Result<EvictionRates, String> {
        let parsed = Program::try_parse_from([&["program"], args].concat());
        parsed.map(|program| program.flags.rates()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_defaults_are_kubernetes() {
        let expected =
            EvictionRates { healthy: 0.1, failing: 0.01, small_zone: 50, failed_share: 0.55 };
        assert_eq!(rates(&[]), Ok(expected));
        assert_eq!(EvictionRates::default(), expected);
    }

    #[test]
    fn a_node_that_starts_has_a_grace_period_of_its_own() {
        let grace = |args: &[&str]| {
            let parsed = Program::try_parse_from([&["program"], args].concat()).expect("flags");
            let GracePeriods { running, starting } = parsed.flags.grace();
            [running, starting].map(|period| period.as_secs())
        };
        assert_eq!(grace(&[]), [40, 60]);
        assert_eq!(grace(&["--node-startup-grace-period=2m"]), [40, 120]);
        assert_eq!(grace(&["--node-monitor-grace-period=5s"]), [5, 60]);
    }

    #[test]
    fn each_flag_sets_its_value() {
        let args = [
            "--node-eviction-rate=3.5",
            "--secondary-node-eviction-rate=0",
            "--large-cluster-size-threshold=7",
            "--unhealthy-zone-threshold=1",
        ];
        let expected =
            EvictionRates { healthy: 3.5, failing: 0.0, small_zone: 7, failed_share: 1.0 };
        assert_eq!(rates(&args), Ok(expected));
    }

    #[test]
    fn wrong_values_are_refused_by_flag() {
        for (flag, values) in [
            ("--node-eviction-rate", &["-0.1", "NaN", "inf", "x", ""][..]),
            ("--secondary-node-eviction-rate", &["-1", "nan", "infinity", "1e999"]),
            ("--large-cluster-size-threshold", &["-1", "1.5", "4294967296"]),
            ("--unhealthy-zone-threshold", &["-0.01", "1.01", "NaN", "inf"]),
        ] {
            for value in values {
                let error = rates(&[&format!("{flag}={value}")]).expect_err(value);
                assert!(error.contains(flag), "{error}");
            }
        }
    }
}
