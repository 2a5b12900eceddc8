//! `/statusz`: the last status of each task: what the program did last, and why, independent of the log level.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Most tasks that are shown; further ones are only counted.
const TASKS_MAX: usize = 2048;

/// The statuses of a program's tasks. Cheap to clone; all clones are one board.
#[derive(Clone, Debug, Default)]
pub struct StatusBoard {
    tasks: Arc<Mutex<BTreeMap<String, Status>>>,
}

/// The last run of a task.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Why the last run began, for example `endpoint slice changed`.
    pub reason: String,
    /// When it began.
    #[serde(serialize_with = "optional_time")]
    pub started: Option<SystemTime>,
    /// When it ended; not set while it runs.
    #[serde(serialize_with = "optional_time")]
    pub ended: Option<SystemTime>,
    /// How it ended.
    pub outcome: TaskOutcome,
    /// Runs begun since the start of the program.
    pub runs: u64,
    /// Runs that failed.
    pub failures: u64,
}

/// How a task's last run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum TaskOutcome {
    /// It has not run yet.
    Idle,
    /// It has not ended yet.
    Running,
    /// It succeeded; the text describes the result and may be empty.
    Done(String),
    /// It failed; the text is the chain of causes.
    Failed(String),
}

/// Publishes the status of a task. The status is removed with the handle.
#[derive(Debug)]
pub struct TaskStatus {
    board: StatusBoard,
    name: String,
}

impl StatusBoard {
    /// A handle for the task `name`, for example `pod default/web` or `lease`. Two tasks of one name overwrite each other's status.
    pub fn task(&self, name: impl Into<String>) -> TaskStatus {
        let name = name.into();
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        if tasks.len() < TASKS_MAX {
            let idle = Status {
                reason: String::new(),
                started: None,
                ended: None,
                outcome: TaskOutcome::Idle,
                runs: 0,
                failures: 0,
            };
            tasks.insert(name.clone(), idle);
        }
        TaskStatus { board: self.clone(), name }
    }

    /// All statuses by task name.
    pub fn snapshot(&self) -> BTreeMap<String, Status> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A JSON object by task name.
    pub fn json(&self) -> String {
        // Strings, numbers and times: serializing cannot fail.
        serde_json::to_string_pretty(&self.snapshot()).unwrap_or_default()
    }

    /// One line per task, for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (name, status) in self.snapshot() {
            let outcome = match &status.outcome {
                TaskOutcome::Idle => "idle".to_owned(),
                TaskOutcome::Running => "running".to_owned(),
                TaskOutcome::Done(what) if what.is_empty() => "done".to_owned(),
                TaskOutcome::Done(what) => format!("done ({what})"),
                TaskOutcome::Failed(why) => format!("failed ({why})"),
            };
            let time = |time: Option<SystemTime>| time.map_or_else(|| "-".to_owned(), rfc3339);
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{name}: {outcome}; reason: {}; started {} ended {}; {} runs, {} failed",
                status.reason,
                time(status.started),
                time(status.ended),
                status.runs,
                status.failures
            );
        }
        text
    }
}

impl TaskStatus {
    /// A run begins.
    pub fn started(&self, reason: impl Into<String>) {
        self.change(|status| {
            status.reason = reason.into();
            status.started = Some(SystemTime::now());
            status.ended = None;
            status.outcome = TaskOutcome::Running;
            status.runs += 1;
        });
    }

    /// The run succeeded; `what` describes the result.
    pub fn done(&self, what: impl Into<String>) {
        self.change(|status| {
            status.ended = Some(SystemTime::now());
            status.outcome = TaskOutcome::Done(what.into());
        });
    }

    /// The run failed.
    pub fn failed(&self, why: impl Into<String>) {
        self.change(|status| {
            status.ended = Some(SystemTime::now());
            status.outcome = TaskOutcome::Failed(why.into());
            status.failures += 1;
        });
    }

    fn change(&self, change: impl FnOnce(&mut Status)) {
        let mut tasks = self.board.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(status) = tasks.get_mut(&self.name) {
            change(status);
        }
    }
}

impl Drop for TaskStatus {
    fn drop(&mut self) {
        let mut tasks = self.board.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.remove(&self.name);
    }
}

fn rfc3339(time: SystemTime) -> String {
    OffsetDateTime::from(time).format(&Rfc3339).unwrap_or_default()
}

fn optional_time<S: serde::Serializer>(
    time: &Option<SystemTime>,
    out: S,
) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => out.serialize_str(&rfc3339(*time)),
        None => out.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_run_of_a_task_is_shown_until_its_handle_is_dropped() {
        let board = StatusBoard::default();
        let task = board.task("lease");
        assert_eq!(board.snapshot()["lease"].outcome, TaskOutcome::Idle);
        task.started("renew");
        task.failed("no route");
        task.started("retry");
        let status = board.snapshot()["lease"].clone();
        assert_eq!((status.outcome, status.runs, status.failures), (TaskOutcome::Running, 2, 1));
        assert_eq!((status.reason.as_str(), status.ended), ("retry", None));
        task.done("renewed");
        assert!(board.text().starts_with("lease: done (renewed); reason: retry; started 2"));
        assert!(
            board.json().contains("\"outcome\": {\n      \"done\": \"renewed\"\n    }"),
            "{}",
            board.json()
        );
        drop(task);
        assert!(board.snapshot().is_empty());
    }

    #[test]
    fn the_board_is_bounded() {
        let board = StatusBoard::default();
        let tasks: Vec<_> = (0..TASKS_MAX + 5).map(|n| board.task(n.to_string())).collect();
        tasks.iter().for_each(|task| task.started("x"));
        assert_eq!(board.snapshot().len(), TASKS_MAX);
    }
}
