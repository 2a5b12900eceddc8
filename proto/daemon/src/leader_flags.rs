//! Flags of leader election, as Kubernetes' control plane has them.

use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};

use crate::go_duration;

/// Flatten this into a program's flags: `#[command(flatten)] leader: LeaderFlags`.
#[derive(Args, Clone, Debug)]
pub struct LeaderFlags {
    /// Whether only one of several instances is active, elected by a lease.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true",
          default_value_t = true, action = ArgAction::Set)]
    pub leader_elect: bool,

    /// After this long without renewal another instance may take over; whole seconds.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = go_duration::parse)]
    pub leader_elect_lease_duration: Duration,

    /// An instance that could not renew for this long exits; less than the lease duration.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = go_duration::parse)]
    pub leader_elect_renew_deadline: Duration,

    /// Between two tries to take or renew the lease.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = go_duration::parse)]
    pub leader_elect_retry_period: Duration,

    /// Kind of the object that is the lock.
    #[arg(long, value_enum, default_value_t = ResourceLock::Leases)]
    pub leader_elect_resource_lock: ResourceLock,

    /// Name of the lease; the component's.
    #[arg(long, value_name = "NAME")]
    pub leader_elect_resource_name: Option<String>,

    /// Namespace of the lease; the system's.
    #[arg(long, value_name = "NAMESPACE")]
    pub leader_elect_resource_namespace: Option<String>,
}

/// Kinds of objects that can be the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ResourceLock {
    /// A Lease of the group coordination.
    Leases,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        leader: LeaderFlags,
    }

    #[test]
    fn flags_have_the_names_and_defaults_of_kubernetes() {
        let parse = |args: &[&str]| {
            Flags::try_parse_from([&["program"], args].concat()).map(|flags| flags.leader)
        };
        let defaults = parse(&[]).expect("valid");
        assert!(defaults.leader_elect);
        assert_eq!(defaults.leader_elect_lease_duration, Duration::from_secs(15));
        assert_eq!(defaults.leader_elect_renew_deadline, Duration::from_secs(10));
        assert_eq!(defaults.leader_elect_retry_period, Duration::from_secs(2));
        assert!(!parse(&["--leader-elect=false"]).expect("valid").leader_elect);
        assert!(parse(&["--leader-elect-resource-lock=leases"]).is_ok());
        assert!(parse(&["--leader-elect-resource-lock=endpoints"]).is_err());
        let named = parse(&["--leader-elect-resource-name=x"]).expect("valid");
        assert_eq!(named.leader_elect_resource_name.as_deref(), Some("x"));
    }
}
