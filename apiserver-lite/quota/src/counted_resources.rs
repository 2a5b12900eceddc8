//! Objects that quotas count, and the names of resources under which they do.

use proto_api::core::v1::{PersistentVolumeClaim, Pod, Service};
use proto_api::names::Names;
use proto_api::{Quantity, Time};

use crate::pods;
use crate::resource_amounts::{ResourceList, add_one};

/// Prefix of the names that count objects of a kind.
const COUNT: &str = "count/";
/// Resources of group core that are counted under their own names too.
const PLAIN: &[&str] = &["configmaps", "replicationcontrollers", "resourcequotas", "secrets"];
const NODE_PORTS: &str = "services.nodeports";
const LOAD_BALANCERS: &str = "services.loadbalancers";
const CLAIMS: &str = "persistentvolumeclaims";
const STORAGE: &str = "requests.storage";

/// A kind whose objects are counted, by its resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CountedResource {
    /// The group with its domain; empty for core.
    pub group: String,
    /// For example `pods`.
    pub plural: String,
}

/// An object that is counted.
#[derive(Clone, Copy, Debug)]
pub enum Counted<'a> {
    /// A pod, by its requests and limits.
    Pod(&'a Pod),
    /// A Service, by its type and ports.
    Service(&'a Service),
    /// A claim, by its storage and class.
    Claim(&'a PersistentVolumeClaim),
    /// An object of another kind, as one.
    Other(&'a CountedResource),
}

impl CountedResource {
    /// The kind of a resource; `group` has its domain.
    pub fn new(group: &str, plural: &str) -> Self {
        Self { group: group.to_owned(), plural: plural.to_owned() }
    }

    /// Whether its objects are counted: those of events are not.
    pub fn is_counted(&self) -> bool {
        self.plural != "events"
    }

    /// The name that counts its objects: `count/deployments.apps`.
    pub fn count_name(&self) -> String {
        let Self { group, plural } = self;
        if group.is_empty() {
            format!("{COUNT}{plural}")
        } else {
            format!("{COUNT}{plural}.{group}")
        }
    }

    /// Whether a quota's resource of this name counts objects of the kind.
    pub fn is_counted_by(&self, name: &str, names: &Names) -> bool {
        if name == self.count_name() {
            return true;
        }
        match (self.group.as_str(), self.plural.as_str()) {
            ("", "pods") => pods::is_counted_by(name, names),
            ("", "services") => ["services", NODE_PORTS, LOAD_BALANCERS].contains(&name),
            ("", CLAIMS) => {
                let class = class_infix(names);
                [CLAIMS, STORAGE].iter().any(|plain| {
                    name == *plain
                        || name.strip_suffix(plain).is_some_and(|head| head.ends_with(&class))
                })
            }
            ("", plural) => PLAIN.contains(&plural) && name == plural,
            _ => false,
        }
    }

    /// What this many objects of a kind use that is counted by number only.
    pub fn amounts(&self, count: i64) -> ResourceList {
        let count = Quantity::from_units(count);
        let mut amounts = ResourceList::from([(self.count_name(), count)]);
        if self.group.is_empty() && PLAIN.contains(&self.plural.as_str()) {
            amounts.insert(self.plural.clone(), count);
        }
        amounts
    }
}

impl Counted<'_> {
    /// The kind of the object.
    pub fn kind(&self) -> CountedResource {
        match self {
            Counted::Pod(_) => CountedResource::new("", "pods"),
            Counted::Service(_) => CountedResource::new("", "services"),
            Counted::Claim(_) => CountedResource::new("", CLAIMS),
            Counted::Other(kind) => (*kind).clone(),
        }
    }

    /// What the object uses at a time.
    pub fn amounts(&self, names: &Names, now: Time) -> ResourceList {
        match self {
            Counted::Pod(pod) => pods::amounts(pod, names, now),
            Counted::Service(service) => amounts_of_service(service),
            Counted::Claim(claim) => amounts_of_claim(claim, names),
            Counted::Other(kind) => kind.amounts(1),
        }
    }
}

/// What stands between a class and the resource that is counted for it: `fast.storageclass.storage.k8s.io/requests.storage`.
fn class_infix(names: &Names) -> String {
    format!(".storageclass.{}/", names.group("storage"))
}

fn amounts_of_service(service: &Service) -> ResourceList {
    let spec = &service.spec;
    // Ports are allocated after the write is admitted: the intent counts. A balancer that takes no node ports has those that it names.
    let names_ports =
        spec.type_ == "LoadBalancer" && spec.allocate_load_balancer_node_ports == Some(false);
    let ports = spec.ports.iter().filter(|port| !names_ports || port.node_port != 0).count();
    let ports = i64::try_from(ports).unwrap_or(i64::MAX);
    let (node_ports, balancers) = match spec.type_.as_str() {
        "NodePort" => (ports, 0),
        "LoadBalancer" => (ports, 1),
        _ => (0, 0),
    };
    let mut amounts = CountedResource::new("", "services").amounts(1);
    for (name, count) in [("services", 1), (NODE_PORTS, node_ports), (LOAD_BALANCERS, balancers)] {
        amounts.insert(name.to_owned(), Quantity::from_units(count));
    }
    amounts
}

fn amounts_of_claim(claim: &PersistentVolumeClaim, names: &Names) -> ResourceList {
    let annotated =
        claim.metadata.annotations.get(&names.sub_label("volume.beta", "storage-class"));
    let class =
        annotated.or(claim.spec.storage_class_name.as_ref()).filter(|class| !class.is_empty());
    let mut amounts = CountedResource::new("", CLAIMS).amounts(1);
    let mut count = |plain: &str, amount: Quantity| {
        add_one(&mut amounts, plain, amount);
        if let Some(class) = class {
            add_one(&mut amounts, &format!("{class}{}{plain}", class_infix(names)), amount);
        }
    };
    count(CLAIMS, Quantity::from_units(1));
    // What is being allocated counts until the driver has given it up.
    let requested = claim.spec.resources.requests.get("storage");
    let allocated = claim.status.allocated_resources.get("storage");
    if let Some(storage) = requested.max(allocated) {
        // Whole bytes: a quota's amount of storage has no fraction.
        let whole = Quantity::from_units(storage.value()).with_format(storage.format());
        count(STORAGE, whole);
    }
    amounts
}
