//! Pressure on the node's resources, and admission under it.

use proto_api::core::v1::Pod;
use proto_api::names::Names;

use crate::admission::AdmissionRefusal;
use crate::priority::is_critical;
use crate::qos::{QosClass, qos_class};

/// Resources under pressure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    pub memory: bool,
    /// Disk space or inodes.
    pub disk: bool,
    /// Process ids.
    pub pid: bool,
}

impl Pressure {
    /// Whether any resource is under pressure.
    pub fn is_any(self) -> bool {
        self.memory || self.disk || self.pid
    }

    /// The node conditions that hold, in the order of rejection messages.
    pub fn conditions(self) -> Vec<&'static str> {
        let all = [
            (self.memory, "MemoryPressure"),
            (self.disk, "DiskPressure"),
            (self.pid, "PIDPressure"),
        ];
        all.into_iter().filter(|(holds, _)| *holds).map(|(_, name)| name).collect()
    }
}

/// Admission under pressure: critical pods always; if only memory is short, also pods that request or limit resources or tolerate
/// the taint.
///
/// # Errors
/// The rejection, with reason `Evicted`.
pub fn admit(
    pod: &Pod,
    pressure: Pressure,
    names: &Names,
    is_static: bool,
) -> Result<(), AdmissionRefusal> {
    if !pressure.is_any() || is_critical(pod, is_static) {
        return Ok(());
    }
    let only_memory = pressure == Pressure { memory: true, ..Pressure::default() };
    if only_memory && (qos_class(pod) != QosClass::BestEffort || tolerates_memory(pod, names)) {
        return Ok(());
    }
    let conditions = pressure.conditions().join(" ");
    Err(AdmissionRefusal {
        reason: "Evicted".to_owned(),
        message: format!("The node had condition: [{conditions}]. "),
    })
}

fn tolerates_memory(pod: &Pod, names: &Names) -> bool {
    let key = names.sub_label("node", "memory-pressure");
    pod.spec.tolerations.iter().any(|t| {
        let key = match t.operator.as_str() {
            "Exists" => t.key.is_empty() || t.key == key,
            _ => t.key == key && t.value.is_empty(),
        };
        key && (t.effect.is_empty() || t.effect == "NoSchedule")
    })
}

#[cfg(test)]
mod tests {
    use proto_api::core::v1::{Container, Toleration};
    use proto_api::names::Profile;

    use super::*;

    fn pod(priority: i32, request: Option<&str>) -> Pod {
        let mut pod = Pod::default();
        pod.spec.priority = Some(priority);
        let mut container = Container::default();
        if let Some(amount) = request {
            let amount = amount.parse().expect("quantity");
            container.resources.requests.insert("memory".into(), amount);
        }
        pod.spec.containers = vec![container];
        pod
    }

    #[test]
    fn pods_admitted_under_pressure_depend_on_qos_priority_and_tolerations() {
        let names = Names::new(Profile::Kubernetes);
        let memory = Pressure { memory: true, ..Pressure::default() };
        let disk = Pressure { disk: true, ..Pressure::default() };
        let both = Pressure { memory: true, disk: true, pid: false };
        let mut tolerant = pod(0, None);
        tolerant.spec.tolerations = vec![Toleration {
            key: names.sub_label("node", "memory-pressure"),
            operator: "Exists".into(),
            effect: "NoSchedule".into(),
            ..Toleration::default()
        }];
        let cases = [
            (pod(0, None), Pressure::default(), false, true),
            (pod(0, None), memory, false, false),
            (pod(0, Some("1Mi")), memory, false, true),
            (tolerant.clone(), memory, false, true),
            (tolerant, both, false, false),
            (pod(0, Some("1Mi")), disk, false, false),
            (pod(0, None), disk, true, true),
            (pod(2_000_000_000, None), both, false, true),
            (pod(1_999_999_999, None), both, false, false),
        ];
        for (pod, pressure, is_static, expect) in cases {
            let answer = admit(&pod, pressure, names, is_static);
            assert_eq!(answer.is_ok(), expect, "{pressure:?} {:?}", pod.spec);
        }
        let refusal = admit(&pod(0, None), both, names, false).expect_err("refused");
        assert_eq!(refusal.message, "The node had condition: [MemoryPressure DiskPressure]. ");
    }
}
