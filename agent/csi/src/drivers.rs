//! The CSI drivers registered on the node.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::watch;

use crate::driver::Driver;

/// The registered drivers. Clones share their state.
#[derive(Clone, Debug)]
pub struct Drivers {
    by_name: Arc<RwLock<BTreeMap<String, Driver>>>,
    changes: Arc<watch::Sender<u64>>,
}

impl Default for Drivers {
    fn default() -> Self {
        Self { by_name: Arc::default(), changes: Arc::new(watch::channel(0).0) }
    }
}

impl Drivers {
    /// The driver of that name, if registered.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Driver> {
        self.by_name.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// All drivers.
    #[must_use]
    pub fn list(&self) -> Vec<Driver> {
        self.by_name.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Notifies of registrations and removals; the value has no meaning.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Adds a driver, replacing one with the same name.
    pub fn add(&self, driver: Driver) {
        let mut all = self.by_name.write().unwrap_or_else(PoisonError::into_inner);
        all.insert(driver.name.clone(), driver);
        self.changes.send_modify(|number| *number += 1);
    }

    /// Removes a driver.
    pub fn remove(&self, name: &str) {
        self.by_name.write().unwrap_or_else(PoisonError::into_inner).remove(name);
        self.changes.send_modify(|number| *number += 1);
    }
}
