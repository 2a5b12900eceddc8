//! The objects that a changing command is about: those of files, of names, or of selectors.

use clap::Args;
use orchctl_client::manifests::{self, FileFlags, ReadManifests};
use orchctl_client::{CommandError, Output, Session, names};
use serde_json::Value;

use crate::requests::{self, Place};

/// Flags that select objects.
#[derive(Args, Clone, Debug, Default)]
pub struct TargetFlags {
    /// Objects of files
    #[command(flatten)]
    pub files: FileFlags,
    /// Objects with these labels
    #[arg(
        long,
        short = 'l',
        value_name = "SELECTOR",
        default_value = "",
        hide_default_value = true
    )]
    pub selector: String,
    /// All objects of the type
    #[arg(long)]
    pub all: bool,
    /// Set by commands that select by fields.
    #[arg(skip)]
    pub field_selector: String,
    /// Set by commands that select in all namespaces.
    #[arg(skip)]
    pub all_namespaces: bool,
}

impl TargetFlags {
    /// Whether objects are selected, not named.
    fn selects(&self) -> bool {
        !self.selector.is_empty() || !self.field_selector.is_empty()
    }
}

/// One of the objects, as the server has it.
#[derive(Clone, Debug)]
pub struct TargetObject {
    /// Where it lies.
    pub place: Place,
    /// What the server has.
    pub object: Value,
}

/// Reads the objects from the server.
///
/// # Errors
/// When one does not exist, or none is named.
pub async fn read(
    session: &Session,
    flags: &TargetFlags,
    args: &[String],
    output: &mut Output,
) -> Result<Vec<TargetObject>, CommandError> {
    let (targets, errors) = read_each(session, flags, args, output).await?;
    CommandError::collect(errors)?;
    Ok(targets)
}

/// As [`read`], for commands that go on without the objects that cannot be read.
///
/// # Errors
/// When none is named.
pub async fn read_each(
    session: &Session,
    flags: &TargetFlags,
    args: &[String],
    output: &mut Output,
) -> Result<(Vec<TargetObject>, Vec<CommandError>), CommandError> {
    let mut targets = Vec::new();
    let (found, mut errors) = places(session, flags, args, output).await?;
    for place in found {
        match place {
            FoundObject::Named(place) => match requests::get(session, &place).await {
                Ok(object) => targets.push(TargetObject { place, object }),
                Err(error) => errors.push(error),
            },
            FoundObject::Listed(target) => targets.push(target),
        }
    }
    Ok((targets, errors))
}

/// An object that is named, or one that a list returned.
pub enum FoundObject {
    /// Not read yet.
    Named(Place),
    /// With what the server has.
    Listed(TargetObject),
}

/// Finds the objects, and why those of files or lists cannot be found; those that are named are not read.
///
/// # Errors
/// When none is named, the names and flags do not go together, or what the server serves cannot be read.
pub async fn places(
    session: &Session,
    flags: &TargetFlags,
    args: &[String],
    output: &mut Output,
) -> Result<(Vec<FoundObject>, Vec<CommandError>), CommandError> {
    if !flags.files.filename.is_empty() {
        if !args.is_empty() {
            return Err(CommandError::with_text(
                "when paths, URLs, or stdin is provided as input, you may not specify resource arguments as well",
            ));
        }
        let mut found = Vec::new();
        let ReadManifests { manifests, mut errors } =
            manifests::read_each(session, &flags.files, output).await?;
        // Without an answer of the server no object can be found.
        session.discovery().await?;
        for manifest in manifests {
            match Place::from_manifest(session, &manifest).await {
                Ok(place) => found.push(FoundObject::Named(place)),
                Err(error) => errors.push(error),
            }
        }
        return Ok((found, errors));
    }
    named(session, flags, args).await
}

async fn named(
    session: &Session,
    flags: &TargetFlags,
    args: &[String],
) -> Result<(Vec<FoundObject>, Vec<CommandError>), CommandError> {
    let discovery = session.discovery().await?;
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    for selection in names::parse(discovery, args)? {
        let resource = selection.resource;
        let namespace = session.namespace()?.to_owned();
        let namespace = Some(namespace).filter(|_| resource.namespaced);
        match selection.name {
            Some(_) if flags.selects() => {
                return Err(CommandError::with_text(
                    "name cannot be provided when a selector is specified",
                ));
            }
            Some(_) if flags.all_namespaces => {
                return Err(CommandError::with_text(
                    "a resource cannot be retrieved by name across all namespaces",
                ));
            }
            Some(name) => found.push(FoundObject::Named(Place { resource, namespace, name })),
            None if !flags.selects() && !flags.all => {
                return Err(CommandError::with_text(
                    "resource(s) were provided, but no name was specified",
                ));
            }
            None => {
                let selectors = (flags.selector.as_str(), flags.field_selector.as_str());
                let namespace = namespace.filter(|_| !flags.all_namespaces);
                let listed = requests::list(session, &resource, namespace.as_deref(), selectors);
                let target = |object| {
                    let place = Place::listed(&resource, &object);
                    FoundObject::Listed(TargetObject { place, object })
                };
                match listed.await {
                    Ok(listed) => found.extend(listed.into_iter().map(target)),
                    Err(error) => errors.push(error),
                }
            }
        }
    }
    Ok((found, errors))
}
