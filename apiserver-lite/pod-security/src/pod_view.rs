//! What the checks look at: annotations, spec, all containers of a pod alike, and who sets a forbidden value.

use std::collections::BTreeMap;

use proto_api::core::v1::{
    Container, ContainerPort, EphemeralContainer, PodSecurityContext, PodSpec, SecurityContext,
};
use proto_api::names::Names;

use crate::text::name_containers;

/// A pod or a pod template.
#[derive(Clone, Copy)]
pub(crate) struct PodView<'a> {
    pub(crate) annotations: &'a BTreeMap<String, String>,
    pub(crate) spec: &'a PodSpec,
    pub(crate) names: &'a Names,
}

impl<'a> PodView<'a> {
    /// All containers, in the order in which messages name them: init containers, containers, ephemeral containers.
    pub(crate) fn containers(self) -> impl Iterator<Item = ContainerView<'a>> {
        let init = self.spec.init_containers.iter().map(view_container);
        let containers = self.spec.containers.iter().map(view_container);
        let ephemeral = self.spec.ephemeral_containers.iter().map(view_ephemeral);
        init.chain(containers).chain(ephemeral)
    }

    /// Names of the containers of which `is_bad` holds.
    pub(crate) fn names_where(
        self,
        mut is_bad: impl FnMut(ContainerView<'a>) -> bool,
    ) -> Vec<&'a str> {
        self.containers()
            .filter(|container| is_bad(*container))
            .map(|container| container.name)
            .collect()
    }

    pub(crate) fn context(self) -> Option<&'a PodSecurityContext> {
        self.spec.security_context.as_ref()
    }

    /// Whether the pod says that it is for Windows.
    pub(crate) fn is_windows(self) -> bool {
        self.spec.os.as_ref().is_some_and(|os| os.name == "windows")
    }
}

/// What containers, init containers and ephemeral containers have in common.
#[derive(Clone, Copy)]
pub(crate) struct ContainerView<'a> {
    pub(crate) name: &'a str,
    pub(crate) ports: &'a [ContainerPort],
    pub(crate) context: Option<&'a SecurityContext>,
}

fn view_container(container: &Container) -> ContainerView<'_> {
    ContainerView {
        name: &container.name,
        ports: &container.ports,
        context: container.security_context.as_ref(),
    }
}

fn view_ephemeral(container: &EphemeralContainer) -> ContainerView<'_> {
    let common = &container.ephemeral_container_common;
    ContainerView {
        name: &common.name,
        ports: &common.ports,
        context: common.security_context.as_ref(),
    }
}

/// Who sets a forbidden value.
pub(crate) struct FieldSetters<'a> {
    pub(crate) pod: bool,
    pub(crate) containers: Vec<&'a str>,
}

impl FieldSetters<'_> {
    pub(crate) fn is_empty(&self) -> bool {
        !self.pod && self.containers.is_empty()
    }

    /// `pod and containers "a", "b"`, or one of the two.
    pub(crate) fn describe(&self) -> String {
        match (self.pod, self.containers.is_empty()) {
            (true, true) => "pod".to_owned(),
            (true, false) => format!("pod and {}", name_containers(&self.containers)),
            (false, _) => name_containers(&self.containers),
        }
    }
}
