//! The boundary of panics around the selection of a node for one pod.

use apiserver_scheduling::pod_info::PodInfo;
use apiserver_scheduling::select_node::SelectError;
use proto_daemon::panics::isolate_sync;

/// Selects a node within a panic boundary: a panic fails this pod only, and without a message for users.
pub fn isolate_pod<T>(
    pod: &PodInfo,
    select: impl FnOnce() -> Result<T, SelectError>,
) -> Result<T, SelectError> {
    match isolate_sync(select) {
        Ok(found) => found,
        Err(panicked) => {
            tracing::error!(pod = %pod.key, uid = pod.uid, %panicked, "scheduling the pod panicked; retried after its back-off");
            Err(SelectError::Panicked)
        }
    }
}

#[cfg(test)]
mod tests {
    use apiserver_scheduling::examples::pod;
    use apiserver_scheduling::select_node::FitError;

    use super::*;

    #[test]
    fn a_pod_whose_handling_panics_fails_alone() {
        let pod = pod("p", 1, 1);
        let hostile = || -> Result<(), SelectError> { panic!("hostile") };
        assert_eq!(isolate_pod(&pod, hostile), Err(SelectError::Panicked));
        assert_eq!(isolate_pod(&pod, || Ok(1)), Ok(1));
        let no = SelectError::NoFeasibleNode(FitError::default());
        assert_eq!(isolate_pod(&pod, || Err::<(), _>(no.clone())), Err(no));
    }
}
