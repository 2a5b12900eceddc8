//! The arguments of PodTopologySpread: the constraints of pods that have none. Checks and messages are those of kube-scheduler 1.25.

use apiserver_scheduling::profile::{
    DefaultConstraint, DefaultSpread, Profile, ScoredNodes, WhenUnsatisfiable,
};
use proto_api::names::Names;
use proto_api::selectors::label_key_fault;
use proto_daemon::config::FieldError;
use serde::Deserialize;
use serde_json::Value;

use super::{PluginConfig, check_type, parse};

pub(super) const PLUGIN: &str = "PodTopologySpread";

const SYSTEM: &str = "System";
const LIST: &str = "List";
const DO_NOT_SCHEDULE: &str = "DoNotSchedule";
const SCHEDULE_ANYWAY: &str = "ScheduleAnyway";

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct SpreadArguments {
    api_version: String,
    kind: String,
    default_constraints: Vec<Constraint>,
    defaulting_type: String,
}

/// A TopologySpreadConstraint. The last three fields need features that are off in Kubernetes 1.25 and change nothing.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Constraint {
    max_skew: i32,
    topology_key: String,
    when_unsatisfiable: String,
    label_selector: Option<Value>,
    min_domains: Option<i32>,
    #[serde(rename = "nodeAffinityPolicy")]
    _node_affinity_policy: Value,
    #[serde(rename = "nodeTaintsPolicy")]
    _node_taints_policy: Value,
    #[serde(rename = "matchLabelKeys")]
    _match_label_keys: Value,
}

/// Sets the default constraints of a profile. Gives what is wrong with them.
pub(super) fn set_arguments(
    names: &Names,
    profile: &mut Profile,
    config: &PluginConfig,
) -> Vec<FieldError> {
    let args = match parse::<SpreadArguments>(config) {
        Ok(args) => args,
        Err(fault) => return vec![fault],
    };
    if let Err(fault) = check_type(config, &args.api_version, &args.kind) {
        return vec![fault];
    }
    let defaulting_type = match args.defaulting_type.as_str() {
        "" => SYSTEM,
        other => other,
    };
    let constraints = &args.default_constraints;
    let mut faults: Vec<FieldError> =
        check_defaulting(defaulting_type, constraints).into_iter().collect();
    for nth in 0..constraints.len() {
        check_constraint(constraints, nth, &mut faults);
    }
    profile.default_spread = match defaulting_type {
        LIST => DefaultSpread {
            constraints: constraints.iter().map(Constraint::read).collect(),
            scored: ScoredNodes::WithAllKeys,
        },
        _ => DefaultSpread::of_system(names),
    };
    faults
}

fn check_defaulting(defaulting_type: &str, constraints: &[Constraint]) -> Option<FieldError> {
    let why = match defaulting_type {
        SYSTEM if constraints.is_empty() => return None,
        SYSTEM => invalid(&format!("{SYSTEM:?}"), "when .defaultConstraints are not empty"),
        LIST => return None,
        other => not_supported(other, [SYSTEM, LIST]),
    };
    Some(FieldError::new("args.defaultingType", why))
}

fn check_constraint(all: &[Constraint], nth: usize, faults: &mut Vec<FieldError>) {
    let (Some(constraint), Some(before)) = (all.get(nth), all.get(..nth)) else { return };
    let path = format!("args.defaultConstraints[{nth}]");
    let mut fault = |field: &str, why: String| {
        faults.push(FieldError::new(format!("{path}{field}"), why));
    };
    let Constraint { max_skew, topology_key, when_unsatisfiable, label_selector, .. } = constraint;
    if *max_skew <= 0 {
        fault(".maxSkew", invalid(&max_skew.to_string(), "not in valid range (0, inf)"));
    }
    if topology_key.is_empty() {
        fault(".topologyKey", "Required value: can not be empty".to_owned());
    } else if let Some(why) = label_key_fault(topology_key) {
        fault(".topologyKey", invalid(&format!("{topology_key:?}"), why));
    }
    match when_unsatisfiable.as_str() {
        "" => fault(".whenUnsatisfiable", "Required value: can not be empty".to_owned()),
        DO_NOT_SCHEDULE | SCHEDULE_ANYWAY => {}
        other => {
            fault(".whenUnsatisfiable", not_supported(other, [DO_NOT_SCHEDULE, SCHEDULE_ANYWAY]));
        }
    }
    if label_selector.is_some() {
        let why = "Forbidden: constraint must not define a selector, as they deduced for each pod";
        fault(".labelSelector", why.to_owned());
    }
    let is_it = |other: &Constraint| {
        other.topology_key == *topology_key && other.when_unsatisfiable == *when_unsatisfiable
    };
    if before.iter().any(is_it) {
        let pair = format!("{{{topology_key}, {when_unsatisfiable}}}");
        fault("", format!("Duplicate value: {pair:?}"));
    }
}

fn invalid(value: &str, why: &str) -> String {
    format!("Invalid value: {value}: {why}")
}

fn not_supported(value: &str, supported: [&str; 2]) -> String {
    let [first, second] = supported;
    format!("Unsupported value: {value:?}: supported values: {first:?}, {second:?}")
}

impl Constraint {
    fn read(&self) -> DefaultConstraint {
        let min_domains = self.min_domains.and_then(|min| usize::try_from(min).ok());
        let when_unsatisfiable = match self.when_unsatisfiable.as_str() {
            DO_NOT_SCHEDULE => WhenUnsatisfiable::DoNotSchedule,
            _ => WhenUnsatisfiable::ScheduleAnyway,
        };
        DefaultConstraint {
            topology_key: self.topology_key.clone(),
            max_skew: i64::from(self.max_skew),
            min_domains: min_domains.unwrap_or(1),
            when_unsatisfiable,
        }
    }
}
