//! One real orch-proxy among the hollow nodes, which programs the tables of the bench's network namespace.

use std::path::Path;

use anyhow::Result;
use apiserver_bootstrap::arguments::{self, command_line};
use kubernetes_server::processes::spawn;
use tokio::process::Child;

use super::control_plane::ControlPlane;
use super::costs::Program;

/// A running proxy. It ends with it.
pub struct ServiceProxy(Child);

impl ServiceProxy {
    /// Starts it as the proxy of the first hollow node.
    pub fn start(bin_dir: &Path, dir: &Path, plane: &ControlPlane) -> Result<Self> {
        let client = plane.client_of("proxy")?;
        let mut flags = arguments::proxy(&client, "hollow-0-0", "", "cluster.local");
        flags.retain(|(flag, _)| *flag != "dns");
        // The limits of the machine stay as they are.
        flags.extend([
            ("conntrack-max-per-core", "0".to_owned()),
            ("conntrack-tcp-timeout-established", "0s".to_owned()),
            ("conntrack-tcp-timeout-close-wait", "0s".to_owned()),
        ]);
        let argv = command_line(bin_dir, "orch-proxy", plane.names, &flags);
        Ok(Self(spawn(&argv, &dir.join("logs/orch-proxy.log"))?))
    }

    pub fn program(&self) -> Program {
        Program::from_processes("orch-proxy", [&self.0])
    }
}
