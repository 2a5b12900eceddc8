//! `create`: objects of files, and objects from flags.

pub(crate) mod access;
mod cluster;
mod configuration;
mod service;
mod token;
mod workload;

use std::process::ExitCode;

use clap::{Subcommand, ValueEnum};
use orchctl_client::manifests::{Manifest, ReadManifests};
use orchctl_client::{CommandError, Output, Session};
use orchctl_plans::{ArgumentError, apply};
use proto_api::names::Names;
use proto_api::yaml;
use proto_client::{WriteParams, request};
use serde_json::{Value, json};

use crate::edit;
use crate::file_selection::FileSelection;
use crate::raw::{self, Body};
use crate::record::RecordFlags;
use crate::requests::{self, Place, WriteOptions};
use crate::results::ResultFlags;

/// What the server does about unknown and duplicate fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Validation {
    /// It refuses the object.
    #[value(alias = "true")]
    Strict,
    /// It warns.
    Warn,
    /// It drops them.
    #[value(alias = "false")]
    Ignore,
}

/// The API's word.
pub fn validation(validation: Validation) -> &'static str {
    match validation {
        Validation::Strict => "Strict",
        Validation::Warn => "Warn",
        Validation::Ignore => "Ignore",
    }
}

/// Flags of the command.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Part>,
    #[command(flatten)]
    selection: FileSelection,
    /// Send the file to this path of the server, and print the answer as it is
    #[arg(long, value_name = "PATH")]
    raw: Option<String>,
    /// Edit the objects of files before they are created
    #[arg(long)]
    edit: bool,
    #[command(flatten)]
    common: CommonFlags,
}

/// Flags of everything that is created.
#[derive(clap::Args, Debug)]
pub struct CommonFlags {
    #[command(flatten)]
    record: RecordFlags,
    /// Record the object for later applies
    #[arg(long)]
    save_config: bool,
    /// What to do about unknown fields
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_value = "strict", default_missing_value = "strict")]
    validate: Validation,
    /// Who writes
    #[arg(long, value_name = "NAME", default_value = "kubectl-create")]
    field_manager: String,
    #[command(flatten)]
    results: ResultFlags,
}

/// Objects from flags.
#[derive(Subcommand, Debug)]
enum Part {
    /// A Deployment
    #[command(alias = "deploy")]
    Deployment(workload::DeploymentArgs),
    /// A Job, also one of a CronJob
    Job(workload::JobArgs),
    /// A CronJob
    #[command(alias = "cj")]
    Cronjob(workload::CronJobArgs),
    /// A ConfigMap
    #[command(alias = "cm")]
    Configmap(configuration::ConfigMapArgs),
    /// A Secret
    #[command(subcommand)]
    Secret(configuration::SecretPart),
    /// A Namespace
    #[command(alias = "ns")]
    Namespace(cluster::NamespaceArgs),
    /// A ServiceAccount
    #[command(alias = "sa")]
    Serviceaccount(cluster::ServiceAccountArgs),
    /// A token of a ServiceAccount
    Token(token::Args),
    /// A ResourceQuota
    #[command(alias = "resourcequota")]
    Quota(cluster::QuotaArgs),
    /// A PriorityClass
    #[command(alias = "pc")]
    Priorityclass(cluster::PriorityClassArgs),
    /// A PodDisruptionBudget
    #[command(alias = "pdb")]
    Poddisruptionbudget(cluster::BudgetArgs),
    /// A Service
    #[command(subcommand, alias = "svc")]
    Service(service::ServicePart),
    /// An Ingress
    #[command(alias = "ing")]
    Ingress(service::IngressArgs),
    /// A Role
    Role(access::RoleArgs),
    /// A ClusterRole
    Clusterrole(access::ClusterRoleArgs),
    /// A RoleBinding
    Rolebinding(access::BindingArgs),
    /// A ClusterRoleBinding
    Clusterrolebinding(access::ClusterBindingArgs),
}

impl Args {
    /// Whether a role is given to users: `--user` has another meaning then.
    pub fn names_users(&self) -> bool {
        match &self.command {
            Some(Part::Rolebinding(args)) => args.subjects.names_users(),
            Some(Part::Clusterrolebinding(args)) => args.subjects.names_users(),
            _ => false,
        }
    }
}

/// Runs the command.
///
/// # Errors
/// When an object cannot be created.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    if let Some(path) = &args.raw {
        if !args.selection.selector.is_empty() {
            let why = "--raw and --selector (-l) are mutually exclusive";
            return Err(CommandError::with_text(why));
        }
        raw::check_results(&args.common.results)?;
        let body = raw::read_body(path, args.selection.files(), Body::Required, output)?;
        let params = WriteParams::default();
        let request = request::create(path.clone(), &params, request::JSON, body);
        return raw::send(session, request, output).await;
    }
    match args.command {
        None => run_files(session, args, output).await,
        Some(part) => run_part(session, part, output).await,
    }
}

async fn run_part(
    session: &Session,
    part: Part,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    match part {
        Part::Deployment(args) => workload::run_deployment(session, args, output).await,
        Part::Job(args) => workload::run_job(session, args, output).await,
        Part::Cronjob(args) => workload::run_cron_job(session, args, output).await,
        Part::Configmap(args) => configuration::run_config_map(session, args, output).await,
        Part::Secret(part) => configuration::run_secret(session, part, output).await,
        Part::Namespace(args) => cluster::run_namespace(session, args, output).await,
        Part::Serviceaccount(args) => cluster::run_service_account(session, args, output).await,
        Part::Token(args) => token::run(session, args, output).await,
        Part::Quota(args) => cluster::run_quota(session, args, output).await,
        Part::Priorityclass(args) => cluster::run_priority_class(session, args, output).await,
        Part::Poddisruptionbudget(args) => cluster::run_budget(session, args, output).await,
        Part::Service(part) => service::run_service(session, part, output).await,
        Part::Ingress(args) => service::run_ingress(session, args, output).await,
        Part::Role(args) => access::run_role(session, args, output).await,
        Part::Clusterrole(args) => access::run_cluster_role(session, args, output).await,
        Part::Rolebinding(args) => access::run_binding(session, args, output).await,
        Part::Clusterrolebinding(args) => access::run_cluster_binding(session, args, output).await,
    }
}

async fn run_files(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    if args.selection.is_empty() {
        return Err(CommandError::with_text(
            "name what to create, or files with -f: `orchctl create --help` lists the kinds",
        ));
    }
    let ReadManifests { manifests, mut errors } = args.selection.read_each(session, output).await?;
    if manifests.is_empty() && errors.is_empty() {
        return Err(CommandError::with_text("no objects passed to create"));
    }
    for manifest in manifests {
        let made = if args.edit {
            create_edited(session, &args.common, &manifest, output).await
        } else {
            create_object(session, &args.common, &manifest, output).await
        };
        if let Err(error) = made {
            errors.push(requests::with_source(error, "creating", &manifest.source));
        }
    }
    CommandError::collect(errors).map(|()| ExitCode::SUCCESS)
}

async fn create_object(
    session: &Session,
    common: &CommonFlags,
    manifest: &Manifest,
    output: &mut Output,
) -> Result<(), CommandError> {
    let place = Place::of_new(session, manifest).await?;
    let object = place.object_of(manifest);
    common.create(session, place, object, output).await
}

/// Creates what the user makes of an object; nothing where that is left as it is. The text is kept in a file if it is no object that the server takes.
async fn create_edited(
    session: &Session,
    common: &CommonFlags,
    manifest: &Manifest,
    output: &mut Output,
) -> Result<(), CommandError> {
    let text = yaml::to_string(&manifest.object);
    let path = edit::in_editor(session, &text, "yaml").await?;
    let keep = |why: &str| edit::error_with_copy(why, &path);
    let edited = std::fs::read_to_string(&path).map_err(|error| keep(&error.to_string()))?;
    let object: Value = yaml::parse(&edited)
        .map_err(|error| keep(&format!("the edited text cannot be read: {error}")))?;
    if object.is_null() || object == manifest.object {
        edit::discard(&path);
        writeln!(output.err, "Edit cancelled, no changes made.")?;
        return Ok(());
    }
    let edited = Manifest { source: manifest.source.clone(), object };
    let made = create_object(session, common, &edited, output).await;
    made.map_err(|error| keep(&requests::message(&error)))?;
    edit::discard(&path);
    Ok(())
}

impl CommonFlags {
    /// Creates an object, and prints the result.
    async fn create(
        &self,
        session: &Session,
        mut place: Place,
        mut object: Value,
        output: &mut Output,
    ) -> Result<(), CommandError> {
        if self.save_config {
            object = apply::recorded(session.names().await?, &object);
        }
        // No part of what is applied: a later apply keeps it.
        self.record.annotate(session, &mut object, output).await?;
        let made = if self.results.sends() {
            let write = WriteOptions {
                validation: Some(validation(self.validate)),
                ..self.results.write(&self.field_manager)?
            };
            requests::create(session, place.collection(), &object, &write).await?
        } else {
            object
        };
        if let Some(name) = made.pointer("/metadata/name").and_then(Value::as_str) {
            name.clone_into(&mut place.name); // the server may have made the name
        }
        self.results.print_result(output, &place, &made, "created")?;
        output.out.flush()?;
        Ok(())
    }

    /// Creates an object of flags. `failing` begins the text of an error, unless it is empty.
    async fn generate(
        &self,
        session: &Session,
        object: Result<Value, ArgumentError>,
        failing: &str,
        output: &mut Output,
    ) -> Result<ExitCode, CommandError> {
        let object = object.map_err(requests::argument)?;
        self.generate_object(session, object, failing, output).await
    }

    async fn generate_object(
        &self,
        session: &Session,
        mut object: Value,
        failing: &str,
        output: &mut Output,
    ) -> Result<ExitCode, CommandError> {
        let place = self.place(session, &object).await?;
        // A manifest says its namespace only where the command line does.
        if let (Some(namespace), true) =
            (&place.namespace, session.names_namespace() || self.results.sends())
            && let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut)
        {
            metadata.insert("namespace".into(), json!(namespace));
        }
        let made = self.create(session, place, object, output).await;
        match made {
            Err(error) if !failing.is_empty() && requests::code(&error).is_some() => {
                Err(CommandError::with_text(format!(
                    "failed to create {failing}: {}",
                    requests::message(&error)
                )))
            }
            other => other.map(|()| ExitCode::SUCCESS),
        }
    }

    /// Where the object belongs. Without a request to the server the kinds that the program makes are known.
    async fn place(&self, session: &Session, object: &Value) -> Result<Place, CommandError> {
        let text =
            |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (api_version, kind, name) =
            (text("/apiVersion"), text("/kind"), text("/metadata/name"));
        if self.results.sends() {
            let resource = session.discovery().await?.served_kind(api_version, kind)?.clone();
            let namespace =
                if resource.namespaced { Some(session.namespace()?.to_owned()) } else { None };
            return Ok(Place { resource, namespace, name: name.to_owned() });
        }
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let namespaced =
            !matches!(kind, "Namespace" | "PriorityClass" | "ClusterRole" | "ClusterRoleBinding");
        let resource = orchctl_client::ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            singular: kind.to_lowercase(),
            kind: kind.to_owned(),
            namespaced,
            ..orchctl_client::ApiResource::default()
        };
        let namespace = if namespaced && session.names_namespace() {
            Some(session.namespace()?.to_owned())
        } else {
            None
        };
        Ok(Place { resource, namespace, name: name.to_owned() })
    }

    /// The server's names; those of the default profile if the server is not contacted.
    async fn names(&self, session: &Session) -> Result<&'static Names, CommandError> {
        match session.names().await {
            Err(_) if !self.results.sends() => {
                Ok(Names::new(proto_api::names::Profile::Kubernetes))
            }
            names => names,
        }
    }
}
