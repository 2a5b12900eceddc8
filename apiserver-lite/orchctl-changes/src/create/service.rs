//! `create service` with its types, `create ingress`.

use std::process::ExitCode;

use clap::Subcommand;
use orchctl_client::{CommandError, Output, Session};
use orchctl_plans::generate::service::{self, IngressFlags, ServiceFlags};

use super::CommonFlags;

/// Types of services.
#[derive(Subcommand, Debug)]
pub enum ServicePart {
    /// With an address within the cluster
    Clusterip(ClusterIpArgs),
    /// With a port on every node, too
    Nodeport(NodePortArgs),
    /// With an address from outside, too
    Loadbalancer(LoadBalancerArgs),
    /// For a name of DNS
    Externalname(ExternalNameArgs),
}

/// Flags of `create service clusterip`.
#[derive(clap::Args, Debug)]
pub struct ClusterIpArgs {
    /// Its name
    name: String,
    /// Ports as PORT or PORT:TARGET
    #[arg(long, value_delimiter = ',', value_name = "PORT")]
    tcp: Vec<String>,
    /// Its address, or None
    #[arg(long, value_name = "ADDRESS", default_value = "", hide_default_value = true)]
    clusterip: String,
    #[command(flatten)]
    common: CommonFlags,
}

/// Flags of `create service nodeport`.
#[derive(clap::Args, Debug)]
pub struct NodePortArgs {
    /// Its name
    name: String,
    /// Ports as PORT or PORT:TARGET
    #[arg(long, value_delimiter = ',', value_name = "PORT")]
    tcp: Vec<String>,
    /// Port on the nodes; 0 for the server's choice
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    node_port: u16,
    #[command(flatten)]
    common: CommonFlags,
}

/// Flags of `create service loadbalancer`.
#[derive(clap::Args, Debug)]
pub struct LoadBalancerArgs {
    /// Its name
    name: String,
    /// Ports as PORT or PORT:TARGET
    #[arg(long, value_delimiter = ',', value_name = "PORT")]
    tcp: Vec<String>,
    #[command(flatten)]
    common: CommonFlags,
}

/// Flags of `create service externalname`.
#[derive(clap::Args, Debug)]
pub struct ExternalNameArgs {
    /// Its name
    name: String,
    /// The name that it stands for
    #[arg(long, value_name = "NAME")]
    external_name: String,
    /// Ports as PORT or PORT:TARGET
    #[arg(long, value_delimiter = ',', value_name = "PORT")]
    tcp: Vec<String>,
    #[command(flatten)]
    common: CommonFlags,
}

pub(super) async fn run_service(
    session: &Session,
    part: ServicePart,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let none = ServiceFlags::default();
    let (kind, made, common) = match &part {
        ServicePart::Clusterip(args) => {
            let flags = ServiceFlags { tcp: &args.tcp, cluster_ip: &args.clusterip, ..none };
            ("ClusterIP", service::service(&args.name, "ClusterIP", flags), &args.common)
        }
        ServicePart::Nodeport(args) => {
            let flags = ServiceFlags { tcp: &args.tcp, node_port: args.node_port, ..none };
            ("NodePort", service::service(&args.name, "NodePort", flags), &args.common)
        }
        ServicePart::Loadbalancer(args) => {
            let flags = ServiceFlags { tcp: &args.tcp, ..none };
            ("LoadBalancer", service::service(&args.name, "LoadBalancer", flags), &args.common)
        }
        ServicePart::Externalname(args) => {
            let flags = ServiceFlags { tcp: &args.tcp, external_name: &args.external_name, ..none };
            ("ExternalName", service::service(&args.name, "ExternalName", flags), &args.common)
        }
    };
    common.generate(session, made, &format!("{kind} service"), output).await
}

/// Flags of `create ingress`.
#[derive(clap::Args, Debug)]
pub struct IngressArgs {
    /// Its name
    name: String,
    /// Class of the Ingress
    #[arg(long, value_name = "CLASS", default_value = "", hide_default_value = true)]
    class: String,
    /// Rule as HOST/PATH=SERVICE:PORT, with ,tls or ,tls=SECRET; repeatable
    #[arg(long, value_name = "RULE")]
    rule: Vec<String>,
    /// Backend of what no rule matches, as SERVICE:PORT
    #[arg(long, value_name = "BACKEND", default_value = "", hide_default_value = true)]
    default_backend: String,
    /// Annotation as KEY=VALUE; repeatable
    #[arg(long, value_name = "PAIR")]
    annotation: Vec<String>,
    #[command(flatten)]
    common: CommonFlags,
}

pub(super) async fn run_ingress(
    session: &Session,
    args: IngressArgs,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let names = args.common.names(session).await?;
    let flags = IngressFlags {
        class: &args.class,
        rules: &args.rule,
        default_backend: &args.default_backend,
        annotations: &args.annotation,
    };
    let made = service::ingress(names, &args.name, flags);
    args.common.generate(session, made, "ingress", output).await
}
