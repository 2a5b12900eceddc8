//! `cluster-info dump`: objects and logs for a diagnosis, on standard output or as files.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use orchctl_client::{CommandError, LineReader, Output, Session};
use orchctl_printers::{PrintFormat, objects};
use proto_api::{Collection, uri};
use proto_client::ListParams;
use proto_client::request;
use proto_daemon::private_files;
use serde_json::Value;

use crate::print_flags::PrintFlags;

/// Objects of one request.
const PAGE: u32 = 500;
/// Most pages of a list.
const PAGES_MAX: usize = 10_000;
/// Files of objects may have secrets in their environments: they are the user's alone.
const FILE_MODE: u32 = 0o600;

/// What is written of a namespace: file, group and resource.
const LISTS: [(&str, &str, &str); 7] = [
    ("events", "", "events"),
    ("replication-controllers", "", "replicationcontrollers"),
    ("services", "", "services"),
    ("daemonsets", "apps", "daemonsets"),
    ("deployments", "apps", "deployments"),
    ("replicasets", "apps", "replicasets"),
    ("pods", "", "pods"),
];

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Directory for files; without it or with - everything goes to standard output
    #[arg(long, value_name = "DIR")]
    output_directory: Option<PathBuf>,
    /// Namespaces to write, instead of the current one and that of the system
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    namespaces: Vec<String>,
    /// Write all namespaces
    #[arg(long, short = 'A')]
    all_namespaces: bool,
    /// How objects are printed
    #[command(flatten)]
    print: PrintFlags,
}

/// Where everything goes.
struct Dump<'a> {
    session: &'a Session,
    print: PrintFlags,
    form: PrintFormat,
    /// None for standard output.
    directory: Option<PathBuf>,
}

/// Runs the command.
pub(super) async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<(), CommandError> {
    let mut print = args.print;
    print.output.get_or_insert_with(|| "json".to_owned());
    let directory = args.output_directory.filter(|path| path.as_os_str() != "-");
    let dump = Dump { session, form: print.form()?, print, directory };
    let nodes = dump.list("", "nodes", None).await?;
    dump.print("nodes", nodes, output)?;
    let namespaces = if args.all_namespaces {
        let list = dump.list("", "namespaces", None).await?;
        let names = objects::list_at(&list, "/items").iter();
        names.map(|one| objects::name(one).to_owned()).collect()
    } else if args.namespaces.is_empty() {
        let system = session.names().await?.system_namespace().to_owned();
        let current = session.namespace()?.to_owned();
        if system == current { vec![system] } else { vec![system, current] }
    } else {
        args.namespaces
    };
    for namespace in &namespaces {
        dump.namespace(namespace, output).await?;
    }
    if let Some(directory) = &dump.directory {
        writeln!(output.out, "Cluster info dumped to {}", directory.display())?;
    }
    Ok(())
}

impl Dump<'_> {
    async fn namespace(&self, namespace: &str, output: &mut Output) -> Result<(), CommandError> {
        for (file, group, plural) in LISTS {
            let list = self.list(group, plural, Some(namespace)).await?;
            let pods = if plural == "pods" {
                objects::list_at(&list, "/items").to_vec()
            } else {
                Vec::new()
            };
            self.print(&format!("{}/{file}", component(namespace)?), list, output)?;
            for pod in pods {
                self.logs(namespace, &pod, output).await?;
            }
        }
        Ok(())
    }

    /// A whole list.
    async fn list(
        &self,
        group: &str,
        plural: &str,
        namespace: Option<&str>,
    ) -> Result<Value, CommandError> {
        let collection = collection(group, plural, namespace);
        let mut params = ListParams { limit: Some(PAGE), ..ListParams::default() };
        let mut whole = Value::Null;
        let mut items = Vec::new();
        for _ in 0..PAGES_MAX {
            let request = request::list(collection.path(), &params);
            let mut page = self.session.call_json(request).await?;
            let next = objects::text_at(&page, "/metadata/continue").to_owned();
            if let Some(Value::Array(more)) = page.get_mut("items").map(Value::take) {
                items.extend(more);
            }
            whole = page;
            if next.is_empty() {
                break;
            }
            params.continue_ = Some(next);
        }
        if let Some(whole) = whole.as_object_mut() {
            whole.insert("items".to_owned(), Value::Array(items));
        }
        Ok(whole)
    }

    fn print(&self, file: &str, object: Value, output: &mut Output) -> Result<(), CommandError> {
        let end = match self.form {
            PrintFormat::Json => "json",
            PrintFormat::Yaml => "yaml",
            _ => "txt",
        };
        let Some(directory) = &self.directory else {
            return self.print.print(&self.form, object, true, output);
        };
        let out = Box::new(io::BufWriter::new(create(directory, &format!("{file}.{end}"))?));
        let mut file =
            Output { out, err: Box::new(io::sink()), input: Box::new(io::empty()), colours: false };
        self.print.print(&self.form, object, true, &mut file)?;
        Ok(file.out.flush()?)
    }

    /// The logs of a pod's containers. What cannot be read is said in their place.
    async fn logs(
        &self,
        namespace: &str,
        pod: &Value,
        output: &mut Output,
    ) -> Result<(), CommandError> {
        let name = objects::name(pod);
        let mut file = match &self.directory {
            Some(directory) => {
                let file = format!("{}/{}/logs.txt", component(namespace)?, component(name)?);
                Some(create(directory, &file)?)
            }
            None => None,
        };
        let out: &mut dyn Write = match &mut file {
            Some(file) => file,
            None => &mut output.out,
        };
        let containers = ["initContainers", "containers"].into_iter();
        let containers =
            containers.flat_map(|field| objects::list_at(pod, &format!("/spec/{field}")));
        for container in containers.map(|one| objects::text_at(one, "/name")) {
            let title = format!("logs for container {container} of pod {namespace}/{name} ====");
            writeln!(out, "==== START {title}")?;
            if let Err(error) = self.copy_log(namespace, name, container, out).await {
                if error.is_broken_pipe() {
                    return Err(error);
                }
                writeln!(out, "Request log error: {error}")?;
            }
            writeln!(out, "==== END {title}")?;
        }
        Ok(out.flush()?)
    }

    async fn copy_log(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        out: &mut dyn Write,
    ) -> Result<(), CommandError> {
        let path = collection("", "pods", Some(namespace)).item(pod, Some("log"));
        let container = uri::encode(container, uri::COMPONENT);
        let request = request::get(format!("{path}?container={container}"));
        let mut log = LineReader::new(self.session.open(request).await?)
            .failing_after(self.session.timeout()?);
        while let Some(part) = log.part().await? {
            out.write_all(&part)?;
        }
        Ok(())
    }
}

fn collection(group: &str, plural: &str, namespace: Option<&str>) -> Collection {
    Collection {
        group: group.to_owned(),
        version: "v1".to_owned(),
        plural: plural.to_owned(),
        namespace: namespace.map(str::to_owned),
    }
}

/// A name as a part of a path: a server's answer leads nowhere else.
fn component(name: &str) -> Result<&str, CommandError> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        return Err(CommandError::with_text(format!("{name:?} cannot be the name of a file")));
    }
    Ok(name)
}

/// A file below the directory, with the directories above it.
fn create(directory: &Path, file: &str) -> Result<File, CommandError> {
    let path = directory.join(file);
    let failed = |error: io::Error| CommandError::with_text(format!("{}: {error}", path.display()));
    let parent = path.parent().unwrap_or(directory);
    private_files::create_missing_dir(parent).map_err(failed)?;
    private_files::create_or_empty(&path, FILE_MODE).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_server_lead_nowhere_else() {
        assert_eq!(component("a.b-c").expect("a name"), "a.b-c");
        for name in ["", ".", "..", "a/b", "../x", "a\0"] {
            assert!(component(name).is_err(), "{name:?}");
        }
    }
}
