//! Checks before anything is changed: the facts that they are about, and what follows from those that failed.

use anyhow::Result;
use apiserver_bootstrap::preflight::{
    Facts, IgnoredChecks, PreflightFinding, PreflightLevel, PreflightScope, RuntimeFacts,
    RuntimeSilent,
};
use apiserver_bootstrap::{etcd_probe, host_facts};

use crate::failure::PreflightFailed;
use crate::host::Host;
use crate::output::LineOutput;
use crate::runtime::Runtime;

/// Says every finding and fails with all errors that are not ignored.
///
/// # Errors
/// [`PreflightFailed`].
pub fn report(
    findings: Vec<PreflightFinding>,
    ignored: &IgnoredChecks,
    output: LineOutput,
) -> Result<()> {
    let mut failed = Vec::new();
    for finding in findings {
        match finding.level {
            PreflightLevel::Error if !ignored.has(&finding.name) => {
                failed.push((finding.name, finding.message));
            }
            _ => output.warn("preflight", &finding.name, &finding.message),
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(PreflightFailed(failed).into()) }
}

/// Looks at the host and its runtime.
pub async fn gather(wanted: &PreflightScope, host: &Host) -> Facts {
    host.output.log("preflight", "Running pre-flight checks");
    // Printed before the step, which may take seconds.
    host.output.log("preflight", &format!("asking the container runtime at {}", wanted.runtime));
    let runtime = query_runtime(&wanted.runtime).await;
    host.output.log("preflight", &format!("looking up the name {:?}", wanted.node));
    let mut facts = host_facts::gather(wanted, &host.layout.root, runtime);
    if let Some(etcd) = &wanted.etcd {
        let members = etcd.endpoints.join(", ");
        host.output.log("preflight", &format!("querying the external etcd at {members}"));
        facts.etcd = etcd_probe::query(etcd, host.names).await;
    }
    facts
}

async fn query_runtime(endpoint: &str) -> Result<RuntimeFacts, RuntimeSilent> {
    let asked = async { Runtime::connect(endpoint).await?.facts().await };
    asked.await.map_err(|error| RuntimeSilent(format!("{error:#}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_checks_do_not_fail_and_the_others_are_reported_together() {
        let finding =
            |name: &str, level| PreflightFinding { name: name.into(), message: "m".into(), level };
        let all = || {
            vec![
                finding("NumCPU", PreflightLevel::Error),
                finding("CRI", PreflightLevel::Error),
                finding("Swap", PreflightLevel::Warning),
            ]
        };
        let output = LineOutput { format: crate::output::OutputFormat::Text };
        let ended = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            report(all(), &IgnoredChecks::new(&names), output).map_err(|error| {
                error.downcast::<PreflightFailed>().map_or(0, |failed| failed.0.len())
            })
        };
        assert_eq!(ended(&[]), Err(2));
        assert_eq!(ended(&["numcpu"]), Err(1));
        assert_eq!(ended(&["all"]), Ok(()));
    }
}
