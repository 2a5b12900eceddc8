//! Injected faults.

use tonic::Status;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call fails with this text.
    Fail(String),
    /// The call never ends.
    Hang,
    /// The driver dies.
    Exit,
}

/// The fault that a file's lines name for a call.
pub fn of(lines: &str, call: &str) -> Option<Fault> {
    let line = lines.lines().find(|line| line.split_whitespace().next() == Some(call))?;
    let mut words = line.split_whitespace().skip(1);
    match words.next()? {
        "fail" => Some(Fault::Fail(words.collect::<Vec<_>>().join(" "))),
        "hang" => Some(Fault::Hang),
        "exit" => Some(Fault::Exit),
        _ => None,
    }
}

/// Lets the fault happen.
pub async fn happen(fault: Option<Fault>) -> Result<(), Status> {
    match fault {
        None => Ok(()),
        Some(Fault::Fail(text)) => Err(Status::internal(text)),
        Some(Fault::Hang) => std::future::pending().await,
        Some(Fault::Exit) => std::process::exit(1),
    }
}
