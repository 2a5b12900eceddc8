//! APIServices: which group versions other servers serve, and in which order groups and versions are listed.
//!
//! The built-in groups are this server's own whatever an object says; an APIService that names another server goes before a custom kind of its group version.

pub mod availability;
pub mod priorities;

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_schema::Object;
use apiserver_store::Store;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proto_api::names::Names;
use proto_api::schema::is_built_in_group;

use crate::auth::{IndexError, ObjectIndex, StoreIndex};
use crate::record::StoredObject;
use priorities::Priority;

/// Group of APIServices, without its domain.
pub const GROUP: &str = "apiregistration";
/// Resource of APIServices.
pub const RESOURCE: &str = "apiservices";

/// The Service of another server, and how its certificate is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// Namespace of the Service.
    pub namespace: String,
    pub name: String,
    pub port: u16,
    /// PEM of the authorities; empty for the host's.
    pub authority: Vec<u8>,
    /// Whether the certificate is verified at all.
    pub verification: Verification,
}

/// Whether the certificate of another server is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verification {
    /// It has to be of an authority, for the name of the Service.
    Full,
    /// Any certificate will do (`insecureSkipTLSVerify`).
    Skipped,
}

impl Backend {
    /// The name in its certificate.
    #[must_use]
    pub fn server_name(&self) -> String {
        format!("{}.{}.svc", self.name, self.namespace)
    }
}

/// What is kept of an APIService.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiService {
    pub name: String,
    /// Its identity.
    pub uid: String,
    /// Group, domain included.
    pub group: String,
    pub version: String,
    /// Where group and version stand in lists.
    pub priority: Priority,
    /// The other server; `None` for this one.
    pub backend: Option<Backend>,
    /// Whether the last check of the other server succeeded.
    pub available: bool,
}

impl ApiService {
    /// Reads an object; a field that is no number of its range has the least value.
    #[must_use]
    pub fn from_object(object: &Object) -> Self {
        let spec = object.spec().cloned().unwrap_or_default();
        let number = |field: &str| spec.int(field).unwrap_or(0);
        let backend = spec.map("service").map(|service| Backend {
            namespace: service.str("namespace").to_owned(),
            name: service.str("name").to_owned(),
            port: service.int("port").and_then(|port| u16::try_from(port).ok()).unwrap_or(443),
            authority: STANDARD.decode(spec.str("caBundle")).unwrap_or_default(),
            verification: match spec.is_true("insecureSkipTLSVerify") {
                true => Verification::Skipped,
                false => Verification::Full,
            },
        });
        Self {
            name: object.name().to_owned(),
            uid: object.uid().to_owned(),
            group: spec.str("group").to_owned(),
            version: spec.str("version").to_owned(),
            priority: Priority {
                group: number("groupPriorityMinimum"),
                version: number("versionPriority"),
            },
            backend,
            available: crate::definitions::is_true(object, availability::AVAILABLE),
        }
    }
}

/// The APIServices of a server.
pub struct ApiServices(StoreIndex<Registered>);

#[derive(Default)]
struct Registered {
    by_name: BTreeMap<String, Arc<ApiService>>,
    /// How many of them name another server.
    remote: usize,
}

impl Registered {
    fn note(&mut self, before: Option<Arc<ApiService>>, after: bool) {
        let was = before.is_some_and(|service| service.backend.is_some());
        self.remote =
            self.remote.saturating_add(usize::from(after)).saturating_sub(usize::from(was));
    }
}

impl ObjectIndex for Registered {
    const PREFIX: &'static str = "/apiregistration/";

    fn emptied(&self) -> Self {
        Self::default()
    }

    fn set(&mut self, object: &Object) {
        let service = ApiService::from_object(object);
        let is_remote = service.backend.is_some();
        let before = self.by_name.insert(service.name.clone(), Arc::new(service));
        self.note(before, is_remote);
    }

    fn remove(&mut self, object: &Object) {
        let before = self.by_name.remove(object.name());
        self.note(before, false);
    }
}

impl ApiServices {
    /// Reads the APIServices of `store` and follows their changes.
    ///
    /// # Errors
    /// The store cannot be watched.
    pub fn follow(store: &Store<StoredObject>) -> Result<Self, IndexError> {
        Ok(Self(StoreIndex::follow(store, Registered::default())?))
    }

    /// The APIService of a group version that another server serves.
    #[must_use]
    pub fn remote(&self, names: &Names, group: &str, version: &str) -> Option<Arc<ApiService>> {
        let found = self.0.read(|registered| {
            // Where there is no other server, requests make no names.
            let any = registered.remote > 0;
            any.then(|| registered.by_name.get(&format!("{version}.{group}")).cloned()).flatten()
        })?;
        // The name alone does not show where the version ends.
        let same = (&*found.group, &*found.version) == (group, version);
        (same && found.backend.is_some() && !is_built_in_group(names, group)).then_some(found)
    }

    /// All, by name.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<ApiService>> {
        self.0.read(|registered| registered.by_name.values().cloned().collect())
    }

    /// Those of other servers, by name.
    #[must_use]
    pub fn all_remote(&self, names: &Names) -> Vec<Arc<ApiService>> {
        if self.0.read(|registered| registered.remote == 0) {
            return Vec::new();
        }
        let mut all = self.all();
        all.retain(|service| {
            service.backend.is_some() && !is_built_in_group(names, &service.group)
        });
        all
    }
}

#[cfg(test)]
mod tests;
