//! Slices that systemd manages. It writes a slice's cgroup from its own properties whenever it touches the slice, so that what it is not
//! told of does not last.
//!
//! A slice is a unit of the moment: made over the machine's bus, gone when it is stopped, with no file left of it.

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

/// Microseconds of processor time a second are counted by systemd in steps of this, as a whole percent.
const PERCENT_US: u64 = 10_000;
const SECOND_US: u64 = 1_000_000;

/// systemd, asked over one connection that is made when it is first needed, and again after it broke. Calls take turns.
#[derive(Debug)]
pub struct Systemd {
    socket: PathBuf,
    bus: Mutex<Option<Bus>>,
}

impl Systemd {
    /// Behind the bus at `socket`. Connects to nothing yet.
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), bus: Mutex::default() }
    }

    /// Has systemd know and bound a slice, until the next boot. Safe to repeat.
    ///
    /// # Errors
    /// It cannot be asked, or refuses.
    pub async fn bound(&self, slice: &str, limits: &CgroupLimits) -> Result<(), BusError> {
        let limits = properties(limits);
        let text = format!("pods in {slice}");
        // At a shutdown slices go after the pods in them, which are ended in an order of their own.
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

    /// Has systemd forget a slice that is empty.
    ///
    /// # Errors
    /// It cannot be asked, or refuses.
    pub async fn forget(&self, slice: &str) -> Result<(), BusError> {
        match self.call("StopUnit", &[Text(slice), Text("replace")]).await {
            Err(error) if error.is(NOT_THERE) => Ok(()),
            done => done,
        }
    }

    /// Calls a method. A connection that was kept may have broken since; a new one is tried once.
    async fn call(&self, method: &str, args: &[Argument<'_>]) -> Result<(), BusError> {
        let mut kept = self.bus.lock().await;
        // Taken out: what a call that is given up leaves unread is in nobody's way.
        if let Some(bus) = kept.take() {
            match Self::ask(&mut kept, bus, method, args).await {
                // The other end may have been started anew.
                Err(BusError::Broken(_)) => {}
                done => return done,
            }
        }
        let bus = Bus::connect(&self.socket).await?;
        Self::ask(&mut kept, bus, method, args).await
    }

    async fn ask(
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

/// Properties of a slice as org.freedesktop.systemd1(5) names them. Pure.
fn properties(limits: &CgroupLimits) -> Vec<(&'static str, Value<'static>)> {
    let mut all = Vec::new();
    let mut set = |name, value: Option<u64>| {
        all.extend(value.map(|value| (name, Value::Long(value))));
    };
    set("CPUWeight", limits.cpu_weight());
    let period = limits.cpu_period_us.unwrap_or(QUOTA_PERIOD_US).max(1);
    let quota = limits.cpu_quota_us.map(|quota| {
        // Whole percents, rounded up, are what the ecosystem uses.
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
