//! Both controller managers on the same objects: each kind is created, changed and deleted, and what is there in the end is compared.

mod course;
mod snapshot;

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use proto_client::dynamic::get_json;
use proto_client::{Client, ListParams, request};
use serde_json::Value;
use tokio::process::Child;

use crate::plane::{Plane, Side};
use crate::{Programs, Report};
use snapshot::{Difference, Snapshot};

/// Hollow nodes on which the pods run.
const NODES: usize = 3;
/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// How long nothing may have changed until a stage is over: longer than the back-off of a failed pod.
const REST: Duration = Duration::from_secs(30);
/// How long a stage may take.
const PATIENCE: Duration = Duration::from_secs(300);
/// Resources that are compared, by group and version.
const COMPARED: [(&str, &[&str]); 3] = [
    (
        "/api/v1",
        &[
            "namespaces",
            "nodes",
            "pods",
            "services",
            "endpoints",
            "configmaps",
            "serviceaccounts",
            "replicationcontrollers",
            "resourcequotas",
        ],
    ),
    (
        "/apis/apps/v1",
        &["deployments", "replicasets", "statefulsets", "daemonsets", "controllerrevisions"],
    ),
    ("/apis/batch/v1", &["jobs"]),
];
/// Resources that 1.20 has in a version that ended with 1.25. Our API server serves both here; with that of 1.20 our controllers leave them alone.
const BETA: [(&str, &str); 2] =
    [("policy", "poddisruptionbudgets"), ("discovery", "endpointslices")];
/// Their kinds.
const BETA_KINDS: [&str; 2] = ["PodDisruptionBudget ", "EndpointSlice "];
/// What controllers write of an object, where the API servers and with them the defaults differ.
const WRITTEN: [&str; 7] = [
    ".status",
    ".metadata.ownerReferences",
    ".metadata.finalizers",
    ".metadata.labels",
    ".subsets",
    ".ports",
    ".endpoints[].conditions",
];
/// Why what differs may differ: object, field, reason, each a prefix.
const EXPLAINED: &str = include_str!("controllers/explained.tsv");

/// What is compared.
#[derive(clap::Args)]
pub struct Wanted {
    /// Leaves out the run of Kubernetes' controller manager with its own API server
    #[arg(long)]
    one_server: bool,
    /// Runs our controller manager with Kubernetes' API server as well
    #[arg(long, conflicts_with = "one_server")]
    ours_with_theirs: bool,
}

/// Both controller managers with our API server, and theirs with its own.
pub async fn run(wanted: &Wanted, programs: &Programs, dir: &Path) -> Result<Report> {
    programs.theirs()?;
    let ours = follow_course(Side::Ours, Side::Ours, programs, dir).await?;
    let theirs = follow_course(Side::Theirs, Side::Ours, programs, dir).await?;
    let mut report = Report { text: String::new(), faults: 0 };
    let differences = snapshot::compare(&ours, &theirs);
    tell(&mut report, "Both with orch-apiserver", &theirs, &differences)?;
    if !wanted.one_server {
        let theirs = follow_course(Side::Theirs, Side::Theirs, programs, dir).await?;
        let mut differences = snapshot::compare(&ours, &theirs);
        differences
            .retain(|d| d.path.is_empty() || WRITTEN.iter().any(|at| d.path.starts_with(at)));
        tell(&mut report, "Each with its own API server", &theirs, &differences)?;
        if wanted.ours_with_theirs {
            let ours = follow_course(Side::Ours, Side::Theirs, programs, dir).await?;
            let mut differences = snapshot::compare(&ours, &theirs);
            differences.retain(is_of_both_releases);
            tell(&mut report, "Both with kube-apiserver", &theirs, &differences)?;
        }
    }
    Ok(report)
}

fn is_of_both_releases(difference: &Difference) -> bool {
    !BETA_KINDS.iter().any(|kind| difference.object.starts_with(kind))
}

/// Adds a table of what differs, and counts what has no reason.
fn tell(
    report: &mut Report,
    which: &str,
    theirs: &Snapshot,
    differences: &[Difference],
) -> Result<()> {
    let objects: usize = theirs.values().map(Vec::len).sum();
    let (text, count) = (&mut report.text, differences.len());
    writeln!(text, "{which}: {objects} objects, {count} differences.\n")?;
    if differences.is_empty() {
        return Ok(());
    }
    writeln!(text, "| object | field | orch | kube | why |\n|---|---|---|---|---|")?;
    for Difference { object, path, ours, theirs } in differences {
        let why = reason(object, path);
        report.faults += usize::from(why.is_none());
        let (ours, theirs, why) = (short(ours), short(theirs), why.unwrap_or("**not explained**"));
        writeln!(text, "| {object} | {path} | {ours} | {theirs} | {why} |")?;
    }
    writeln!(text)?;
    Ok(())
}

fn reason(object: &str, path: &str) -> Option<&'static str> {
    EXPLAINED.lines().find_map(|line| {
        let mut fields = line.split('\t');
        let (of, at, why) = (fields.next()?, fields.next()?, fields.next()?);
        (object.starts_with(of) && path.starts_with(at)).then_some(why)
    })
}

fn short(text: &str) -> String {
    let text = text.replace('|', "\\|");
    if text.chars().count() <= 120 {
        text
    } else {
        text.chars().take(117).chain("...".chars()).collect()
    }
}

async fn follow_course(
    manager: Side,
    server: Side,
    programs: &Programs,
    dir: &Path,
) -> Result<Snapshot> {
    let dir = dir.join(format!("{manager}-with-{server}"));
    let plane = Plane::start(server, programs, &dir).await?;
    let mut running = [
        (manager.program("controller-manager"), plane.start_controller_manager(manager)?),
        (server.program("scheduler"), plane.start_scheduler(server)?),
        ("orchlet".to_owned(), plane.start_hollow_nodes(NODES)?),
    ];
    eprintln!("{manager}-controller-manager with {server}-apiserver");
    course::create(&plane.client, beta_version(server)).await?;
    settle(&plane, server, &mut running).await?;
    for stage in course::STAGES {
        eprintln!("  {}", stage.name);
        course::change(&plane.client, stage).await?;
        settle(&plane, server, &mut running).await?;
    }
    let objects = list_all(&plane.client, server).await;
    drop(running);
    plane.end().await?;
    Ok(snapshot::snapshot(&objects?))
}

fn beta_version(server: Side) -> &'static str {
    if server == Side::Ours { "v1" } else { "v1beta1" }
}

/// Waits until nothing changes any more.
async fn settle(plane: &Plane, server: Side, running: &mut [(String, Child)]) -> Result<()> {
    let began = Instant::now();
    let (mut last, mut since) = (Snapshot::new(), Instant::now());
    loop {
        for (name, child) in running.iter_mut() {
            ensure!(child.try_wait()?.is_none(), "{name} has ended: {}", plane.end_of_log(name));
        }
        let now = snapshot::snapshot(&list_all(&plane.client, server).await?);
        if now != last {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() > REST {
            return Ok(());
        }
        ensure!(began.elapsed() < PATIENCE, "the objects do not come to rest");
        tokio::time::sleep(LOOK).await;
    }
}

/// All objects that are compared, each with its kind.
async fn list_all(client: &Client, server: Side) -> Result<Vec<Value>> {
    let stable = COMPARED.into_iter().flat_map(|(group, resources)| {
        resources.iter().map(move |resource| format!("{group}/{resource}"))
    });
    let beta = BETA.into_iter().map(|(group, resource)| {
        format!("/apis/{}/{}/{resource}", client.names().group(group), beta_version(server))
    });
    let mut objects = Vec::new();
    for path in stable.chain(beta) {
        let list = get_json(client, request::list(path, &ListParams::default())).await?;
        let kind = list["kind"].as_str().unwrap_or_default().trim_end_matches("List").to_owned();
        for item in list["items"].as_array().into_iter().flatten() {
            let mut item = item.clone();
            item["kind"] = kind.clone().into();
            objects.push(item);
        }
    }
    Ok(objects)
}
