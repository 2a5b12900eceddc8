//! Bounds of slices that systemd manages. It writes a slice's cgroup from its own properties whenever it touches the slice, so that what
//! it is not told of does not last.

use std::process::Stdio;
use std::time::Duration;

use agent_node::cgroup::{CgroupLimits, QUOTA_PERIOD_US};
use tokio::process::Command;

/// The program that talks to systemd.
const SYSTEMCTL: &str = "/usr/bin/systemctl";
/// How long it may take.
const DEADLINE: Duration = Duration::from_secs(20);

/// Why systemd did not take a slice's bounds.
#[derive(Debug, thiserror::Error)]
pub enum SystemdError {
    /// The program cannot be run.
    #[error("run {SYSTEMCTL}")]
    Run(#[source] std::io::Error),
    /// It did not end in time.
    #[error("{SYSTEMCTL} {verb} {slice}: no answer within {} s", DEADLINE.as_secs())]
    Deadline {
        /// What it was to do.
        verb: &'static str,
        /// With which slice.
        slice: String,
    },
    /// It refused.
    #[error("{SYSTEMCTL} {verb} {slice}: {message}")]
    Refused {
        /// What it was to do.
        verb: &'static str,
        /// With which slice.
        slice: String,
        /// What it said.
        message: String,
    },
}

/// Has systemd bound a slice, until the next boot. Safe to repeat.
///
/// # Errors
/// It cannot be asked, or refuses.
pub async fn bound(slice: &str, limits: &CgroupLimits) -> Result<(), SystemdError> {
    let properties = properties(limits);
    if properties.is_empty() {
        return Ok(());
    }
    run("set-property", slice, &["--runtime"], &properties).await
}

/// Has systemd forget a slice that is empty.
///
/// # Errors
/// It cannot be asked, or refuses.
pub async fn forget(slice: &str) -> Result<(), SystemdError> {
    run("stop", slice, &[], &[]).await?;
    run("revert", slice, &[], &[]).await
}

/// Properties of a slice as systemd.resource-control(5) names them. Pure.
fn properties(limits: &CgroupLimits) -> Vec<String> {
    let mut all = Vec::new();
    all.extend(limits.cpu_weight().map(|weight| format!("CPUWeight={weight}")));
    if let Some(quota) = limits.cpu_quota_us {
        let period = limits.cpu_period_us.unwrap_or(QUOTA_PERIOD_US).max(1);
        // systemd counts in hundredths of a percent at best; whole percents, rounded up, are what the ecosystem uses.
        all.push(format!("CPUQuota={}%", quota.saturating_mul(100).div_ceil(period)));
        all.push(format!("CPUQuotaPeriodSec={period}us"));
    }
    all.extend(limits.memory_bytes.map(|bytes| format!("MemoryMax={bytes}")));
    all.extend(limits.pids.map(|pids| format!("TasksMax={pids}")));
    all
}

async fn run(
    verb: &'static str,
    slice: &str,
    options: &[&str],
    arguments: &[String],
) -> Result<(), SystemdError> {
    let mut command = Command::new(SYSTEMCTL);
    command.arg("--no-ask-password").arg(verb).args(options).arg(slice).args(arguments);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let slice = slice.to_owned();
    match tokio::time::timeout(DEADLINE, command.output()).await {
        Err(_) => Err(SystemdError::Deadline { verb, slice }),
        Ok(Err(error)) => Err(SystemdError::Run(error)),
        Ok(Ok(output)) if output.status.success() => Ok(()),
        Ok(Ok(output)) => {
            let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(SystemdError::Refused { verb, slice, message })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_as_properties() {
        let limits = CgroupLimits {
            cpu_shares: Some(1024),
            cpu_quota_us: Some(25_500),
            memory_bytes: Some(64 << 20),
            pids: Some(100),
            ..CgroupLimits::default()
        };
        let expect = [
            "CPUWeight=39",
            "CPUQuota=26%",
            "CPUQuotaPeriodSec=100000us",
            "MemoryMax=67108864",
            "TasksMax=100",
        ];
        assert_eq!(properties(&limits), expect);
        assert!(properties(&CgroupLimits::default()).is_empty());
    }
}
