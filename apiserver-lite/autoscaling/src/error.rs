//! Why a metric says nothing.

/// The metrics API or the pods cannot be read; the text names the request and the cause.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoUsage(pub String);

/// Why a metric has no value for a number of replicas. The texts are Kubernetes'.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetricError {
    /// The number of replicas cannot be calculated now.
    #[error("failed to get {resource} utilization: {cause}")]
    Sizing {
        resource: String,
        /// Why.
        cause: SizingError,
    },
    /// The autoscaler must be corrected.
    #[error(
        "invalid resource metric source: neither a utilization target nor a value target was set"
    )]
    NoTarget,
}

/// Why a metric says nothing. The texts are Kubernetes'.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizingError {
    /// The metrics API has no metrics of the pods.
    #[error("no metrics returned from resource metrics API")]
    NoMetrics,
    /// The metrics API does not answer.
    #[error("unable to fetch metrics from resource metrics API: {0}")]
    Fetch(NoUsage),
    /// A metric that names a container which a pod does not have.
    #[error("container {container} not present in metrics for pod {pod}")]
    NoContainer {
        container: String,
        /// Namespace and name.
        pod: String,
    },
    /// The metrics cannot be had.
    #[error("unable to get metrics for resource {resource}: {cause}")]
    Unavailable {
        resource: String,
        /// Why.
        cause: Box<SizingError>,
    },
    /// The selector of the target selects nothing.
    #[error("no pods returned by selector while calculating replica count")]
    NoPods,
    /// No pod that counts has metrics.
    #[error("did not receive metrics for any ready pods")]
    NoReadyPods,
    /// A percentage of nothing.
    #[error("missing request for {resource} in container {container} of Pod {pod}")]
    NoRequest {
        resource: String,
        /// The container without it.
        container: String,
        pod: String,
    },
    /// All pods with metrics request nothing.
    #[error("no metrics returned matched known pods")]
    NoKnownPods,
}
