//! A program of the user that shows differences: of two directories with a file for each object.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::process::ExitStatus;

use orchctl_client::CommandError;
use proto_daemon::private_files;

use super::Sides;

/// Variables that name the program, the project's own first.
const VARIABLES: [&str; 2] = ["ORCHCTL_EXTERNAL_DIFF", "KUBECTL_EXTERNAL_DIFF"];
/// Most names of directories that are tried.
const NAMES_MAX: u32 = 1000;

/// The program with its flags, if the environment names one.
pub(super) fn program(environment: impl Fn(&str) -> Option<String>) -> Option<Vec<String>> {
    let words = |name: &str| -> Vec<String> {
        let text = environment(name).unwrap_or_default();
        text.split_whitespace().map(str::to_owned).collect()
    };
    VARIABLES.into_iter().map(words).find(|words| !words.is_empty())
}

/// Has the program show the differences; whether there are any.
///
/// # Errors
/// When the files cannot be written, or the program cannot be run or fails.
pub(super) async fn compare(words: &[String], sides: &[Sides]) -> Result<bool, CommandError> {
    let Some((program, flags)) = words.split_first() else { return Ok(false) };
    let live = Directory::create("LIVE")?;
    let merged = Directory::create("MERGED")?;
    for one in sides {
        live.write(&one.name, &one.live)?;
        merged.write(&one.name, &one.merged)?;
    }
    let mut command = tokio::process::Command::new(program);
    let ended = command.args(flags).arg(&live.0).arg(&merged.0).status().await;
    let ended = ended
        .map_err(|error| CommandError::with_text(format!("failed to run {program:?}: {error}")))?;
    differs(program, ended)
}

/// What the end of a program says: 0 for no differences, 1 for some.
fn differs(program: &str, ended: ExitStatus) -> Result<bool, CommandError> {
    match ended.code() {
        Some(0) => Ok(false),
        Some(1) => Ok(true),
        _ => Err(CommandError::with_text(format!("{program:?} failed: {ended}"))),
    }
}

/// A directory that only the user can read, for this run.
struct Directory(PathBuf);

impl Directory {
    fn create(side: &str) -> Result<Self, CommandError> {
        let parent = std::env::temp_dir();
        for at in 0..NAMES_MAX {
            let path = parent.join(format!("{side}-{}-{at}", std::process::id()));
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(CommandError::with_text(format!(
            "{} is full of directories of diffs",
            parent.display()
        )))
    }

    /// Writes the text of an object; nothing where there is none.
    fn write(&self, name: &str, text: &str) -> Result<(), CommandError> {
        if text.is_empty() {
            return Ok(());
        }
        // A name is no path.
        let path = self.0.join(name.replace('/', "_"));
        Ok(private_files::write_private_atomically(&path, text.as_bytes())?)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What is left of it lies among the system's temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_names_a_program() {
        for (set, wanted) in [
            (&[("KUBECTL_EXTERNAL_DIFF", "colordiff -N  -u")][..], &["colordiff", "-N", "-u"][..]),
            (&[("KUBECTL_EXTERNAL_DIFF", "a"), ("ORCHCTL_EXTERNAL_DIFF", "b")], &["b"]),
            (&[("KUBECTL_EXTERNAL_DIFF", "a"), ("ORCHCTL_EXTERNAL_DIFF", " ")], &["a"]),
            (&[("KUBECTL_EXTERNAL_DIFF", "")], &[]),
            (&[], &[]),
        ] {
            let value = |name: &str| {
                let found = set.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            assert_eq!(program(value).unwrap_or_default(), wanted, "{set:?}");
        }
    }
}
