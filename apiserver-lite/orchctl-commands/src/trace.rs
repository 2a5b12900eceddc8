//! `trace`: the path of a packet to a Service through the kernel state of the node that this runs on. The rules of a node are known only there, to its proxy:
//! the command finds the addresses and ports of the Service and has `orch-proxy trace` explain each.

use std::io;
use std::net::IpAddr;
use std::process::ExitCode;

use orchctl_client::{CommandError, Output, Session, names};
use orchctl_printers::objects;
use proto_client::request;
use serde_json::Value;
use tokio::process::Command;

/// Most addresses with ports that are explained.
const FRONTENDS_MAX: usize = 20;

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// service/NAME, or the name of a service
    #[arg(value_name = "SERVICE", required = true)]
    args: Vec<String>,
    /// Only this port, by name or number
    #[arg(long, value_name = "PORT")]
    port: Option<String>,
    /// Address that the packet comes from, of a pod or from outside; without it from this node
    #[arg(long, value_name = "IP")]
    from: Option<IpAddr>,
    /// The node's proxy: its rules are those of the node that this runs on
    #[arg(long, value_name = "PROGRAM", default_value = "orch-proxy")]
    proxy: String,
    /// Print the commands instead of running them: for other nodes
    #[arg(long)]
    print: bool,
}

/// Where a Service is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Frontend {
    protocol: &'static str,
    address: IpAddr,
    port: u16,
}

/// Runs the command.
///
/// # Errors
/// When there is no such service or nothing to trace, and when the proxy's program cannot be run.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let selection = names::parse_one(session.discovery().await?, &args.args, "services")?;
    let resource = &selection.resource;
    if (resource.group.as_str(), resource.kind.as_str()) != ("", "Service") {
        return Err(CommandError::with_text(format!(
            "trace knows services, not {}: the path to a pod is that of its address",
            resource.full_name()
        )));
    }
    let collection = resource.collection(Some(session.namespace()?));
    let path = collection.item(selection.name.as_deref().unwrap_or_default(), None);
    let service = session.call_json(request::get(path)).await?;
    let frontends = frontends(&service, args.port.as_deref())?;
    for (at, frontend) in frontends.iter().enumerate() {
        let words = words(frontend, args.from);
        if args.print {
            writeln!(output.out, "{} {}", args.proxy, words.join(" "))?;
            continue;
        }
        if at > 0 {
            writeln!(output.out)?;
        }
        output.out.flush()?;
        let ended = Command::new(&args.proxy).args(&words).status().await;
        let ended = ended.map_err(|error| not_run(&args.proxy, &error))?;
        if !ended.success() {
            return Err(CommandError::with_text(format!(
                "{} {}: {ended}",
                args.proxy,
                words.join(" ")
            )));
        }
    }
    output.out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn not_run(program: &str, error: &io::Error) -> CommandError {
    CommandError::with_text(format!(
        "cannot run {program}: {error}; run this on a node, name the program with --proxy, or have the commands printed with --print"
    ))
}

/// The words of `orch-proxy` for one question.
fn words(frontend: &Frontend, from: Option<IpAddr>) -> Vec<String> {
    let mut words = vec![
        "trace".to_owned(),
        frontend.protocol.to_owned(),
        frontend.address.to_string(),
        frontend.port.to_string(),
    ];
    if let Some(from) = from {
        words.extend(["--from".to_owned(), from.to_string()]);
    }
    words
}

/// The cluster addresses of a Service with its ports. Nothing of the object is passed on as it is: addresses are addresses, ports are numbers.
fn frontends(service: &Value, wanted: Option<&str>) -> Result<Vec<Frontend>, CommandError> {
    let name = objects::name(service);
    // The API server may keep addresses from before the type was changed.
    if objects::text_at(service, "/spec/type") == "ExternalName" {
        return Err(CommandError::with_text(format!(
            "service {name} is an alias of {}, which clients resolve by DNS: it has no address of the cluster and no backends of its own",
            objects::text_at(service, "/spec/externalName")
        )));
    }
    let addresses = objects::list_at(service, "/spec/clusterIPs").iter();
    let addresses: Vec<IpAddr> = addresses.filter_map(|one| one.as_str()?.parse().ok()).collect();
    if addresses.is_empty() {
        return Err(CommandError::with_text(format!(
            "service {name} has no address of the cluster: its clients reach its pods directly"
        )));
    }
    let mut found = Vec::new();
    for port in objects::list_at(service, "/spec/ports") {
        let number = port.get("port").and_then(Value::as_u64);
        let Some(number) = number.and_then(|number| u16::try_from(number).ok()) else { continue };
        let is_wanted = wanted.is_none_or(|wanted| {
            wanted == objects::text_at(port, "/name") || wanted == number.to_string()
        });
        if !is_wanted {
            continue;
        }
        let protocol = match objects::text_at(port, "/protocol") {
            "UDP" => "udp",
            "SCTP" => "sctp",
            _ => "tcp",
        };
        found.extend(addresses.iter().map(|address| Frontend {
            protocol,
            address: *address,
            port: number,
        }));
    }
    match (wanted, found.len()) {
        (Some(port), 0) => {
            Err(CommandError::with_text(format!("service {name} has no port {port:?}")))
        }
        (None, 0) => Err(CommandError::with_text(format!("service {name} has no ports"))),
        (_, count) if count > FRONTENDS_MAX => Err(CommandError::with_text(format!(
            "service {name} has {count} addresses with ports, more than {FRONTENDS_MAX}: choose one with --port"
        ))),
        _ => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(addresses: Value) -> Value {
        json!({"metadata": {"name": "web"}, "spec": {"clusterIPs": addresses, "ports": [
            {"name": "http", "port": 80, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"},
        ]}})
    }

    #[test]
    fn every_address_has_every_port() {
        let both = service(json!(["10.0.0.1", "fd00::1"]));
        let lines = |wanted| -> Result<Vec<String>, String> {
            let found = frontends(&both, wanted).map_err(|error| error.to_string())?;
            Ok(found.iter().map(|one| words(one, None).join(" ")).collect())
        };
        assert_eq!(
            lines(None).expect("four"),
            [
                "trace tcp 10.0.0.1 80",
                "trace tcp fd00::1 80",
                "trace udp 10.0.0.1 53",
                "trace udp fd00::1 53"
            ]
        );
        assert_eq!(lines(Some("dns")), lines(Some("53")));
        assert_eq!(lines(Some("x")), Err("error: service web has no port \"x\"".to_owned()));
    }

    #[test]
    fn without_an_address_there_is_no_path() {
        for addresses in [json!(["None"]), json!(["--help"]), json!(null)] {
            assert!(frontends(&service(addresses), None).is_err());
        }
    }

    #[test]
    fn a_service_with_an_external_name_is_an_alias() {
        let mut alias = service(json!(null));
        alias["spec"]["type"] = "ExternalName".into();
        alias["spec"]["externalName"] = "db.example.com".into();
        let refusal = frontends(&alias, None).expect_err("nothing to trace").to_string();
        assert_eq!(
            refusal,
            "error: service web is an alias of db.example.com, which clients resolve by DNS: it has no address of the cluster and no backends of its own"
        );
    }
}
