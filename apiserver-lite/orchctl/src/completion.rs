//! Completion in shells: of commands and flags by clap, of types and names by asking the server. A shell's script runs this program with a variable that
//! names the shell, and with the words that were typed.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Arg, ArgMatches, Command, FromArgMatches as _};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, ValueCompleter};
use clap_complete::env::{EnvCompleter, Shells};
use orchctl_client::{GlobalFlags, Session};
use orchctl_commands::completion::{self, DEADLINE};
use orchctl_plans::completion::{Candidates, of_argument, of_flag};
use proto_daemon::exit::Failure;
use proto_daemon::reference::Reference;

/// By this variable a shell's script says which shell it is of.
pub const VARIABLE: &str = "ORCHCTL_COMPLETE";

/// By this variable it says which word is completed; without it the last one is.
const INDEX_VARIABLE: &str = "_CLAP_COMPLETE_INDEX";

const PROGRAM: &str = "orchctl";

const SHELLS: Shells<'_> = Shells::builtins();

/// Says in the program's reference how shells ask.
///
/// # Errors
/// None.
pub fn describe(reference: &mut Reference) -> Result<(), Failure> {
    reference.completion_variable = Some(VARIABLE.to_owned());
    Ok(())
}

/// Writes the script that a shell reads to complete this program's command lines.
///
/// # Errors
/// The shell has none, or `output` fails.
pub fn write_script(shell: &str, output: &mut dyn Write) -> io::Result<()> {
    let missing = || io::Error::other(format!("no completion for the shell {shell:?}"));
    let shell = SHELLS.completer(shell).ok_or_else(missing)?;
    shell.write_registration(VARIABLE, PROGRAM, PROGRAM, PROGRAM, output)
}

/// Answers the script of a shell, if it is one that runs the program with these words; `make` makes the command line that it has.
pub fn answer(words: &[OsString], make: fn() -> Command) -> Option<ExitCode> {
    let shell = std::env::var(VARIABLE).ok().filter(|shell| !shell.is_empty())?;
    let typed = words.iter().skip_while(|word| *word != "--").skip(1).cloned().collect();
    let written = match SHELLS.completer(&shell) {
        Some(shell) => write_words(shell, typed, make),
        None => Err(io::Error::other(format!("no completion for the shell {shell:?}"))),
    };
    // What it says would stand in the middle of the user's line.
    Some(if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn write_words(
    shell: &dyn EnvCompleter,
    typed: Vec<OsString>,
    make: fn() -> Command,
) -> io::Result<()> {
    let index = std::env::var(INDEX_VARIABLE).ok().and_then(|index| index.parse().ok());
    // Some shells leave an empty word at the end away.
    let index = index.unwrap_or_else(|| typed.len().saturating_sub(1)).min(typed.len());
    let before: Arc<[OsString]> = typed.iter().take(index).cloned().collect();
    let is_flag = typed.get(index).is_some_and(|word| word.to_string_lossy().starts_with('-'));
    let command = if is_flag { make() } else { with_hidden_flags(make()) };
    let mut command = with_completers(command, &[], (&before, make));
    let mut words = Vec::new();
    shell.write_complete(
        &mut command,
        typed,
        std::env::current_dir().ok().as_deref(),
        &mut words,
    )?;
    io::stdout().write_all(&words)
}

/// Names are offered without the flags, unless there are none.
fn with_hidden_flags(command: Command) -> Command {
    command
        .disable_help_flag(true)
        .mut_args(|arg| if arg.is_positional() { arg } else { arg.hide(true) })
        .mut_subcommands(with_hidden_flags)
}

/// The command with what completes its arguments and the values of its flags; the same for those below it.
fn with_completers(
    command: Command,
    path: &[String],
    (before, make): (&Arc<[OsString]>, fn() -> Command),
) -> Command {
    let completer = |arg: &Arg| WordCompleter {
        path: path.to_vec(),
        flag: (!arg.is_positional()).then(|| arg.get_long().unwrap_or_default().to_owned()),
        before: before.clone(),
        make,
    };
    command
        .mut_args(|arg| {
            let completer = completer(&arg);
            if completer.may_complete() { arg.add(ArgValueCompleter::new(completer)) } else { arg }
        })
        .mut_subcommands(|below| {
            let path = [path, &[below.get_name().to_owned()]].concat();
            with_completers(below, &path, (before, make))
        })
}

/// Completes a value with what the server and the client configuration have.
struct WordCompleter {
    /// The command and those above it.
    path: Vec<String>,
    /// The flag whose value it is; `None` of an argument.
    flag: Option<String>,
    /// The words before that at the cursor, the program's name among them.
    before: Arc<[OsString]>,
    make: fn() -> Command,
}

impl WordCompleter {
    /// Whether it has anything for some arguments before it; other values are completed by clap, as names of files.
    fn may_complete(&self) -> bool {
        let some = ["pods".to_owned()];
        match &self.flag {
            Some(flag) => of_flag(&self.path(), flag, &some).is_some(),
            None => of_argument(&self.path(), &[], "").is_some(),
        }
    }

    fn path(&self) -> Vec<&str> {
        self.path.iter().map(String::as_str).collect()
    }

    fn words(&self, current: &str) -> Option<Vec<String>> {
        let command = (self.make)().ignore_errors(true);
        let matches = command.try_get_matches_from(&*self.before).ok()?;
        let mut leaf = &matches;
        while let Some((_, below)) = leaf.subcommand() {
            leaf = below;
        }
        let before = arguments_of(&(self.make)(), leaf, &self.path);
        let wanted = match &self.flag {
            Some(flag) => of_flag(&self.path(), flag, &before),
            None => of_argument(&self.path(), &before, current),
        }?;
        ask(GlobalFlags::from_arg_matches(leaf).unwrap_or_default(), &wanted)
    }
}

impl ValueCompleter for WordCompleter {
    fn complete(&self, current: &OsStr) -> Vec<CompletionCandidate> {
        let Some(current) = current.to_str() else { return Vec::new() };
        let mut words = self.words(current).unwrap_or_default();
        words.retain(|word| word.starts_with(current) && is_plain(word));
        words.sort();
        words.dedup();
        words.into_iter().map(CompletionCandidate::new).collect()
    }
}

/// Whether a word has no meaning of its own to shells and terminals: a server may say anything.
fn is_plain(word: &str) -> bool {
    word.chars().all(|c| c.is_alphanumeric() || "-._:/@+%".contains(c))
}

/// The arguments of a command line that is not complete yet, without the flags.
fn arguments_of(root: &Command, matches: &ArgMatches, path: &[String]) -> Vec<String> {
    let mut command = root;
    for name in path {
        let Some(below) = command.find_subcommand(name) else { return Vec::new() };
        command = below;
    }
    let values = command
        .get_positionals()
        .filter_map(|arg| matches.try_get_raw(arg.get_id().as_str()).ok().flatten());
    values.flatten().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// Asks the server, for as long as a person waits for it.
fn ask(flags: GlobalFlags, wanted: &Candidates) -> Option<Vec<String>> {
    let environment = Arc::new(|name: &str| std::env::var(name).ok());
    let session = Session::new(flags, environment, Box::new(io::sink()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let words = runtime.block_on(async {
        tokio::time::timeout(DEADLINE, completion::words(&session, wanted)).await
    });
    // A name that is being resolved must not hold the user's shell.
    runtime.shutdown_background();
    words.ok()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_word_acts_on_a_shell_or_a_terminal() {
        for plain in ["web-0", "deployments.apps/web", "arn:aws:eks:eu-1:1:cluster/a", "a@b"] {
            assert!(is_plain(plain), "{plain}");
        }
        for acting in ["$(reboot)", "a b", "a\u{1b}[2J", "a;b", "a`b`", "a\nb", "a'b", "a>b"] {
            assert!(!is_plain(acting), "{acting:?}");
        }
    }
}
