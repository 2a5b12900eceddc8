//! What an upgrade of a host changes: each program with its versions and its way back. The doing, one program after the other, is `orchadm`'s.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::process::Command;

use crate::arguments::Program;
use crate::error::BootstrapError;
use crate::external;
use crate::layout::Layout;
use crate::processes::FileId;
use crate::record::HostRecord;
use crate::services;
use crate::versions::is_older;

/// Longest wait for what a program says of its version.
const VERSION_PATIENCE: Duration = Duration::from_secs(10);
/// A version that is not known.
const UNKNOWN: &str = "unknown";

/// A program with its version now and then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramChange {
    /// What runs, or what is recorded where nothing does.
    pub old: Program,
    /// What will run.
    pub new: Program,
    pub from: String,
    pub to: String,
}

impl ProgramChange {
    /// The file of the new program.
    pub fn file(&self) -> PathBuf {
        self.new.argv.first().map(PathBuf::from).unwrap_or_default()
    }
}

/// The changes of a host to the programs of a directory, in the order of the record.
///
/// # Errors
/// A program is missing there or does not say its version, or the record has an empty command line.
pub async fn find_changes(
    layout: &Layout,
    record: &HostRecord,
    dir: &Path,
) -> Result<Vec<ProgramChange>, BootstrapError> {
    let mut changes = Vec::new();
    for recorded in &record.programs {
        let mut old = recorded.clone();
        let Some(executable) = old.argv.first_mut() else {
            let text = format!("{}: an empty command line in the record", recorded.name);
            return Err(BootstrapError::Program(text));
        };
        let file_at = |path: &str| FileId::from_path(Path::new(path)).ok();
        let running = services::running_file(layout, &old.name).await;
        if let Some((running, Some(started))) = &running
            && is_elsewhere(*running, file_at(executable), file_at(started))
        {
            executable.clone_from(started);
        }
        // A program that was replaced where it lay, or removed, says nothing of what runs.
        let from = match is_replaced(running.map(|(running, _)| running), file_at(executable)) {
            true => UNKNOWN.to_owned(),
            false => {
                version(Path::new(executable.as_str())).await.unwrap_or_else(|_| UNKNOWN.to_owned())
            }
        };
        let path = dir.join(&old.name);
        let to = version(&path).await?;
        let mut new = recorded.clone();
        if let Some(executable) = new.argv.first_mut() {
            *executable = path.display().to_string();
        }
        changes.push(ProgramChange { old, new, from, to });
    }
    Ok(changes)
}

/// Whether what runs is not the recorded file, and is still there where it was started: an upgrade was killed between its record and the restart. The way
/// back leads to what runs.
fn is_elsewhere(running: FileId, recorded: Option<FileId>, started: Option<FileId>) -> bool {
    recorded != Some(running) && started == Some(running)
}

/// The second word of what `--version` says.
async fn version(program: &Path) -> Result<String, BootstrapError> {
    let output = external::output(Command::new(program).arg("--version"), VERSION_PATIENCE).await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace().nth(1).map(str::to_owned).ok_or_else(|| {
        BootstrapError::Program(format!("{} --version prints no version", program.display()))
    })
}

/// Checks that no program becomes an older one.
///
/// # Errors
/// One does.
pub fn check_not_older(changes: &[ProgramChange]) -> Result<(), BootstrapError> {
    match changes.iter().find(|change| is_older(&change.to, &change.from)) {
        None => Ok(()),
        Some(ProgramChange { old, from, to, .. }) => Err(BootstrapError::Invalid(format!(
            "{}: {to} is older than {from}: give --force",
            old.name
        ))),
    }
}

/// Checks that the old program can be put back, wherever the new one lies. A file that was replaced where it lies, or removed, is not there to go back to,
/// while the old program still runs.
///
/// # Errors
/// It was replaced or removed.
pub async fn check_way_back(layout: &Layout, change: &ProgramChange) -> Result<(), BootstrapError> {
    let path = change.old.argv.first().map(PathBuf::from).unwrap_or_default();
    let file = FileId::from_path(&path).ok();
    let running = services::running_file(layout, &change.old.name).await;
    if !is_replaced(running.map(|(running, _)| running), file) {
        return Ok(());
    }
    let happened = if file.is_some() { "was replaced where it lies" } else { "is missing" };
    Err(BootstrapError::Invalid(format!(
        "{} {happened}, so that there is no way back to the {} that runs: put the old file there again, install the new programs into another directory, and name it with --bin-dir",
        path.display(),
        change.old.name
    )))
}

/// Whether the file of a program is another than the one that runs, or none.
fn is_replaced(running: Option<FileId>, file: Option<FileId>) -> bool {
    running.is_some() && running != file
}

/// What an upgrade that failed has left, by the programs that could not be put back.
pub fn describe_return(failed: &[String]) -> String {
    match failed {
        [] => {
            "nothing is upgraded: the old programs run again; renewed certificates stay".to_owned()
        }
        failed => format!(
            "the upgrade failed, and so did the way back of {}: see above and their logs, then `orchadm upgrade apply` with the --bin-dir of programs that work",
            failed.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use proto_api::names::{Names, Profile};

    use super::*;
    use crate::preflight::Role;
    use crate::supervisor::{self, Supervisor};

    #[test]
    fn a_program_that_was_replaced_where_it_lies_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p");
        std::fs::write(&path, "old").unwrap();
        let running = FileId::from_path(&path).unwrap();
        assert!(!is_replaced(Some(running), Some(running)) && !is_replaced(None, Some(running)));
        assert!(is_replaced(Some(running), None) && !is_replaced(None, None));
        std::fs::write(dir.path().join("new"), "new").unwrap();
        std::fs::rename(dir.path().join("new"), &path).unwrap();
        assert!(is_replaced(Some(running), FileId::from_path(&path).ok()));
    }

    #[test]
    fn older_programs_need_to_be_asked_for() {
        let program = Program { name: "p".into(), argv: Vec::new() };
        let change = |from: &str, to: &str| ProgramChange {
            old: program.clone(),
            new: program.clone(),
            from: from.into(),
            to: to.into(),
        };
        check_not_older(&[change("1.0.0", "1.0.0"), change(UNKNOWN, "0.9.0")]).unwrap();
        let error = check_not_older(&[change("1.0.0", "1.0.1"), change("1.0.0", "0.9.0")]);
        assert!(error.unwrap_err().to_string().contains("0.9.0 is older than 1.0.0"));
    }

    #[test]
    fn a_way_back_that_failed_is_not_called_one() {
        assert!(describe_return(&[]).contains("the old programs run again"));
        let text = describe_return(&["orchlet".to_owned()]);
        assert!(text.contains("way back of orchlet") && !text.contains("run again"), "{text}");
    }

    /// A host whose program `sleep` runs from the directory `one` as recorded, with another copy in `two`.
    struct Upgraded {
        root: tempfile::TempDir,
        layout: Layout,
        record: HostRecord,
        supervisor: Supervisor,
    }

    impl Upgraded {
        async fn start() -> Self {
            let root = tempfile::tempdir().unwrap();
            let names = Names::new(Profile::Kubernetes);
            let layout = Layout::new(names, root.path());
            let mut record = HostRecord::new(names, Role::Node, "n", "");
            for dir in ["one", "two"] {
                std::fs::create_dir_all(root.path().join(dir)).unwrap();
                std::fs::copy("/bin/sleep", root.path().join(dir).join("sleep")).unwrap();
            }
            let program = program_in(&root.path().join("one"));
            record.put(&program);
            record.store(&layout).unwrap();
            let mut supervisor = Supervisor::begin(&layout).unwrap();
            supervisor.keep("sleep");
            let runs = || {
                let line = supervisor::find(&layout, "sleep")
                    .map(|found| crate::processes::command_line(found.identity.pid));
                line.as_ref() == Some(&program.argv)
            };
            for _ in 0..6_000 {
                if runs() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            assert!(runs());
            Self { root, layout, record, supervisor }
        }

        fn dir(&self, name: &str) -> PathBuf {
            self.root.path().join(name)
        }

        /// The change to the program of a directory.
        async fn change_to(&self, name: &str) -> ProgramChange {
            find_changes(&self.layout, &self.record, &self.dir(name)).await.unwrap().remove(0)
        }
    }

    fn program_in(dir: &Path) -> Program {
        let argv = vec![dir.join("sleep").display().to_string(), "1000".into()];
        Program { name: "sleep".into(), argv }
    }

    #[tokio::test]
    async fn an_upgrade_that_was_killed_before_a_restart_knows_its_way_back() {
        let mut host = Upgraded::start().await;
        let (one, two) = (program_in(&host.dir("one")), program_in(&host.dir("two")));
        // Recorded, and killed before the restart.
        host.record.put(&two);
        let change = host.change_to("two").await;
        assert_eq!((&change.old, &change.new), (&one, &two));
        check_way_back(&host.layout, &change).await.unwrap();
        // Without one that runs elsewhere it is the record that counts.
        host.supervisor.stop().await.unwrap();
        let changes = find_changes(&host.layout, &host.record, &host.root.path().join("two")).await;
        assert_eq!(changes.unwrap()[0].old, two);
    }

    #[tokio::test]
    async fn there_is_no_way_back_to_a_file_that_was_replaced_or_removed_wherever_the_new_one_lies()
    {
        let host = Upgraded::start().await;
        let old = host.dir("one").join("sleep");
        for name in ["one", "two"] {
            let change = host.change_to(name).await;
            assert_ne!(change.from, UNKNOWN);
            check_way_back(&host.layout, &change).await.unwrap();
        }
        std::fs::copy("/bin/sleep", host.dir("one").join("new")).unwrap();
        std::fs::rename(host.dir("one").join("new"), &old).unwrap();
        for name in ["one", "two"] {
            let change = host.change_to(name).await;
            assert_eq!(change.from, UNKNOWN, "it is not the version of what runs");
            let error = check_way_back(&host.layout, &change).await.unwrap_err().to_string();
            assert!(error.contains("one/sleep was replaced where it lies"), "{error}");
        }
        std::fs::remove_file(&old).unwrap();
        let change = host.change_to("two").await;
        assert_eq!(change.from, UNKNOWN);
        let error = check_way_back(&host.layout, &change).await.unwrap_err().to_string();
        assert!(error.contains("one/sleep is missing, so that there is no way back"), "{error}");
        // What does not run needs no way back.
        host.supervisor.stop().await.unwrap();
        check_way_back(&host.layout, &change).await.unwrap();
    }
}
