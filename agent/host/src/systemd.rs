//! Slices managed by systemd. It writes a slice's cgroup from the slice's properties whenever it changes the slice, so limits not
//! set as properties do not last.
//!
//! The slices are transient units: created over the bus, removed when they are stopped, without files.

use std::path::{Path, PathBuf};

use agent_node::cgroup::{CgroupLimits, QUOTA_PERIOD_US};
use tokio::sync::Mutex;

use crate::dbus::message::Argument::{NoLists, Properties, Text, Truth};
use crate::dbus::message::{Argument, Value};
use crate::dbus::{Bus, BusError};

const SERVICE: &str = "org.freedesktop.systemd1";
const PATH: &str = "/org/freedesktop/systemd1";
const INTERFACE: &str = "org.freedesktop.systemd1.Manager";
const EXISTS: &str = "org.freedesktop.systemd1.UnitExists";
const NOT_THERE: &str = "org.freedesktop.systemd1.NoSuchUnit";

/// systemd rounds CPU quotas to whole percents: this number of microseconds per second.
const PERCENT_US: u64 = 10_000;
const SECOND_US: u64 = 1_000_000;

/// A client of systemd with one connection, opened on first use and reopened after it broke. Calls are serialized.
#[derive(Debug)]
pub struct Systemd {
    socket: PathBuf,
    bus: Mutex<Option<Bus>>,
}

impl Systemd {
    /// A client for the bus at `socket`. Does not connect yet.
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), bus: Mutex::default() }
    }

    /// Creates a transient slice and sets its limits until the next boot. Idempotent.
    ///
    /// # Errors
    /// systemd is not available or refuses.
    pub async fn set_limits(&self, slice: &str, limits: &CgroupLimits) -> Result<(), BusError> {
        let limits = properties(limits);
        let text = format!("pods in {slice}");
        // At shutdown slices end after the pods in them, whose order is decided by the agent.
        let own =
            [("Description", Value::Text(&text)), ("DefaultDependencies", Value::Truth(false))];
        let all: Vec<(&str, Value<'_>)> = own.into_iter().chain(limits.iter().copied()).collect();
        let start = [Text(slice), Text("replace"), Properties(&all), NoLists];
        match self.call("StartTransientUnit", &start).await {
            Err(error) if error.is(EXISTS) && limits.is_empty() => Ok(()),
            Err(error) if error.is(EXISTS) => {
                let set = [Text(slice), Truth(true), Properties(&limits)];
                self.call("SetUnitProperties", &set).await
            }
            done => done,
        }
    }

    /// Removes an empty slice.
    ///
    /// # Errors
    /// systemd is not available or refuses.
    pub async fn remove_slice(&self, slice: &str) -> Result<(), BusError> {
        match self.call("StopUnit", &[Text(slice), Text("replace")]).await {
            Err(error) if error.is(NOT_THERE) => Ok(()),
            done => done,
        }
    }

    /// Calls a method. If the kept connection broke, a new one is tried once.
    async fn call(&self, method: &str, args: &[Argument<'_>]) -> Result<(), BusError> {
        let mut kept = self.bus.lock().await;
        // Taken out of the lock, so that a cancelled call drops the connection with its unread reply.
        if let Some(bus) = kept.take() {
            match Self::call_manager(&mut kept, bus, method, args).await {
                // systemd may have been restarted.
                Err(BusError::Broken(_)) => {}
                done => return done,
            }
        }
        let bus = Bus::connect(&self.socket).await?;
        Self::call_manager(&mut kept, bus, method, args).await
    }

    async fn call_manager(
        kept: &mut Option<Bus>,
        mut bus: Bus,
        method: &str,
        args: &[Argument<'_>],
    ) -> Result<(), BusError> {
        let done = bus.call(SERVICE, PATH, (INTERFACE, method), args).await.map(drop);
        if done.as_ref().err().is_none_or(BusError::leaves_usable) {
            *kept = Some(bus);
        }
        done
    }
}

/// Properties of a slice in the names of org.freedesktop.systemd1(5). Pure.
fn properties(limits: &CgroupLimits) -> Vec<(&'static str, Value<'static>)> {
    let mut all = Vec::new();
    let mut set = |name, value: Option<u64>| {
        all.extend(value.map(|value| (name, Value::Long(value))));
    };
    set("CPUWeight", limits.cpu_weight());
    let period = limits.cpu_period_us.unwrap_or(QUOTA_PERIOD_US).max(1);
    let quota = limits.cpu_quota_us.map(|quota| {
        // Whole percents, rounded up, as in Kubernetes.
        let each_second = quota.saturating_mul(SECOND_US).div_ceil(period);
        each_second.div_ceil(PERCENT_US).saturating_mul(PERCENT_US)
    });
    set("CPUQuotaPerSecUSec", quota);
    set("CPUQuotaPeriodUSec", quota.map(|_| period));
    set("MemoryMax", limits.memory_bytes);
    set("TasksMax", limits.pids);
    all
}

#[cfg(test)]
#[allow(clippy::print_stderr, reason = "a test that cannot run says so")]
mod tests;
