//! `api-resources`: what the server serves.

use std::process::ExitCode;

use orchctl_client::{ApiResource, CommandError, Output, Session};
use orchctl_printers::columns::{self, ColumnWidths};

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Only this group; empty for the core group
    #[arg(long, value_name = "GROUP")]
    api_group: Option<String>,
    /// Only resources in namespaces, or (false) only others
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    namespaced: Option<bool>,
    /// Only resources with all these verbs
    #[arg(long, value_name = "VERB", value_delimiter = ',')]
    verbs: Vec<String>,
    /// Only resources in all these categories
    #[arg(long, value_name = "CATEGORY", value_delimiter = ',')]
    categories: Vec<String>,
    /// Leave out the line with the names of columns
    #[arg(long)]
    no_headers: bool,
    /// Form of the output
    #[arg(long, short, value_name = "FORM", value_parser = ["wide", "name"])]
    output: Option<String>,
    /// Order of the rows, instead of group and name
    #[arg(long, value_name = "COLUMN", value_parser = ["name", "kind"])]
    sort_by: Option<String>,
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
    let discovery = session.discovery().await?;
    let mut resources: Vec<&ApiResource> =
        discovery.resources.iter().filter(|resource| is_wanted(resource, &args)).collect();
    match args.sort_by.as_deref() {
        Some("name") => resources.sort_by(|a, b| a.plural.cmp(&b.plural)),
        Some(_) => resources.sort_by(|a, b| a.kind.cmp(&b.kind)),
        None => resources.sort_by(|a, b| (&a.group, &a.plural).cmp(&(&b.group, &b.plural))),
    }
    resources.dedup_by(|a, b| a.group == b.group && a.plural == b.plural && a.kind == b.kind);
    let wide = args.output.as_deref() == Some("wide");
    if args.output.as_deref() == Some("name") {
        for resource in resources {
            writeln!(output.out, "{}", resource.full_name())?;
        }
    } else {
        let mut rows = Vec::new();
        if !args.no_headers {
            let heads = ["NAME", "SHORTNAMES", "APIVERSION", "NAMESPACED", "KIND"];
            let wide = ["VERBS", "CATEGORIES"].into_iter().filter(|_| wide);
            rows.push(heads.into_iter().chain(wide).map(str::to_owned).collect());
        }
        rows.extend(resources.into_iter().map(|resource| row(resource, wide)));
        write!(output.out, "{}", ColumnWidths::default().render(&rows))?;
    }
    let failed = discovery.unavailable.iter().map(|(version, why)| {
        CommandError::with_text(format!("unable to retrieve the resources of {version}: {why}"))
    });
    CommandError::collect(failed.collect()).map(|()| ExitCode::SUCCESS)
}

fn is_wanted(resource: &ApiResource, args: &Args) -> bool {
    !resource.verbs.is_empty()
        && args.api_group.as_ref().is_none_or(|group| *group == resource.group)
        && args.namespaced.is_none_or(|namespaced| namespaced == resource.namespaced)
        && args.verbs.iter().all(|verb| resource.has_verb(verb))
        && args.categories.iter().all(|category| resource.categories.contains(category))
}

fn row(resource: &ApiResource, wide: bool) -> columns::Row {
    let mut row = vec![
        resource.plural.clone(),
        resource.short_names.join(","),
        resource.api_version(),
        resource.namespaced.to_string(),
        resource.kind.clone(),
    ];
    if wide {
        let mut verbs = resource.verbs.clone();
        verbs.sort();
        row.extend([verbs.join(","), resource.categories.join(",")]);
    }
    row
}
