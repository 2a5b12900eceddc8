//! `expose` and `autoscale`: a Service and an autoscaler for a workload.

use std::process::ExitCode;

use orchctl_client::{CommandError, Output, Session};
use orchctl_plans::apply;
use orchctl_plans::generate::cluster::{self, ScaleTarget};
use orchctl_plans::generate::service::{self, ExposeFlags};
use serde_json::{Value, json};

use crate::overrides::OverrideFlags;
use crate::record::RecordFlags;
use crate::requests::{self, Place};
use crate::results::ResultFlags;
use crate::targets::{self, TargetFlags, TargetObject};

/// Flags of `expose`.
#[derive(clap::Args, Debug)]
pub struct ExposeArgs {
    /// TYPE NAME or TYPE/NAME
    #[arg(value_name = "OBJECT")]
    objects: Vec<String>,
    #[command(flatten)]
    files: orchctl_client::manifests::FileFlags,
    /// Name of the Service; that of the object if not set
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    name: String,
    /// Ports, separated by commas; those of the object if not set
    #[arg(long, value_name = "PORT", default_value = "", hide_default_value = true)]
    port: String,
    /// Port of the pods, or its name
    #[arg(long, value_name = "PORT", default_value = "", hide_default_value = true)]
    target_port: String,
    /// TCP, UDP or SCTP
    #[arg(long, value_name = "PROTOCOL", default_value = "", hide_default_value = true)]
    protocol: String,
    /// ClusterIP, NodePort, LoadBalancer or ExternalName
    #[arg(long = "type", value_name = "TYPE", default_value = "", hide_default_value = true)]
    kind: String,
    /// Labels of the pods; those of the object if not set
    #[arg(long, value_name = "LABELS", default_value = "", hide_default_value = true)]
    selector: String,
    /// Labels of the Service; those of the object if not set
    #[arg(long, short = 'l', value_name = "LABELS", default_value = "", hide_default_value = true)]
    labels: String,
    /// Address of the Service, or None
    #[arg(long, value_name = "ADDRESS", default_value = "", hide_default_value = true)]
    cluster_ip: String,
    /// Address from outside
    #[arg(long, value_name = "ADDRESS", default_value = "", hide_default_value = true)]
    external_ip: String,
    /// ClientIP or None
    #[arg(long, value_name = "KIND", default_value = "", hide_default_value = true)]
    session_affinity: String,
    #[command(flatten)]
    overrides: OverrideFlags,
    /// Record the object for later applies
    #[arg(long)]
    save_config: bool,
    /// Who writes
    #[arg(long, value_name = "NAME", default_value = "kubectl-expose")]
    field_manager: String,
    #[command(flatten)]
    record: RecordFlags,
    #[command(flatten)]
    results: ResultFlags,
}

/// Runs `expose`.
///
/// # Errors
/// When the object has no pods or ports, or the Service cannot be made.
pub async fn run_expose(
    session: &Session,
    args: ExposeArgs,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let flags = TargetFlags { files: args.files.clone(), ..TargetFlags::default() };
    let wanted = ExposeFlags {
        name: &args.name,
        port: &args.port,
        target_port: &args.target_port,
        protocol: &args.protocol,
        kind: &args.kind,
        selector: &args.selector,
        labels: &args.labels,
        cluster_ip: &args.cluster_ip,
        external_ip: &args.external_ip,
        session_affinity: &args.session_affinity,
    };
    for TargetObject { place, object } in
        targets::read(session, &flags, &args.objects, output).await?
    {
        let kinds = ["Pod", "Service", "ReplicationController", "Deployment", "ReplicaSet"];
        if !kinds.contains(&place.resource.kind.as_str()) {
            return Err(CommandError::with_text(format!(
                "cannot expose a {}",
                place.resource.kind
            )));
        }
        let made = service::exposed(&object, wanted).map_err(requests::argument)?;
        let made = args.overrides.apply(session, made).await?;
        let how = Creation {
            results: &args.results,
            manager: &args.field_manager,
            record: &args.record,
            is_recorded: args.save_config,
        };
        create(session, &place, "exposed", made, how, output).await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// How an object is created.
#[derive(Clone, Copy)]
pub(crate) struct Creation<'a> {
    pub(crate) results: &'a ResultFlags,
    /// Who writes.
    pub(crate) manager: &'a str,
    pub(crate) record: &'a RecordFlags,
    /// Whether the object is recorded for later applies.
    pub(crate) is_recorded: bool,
}

/// Creates an object next to the one at `beside`.
pub(crate) async fn create(
    session: &Session,
    beside: &Place,
    done: &str,
    object: Value,
    how: Creation<'_>,
    output: &mut Output,
) -> Result<Place, CommandError> {
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
    let resource =
        session.discovery().await?.served_kind(text("apiVersion"), text("kind"))?.clone();
    let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let place = Place { resource, namespace: beside.namespace.clone(), name: name.to_owned() };
    let object = send(session, &place, object, how, output).await?;
    how.results.print_result(output, &place, &object, done)?;
    Ok(place)
}

/// Creates an object at its place; returns what the server made of it, or the object itself where nothing is sent.
pub(crate) async fn send(
    session: &Session,
    place: &Place,
    mut object: Value,
    how: Creation<'_>,
    output: &mut Output,
) -> Result<Value, CommandError> {
    // A manifest says its namespace only where the command line does.
    if let (true, Some(namespace), Some(metadata)) = (
        how.results.sends() || session.names_namespace(),
        &place.namespace,
        object.get_mut("metadata").and_then(Value::as_object_mut),
    ) {
        metadata.insert("namespace".into(), json!(namespace));
    }
    if how.is_recorded {
        object = apply::recorded(session.names().await?, &object);
    }
    how.record.annotate(session, &mut object, output).await?;
    if !how.results.sends() {
        return Ok(object);
    }
    let write = how.results.write(how.manager)?;
    requests::create(session, place.collection(), &object, &write).await
}

/// Flags of `autoscale`.
#[derive(clap::Args, Debug)]
pub struct AutoscaleArgs {
    /// TYPE NAME or TYPE/NAME
    #[arg(value_name = "OBJECT")]
    objects: Vec<String>,
    #[command(flatten)]
    files: orchctl_client::manifests::FileFlags,
    /// Fewest replicas; the server's default if not set
    #[arg(long, value_name = "COUNT", default_value_t = -1, allow_negative_numbers = true)]
    min: i32,
    /// Most replicas
    #[arg(long, value_name = "COUNT", required = true)]
    max: i32,
    /// Wanted use of the requested CPU, in percent; the server's default if not set
    #[arg(long, value_name = "PERCENT", default_value_t = -1, allow_negative_numbers = true)]
    cpu_percent: i32,
    /// Name of the autoscaler; that of the object if not set
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    name: String,
    /// Record the object for later applies
    #[arg(long)]
    save_config: bool,
    /// Who writes
    #[arg(long, value_name = "NAME", default_value = "kubectl-autoscale")]
    field_manager: String,
    #[command(flatten)]
    record: RecordFlags,
    #[command(flatten)]
    results: ResultFlags,
}

/// Runs `autoscale`.
///
/// # Errors
/// When the bounds are wrong or the autoscaler cannot be made.
pub async fn run_autoscale(
    session: &Session,
    args: AutoscaleArgs,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let flags = TargetFlags { files: args.files.clone(), ..TargetFlags::default() };
    for TargetObject { place, .. } in targets::read(session, &flags, &args.objects, output).await? {
        let api_version = place.resource.api_version();
        let scaled = ScaleTarget {
            api_version: &api_version,
            kind: &place.resource.kind,
            name: &place.name,
            min: Some(args.min).filter(|min| *min > 0),
            max: args.max,
            cpu_percent: Some(args.cpu_percent).filter(|percent| *percent >= 0),
        };
        let name = if args.name.is_empty() { &place.name } else { &args.name };
        let made = cluster::autoscaler(name, &scaled).map_err(requests::argument)?;
        let how = Creation {
            results: &args.results,
            manager: &args.field_manager,
            record: &args.record,
            is_recorded: args.save_config,
        };
        create(session, &place, "autoscaled", made, how, output).await?;
    }
    Ok(ExitCode::SUCCESS)
}
