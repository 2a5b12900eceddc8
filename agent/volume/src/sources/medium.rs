//! Where an empty directory lies, and how large it may become.

use std::collections::{BTreeMap, BTreeSet};

use proto_api::Quantity;
use proto_api::core::v1::{Container, EmptyDirVolumeSource, Pod};

use super::SourceError;

/// The only medium name with a size of its own: `HugePages-<page size>`.
const HUGE_PAGES: &str = "HugePages";
/// Resources of huge pages: `hugepages-<page size>`.
const HUGE_PAGES_RESOURCE: &str = "hugepages-";

/// Where an empty directory lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Medium {
    /// On the node's disk.
    Disk,
    /// In memory, up to a size in bytes.
    Memory {
        /// The bound; half of the node's memory when `None`.
        size_bytes: Option<u64>,
    },
    /// In huge pages.
    HugePages {
        /// Size of one, in bytes.
        page_bytes: u64,
    },
}

impl Medium {
    /// The same, but no larger than all that pods may have of the node.
    #[must_use]
    pub fn bounded_by(&self, allocatable: &BTreeMap<String, Quantity>) -> Self {
        let node = allocatable.get("memory").map(|q| q.as_bytes()).filter(|bytes| *bytes > 0);
        match self {
            Self::Memory { size_bytes } => {
                Self::Memory { size_bytes: [*size_bytes, node].into_iter().flatten().min() }
            }
            other => other.clone(),
        }
    }
}

/// The medium of a volume of `pod`. Memory is bounded by the volume's limit and by what the pod's containers may use together.
pub(super) fn of(
    pod: &Pod,
    volume: &str,
    source: &EmptyDirVolumeSource,
) -> Result<Medium, SourceError> {
    let refused = |why: String| SourceError::Medium { volume: volume.to_owned(), why };
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
                (Some(size), None) => huge_pages(size).map_err(refused),
                (None, _) => Err(refused("medium HugePages, but the pod has no huge pages".into())),
                _ => Err(refused(
                    "medium HugePages, but the pod has huge pages of several sizes".into(),
                )),
            }
        }
        other => match other.strip_prefix(HUGE_PAGES).and_then(|rest| rest.strip_prefix('-')) {
            Some(size) if page_sizes(pod).contains(size) => huge_pages(size).map_err(refused),
            Some(_) => Err(refused(format!("medium {other}, but the pod has none of them"))),
            None => Err(refused(format!("unknown storage medium {other:?}"))),
        },
    }
}

fn huge_pages(size: &str) -> Result<Medium, String> {
    let size: Quantity = size.parse().map_err(|_| format!("huge pages of size {size:?}"))?;
    Ok(Medium::HugePages { page_bytes: size.as_bytes() })
}

/// Sizes of huge pages that the pod's containers name.
fn page_sizes(pod: &Pod) -> BTreeSet<String> {
    let all = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    let names = all.flat_map(|c| c.resources.requests.keys().chain(c.resources.limits.keys()));
    names.filter_map(|name| name.strip_prefix(HUGE_PAGES_RESOURCE)).map(str::to_owned).collect()
}

/// Memory that the pod's containers may use together, in bytes; `None` when one of them has no bound.
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

    /// Limits of one container, by resource.
    type Limits<'a> = &'a [(&'a str, &'a str)];

    fn pod(containers: &[Limits<'_>]) -> Pod {
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
        type Case<'a> = (&'a [Limits<'a>], Option<&'a str>, Option<u64>);
        let one: Limits<'_> = &[("memory", "64Mi")];
        let none: Limits<'_> = &[];
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
            let got = of(&pod(containers), "v", &source).unwrap();
            assert_eq!(got, Medium::Memory { size_bytes: bytes }, "{containers:?} {limit:?}");
        }
        let node = BTreeMap::from([("memory".to_owned(), "32Mi".parse().unwrap())]);
        let all = Medium::Memory { size_bytes: None };
        assert_eq!(all.bounded_by(&node), Medium::Memory { size_bytes: mi(32) });
        assert_eq!(Medium::Disk.bounded_by(&node), Medium::Disk);
    }

    #[test]
    fn huge_pages_are_those_of_the_pod() {
        type Case<'a> = (Limits<'a>, &'a str, Option<u64>);
        let small: Limits<'_> = &[("hugepages-2Mi", "4Mi")];
        let both: Limits<'_> = &[("hugepages-2Mi", "4Mi"), ("hugepages-1Gi", "1Gi")];
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
            let got = of(&pod(&[limits]), "v", &source).ok();
            assert_eq!(got, bytes.map(|page_bytes| Medium::HugePages { page_bytes }), "{medium}");
        }
    }
}
