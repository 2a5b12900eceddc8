//! Names of the naming profiles. Brand names stand in this file only.
//!
//! A process selects its profile once at its start and passes `&'static Names` on. Names that belong to other software are the same in both profiles and
//! are not here: the Protobuf prefix `k8s\0`, `csi.storage.k8s.io/*` volume-context keys, `io.kubernetes.*` labels that container runtimes read, the
//! `system:` prefix, the DNS domain `cluster.local`.

/// The domain of the `orch` profile when none is given.
pub const DEFAULT_ORCH_DOMAIN: &str = "orch.io";

/// Which set of names a process uses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Profile {
    /// The project's own names, under a domain.
    Orch {
        /// The domain of API groups, labels, annotations and taints, for example `orch.io`.
        domain: String,
    },
    /// Kubernetes' own names, for its clients, operators, test suites, agents and proxies.
    Kubernetes,
}

impl Profile {
    /// The profile with this name (`orch` or `kubernetes`); the domain, for the first only.
    pub fn parse(naming: &str, domain: Option<&str>) -> Option<Profile> {
        match naming {
            "orch" => {
                Some(Profile::Orch { domain: domain.unwrap_or(DEFAULT_ORCH_DOMAIN).to_owned() })
            }
            "kubernetes" => Some(Profile::Kubernetes),
            _ => None,
        }
    }
}

impl Default for Profile {
    fn default() -> Profile {
        Profile::Orch { domain: DEFAULT_ORCH_DOMAIN.to_owned() }
    }
}

/// Sandbox annotations from which container runtimes read a pod's traffic limits, in both profiles: ingress, egress.
pub const RUNTIME_BANDWIDTH: [&str; 2] =
    ["kubernetes.io/ingress-bandwidth", "kubernetes.io/egress-bandwidth"];

/// Every name that differs between profiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    profile: Profile,
    group_domain: String,
    label_domain: String,
    service_account_dir: String,
    words: Words,
}

/// The parts that do not depend on the domain.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Words {
    /// The product's name in texts that tools compare.
    brand: &'static str,
    /// In namespaces, users, files and metrics: `kube-system`, `system:kube-proxy`.
    short: &'static str,
    protobuf_media_type: &'static str,
    system_namespace: &'static str,
    public_namespace: &'static str,
    node_lease_namespace: &'static str,
    api_service_name: &'static str,
    api_service_env_prefix: &'static str,
    root_ca_config_map: &'static str,
    token_volume_prefix: &'static str,
    client_config_dir: &'static str,
    client_config_env: &'static str,
}

const ORCH: Words = Words {
    brand: "orch",
    short: "orch",
    protobuf_media_type: "application/vnd.orch.protobuf",
    system_namespace: "orch-system",
    public_namespace: "orch-public",
    node_lease_namespace: "orch-node-lease",
    api_service_name: "orch",
    api_service_env_prefix: "ORCH",
    root_ca_config_map: "orch-root-ca.crt",
    token_volume_prefix: "orch-api-access-",
    client_config_dir: ".orch",
    client_config_env: "ORCHCONFIG",
};

const KUBERNETES: Words = Words {
    brand: "Kubernetes",
    short: "kube",
    protobuf_media_type: "application/vnd.kubernetes.protobuf",
    system_namespace: "kube-system",
    public_namespace: "kube-public",
    node_lease_namespace: "kube-node-lease",
    api_service_name: "kubernetes",
    api_service_env_prefix: "KUBERNETES",
    root_ca_config_map: "kube-root-ca.crt",
    token_volume_prefix: "kube-api-access-",
    client_config_dir: ".kube",
    client_config_env: "KUBECONFIG",
};

impl Names {
    /// The names of a profile. They are never freed: call this once.
    pub fn new(profile: Profile) -> &'static Names {
        let (words, group_domain, label_domain) = match &profile {
            Profile::Orch { domain } => (ORCH, domain.clone(), domain.clone()),
            Profile::Kubernetes => (KUBERNETES, "k8s.io".to_owned(), "kubernetes.io".to_owned()),
        };
        let service_account_dir = format!("/var/run/secrets/{label_domain}/serviceaccount");
        Box::leak(Box::new(Names {
            profile,
            group_domain,
            label_domain,
            service_account_dir,
            words,
        }))
    }

    /// An annotation of orchlet alone, the same in both profiles: with the value `true` files of projected volumes that containers mount by `subPath` are
    /// updated while the pod runs.
    pub const PARTS_FOLLOW: &'static str = "orch.io/sub-paths-follow";

    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The product's name in texts for people.
    pub fn brand(&self) -> &'static str {
        self.words.brand
    }

    /// The domain of API groups.
    pub fn group_domain(&self) -> &str {
        &self.group_domain
    }

    /// The domain of labels, annotations, taints, finalizers and secret types.
    pub fn label_domain(&self) -> &str {
        &self.label_domain
    }

    /// The full name of a group: `coordination` is `coordination.orch.io`, `rbac` (or
    /// `rbac.authorization`) is `rbac.authorization.orch.io`; core (empty), `apps`, `batch`,
    /// `autoscaling`, `policy` and `extensions` have no domain. Not for groups of custom resources.
    pub fn group(&self, short: &str) -> String {
        match short {
            "" | "apps" | "batch" | "autoscaling" | "policy" | "extensions" => short.to_owned(),
            "rbac" => format!("rbac.authorization.{}", self.group_domain),
            "flowcontrol" => format!("flowcontrol.apiserver.{}", self.group_domain),
            _ => format!("{short}.{}", self.group_domain),
        }
    }

    /// The short name of a full group, the reverse of [`Names::group`]; `None` for a group that is
    /// not under the domain (a custom resource's), or that only looks so (`autoscaling.k8s.io`).
    pub fn short_group<'a>(&self, full: &'a str) -> Option<&'a str> {
        match full {
            "" | "apps" | "batch" | "autoscaling" | "policy" | "extensions" => Some(full),
            _ => {
                let short = full.strip_suffix(self.group_domain.as_str())?.strip_suffix('.')?;
                let has_no_domain =
                    matches!(short, "apps" | "batch" | "autoscaling" | "policy" | "extensions");
                (!has_no_domain).then_some(short)
            }
        }
    }

    /// `apiVersion` of a short group and a version: `v1`, `apps/v1`, `coordination.orch.io/v1`.
    pub fn api_version(&self, short_group: &str, version: &str) -> String {
        match self.group(short_group) {
            group if group.is_empty() => version.to_owned(),
            group => format!("{group}/{version}"),
        }
    }

    /// A label, annotation, taint or type under the domain: `hostname` is `orch.io/hostname`. For one
    /// under a subdomain see [`Names::sub_label`].
    pub fn label(&self, name: &str) -> String {
        format!("{}/{name}", self.label_domain)
    }

    /// A label under a subdomain: `sub_label("node", "not-ready")` is `node.orch.io/not-ready`.
    pub fn sub_label(&self, sub: &str, name: &str) -> String {
        format!("{sub}.{}/{name}", self.label_domain)
    }

    /// The media type of Protobuf bodies.
    pub fn protobuf_media_type(&self) -> &'static str {
        self.words.protobuf_media_type
    }

    /// The namespace of the system's own objects.
    pub fn system_namespace(&self) -> &'static str {
        self.words.system_namespace
    }

    /// The namespace that is readable for all users.
    pub fn public_namespace(&self) -> &'static str {
        self.words.public_namespace
    }

    /// `kube-node-lease`, or its name in the profile.
    pub fn node_lease_namespace(&self) -> &'static str {
        self.words.node_lease_namespace
    }

    /// The service of the API server in the namespace `default`; also its endpoints, and the
    /// finalizer of namespaces.
    pub fn api_service_name(&self) -> &'static str {
        self.words.api_service_name
    }

    /// The prefix of the environment variables of the API server's Service: `ORCH` in `ORCH_SERVICE_HOST`.
    pub fn api_service_env_prefix(&self) -> &'static str {
        self.words.api_service_env_prefix
    }

    /// The ConfigMap with the cluster's CA in every namespace.
    pub fn root_ca_config_map(&self) -> &'static str {
        self.words.root_ca_config_map
    }

    /// The class of load balancers whose addresses our controller manager allocates, as those of Services without a class.
    pub fn load_balancer_class(&self) -> String {
        self.label("load-balancer-addresses")
    }

    /// The annotation of a Service with the name of the node that announces the addresses of its load balancer.
    pub fn load_balancer_node(&self) -> String {
        self.label("load-balancer-node")
    }

    /// The prefix of the name of a pod's token volume.
    pub fn token_volume_prefix(&self) -> &'static str {
        self.words.token_volume_prefix
    }

    /// The first line of an `/etc/hosts` that the node agent writes for a pod; tools look for it.
    pub fn hosts_file_header(&self) -> String {
        format!("# {}-managed hosts file", self.words.brand)
    }

    /// The annotation with the AppArmor profile of a container.
    pub fn apparmor_annotation(&self, container: &str) -> String {
        self.sub_label("container.apparmor.security.beta", container)
    }

    /// The annotation with the seccomp profile of all containers of a pod, older than the field.
    pub fn pod_seccomp_annotation(&self) -> String {
        self.sub_label("seccomp.security.alpha", "pod")
    }

    /// The annotation with the seccomp profile of one container, older than the field.
    pub fn container_seccomp_annotation(&self, container: &str) -> String {
        self.sub_label("container.seccomp.security.alpha", container)
    }

    /// The issuer of service account tokens in Secrets.
    pub fn lasting_token_issuer(&self) -> String {
        format!("{}/serviceaccount", self.words.api_service_name)
    }

    /// The directory with the service account's token in containers.
    pub fn service_account_dir(&self) -> &str {
        &self.service_account_dir
    }

    /// The user of a component: `user("scheduler")` is `system:orch-scheduler`.
    pub fn user(&self, component: &str) -> String {
        format!("system:{}-{component}", self.words.short)
    }

    /// A component's name in the profile: `component("proxy")` is `orch-proxy` or
    /// `kube-proxy`; the node agent (`let`) and the tools (`ctl`, `adm`) are one word.
    pub fn component(&self, component: &str) -> String {
        match component {
            "let" | "ctl" | "adm" => format!("{}{component}", self.words.short),
            _ => format!("{}-{component}", self.words.short),
        }
    }

    /// The prefix of a component's metrics: `metric_prefix("proxy")` is `orchproxy` or `kubeproxy`, that of the node agent (`let`) `orchlet` or `kubelet`.
    pub fn metric_prefix(&self, component: &str) -> String {
        self.component(component).replace('-', "")
    }

    /// A header of responses that says what took the request, `FlowSchema` or `PriorityLevel`: `X-Kubernetes-PF-FlowSchema-UID`.
    pub fn flow_control_header(&self, what: &str) -> String {
        let brand = self.words.api_service_name;
        format!("x-{brand}-pf-{what}-uid").to_ascii_lowercase()
    }

    /// The signer of client certificates of node agents.
    pub fn node_client_signer(&self) -> String {
        let name = format!("{}-client-{}", self.component("apiserver"), self.component("let"));
        self.label(&name)
    }

    /// The signer of serving certificates of node agents.
    pub fn node_serving_signer(&self) -> String {
        self.label(&format!("{}-serving", self.component("let")))
    }

    /// The signer of other client certificates.
    pub fn client_signer(&self) -> String {
        self.label(&format!("{}-client", self.component("apiserver")))
    }

    /// The signer of certificates without any guarantee of trust (`legacy-unknown`).
    pub fn legacy_signer(&self) -> String {
        self.label("legacy-unknown")
    }

    /// The client configuration below the user's home directory: `.orch/config`.
    pub fn client_config_path(&self) -> String {
        format!("{}/config", self.words.client_config_dir)
    }

    /// The environment variable that names client configuration files.
    pub fn client_config_env(&self) -> &'static str {
        self.words.client_config_env
    }
}

/// The names of the default profile, the same for every caller.
impl Default for &'static Names {
    fn default() -> Self {
        static NAMES: std::sync::OnceLock<&'static Names> = std::sync::OnceLock::new();
        NAMES.get_or_init(|| Names::new(Profile::default()))
    }
}

#[cfg(test)]
mod tests;
