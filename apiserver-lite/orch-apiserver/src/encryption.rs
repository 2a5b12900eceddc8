//! The file of `--encryption-provider-config`, and changes of it while the server runs.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use apiserver_core::config::Config;
use apiserver_core::record::StoredObject;
use apiserver_core::{key, versions};
use apiserver_encryption::{Encryption, StoredResource};
use apiserver_schema::Engine;
use apiserver_store::Store;
use proto_daemon::config::FileType;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::build_error::BuildError;

/// Most records that cannot be decrypted and are named in the log.
const NAMED_MAX: usize = 16;
/// Interval at which the file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The encryption that the flags ask for.
pub fn load(config: &Config, engine: &Engine) -> Result<Option<Arc<Encryption>>, BuildError> {
    let Some(settings) = &config.encryption else { return Ok(None) };
    let accepted = FileType {
        api_version: format!("apiserver.config.{}/v1", config.names.group_domain()),
        kind: "EncryptionConfiguration".to_owned(),
    };
    let loaded = Encryption::load(&settings.file, accepted, resources(engine));
    Ok(Some(Arc::new(loaded.map_err(BuildError::Encryption)?)))
}

/// The resources that have objects, by the names that a configuration has for them.
fn resources(engine: &Engine) -> Vec<StoredResource> {
    let mut all = Vec::<StoredResource>::new();
    for kind in engine.kinds().iter().filter(|kind| kind.resource.is_some()) {
        let plural = kind.plural();
        let name = match kind.group.as_str() {
            "" => plural.to_owned(),
            group => format!("{plural}.{group}"),
        };
        // Resources of two groups, as events, may be one in the store.
        let stored = versions::stored_kind(engine, engine.names(), kind);
        if !all.iter().any(|resource| resource.name == name) {
            all.push(StoredResource { name, prefix: key::prefix(&stored, "") });
        }
    }
    all
}

/// Records that could not be decrypted when the store was opened.
#[derive(Default)]
pub struct UnreadableRecords(Cell<usize>);

impl UnreadableRecords {
    /// Counts the record if it is one, and logs the first ones.
    pub fn note(&self, record: &StoredObject) {
        let Err(error) = record.check_readable() else { return };
        self.0.set(self.0.get() + 1);
        if self.0.get() <= NAMED_MAX {
            tracing::error!(%error, "cannot decrypt a stored object; requests for it are answered 500, and it stays unchanged");
        }
    }

    /// Logs how many there are.
    pub fn log(&self) {
        if self.0.get() > NAMED_MAX {
            tracing::error!(
                records = self.0.get(),
                "cannot decrypt some stored objects; the first ones are logged above"
            );
        }
    }
}

/// Takes over changes of the file until `stopping`, if the flags ask for it.
pub async fn follow(
    encryption: Option<Arc<Encryption>>,
    store: Store<StoredObject>,
    stopping: CancellationToken,
) {
    let Some(encryption) = encryption else { return };
    loop {
        tokio::select! {
            () = stopping.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        // What becomes of the change is logged where it is decided.
        encryption.reload(Instant::now(), |each| store.each_form(each));
    }
}

#[cfg(test)]
mod tests {
    use proto_api::names::{Names, Profile};

    use super::*;

    #[test]
    fn resources_have_their_names_in_configurations() {
        let engine = Engine::new(Names::new(Profile::Kubernetes));
        let resources = resources(&engine);
        let prefix = |name: &str| {
            let found = resources.iter().find(|resource| resource.name == name);
            found.map(|resource| resource.prefix.as_str())
        };
        assert_eq!(prefix("secrets"), Some("/core/secrets/"));
        assert_eq!(prefix("deployments.apps"), Some("/apps/deployments/"));
        assert_eq!(prefix("roles.rbac.authorization.k8s.io"), Some("/rbac.authorization/roles/"));
        assert_eq!(prefix("events.events.k8s.io"), Some("/core/events/"));
        assert_eq!(prefix("deployments"), None);
    }
}
