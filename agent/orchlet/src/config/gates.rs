//! Which feature gates this agent knows, and which of them change what it does.

use proto_daemon::config::FieldError;
use proto_daemon::feature_gates::{Gate, Settled, settle as settle_all};

use super::file::FileConfig;

/// Gates beside those that all programs share.
const OWN: &[Gate] = &[];

/// Gates that are asked for somewhere in the agent. The others are accepted, as one setting is often given to every program of a
/// cluster, and switching one of them is answered with a warning.
const CONSULTED: &[&str] = &[
    "RotateKubeletServerCertificate",
    "SeccompDefault",
    "GracefulNodeShutdown",
    "ContainerCheckpoint",
];

/// What the file's gates make.
pub fn settle(file: &FileConfig) -> Result<Settled, Vec<FieldError>> {
    settle_all(OWN, CONSULTED, &file.feature_gates).map_err(|faults| {
        faults.iter().map(|fault| FieldError::new("featureGates", fault.to_string())).collect()
    })
}
