//! Exit codes, as kubeadm's: 1 failed, 2 preflight checks failed, 3 what was given is not valid.

use std::process::ExitCode;

use anyhow::Result;
use orchctl_printers::terminal::visible;

/// Checks that failed before anything was changed.
#[derive(Debug, thiserror::Error)]
#[error("{}", list(.0))]
pub struct PreflightFailed(pub Vec<(String, String)>);

fn list(failed: &[(String, String)]) -> String {
    let mut text = "[preflight] Some fatal errors occurred:".to_owned();
    for (name, message) in failed {
        text.push_str(&format!("\n\t[ERROR {name}]: {message}"));
    }
    text.push_str("\n[preflight] If you know what you are doing, you can make a check non-fatal with `--ignore-preflight-errors=...`");
    text
}

/// A flag or a field of a configuration file is wrong.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotValid(pub String);

/// An error of what was given.
pub fn not_valid(error: impl std::fmt::Display) -> anyhow::Error {
    NotValid(error.to_string()).into()
}

/// From this level of `--v` on the causes of an error stand in lines of their own, as kubeadm shows then where it comes from.
const CAUSES_SHOWN: u8 = 5;

/// The exit code of a command, which says why it failed.
pub fn report_failure(ended: Result<()>, verbosity: u8) -> ExitCode {
    let Err(error) = ended else { return ExitCode::SUCCESS };
    eprintln!("{}", text_of(&error, verbosity));
    if error.downcast_ref::<PreflightFailed>().is_some() {
        return ExitCode::from(2);
    }
    match error.downcast_ref::<NotValid>() {
        Some(_) => ExitCode::from(3),
        None => ExitCode::FAILURE,
    }
}

/// What is printed of an error, which may quote a server or a file: nothing of it acts on the terminal.
fn text_of(error: &anyhow::Error, verbosity: u8) -> String {
    let text = if error.downcast_ref::<PreflightFailed>().is_some() {
        format!("error execution phase preflight: {error}")
    } else if verbosity >= CAUSES_SHOWN {
        format!("error: {error:?}")
    } else {
        format!("error: {error:#}")
    };
    visible(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn codes_are_kubeadm_s() {
        let code = |error: anyhow::Error| format!("{:?}", report_failure(Err(error), 5));
        assert_eq!(code(anyhow::anyhow!("x")), format!("{:?}", ExitCode::from(1)));
        let failed = PreflightFailed(vec![("Swap".into(), "on".into())]);
        assert!(failed.to_string().contains("[ERROR Swap]: on"));
        assert_eq!(code(failed.into()), format!("{:?}", ExitCode::from(2)));
        let wrong: Result<()> = Err(not_valid("y")).context("the file");
        assert_eq!(code(wrong.unwrap_err()), format!("{:?}", ExitCode::from(3)));
    }

    #[test]
    fn what_others_wrote_does_not_act_on_the_terminal() {
        for verbosity in [0, CAUSES_SHOWN] {
            let error = anyhow::anyhow!("refused: \u{1b}]0;owned\u{7}").context("the token");
            let text = text_of(&error, verbosity);
            assert!(text.contains("^[]0;owned\\u{7}") && !text.contains('\u{1b}'), "{text}");
        }
        let failed = PreflightFailed(vec![("Swap".into(), "\u{1b}[2J\ton".into())]);
        assert!(text_of(&failed.into(), 0).ends_with("[ERROR Swap]: ^[[2J\ton\n[preflight] If you know what you are doing, you can make a check non-fatal with `--ignore-preflight-errors=...`"));
    }
}
