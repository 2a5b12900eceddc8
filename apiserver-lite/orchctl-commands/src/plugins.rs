//! Plugins: programs of `PATH` that are commands by their names, `orchctl-NAME` and `kubectl-NAME`.

pub mod list;

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// What names of plugins begin with, in the order in which they are looked for.
const PREFIXES: [&str; 2] = ["orchctl", "kubectl"];
/// Most words of a name.
const WORDS_MAX: usize = 16;

/// A program that takes the place of this one.
#[derive(Debug, PartialEq, Eq)]
pub struct Plugin {
    pub program: PathBuf,
    /// What follows its name on the command line.
    pub arguments: Vec<OsString>,
}

/// The plugin that a command line (without the program's name) means, in the directories of `path`: of all whose words it begins with that of the most
/// words. A dash within a word is `_` in the name of the program.
pub fn find(arguments: &[OsString], path: &OsStr) -> Option<Plugin> {
    let is_word = |argument: &&OsString| !argument.as_encoded_bytes().starts_with(b"-");
    let words: Vec<String> = arguments
        .iter()
        .take_while(is_word)
        .take(WORDS_MAX)
        .map_while(|word| word.to_str().filter(|word| !word.is_empty()))
        .map(|word| word.replace('-', "_"))
        .collect();
    let found = (1..=words.len()).rev().find_map(|count| {
        let name = words.get(..count)?.join("-");
        Some((first_program(&name, path)?, count))
    });
    let (program, count) = found?;
    Some(Plugin { program, arguments: arguments.get(count..)?.to_vec() })
}

/// The program that is run for a name of dashed words.
fn first_program(name: &str, path: &OsStr) -> Option<PathBuf> {
    let mut programs = PREFIXES.iter().map(|prefix| format!("{prefix}-{name}"));
    programs.find_map(|program| look_up(&program, path))
}

/// The first program of this name. Directories that depend on the working directory do not count: what lies there need not be of the user.
fn look_up(name: &str, path: &OsStr) -> Option<PathBuf> {
    if name.contains('/') {
        return None;
    }
    let directories = std::env::split_paths(path).filter(|directory| directory.is_absolute());
    directories.map(|directory| directory.join(name)).find(|program| is_program(program))
}

fn is_program(path: &Path) -> bool {
    let is_executable =
        |about: std::fs::Metadata| about.is_file() && about.permissions().mode() & 0o111 != 0;
    std::fs::metadata(path).is_ok_and(is_executable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_that_is_a_program_counts() {
        let directory = tempfile::tempdir().expect("a directory");
        let (first, second) = (directory.path().join("a"), directory.path().join("b"));
        for (place, name, mode) in [
            (&first, "kubectl-foo", 0o755),
            (&first, "kubectl-foo-bar", 0o755),
            (&second, "orchctl-foo", 0o755),
            (&second, "kubectl-a_b", 0o755),
            (&first, "orchctl-text", 0o644),
        ] {
            std::fs::create_dir_all(place).expect("a directory");
            std::fs::write(place.join(name), "").expect("a file");
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(place.join(name), mode).expect("a mode");
        }
        std::fs::create_dir(first.join("orchctl-dir")).expect("a directory");
        let path = std::env::join_paths([Path::new("."), &first, &second]).expect("a path");
        let found = |line: &str| {
            let arguments: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            let plugin = find(&arguments, &path)?;
            let program = plugin.program.strip_prefix(directory.path()).expect("a place");
            let rest: Vec<_> = plugin.arguments.iter().map(|word| word.to_string_lossy()).collect();
            Some(format!("{} {}", program.display(), rest.join(" ")).trim_end().to_owned())
        };
        for (line, wanted) in [
            ("foo", Some("b/orchctl-foo")),
            ("foo x --y z", Some("b/orchctl-foo x --y z")),
            ("foo bar x", Some("a/kubectl-foo-bar x")),
            ("foo --flag bar", Some("b/orchctl-foo --flag bar")),
            ("a-b c-d", Some("b/kubectl-a_b c-d")),
            ("a b", None),
            ("--flag foo", None),
            ("text", None),
            ("dir", None),
            ("../b/x", None),
            ("missing", None),
            ("", None),
        ] {
            assert_eq!(found(line).as_deref(), wanted, "{line:?}");
        }
    }
}
