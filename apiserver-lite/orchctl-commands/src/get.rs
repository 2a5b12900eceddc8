//! `get`: objects as tables or in other forms, once or as they change.

mod print_response;
mod read;
mod watch;

pub(crate) use read::accept_table;

use std::process::ExitCode;

use orchctl_client::manifests::FileFlags;
use orchctl_client::{CommandError, Output, Session, check_raw_path};
use proto_client::request;

use crate::print_flags::PrintFlags;

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// TYPE, TYPE NAME..., TYPE,TYPE or TYPE/NAME...
    #[arg(value_name = "OBJECT")]
    pub args: Vec<String>,
    /// Which objects
    #[command(flatten)]
    pub select: SelectFlags,
    /// Files with the objects
    #[command(flatten)]
    pub files: FileFlags,
    /// How objects are printed
    #[command(flatten)]
    pub print: PrintFlags,
    /// Which columns
    #[command(flatten)]
    pub table: TableFlags,
    /// Objects of all namespaces
    #[arg(long, short = 'A')]
    pub all_namespaces: bool,
    /// Print the objects, then their changes
    #[arg(long, short)]
    pub watch: bool,
    /// Print changes only
    #[arg(long)]
    pub watch_only: bool,
    /// Print the type of each change
    #[arg(long)]
    pub output_watch_events: bool,
    /// Print this path of the server as it is
    #[arg(long, value_name = "PATH", conflicts_with_all = ["args", "watch", "watch_only"])]
    pub raw: Option<String>,
}

/// Which objects.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct SelectFlags {
    /// Labels, as app=web,tier!=db
    #[arg(long, short = 'l', value_name = "SELECTOR", allow_hyphen_values = true)]
    pub selector: Option<String>,
    /// Fields, as status.phase=Running
    #[arg(long, value_name = "SELECTOR")]
    pub field_selector: Option<String>,
    /// Objects of one request; 0 for all
    #[arg(long, value_name = "COUNT", default_value_t = 500)]
    pub chunk_size: u32,
    /// Do not fail for objects that do not exist
    #[arg(long)]
    pub ignore_not_found: bool,
    /// Subresource to show: status, scale
    #[arg(long, value_name = "NAME", value_parser = ["status", "scale"])]
    pub subresource: Option<String>,
    /// Order, by the value at this JSONPath
    #[arg(long, value_name = "PATH")]
    pub sort_by: Option<String>,
}

/// Which columns.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct TableFlags {
    /// Leave out the names of columns
    #[arg(long)]
    pub no_headers: bool,
    /// A column of all labels
    #[arg(long)]
    pub show_labels: bool,
    /// Columns of the values of these labels
    #[arg(long, short = 'L', value_name = "LABEL", value_delimiter = ',')]
    pub label_columns: Vec<String>,
    /// Print the type before each name
    #[arg(long)]
    pub show_kind: bool,
    /// Columns made by the server; without it names and ages
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true")]
    pub server_print: bool,
}

/// Runs the command.
///
/// # Errors
/// When the server refuses, or the command line names no objects.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    if let Some(path) = &args.raw {
        check_raw_path(path)?;
        let answer = session.call(request::get(path.clone())).await?;
        output.out.write_all(&answer.body)?;
        return Ok(ExitCode::SUCCESS);
    }
    let form = args.print.form()?;
    let questions = read::questions(session, &args, output).await?;
    if args.watch || args.watch_only {
        watch::run(session, &args, &form, questions, output).await?;
        return Ok(ExitCode::SUCCESS);
    }
    if form.is_table() {
        print_response::tables(session, &args, &form, questions, output).await?;
    } else {
        print_response::objects(session, &args, &form, questions, output).await?;
    }
    Ok(ExitCode::SUCCESS)
}
