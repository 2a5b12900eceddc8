//! bin: `orchctl`, the command-line client: what kubectl is to its users, for both naming profiles.
//!
//! ```text
//!   arguments ─► command.rs ─► a command of orchctl-commands ─► orchctl-client: configuration, requests, names of resources
//!                                        │
//!                                        └─► orchctl-printers: objects ─► text
//! ```

mod arguments;
mod command;
mod completion;
mod help;

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::sync::Arc;

use clap::error::ErrorKind;
use orchctl_client::{CommandError, Output, Session, VisibleText};
use orchctl_commands::plugins;
use proto_daemon::reference;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    if let Some(code) = completion::answer(&words, command::command_line) {
        return code;
    }
    let version = env!("CARGO_PKG_VERSION");
    if let Some(code) = reference::answer::<command::Arguments>(version, completion::describe) {
        return code;
    }
    let parsed = match command::parse(std::env::args_os()) {
        Ok(parsed) => parsed,
        Err(error) => {
            // A failed write to a closed terminal changes nothing.
            if let Some(help) = help::of_no_command(&error) {
                let _ = write!(std::io::stdout(), "{help}");
                return ExitCode::SUCCESS;
            }
            if let Some(code) = run_plugin(&error, words.get(1..).unwrap_or_default()) {
                return code;
            }
            let _ = error.print();
            if !error.use_stderr() {
                return ExitCode::SUCCESS;
            }
            if let Some(hint) = help::hint(&error) {
                let _ = writeln!(std::io::stderr(), "\n{hint}");
            }
            return ExitCode::from(command::exit_code_of_usage(std::env::args_os()));
        }
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let ended = match runtime {
        Ok(runtime) => {
            let ended = runtime.block_on(run(parsed));
            // A thread that waits for standard input must not hold the program.
            runtime.shutdown_background();
            ended
        }
        Err(error) => Err(error.into()),
    };
    match ended {
        Ok(code) => code,
        // The reader of the output has closed the pipe.
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(VisibleText(std::io::stderr()), "{error}");
            ExitCode::FAILURE
        }
    }
}

/// Becomes the plugin that the command line means, if it has no command of this program; returns if it cannot.
fn run_plugin(error: &clap::Error, arguments: &[OsString]) -> Option<ExitCode> {
    let known = command::command_line();
    let first = arguments.first().filter(|first| *first != "help")?;
    if error.kind() != ErrorKind::InvalidSubcommand || known.find_subcommand(first).is_some() {
        return None;
    }
    let plugin = plugins::find(arguments, &std::env::var_os("PATH")?)?;
    let failed = Command::new(&plugin.program).args(&plugin.arguments).exec();
    let program = plugin.program.display();
    let _ = writeln!(VisibleText(std::io::stderr()), "error: cannot run {program}: {failed}");
    Some(ExitCode::FAILURE)
}

async fn run(parsed: command::Arguments) -> Result<ExitCode, CommandError> {
    let environment = |name: &str| std::env::var(name).ok();
    let mut output = Output::standard(environment);
    let environment = Arc::new(environment);
    let session = Session::new(parsed.flags, environment, Box::new(VisibleText(std::io::stderr())));
    session.name_command(parsed.words);
    let ended = command::run(&session, parsed.command, &mut output).await;
    let flushed = output.out.flush().map_err(CommandError::from);
    let code = match ended {
        Err(error) if error.is_unreachable() && session.lacks_configuration() => {
            let hint = "There is no client configuration: name one with --kubeconfig or KUBECONFIG, or the server with --server.";
            return Err(CommandError::Several(vec![error, CommandError::Plain(hint.to_owned())]));
        }
        ended => ended?,
    };
    // The reader of the output may have closed the pipe: the command has ended as it has.
    flushed.or_else(|error| if error.is_broken_pipe() { Ok(()) } else { Err(error) })?;
    match session.warnings() {
        count if count > 0 && session.flags().warnings_as_errors => {
            let noun = if count == 1 { "warning" } else { "warnings" };
            Err(CommandError::with_text(format!("{count} {noun} received")))
        }
        _ => Ok(code),
    }
}
