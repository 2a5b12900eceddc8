//! `plugin list`: the programs of `PATH` that are commands, and why some of them are not run.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use orchctl_client::{CommandError, Output};

use super::{PREFIXES, first_program, is_program};

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the programs of PATH that are commands by their names, orchctl-NAME and kubectl-NAME: exits with 1 if there is none, or if one is not run
    List {
        /// Names without their directories
        #[arg(long)]
        name_only: bool,
    },
}

/// Runs the command, with the directories of `path`. `built_in` is the command line of the program, whose commands no plugin replaces, not below them either:
/// `kubectl-create-widget` is not run for `create widget`, as by kubectl before 1.26.
///
/// # Errors
/// There is no plugin, or there are warnings.
pub fn run(
    args: &Args,
    path: &OsStr,
    built_in: &clap::Command,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let Command::List { name_only } = args.command;
    let (mut found, mut warnings) = (0_usize, 0_usize);
    for directory in directories(path) {
        let plugins = match plugins_in(&directory) {
            Ok(plugins) => plugins,
            Err(why) => {
                writeln!(
                    output.err,
                    "Unable to read directory {directory:?} from your PATH: {why}. Skipping..."
                )?;
                continue;
            }
        };
        for plugin in plugins {
            if found == 0 {
                writeln!(output.out, "The following compatible plugins are available:\n")?;
            }
            found = found.saturating_add(1);
            match plugin.file_name().filter(|_| name_only) {
                Some(name) => writeln!(output.out, "{}", name.display())?,
                None => writeln!(output.out, "{}", plugin.display())?,
            }
            // What follows belongs to this line.
            output.out.flush()?;
            if let Some(why) = why_not_run(&plugin, path, built_in) {
                warnings = warnings.saturating_add(1);
                writeln!(output.err, "  - warning: {} {why}", plugin.display())?;
            }
        }
    }
    match (found, warnings) {
        (0, _) => Err(CommandError::with_text("unable to find any orchctl plugins in your PATH")),
        (_, 0) => Ok(ExitCode::SUCCESS),
        (_, 1) => Err(CommandError::with_text("one plugin warning was found")),
        (_, count) => Err(CommandError::with_text(format!("{count} plugin warnings were found"))),
    }
}

/// The directories in which plugins are looked for, each once.
fn directories(path: &OsStr) -> Vec<PathBuf> {
    let mut seen = BTreeSet::new();
    let all = std::env::split_paths(path).filter(|directory| directory.is_absolute());
    all.filter(|directory| seen.insert(directory.clone())).collect()
}

/// The files of a directory that have names of plugins, by their names.
fn plugins_in(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut plugins = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let has_name = plugin_name(&entry.file_name()).is_some();
        // Of a link it is what it leads to.
        if has_name && !entry.path().is_dir() {
            plugins.push(entry.path());
        }
    }
    plugins.sort();
    Ok(plugins)
}

/// What follows the prefix in the name of a plugin's file.
fn plugin_name(file: &OsStr) -> Option<&OsStr> {
    let strip = |prefix: &&str| {
        let name = file.as_bytes().strip_prefix(prefix.as_bytes())?.strip_prefix(b"-")?;
        (!name.is_empty()).then(|| OsStr::from_bytes(name))
    };
    PREFIXES.iter().find_map(strip)
}

/// Why a plugin is not run, if it is not.
fn why_not_run(plugin: &Path, path: &OsStr, built_in: &clap::Command) -> Option<String> {
    if !is_program(plugin) {
        return Some("identified as a plugin, but it is not executable".to_owned());
    }
    let Some(name) = plugin.file_name().and_then(plugin_name).and_then(OsStr::to_str) else {
        return Some("has a name that is not UTF-8".to_owned());
    };
    let words: Vec<String> = name.split('-').map(|word| word.replace('_', "-")).collect();
    if let Some(command) = command_of(&words, built_in) {
        return Some(format!("is never run: {command:?} is a command of this program"));
    }
    let first = first_program(name, path).filter(|first| first != plugin)?;
    Some(format!("is overshadowed by a similarly named plugin: {}", first.display()))
}

/// The command of the program that words lead to, from the first on, as far as they do.
fn command_of(words: &[String], built_in: &clap::Command) -> Option<String> {
    let mut names = vec![built_in.get_name()];
    let mut level = built_in;
    for word in words {
        let Some(below) = level.find_subcommand(word) else { break };
        names.push(below.get_name());
        level = below;
    }
    if words.first().is_some_and(|word| word == "help") {
        names.push("help");
    }
    (names.len() > 1).then(|| names.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_plugin_replaces() {
        let built_in = clap::Command::new("orchctl").subcommand(
            clap::Command::new("config").subcommand(clap::Command::new("use-context").alias("use")),
        );
        let command = |name: &str| {
            let words: Vec<String> = name.split('-').map(|word| word.replace('_', "-")).collect();
            command_of(&words, &built_in)
        };
        for (name, wanted) in [
            ("config", Some("orchctl config")),
            ("config-x", Some("orchctl config")),
            ("config-use_context-y", Some("orchctl config use-context")),
            ("config-use", Some("orchctl config use-context")),
            ("help", Some("orchctl help")),
            ("x-config", None),
            ("x", None),
        ] {
            assert_eq!(command(name).as_deref(), wanted, "{name}");
        }
    }

    #[test]
    fn names_of_plugins() {
        for (file, wanted) in [
            ("kubectl-a-b", Some("a-b")),
            ("orchctl-a_b", Some("a_b")),
            ("kubectl-", None),
            ("kubectl", None),
            ("kubectlx-a", None),
            ("a-kubectl-b", None),
        ] {
            assert_eq!(plugin_name(OsStr::new(file)), wanted.map(OsStr::new), "{file}");
        }
    }
}
