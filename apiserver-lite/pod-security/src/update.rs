//! Which updates of a pod have to be checked.

use std::collections::HashMap;

use proto_api::core::v1::Pod;
use proto_api::names::Names;

/// Whether an update of `old` to `pod` changes what the standards look at and a user may change: images, the number of containers,
/// annotations of seccomp profiles, new ephemeral containers. Other updates are admitted whatever the policy is, so that a pod that
/// violates a newer policy can still be labelled, tolerate more and end.
#[must_use]
pub fn is_significant_update(pod: &Pod, old: &Pod, names: &Names) -> bool {
    let has_new_annotation = |key: &str| annotation(pod, key) != annotation(old, key);
    let is_changed = |name: &str, image: &str, old_image: &str| {
        image != old_image || has_new_annotation(&names.container_seccomp_annotation(name))
    };
    let lists = [
        (&pod.spec.containers, &old.spec.containers),
        (&pod.spec.init_containers, &old.spec.init_containers),
    ];
    let are_lists_changed = lists.into_iter().any(|(new, old)| {
        let mut pairs = new.iter().zip(old);
        new.len() != old.len()
            || pairs.any(|(new, old)| is_changed(&new.name, &new.image, &old.image))
    });
    if are_lists_changed || has_new_annotation(&names.pod_seccomp_annotation()) {
        return true;
    }
    let images = image_by_ephemeral_container(old);
    pod.spec.ephemeral_containers.iter().map(|container| &container.ephemeral_container_common).any(
        |container| match images.get(container.name.as_str()) {
            Some(old_image) => is_changed(&container.name, &container.image, old_image),
            None => true,
        },
    )
}

/// The annotation, empty if there is none.
fn annotation<'a>(pod: &'a Pod, key: &str) -> &'a str {
    pod.metadata.annotations.get(key).map_or("", String::as_str)
}

/// Of containers with one name, the first.
fn image_by_ephemeral_container(pod: &Pod) -> HashMap<&str, &str> {
    let mut images = HashMap::new();
    for container in &pod.spec.ephemeral_containers {
        let common = &container.ephemeral_container_common;
        images.entry(common.name.as_str()).or_insert(common.image.as_str());
    }
    images
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;
    use proto_api::object::from_json_value;
    use serde_json::{Value, json};

    use super::*;

    fn names() -> &'static Names {
        Names::new(Profile::Kubernetes)
    }

    fn pod(value: Value) -> Pod {
        from_json_value(value, names()).expect("a pod")
    }

    fn base() -> Value {
        json!({
            "metadata": {"annotations": {"a": "b"}},
            "spec": {
                "containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "x"}],
                "initContainers": [{"name": "i", "image": "x"}],
                "ephemeralContainers": [{"name": "e", "image": "x"}],
            },
        })
    }

    /// Sets the value at a JSON pointer of the base, and says whether that is significant.
    fn is_significant(pointer: &str, value: Value) -> bool {
        let mut changed = base();
        let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
        match changed.pointer_mut(parent).expect("a parent") {
            Value::Array(list) if key == "-" => list.push(value),
            Value::Array(list) => list[key.parse::<usize>().expect("an index")] = value,
            parent => parent[key] = value,
        }
        is_significant_update(&pod(changed), &pod(base()), names())
    }

    #[test]
    fn updates_of_checked_fields_are_significant() {
        for (pointer, value) in [
            ("/spec/containers/0/image", json!("y")),
            ("/spec/containers/1/image", json!("")),
            ("/spec/initContainers/0/image", json!("y")),
            ("/spec/ephemeralContainers/0/image", json!("y")),
            ("/spec/ephemeralContainers/0/name", json!("f")),
            ("/spec/containers/-", json!({"name": "c", "image": "x"})),
            ("/spec/initContainers", json!([])),
            ("/spec/ephemeralContainers/-", json!({"name": "f", "image": "x"})),
        ] {
            assert!(is_significant(pointer, value), "{pointer}");
        }
        for key in ["seccomp.security.alpha", "container.seccomp.security.alpha"] {
            for name in ["pod", "a", "b", "i", "e"] {
                let key = names().sub_label(key, name);
                let is_of_pod = name == "pod" && !key.starts_with("container.");
                let is_of_container = name != "pod" && key.starts_with("container.");
                let value = json!({"a": "b", &key: "unconfined"});
                assert_eq!(
                    is_significant("/metadata/annotations", value),
                    is_of_pod || is_of_container,
                    "{key}"
                );
            }
        }
    }

    #[test]
    fn other_changes_are_not_significant() {
        for (pointer, value) in [
            ("/metadata/annotations", json!({})),
            ("/metadata/labels", json!({"a": "b"})),
            ("/metadata/finalizers", json!(["a/b"])),
            ("/spec/activeDeadlineSeconds", json!(1)),
            ("/spec/terminationGracePeriodSeconds", json!(1)),
            ("/spec/tolerations", json!([{"operator": "Exists"}])),
            ("/spec/hostNetwork", json!(true)),
            ("/spec/containers/0/securityContext", json!({"privileged": true})),
            ("/spec/ephemeralContainers", json!([])),
            ("/status", json!({"phase": "Running"})),
        ] {
            assert!(!is_significant(pointer, value), "{pointer}");
        }
    }

    #[test]
    fn empty_pods_and_annotations_are_equal() {
        let annotated = names().pod_seccomp_annotation();
        let empty = pod(json!({"metadata": {"annotations": {annotated: ""}}}));
        assert!(!is_significant_update(&empty, &Pod::default(), names()));
        assert!(!is_significant_update(&Pod::default(), &empty, names()));
        assert!(is_significant_update(&pod(base()), &Pod::default(), names()));
    }

    #[test]
    fn of_ephemeral_containers_with_one_name_the_first_counts() {
        let two = |first: &str, second: &str| {
            let containers = json!([{"name": "e", "image": first}, {"name": "e", "image": second}]);
            pod(json!({"spec": {"ephemeralContainers": containers}}))
        };
        assert!(!is_significant_update(&two("x", "x"), &two("x", "y"), names()));
        assert!(is_significant_update(&two("x", "y"), &two("x", "y"), names()));
    }
}
