//! Notifications to the service manager (sd_notify(3)): readiness, and, with `WatchdogSec=`, keep-alives.

use std::time::Duration;

use sd_notify::NotifyState;

/// The shortest interval between two signs of life; systemd's is half of `WatchdogSec=`.
const WATCHDOG_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Reports the start, and then signs of life for as long as the runtime serves its tasks: systemd restarts a program whose runtime hangs. Does
/// nothing where `NOTIFY_SOCKET` is not set.
pub(crate) async fn report_life() {
    notify_manager(NotifyState::Ready);
    let Some(timeout) = sd_notify::watchdog_enabled() else { return };
    let interval = (timeout / 2).max(WATCHDOG_INTERVAL_MIN);
    loop {
        notify_manager(NotifyState::Watchdog);
        tokio::time::sleep(interval).await;
    }
}

fn notify_manager(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!(%error, "cannot notify the service manager");
    }
}
