//! Operations in flight of one pod, and which actions may start alongside.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_pod::plan::Action;

/// The object of an operation. One operation at a time per object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OperationKey {
    /// Admission, the final report to the API and the end of the task.
    Pod,
    Volumes,
    Sandbox,
    Image(String),
    Container(String),
    /// The `postStart` hook of a container; it does not delay a stop.
    Hook(String),
    /// A dead container by CRI id.
    DeadContainer(String),
    Status,
    Relist,
}

/// The object that an action works on.
pub fn operation_key(action: &Action) -> OperationKey {
    match action {
        Action::Admit | Action::ReportDeleted | Action::Forget => OperationKey::Pod,
        Action::MountVolumes | Action::UnmountVolumes => OperationKey::Volumes,
        Action::CreateSandbox { .. }
        | Action::StopSandbox { .. }
        | Action::RemoveSandbox { .. }
        | Action::RemoveCgroup => OperationKey::Sandbox,
        Action::InspectImage { image } | Action::PullImage { image, .. } => {
            OperationKey::Image(image.clone())
        }
        Action::CreateContainer { container, .. }
        | Action::StartContainer { container, .. }
        | Action::StopContainer { container, .. } => OperationKey::Container(container.clone()),
        Action::RunPostStart { container, .. } => OperationKey::Hook(container.clone()),
        Action::RemoveContainer { id, .. } => OperationKey::DeadContainer(id.clone()),
    }
}

/// The operations of a pod that have begun and not ended.
#[derive(Debug, Default)]
pub struct OperationsInFlight {
    /// By key; each with its deadline if it is a stop.
    under_way: BTreeMap<OperationKey, Vec<Option<Duration>>>,
}

impl OperationsInFlight {
    /// Whether `action` may start now.
    pub fn admits(&self, action: &Action) -> bool {
        match action {
            // A stop with an earlier deadline runs alongside the one in flight; the runtime accepts
            // both.
            Action::StopContainer { deadline, .. } => {
                let mut known = self.under_way.get(&operation_key(action)).into_iter().flatten();
                known.all(|known| known.is_some_and(|known| *deadline < known))
            }
            Action::StopSandbox { .. }
            | Action::RemoveSandbox { .. }
            | Action::UnmountVolumes
            | Action::RemoveCgroup => !self.has(&operation_key(action)) && !self.makes_containers(),
            // The final steps: no operation may be in flight except pulls and hooks, which end with
            // the task.
            Action::ReportDeleted | Action::Forget => {
                let ends = |k: &OperationKey| {
                    matches!(
                        k,
                        OperationKey::Image(_) | OperationKey::Hook(_) | OperationKey::Relist
                    )
                };
                self.under_way.keys().all(ends)
            }
            _ => !self.has(&operation_key(action)),
        }
    }

    /// Whether an operation on that object is in flight.
    pub fn has(&self, key: &OperationKey) -> bool {
        self.under_way.contains_key(key)
    }

    /// Whether an operation in flight changes what a relist would show.
    pub fn changes_runtime(&self) -> bool {
        self.under_way.keys().any(|k| {
            matches!(
                k,
                OperationKey::Sandbox | OperationKey::Container(_) | OperationKey::DeadContainer(_)
            )
        })
    }

    /// Whether an operation on a container is in flight.
    fn makes_containers(&self) -> bool {
        self.under_way.keys().any(|k| matches!(k, OperationKey::Container(_)))
    }

    /// Whether a container is being created or started.
    pub fn starts(&self) -> bool {
        let of_container =
            self.under_way.iter().filter(|(k, _)| matches!(k, OperationKey::Container(_)));
        of_container.flat_map(|(_, all)| all).any(Option::is_none)
    }

    /// Notes the start of an operation; `deadline` is that of a stop.
    pub fn begin(&mut self, key: OperationKey, deadline: Option<Duration>) {
        self.under_way.entry(key).or_default().push(deadline);
    }

    /// Notes the end of an operation that started with this deadline.
    pub fn end(&mut self, key: &OperationKey, deadline: Option<Duration>) {
        let Some(all) = self.under_way.get_mut(key) else { return };
        if let Some(at) = all.iter().position(|known| *known == deadline) {
            all.swap_remove(at);
        }
        if all.is_empty() {
            self.under_way.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use agent_pod::plan::StopReason;

    use super::*;

    fn stop(secs: u64) -> Action {
        Action::StopContainer {
            container: "c".into(),
            id: "x".into(),
            deadline: Duration::from_secs(secs),
            why: StopReason::PodEnds,
            hook: false,
        }
    }

    #[test]
    fn a_sooner_stop_overtakes_and_a_later_one_does_not() {
        let mut operations = OperationsInFlight::default();
        assert!(operations.admits(&stop(30)));
        operations.begin(operation_key(&stop(30)), Some(Duration::from_secs(30)));
        assert!(!operations.admits(&stop(30)));
        assert!(!operations.admits(&stop(40)));
        assert!(operations.admits(&stop(5)));
    }

    #[test]
    fn a_sooner_stop_that_failed_may_be_tried_again_beside_the_one_that_it_overtook() {
        let mut operations = OperationsInFlight::default();
        let [late, soon] = [30, 5].map(|secs| Some(Duration::from_secs(secs)));
        operations.begin(operation_key(&stop(30)), late);
        operations.begin(operation_key(&stop(5)), soon);
        assert!(!operations.admits(&stop(5)));
        operations.end(&operation_key(&stop(5)), soon);
        assert!(operations.admits(&stop(5)) && !operations.admits(&stop(30)));
        operations.end(&operation_key(&stop(30)), late);
        assert!(operations.admits(&stop(30)));
    }

    #[test]
    fn nothing_is_torn_down_under_a_container_that_is_being_made() {
        let mut operations = OperationsInFlight::default();
        let start = Action::StartContainer { container: "c".into(), id: "x".into(), hook: false };
        operations.begin(operation_key(&start), None);
        assert!(!operations.admits(&Action::UnmountVolumes));
        assert!(!operations.admits(&Action::RemoveSandbox { id: "s".into() }));
        assert!(!operations.admits(&stop(1)), "a start is not a stop that can be overtaken");
        operations.end(&operation_key(&start), None);
        assert!(operations.admits(&Action::UnmountVolumes));
    }

    #[test]
    fn an_image_pull_does_not_delay_the_report_of_the_deletion() {
        let mut operations = OperationsInFlight::default();
        operations.begin(OperationKey::Image("i".into()), None);
        assert!(operations.admits(&Action::ReportDeleted));
        operations.begin(OperationKey::Status, None);
        assert!(!operations.admits(&Action::ReportDeleted));
    }
}
