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
        let recorded_file = FileId::from_path(Path::new(executable.as_str())).ok();
        if let Some((running, Some(started))) = services::running_file(layout, &old.name).await
            && is_elsewhere(running, recorded_file, FileId::from_path(Path::new(&started)).ok())
        {
            *executable = started;
        }
        // A program that was replaced where it lay, or removed, says nothing of what runs.
        let from = version(Path::new(executable.as_str())).await;
        let path = dir.join(&old.name);
        let to = version(&path).await?;
        let mut new = recorded.clone();
        if let Some(executable) = new.argv.first_mut() {
            *executable = path.display().to_string();
        }
        let from = from.unwrap_or_else(|_| UNKNOWN.to_owned());
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

/// Checks that the old program can be put back. A file that was replaced where it lies is not there to go back to, while the old program still runs.
///
/// # Errors
/// It was replaced, or the new file cannot be read.
pub async fn check_way_back(layout: &Layout, change: &ProgramChange) -> Result<(), BootstrapError> {
    let path = change.file();
    if change.old.argv != change.new.argv {
        return Ok(());
    }
    let file = FileId::from_path(&path).map_err(BootstrapError::file(&path))?;
    let running = services::running_file(layout, &change.old.name).await;
    match is_replaced(running.map(|(running, _)| running), file) {
        false => Ok(()),
        true => Err(BootstrapError::Invalid(format!(
            "{} was replaced where it lies, so that there is no way back to the {} that runs: put the old file there again, install the new programs into another directory, and name it with --bin-dir",
            path.display(),
            change.old.name
        ))),
    }
}

/// Whether a file is another than the one that runs.
fn is_replaced(running: Option<FileId>, file: FileId) -> bool {
    running.is_some_and(|running| running != file)
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
        assert!(!is_replaced(Some(running), running) && !is_replaced(None, running));
        std::fs::write(dir.path().join("new"), "new").unwrap();
        std::fs::rename(dir.path().join("new"), &path).unwrap();
        assert!(is_replaced(Some(running), FileId::from_path(&path).unwrap()));
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

    #[tokio::test]
    async fn an_upgrade_that_was_killed_before_a_restart_knows_its_way_back() {
        let root = tempfile::tempdir().unwrap();
        let names = Names::new(Profile::Kubernetes);
        let layout = Layout::new(names, root.path());
        let (one, two) = (root.path().join("one"), root.path().join("two"));
        for dir in [&one, &two] {
            std::fs::create_dir_all(dir).unwrap();
            std::fs::copy("/bin/sleep", dir.join("sleep")).unwrap();
        }
        let of = |dir: &Path| Program {
            name: "sleep".into(),
            argv: vec![dir.join("sleep").display().to_string(), "1000".into()],
        };
        let mut record = HostRecord::new(names, Role::Node, "n", "");
        record.put(&of(&one));
        record.store(&layout).unwrap();
        let mut supervisor = Supervisor::begin(&layout).unwrap();
        supervisor.keep("sleep");
        let runs = |program: &Program| {
            let line = supervisor::find(&layout, "sleep")
                .map(|found| crate::processes::command_line(found.identity.pid));
            line.as_ref() == Some(&program.argv)
        };
        for _ in 0..6_000 {
            if runs(&of(&one)) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(runs(&of(&one)));
        // Recorded, and killed before the restart.
        record.put(&of(&two));
        let changes = find_changes(&layout, &record, &two).await.unwrap();
        assert_eq!((&changes[0].old, &changes[0].new), (&of(&one), &of(&two)));
        check_way_back(&layout, &changes[0]).await.unwrap();
        // Without one that runs elsewhere it is the record that counts.
        supervisor.stop().await.unwrap();
        let changes = find_changes(&layout, &record, &two).await.unwrap();
        assert_eq!(changes[0].old, of(&two));
    }
}
