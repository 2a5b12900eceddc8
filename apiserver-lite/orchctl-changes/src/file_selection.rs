//! Objects of files, or those of them that have certain labels.

use clap::Args;
use orchctl_client::manifests::{self, FileFlags, Manifest, ReadManifests};
use orchctl_client::{CommandError, Output, Session};
use proto_api::selectors::Selector;

/// Flags that select objects of files.
#[derive(Args, Clone, Debug, Default)]
pub struct FileSelection {
    /// Objects of files
    #[command(flatten)]
    files: FileFlags,
    /// Only objects of the files with these labels; with --prune also what is deleted
    #[arg(
        long,
        short = 'l',
        value_name = "SELECTOR",
        default_value = "",
        hide_default_value = true
    )]
    pub selector: String,
}

impl FileSelection {
    /// Whether no file is named.
    pub fn is_empty(&self) -> bool {
        self.files.filename.is_empty()
    }

    /// The flags that name the files.
    pub fn files(&self) -> &FileFlags {
        &self.files
    }

    /// Reads the objects.
    ///
    /// # Errors
    /// When the selector or a file cannot be read.
    pub async fn read(
        &self,
        session: &Session,
        output: &mut Output,
    ) -> Result<Vec<Manifest>, CommandError> {
        let read = self.read_each(session, output).await?;
        CommandError::collect(read.errors)?;
        Ok(read.manifests)
    }

    /// As [`FileSelection::read`], for commands that go on without what has no objects.
    ///
    /// # Errors
    /// When the selector cannot be read. As [`manifests::read_each`] besides.
    pub async fn read_each(
        &self,
        session: &Session,
        output: &mut Output,
    ) -> Result<ReadManifests, CommandError> {
        let selector = Selector::parse(&self.selector)
            .map_err(|error| CommandError::with_text(format!("--selector: {error}")))?;
        let mut read = manifests::read_each(session, &self.files, output).await?;
        read.manifests.retain(|manifest| {
            let labels = manifest.object.pointer("/metadata/labels");
            selector.matches_with(|key| labels?.get(key)?.as_str())
        });
        Ok(read)
    }
}
