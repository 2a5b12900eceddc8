//! ImageLocality: nodes that have the pod's images already, weighed by how many nodes have them, so that pods do not gather on one.

use crate::nodes::NodeLoad;
use crate::pod_info::PodInfo;
use crate::selected_counts::SelectedCounts;

/// Bytes of images below which a node gets no points.
const LEAST: f64 = 23.0 * 1024.0 * 1024.0;
/// Bytes for each container at which a node gets all points.
const MOST: f64 = 1000.0 * 1024.0 * 1024.0;

/// The points of the feasible nodes, from 0 to 100. `loads` are all nodes.
pub(super) fn points(
    pod: &PodInfo,
    feasible: &[&NodeLoad],
    loads: &[NodeLoad],
    selected: &mut SelectedCounts,
) -> Vec<i64> {
    let mut images: Vec<(&str, f64)> = Vec::new();
    for image in &pod.images {
        let with = selected.nodes_with_image(image, loads);
        if with > 0 {
            images.push((image, with as f64 / loads.len().max(1) as f64));
        }
    }
    if images.is_empty() {
        return vec![0; feasible.len()];
    }
    let most = MOST * pod.images.len().max(1) as f64;
    let point = |load: &&NodeLoad| {
        let sizes = images.iter().filter_map(|(image, part)| {
            proto_api::count_steps!(1);
            load.node.images.get(*image).map(|size| *size as f64 * part)
        });
        let bytes = sizes.sum::<f64>().clamp(LEAST, most);
        (super::MAX_POINTS as f64 * (bytes - LEAST) / (most - LEAST)) as i64
    };
    feasible.iter().map(point).collect()
}
