//! Medium and size limit of `emptyDir` volumes.

use std::collections::{BTreeMap, BTreeSet};

use proto_api::Quantity;
use proto_api::core::v1::{Container, EmptyDirVolumeSource, Pod};

use super::SourceError;

/// Medium with a page size: `HugePages-<page size>`.
const HUGE_PAGES: &str = "HugePages";
/// Prefix of huge page resources: `hugepages-<page size>`.
const HUGE_PAGES_RESOURCE: &str = "hugepages-";

/// Medium of an `emptyDir`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Medium {
    Disk,
    /// Memory, up to a size.
    Memory {
        /// Size limit in bytes; half of the node's memory if `None`.
        size_bytes: Option<u64>,
    },
    HugePages {
        /// Page size in bytes.
        page_bytes: u64,
    },
}

impl Medium {
    /// The same medium, limited to the node's allocatable memory.
    #[must_use]
    pub fn limited_to(&self, allocatable: &BTreeMap<String, Quantity>) -> Self {
        let node = allocatable.get("memory").map(|q| q.as_bytes()).filter(|bytes| *bytes > 0);
        match self {
            Self::Memory { size_bytes } => {
                Self::Memory { size_bytes: [*size_bytes, node].into_iter().flatten().min() }
            }
            other => other.clone(),
        }
    }
}

/// The medium of a volume of `pod`. Memory is limited by the volume's limit and by the memory limits of the pod's containers.
pub(super) fn parse(
    pod: &Pod,
    volume: &str,
    source: &EmptyDirVolumeSource,
) -> Result<Medium, SourceError> {
    let refused = |why: String| SourceError::Medium { volume: volume.to_owned(), why };
    let bad_size = |error: BadPageSize| refused(error.to_string());
    match source.medium.as_str() {
        "" => Ok(Medium::Disk),
        "Memory" => {
            let limit = source.size_limit.filter(|size| !size.is_zero()).map(Quantity::as_bytes);
            let size_bytes = [limit, memory_limit(pod)].into_iter().flatten().min();
            Ok(Medium::Memory { size_bytes })
        }
        HUGE_PAGES => {
            let sizes = page_sizes(pod);
            let mut sizes = sizes.iter();
            match (sizes.next(), sizes.next()) {
                (Some(size), None) => huge_pages(size).map_err(bad_size),
                (None, _) => Err(refused("medium HugePages, but the pod has no huge pages".into())),
                _ => Err(refused(
                    "medium HugePages, but the pod has huge pages of several sizes".into(),
                )),
            }
        }
        other => match other.strip_prefix(HUGE_PAGES).and_then(|rest| rest.strip_prefix('-')) {
            Some(size) if page_sizes(pod).contains(size) => huge_pages(size).map_err(bad_size),
            Some(_) => Err(refused(format!("medium {other}, but the pod has none of them"))),
            None => Err(refused(format!("unknown storage medium {other:?}"))),
        },
    }
}

/// The text after `hugepages-` is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("huge pages of size {0:?} are not supported")]
struct BadPageSize(String);

fn huge_pages(size: &str) -> Result<Medium, BadPageSize> {
    let size: Quantity = size.parse().map_err(|_| BadPageSize(size.to_owned()))?;
    Ok(Medium::HugePages { page_bytes: size.as_bytes() })
}

/// Huge page sizes that the pod's containers request.
fn page_sizes(pod: &Pod) -> BTreeSet<String> {
    let all = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    let names = all.flat_map(|c| c.resources.requests.keys().chain(c.resources.limits.keys()));
    names.filter_map(|name| name.strip_prefix(HUGE_PAGES_RESOURCE)).map(str::to_owned).collect()
}

/// Sum of the memory limits of the pod's containers in bytes; `None` if one has no limit.
fn memory_limit(pod: &Pod) -> Option<u64> {
    let of = |container: &Container| {
        container.resources.limits.get("memory").map(|limit| limit.as_bytes()).filter(|b| *b > 0)
    };
    let mut together = 0_u64;
    for container in &pod.spec.containers {
        together = together.saturating_add(of(container)?);
    }
    for container in &pod.spec.init_containers {
        together = together.max(of(container)?);
    }
    Some(together).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Limits of one container by resource.
    type MemoryLimits<'a> = &'a [(&'a str, &'a str)];

    fn pod(containers: &[MemoryLimits<'_>]) -> Pod {
        let mut pod = Pod::default();
        for limits in containers {
            let mut container = Container::default();
            for (name, value) in *limits {
                container.resources.limits.insert((*name).into(), value.parse().unwrap());
            }
            pod.spec.containers.push(container);
        }
        pod
    }

    #[test]
    fn the_smallest_bound_holds() {
        let mi = |n: u64| Some(n << 20);
        type Case<'a> = (&'a [MemoryLimits<'a>], Option<&'a str>, Option<u64>);
        let one: MemoryLimits<'_> = &[("memory", "64Mi")];
        let none: MemoryLimits<'_> = &[];
        let cases: [Case<'_>; 6] = [
            (&[none], None, None),
            (&[none], Some("10Mi"), mi(10)),
            (&[one], None, mi(64)),
            (&[one, one], None, mi(128)),
            (&[one, none], Some("0"), None),
            (&[one], Some("1Gi"), mi(64)),
        ];
        for (containers, limit, bytes) in cases {
            let source = EmptyDirVolumeSource {
                medium: "Memory".into(),
                size_limit: limit.map(|l| l.parse().unwrap()),
            };
            let got = parse(&pod(containers), "v", &source).unwrap();
            assert_eq!(got, Medium::Memory { size_bytes: bytes }, "{containers:?} {limit:?}");
        }
        let node = BTreeMap::from([("memory".to_owned(), "32Mi".parse().unwrap())]);
        let all = Medium::Memory { size_bytes: None };
        assert_eq!(all.limited_to(&node), Medium::Memory { size_bytes: mi(32) });
        assert_eq!(Medium::Disk.limited_to(&node), Medium::Disk);
    }

    #[test]
    fn huge_pages_are_those_of_the_pod() {
        type Case<'a> = (MemoryLimits<'a>, &'a str, Option<u64>);
        let small: MemoryLimits<'_> = &[("hugepages-2Mi", "4Mi")];
        let both: MemoryLimits<'_> = &[("hugepages-2Mi", "4Mi"), ("hugepages-1Gi", "1Gi")];
        let cases: [Case<'_>; 7] = [
            (small, "HugePages", Some(2 << 20)),
            (small, "HugePages-2Mi", Some(2 << 20)),
            (small, "HugePages-1Gi", None),
            (both, "HugePages-1Gi", Some(1 << 30)),
            (both, "HugePages", None),
            (&[], "HugePages", None),
            (small, "Tape", None),
        ];
        for (limits, medium, bytes) in cases {
            let source = EmptyDirVolumeSource { medium: medium.into(), size_limit: None };
            let got = parse(&pod(&[limits]), "v", &source).ok();
            assert_eq!(got, bytes.map(|page_bytes| Medium::HugePages { page_bytes }), "{medium}");
        }
    }
}
