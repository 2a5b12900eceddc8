//! `create deployment`, `create job`, `create cronjob`.

use std::process::ExitCode;

use orchctl_client::{CommandError, Output, Session, names};
use orchctl_plans::generate::workload;

use super::CommonFlags;
use crate::requests::{self, Place};

/// Flags of `create deployment`.
#[derive(clap::Args, Debug)]
pub struct DeploymentArgs {
    /// Its name
    name: String,
    /// Images, each for a container; repeatable
    #[arg(long, required = true, value_delimiter = ',', value_name = "IMAGE")]
    image: Vec<String>,
    /// How many pods
    #[arg(long, short, default_value_t = 1, value_name = "COUNT", allow_negative_numbers = true)]
    replicas: i32,
    /// Port of the containers
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Command of the container, after --
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
    #[command(flatten)]
    common: CommonFlags,
}

pub(super) async fn run_deployment(
    session: &Session,
    args: DeploymentArgs,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let made =
        workload::deployment(&args.name, &args.image, args.replicas, args.port, &args.command);
    args.common.generate(session, made, "deployment", output).await
}

/// Flags of `create job`.
#[derive(clap::Args, Debug)]
pub struct JobArgs {
    /// Its name
    name: String,
    /// Image of its container
    #[arg(long, value_name = "IMAGE", required_unless_present = "from")]
    image: Option<String>,
    /// Object whose job is made now: cronjob/NAME
    #[arg(long, value_name = "OBJECT", conflicts_with = "image")]
    from: Option<String>,
    /// Command of the container, after --
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "from")]
    command: Vec<String>,
    #[command(flatten)]
    common: CommonFlags,
}

pub(super) async fn run_job(
    session: &Session,
    args: JobArgs,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let Some(from) = &args.from else {
        let image = args.image.as_deref().unwrap_or_default();
        let made = workload::job(&args.name, image, &args.command);
        return args.common.generate_object(session, made, "job", output).await;
    };
    let selection = names::parse_pair(session.discovery().await?, from)?;
    let place = Place {
        namespace: Some(session.namespace()?.to_owned()),
        name: selection.name.unwrap_or_default(),
        resource: selection.resource,
    };
    let cron_job = requests::get(session, &place).await?;
    let made = workload::job_from(session.names().await?, &args.name, &cron_job);
    args.common.generate(session, made, "job", output).await
}

/// Flags of `create cronjob`.
#[derive(clap::Args, Debug)]
pub struct CronJobArgs {
    /// Its name
    name: String,
    /// Image of its container
    #[arg(long, value_name = "IMAGE")]
    image: String,
    /// When it runs, as minute hour day month weekday
    #[arg(long, value_name = "SCHEDULE")]
    schedule: String,
    /// When the container is started again
    #[arg(long, value_name = "WHEN", default_value = "OnFailure", value_parser = ["OnFailure", "Never"])]
    restart: String,
    /// Command of the container, after --
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
    #[command(flatten)]
    common: CommonFlags,
}

pub(super) async fn run_cron_job(
    session: &Session,
    args: CronJobArgs,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let made =
        workload::cron_job(&args.name, &args.image, &args.schedule, &args.restart, &args.command);
    args.common.generate_object(session, made, "cronjob", output).await
}
