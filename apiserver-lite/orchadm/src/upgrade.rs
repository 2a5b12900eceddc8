//! `orchadm upgrade`: other programs for those of this host. Each is restarted and looked at before the next; when one is not well, all are as before again.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use apiserver_bootstrap::arguments::Program;
use apiserver_bootstrap::dry_run;
use apiserver_bootstrap::node_health;
use apiserver_bootstrap::preflight::Role;
use apiserver_bootstrap::record::HostRecord;
use apiserver_bootstrap::services;
use apiserver_bootstrap::upgrade::{
    ProgramChange, check_not_older, check_way_back, describe_return, find_changes,
};
use clap::{ArgAction, Args, Subcommand};
use proto_api::coordination::v1::Lease;
use proto_api::core::v1::Node;
use serde_json::json;
use time::OffsetDateTime;

use crate::cluster::{self, until};
use crate::host::{self, Host};
use crate::output::table;

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

async fn changes(host: &Host, bin: &BinFlag) -> Result<Vec<ProgramChange>> {
    let dir = host::bin_dir(bin.bin_dir.as_deref())?;
    Ok(find_changes(&host.layout, host.read_record()?, &dir).await?)
}

async fn plan(host: &Host, bin: &BinFlag) -> Result<()> {
    let changes = changes(host, bin).await?;
    let heading = ["COMPONENT", "CURRENT", "TARGET", "PROGRAM"].map(str::to_owned).to_vec();
    let program = |change: &ProgramChange| change.file().display().to_string();
    let row = |change: &ProgramChange| {
        vec![change.old.name.clone(), change.from.clone(), change.to.clone(), program(change)]
    };
    let rows: Vec<Vec<String>> = [heading].into_iter().chain(changes.iter().map(row)).collect();
    let value = |change: &ProgramChange| {
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
    if !flags.force {
        check_not_older(&changes)?;
    }
    for change in &changes {
        change.new.check()?;
        check_way_back(&host.layout, change).await?;
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
    let _lock = host.lock().await?;
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
            return Err(error).context(describe_return(&failed));
        }
    }
    host.output.result("\nThis host runs the new programs.", &json!({"upgraded": true}));
    Ok(())
}

/// Puts the old programs back, all of them whatever fails; what failed.
async fn go_back(host: &Host, record: &mut HostRecord, done: &[&ProgramChange]) -> Vec<String> {
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
            services::wait_until_stable(layout, program).await?;
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
        _ => Ok(services::wait_until_stable(layout, program).await?),
    }
}
