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
    /// By key: how many, and the earliest deadline of a stop among them.
    under_way: BTreeMap<Key, (u32, Option<Duration>)>,
}

impl Busy {
    /// Whether `action` may begin now.
    pub fn admits(&self, action: &Action) -> bool {
        match action {
            // A stop that comes sooner overtakes the one under way; the runtime takes both.
            Action::StopContainer { deadline, .. } => match self.under_way.get(&key(action)) {
                Some((_, Some(known))) => deadline < known,
                Some((_, None)) => false,
                None => true,
            },
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

    fn makes_containers(&self) -> bool {
        self.makes(|_| true)
    }

    /// Whether an instance is being made or started.
    pub fn starts(&self) -> bool {
        let is_start = |(key, (_, stop)): (&Key, &(u32, Option<Duration>))| {
            matches!(key, Key::Container(_)) && stop.is_none()
        };
        self.under_way.iter().any(is_start)
    }

    /// Whether something is done to a container whose name fits.
    pub fn makes(&self, fits: impl Fn(&str) -> bool) -> bool {
        self.under_way.keys().any(|k| matches!(k, Key::Container(name) if fits(name)))
    }

    /// Notes that an operation begins; `deadline` for a stop.
    pub fn begin(&mut self, key: Key, deadline: Option<Duration>) {
        let entry = self.under_way.entry(key).or_insert((0, deadline));
        entry.0 += 1;
        entry.1 = match (entry.1, deadline) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (_, b) => b,
        };
    }

    /// Notes that an operation ended.
    pub fn end(&mut self, key: &Key) {
        if let Some(entry) = self.under_way.get_mut(key) {
            entry.0 -= 1;
            if entry.0 == 0 {
                self.under_way.remove(key);
            }
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
    fn nothing_is_torn_down_under_a_container_that_is_being_made() {
        let mut busy = Busy::default();
        let start = Action::StartContainer { container: "c".into(), id: "x".into(), hook: false };
        busy.begin(key(&start), None);
        assert!(!busy.admits(&Action::UnmountVolumes));
        assert!(!busy.admits(&Action::RemoveSandbox { id: "s".into() }));
        assert!(!busy.admits(&stop(1)), "a start is not a stop that can be overtaken");
        busy.end(&key(&start));
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
