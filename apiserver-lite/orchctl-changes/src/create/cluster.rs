//! `create namespace`, `create serviceaccount`, `create quota`, `create priorityclass`, `create poddisruptionbudget`.

use std::process::ExitCode;

use orchctl_client::{CommandError, Output, Session};
use orchctl_plans::generate::cluster;

use super::CommonFlags;

/// Flags of `create namespace`.
#[derive(clap::Args, Debug)]
pub struct NamespaceArgs {
    /// Its name
    name: String,
    #[command(flatten)]
    common: CommonFlags,
}

pub(super) async fn run_namespace(
    session: &Session,
    args: NamespaceArgs,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    args.common.generate_object(session, cluster::namespace(&args.name), "", output).await
}

/// Flags of `create serviceaccount`.
#[derive(clap::Args, Debug)]
pub struct ServiceAccountArgs {
    /// Its name
    name: String,
    #[command(flatten)]
    common: CommonFlags,
}

pub(super) async fn run_service_account(
    session: &Session,
    args: ServiceAccountArgs,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let made = cluster::service_account(&args.name);
    args.common.generate_object(session, made, "serviceaccount", output).await
}

/// Flags of `create quota`.
#[derive(clap::Args, Debug)]
pub struct QuotaArgs {
    /// Its name
    name: String,
    /// Limits, as cpu=1,pods=2
    #[arg(long, value_name = "LIMITS", default_value = "", hide_default_value = true)]
    hard: String,
    /// Which objects count, as BestEffort,NotTerminating
    #[arg(long, value_name = "SCOPES", default_value = "", hide_default_value = true)]
    scopes: String,
    #[command(flatten)]
    common: CommonFlags,
}

pub(super) async fn run_quota(
    session: &Session,
    args: QuotaArgs,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let made = cluster::quota(&args.name, &args.hard, &args.scopes);
    args.common.generate(session, made, "quota", output).await
}

/// Flags of `create priorityclass`.
#[derive(clap::Args, Debug)]
pub struct PriorityClassArgs {
    /// Its name
    name: String,
    /// Priority of its pods
    #[arg(long, value_name = "PRIORITY", default_value_t = 0, allow_negative_numbers = true)]
    value: i32,
    /// Pods without a class have this one
    #[arg(long)]
    global_default: bool,
    /// What it is for
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    description: String,
    /// Whether its pods displace others
    #[arg(long, value_name = "POLICY", default_value = "PreemptLowerPriority", value_parser = ["PreemptLowerPriority", "Never"])]
    preemption_policy: String,
    #[command(flatten)]
    common: CommonFlags,
}

pub(super) async fn run_priority_class(
    session: &Session,
    args: PriorityClassArgs,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let names = args.common.names(session).await?;
    let made = cluster::priority_class(
        names,
        &args.name,
        args.value,
        args.global_default,
        &args.description,
        &args.preemption_policy,
    );
    args.common.generate_object(session, made, "priorityclass", output).await
}

/// Flags of `create poddisruptionbudget`.
#[derive(clap::Args, Debug)]
pub struct BudgetArgs {
    /// Its name
    name: String,
    /// Labels of its pods
    #[arg(long, value_name = "SELECTOR", default_value = "", hide_default_value = true)]
    selector: String,
    /// Fewest pods that stay, as number or percentage
    #[arg(long, value_name = "COUNT", default_value = "", hide_default_value = true)]
    min_available: String,
    /// Most pods that are missing, as number or percentage
    #[arg(long, value_name = "COUNT", default_value = "", hide_default_value = true)]
    max_unavailable: String,
    #[command(flatten)]
    common: CommonFlags,
}

pub(super) async fn run_budget(
    session: &Session,
    args: BudgetArgs,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let made = cluster::disruption_budget(
        &args.name,
        &args.selector,
        &args.min_available,
        &args.max_unavailable,
    );
    args.common.generate(session, made, "poddisruptionbudgets", output).await
}
