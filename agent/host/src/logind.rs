//! systemd-logind's shutdown interface: inhibitors and shutdown signals.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use crate::dbus::message::Argument::{Int, Text};
use crate::dbus::{Bus, BusError};

/// Socket of the system bus.
pub const SYSTEM_BUS: &str = "/run/dbus/system_bus_socket";

const SERVICE: &str = "org.freedesktop.login1";
const PATH: &str = "/org/freedesktop/login1";
const INTERFACE: &str = "org.freedesktop.login1.Manager";
const SIGNAL: &str = "PrepareForShutdown";

/// A connection to logind.
#[derive(Debug)]
pub struct Logind {
    bus: Bus,
}

/// Delays a shutdown while it exists, up to logind's limit.
#[derive(Debug)]
pub struct Inhibitor {
    // Closing it releases the inhibitor.
    _lock: OwnedFd,
}

impl Logind {
    /// Connects and subscribes to shutdown signals.
    ///
    /// # Errors
    /// There is no bus.
    pub async fn connect(socket: &Path) -> Result<Self, BusError> {
        let mut bus = Bus::connect(socket).await?;
        // The bus checks the sender of what it broadcasts: any process may send such a signal.
        let rule = format!(
            "type='signal',sender='{SERVICE}',interface='{INTERFACE}',member='{SIGNAL}',path='{PATH}'"
        );
        let own = "org.freedesktop.DBus";
        bus.call(own, "/org/freedesktop/DBus", (own, "AddMatch"), &[Text(&rule)]).await?;
        Ok(Self { bus })
    }

    /// Delays shutdowns from now on.
    ///
    /// # Errors
    /// logind is not running or refuses.
    pub async fn inhibit(&mut self, who: &str, why: &str) -> Result<Inhibitor, BusError> {
        let args = [Text("shutdown"), Text(who), Text(why), Text("delay")];
        let answer = self.bus.call(SERVICE, PATH, (INTERFACE, "Inhibit"), &args).await?;
        let index = answer.message.descriptor();
        let lock = index.and_then(|index| answer.descriptors.into_iter().nth(index));
        let lock =
            lock.ok_or(BusError::Malformed("the reply to Inhibit has no file descriptor"))?;
        Ok(Inhibitor { _lock: lock })
    }

    /// The longest delay that logind allows.
    ///
    /// # Errors
    /// logind is not running.
    pub async fn delay_max(&mut self) -> Result<Duration, BusError> {
        let get = ("org.freedesktop.DBus.Properties", "Get");
        let args = [Text(INTERFACE), Text("InhibitDelayMaxUSec")];
        let answer = self.bus.call(SERVICE, PATH, get, &args).await?;
        let micros = answer.message.long_in_variant();
        micros
            .map(Duration::from_micros)
            .ok_or(BusError::Malformed("InhibitDelayMaxUSec is not a number"))
    }

    /// Makes logind reload its configuration.
    ///
    /// # Errors
    /// systemd is not running or refuses.
    pub async fn reload(&mut self) -> Result<(), BusError> {
        let kill = ("org.freedesktop.systemd1.Manager", "KillUnit");
        let args = [Text("systemd-logind.service"), Text("all"), Int(SIGHUP)];
        let manager = "org.freedesktop.systemd1";
        self.bus.call(manager, "/org/freedesktop/systemd1", kill, &args).await.map(drop)
    }

    /// Waits for the next shutdown signal: `true` for a shutdown, `false` if it was cancelled. Cancel safe.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn shutdown(&mut self) -> Result<bool, BusError> {
        loop {
            let signal = self.bus.signal().await?;
            if signal.member == SIGNAL
                && signal.interface == INTERFACE
                && let Some(comes) = signal.truth()
            {
                return Ok(comes);
            }
        }
    }
}

const SIGHUP: i32 = 1;

#[cfg(test)]
#[allow(clippy::print_stderr, reason = "a test that cannot run says so")]
mod tests;
