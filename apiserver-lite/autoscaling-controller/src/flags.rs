//! The controller's flags, kube-controller-manager's.

use std::time::Duration;

use apiserver_autoscaling::AutoscalerSettings;
use clap::Args;
use proto_daemon::flags::FlagError;
use proto_daemon::go_duration;

/// How autoscalers decide, and how often.
#[derive(Args, Clone, Debug)]
pub struct AutoscalingFlags {
    /// Time between two looks at a HorizontalPodAutoscaler.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = go_duration::parse)]
    pub horizontal_pod_autoscaler_sync_period: Duration,

    /// How long the highest recommended number of replicas holds before the target is scaled down.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = go_duration::parse)]
    pub horizontal_pod_autoscaler_downscale_stabilization: Duration,

    /// How far the ratio of use to target may be from 1.0 before the target is scaled.
    #[arg(long, value_name = "RATIO", default_value_t = 0.1, value_parser = tolerance)]
    pub horizontal_pod_autoscaler_tolerance: f64,

    /// How long after a pod's start its CPU samples are skipped while it is not ready.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = go_duration::parse)]
    pub horizontal_pod_autoscaler_cpu_initialization_period: Duration,

    /// How long after a pod's start changes of its readiness count as its first readiness.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = go_duration::parse)]
    pub horizontal_pod_autoscaler_initial_readiness_delay: Duration,
}

impl AutoscalingFlags {
    /// Time between two looks, at least a second.
    pub fn sync_period(&self) -> Duration {
        self.horizontal_pod_autoscaler_sync_period.max(Duration::from_secs(1))
    }

    /// How autoscalers decide.
    pub fn settings(&self) -> AutoscalerSettings {
        AutoscalerSettings {
            tolerance: self.horizontal_pod_autoscaler_tolerance,
            downscale_stabilization: seconds(
                self.horizontal_pod_autoscaler_downscale_stabilization,
            ),
            cpu_initialization_period: seconds(
                self.horizontal_pod_autoscaler_cpu_initialization_period,
            ),
            initial_readiness_delay: seconds(
                self.horizontal_pod_autoscaler_initial_readiness_delay,
            ),
        }
    }
}

fn seconds(length: Duration) -> i64 {
    i64::try_from(length.as_secs()).unwrap_or(i64::MAX)
}

fn tolerance(text: &str) -> Result<f64, FlagError> {
    let ratio = text.parse::<f64>().map_err(|error| FlagError::new(error.to_string()))?;
    match (0.0..1.0).contains(&ratio) {
        true => Ok(ratio),
        false => Err(FlagError::new("expected a ratio of at least 0 and less than 1")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        flags: AutoscalingFlags,
    }

    #[test]
    fn the_defaults_are_kubernetes() {
        let flags = |args: &[&str]| {
            let parsed = Program::try_parse_from([&["program"], args].concat());
            parsed.map(|program| program.flags).map_err(|error| error.to_string())
        };
        let default = flags(&[]).expect("valid");
        assert_eq!(default.settings(), AutoscalerSettings::default());
        assert_eq!(default.sync_period(), Duration::from_secs(15));
        let often = flags(&["--horizontal-pod-autoscaler-sync-period=1ms"]).expect("valid");
        assert_eq!(often.sync_period(), Duration::from_secs(1));
        for wrong in ["1", "-0.1", "NaN", "x"] {
            let error = flags(&[&format!("--horizontal-pod-autoscaler-tolerance={wrong}")]);
            assert!(error.is_err(), "{wrong}");
        }
    }
}
