//! Flags of leader election, as Kubernetes' control plane has them, and the field of configuration files that they override.

use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::go_duration;

/// Flatten this into a program's flags: `#[command(flatten)] leader: LeaderFlags`.
#[derive(Args, Clone, Debug)]
pub struct LeaderFlags {
    /// Whether only one of several instances is active, elected by a lease.
    /// [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true",
          action = ArgAction::Set)]
    pub leader_elect: Option<bool>,

    /// After this long without renewal another instance may take over; whole seconds.
    /// [default: 15s]
    #[arg(long, value_name = "DURATION", value_parser = go_duration::parse)]
    pub leader_elect_lease_duration: Option<Duration>,

    /// An instance that could not renew for this long exits; less than the lease duration.
    /// [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = go_duration::parse)]
    pub leader_elect_renew_deadline: Option<Duration>,

    /// Between two tries to take or renew the lease.
    /// [default: 2s]
    #[arg(long, value_name = "DURATION", value_parser = go_duration::parse)]
    pub leader_elect_retry_period: Option<Duration>,

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ResourceLock {
    /// A Lease of the group coordination.
    #[default]
    Leases,
}

/// How one of several instances is chosen: `leaderElection` of a configuration file, with the flags in its place where they are given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaderElection {
    /// Whether only one instance is active.
    pub leader_elect: bool,
    /// After this long without renewal another instance may take over.
    #[serde(with = "go_duration::text")]
    pub lease_duration: Duration,
    /// An instance that could not renew for this long exits.
    #[serde(with = "go_duration::text")]
    pub renew_deadline: Duration,
    /// Between two tries to take or renew the lease.
    #[serde(with = "go_duration::text")]
    pub retry_period: Duration,
    pub resource_lock: ResourceLock,
    /// Name of the lease; empty for the component's.
    pub resource_name: String,
    /// Namespace of the lease; empty for the system's.
    pub resource_namespace: String,
}

impl Default for LeaderElection {
    fn default() -> Self {
        Self {
            leader_elect: true,
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            resource_lock: ResourceLock::Leases,
            resource_name: String::new(),
            resource_namespace: String::new(),
        }
    }
}

impl LeaderFlags {
    /// What the file says, where no flag is given.
    #[must_use]
    pub fn over(&self, file: LeaderElection) -> LeaderElection {
        let name = &self.leader_elect_resource_name;
        let namespace = &self.leader_elect_resource_namespace;
        LeaderElection {
            leader_elect: self.leader_elect.unwrap_or(file.leader_elect),
            lease_duration: self.leader_elect_lease_duration.unwrap_or(file.lease_duration),
            renew_deadline: self.leader_elect_renew_deadline.unwrap_or(file.renew_deadline),
            retry_period: self.leader_elect_retry_period.unwrap_or(file.retry_period),
            resource_lock: self.leader_elect_resource_lock,
            resource_name: name.clone().unwrap_or(file.resource_name),
            resource_namespace: namespace.clone().unwrap_or(file.resource_namespace),
        }
    }
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

    fn parse(args: &[&str]) -> Result<LeaderFlags, clap::Error> {
        Flags::try_parse_from([&["program"], args].concat()).map(|flags| flags.leader)
    }

    #[test]
    fn flags_have_the_names_and_defaults_of_kubernetes() {
        let election = |args: &[&str]| parse(args).expect("valid").over(LeaderElection::default());
        let defaults = election(&[]);
        assert!(defaults.leader_elect);
        assert_eq!(defaults.lease_duration, Duration::from_secs(15));
        assert_eq!(defaults.renew_deadline, Duration::from_secs(10));
        assert_eq!(defaults.retry_period, Duration::from_secs(2));
        assert!(!election(&["--leader-elect=false"]).leader_elect);
        assert!(parse(&["--leader-elect-resource-lock=leases"]).is_ok());
        assert!(parse(&["--leader-elect-resource-lock=endpoints"]).is_err());
        assert_eq!(election(&["--leader-elect-resource-name=x"]).resource_name, "x");
    }

    #[test]
    fn a_flag_overrides_its_field() {
        let file = LeaderElection {
            leader_elect: false,
            lease_duration: Duration::from_secs(60),
            resource_name: "file".into(),
            ..LeaderElection::default()
        };
        assert_eq!(parse(&[]).expect("valid").over(file.clone()), file);
        let flags = parse(&["--leader-elect", "--leader-elect-lease-duration=15s"]).expect("valid");
        let both = flags.over(file);
        assert!(both.leader_elect, "the flag's value is the default, and given");
        assert_eq!(both.lease_duration, Duration::from_secs(15));
        assert_eq!(both.resource_name, "file");
    }
}
