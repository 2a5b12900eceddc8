//! The same requests to Kubernetes' own kube-apiserver and to ours, and what differs between the answers (`hack/differential`).
//!
//! [`fields`], [`protocol`] and [`apply`] make requests (pure, always the same with one seed), [`replay`] has those of clients of others; [`case`] sends
//! them; [`compare`] and [`owners`] say what differs; [`table`] has the reasons.

mod apply;
mod case;
mod change;
mod compare;
mod fields;
mod markers;
mod open_api;
mod owners;
mod protocol;
mod replay;
mod report;
mod resource;
mod servers;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use bytes::Bytes;
use clap::Parser;
use futures_util::StreamExt as _;
use http::{Method, Request, header};
use proto_client::{Client, ClientError};
use serde_json::{Value as Json, json};

use crate::case::{Answer, Case};
use crate::open_api::OpenApi;
use crate::report::Report;
use crate::resource::{BOTH, NAMESPACE, Resource, Whose, get_json};
use crate::servers::{Programs, Servers};
use crate::table::Table;

/// The name of the objects that are updated.
const LIVE: &str = "live";
/// Objects that lists are cut into pages of.
const CHUNKED: usize = 5;
/// Cases that are under way at once.
const AT_ONCE: usize = 16;

/// Compares two API servers.
#[derive(Debug, Parser)]
struct Flags {
    /// Kubernetes' own server.
    #[arg(long)]
    kube_apiserver: PathBuf,
    /// The store of Kubernetes' server.
    #[arg(long, default_value = "etcd")]
    etcd: PathBuf,
    /// Our server.
    #[arg(long)]
    orch_apiserver: PathBuf,
    /// The table of explained differences.
    #[arg(long)]
    table: PathBuf,
    /// Plurals of the resources to compare, with commas, `gadgets` for the custom resource, and `recorded` for the requests of other clients; all without it.
    #[arg(long, value_delimiter = ',')]
    kinds: Vec<String>,
    /// Whether only server-side apply is compared.
    #[arg(long)]
    applies_only: bool,
    /// What the applies by chance follow from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where differential.md and unexplained.tsv are written.
    #[arg(long)]
    out: PathBuf,
}

impl Flags {
    fn compares(&self, what: &str) -> bool {
        self.kinds.is_empty() || self.kinds.iter().any(|one| one == what)
    }
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let flags = Flags::parse();
    let text = std::fs::read_to_string(&flags.table);
    let table = Table::parse(&text.with_context(|| flags.table.display().to_string())?)
        .with_context(|| flags.table.display().to_string())?;
    let programs = Programs {
        kube_apiserver: flags.kube_apiserver.clone(),
        etcd: flags.etcd.clone(),
        orch_apiserver: flags.orch_apiserver.clone(),
    };
    // Cancel safe: the programs end when what holds them is dropped.
    let report = tokio::select! {
        signal = proto_daemon::drain::stop_signal() => bail!("ended by {}", signal?),
        report = run(&flags, &programs, &table) => report?,
    };
    println!("{}", report.summary());
    Ok(if report.unexplained() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn run(flags: &Flags, programs: &Programs, table: &Table) -> Result<Report> {
    let servers = Servers::start(programs).await?;
    let clients = &servers.clients;
    let api = apply::with_custom(OpenApi::new(&get_json(&clients[0], "/openapi/v2").await?));
    let namespace = json!({"metadata": {"name": NAMESPACE}});
    for client in clients {
        write(client, Method::POST, "/api/v1/namespaces", &namespace).await?;
    }
    let (resources, mut left_out) = Resource::all(&clients[0], &api).await?;
    let mut run = Run { clients, api: &api, table, report: Report::default() };
    for resource in &resources {
        if flags.compares(&resource.plural) {
            if let Err(error) = run.compare(resource, flags).await {
                println!("{}: {error:#}", resource.full_name());
                run.report.fail();
            }
            println!("{}: {}", resource.full_name(), run.report.summary());
        }
    }
    if flags.compares("gadgets") {
        run.compare_custom_applies(flags.seed).await?;
        println!("gadgets: {}", run.report.summary());
    }
    if flags.compares("recorded") && !flags.applies_only {
        run.replay().await?;
        println!("recorded: {}", run.report.summary());
    }
    let report = run.report;
    left_out.extend(apply::NOT_APPLIED.map(|plural| format!("apply of {plural}")));
    std::fs::create_dir_all(&flags.out)?;
    report.write_unexplained(&flags.out.join("unexplained.tsv"))?;
    report.write_page(&flags.out.join("differential.md"), table, &left_out)?;
    servers.stop().await?;
    Ok(report)
}

struct Run<'a> {
    clients: &'a [Client; 2],
    api: &'a OpenApi,
    table: &'a Table,
    report: Report,
}

impl Run<'_> {
    async fn compare(&mut self, resource: &Resource, flags: &Flags) -> Result<()> {
        if !flags.applies_only {
            self.compare_requests(resource).await?;
        }
        if resource.is_stored && !apply::NOT_APPLIED.contains(&resource.plural.as_str()) {
            self.compare_applies(resource, flags.seed).await?;
        }
        Ok(())
    }

    /// Compares all but server-side apply.
    async fn compare_requests(&mut self, resource: &Resource) -> Result<()> {
        let mut cases = fields::creates(self.api, resource);
        cases.extend(protocol::bodies(resource));
        if !resource.is_stored {
            cases.extend(protocol::queries(resource));
            self.send(cases, AT_ONCE).await;
            return Ok(());
        }
        cases.extend(protocol::names(resource));
        self.make(resource).await?;
        let live = self.live(resource).await?;
        cases.extend(fields::updates(self.api, resource, &live));
        cases.extend(protocol::json_patches(resource));
        cases.extend(protocol::queries(resource));
        cases.extend(protocol::identities(resource, &live));
        cases.extend(protocol::deletions(resource, &live));
        cases.extend(protocol::lists(resource));
        if resource.subresources.iter().any(|name| name == "scale") {
            cases.extend(protocol::scales(resource, &self.shown(resource, "/scale").await?));
        }
        self.send(cases, AT_ONCE).await;
        if resource.has_any_name() {
            self.send(protocol::real_deletions(resource), 1).await;
        }
        self.remove(resource).await
    }

    /// Makes the object that is updated, and those of pages.
    async fn make(&self, resource: &Resource) -> Result<()> {
        for whose in BOTH {
            let (client, path) = (self.client(whose), resource.path(whose));
            write(client, Method::POST, &path, &resource.object(whose, LIVE)).await?;
            for number in 0..CHUNKED {
                if resource.has_any_name() {
                    let mut object = resource.object(whose, &format!("page-{number}"));
                    object["metadata"]["labels"] = json!({"chunk": "yes"});
                    write(client, Method::POST, &path, &object).await?;
                }
            }
        }
        Ok(())
    }

    /// Removes what [`Run::make`] has made: limits and webhooks must not take part in what follows.
    async fn remove(&self, resource: &Resource) -> Result<()> {
        let pages = (0..CHUNKED).map(|number| format!("page-{number}"));
        for name in std::iter::once(resource.name(LIVE).to_owned()).chain(pages) {
            for whose in BOTH {
                let path = format!("{}?gracePeriodSeconds=0", resource.path_of(whose, &name));
                // Some are gone, or were never made.
                let _ = write(self.client(whose), Method::DELETE, &path, &json!({})).await;
            }
        }
        Ok(())
    }

    fn client(&self, whose: Whose) -> &Client {
        let [theirs, ours] = self.clients;
        match whose {
            Whose::Theirs => theirs,
            Whose::Ours => ours,
        }
    }

    /// The object as each server has it, once the server itself writes its status no more.
    async fn live(&self, resource: &Resource) -> Result<[Json; 2]> {
        let mut shown = self.shown(resource, "").await?;
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let again = self.shown(resource, "").await?;
            if again == shown {
                break;
            }
            shown = again;
        }
        Ok(shown)
    }

    async fn shown(&self, resource: &Resource, below: &str) -> Result<[Json; 2]> {
        let path = |whose| format!("{}{below}", resource.path_of(whose, resource.name(LIVE)));
        let theirs = get_json(self.client(Whose::Theirs), &path(Whose::Theirs)).await?;
        Ok([theirs, get_json(self.client(Whose::Ours), &path(Whose::Ours)).await?])
    }

    /// Sends cases to both servers and counts the answers in the order of the cases.
    async fn send(&mut self, cases: Vec<Case>, at_once: usize) {
        let clients = self.clients;
        let mut answered = futures_util::stream::iter(cases)
            .map(|case| async move {
                let theirs = case::send(&clients[0], Whose::Theirs, &case);
                let ours = case::send(&clients[1], Whose::Ours, &case);
                let answers: (Vec<Answer>, Vec<Answer>) = tokio::join!(theirs, ours);
                (case, [answers.0, answers.1])
            })
            .buffered(at_once);
        while let Some((case, answers)) = answered.next().await {
            self.report.count(self.api, self.table, &case, &answers);
        }
    }
}

/// Writes something that has to be there for what follows.
async fn write(client: &Client, method: Method, path: &str, object: &Json) -> Result<()> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::CONTENT_TYPE, case::JSON)
        .body(Bytes::from(object.to_string()))?;
    match client.call(request).await {
        Ok(_) => Ok(()),
        Err(error @ ClientError::Api { .. }) => Err(anyhow!("{path}: {}", error.server_message())),
        Err(error) => Err(error.into()),
    }
}
