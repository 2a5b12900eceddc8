//! Reports the progress of a slow pull.

use std::time::Duration;

use agent_runtime::runtime::ArrivingParts;

use super::{Images, PullError};

/// Time until the first report, doubled for each further one.
pub const PROGRESS_AFTER: Duration = Duration::from_secs(15);
/// Longest time between reports.
const PROGRESS_INTERVAL_MAX: Duration = Duration::from_secs(480);

impl Images {
    /// Awaits a pull of `image`; from `after` on, doubling the wait, `report` gets its progress as a
    /// message for users.
    ///
    /// # Errors
    /// Those of the pull.
    pub async fn report_progress(
        &self,
        image: &str,
        after: Duration,
        pull: impl Future<Output = Result<String, PullError>>,
        report: impl Fn(String),
    ) -> Result<String, PullError> {
        tokio::pin!(pull);
        let (mut waited, mut pause) = (Duration::ZERO, after);
        loop {
            // Cancel safe: the pull is polled again.
            tokio::select! {
                biased;
                pulled = &mut pull => return pulled,
                () = tokio::time::sleep(pause) => {}
            }
            waited = waited.saturating_add(pause);
            pause = waited.min(PROGRESS_INTERVAL_MAX);
            // If the runtime does not report, the next event asks again.
            let arrivals = self.runtime.pull_progress().await.unwrap_or_default();
            report(progress_message(image, waited, arrivals, self.pulls()));
        }
    }
}

/// The progress of a pull as a message. The runtime reports all pulls together. Pure.
fn progress_message(
    image: &str,
    waited: Duration,
    arrivals: ArrivingParts,
    pulls: usize,
) -> String {
    let begin = format!("Pulling image {image:?} for {} s", waited.as_secs());
    if arrivals.parts == 0 {
        return format!(
            "{begin}: no data in transit; the pull is queued, waits for the registry or unpacks"
        );
    }
    let mib =
        |bytes: u64| format!("{}.{}", bytes >> 20, (bytes & 0xf_ffff).saturating_mul(10) >> 20);
    let of = if pulls > 1 { format!(", of {pulls} images being pulled") } else { String::new() };
    let ArrivingParts { parts, bytes, total } = arrivals;
    format!("{begin}: {} of {} MiB received of {parts} layers{of}", mib(bytes), mib(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pull_progress_messages_have_bytes_and_layers() {
        let said =
            |arrivals, pulls| progress_message("a:1", Duration::from_secs(30), arrivals, pulls);
        let arrivals = ArrivingParts { parts: 2, bytes: (3 << 20) + (1 << 19), total: 10 << 20 };
        let begin = "Pulling image \"a:1\" for 30 s: ";
        assert_eq!(said(arrivals, 1), format!("{begin}3.5 of 10.0 MiB received of 2 layers"));
        assert!(said(arrivals, 3).ends_with("of 2 layers, of 3 images being pulled"));
        assert!(
            said(ArrivingParts::default(), 1).starts_with(&format!("{begin}no data in transit"))
        );
    }
}
