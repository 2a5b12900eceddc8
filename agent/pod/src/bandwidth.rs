//! Traffic limits from a pod's bandwidth annotations, in bits per second.

use proto_api::Quantity;
use proto_api::core::v1::Pod;
use proto_api::names::Names;

use crate::translate_error::{BandwidthFault, TranslateError};

/// Lowest accepted rate; a shaper cannot keep to a lower one.
const BITS_MIN: i64 = 1_000;
/// Highest accepted rate, as in Kubernetes.
const BITS_MAX: i64 = 1_000_000_000_000_000;

/// Traffic limits of a pod; `None` is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BandwidthLimits {
    /// Bits per second into the pod.
    pub ingress: Option<i64>,
    /// Bits per second out of the pod.
    pub egress: Option<i64>,
}

/// Reads the limits of a pod. A pod on the host's network has none.
///
/// # Errors
/// A value is not a quantity or lies outside the accepted range.
pub fn bandwidth_limits(pod: &Pod, names: &Names) -> Result<BandwidthLimits, TranslateError> {
    if pod.spec.host_network {
        return Ok(BandwidthLimits::default());
    }
    let limit = |name: &str| {
        let name = names.label(name);
        let Some(text) = pod.metadata.annotations.get(&name) else { return Ok(None) };
        rate(text).map(Some).map_err(|fault| TranslateError::Bandwidth { name, fault })
    };
    Ok(BandwidthLimits { ingress: limit("ingress-bandwidth")?, egress: limit("egress-bandwidth")? })
}

fn rate(text: &str) -> Result<i64, BandwidthFault> {
    let bits = text.parse::<Quantity>().map_err(|_| BandwidthFault::NotAQuantity)?.value();
    match bits {
        ..BITS_MIN => Err(BandwidthFault::TooSmall),
        BITS_MIN..=BITS_MAX => Ok(bits),
        _ => Err(BandwidthFault::TooLarge),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        let cases = [
            ("10M", Ok(10_000_000)),
            ("1k", Ok(1_000)),
            ("1Ki", Ok(1_024)),
            ("999", Err(BandwidthFault::TooSmall)),
            ("2P", Err(BandwidthFault::TooLarge)),
            ("fast", Err(BandwidthFault::NotAQuantity)),
        ];
        for (text, expect) in cases {
            assert_eq!(rate(text), expect, "{text}");
        }
    }

    #[test]
    fn limits_follow_the_profile_and_the_network() {
        let names = <&Names>::default();
        let mut pod = Pod::default();
        pod.metadata.annotations.insert(names.label("egress-bandwidth"), "1M".into());
        let got = bandwidth_limits(&pod, names).expect("limits");
        assert_eq!(got, BandwidthLimits { ingress: None, egress: Some(1_000_000) });
        pod.spec.host_network = true;
        assert_eq!(bandwidth_limits(&pod, names), Ok(BandwidthLimits::default()));
    }
}
