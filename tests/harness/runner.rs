//! Runs cases in order and reports the result of each. A case that could not run is never reported as passed.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Instant;

use futures_util::FutureExt;

/// How a case ended.
#[derive(Debug)]
pub enum Outcome {
    /// It ran and held.
    Passed,
    /// It could not run here, and why.
    Skipped(String),
    /// It ran and did not hold.
    Failed(String),
}

/// What a case gives back: an error fails it, [`Skip`] as the error skips it.
pub type CaseResult = anyhow::Result<()>;

/// A case cannot run on this machine.
#[derive(Debug)]
pub struct Skip(pub String);

impl std::fmt::Display for Skip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "skipped: {}", self.0)
    }
}

impl std::error::Error for Skip {}

/// One named case over a context that all cases share.
pub struct Case<C: 'static> {
    /// Name, as printed and as matched by the filter.
    pub name: &'static str,
    /// The case.
    pub run: for<'a> fn(&'a C) -> Pin<Box<dyn Future<Output = CaseResult> + 'a>>,
}

/// Names a case after its function: `case!(a_pod_starts)`.
#[macro_export]
macro_rules! case {
    ($function:path) => {
        $crate::runner::Case {
            name: stringify!($function),
            run: |context| Box::pin($function(context)),
        }
    };
}

/// Counts over all cases.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Cases that held.
    pub passed: usize,
    /// Cases that did not.
    pub failed: usize,
    /// Cases that could not run.
    pub skipped: usize,
}

impl Tally {
    /// The line that closes a run.
    pub fn line(&self) -> String {
        format!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }

    /// Success only if something ran and nothing failed.
    pub fn code(&self) -> ExitCode {
        if self.failed > 0 || self.passed == 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}

/// Runs the cases whose names contain `filter`, or one of several with commas between, one after the other.
pub async fn run<C>(context: &C, cases: &[Case<C>], filter: &str, tally: &mut Tally) {
    for case in cases.iter().filter(|case| filter.split(',').any(|part| case.name.contains(part))) {
        let began = Instant::now();
        let ended = AssertUnwindSafe((case.run)(context)).catch_unwind().await;
        let outcome = match ended {
            Ok(Ok(())) => Outcome::Passed,
            Ok(Err(e)) => match e.downcast::<Skip>() {
                Ok(skip) => Outcome::Skipped(skip.0),
                Err(e) => Outcome::Failed(format!("{e:#}")),
            },
            Err(panic) => Outcome::Failed(panic_text(&*panic)),
        };
        let took = began.elapsed().as_secs_f64();
        match outcome {
            Outcome::Passed => {
                tally.passed += 1;
                println!("test {} ... ok ({took:.1} s)", case.name);
            }
            Outcome::Skipped(why) => {
                tally.skipped += 1;
                println!("test {} ... skipped: {why}", case.name);
            }
            Outcome::Failed(why) => {
                tally.failed += 1;
                println!("test {} ... FAILED ({took:.1} s)\n    {why}", case.name);
            }
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panicked".to_owned())
}
