//! The feature gates of this agent, and which of them have an effect.

use proto_daemon::config::FieldError;
use proto_daemon::feature_gates::{Gate, ResolvedGates, resolve_gates};

use super::file::FileConfig;

/// Gates in addition to the shared ones.
const OWN: &[Gate] = &[];

/// Gates with an effect in the agent. Others are accepted, since one setting is often given to all
/// programs of a cluster; changing one of them logs a warning.
const CONSULTED: &[&str] = &[
    "RotateKubeletServerCertificate",
    "SeccompDefault",
    "GracefulNodeShutdown",
    "ContainerCheckpoint",
];

/// Evaluates the gates of the file.
pub fn evaluate_gates(file: &FileConfig) -> Result<ResolvedGates, Vec<FieldError>> {
    resolve_gates(OWN, CONSULTED, &file.feature_gates).map_err(|faults| {
        faults.0.iter().map(|fault| FieldError::new("featureGates", fault.to_string())).collect()
    })
}
