//! How the controller decides.

/// The controller's settings; times in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AutoscalerSettings {
    /// How far the ratio of use and target may be from 1 without a change.
    pub tolerance: f64,
    /// How long the highest recommendation holds.
    pub downscale_stabilization: i64,
    /// How long after its start the CPU time of a pod counts only while it is ready.
    pub cpu_initialization_period: i64,
    /// How long after its start a pod that becomes unready counts as one that never was ready.
    pub initial_readiness_delay: i64,
}

/// Kubernetes' defaults.
impl Default for AutoscalerSettings {
    fn default() -> Self {
        Self {
            tolerance: 0.1,
            downscale_stabilization: 300,
            cpu_initialization_period: 300,
            initial_readiness_delay: 30,
        }
    }
}
