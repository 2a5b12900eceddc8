//! `cluster-info`: where the control plane and the services of the system are; `dump`: objects and logs for a diagnosis.

mod dump;

use std::process::ExitCode;

use orchctl_client::{CommandError, Output, Session};
use orchctl_printers::objects;
use proto_api::{Collection, uri};
use proto_client::{ListParams, request};

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// What else to show
    #[command(subcommand)]
    command: Option<Command>,
}

/// What else to show.
#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Write objects and logs for a diagnosis
    Dump(dump::Args),
}

/// Runs the command.
///
/// # Errors
/// The server cannot be reached.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    if let Some(Command::Dump(args)) = args.command {
        dump::run(session, args, output).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let names = session.names().await?;
    let namespace = names.system_namespace();
    let services = Collection {
        group: String::new(),
        version: "v1".to_owned(),
        plural: "services".to_owned(),
        namespace: Some(namespace.to_owned()),
    };
    let label = names.label("cluster-service");
    let params = ListParams::labels(format!("{label}=true"));
    let found = session.call_json(request::list(services.path(), &params)).await?;
    let server = session.config()?.server.to_string();
    let server = server.trim_end_matches('/');
    writeln!(output.out, "{} control plane is running at {server}", names.brand())?;
    for service in objects::list_at(&found, "/items") {
        let name = objects::name(service);
        let labels = objects::map_at(service, "/metadata/labels");
        let shown = labels.and_then(|labels| labels.get(&names.label("name")));
        let shown = shown.and_then(|value| value.as_str()).unwrap_or(name);
        let port = objects::text_at(service, "/spec/ports/0/name");
        let port = if port.is_empty() { String::new() } else { format!(":{port}") };
        let proxied = uri::encode(name, uri::COMPONENT);
        writeln!(
            output.out,
            "{shown} is running at {server}/api/v1/namespaces/{namespace}/services/{proxied}{port}/proxy"
        )?;
    }
    Ok(ExitCode::SUCCESS)
}
