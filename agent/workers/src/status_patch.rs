//! The patch of a pod's status: changes only fields that the agent owns, and is empty if they are
//! right. Pure.

use agent_pod::record::Phase;
use proto_api::core::v1::{ContainerStatus, PodCondition, PodStatus};
use serde_json::{Map, Value, json};

/// Whether a field owned by the agent differs. Conditions of other clients do not count.
pub fn differs(shown: &PodStatus, status: &PodStatus) -> bool {
    // Cheap comparisons first: usually nothing differs, or one of a few fields; only otherwise are
    // both serialized.
    shown != status
        && (key_fields(shown).ne(key_fields(status))
            || fields(shown) != fields(status)
            || status.conditions.iter().any(|c| is_changed(&shown.conditions, c)))
}

/// The fields that change most often, of the pod and of each container.
fn key_fields(status: &PodStatus) -> impl Iterator<Item = (&str, &str, i32, bool)> {
    let of_containers = containers(status)
        .map(|c| (c.name.as_str(), c.container_id.as_str(), c.restart_count, c.ready));
    std::iter::once((status.phase.as_str(), status.reason.as_str(), 0, false)).chain(of_containers)
}

/// Whether an agent that does not know the shown status yet (`known`) would move the phase
/// backwards with `status`.
pub fn would_regress(known: &PodStatus, shown: &PodStatus, status: &PodStatus) -> bool {
    let (shown, next) = (Phase::parse(&shown.phase), Phase::parse(&status.phase));
    known.phase.is_empty() && shown.advance(next) != next
}

/// Whether `status` only adds that the agent has accepted the pod: no container status was shown,
/// none has started, and no error occurred.
pub fn shows_no_progress(shown: &PodStatus, status: &PodStatus) -> bool {
    let waits_its_turn = |c: &ContainerStatus| {
        let reason = c.state.waiting.as_ref().map(|waiting| waiting.reason.as_str());
        c.restart_count == 0 && matches!(reason, Some("ContainerCreating" | "PodInitializing"))
    };
    Phase::parse(&status.phase) == Phase::Pending
        && status.reason.is_empty()
        && containers(shown).next().is_none()
        && containers(status).all(waits_its_turn)
}

/// Init containers and containers; ephemeral ones start later than these.
fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    status.init_container_statuses.iter().chain(&status.container_statuses)
}

/// Fields that the agent may remove from a status.
const PASSING: [&str; 10] = [
    "containerStatuses",
    "ephemeralContainerStatuses",
    "hostIP",
    "initContainerStatuses",
    "message",
    "podIP",
    "podIPs",
    "qosClass",
    "reason",
    "startTime",
];

/// A strategic merge patch from `shown` to `status`, for the pod with this uid only; conditions of
/// other clients stay. A shown status without a phase is unknown: then all fields are stated.
pub fn patch(uid: &str, shown: &PodStatus, status: &PodStatus) -> Value {
    json!({ "metadata": { "uid": uid }, "status": changes(shown, status) })
}

/// The fields to change; `null` removes a field.
fn changes(shown: &PodStatus, status: &PodStatus) -> Map<String, Value> {
    let (before, after) = (fields(shown), fields(status));
    let mut changes = Map::new();
    for (name, value) in &after {
        if before.get(name) != Some(value) {
            changes.insert(name.clone(), value.clone());
        }
    }
    let known: Vec<&str> = match shown.phase.is_empty() {
        true => PASSING.to_vec(),
        false => before.keys().map(String::as_str).collect(),
    };
    for name in known.into_iter().filter(|name| !after.contains_key(*name)) {
        changes.insert(name.to_owned(), Value::Null);
    }
    // The list is merged by address, which would keep removed addresses, so it is replaced as a
    // whole.
    if let Some(Value::Array(ips)) = changes.get_mut("podIPs") {
        ips.insert(0, json!({ "$patch": "replace" }));
    }
    let conditions = changed_conditions(&shown.conditions, &status.conditions);
    if !conditions.is_empty() {
        changes.insert("conditions".to_owned(), Value::Array(conditions));
    }
    changes
}

/// The fields owned by the agent, without conditions.
fn fields(status: &PodStatus) -> Map<String, Value> {
    let own =
        PodStatus { conditions: Vec::new(), nominated_node_name: String::new(), ..status.clone() };
    match serde_json::to_value(&own) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

fn is_changed(shown: &[PodCondition], wanted: &PodCondition) -> bool {
    // `lastProbeTime` has no owner; servers and other agents leave it empty.
    let same = |shown: &PodCondition| {
        PodCondition { last_probe_time: wanted.last_probe_time, ..shown.clone() } == *wanted
    };
    !shown.iter().any(|s| s.type_ == wanted.type_ && same(s))
}

fn changed_conditions(shown: &[PodCondition], wanted: &[PodCondition]) -> Vec<Value> {
    wanted
        .iter()
        .filter(|c| is_changed(shown, c))
        .filter_map(|c| {
            let mut value = serde_json::to_value(c).ok()?;
            // Conditions are merged by type, so fields that are now empty are removed explicitly.
            let fields = value.as_object_mut()?;
            for name in ["reason", "message"] {
                fields.entry(name).or_insert(Value::Null);
            }
            Some(value)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proto_api::Time;
    use proto_api::core::v1::{ContainerState, ContainerStateWaiting, PodIP};

    use super::*;

    fn condition(type_: &str, status: &str) -> PodCondition {
        PodCondition {
            type_: type_.into(),
            status: status.into(),
            last_transition_time: Time::from_unix(10),
            ..PodCondition::default()
        }
    }

    #[test]
    fn the_phase_regresses_only_for_an_agent_without_a_known_status() {
        let of = |phase: &str| PodStatus { phase: phase.into(), ..PodStatus::default() };
        let table = [
            ("", "", "Pending", false),
            ("", "Pending", "Running", false),
            ("", "Running", "Running", false),
            ("", "Running", "Pending", true),
            ("", "Failed", "Running", true),
            // A user wrote into the mirror: the static pod is the truth.
            ("Running", "Failed", "Running", false),
        ];
        for (known, shown, next, expect) in table {
            let case = (known, shown, next);
            assert_eq!(would_regress(&of(known), &of(shown), &of(next)), expect, "{case:?}");
        }
    }

    #[test]
    fn a_status_is_that_of_a_starting_pod_until_a_container_reports_something() {
        let container = |reason: &str, restart_count| {
            let waiting = ContainerStateWaiting { reason: reason.into(), ..Default::default() };
            let state = ContainerState { waiting: Some(waiting), ..ContainerState::default() };
            ContainerStatus { state, restart_count, ..ContainerStatus::default() }
        };
        let of = |phase: &str, reason: &str, all: Vec<ContainerStatus>| PodStatus {
            phase: phase.into(),
            reason: reason.into(),
            container_statuses: all,
            ..PodStatus::default()
        };
        let creating = || container("ContainerCreating", 0);
        let unknown = of("Pending", "", Vec::new());
        let begins = of("Pending", "", vec![creating()]);
        let running = ContainerStatus::default();
        let init = |first| PodStatus { init_container_statuses: vec![first], ..begins.clone() };
        let table = [
            ("taken", &unknown, begins.clone(), true),
            ("by who knows nothing", &PodStatus::default(), begins.clone(), true),
            ("with init containers", &unknown, init(container("PodInitializing", 0)), true),
            ("an init container runs", &unknown, init(running.clone()), false),
            ("told before", &begins, begins.clone(), false),
            ("one runs", &unknown, of("Pending", "", vec![creating(), running]), false),
            ("no image", &unknown, of("Pending", "", vec![container("ErrImagePull", 0)]), false),
            ("again", &unknown, of("Pending", "", vec![container("ContainerCreating", 1)]), false),
            ("refused", &unknown, of("Failed", "OutOfcpu", Vec::new()), false),
            ("for a reason", &unknown, of("Pending", "Odd", vec![creating()]), false),
        ];
        for (case, shown, status, expect) in table {
            assert_eq!(shows_no_progress(shown, &status), expect, "{case}");
        }
    }

    #[test]
    fn only_changes_are_written_and_others_are_left_alone() {
        let shown = PodStatus {
            phase: "Pending".into(),
            reason: "Old".into(),
            nominated_node_name: "n".into(),
            conditions: vec![condition("Ready", "False"), condition("Foreign", "True")],
            ..PodStatus::default()
        };
        let status = PodStatus {
            phase: "Running".into(),
            pod_ips: vec![PodIP { ip: "10.0.0.1".into() }],
            conditions: vec![condition("Ready", "True")],
            ..PodStatus::default()
        };
        let expect = json!({
            "metadata": { "uid": "u" },
            "status": {
                "phase": "Running",
                "reason": null,
                "podIPs": [{ "$patch": "replace" }, { "ip": "10.0.0.1" }],
                "conditions": [{
                    "type": "Ready",
                    "status": "True",
                    "lastProbeTime": null,
                    "lastTransitionTime": "1970-01-01T00:00:10Z",
                    "reason": null,
                    "message": null,
                }],
            },
        });
        assert_eq!(patch("u", &shown, &status), expect);
        assert!(differs(&shown, &status));
        let both = PodStatus { conditions: shown.conditions.clone(), ..status.clone() };
        assert!(!differs(
            &both,
            &PodStatus { conditions: vec![condition("Ready", "False")], ..both.clone() }
        ));
    }

    #[test]
    fn of_what_is_not_known_to_be_shown_all_is_stated() {
        let status = PodStatus { phase: "Failed".into(), ..PodStatus::default() };
        let patch = patch("u", &PodStatus::default(), &status);
        let stated = patch["status"].as_object().expect("a status");
        assert_eq!(stated["phase"], "Failed");
        assert!(PASSING.iter().all(|name| stated.get(*name) == Some(&Value::Null)), "{patch}");
        // All that a status may say, the phase apart.
        let ips = vec![PodIP { ip: "10.0.0.1".into() }];
        let text = || "t".to_owned();
        let full = PodStatus {
            phase: text(),
            conditions: Vec::new(),
            message: text(),
            reason: text(),
            nominated_node_name: text(),
            host_ip: text(),
            pod_ip: text(),
            pod_ips: ips,
            start_time: Some(Time::from_unix(1)),
            init_container_statuses: vec![Default::default()],
            container_statuses: vec![Default::default()],
            qos_class: text(),
            ephemeral_container_statuses: vec![Default::default()],
        };
        let mut names: Vec<String> = fields(&full).into_iter().map(|(name, _)| name).collect();
        names.retain(|name| name != "phase");
        names.sort();
        assert_eq!(names, PASSING);
    }
}
