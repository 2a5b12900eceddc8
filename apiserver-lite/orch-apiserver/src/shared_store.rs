//! The store in etcd that several servers share.

use std::sync::Arc;

use apiserver_core::config::EtcdSettings;
use apiserver_core::record::StoredObject;
use apiserver_schema::Engine;
use apiserver_store::{Bounds, PrepareRestore, Store, StoreConfig};
use apiserver_store_etcd::{EtcdConfig, EtcdUser, TlsFiles};

use crate::build_error::BuildError;

/// Longest object: etcd accepts 1.5 MiB in a transaction by default.
const VALUE_LEN_MAX: usize = (1536 << 10) - (8 << 10);

/// Opens it; each object is decoded as it comes from there.
///
/// # Errors
/// etcd is not reached, or has something else or what cannot be read.
pub async fn open(
    settings: &EtcdSettings,
    config: StoreConfig,
    engine: Arc<Engine>,
) -> Result<Store<StoredObject>, BuildError> {
    let prepare: PrepareRestore<StoredObject> = Box::new(move |record: &StoredObject| {
        record.load(&engine)?;
        if let Err(error) = record.check_readable() {
            tracing::error!(%error, "cannot decrypt an object in etcd; requests for it are answered 500, and it stays unchanged");
        }
        Ok(())
    });
    let bounds = Bounds { value_len_max: VALUE_LEN_MAX, ..config.bounds };
    let config = StoreConfig { bounds, ..config };
    Ok(apiserver_store_etcd::open(etcd(settings), config, prepare).await?)
}

fn etcd(settings: &EtcdSettings) -> EtcdConfig {
    let client = settings.client.clone();
    let user = settings.user.clone();
    EtcdConfig {
        prefix: settings.prefix.clone(),
        tls: TlsFiles {
            authority: settings.authority.clone(),
            client: client.map(|client| (client.certificate, client.key)),
        },
        user: user.map(|(name, password_file)| EtcdUser { name, password_file }),
        compaction_interval: settings.compaction_interval,
        ..EtcdConfig::new(settings.servers.clone())
    }
}
