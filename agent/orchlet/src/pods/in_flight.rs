//! Which of a pod's objects something is being done to, and what may begin beside it.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_pod::plan::Action;

/// What an operation works on. One operation at a time for each.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// The node's answer, the report to the API and the end of the task.
    Pod,
    /// All volumes.
    Volumes,
    /// Sandboxes and the pod's cgroup.
    Sandbox,
    /// An image by name.
    Image(String),
    /// All instances of a container.
    Container(String),
    /// The hook after the start of a container; it does not hold a stop up.
    Hook(String),
    /// A dead instance by id.
    Remains(String),
    /// The status in the API.
    Status,
    /// A full look at the runtime.
    Look,
}

/// What an action works on.
pub fn key(action: &Action) -> Key {
    match action {
        Action::Admit | Action::ReportDeleted | Action::Forget => Key::Pod,
        Action::MountVolumes | Action::UnmountVolumes => Key::Volumes,
        Action::CreateSandbox { .. }
        | Action::StopSandbox { .. }
        | Action::RemoveSandbox { .. }
        | Action::RemoveCgroup => Key::Sandbox,
        Action::InspectImage { image } | Action::PullImage { image, .. } => {
            Key::Image(image.clone())
        }
        Action::CreateContainer { container, .. }
        | Action::StartContainer { container, .. }
        | Action::StopContainer { container, .. } => Key::Container(container.clone()),
        Action::RunPostStart { container, .. } => Key::Hook(container.clone()),
        Action::RemoveContainer { id, .. } => Key::Remains(id.clone()),
    }
}

/// Operations under way.
#[derive(Debug, Default)]
pub struct Busy {
    /// By key: each with its deadline if it is a stop.
    under_way: BTreeMap<Key, Vec<Option<Duration>>>,
}

impl Busy {
    /// Whether `action` may begin now.
    pub fn admits(&self, action: &Action) -> bool {
        match action {
            // A stop that comes sooner overtakes the one under way; the runtime takes both.
            Action::StopContainer { deadline, .. } => {
                let mut known = self.under_way.get(&key(action)).into_iter().flatten();
                known.all(|known| known.is_some_and(|known| *deadline < known))
            }
            Action::StopSandbox { .. }
            | Action::RemoveSandbox { .. }
            | Action::UnmountVolumes
            | Action::RemoveCgroup => !self.has(&key(action)) && !self.makes_containers(),
            // The last word: nothing of the pod may be under way, pulls and hooks apart, which end with the task.
            Action::ReportDeleted | Action::Forget => {
                let ends = |k: &Key| matches!(k, Key::Image(_) | Key::Hook(_) | Key::Look);
                self.under_way.keys().all(ends)
            }
            _ => !self.has(&key(action)),
        }
    }

    /// Whether something is done to that.
    pub fn has(&self, key: &Key) -> bool {
        self.under_way.contains_key(key)
    }

    /// Whether something is under way that changes what a look would show.
    pub fn changes_runtime(&self) -> bool {
        self.under_way
            .keys()
            .any(|k| matches!(k, Key::Sandbox | Key::Container(_) | Key::Remains(_)))
    }

    /// Whether something is done to a container.
    fn makes_containers(&self) -> bool {
        self.under_way.keys().any(|k| matches!(k, Key::Container(_)))
    }

    /// Whether an instance is being made or started.
    pub fn starts(&self) -> bool {
        let of_container = self.under_way.iter().filter(|(k, _)| matches!(k, Key::Container(_)));
        of_container.flat_map(|(_, all)| all).any(Option::is_none)
    }

    /// Notes that an operation begins; `deadline` for a stop.
    pub fn begin(&mut self, key: Key, deadline: Option<Duration>) {
        self.under_way.entry(key).or_default().push(deadline);
    }

    /// Notes that an operation ended, with the deadline that it began with.
    pub fn end(&mut self, key: &Key, deadline: Option<Duration>) {
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
    use agent_pod::plan::StopWhy;

    use super::*;

    fn stop(secs: u64) -> Action {
        Action::StopContainer {
            container: "c".into(),
            id: "x".into(),
            deadline: Duration::from_secs(secs),
            why: StopWhy::PodEnds,
            hook: false,
        }
    }

    #[test]
    fn a_sooner_stop_overtakes_and_a_later_one_does_not() {
        let mut busy = Busy::default();
        assert!(busy.admits(&stop(30)));
        busy.begin(key(&stop(30)), Some(Duration::from_secs(30)));
        assert!(!busy.admits(&stop(30)));
        assert!(!busy.admits(&stop(40)));
        assert!(busy.admits(&stop(5)));
    }

    #[test]
    fn a_sooner_stop_that_failed_may_be_tried_again_beside_the_one_that_it_overtook() {
        let mut busy = Busy::default();
        let [late, soon] = [30, 5].map(|secs| Some(Duration::from_secs(secs)));
        busy.begin(key(&stop(30)), late);
        busy.begin(key(&stop(5)), soon);
        assert!(!busy.admits(&stop(5)));
        busy.end(&key(&stop(5)), soon);
        assert!(busy.admits(&stop(5)) && !busy.admits(&stop(30)));
        busy.end(&key(&stop(30)), late);
        assert!(busy.admits(&stop(30)));
    }

    #[test]
    fn nothing_is_torn_down_under_a_container_that_is_being_made() {
        let mut busy = Busy::default();
        let start = Action::StartContainer { container: "c".into(), id: "x".into(), hook: false };
        busy.begin(key(&start), None);
        assert!(!busy.admits(&Action::UnmountVolumes));
        assert!(!busy.admits(&Action::RemoveSandbox { id: "s".into() }));
        assert!(!busy.admits(&stop(1)), "a start is not a stop that can be overtaken");
        busy.end(&key(&start), None);
        assert!(busy.admits(&Action::UnmountVolumes));
    }

    #[test]
    fn a_pull_does_not_hold_the_last_word_up() {
        let mut busy = Busy::default();
        busy.begin(Key::Image("i".into()), None);
        assert!(busy.admits(&Action::ReportDeleted));
        busy.begin(Key::Status, None);
        assert!(!busy.admits(&Action::ReportDeleted));
    }
}
