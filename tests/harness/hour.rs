//! A new user's first hour: everyday kubectl commands, compared with the answers of Kubernetes' own API server, kubelet and controllers.
//!
//! `tests/hour/kubernetes.transcript` was recorded from Kubernetes (`hack/hour --record`); `tests/hour/differences.transcript` has the answers that differ,
//! each with its reason.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::runner::Skip;
use crate::transcript::{self, Action, Shell, Verdict};

/// The client whose words the transcripts have; other versions word some answers differently.
const CLIENT: &str = "kubectl.1.27";

/// How a run ended.
#[derive(Debug, Default)]
pub struct Report {
    /// Actions answered as Kubernetes answers them.
    pub equal: usize,
    /// Actions whose difference is listed with a reason.
    pub explained: usize,
    /// What differs without a reason, or has one and does not differ any more.
    pub findings: Vec<String>,
}

/// Where transcripts and manifests lie.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("hour")
}

/// The client, beside any `kubectl` of PATH.
fn find_client() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let beside = |dir: PathBuf| {
        let real = std::fs::canonicalize(dir.join("kubectl")).ok()?;
        let found = real.parent()?.join(CLIENT);
        found.is_file().then_some(found)
    };
    std::env::split_paths(&path).find_map(beside)
}

/// Runs every action with the rights of `config`, a client configuration, and gives the actions with the answers. Files are kept in `scratch`,
/// which has to exist. Skips where the client is missing.
async fn run(actions: Vec<Action>, config: &Path, scratch: &Path) -> Result<Vec<Action>> {
    let client = find_client().ok_or_else(|| Skip(format!("{CLIENT} is not on this machine")))?;
    let bin = scratch.join("bin");
    std::fs::create_dir_all(&bin)?;
    let link = bin.join("kubectl");
    if !link.exists() {
        std::os::unix::fs::symlink(client, link)?;
    }
    // The commands change the configuration's current namespace.
    let own = scratch.join("config");
    std::fs::copy(config, &own).with_context(|| config.display().to_string())?;
    let path = std::env::var("PATH").unwrap_or_default();
    let env = [
        ("KUBECONFIG", own.display().to_string()),
        ("HOME", scratch.display().to_string()),
        ("PATH", format!("{}:{path}", bin.display())),
        ("TZ", "UTC".to_owned()),
    ];
    let env = env.map(|(name, value)| (name.to_owned(), value)).to_vec();
    let dir = directory().join("manifests");
    let shell = Shell { dir: &dir, env };
    let mut answered = Vec::with_capacity(actions.len());
    for action in actions {
        let answer = shell.answer(&action).await?;
        answered.push(Action { answer, ..action });
    }
    Ok(answered)
}

fn read(name: &str) -> Result<Vec<Action>> {
    let path = directory().join(name);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    transcript::parse(&text).with_context(|| path.display().to_string())
}

/// Runs the transcript's commands against a cluster of Kubernetes' own programs and writes what they answer into it.
pub async fn record(config: &Path, scratch: &Path) -> Result<usize> {
    let mut answered = run(read("kubernetes.transcript")?, config, scratch).await?;
    for preparation in answered.iter_mut().filter(|action| !action.is_compared) {
        ensure!(!preparation.has_failed(), "{}: {:?}", preparation.command, preparation.answer);
        preparation.answer.clear();
    }
    std::fs::write(directory().join("kubernetes.transcript"), transcript::print(&answered))?;
    Ok(answered.iter().filter(|action| action.is_compared).count())
}

/// Runs the transcript's commands against a cluster of ours and compares every answer.
pub async fn check(config: &Path, scratch: &Path) -> Result<Report> {
    let reference = read("kubernetes.transcript")?;
    let differences = read("differences.transcript")?;
    for difference in &differences {
        ensure!(!difference.remarks.is_empty(), "{}: no reason is given", difference.command);
        let is_known = reference.iter().any(|action| action.command == difference.command);
        ensure!(is_known, "{}: not in kubernetes.transcript", difference.command);
    }
    let answered = run(reference.clone(), config, scratch).await?;
    let mut report = Report::default();
    for (reference, ours) in reference.iter().zip(&answered) {
        if !reference.is_compared {
            let failed = ours.has_failed().then(|| transcript::print(std::slice::from_ref(ours)));
            report.findings.extend(failed);
            continue;
        }
        let explained = differences.iter().find(|one| one.command == reference.command);
        match transcript::compare(reference, explained, &ours.answer) {
            Verdict::Equal => report.equal += 1,
            Verdict::Explained => report.explained += 1,
            Verdict::Stale => report.findings.push(format!(
                "$ {}\n  is answered as Kubernetes answers it; the difference that is listed is gone",
                ours.command
            )),
            Verdict::Different => report.findings.push(format!(
                "{}  Kubernetes answers:\n{}",
                transcript::print(std::slice::from_ref(ours)),
                reference.answer.iter().map(|line| format!("  {line}\n")).collect::<String>()
            )),
        }
    }
    Ok(report)
}
