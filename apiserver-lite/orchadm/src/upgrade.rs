//! `orchadm upgrade`: other programs for those of this host. Each is restarted and looked at before the next; when one is not well, all are as before again.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use apiserver_bootstrap::arguments::Program;
use apiserver_bootstrap::dry_run;
use apiserver_bootstrap::node_health;
use apiserver_bootstrap::preflight::Role;
use apiserver_bootstrap::processes::FileId;
use apiserver_bootstrap::versions::is_older;
use clap::{ArgAction, Args, Subcommand};
use proto_api::coordination::v1::Lease;
use proto_api::core::v1::Node;
use serde_json::json;
use time::OffsetDateTime;
use tokio::process::Command;

use crate::cluster::{self, until};
use crate::host::{self, Host};
use crate::output::table;
use crate::services;
use apiserver_bootstrap::external;
use apiserver_bootstrap::record::HostRecord;

/// `upgrade ...`
#[derive(Debug, Subcommand)]
pub enum UpgradeCommand {
    /// Compare this host's programs with those of a directory.
    Plan(BinFlag),
    /// Run the programs of a directory from now on.
    Apply(ApplyFlags),
    /// The same, by the name that it has on nodes.
    Node(ApplyFlags),
}

/// The directory.
#[derive(Args, Clone, Debug)]
pub struct BinFlag {
    /// Directory of the new programs [default: that of this program]
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
}

/// Flags of `upgrade apply`.
#[derive(Args, Clone, Debug)]
pub struct ApplyFlags {
    #[command(flatten)]
    bin: BinFlag,
    /// Whether certificates are renewed too.
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    certificate_renewal: bool,
    /// Go to older programs as well.
    #[arg(short = 'f', long)]
    force: bool,
    /// Only say what would be done.
    #[arg(long)]
    dry_run: bool,
}

/// How long a restarted program is waited for.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a program has to run to be well, where nothing else says so.
const SETTLED: Duration = Duration::from_secs(3);
/// How often a program is given that time.
const SETTLE_ROUNDS: usize = 8;

/// Longest wait for what a program says of its version.
const VERSION_PATIENCE: Duration = Duration::from_secs(10);

/// A program with its version now and then.
struct Change {
    old: Program,
    new: Program,
    from: String,
    to: String,
}

/// Runs a command.
///
/// # Errors
/// A program is missing, or not well after its restart.
pub async fn run(host: Host, command: &UpgradeCommand) -> Result<()> {
    match command {
        UpgradeCommand::Plan(bin) => plan(&host, bin).await,
        UpgradeCommand::Apply(flags) | UpgradeCommand::Node(flags) => apply(&host, flags).await,
    }
}

async fn changes(host: &Host, bin: &BinFlag) -> Result<Vec<Change>> {
    let dir = host::bin_dir(bin.bin_dir.as_deref())?;
    let mut changes = Vec::new();
    for old in &host.read_record()?.programs {
        let path = dir.join(&old.name);
        let mut new = old.clone();
        let executable = new.argv.first_mut().context("an empty command line in the record")?;
        let from = version(Path::new(executable.as_str())).await;
        *executable = path.display().to_string();
        let to = version(&path).await?;
        // A program that was replaced where it lay, or removed, says nothing of what runs.
        let from = from.unwrap_or_else(|_| "unknown".to_owned());
        changes.push(Change { old: old.clone(), new, from, to });
    }
    Ok(changes)
}

/// The second word of what `--version` says.
async fn version(program: &Path) -> Result<String> {
    let output = external::output(Command::new(program).arg("--version"), VERSION_PATIENCE).await;
    let output = output.with_context(|| format!("cannot run {} --version", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let second = text.split_whitespace().nth(1).map(str::to_owned);
    second.with_context(|| format!("{} --version prints no version", program.display()))
}

async fn plan(host: &Host, bin: &BinFlag) -> Result<()> {
    let changes = changes(host, bin).await?;
    let heading = ["COMPONENT", "CURRENT", "TARGET", "PROGRAM"].map(str::to_owned).to_vec();
    let program = |change: &Change| change.new.argv.first().cloned().unwrap_or_default();
    let row = |change: &Change| {
        vec![change.old.name.clone(), change.from.clone(), change.to.clone(), program(change)]
    };
    let rows: Vec<Vec<String>> = [heading].into_iter().chain(changes.iter().map(row)).collect();
    let value = |change: &Change| {
        json!({
            "name": change.old.name, "current": change.from, "target": change.to,
            "program": program(change),
        })
    };
    let values: Vec<_> = changes.iter().map(value).collect();
    host.output.result(&table(&rows), &json!({"components": values}));
    Ok(())
}

async fn apply(host: &Host, flags: &ApplyFlags) -> Result<()> {
    let changes = changes(host, &flags.bin).await?;
    if let Some(older) = changes.iter().find(|change| is_older(&change.to, &change.from))
        && !flags.force
    {
        bail!("{}: {} is older than {}: give --force", older.old.name, older.to, older.from);
    }
    for change in &changes {
        change.new.check()?;
        check_way_back(host, change).await?;
    }
    let mut record = host.read_record()?.clone();
    let renews = flags.certificate_renewal && record.role == Role::ControlPlane;
    if flags.dry_run {
        let renewal = if renews {
            dry_run::renewal(host.names, &host.layout, &host.pki())
        } else {
            Vec::new()
        };
        let restarts =
            changes.iter().map(|change| dry_run::upgrade(&change.new, &change.from, &change.to));
        host.would("upgrade", renewal.into_iter().chain(restarts));
        return Ok(());
    }
    if renews {
        crate::certs::renew(host, "all")?;
    }
    let mut done = Vec::new();
    for change in &changes {
        done.push(change);
        host.output.log("upgrade", &format!("{} to {}", change.new.name, change.to));
        if let Err(error) = put(host, &mut record, &change.new).await {
            host.output.warn("upgrade", "Upgrade", &format!("{error:#}; going back"));
            let failed = go_back(host, &mut record, &done).await;
            return Err(error).context(outcome_of_return(&failed));
        }
    }
    host.output.result("\nThis host runs the new programs.", &json!({"upgraded": true}));
    Ok(())
}

/// A file that was replaced where it lies is not there to go back to, while the old program still runs.
async fn check_way_back(host: &Host, change: &Change) -> Result<()> {
    let path = change.new.argv.first().map(PathBuf::from).unwrap_or_default();
    let is_same_path = change.old.argv == change.new.argv;
    if !is_same_path {
        return Ok(());
    }
    let file = FileId::from_path(&path).with_context(|| path.display().to_string())?;
    let running = services::running_file(&host.layout, &change.old.name).await;
    if is_replaced(running, file) {
        bail!(
            "{} was replaced where it lies, so that there is no way back to the {} that runs: put the old file there again, install the new programs into another directory, and name it with --bin-dir",
            path.display(),
            change.old.name
        );
    }
    Ok(())
}

/// Whether a file is another than the one that runs.
fn is_replaced(running: Option<FileId>, file: FileId) -> bool {
    running.is_some_and(|running| running != file)
}

/// Puts the old programs back, all of them whatever fails; what failed.
async fn go_back(host: &Host, record: &mut HostRecord, done: &[&Change]) -> Vec<String> {
    let mut failed = Vec::new();
    for change in done {
        let name = &change.old.name;
        match put(host, record, &change.old).await {
            Ok(()) => host.output.log("upgrade", &format!("{name} is back at {}", change.from)),
            Err(error) => {
                host.output.warn("upgrade", "Upgrade", &format!("{name}: {error:#}"));
                failed.push(name.clone());
            }
        }
    }
    failed
}

fn outcome_of_return(failed: &[String]) -> String {
    match failed {
        [] => {
            "nothing is upgraded: the old programs run again; renewed certificates stay".to_owned()
        }
        failed => format!(
            "the upgrade failed, and so did the way back of {}: see above and their logs, then `orchadm upgrade apply` with the --bin-dir of programs that work",
            failed.join(", ")
        ),
    }
}

/// Records a program, restarts it and waits until it is well.
async fn put(host: &Host, record: &mut HostRecord, program: &Program) -> Result<()> {
    record.put(program);
    record.store(&host.layout)?;
    if !services::restart(&host.layout, program).await? {
        host.output.log("upgrade", &format!("{} does not run: it will, next time", program.name));
        return Ok(());
    }
    // The clock of the lease is this host's.
    let since = micros(OffsetDateTime::now_utc());
    match wait_well(host, record, &program.name, since).await {
        Ok(()) => Ok(()),
        Err(error) => {
            let said = services::last_lines(&host.layout, &program.name).await;
            bail!("{} is not well: {error:#}{said}", program.name)
        }
    }
}

/// Microseconds since 1970.
fn micros(at: OffsetDateTime) -> i64 {
    i64::try_from(at.unix_timestamp_nanos() / 1000).unwrap_or_default()
}

async fn wait_well(host: &Host, record: &HostRecord, program: &str, since: i64) -> Result<()> {
    let layout = &host.layout;
    match (program, record.role) {
        ("orch-apiserver", _) => {
            let client = cluster::client(&layout.admin, host.names)?;
            cluster::wait_ready(&client, PATIENCE).await
        }
        ("orchlet", _) => {
            wait_until_stable(host, program).await?;
            let client = cluster::client(&layout.node, host.names)?;
            let leases = client.within::<Lease>(host.names.node_lease_namespace());
            until("orchlet renews the lease of its node", PATIENCE, async || {
                let lease = leases.get(&record.node).await.map_err(cluster::chain)?;
                node_health::renewed_since(&lease, since)
            })
            .await?;
            let nodes = client.all::<Node>();
            until(&format!("the node {} is Ready", record.node), PATIENCE, async || {
                node_health::ready(&nodes.get(&record.node).await.map_err(cluster::chain)?)
            })
            .await
        }
        _ => wait_until_stable(host, program).await,
    }
}

/// Waits until a program has run for a while as one process.
async fn wait_until_stable(host: &Host, program: &str) -> Result<()> {
    for _ in 0..SETTLE_ROUNDS {
        let before = services::process_of(&host.layout, program).await;
        tokio::time::sleep(SETTLED).await;
        let now = services::process_of(&host.layout, program).await;
        if now.is_some() && now == before {
            return Ok(());
        }
    }
    bail!("it keeps exiting")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_was_replaced_where_it_lies_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p");
        std::fs::write(&path, "old").unwrap();
        let running = FileId::from_path(&path).unwrap();
        assert!(!is_replaced(Some(running), running) && !is_replaced(None, running));
        std::fs::write(dir.path().join("new"), "new").unwrap();
        std::fs::rename(dir.path().join("new"), &path).unwrap();
        assert!(is_replaced(Some(running), FileId::from_path(&path).unwrap()));
    }

    #[test]
    fn a_way_back_that_failed_is_not_called_one() {
        assert!(outcome_of_return(&[]).contains("the old programs run again"));
        let text = outcome_of_return(&["orchlet".to_owned()]);
        assert!(text.contains("way back of orchlet") && !text.contains("run again"), "{text}");
    }
}
